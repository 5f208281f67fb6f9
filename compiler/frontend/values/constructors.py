"""Lowers ``Vector(..)``, ``MatrixValue(..)``, their static constructors and the vector types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import QdrunFitError, QdrunTypeError
from ...ir.nodes import Operand
from . import matrix, ops
from .values import Arg, MatrixValue, count

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

Lowering = Callable[..., Any]


def lower_matrix(b: FrontBuilder, entries: Any, dt: Any = None) -> MatrixValue:
    """``MatrixValue(rows, dt)`` or ``Vector(entries, dt)``.

    Raises:
        QdrunTypeError: the entries are no list, or its rows differ in length.
    """
    if isinstance(entries, MatrixValue):
        return matrix.make(b, entries.shape, entries.items, dt)
    if hasattr(entries, "tolist"):
        entries = entries.tolist()
    if not isinstance(entries, (list, tuple)):
        raise QdrunTypeError(f"a matrix is made of a list, not of {ops.describe_value(entries)}")
    return matrix.build(b, entries, dt)


def _shape(n: Any, m: Any) -> tuple[int, ...]:
    extents = (n,) if m is None else (n, m)
    return tuple(ops.static_int(e, "an extent") for e in extents)


def lower_zero(b: FrontBuilder, dt: Any, n: int, m: int | None = None) -> MatrixValue:
    """``Vector.zero(dt, n)``, ``Matrix.zero(dt, n, m)``."""
    return matrix.filled(b, _shape(n, m), 0, dt)


def lower_one(b: FrontBuilder, dt: Any, n: int, m: int | None = None) -> MatrixValue:
    """``Vector.one(dt, n)``, ``Matrix.one(dt, n, m)``."""
    return matrix.filled(b, _shape(n, m), 1, dt)


def lower_unit(b: FrontBuilder, n: int, i: int, dt: Any = int) -> MatrixValue:
    """``Vector.unit(n, i)``: the i-th basis vector."""
    return matrix.build(
        b,
        [int(k == ops.static_int(i, "the position")) for k in range(ops.static_int(n, "an extent"))],
        int if dt is None else dt,
    )


def lower_eye(b: FrontBuilder, n: int) -> MatrixValue:
    """``qd.math.eye(n)``."""
    return matrix.identity(b, float, n)


def lower_rows(b: FrontBuilder, rows: Any) -> MatrixValue:
    """``Matrix.rows(vectors)``."""
    return matrix.build(b, rows)


def lower_typed(b: FrontBuilder, shape: tuple[int, ...], dtype: Any, args: tuple[Any, ...]) -> MatrixValue:
    """A call of a vector or matrix type: one scalar fills it, else the components of all arguments are laid out in order.

    Raises:
        QdrunTypeError: the number of components differs.
    """
    if len(args) == 1 and not isinstance(args[0], (list, tuple, MatrixValue)) and not hasattr(args[0], "tolist"):
        value = ops.as_value(b, args[0])
        args = (value,) if isinstance(value, MatrixValue) else (value,) * count(shape)
    items: list[Operand] = []
    for arg in args:
        items += _components(b, arg)
    if len(items) != count(shape):
        raise QdrunFitError(f"a value of shape {shape} needs {count(shape)} components, not {len(items)}")
    return matrix.make(b, shape, items, dtype)


def _components(b: FrontBuilder, arg: Arg | list[Any] | tuple[Any, ...]) -> list[Operand]:
    if hasattr(arg, "tolist"):
        arg = arg.tolist()  # type: ignore[union-attr]
    if isinstance(arg, (list, tuple)):
        return [x for e in arg for x in _components(b, e)]
    value = ops.as_value(b, arg)
    return list(value.items) if isinstance(value, MatrixValue) else [value]


def has_lowering(lowering: Lowering) -> Callable[[Any], Any]:
    """A decorator: ``lookup`` finds ``lowering`` on the decorated function."""

    def mark(f: Any) -> Any:
        f.__qd_lower__ = lowering
        return f

    return mark
