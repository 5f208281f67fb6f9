"""What an object of the compiler's holds of Python, beside the memory of its program: for who wants to know whether it has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..frontend.values import StructForm
from ..ir.types import DType
from .access import _Element
from .custom import BoundReplaced, Replaced
from .field import Field
from .function import BoundFunction, Function
from .kernel import BoundGradient, BoundKernel, Kernel, KernelGradient
from .matrix import Matrix
from .names import PyFunction, _BoundPyFunction
from .ndarray import Ndarray
from .program import Program
from .snode import SNode
from .steps_plan import StepsPlan
from .struct import Struct
from .struct_field import StructField
from .struct_field import _Element as _StructElement
from .tensor import Tensor
from .types import MatrixType, NdarrayType

if TYPE_CHECKING:
    from collections.abc import Callable

_NOTHING = (DType, MatrixType, StructForm, NdarrayType, SNode, StepsPlan, Kernel, KernelGradient, _Element, _StructElement)
"""They hold nothing that changes, or only memory of a program: kernels are compiled before a run, and what is then is theirs."""

_PARTS: dict[type, Callable[[Any], list[Any]]] = {
    StructField: lambda x: x.leaves(),
    Tensor: lambda x: [x._unwrap()],
    Struct: lambda x: [x.entries],
    Matrix: lambda x: [x._data],
    BoundKernel: lambda x: [x.instance],
    BoundGradient: lambda x: [x.instance],
    BoundReplaced: lambda x: [x.function, x.instance],
    Replaced: lambda x: [x.fn, x.backward],
    BoundFunction: lambda x: [x.__self__],
    _BoundPyFunction: lambda x: [x._fn, x.__self__],
    PyFunction: lambda x: [x.fn],
    Function: lambda x: [],
}


def reached(program: Program, value: Any) -> list[Any] | None:
    """The Python values that an object of the compiler's holds and that may change; the memory of ``program`` is not among them.

    None: it holds more than that can be told of: another program's memory, launches that were recorded.
    """
    if isinstance(value, _NOTHING):
        return []
    owner = value if isinstance(value, Program) else getattr(value, "_program", None) if isinstance(value, Ndarray) else None
    owner = value._root.program if isinstance(value, Field) else owner
    if owner is not None:
        return [] if owner is program else None
    return next((parts(value) for kind, parts in _PARTS.items() if isinstance(value, kind)), None)


__all__ = ["reached"]
