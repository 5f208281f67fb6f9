"""The inputs of ``lower`` besides the source: the properties of a kernel's arguments, and the options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..ir.types import DType, f32, i32
from .values.values import StructForm


@dataclass(frozen=True)
class ScalarArg:
    """A number that comes with each launch. ``per_trial``: each trial of a batch has its own."""

    dtype: DType
    per_trial: bool = False


@dataclass(frozen=True)
class MatrixArg:
    """A vector ``(n,)`` or matrix ``(n, m)`` that comes with each launch: one scalar entry a component, ``v.0``, ``v.1``, .."""

    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ArrayArg:
    """An ndarray that comes with each launch. ``element`` is ``()``, ``(n,)`` or ``(n, m)``; ``layout`` as in ``TensorRef``.

    ``per_trial``: each trial of a batch has its own.
    """

    dtype: DType
    ndim: int
    element: tuple[int, ...] = ()
    needs_grad: bool = False
    needs_dual: bool = False
    layout: tuple[int, ...] | None = None
    per_trial: bool = False


@dataclass(frozen=True, eq=False)
class TemplateArg:
    """Any Python object, known at compile time: a number, a field, the ``self`` of a method.

    Attributes:
        arrays: the ndarrays that it holds, which come with each launch: the path of each, the objects that stand for it now, its type.
        numbers: its numbers that come with each launch: the path of each, the object that has it, its name there, its type.
    """

    __qd_held__ = True  # ``tokens``: the arrays and numbers are no compile-time values

    value: Any
    arrays: tuple[tuple[str, list[Any], ArrayArg], ...] = ()
    numbers: tuple[tuple[str, Any, str, ScalarArg], ...] = ()


@dataclass(frozen=True, eq=False)
class RecordArg:
    """A struct, or a Python dataclass: an argument for each member."""

    form: StructForm
    members: dict[str, ArgSpec]


ArgSpec = ScalarArg | MatrixArg | ArrayArg | TemplateArg | RecordArg


@dataclass(frozen=True)
class LowerOptions:
    """The options of lowering.

    Attributes:
        name: the kernel's name; default the function's.
        debug: compile asserts and check every index.
        check_out_of_bound: check every index.
        overflow_check: check integer operations.
        nan_check: do not fold literals to a NaN or an infinity, so that the run-time check finds them.
        breakpoints: ``breakpoint()`` is allowed: the kernel will be interpreted.
        blocks: threads meet in blocks: the kernel is for a GPU.
        lanes: threads of a wave whose instructions exchange values (``Device.lanes``).
        grid_barrier: all threads of a loop can wait for each other (``Device.grid_barrier``).
        returns: the types of the returned scalars, row-major; None: as they come.
    """

    name: str = ""
    default_fp: DType = f32
    default_ip: DType = i32
    debug: bool = False
    check_out_of_bound: bool = False
    overflow_check: bool = False
    nan_check: bool = False
    returns: tuple[DType, ...] | None = None
    breakpoints: bool = False
    blocks: bool = True
    lanes: int = 0
    grid_barrier: bool = False

    @property
    def overflow(self) -> Literal["wrap", "report", "raise"]:
        """What an integer operation of the user does whose result does not fit its type."""
        return "raise" if self.overflow_check else "report" if self.debug else "wrap"
