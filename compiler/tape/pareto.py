"""Pareto fronts: all optimal pairs of (bytes, time) of a loop, of loops side by side, of a task, of a kernel, with their choices.

Times of loops add. Bytes add for stacks that are live together; where only one of two is live, the larger counts. So the front of a
region is made from those of its parts, pair by pair, and whatever another choice beats in both is dropped: no combination of levels is
missed as long as a front stays under ``MOST`` points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .options import LoopOptions, pareto
from .sizing import LoopSizing, Region

MOST = 192
"""Points of a front; of a longer one some are left out, evenly, never the smallest or the fastest."""

Picks = dict[int, np.ndarray]
"""The option of each loop (by number), for every point of a front."""


@dataclass(frozen=True, eq=False)
class Front:
    """Choices by rising bytes (i64) and falling time (f64, nanoseconds). ``exact``: the bytes are those of the layout, and no estimate."""

    bytes: np.ndarray
    nanoseconds: np.ndarray
    picks: Picks
    exact: bool = True

    def take(self, at: np.ndarray) -> Front:
        """Some of its points."""
        return Front(self.bytes[at], self.nanoseconds[at], {n: p[at] for n, p in self.picks.items()}, self.exact)


NOTHING = Front(np.zeros(1, np.int64), np.zeros(1), {})


def leaf(number: int, options: LoopOptions) -> Front:
    """The front of one loop."""
    return Front(options.bytes, options.nanoseconds, {number: np.arange(len(options.bytes))})


def together(a: Front, b: Front) -> Front:
    """Both are live at the same time."""
    return _pairs(a, b, np.add, True)


def shared(a: Front, b: Front, one_plane: bool) -> Front:
    """Never live at the same time. Over several planes the maximum of the sums is an estimate from below."""
    return _pairs(a, b, np.maximum, one_plane or a is NOTHING or b is NOTHING)


def _pairs(a: Front, b: Front, join: Callable[[np.ndarray, np.ndarray], np.ndarray], exact: bool) -> Front:
    if a is NOTHING:
        return b
    if b is NOTHING:
        return a
    i, j = np.divmod(np.arange(len(a.bytes) * len(b.bytes)), len(b.bytes))
    size, time = join(a.bytes[i], b.bytes[j]), a.nanoseconds[i] + b.nanoseconds[j]
    keep = thinned(pareto(size, time))
    i, j = i[keep], j[keep]
    picks = {n: p[i] for n, p in a.picks.items()} | {n: p[j] for n, p in b.picks.items()}
    return Front(size[keep], time[keep], picks, exact and a.exact and b.exact)


def thinned(keep: np.ndarray) -> np.ndarray:
    """At most ``MOST`` of the points, the first and the last among them."""
    if len(keep) <= MOST:
        return keep
    return keep[np.linspace(0, len(keep) - 1, MOST).round().astype(np.int64)]


def region_front(region: Region, options: Mapping[int, LoopOptions], one_plane: bool) -> Front:
    """The front of a region, by the rules of ``layout.RowLayout``."""

    def own(r: Region) -> Front:
        out = NOTHING
        for loop in r.loops:
            if loop.stacks:
                out = together(out, leaf(loop.number, options[loop.number]))
        for one, other in r.arms:
            out = together(out, shared(own(one), own(other), one_plane))
        return out

    inner = NOTHING
    for loop in _all_loops_here(region):
        inner = shared(inner, region_front(loop.inner, options, one_plane), one_plane)
    return together(own(region), inner)


def _all_loops_here(region: Region) -> list[LoopSizing]:
    """The loops of a region and of its arms, not those inside their bodies."""
    out = list(region.loops)
    for pair in region.arms:
        for arm in pair:
            out += _all_loops_here(arm)
    return out
