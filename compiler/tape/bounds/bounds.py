"""The largest trip count of a loop over all values of the indices around it.

First interval arithmetic: where its bound is met at an end of the indices (``range(N - i)``), that is the answer, whatever the extent.
Then every tuple of the indices that the bounds use, streamed (``enumerate.py``), as far as that takes seconds. Past that, the result of
the intervals is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .enumerate import largest, total
from .evaluable import Unknowable, known_nest
from .evaluate import Points
from .intervals import Intervals
from .queries import HostInputs, Space, reducer_of
from .sizeexpr import ElementRead, Extent, Pick, Range, ScalarArgument, parts

FEW = 1 << 12
"""Index tuples that are evaluated before other methods are tried."""

MOST_WORK = 1 << 32
"""Operations of an enumeration: a few seconds."""

MOST_COUNTED = 1 << 16
"""Maximum index tuples, without the last index, that are enumerated to count all tuples."""

FAR = 1 << 31
"""A bound that is no better than this says nothing: thinning holds as much and costs less."""


@dataclass(frozen=True)
class Trips:
    """At most ``count`` iterations (None: unknown); ``source`` says how that is known."""

    count: int | None
    source: str


def max_trips(loop: Range, nest: tuple[Range, ...], host: HostInputs) -> Trips:
    """The largest trip count of ``loop`` over all values of the indices around it (``nest``, outermost first)."""
    if loop.end is None:
        return Trips(None, "while")
    try:
        loop, used = known_nest(loop, nest)
    except Unknowable as e:
        return Trips(None, str(e))
    if not used:
        return Trips(int(Points(host).trips(loop)[1]), _source(loop, used))
    return _Search(loop, used, host).trips()


def max_tuples(axes: tuple[Range, ...], host: HostInputs) -> int | None:
    """Upper bounds of the number of index tuples of a nest, outermost first. None: unknown."""
    total = 1
    for k, axis in enumerate(axes):
        count = max_trips(axis, axes[:k], host).count
        if count is None:
            return None
        total *= count
    return total


def _source(loop: Range, used: tuple[Range, ...]) -> str:
    kinds: dict[type, str] = {ScalarArgument: "argument", Extent: "shape", ElementRead: "array"}
    exprs = [e for r in (loop, *used) for end in r.ends for e in parts(end)]
    names = [name for kind, name in kinds.items() if any(isinstance(e, kind) for e in exprs)]
    source = " and ".join(names) or "literal"
    picked = {e.range.index for e in exprs if isinstance(e, Pick)}
    if any(r.index not in picked for r in used):
        source += ", exact over the enclosing indices"
    return source + (", the largest over the paths that may be taken" if picked else "")


class _Search:
    """Looks for the largest count over the tuples of ``used`` indices."""

    def __init__(self, loop: Range, used: tuple[Range, ...], host: HostInputs) -> None:
        self.loop, self.used, self.host = loop, used, host

    def trips(self) -> Trips:
        source = _source(self.loop, self.used)
        reduced = self._reduced()
        if reduced is not None:
            return Trips(reduced, source)
        size, most = self.measure()
        if size <= FEW:
            return Trips(self._look(), source)
        few = max(1, int(FEW ** (1 / len(self.used))) // 2)
        if most == 0 or largest(Space(self.loop, self.used, self.host, few), most) >= most:
            return Trips(most, source)
        if size * self._operations() > MOST_WORK:
            size = self._counted(size)
        if size * self._operations() <= MOST_WORK:
            return Trips(self._look(most), source)
        if most >= FAR:
            return Trips(None, "an interval bound that is of no use")
        return Trips(most, f"interval bound: {size:.2g} combinations of indices are too many to look at")

    def measure(self) -> tuple[int, int]:
        """Upper bounds of the number of tuples, and of the iterations of one tuple."""
        intervals = Intervals(self.host)
        size = self._size(intervals)
        return size, intervals.trips(self.loop) if size else 0

    def _size(self, intervals: Intervals) -> int:
        sizes = []
        for r in self.used:
            low, high = intervals.add(r)
            sizes.append(max(0, (high - low) // abs(r.step) + 1))
        return prod(sizes)

    def _reduced(self) -> int | None:
        """The largest count, computed on the device over all tuples; None: the host computes it, or there are too many tuples."""
        reducer = reducer_of(self.host)
        if reducer is None or self._size(Intervals(self.host)) * self._operations() > MOST_WORK:
            return None
        found = reducer.trips(Space(self.loop, self.used, self.host))
        return None if found is None else found[0]

    def _look(self, enough: int | None = None) -> int:
        return largest(Space(self.loop, self.used, self.host), enough)

    def _counted(self, size: int) -> int:
        """The number of tuples: counted if all indices but the last have few values, else ``size``."""
        counted = total(Space(self.used[-1], self.used[:-1], self.host), MOST_COUNTED)
        return size if counted is None else counted

    def _operations(self) -> int:
        return sum(1 for end in self.loop.ends for _ in parts(end))
