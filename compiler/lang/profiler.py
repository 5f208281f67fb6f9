"""``qd.profiler``: the times of kernels and their gradients, with ``qd.init(kernel_profiler=True)``."""

from __future__ import annotations

from typing import Literal

from ..errors import QdrunRuntimeError, QdrunTypeError, warn_user
from ..program.program import current_program
from ..refused import refused_names
from ..runtime.profiler import KernelProfiler, KernelTimes

__getattr__ = refused_names(__name__, "profiler.")

_OFF = "the kernel profiler is off\n  do: qd.init(kernel_profiler=True)"


def query_kernel_profiler_info(name: str) -> KernelTimes:
    """The times of a kernel, in milliseconds: ``counter``, ``min``, ``max``, ``avg``, ``total`` and ``share``. Waits for the device.

    Args:
        name: of the kernel; that of its gradient is ``"k.grad"``. A name that was not launched has the counter 0.

    Raises:
        QdrunRuntimeError: the profiler is off.
    """
    profiler = current_program().profiler
    if profiler is None:
        raise QdrunRuntimeError(_OFF)
    return next((one for one in profiler.times() if one.name == name), KernelTimes(name))


def get_kernel_profiler_total_time() -> float:
    """The time of all launches, in seconds. Waits for the device.

    Raises:
        QdrunRuntimeError: the profiler is off.
    """
    profiler = current_program().profiler
    if profiler is None:
        raise QdrunRuntimeError(_OFF)
    return 1e-3 * sum(one.total for one in profiler.times())


def print_kernel_profiler_info(mode: Literal["count", "trace"] = "count") -> None:
    """Print the times of all kernels. Waits for the device. Warns if the profiler is off.

    Args:
        mode: "count": a line for each kernel, that with the largest share first; "trace": a line for each of the last launches.

    Raises:
        QdrunTypeError: there is no such mode.
    """
    if mode not in ("count", "trace"):
        raise QdrunTypeError(f"print_kernel_profiler_info: mode={mode!r}", hint='mode="count" or "trace"')
    profiler = current_program().profiler
    if profiler is None:
        warn_user(_OFF, RuntimeWarning)
        return
    print("\n".join(_counts(profiler) if mode == "count" else _trace(profiler)))


def clear_kernel_profiler_info() -> None:
    """Forget all launches. Warns if the profiler is off."""
    profiler = current_program().profiler
    if profiler is None:
        warn_user(_OFF, RuntimeWarning)
    else:
        profiler.clear()


def _counts(profiler: KernelProfiler) -> list[str]:
    lines = [f"kernel times by {profiler.how}, in ms", " share     calls        min       mean        max      total  kernel"]
    for one in profiler.times():
        times = "".join(f"{ms:11.4f}" for ms in (one.min, one.avg, one.max, one.total))
        lines.append(f"{100 * one.share:5.1f}%{one.counter:10,}{times}  {one.name}")
    return lines


def _trace(profiler: KernelProfiler) -> list[str]:
    profiler.times()
    lines = [f"the last {len(profiler.trace):,} launches by {profiler.how}, in ms", "       time  kernel"]
    return lines + [f"{ms:11.4f}  {name}" for name, ms in profiler.trace]


__all__ = [
    "KernelTimes",
    "clear_kernel_profiler_info",
    "get_kernel_profiler_total_time",
    "print_kernel_profiler_info",
    "query_kernel_profiler_info",
]
