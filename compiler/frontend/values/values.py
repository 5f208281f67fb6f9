"""The values that the front end computes with besides scalar operands: small matrices and variables that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ...errors import QdrunFitError, QdrunNameError, QdrunTypeError
from ...ir.nodes import Const, Local, Op, Operand
from ...ir.types import DType


def count(shape: tuple[int, ...]) -> int:
    """Number of components of an element shape: 1 for (), n for (n,), n*m for (n, m)."""
    total = 1
    for extent in shape:
        total *= extent
    return total


def flat_index(shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    """Row-major position of a static, checked component index."""
    position = 0
    for extent, i in zip(shape, index):
        position = position * extent + i
    return position


@dataclass(frozen=True, slots=True, eq=False)
class MatrixValue:
    """A compile-time tuple of scalar operands of one type, shape ``(n,)`` or ``(n, m)``, row-major."""

    shape: tuple[int, ...]
    items: tuple[Operand, ...]

    def __post_init__(self) -> None:
        if len(self.shape) not in (1, 2):
            raise QdrunTypeError(f"a matrix has one or two axes, not {len(self.shape)}")
        if len(self.items) != count(self.shape):
            raise QdrunFitError(f"a matrix of shape {self.shape} needs {count(self.shape)} entries, not {len(self.items)}")
        if any(x.dtype is not self.items[0].dtype for x in self.items):
            raise QdrunTypeError("the entries of a matrix have one type")

    @property
    def dtype(self) -> DType:
        """The type of every component. An empty vector (the index of a 0-D field) has none.

        Raises:
            QdrunTypeError: the vector is empty.
        """
        if not self.items:
            raise QdrunTypeError("an empty vector has no type")
        return self.items[0].dtype

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def m(self) -> int:
        """Number of columns, 1 for a vector."""
        return self.shape[1] if len(self.shape) == 2 else 1

    def at(self, *index: int) -> Operand:
        """The component at a static index that is known to be in range."""
        return self.items[flat_index(self.shape, index)]


@dataclass(frozen=True, slots=True, eq=False)
class MatrixLocal:
    """A variable that holds a matrix: one ``Local`` per component, row-major."""

    shape: tuple[int, ...]
    locals: tuple[Local, ...]

    @property
    def name(self) -> str:
        """The user's name of it."""
        return self.locals[0].name if self.locals else ""

    @property
    def dtype(self) -> DType:
        """The type of every component."""
        return self.locals[0].dtype


class StructForm:
    """The type of a struct.

    Attributes:
        members: the type of each member, in order: a ``DType``, ``float``, ``int``, ``bool``, a vector or matrix type, a ``StructForm``.
            For a Python dataclass, the annotations.
        methods: functions that take the struct as their first argument.
        name: what messages call it.
        owner: the Python dataclass that it describes, or None.
        is_tile: it is a matrix that the lanes of a subgroup hold together.
    """

    is_tile = False

    def __init__(
        self,
        members: Mapping[str, Any],
        methods: Mapping[str, Any] | None = None,
        name: str = "struct",
        owner: type | None = None,
    ) -> None:
        self.members, self.methods, self.name, self.owner = dict(members), dict(methods or {}), name, owner

    @property
    def has_entries(self) -> bool:
        """Whether it is what kernels write the entries of a sparse matrix to: its class says so."""
        return getattr(self.owner, "has_entries", False)


NO_FORM = StructForm({})
"""The form of ``qd.Struct(a=.., b=..)``, whose members have the types of their values."""


@dataclass(frozen=True, slots=True, eq=False)
class StructValue:
    """A record of values. An item is a scalar operand, a matrix, a struct, or (of a dataclass argument) anything a name stands for."""

    form: StructForm
    items: dict[str, Any]

    def map(self, f: Callable[[Any], Any]) -> StructValue:
        """The struct of ``f(item)``."""
        return StructValue(self.form, {name: f(item) for name, item in self.items.items()})

    @property
    def is_data(self) -> bool:
        """Whether it holds nothing but numbers, so that a variable can hold it."""
        return all(
            x.is_data if isinstance(x, StructValue) else isinstance(x, (Op, Const, MatrixValue)) for x in self.items.values()
        )

    def get(self, name: str) -> Any:
        """A member.

        Raises:
            QdrunNameError: there is none of this name.
        """
        if name not in self.items:
            raise no_member(self.form, self.items, name)
        return self.items[name]


def no_member(form: StructForm, items: Mapping[str, Any], name: str) -> QdrunNameError:
    """The error for a name that a struct does not have."""
    have = ", ".join(f"`{x}`" for x in [*items, *form.methods]) or "none"
    fill = f"; fill them one by one: s.{next(iter(items))}.fill(..)" if name == "fill" and items else ""
    return QdrunNameError(f"{form.name} has no member `{name}`", hint=f"its members are {have}{fill}")


Value: TypeAlias = Operand | MatrixValue
Arg: TypeAlias = Operand | MatrixValue | int | float | bool


def resolve(value: Any, name: str = "") -> Any:
    """The value of a Python object inside a kernel. The object may provide a field or a matrix by ``__qd_value__``.

    An array of numpy without axes is its number.

    ``name``: what the kernel calls it; an object without a name of its own takes it, for messages (``__qd_name__``).
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value[()]
    offer = getattr(type(value), "__qd_value__", None)
    if offer is None:
        return value
    take = getattr(type(value), "__qd_name__", None)
    if take is not None and name:
        take(value, name)
    return offer(value)
