"""``ti.profiler``: the names of ``qd.profiler``, and those that only Taichi has. Where the profiler is off they warn, as in Taichi."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

from ...errors import QdrunRuntimeError, warn_user
from ...program.program import current_program
from .. import profiler as own

_COUNTERS = "the counters of a GPU's hardware are not read; kernels are timed"


@dataclass(frozen=True)
class CuptiMetric:
    """A counter of a GPU's hardware, which is not read here."""

    name: str = ""
    header: str = ""
    val_format: str = ""
    scale: float = 1.0


def _warned(function: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
    """A function that gives ``otherwise`` with a warning, where it would raise as the profiler is off."""

    @wraps(function)
    def call(*args: Any, **kw: Any) -> Any:
        try:
            return function(*args, **kw)
        except QdrunRuntimeError as error:
            warn_user(str(error), RuntimeWarning)
            return otherwise

    return call


def set_kernel_profiler_toolkit(toolkit_name: str = "default") -> bool:
    """Choose how kernels are measured. Returns whether it can be: "default" alone."""
    if toolkit_name != "default":
        warn_user(_COUNTERS, RuntimeWarning)
    return toolkit_name == "default"


def set_kernel_profiler_metrics(metric_list: Any = ()) -> None:
    """Choose counters, which are not read here; warns."""
    if metric_list:
        warn_user(_COUNTERS, RuntimeWarning)


@contextmanager
def collect_kernel_profiler_metrics(metric_list: Any = ()) -> Iterator[None]:
    """Choose counters within a ``with`` block."""
    set_kernel_profiler_metrics(metric_list)
    yield


def get_predefined_cupti_metrics(name: str = "") -> list[CuptiMetric]:
    """The counters of a kind: none."""
    return []


def print_memory_profiler_info() -> None:
    """Print the bytes of the program by kind."""
    print(current_program().usage())


def print_scoped_profiler_info() -> None:
    """Print the times of the compiler, which are not measured; warns."""
    warn_user(
        "only kernels are measured: ti.init(kernel_profiler=True), ti.profiler.print_kernel_profiler_info()", RuntimeWarning
    )


def clear_scoped_profiler_info() -> None:
    """Forget the times of the compiler: there are none."""


MODULE = ModuleType("taichi.profiler", __doc__)
MODULE.__dict__.update({name: getattr(own, name) for name in own.__all__})
for _made in (
    *(CuptiMetric, set_kernel_profiler_toolkit, set_kernel_profiler_metrics, collect_kernel_profiler_metrics),
    *(get_predefined_cupti_metrics, print_memory_profiler_info, print_scoped_profiler_info, clear_scoped_profiler_info),
    _warned(own.get_kernel_profiler_total_time, 0.0),
    _warned(own.query_kernel_profiler_info, None),
):
    setattr(MODULE, _made.__name__, _made)
