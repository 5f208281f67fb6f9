"""Bounds of boxes of elements: sums of arguments and literals, and the largest or least of several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Union

from ...ir.builder import StatementBuilder
from ...ir.nodes import ArgDecl, Const, Op, Operand
from ...ir.types import DType, i32, i64
from ..dependence.indexing import Linear
from .pieces import largest, least


@dataclass(frozen=True)
class Extreme:
    """The least or the largest of several bounds, of which none is certainly beyond another."""

    code: Literal["min", "max"]
    parts: tuple[Bound, ...]


Bound = Union[Linear, Extreme]


def highest(bounds: Iterable[Bound]) -> Bound:
    """The largest of several bounds."""
    return _extreme("max", list(bounds))


def lowest(bounds: Iterable[Bound]) -> Bound:
    """The least of several bounds."""
    return _extreme("min", list(bounds))


def _extreme(code: Literal["min", "max"], bounds: list[Bound]) -> Bound:
    known = [x for x in bounds if isinstance(x, Linear)]
    pruned = (largest if code == "max" else least)(known)
    parts = (*pruned, *dict.fromkeys(x for x in bounds if not isinstance(x, Linear)))
    return parts[0] if len(parts) == 1 else Extreme(code, parts)


def literal(bound: Bound) -> int | None:
    """A bound that no argument decides."""
    return bound.constant if isinstance(bound, Linear) and not bound.leaves else None


def emit_bound(b: StatementBuilder, bound: Bound) -> Operand:
    """A bound as an i64."""
    if isinstance(bound, Extreme):
        first, *more = (emit_bound(b, x) for x in bound.parts)
        for x in more:
            first = b.op(bound.code, first, x)
        return first
    total: Operand | None = None
    for leaf, c in bound.leaves:
        x = b.cast(_leaf(b, leaf), i64)
        x = x if c == 1 else b.op("mul", x, Const(c, i64))
        total = x if total is None else b.op("add", total, x)
    if total is None:
        return Const(bound.constant, i64)
    return b.op("add", total, Const(bound.constant, i64)) if bound.constant else total


def _leaf(b: StatementBuilder, leaf: object) -> Operand:
    assert isinstance(leaf, tuple)
    code, attr = leaf
    return b.op(code, dtype=attr.dtype if isinstance(attr, ArgDecl) else i32, attr=attr)


def moved(b: StatementBuilder, x: Operand, shift: Linear) -> Operand:
    """``x + shift`` in the type of ``x``."""
    if not shift.leaves:
        return b.op("add", x, Const(shift.constant, x.dtype)) if shift.constant else x
    return b.op("add", x, b.cast(emit_bound(b, shift), x.dtype))


def compare(b: StatementBuilder, code: str, x: Op, bound: Linear) -> Op:
    """Compare an index with a bound."""
    if not bound.leaves:
        return b.op(code, x, Const(bound.constant, x.dtype))
    return b.op(code, b.cast(x, i64), emit_bound(b, bound))


def as_index(b: StatementBuilder, bound: Bound, dtype: DType) -> Operand:
    """A bound in the type of an axis."""
    return b.cast(emit_bound(b, bound), dtype)
