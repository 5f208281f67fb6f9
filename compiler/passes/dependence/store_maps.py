"""The elements that the writes of a parallel loop name, as formulas, and whether two iterations name one element.

A formula is evaluated for every iteration, in the types and with the wrap-around of the kernel, so the answer is exact for any index:
quotients, remainders, shifts, conditional indices, narrow types. Where a formula needs the arguments of a launch, the launch is asked.
What an index reads from memory is not known then: ``addresses`` stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ir.nodes import Loc, Op, Operand, Place
from ...ir.ops import TABLE
from ...ir.types import DType, u1, u64
from ...tape.bounds.enumerate import tuples
from ...tape.bounds.evaluate import Points
from ...tape.bounds.flow import Carried, Reaching
from ...tape.bounds.queries import HostInputs, Space
from ...tape.bounds.reader import MOST_PARTS, TOO_LARGE, ExactReader, first_unknown
from ...tape.bounds.row_predicates import Condition, distinct
from ...tape.bounds.sizeexpr import (
    Bin,
    ElementRead,
    Extent,
    Index,
    Lit,
    Pick,
    Range,
    ScalarArgument,
    SizeExpr,
    UnknownExpr,
    as_type,
    inner,
    plus,
    rebuilt,
    truth,
    wide,
)

MOST_POINTS = 1 << 24
"""Writes that are looked at: about a second."""


@dataclass(frozen=True, eq=False)
class Spot:
    """A write of a loop.

    Attributes:
        index: the element.
        tests: the conditions around the write.
        loops: the inner loops that the other fields use, outermost first.
        value: two writes that agree in all of these store one value; None: nothing is known.
    """

    index: tuple[SizeExpr, ...]
    tests: tuple[Condition, ...]
    loops: tuple[Range, ...]
    value: tuple[SizeExpr, ...] | None = None


@dataclass(frozen=True, eq=False)
class WritePair:
    """Two writes of a loop, or one, of which no two iterations may name one element.

    Attributes:
        name: of the array.
        axes: of the loop.
        spots: one write or two.
        loc: of the first.
        again: the line of the second, as a message names it.
        loop: where the loop stands.
        shown: how many numbers of ``Spot.index`` are the index that the user wrote, for
            messages; negative: unknown.
        reads: whether the content of arrays decides: it is checked where launches are watched.
    """

    name: str
    axes: tuple[Range, ...]
    spots: tuple[Spot, ...]
    loc: Loc | None
    again: str
    loop: Loc | None = None
    shown: int = 0
    reads: bool = False

    @property
    def asks(self) -> bool:
        """Whether the arguments of a launch decide."""
        return any(True for _ in self.leaves())

    def leaves(self) -> Iterator[ScalarArgument | Extent | ElementRead]:
        """What the formulas read of a launch."""
        return (x for e in self.exprs() for x in distinct(e) if isinstance(x, (ScalarArgument, Extent, ElementRead)))

    def exprs(self) -> Iterator[SizeExpr]:
        """All formulas."""
        for r in (*self.axes, *(r for s in self.spots for r in s.loops)):
            yield from r.ends
        for s in self.spots:
            yield from (*s.index, *(t.cond for t in s.tests), *(s.value or ()))

    @property
    def unknown(self) -> str:
        """Why a formula cannot be evaluated; empty: all can."""
        if any(r.end is None for s in self.spots for r in s.loops):
            return "a `while` loop counts it"
        return next((x.why for e in self.exprs() for x in distinct(e) if isinstance(x, UnknownExpr)), "")


@dataclass(frozen=True)
class Clash:
    """Two iterations that name one element; ``too_many``: there are too many to look at."""

    element: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    second: tuple[int, ...] = ()
    too_many: bool = False


class StoreReader(ExactReader):
    """Formulas of what a kernel computes, reals included. What loops carry and no formula gives is unknown."""

    def _accepted(self, x: Operand, found: SizeExpr) -> SizeExpr:
        if x.dtype is not u64:
            return super()._accepted(x, found)
        self._sizes[id(found)] = size = 1 + sum(self._sizes.get(id(e), 1) for e in inner(found))
        return found if size <= MOST_PARTS else UnknownExpr(TOO_LARGE)

    def _operation(self, x: Op) -> SizeExpr:
        if x.op == "iter":
            return self.flat_number()
        if not (x.op in TABLE and TABLE[x.op].pure and TABLE[x.op].arity > 0) or x.op == "bitcast":
            return UnknownExpr(f"a value of `{x.op}`")
        if x.op in ("detach", "attach"):
            return self._raw(x.args[0])
        if x.op == "select":
            return self._select(x.args[0], self._raw(x.args[1]), self._raw(x.args[2]), x.dtype)
        args = tuple(map(self._raw, x.args))
        return first_unknown(args) or Bin(x.op, args, x.dtype)

    def _read(self, x: Op) -> SizeExpr:
        place = x.attr
        assert isinstance(place, Place)
        if place.buffer.kind not in ("field", "arg") or place.is_grad:
            return super()._read(x) if place.buffer.kind == "tmp" else UnknownExpr(f"`{place.name}`")
        return self._element(x, place)

    def _reaching(self, found: Reaching, dtype: DType) -> SizeExpr:
        if isinstance(found, Carried) and dtype.is_real:
            return UnknownExpr(f"`{found.variable.name}` is set in a loop")
        return super()._reaching(found, dtype)

    def _select(self, cond: Operand, then: SizeExpr, orelse: SizeExpr, dtype: DType) -> SizeExpr:
        unknown = first_unknown((then, orelse))
        if unknown is not None or then == orelse:
            return unknown or then
        decides = self._raw(cond)
        return Bin("select", (truth() if isinstance(decides, UnknownExpr) else decides, then, orelse), dtype)


def reads(e: SizeExpr) -> bool:
    """Whether the content of arrays decides a value."""
    return any(isinstance(x, ElementRead) for x in distinct(e))


def computes_reals(e: SizeExpr) -> bool:
    """Whether a value comes from real numbers, which machines may round in other ways."""
    return any(x.dtype.is_real for x in distinct(e) if not isinstance(x, UnknownExpr))


class FreeConditions:
    """Makes formulas in which a truth value that the content of arrays decides is either one."""

    def __init__(self) -> None:
        self._known: dict[SizeExpr, SizeExpr] = {}

    def __call__(self, e: SizeExpr) -> SizeExpr:
        """The formula."""
        if e.dtype is u1 and reads(e):
            return self._known.setdefault(e, truth())
        return rebuilt(e, self)


def addresses(e: SizeExpr) -> tuple[SizeExpr, ...]:
    """Integers without reads: where they are equal in two iterations, ``e`` is equal, whatever the arrays hold."""
    if isinstance(e, (Lit, ScalarArgument, Extent)):
        return ()
    if not reads(e) and not computes_reals(e):
        return (e,)
    return tuple(x for part in inner(e) for x in addresses(part))


def used_ranges(exprs: tuple[SizeExpr, ...], loops: tuple[Range, ...]) -> tuple[Range, ...]:
    """The loops and the picks whose indices some formulas use, each behind those that it uses itself."""
    found: dict[Op, Range] = {}
    known = {r.index: r for r in loops}

    def use(e: SizeExpr) -> None:
        for x in distinct(e):
            r = known.get(x.op) if isinstance(x, Index) else x.range if isinstance(x, Pick) else None
            if r is not None and r.index not in found:
                for end in r.ends:
                    use(end)
                found[r.index] = r

    for e in exprs:
        use(e)
    return tuple(found.values())


def find_clash(meeting: WritePair, host: HostInputs) -> Clash | None:
    """Two iterations that name one element and may store different values there; None: there are none."""
    sides = []
    left = MOST_POINTS
    for spot in meeting.spots:
        side = _look(meeting.axes, spot, host, left)
        if side is None:
            return Clash(too_many=True)
        left -= len(side.iteration)
        sides.append(side)
    element = np.concatenate([_joined(s.index, len(s.iteration)) for s in sides])
    key = _dense(element)
    if len(sides) == 1 and key.size and _all_differ(key):
        return None
    iteration = np.concatenate([s.iteration for s in sides])
    values = sides[0].value if len(sides) == 1 else None
    order = np.lexsort((iteration, key))
    key, iteration = key[order], iteration[order]
    bad = (key[1:] == key[:-1]) & (iteration[1:] != iteration[:-1])
    if len(sides) == 2:
        bad &= _of_both(key, (np.arange(len(order)) >= len(sides[0].iteration))[order])[1:]
    if values is not None and bad.any():
        differ = np.zeros(len(key), bool)
        for column in values:
            column = column[order]
            differ[1:] |= column[1:] != column[:-1]
        bad &= differ[1:]
    if not bad.any():
        return None
    at = int(np.flatnonzero(bad)[0])
    begins, sizes = sides[0].begins, sides[0].sizes
    return Clash(
        tuple(element[order[at]].tolist()),
        _indices(int(iteration[at]), begins, sizes),
        _indices(int(iteration[at + 1]), begins, sizes),
    )


@dataclass
class _Side:
    """All points of a write: columns of the index, the number of the iteration, and columns of the stored value."""

    index: list[np.ndarray]
    iteration: np.ndarray
    value: list[np.ndarray] | None
    begins: list[int]
    sizes: list[int]


def _look(axes: tuple[Range, ...], spot: Spot, host: HostInputs, most: int) -> _Side | None:
    """The points of a write; None when there are more than ``most``."""
    made = (*spot.index, *(t.cond for t in spot.tests), *(spot.value or ()))
    ends = tuple(end for r in spot.loops for end in r.ends)
    used = {x.op for e in (*made, *ends) for x in distinct(e) if isinstance(x, Index)}
    mine = tuple(r if r.index in used else _first_two(r) for r in axes)
    begins, sizes = [], []
    for r in axes:
        begin, count = Points(host).trips(r)
        begins.append(int(begin))
        sizes.append(int(count))
    columns: list[list[np.ndarray]] = [[] for _ in (*spot.index, *(spot.value or ()), None)]
    seen = 0
    # ``tuples`` does not look at the loop of a space
    for points in tuples(Space(mine[0], (*mine, *spot.loops), host), Points(host)):
        seen += points.size
        if seen > most:
            return None
        for column, values in zip(columns, _columns(axes, spot, points, begins, sizes)):
            column.append(values)
    whole = [np.concatenate(c) if c else np.zeros(0, np.int64) for c in columns]
    n = len(spot.index)
    return _Side(whole[:n], whole[-1], None if spot.value is None else whole[n:-1], begins, sizes)


def _columns(axes: tuple[Range, ...], spot: Spot, points: Points, begins: list[int], sizes: list[int]) -> list[np.ndarray]:
    """Index, value and iteration of the points of a chunk whose conditions hold."""
    runs = np.ones(points.size, bool)
    for test in spot.tests:
        value, bad = points.eval(test.cond)
        runs &= (np.asarray(value) != 0) == test.holds
        runs &= ~np.asarray(bad, bool)
    out: list[np.ndarray] = []
    for e in (*spot.index, *(spot.value or ())):
        value, bad = points.eval(e)
        runs &= ~np.asarray(bad, bool)
        out.append(np.broadcast_to(value, points.size))
    number: Any = np.zeros(points.size, np.int64)
    for r, begin, size in zip(axes, begins, sizes):
        number = number * size + (points.values[r.index].astype(np.int64) - begin)
    return [column[runs] for column in (*out, np.broadcast_to(number, points.size))]


def _first_two(r: Range) -> Range:
    """The first indices of an axis that decides nothing."""
    assert r.end is not None
    begin = as_type(plus(wide(r.begin), Lit(2)), r.end.dtype)
    return replace(r, end=Bin("min", (r.end, begin), r.end.dtype))


def _joined(columns: list[np.ndarray], n: int) -> np.ndarray:
    """The indices of ``n`` points as rows."""
    return np.stack([c.astype(np.int64) for c in columns], axis=1) if columns else np.zeros((n, 0), np.int64)


def _dense(element: np.ndarray) -> np.ndarray:
    """One number for each row: equal where all columns are."""
    key, reach = np.zeros(len(element), np.int64), 1
    for k in range(element.shape[1] if len(element) else 0):
        column = element[:, k]
        low, high = int(column.min()), int(column.max())
        if reach * (high - low + 1) >= 1 << 62:
            column, low = np.unique(column, return_inverse=True)[1].reshape(-1), 0
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
            reach, high = len(column), len(column) - 1
        reach *= high - low + 1
        key = key * (high - low + 1) + (column - low)
    return key


def _of_both(key: np.ndarray, second: np.ndarray) -> np.ndarray:
    """For each point, whether both writes have points of its key, which are side by side. What one write does alone is no matter here."""
    if not len(key):
        return np.zeros(0, bool)
    group = np.concatenate([[0], np.cumsum(key[1:] != key[:-1])])
    counts = np.stack([np.bincount(group[second == side], minlength=group[-1] + 1) for side in (False, True)])
    return np.minimum(counts[0], counts[1])[group] > 0


def _all_differ(key: np.ndarray) -> bool:
    low, high = int(key.min()), int(key.max())
    if high - low < 4 * len(key) + (1 << 16):
        return int(np.bincount(key - low).max()) <= 1
    return len(np.unique(key)) == len(key)


def _indices(number: int, begins: list[int], sizes: list[int]) -> tuple[int, ...]:
    """The indices of an iteration by its number."""
    out: list[int] = []
    for begin, size in zip(reversed(begins), reversed(sizes)):
        out.append(begin + number % size)
        number //= size
    return tuple(reversed(out))
