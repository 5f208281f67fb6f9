"""``taichi.lang`` and its modules: the names of ``taichi``, and those of the inner modules that programs use."""

from __future__ import annotations

import importlib
import operator
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...options import Arch, Options
from ...program.program import CURRENT, sync
from ...runtime import registry
from ..data.dtypes import resolve
from ..data.element_types import MatrixType
from .names import cfg

MODULES = frozenset(
    "_ndarray any_array enums exception field impl kernel_impl matrix matrix_ops misc ops simt snode struct util".split()
)
"""Modules of ``taichi.lang`` that can be imported."""


class _Runtime:
    """``impl.get_runtime()``: the current program and its default types."""

    @property
    def prog(self) -> Any:
        """The program, with ``config()``; None before ``ti.init``."""
        program = CURRENT.get()
        return None if program is None else SimpleNamespace(config=lambda: cfg, program=program, synchronize=sync)

    def __getattr__(self, name: str) -> Any:
        if name in ("default_fp", "default_ip"):
            program = CURRENT.get()
            return getattr(Options() if program is None else program.options, name)
        raise AttributeError(f"the runtime has no attribute {name!r}; it has prog, default_fp and default_ip")

    def materialize(self) -> None:
        """Nothing: fields have their memory as soon as they are used."""

    def sync(self) -> None:
        """Wait for the device."""
        sync()


_runtime = _Runtime()


def _to_numpy_type(dtype: Any) -> Any:
    return resolve(dtype).numpy.type


_OPERATORS = {
    **{name: getattr(operator, name) for name in "add sub mul truediv floordiv mod neg lshift rshift".split()},
    **{"div": operator.truediv, "bit_and": operator.and_, "bit_or": operator.or_, "bit_xor": operator.xor},
    **{f"cmp_{name}": getattr(operator, name) for name in "lt le gt ge eq ne".split()},
    **{"bit_not": operator.invert, "logical_not": operator.not_},
}
INNER: dict[str, dict[str, Any]] = {
    "impl": {"get_runtime": lambda: _runtime, "current_cfg": lambda: cfg, "default_cfg": lambda: cfg, "pytaichi": _runtime},
    "matrix": {"MatrixType": MatrixType},
    "misc": {"is_arch_supported": lambda arch: usable(str(arch)), "get_host_arch_list": lambda: [Arch.cpu]},
    "ops": _OPERATORS,
    "util": {
        **{"to_numpy_type": _to_numpy_type, "to_taichi_type": lambda dtype: resolve(np.dtype(dtype)), "cook_dtype": resolve},
        **{"has_pytorch": lambda: _can_import("torch"), "has_paddle": lambda: False},
    },
}
"""Names of the modules that ``taichi`` itself does not have."""


def usable(arch: str) -> bool:
    """Whether programs can run on a backend here."""
    return any(found.name == arch and found.usable for found in registry.devices())


def _can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
