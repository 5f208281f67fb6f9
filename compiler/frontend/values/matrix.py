"""Small matrices inside kernels: variables, indexing, swizzles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from ...errors import QdrunFitError, QdrunIndexError, QdrunTypeError
from ...ir.builder import convert
from ...ir.nodes import Assert, Const, Local, Operand
from ...ir.types import DType, i32, promote
from . import ops
from .values import Arg, MatrixLocal, MatrixValue, Value, count, flat_index

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


SWIZZLES = ("xyzw", "rgba", "stpq")


def load_matrix(b: FrontBuilder, ml: MatrixLocal) -> MatrixValue:
    """Read every component of a variable."""
    return MatrixValue(ml.shape, tuple(b.load(x) for x in ml.locals))


def store_matrix(b: FrontBuilder, ml: MatrixLocal, m: Arg) -> None:
    """Assign to a variable; the value is cast to its type, a scalar is broadcast.

    Raises:
        QdrunTypeError: the shapes differ.
    """
    value = ops.as_value(b, m)
    if isinstance(value, MatrixValue) and value.shape != ml.shape:
        raise QdrunFitError(f"a variable of shape {ml.shape} cannot become {ops.describe_value(value)}")
    items = value.items if isinstance(value, MatrixValue) else (value,) * len(ml.locals)
    for local, item in zip(ml.locals, items):
        b.store(local, ops.cast_scalar(b, item, local.dtype))


def new_local(b: FrontBuilder, m: MatrixValue, name: str = "v") -> MatrixLocal:
    """A new variable that starts as ``m``."""
    ml = MatrixLocal(m.shape, tuple(Local(x.dtype, name) for x in m.items))
    store_matrix(b, ml, m)
    return ml


def build(b: FrontBuilder, entries: Sequence[Any], dtype: Any = None) -> MatrixValue:
    """A vector from scalars, or a matrix from rows (lists, tuples or vectors).

    The type is ``dtype`` (a DType, ``float``, ``int``) or the promoted type of the entries.

    Raises:
        QdrunTypeError: rows of different lengths, or an entry that is not a number.
    """
    rows = [_row(b, e) for e in entries]
    if any(isinstance(r, list) for r in rows):
        if not all(isinstance(r, list) and len(r) == len(rows[0]) for r in rows):  # type: ignore[arg-type]
            raise QdrunTypeError("the rows of a matrix have the same number of entries")
        shape = (len(rows), len(rows[0]))  # type: ignore[arg-type]
        items = [x for r in rows for x in r]  # type: ignore[union-attr]
    else:
        shape, items = (len(rows),), rows
    return make(b, shape, items, dtype)  # type: ignore[arg-type]


def _row(b: FrontBuilder, entry: Any) -> Operand | list[Operand]:
    if isinstance(entry, (list, tuple)):
        return [ops.to_operand(b, x) for x in entry]
    value = ops.as_value(b, entry)
    if not isinstance(value, MatrixValue):
        return value
    if len(value.shape) != 1:
        raise QdrunTypeError("a matrix cannot be an entry of a matrix")
    return list(value.items)


def make(b: FrontBuilder, shape: tuple[int, ...], items: Sequence[Operand], dtype: Any = None) -> MatrixValue:
    """A matrix of ``shape`` from scalar operands, all cast to ``dtype`` (default: their promoted type)."""
    if dtype is None and items:
        common: DType = reduce(promote, (x.dtype for x in items))
        return MatrixValue(shape, tuple(ops.cast_scalar(b, x, common) for x in items))
    if dtype is None:
        return MatrixValue(shape, ())
    target = ops.as_dtype(b, dtype)
    return MatrixValue(shape, tuple(ops.to_operand(b, ops.cast(b, x, target)) for x in items))


def _index(b: FrontBuilder, shape: tuple[int, ...], index: Any, name: str) -> list[int | Operand]:
    """Each axis as a checked Python int, or as an operand when it is known only at run time, which ``check_bounds`` tests."""
    parts: list[Arg] = []
    for part in index if isinstance(index, (tuple, list)) else (index,):
        parts += part.items if isinstance(part, MatrixValue) else (part,)
    if len(parts) != len(shape):
        kind = "a matrix takes two indices" if len(shape) == 2 else "a vector takes one index"
        raise QdrunIndexError(f"{kind}, not {len(parts)}")
    out: list[int | Operand] = []
    for axis, part in enumerate(parts):
        operand = ops.index_operand(b, part)
        if not isinstance(operand, Const):
            if b.check_bounds:
                what = f"{'vector' if len(shape) == 1 else 'matrix'} `{name}`" if name else f"value of shape {shape}"
                check_index(b, f"axis {axis} of the {what}", operand, 0, Const(shape[axis], i32))
            out.append(operand)
            continue
        if not 0 <= operand.value < shape[axis]:
            raise QdrunIndexError(f"index {operand.value} is out of range for axis {axis} of a matrix of shape {shape}")
        out.append(int(operand.value))
    return out


def check_index(
    b: FrontBuilder, what: str, index: Operand, begin: int, end: Operand, more: tuple[str, tuple[Operand, ...]] = ("", ())
) -> None:
    """Emit the test of an index that is known only at run time. ``what``: the axis that it belongs to; ``more``: text, and its values."""
    inside = ops.logical(b, "and", ops.compare(b, ">=", index, begin), ops.compare(b, "<", index, end))
    limit = "extent {}" if not begin else f"goes from {begin} to below {{}}"
    text = f"index out of range: {what} has index {{}} but {limit}{more[0]}"
    b.put(Assert(ops.truth(b, inside), text, (index, end, *more[1]), kind="bounds"))


def position(b: FrontBuilder, shape: tuple[int, ...], index: Any, name: str = "") -> int | Operand:
    """Row-major position of a component: a Python int when every index is constant, else an operand. ``name``: what messages call it.

    Raises:
        QdrunIndexError: wrong number of indices, or a constant out of range.
    """
    parts = _index(b, shape, index, name)
    if all(isinstance(p, int) for p in parts):
        return flat_index(shape, tuple(parts))  # type: ignore[arg-type]
    value: Value = ops.to_operand(b, parts[0])
    for extent, part in zip(shape[1:], parts[1:]):
        value = ops.binary(b, "+", ops.binary(b, "*", value, extent), part)
    return ops.to_operand(b, value)


def item_targets(shape: tuple[int, ...], index: Sequence[Any]) -> int:
    """The flat position of a component whose index is known at compile time (ints or literals).

    Raises:
        QdrunIndexError: wrong number of indices, or out of range.
    """
    parts = [p.value if isinstance(p, Const) else p for p in index]
    if len(parts) != len(shape):
        raise QdrunIndexError(f"an element of shape {shape} takes {len(shape)} indices, not {len(parts)}")
    for axis, (part, extent) in enumerate(zip(parts, shape)):
        if not 0 <= part < extent:
            raise QdrunIndexError(f"index {part} is out of range for axis {axis} of an element of shape {shape}")
    return flat_index(shape, tuple(int(p) for p in parts))


def get_item(b: FrontBuilder, m: MatrixValue, index: Any) -> Value:
    """``m[index]``: a component; a dynamic index becomes a chain of selects. One index on a matrix gives a row.

    A dynamic index that is out of range gives the last component.

    Raises:
        QdrunIndexError: wrong number of indices, or a constant out of range.
        QdrunTypeError: an index that is not an integer.
    """
    single = index[0] if isinstance(index, (tuple, list)) and len(index) == 1 else index
    if len(m.shape) == 2 and not isinstance(single, (tuple, list, MatrixValue)):
        rows = [get_item(b, m, (single, k)) for k in range(m.shape[1])]
        return MatrixValue((m.shape[1],), tuple(ops.to_operand(b, r) for r in rows))
    return item_at(b, m, position(b, m.shape, index))


def item_at(b: FrontBuilder, m: MatrixValue, where: int | Operand) -> Operand:
    """The component at a row-major position; the last one where a position of the run is out of range."""
    if isinstance(where, int):
        return m.items[where]
    out = m.items[-1]
    for k in range(len(m.items) - 2, -1, -1):
        out = ops.to_operand(b, ops.select(b, ops.compare(b, "==", where, k), m.items[k], out))
    return out


def set_item(b: FrontBuilder, ml: MatrixLocal, index: Any, value: Arg) -> None:
    """``v[index] = value``. A dynamic index stores every component, selected by its position.

    Raises:
        QdrunIndexError: wrong number of indices, or a constant out of range.
        QdrunTypeError: ``value`` is not a scalar.
    """
    operand = ops.cast_scalar(b, ops.to_operand(b, value), ml.dtype)
    where = position(b, ml.shape, index, ml.name)
    if isinstance(where, int):
        b.store(ml.locals[where], operand)
        return
    for k, local in enumerate(ml.locals):
        chosen = ops.select(b, ops.compare(b, "==", where, k), operand, b.load(local))
        b.store(local, ops.to_operand(b, chosen))


def index_limit(extent: int, begin: int) -> str:
    """The valid indices of an axis, for messages."""
    return f" of extent {extent}" if begin == 0 else f", whose indices are {begin} to {begin + extent - 1}"


def swizzle_positions(shape: tuple[int, ...], name: str) -> tuple[int, ...] | None:
    """The components that a swizzle such as ``xy`` or ``bgr`` names, or None when ``name`` is not one for this shape."""
    if len(shape) != 1:
        return None
    for group in SWIZZLES:
        if name and all(c in group[: shape[0]] for c in name):
            return tuple(group.index(c) for c in name)
    return None


def filled(b: FrontBuilder, shape: tuple[int, ...], value: Arg, dtype: Any = None) -> MatrixValue:
    """A matrix whose components are all ``value``."""
    operand = ops.to_operand(b, value)
    return make(b, shape, (operand,) * count(shape), dtype)


def identity(b: FrontBuilder, dtype: Any, n: int) -> MatrixValue:
    """The n x n identity."""
    return diag(b, n, Const(convert(1, ops.as_dtype(b, dtype)), ops.as_dtype(b, dtype)))


def diag(b: FrontBuilder, n: int, value: Arg) -> MatrixValue:
    """The n x n matrix with ``value`` on its diagonal and zero elsewhere."""
    n, operand = ops.static_int(n, "an extent"), ops.to_operand(b, value)
    zero = Const(convert(0, operand.dtype), operand.dtype)
    return MatrixValue((n, n), tuple(operand if i == j else zero for i in range(n) for j in range(n)))


def columns_of(b: FrontBuilder, columns: Sequence[Any]) -> MatrixValue:
    """A matrix from its columns (lists or vectors)."""
    return transposed(build(b, columns))


def transposed(m: MatrixValue) -> MatrixValue:
    """Rows become columns; a vector becomes a matrix of one row."""
    if len(m.shape) == 1:
        return MatrixValue((1, m.n), m.items)
    return MatrixValue((m.m, m.n), tuple(m.at(i, j) for j in range(m.m) for i in range(m.n)))
