"""Pareto fronts of (bytes, time), with the choices that lead to each point: of a loop, a region, a task and a kernel.

Times of loops add. Bytes of stacks that are live together add; of stacks that are never live together the larger counts. The front of a
region is combined from those of its parts, pair by pair, and dominated points are dropped. No combination of levels is missed as long as a
front has fewer than ``MOST`` points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .options import LoopOptions, pareto
from .sizing import LoopSizing, StackRegion

MOST = 192
"""Maximum number of points of a front. Longer fronts are thinned evenly; the smallest and the fastest points stay."""

Picks = dict[int, np.ndarray]
"""The option of each loop (by number), for every point of a front."""


@dataclass(frozen=True, eq=False)
class Front:
    """Choices by increasing bytes (i64) and decreasing time (f64, nanoseconds).

    ``exact``: the bytes are those of the layout, no estimates.
    """

    bytes: np.ndarray
    nanoseconds: np.ndarray
    picks: Picks
    exact: bool = True

    def take(self, at: np.ndarray) -> Front:
        """The points at the given indices."""
        return Front(self.bytes[at], self.nanoseconds[at], {n: p[at] for n, p in self.picks.items()}, self.exact)


NOTHING = Front(np.zeros(1, np.int64), np.zeros(1), {})


def leaf(number: int, options: LoopOptions) -> Front:
    """The front of one loop."""
    return Front(options.bytes, options.nanoseconds, {number: np.arange(len(options.bytes))})


def together(a: Front, b: Front) -> Front:
    """Combine two fronts with stacks that are live together."""
    return _pairs(a, b, np.add, True)


def shared(a: Front, b: Front, one_plane: bool) -> Front:
    """Combine two fronts with stacks that are never live together. With several planes the bytes are a lower bound."""
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
    """At most ``MOST`` of the points, including the first and the last."""
    if len(keep) <= MOST:
        return keep
    return keep[np.linspace(0, len(keep) - 1, MOST).round().astype(np.int64)]


def region_front(region: StackRegion, options: Mapping[int, LoopOptions], one_plane: bool) -> Front:
    """The front of a region, by the rules of ``layout.RowLayout``."""

    def own(r: StackRegion) -> Front:
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


def _all_loops_here(region: StackRegion) -> list[LoopSizing]:
    """The loops of a region and of its arms, without those inside their bodies."""
    out = list(region.loops)
    for pair in region.arms:
        for arm in pair:
            out += _all_loops_here(arm)
    return out
