"""Fields and ndarray arguments inside kernels: one ``Place`` per component, index checks, loads, stores and atomics."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...errors import QdrunIndexError, QdrunNameError, QdrunTypeError
from ...ir.nodes import ArgDecl, Assert, Buffer, Const, Op, Operand, Place
from ...ir.types import DType, i32, u1
from ..advice import similar
from ..markers import grouped
from ..source.parse import FunctionSource, read_function
from ..syntax import overflow
from . import ops
from .levels import LevelRef, Parent, activate
from .matrix import check_index, index_limit, item_targets
from .update_values import update_value
from .values import Arg, MatrixValue, Value, count

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

_MODULAR = frozenset("add sub mul and or xor".split())


@dataclass(frozen=True, slots=True, eq=False)
class TensorRef:
    """A field or an ndarray argument as kernels see it.

    Attributes:
        name: what messages call it.
        places: one per component, row-major.
        element: ``()`` for scalars, ``(n,)`` or ``(n, m)``.
        ndim: number of indices.
        extents: the shape of a field; None for an ndarray argument.
        arg: the argument that an ndarray came by.
        layout: the axis at each level of nesting in memory, outermost first, where the places know the axes in that order; None: as
            they are counted.
        offset: the lowest index of each axis; None: 0.
        begin, length: of a view of a tensor with one axis: the index of its first element, and its extent; None: it is no view.
        level: the level of the layout tree that a sparse field is placed in; None: every element is active.
    """

    name: str
    places: tuple[Place, ...]
    element: tuple[int, ...]
    ndim: int
    extents: tuple[int, ...] | None = None
    arg: ArgDecl | None = None
    layout: tuple[int, ...] | None = None
    offset: tuple[int, ...] | None = None
    begin: Any = None
    length: Any = None
    level: LevelRef | None = None

    @property
    def begins(self) -> tuple[int, ...]:
        """The lowest index of each axis."""
        return self.offset or (0,) * self.ndim

    @property
    def dtype(self) -> DType:
        """The type of one component."""
        return self.places[0].dtype

    @property
    def grad(self) -> TensorRef | None:
        """The adjoints as a tensor of the same form, or None when none are stored."""
        return self._relative("grad", [p.grad for p in self.places])

    @property
    def dual(self) -> TensorRef | None:
        """The tangents of forward mode as a tensor of the same form, or None when none are stored."""
        return self._relative("dual", [p.dual for p in self.places])

    def _relative(self, role: str, stored: list[Place | None]) -> TensorRef | None:
        places = tuple(place for place in stored if place is not None)
        return replace(self, name=f"{self.name}.{role}", places=places) if len(places) == len(stored) else None

    def shape(self, b: FrontBuilder) -> tuple[int | Operand, ...]:
        """The extents: Python ints for a field, i32 values for an ndarray argument."""
        if self.extents is not None:
            return self.extents
        return tuple(self._extent(b, axis) for axis in range(self.ndim))

    def _extent(self, b: FrontBuilder, axis: int) -> Operand:
        """The extent of one axis of an ndarray argument, or of a view."""
        if self.length is not None:
            return ops.to_operand(b, self.length)
        stored = axis if self.layout is None else self.layout.index(axis)
        return b.op("shape", dtype=i32, attr=(self.arg, stored))

    def attribute(self, b: FrontBuilder, name: str) -> Any:
        """``x.name`` inside a kernel: ``shape``, ``offset``, ``grad``, ``dual``, ``dtype``, ``n``, ``m``, ``ndim``, ``element_shape``,
        ``size``, ``fill``, ``subview``.

        Raises:
            QdrunNameError: there is no such attribute, or no gradient is stored.
        """
        if name == "shape":
            return self.shape(b)
        if name == "offset":
            return self.begins
        if name in ("grad", "dual"):
            found = getattr(self, name)
            if found is None:
                raise QdrunNameError(
                    f"`{self.name}` has no stored {name}ient" if name == "grad" else f"`{self.name}` has no dual",
                    hint=f"declare it with needs_{name}=True",
                )
            return found
        if name == "n" and self.element:
            return self.element[0]
        if name == "m" and self.element:
            return self.element[1] if len(self.element) == 2 else 1
        if name in ("dtype", "ndim"):
            return getattr(self, name)
        if name == "element_shape":
            return ElementShape(self.element)
        if name == "size":
            return functools.reduce(lambda x, y: ops.binary(b, "*", x, y), self.shape(b), 1)
        if name == "fill":
            return FillMethod(self)
        if name == "subview":
            return _Subview(self)
        if name == "parent" and self.level is not None:
            return Parent(self.level)
        if name == "snode" and self.level is not None:
            return replace(self.level, kind="dense", above=self.level, flags=None, visited=None, below=())
        known = (
            "shape",
            "offset",
            "grad",
            "dual",
            "dtype",
            "ndim",
            "element_shape",
            "size",
            "fill",
            "subview",
            "parent",
            "snode",
        )
        hint = similar(
            name, known, "a field or an array is read by element, x[i]: write a loop, or compute it outside of the kernel"
        )
        raise QdrunNameError(f"`{self.name}` has no attribute `{name}`", hint=hint)

    def component(self, k: int | tuple[int, ...]) -> TensorRef:
        """The scalar tensor of one component: ``k`` is its flat position or its static index.

        Raises:
            QdrunIndexError: there is no such component.
        """
        k = item_targets(self.element, k) if isinstance(k, tuple) else k
        if not 0 <= k < len(self.places):
            raise QdrunIndexError(f"component {k} is out of range: `{self.name}` has {len(self.places)} components")
        return replace(self, name=f"{self.name}[{k}]", places=(self.places[k],), element=())

    def part(self, b: FrontBuilder, begin: Arg, size: Arg) -> TensorRef:
        """A view: ``size`` elements from index ``begin`` on. With ``check_bounds`` values that are known at run time only are tested.

        Raises:
            QdrunTypeError: the tensor has several axes or an offset, or is sparse, or the numbers are no integers.
            QdrunIndexError: a constant is out of range.
        """
        if self.ndim != 1 or self.offset is not None or self.level is not None:
            what = f"has {self.ndim} axes" if self.ndim != 1 else "has an offset" if self.offset else "is a sparse field"
            raise QdrunTypeError(f"a view has one axis, and `{self.name}` {what}", hint="index its elements")
        first, count = (ops.index_operand(b, x) for x in (begin, size))
        end, extent = ops.to_operand(b, ops.binary(b, "+", first, count)), ops.to_operand(b, self.shape(b)[0])
        known = [x.value for x in (first, count, end, extent) if isinstance(x, Const)]
        if any(v < 0 for v in known) or (isinstance(end, Const) and isinstance(extent, Const) and end.value > extent.value):
            raise QdrunIndexError(
                f"a view of `{self.name}` does not lie in it", hint="negative numbers do not count from the end"
            )
        if b.check_bounds:
            inside = ops.logical(b, "and", ops.compare(b, ">=", first, 0), ops.compare(b, ">=", count, 0))
            inside = ops.truth(b, ops.logical(b, "and", inside, ops.compare(b, "<=", end, extent)))
            text = f"a view of `{self.name}` from {{}} to below {{}} does not lie in its extent {{}}"
            b.put(Assert(inside, text, (first, end, extent), kind="bounds"))
        start = first if self.begin is None else ops.binary(b, "+", self.begin, first)
        return replace(self, extents=None, begin=start, length=count)

    def load(self, b: FrontBuilder, index: Sequence[Arg]) -> Value:
        """``x[index]``: an operand, or a matrix for a tensor of vectors or matrices.

        Raises:
            QdrunIndexError: wrong number of indices, or a constant out of range.
            QdrunTypeError: an index that is not an integer.
        """
        where = self.index(b, index)
        items = tuple(b.gload(p, where) for p in self.places)
        return MatrixValue(self.element, items) if self.element else items[0]

    def store(self, b: FrontBuilder, index: Sequence[Arg], value: Arg) -> None:
        """``x[index] = value``; the value is cast to the tensor's type, a scalar is broadcast over an element."""
        where = self._written(b, index)
        for place, item in zip(self.places, self._items(b, value)):
            b.gstore(place, where, item)

    def _written(self, b: FrontBuilder, index: Sequence[Arg]) -> tuple[Operand, ...]:
        """The checked index of an element that is about to be written: its cell becomes active."""
        where = self.index(b, index)
        if self.level is not None:
            activate(b, self.level, where)
        return where

    def atomic(self, b: FrontBuilder, code: str, index: Sequence[Arg], value: Arg) -> Value:
        """Atomic update, in the tensor's type; the result is the old content. ``sub`` adds the negated value.

        Raises:
            QdrunTypeError: bit operations on reals, or see ``update_value``.
        """
        if code in ("and", "or", "xor") and not self.dtype.is_int:
            raise QdrunTypeError(f"atomic_{code} takes integers; `{self.name}` holds {self.dtype}")
        where = self._written(b, index)
        code, values = self._changes(b, code, value)
        changes = values
        if code == "sub":  # negated in this type: that of a narrower unsigned value would wrap elsewhere
            changes = tuple(b.op("neg", x) if b.overflow != "wrap" else self._negative(b, x) for x in values)
        items = tuple(b.atomic("add" if code == "sub" else code, p, where, x) for p, x in zip(self.places, changes))
        if b.overflow != "wrap":
            for old, x in zip(items, values):
                overflow.check_update(b, code, old, x, self.name)
        return MatrixValue(self.element, items) if self.element else items[0]

    def _changes(self, b: FrontBuilder, code: str, value: Arg) -> tuple[str, tuple[Operand, ...]]:
        """The code of an atomic update, and its operands in the tensor's type."""
        given = (update_value(b, code, x, self.dtype, self.name) for x in self._spread(b, value))
        values = tuple(ops.cast_scalar(b, x, self.dtype, modular=code in _MODULAR) for x in given)
        return "xor" if code == "sub" and self.dtype is u1 else code, values

    def _negative(self, b: FrontBuilder, x: Operand) -> Operand:
        return ops.cast_scalar(b, ops.to_operand(b, ops.unary(b, "-", x)), self.dtype)

    def compare_and_swap(self, b: FrontBuilder, index: Sequence[Arg], expected: Arg, desired: Arg) -> Operand:
        """``x[index] = desired`` if it is ``expected``, in one step; the result is the old content.

        Raises:
            QdrunTypeError: the tensor holds reals.
        """
        if not self.dtype.is_int:
            raise QdrunTypeError(f"atomic_cas takes integers; `{self.name}` holds {self.dtype}")
        values = [self._items(b, v)[0] for v in (expected, desired)]
        return b.op("atomic", *self._written(b, index), *values, dtype=self.dtype, attr=(self.places[0], "cas"))

    def _items(self, b: FrontBuilder, value: Arg) -> tuple[Operand, ...]:
        """The value's components as this tensor's type."""
        return tuple(ops.cast_scalar(b, x, self.dtype) for x in self._spread(b, value))

    def _spread(self, b: FrontBuilder, value: Arg) -> tuple[Operand, ...]:
        """The value's components: a scalar is broadcast."""
        v = ops.as_value(b, value)
        if isinstance(v, MatrixValue) and v.shape != self.element:
            what = f"elements of shape {self.element}" if self.element else "scalars"
            raise QdrunTypeError(f"`{self.name}` holds {what}; {ops.describe_value(v)} cannot be stored in it")
        return v.items if isinstance(v, MatrixValue) else (v,) * len(self.places)

    def index(self, b: FrontBuilder, index: Sequence[Arg | None]) -> tuple[Operand, ...]:
        """The checked index as i32/i64 operands, counted from 0, in the order of the places' axes.

        Vectors are spread; ``(None,)`` is the 0-D index.

        Raises:
            QdrunIndexError: wrong number of indices, or a constant out of range.
            QdrunTypeError: an index that is not an integer.
        """
        flat: list[Arg] = []
        for part in index:
            value = () if part is None else ops.as_value(b, part)
            flat += value.items if isinstance(value, MatrixValue) else () if part is None else (part,)
        if len(flat) != self.ndim:
            axes = "index" if self.ndim == 1 else "indices"
            shape = f"its shape is {self.extents}" if self.extents else f"it has {self.ndim} axes"
            hint = f"{shape}: write {self.name}[{', '.join('ijklmnopqrstuvw'[: self.ndim]) or 'None'}]"
            if self.element and len(flat) > self.ndim:
                hint = "index the component after the element: x[i][k]"
            raise QdrunIndexError(f"`{self.name}` takes {self.ndim} {axes}, not {len(flat)}", hint=hint)
        out = tuple(ops.index_operand(b, x) for x in flat)
        for axis, x in enumerate(out):
            self._check(b, axis, x, out)
        out = tuple(_from_zero(b, x, begin) for x, begin in zip(out, self.begins))
        if self.begin is not None:
            out = (ops.to_operand(b, ops.binary(b, "+", self.begin, out[0])),)
        return out if self.layout is None else tuple(out[axis] for axis in self.layout)

    def _check(self, b: FrontBuilder, axis: int, x: Operand, index: tuple[Operand, ...]) -> None:
        """Refuse a constant that is out of range; with ``check_bounds``, emit the test of a value."""
        extent, begin = None if self.extents is None else self.extents[axis], self.begins[axis]
        if isinstance(x, Const):
            if x.value < begin or (extent is not None and x.value >= begin + extent):
                limit = "" if extent is None else index_limit(extent, begin)
                raise QdrunIndexError(
                    f"index {x.value} is out of range for axis {axis} of `{self.name}`{limit}",
                    hint="negative indices do not count from the end" if x.value < 0 and not begin else "",
                )
            if extent is not None:
                return
        if not b.check_bounds:
            return
        end = Const(begin + extent, i32) if extent is not None else self._extent(b, axis)
        check_index(b, f"axis {axis} of `{self.name}`", x, begin, end, self._whole(b, index) if self.ndim > 1 else ("", ()))

    def _whole(self, b: FrontBuilder, index: tuple[Operand, ...]) -> tuple[str, tuple[Operand, ...]]:
        """The element of several indices, and the shape, for a message: its text, and the values in it."""
        extents = [self._extent(b, k) for k in range(self.ndim)] if self.extents is None else self.extents
        values = [x for x in (*index, *extents) if isinstance(x, Op)]
        texts = ["{}" if isinstance(x, Op) else str(x.value if isinstance(x, Const) else x) for x in (*index, *extents)]
        where, shape = ", ".join(texts[: self.ndim]), ", ".join(texts[self.ndim :])
        return f", in `{self.name}[{where}]` of shape ({shape})", tuple(values)


def _fill(x: Any, val: Any) -> None:
    for index in grouped(x):
        x[index] = val


@functools.cache
def _fill_source() -> FunctionSource:
    return read_function(_fill)


class ElementShape(tuple[int, ...]):
    """``x.element_shape`` inside a kernel: the extents of an element. Quadrants writes ``x.element_shape()``, which is a list."""

    __slots__ = ()

    def __call__(self) -> list[int]:
        """The extents as a list."""
        return list(self)


class FillMethod:
    """``x.fill``: a function for kernels that is bound to its tensor. At the top level of a kernel it is a parallel loop."""

    def __init__(self, ref: TensorRef) -> None:
        self.__self__, self.__qd_func__ = ref, _fill_source()


class _Subview:
    """``v.subview``: makes a view of a part."""

    def __init__(self, ref: TensorRef) -> None:
        self._ref = ref

    def __call__(self, offset: Any, size: Any) -> TensorRef:
        raise TypeError("a part of a tensor is a value of a kernel")

    def __qd_lower__(self, b: FrontBuilder, offset: Arg, size: Arg) -> TensorRef:
        return self._ref.part(b, offset, size)


def _from_zero(b: FrontBuilder, x: Operand, begin: int) -> Operand:
    """An index of an axis that begins at ``begin``, as the places count it."""
    if begin == 0:
        return x
    if isinstance(x, Op) and x.op == "add" and isinstance(x.args[1], Const) and x.args[1].value == begin:
        return x.args[0]  # the index of a loop over such a field
    return Const(x.value - begin, x.dtype) if isinstance(x, Const) else b.op("sub", x, Const(begin, x.dtype))


def from_ndarray_arg(decl: ArgDecl, layout: tuple[int, ...] | None = None) -> TensorRef:
    """The tensor behind an ndarray argument: components interleaved (element by element), its gradient and its dual if it has them."""
    size, components = decl.dtype.size, count(decl.element)
    data = Buffer("arg", decl)
    adjoint = Buffer("arg_grad", decl) if decl.needs_grad else None
    tangent = Buffer("arg_dual", decl) if decl.needs_dual else None
    places = []
    for k in range(components):
        name = decl.name if components == 1 and not decl.element else f"{decl.name}_{k}"
        step = components * size
        where = decl.ndim, None, None, k * size, step
        grad = Place(f"{name}_grad", decl.dtype, adjoint, *where, is_grad=True) if adjoint is not None else None
        dual = Place(f"{name}_dual", decl.dtype, tangent, *where) if tangent is not None else None
        places.append(Place(name, decl.dtype, data, *where, grad, dual=dual))
    return TensorRef(decl.name, tuple(places), decl.element, decl.ndim, arg=decl, layout=layout)
