"""What the model computes with: literals, vectors and matrices, structs, tensors; and references to what can be written.

A scalar is a Python number (known while compiling), a ``Lit`` (a literal with a type and full precision) or a numpy scalar (typed).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .scalars import REAL, TYPES, U1, Type, cast, make, type_of, wrap

Scalar = Any


class Unsupported(Exception):
    """The model knows no meaning for this; other oracles may."""


@dataclass(frozen=True)
class Lit:
    """A literal: it has a type, and its value is rounded to it when it is stored or meets a typed value."""

    value: int | float | bool
    type: Type


@dataclass(frozen=True)
class Mat:
    """A vector of shape (n,) or a matrix of shape (n, m), row-major."""

    shape: tuple[int, ...]
    items: tuple[Scalar, ...]

    def row(self, i: int) -> Mat:
        m = self.shape[1]
        return Mat((m,), self.items[i * m : (i + 1) * m])


@dataclass(frozen=True)
class MatType:
    """``qd.types.vector(n, dtype)`` or ``qd.types.matrix(n, m, dtype)``."""

    shape: tuple[int, ...]
    type: Type

    def field(self, shape: Any = (), **_: Any) -> Tensor:
        return Tensor(self.type, _extents(shape), self.shape)


class StructType:
    """A struct: its members' types by name, and its methods."""

    def __init__(self, members: dict[str, Any], methods: dict[str, Any]) -> None:
        self.members, self.methods = members, methods

    def __call__(self, *values: Any) -> Struct:
        return of_type(Struct(self, dict(zip(self.members, values, strict=True))), self)

    def field(self, shape: Any = (), **_: Any) -> StructTensor:
        return StructTensor(self, {n: _tensor(t, shape) for n, t in self.members.items()})


@dataclass(frozen=True)
class Struct:
    """A struct's value."""

    type: StructType
    items: dict[str, Any]


def _extents(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _tensor(t: Any, shape: Any) -> Any:
    return Tensor(t, _extents(shape), ()) if isinstance(t, Type) else t.field(shape)


class Tensor:
    """A field or an ndarray; ``known``: its extents are, while compiling."""

    known = True

    def __init__(self, dtype: Type, shape: tuple[int, ...], element: tuple[int, ...]) -> None:
        self.type, self.shape, self.element = dtype, shape, element
        self.data = np.zeros(shape + element, dtype.numpy)

    def from_numpy(self, array: np.ndarray) -> None:
        self.data[...] = array

    def to_numpy(self) -> np.ndarray:
        return self.data.copy()

    def __getitem__(self, part: slice) -> Tensor:
        """A part of an ndarray, in the same memory."""
        data = self.data[part]
        out = Tensor(self.type, data.shape[:1], self.element)
        out.data, out.known = data, False
        return out

    def load(self, index: tuple[int, ...]) -> Any:
        self._check(index)
        if not self.element:
            return self.data[index][()]
        return Mat(self.element, tuple(self.data[index].reshape(-1)))

    def store(self, index: tuple[int, ...], value: Any) -> None:
        self._check(index)
        if self.element:
            items = value.items if isinstance(value, Mat) else (value,) * prod(self.element)
            self.data[index] = np.array([typed(x, self.type) for x in items]).reshape(self.element)
        else:
            self.data[index] = typed(value, self.type)

    def _check(self, index: tuple[int, ...]) -> None:
        if len(index) != len(self.shape) or any(not 0 <= i < n for i, n in zip(index, self.shape)):
            raise IndexError(f"{index} of shape {self.shape}")


class StructTensor:
    """A field of structs: a tensor for each member."""

    def __init__(self, form: StructType, members: dict[str, Any]) -> None:
        self.form, self.members = form, members

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["members"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def shape(self) -> tuple[int, ...]:
        return next(iter(self.members.values())).shape

    def from_numpy(self, arrays: dict[str, Any]) -> None:
        for name, array in arrays.items():
            self.members[name].from_numpy(array)

    def to_numpy(self) -> dict[str, Any]:
        return {n: t.to_numpy() for n, t in self.members.items()}


def typed(x: Scalar, t: Type) -> np.generic:
    """A scalar value in a type."""
    if isinstance(x, Lit):
        return make(x.value, t)
    if isinstance(x, np.generic):
        return cast(x, t)
    if isinstance(x, (bool, int, float)):
        return make(x, t)
    raise Unsupported(f"{x!r} as {t}")


def rounded(x: Any) -> Any:
    """A value as a variable holds it."""
    if isinstance(x, Lit):
        return make(x.value, x.type)
    if isinstance(x, Mat):
        return Mat(x.shape, tuple(rounded(i) for i in x.items))
    if isinstance(x, Struct):
        return Struct(x.type, {n: rounded(i) for n, i in x.items.items()})
    return x


def scalar_type(x: Scalar) -> Type:
    """The type of a literal or a typed value."""
    return x.type if isinstance(x, Lit) else type_of(x)


def like(old: Any, new: Any) -> Any:
    """A value in the form and the types of another: what an assignment to a variable stores."""
    if isinstance(old, Mat):
        items = new.items if isinstance(new, Mat) else (new,) * len(old.items)
        if isinstance(new, Mat) and new.shape != old.shape:
            raise Unsupported("shapes differ")
        return Mat(old.shape, tuple(typed(x, type_of(o)) for x, o in zip(items, old.items)))
    if isinstance(old, Struct):
        return Struct(old.type, {n: like(i, new.items[n]) for n, i in old.items.items()})
    return typed(new, type_of(old))


def of_type(x: Any, t: Any) -> Any:
    """A value as an annotation or a struct's member asks for it."""
    if isinstance(t, Type):
        return typed(x, t)
    if isinstance(t, MatType):
        items = x.items if isinstance(x, Mat) else x if isinstance(x, (list, tuple)) else (x,) * prod(t.shape)
        flat = [j for i in items for j in (i if isinstance(i, (list, tuple)) else (i,))]
        return Mat(t.shape, tuple(typed(i, t.type) for i in flat))
    if isinstance(t, StructType):
        return Struct(t, {n: of_type(x.items[n], m) for n, m in t.members.items()})
    return x


class Var:
    """A variable, or a name that stands for a value."""

    shared = False

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
        self.value = like(self.value, value)


@dataclass
class Element:
    """An element of a tensor."""

    tensor: Any
    index: tuple[int, ...]
    shared = True

    def get(self) -> Any:
        if isinstance(self.tensor, StructTensor):
            return Struct(self.tensor.form, {n: Element(t, self.index).get() for n, t in self.tensor.members.items()})
        return self.tensor.load(self.index)

    def set(self, value: Any) -> None:
        if isinstance(self.tensor, StructTensor):
            for n, t in self.tensor.members.items():
                Element(t, self.index).set(value.items[n])
        else:
            self.tensor.store(self.index, value)

    def member(self, name: str) -> Element:
        return Element(self.tensor.members[name], self.index)


@dataclass
class Member:
    """A member of a struct that can be written."""

    owner: Any
    name: str

    @property
    def shared(self) -> bool:
        return self.owner.shared

    def get(self) -> Any:
        return self.owner.get().items[self.name]

    def set(self, value: Any) -> None:
        old = self.owner.get()
        self.owner.set(Struct(old.type, {**old.items, self.name: like(old.items[self.name], value)}))


@dataclass
class Parts:
    """Components of a vector or matrix that can be written; ``shape`` None: one, as a scalar."""

    owner: Any
    where: tuple[int, ...]
    shape: tuple[int, ...] | None

    @property
    def shared(self) -> bool:
        return self.owner.shared

    def get(self) -> Any:
        items = tuple(self.owner.get().items[k] for k in self.where)
        return items[0] if self.shape is None else Mat(self.shape, items)

    def set(self, value: Any) -> None:
        old = self.owner.get()
        items, new = list(old.items), value.items if isinstance(value, Mat) else (value,) * len(self.where)
        for k, x in zip(self.where, new, strict=True):
            items[k] = typed(x, type_of(old.items[k]))
        self.owner.set(Mat(old.shape, tuple(items)))


def elementwise(f: Callable[..., Any], *values: Any) -> Any:
    """``f`` for each component; scalars go with every one."""
    shapes = {v.shape for v in values if isinstance(v, Mat)}
    if not shapes:
        return f(*values)
    if len(shapes) > 1:
        raise Unsupported("shapes differ")
    shape = shapes.pop()
    columns = [v.items if isinstance(v, Mat) else (v,) * prod(shape) for v in values]
    return Mat(shape, tuple(f(*row) for row in zip(*columns)))


def folded(op: str, a: Lit, b: Lit, t: Type) -> Lit:
    """An operation on two literals: reals in double precision, integers in the width of their type."""
    from .scalars import INTEGER

    if not t.real:
        return Lit(int(wrap(INTEGER[op](int(a.value), int(b.value), t.bits), t)), t)
    with np.errstate(all="ignore"):
        return Lit(float(REAL[op](np.float64(a.value), np.float64(b.value))), t)


__all__ = ["TYPES", "U1", "Element", "Lit", "Mat", "MatType", "Member", "Parts", "Struct", "StructTensor", "StructType",
           "Tensor", "Unsupported", "Var", "elementwise", "folded", "like", "of_type", "rounded", "scalar_type", "typed"]  # fmt: skip
