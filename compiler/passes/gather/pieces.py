"""Indices along one axis of a parallel loop, as pieces: intervals of iterations in which the index is ``i + shift``.

``i + 1`` is one piece; a periodic ``(i + 1) % n`` and a clamped ``min(i + 1, n - 1)`` are two. Integers are taken to not wrap, which an
access within its array makes sure of; unsigned and narrow ones, which may, have no pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...ir.nodes import Axis, Op, Operand
from ..dependence.indexing import Linear, linear

MOST = 4
"""An index has at most so many pieces, and at most so many iterations meet at one element of an array's edge."""
NEAR = 16
"""How far from an end of its axis the rim may reach."""
_INVERSE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
ZERO, ONE = Linear((), 0), Linear((), 1)


@dataclass(frozen=True)
class IterationSpan:
    """The iterations of one axis from the largest of ``lows`` up to, not including, the least of ``highs``."""

    axis: Op
    lows: tuple[Linear, ...]
    highs: tuple[Linear, ...]

    def within(self, other: IterationSpan) -> IterationSpan:
        """The intersection of two intervals."""
        return IterationSpan(self.axis, largest(self.lows + other.lows), least(self.highs + other.highs))

    @property
    def empty(self) -> bool:
        """Whether it has certainly no iteration."""
        return any(n is not None and n <= 0 for n in self.lengths())

    def lengths(self) -> list[int | None]:
        """The distances from each lower to each upper bound, as far as they are literals."""
        return [distance(low, high) for low in self.lows for high in self.highs]

    @property
    def length(self) -> int | None:
        """The most iterations, as far as the bounds say."""
        return min((n for n in self.lengths() if n is not None), default=None)


@dataclass(frozen=True)
class IndexPiece:
    """Iterations in which an index is ``i + shift``."""

    span: IterationSpan
    shift: Linear


def distance(a: Linear, b: Linear) -> int | None:
    """``b - a`` if it is a literal."""
    apart = b.minus(a)
    return None if apart.leaves else apart.constant


def largest(bounds: Iterable[Linear]) -> tuple[Linear, ...]:
    """Bounds without the ones that another one certainly reaches."""
    out: list[Linear] = []
    for x in bounds:
        if not any((n := distance(x, y)) is not None and n >= 0 for y in out):
            out = [y for y in out if (n := distance(x, y)) is None or n > 0] + [x]
    return tuple(out)


def least(bounds: Iterable[Linear]) -> tuple[Linear, ...]:
    """Bounds without the ones that certainly reach another one."""
    return tuple(x.times(-1) for x in largest(x.times(-1) for x in bounds))


class AxisPieces:
    """The pieces of the indices of one task."""

    def __init__(self, axes: list[Axis]) -> None:
        self.axes = {a.index: IterationSpan(a.index, (linear(a.begin),), (linear(a.end),)) for a in axes}
        self._known: dict[Operand, list[IndexPiece] | None] = {}

    def of(self, x: Operand) -> list[IndexPiece] | None:
        """The pieces of an index that follows one axis; None: it does not, or is not understood."""
        if x not in self._known:
            self._known[x] = self._find(x)
        return self._known[x]

    def uniform(self, x: Operand) -> Linear | None:
        """An integer that launches decide, the same in all iterations."""
        form = linear(x)
        return form if _is_signed(x) and all(not isinstance(leaf, Op) for leaf, _ in form.leaves) else None

    def _find(self, x: Operand) -> list[IndexPiece] | None:
        form = linear(x)
        inner = [(leaf, c) for leaf, c in form.leaves if isinstance(leaf, Op)]
        if len(inner) != 1 or inner[0][1] != 1 or not _is_signed(x):
            return None
        leaf = inner[0][0]
        rest = form.minus(Linear(((leaf, 1),), 0))
        if leaf in self.axes:
            found: list[IndexPiece] | None = [IndexPiece(self.axes[leaf], ZERO)]
        else:
            rule = {"mod": self._periodic, "min": self._clamped, "max": self._clamped, "select": self._chosen}.get(leaf.op)
            found = None if rule is None else rule(leaf)
        if found is None:
            return None
        found = [IndexPiece(p.span, p.shift.plus(rest)) for p in found if not p.span.empty]
        return found if found and len(found) <= 2 * MOST and len({p.span.axis for p in found}) == 1 else None

    def is_near(self, span: IterationSpan) -> bool:
        """Whether the ends of an interval are near the ends of its axis."""
        whole = self.axes[span.axis]
        bounds = ((x, y) for x in (*span.lows, *span.highs) for y in (*whole.lows, *whole.highs))
        near = {x for x, y in bounds if (n := distance(x, y)) is not None and abs(n) <= NEAR}
        return near >= {*span.lows, *span.highs}

    def is_thin(self, span: IterationSpan) -> bool:
        """Whether an interval has few iterations of its axis."""
        few, many = span.length, self.axes[span.axis].length
        return few is not None and few <= NEAR and (many is None or 4 * few <= many)

    # ---- periodic
    def _periodic(self, x: Op) -> list[IndexPiece] | None:
        inner, n = self.of(x.args[0]), self.uniform(x.args[1])
        if inner is None or n is None or (not n.leaves and n.constant <= 0):
            return None
        out: list[IndexPiece] = []
        for p in inner:
            turns = self._turns(p, n)
            if turns is None:
                return None
            for m in turns:
                low, high = n.times(m).minus(p.shift), n.times(m + 1).minus(p.shift)
                out.append(IndexPiece(p.span.within(IterationSpan(p.span.axis, (low,), (high,))), p.shift.minus(n.times(m))))
        return out

    def _turns(self, p: IndexPiece, n: Linear) -> range | None:
        """How often ``n`` goes into the index, at least and at most."""
        first = [low.plus(p.shift) for low in p.span.lows]
        last = [high.plus(p.shift).minus(ONE) for high in p.span.highs]
        if not n.leaves:
            lows, highs = ([x.constant for x in ends if not x.leaves] for ends in (first, last))
            turns = range(max(lows) // n.constant, min(highs) // n.constant + 1) if lows and highs else None
            return turns if turns is not None and len(turns) < MOST else None
        extent = self._extent(p.span.axis)
        lowest = next((m for m in (1, 0, -1) if any(_never_negative(x.minus(n.times(m)), extent) for x in first)), None)
        highest = next(
            (m for m in (-1, 0, 1) if any(_never_negative(n.times(m + 1).minus(ONE).minus(x), extent) for x in last)), None
        )
        return None if lowest is None or highest is None else range(lowest, highest + 1)

    def _extent(self, axis: Op) -> Linear:
        """The iterations of an axis, less one: not negative where there is an iteration."""
        whole = self.axes[axis]
        return whole.highs[0].minus(whole.lows[0]).minus(ONE)

    # ---- clamped
    def _clamped(self, x: Op) -> list[IndexPiece] | None:
        for index, bound in (x.args, x.args[::-1]):
            inner, end = self.of(index), self.uniform(bound)
            if inner is not None and end is not None:
                return self._cut(inner, end, x.op == "min")
        return None

    def _cut(self, inner: list[IndexPiece], end: Linear, upper: bool) -> list[IndexPiece] | None:
        out: list[IndexPiece] = []
        for p in inner:
            at, axis = end.minus(p.shift), p.span.axis  # the iteration whose index is the bound
            after = at.plus(ONE)
            inside, beyond = (IterationSpan(axis, (), (after,)), IterationSpan(axis, (after,), ()))
            if not upper:
                inside, beyond = (IterationSpan(axis, (at,), ()), IterationSpan(axis, (), (at,)))
            flat = self._constant(p.span.within(beyond), end)
            if flat is None:
                return None
            out += [IndexPiece(p.span.within(inside), p.shift), *flat]
        return out

    def _constant(self, span: IterationSpan, value: Linear) -> list[IndexPiece] | None:
        """The pieces of one iteration each in which an index has one value; None: there are too many."""
        if span.empty:
            return []
        ends = [(low, n) for low in span.lows for high in span.highs if (n := distance(low, high)) is not None]
        if not ends or min(n for _, n in ends) > MOST:
            return None
        first, count = min(ends, key=lambda end: end[1])
        out = []
        for k in range(count):
            i = first.plus(Linear((), k))
            here = span.within(IterationSpan(span.axis, (i,), (i.plus(ONE),)))
            out.append(IndexPiece(here, value.minus(i)))
        return out

    # ---- chosen by a condition
    def _chosen(self, x: Op) -> list[IndexPiece] | None:
        cond, *values = x.args
        out: list[IndexPiece] = []
        for value, holds in zip(values, (True, False)):
            spans = self.where(cond, holds)
            if spans is None:
                return None
            end, inner = self.uniform(value), self.of(value)
            for span in spans:
                part = None if end is None else self._constant(self.axes[span.axis].within(span), end)
                part = (
                    part
                    if inner is None
                    else [IndexPiece(p.span.within(span), p.shift) for p in inner if p.span.axis is span.axis]
                )
                if part is None or (inner is not None and len(part) < len(inner)):
                    return None
                out += part
        return out

    def where(self, cond: Operand, holds: bool) -> list[IterationSpan] | None:
        """The iterations of one axis in which a comparison holds, or does not, as disjoint intervals; None: it is something else."""
        if not isinstance(cond, Op) or cond.op not in _INVERSE or not all(a.dtype.is_int and _is_signed(a) for a in cond.args):
            return None
        code = cond.op if holds else _INVERSE[cond.op]
        apart = linear(cond.args[0]).minus(linear(cond.args[1]))
        inner = [(leaf, c) for leaf, c in apart.leaves if isinstance(leaf, Op)]
        if len(inner) != 1 or inner[0][0] not in self.axes or abs(inner[0][1]) != 1:
            return None
        axis, c = inner[0]
        assert isinstance(axis, Op)
        if c < 0:
            code = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(code, code)
        at = apart.minus(Linear(((axis, c),), 0)).times(-c)  # the comparison is ``axis code at``
        after = at.plus(ONE)
        below, above = IterationSpan(axis, (), (at,)), IterationSpan(axis, (after,), ())
        return {
            "lt": [below],
            "le": [IterationSpan(axis, (), (after,))],
            "gt": [above],
            "ge": [IterationSpan(axis, (at,), ())],
            "eq": [IterationSpan(axis, (at,), (after,))],
            "ne": [below, above],
        }[code]


def shifted(bounds: tuple[Linear, ...], shift: Linear) -> tuple[Linear, ...]:
    """Bounds of the elements that iterations with a shift name."""
    return tuple(x.plus(shift) for x in bounds)


def main_piece(found: list[IndexPiece]) -> IndexPiece | None:
    """The piece of nearly all iterations, if there is one."""
    long = [p for p in found if (n := p.span.length) is None or n > MOST]
    if len(long) == 1:
        return long[0]
    return found[0] if len(found) == 1 else None


def _never_negative(x: Linear, extent: Linear) -> bool:
    """Whether a form has no negative value where a loop has an iteration: extents of arrays are not negative, either."""
    forms = (x, x.minus(extent), x.minus(extent.times(2)))
    return any(y.constant >= 0 and all(c > 0 and _is_extent(leaf) for leaf, c in y.leaves) for y in forms)


def _is_extent(leaf: object) -> bool:
    return isinstance(leaf, tuple) and leaf[0] == "shape"


def _is_signed(x: Operand) -> bool:
    """Whether a sum is of signed integers of at least 32 bits."""
    todo, seen = [x], set[Operand]()
    while todo:
        value = todo.pop()
        if value.dtype.kind != "i" or value.dtype.bits < 32:
            return False
        if isinstance(value, Op) and value not in seen:
            seen.add(value)
            if value.op in ("add", "sub", "neg", "mul", "cast"):
                todo += value.args
    return True
