"""The largest trip count of a loop by looking at every tuple of the indices that its bounds use, a chunk at a time.

Indices run outermost first, and the last one runs fastest. A tuple whose bounds read outside of an array counts no iterations: the
loop cannot run there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from .evaluate import MOST, Points, Run
from .queries import Space, reducer_of
from .sizeexpr import Range, depends

CHUNK = 1 << 17
"""Index tuples per chunk: small enough for the processor's caches."""

LONG = 1 << 12
"""An innermost index of at least so many values runs alone, while the others stay as they are."""


def largest(space: Space, enough: int | None = None) -> int:
    """The largest trip count of a space; the search ends when it has reached ``enough``, which none is larger than."""
    reducer = reducer_of(space.host)
    if reducer is not None and (reduced := reducer.trips(space)) is not None:
        return reduced[0]
    best = 0
    for points in tuples(space, Points(space.host)):
        count = points.trips(space.loop)[1]
        best = max(best, int(np.max(count, initial=0)))
        if enough is not None and best >= enough:
            break
    return best


def total(space: Space, limit: int) -> int | None:
    """All trip counts of a space together; None when there are more than ``limit`` tuples."""
    reducer = reducer_of(space.host)
    if reducer is not None and not any(map(depends, space.used)):
        if prod(int(Points(space.host).trips(r)[1]) for r in space.used) > limit:
            return None
        reduced = reducer.trips(space)
        if reduced is not None and reduced[1] >= 0:
            return reduced[1]
    found = seen = 0
    for points in tuples(space, Points(space.host)):
        seen += points.size
        if seen > limit:
            return None
        count = points.trips(space.loop)[1]
        found += _total(count) * (1 if np.ndim(count) else points.size)
    return found


def span(space: Space, r: Range) -> tuple[int, int]:
    """First value and number of values of a range that uses no index."""
    begin, count = Points(space.host).trips(r)
    return int(begin), int(count)


def tuples(space: Space, points: Points, depth: int = 0) -> Iterator[Points]:
    """All tuples of a space's indices, in chunks, each with the indices of ``points``."""
    if depth == len(space.used):
        yield points
        return
    r = space.used[depth]
    begin, count = points.trips(r)
    for part in _expanded(points, r, np.asarray(begin, np.int64), np.asarray(count), space.few):
        yield from tuples(space, part, depth + 1)


def _expanded(points: Points, r: Range, begin: np.ndarray, count: np.ndarray, few: int) -> Iterator[Points]:
    """One point per value of the range at each of ``points``, in chunks of at most ``CHUNK`` (or the values of one point)."""
    if few and int(np.max(count, initial=0)) > 2 * few:
        for first, n in _ends(begin, count, r.step, few):
            yield from _all(points, r, first, n)
    else:
        yield from _all(points, r, begin, count)


def _all(points: Points, r: Range, begin: np.ndarray, count: np.ndarray) -> Iterator[Points]:
    if begin.ndim == 0 and count.ndim == 0 and points.size == 1:
        yield from _alone(points, r, int(begin), int(count))
        return
    begin, count = np.broadcast_to(begin, points.size), np.broadcast_to(count, points.size)
    whole = _total(count)
    if whole >= LONG * points.size:
        for k in np.flatnonzero(count).tolist():
            one = Points(points.host, 1, {op: v if np.ndim(v) == 0 else v[k] for op, v in points.values.items()})
            yield from _alone(one, r, int(begin[k]), int(count[k]))
        return
    ends = np.cumsum(count)
    cuts = [0, *(np.searchsorted(ends, np.arange(CHUNK, whole, CHUNK), side="left") + 1).tolist(), points.size]
    for a, z in pairwise(cuts):
        if z > a and ends[z - 1] > (ends[a - 1] if a else 0):
            yield _repeated(points, r, begin[a:z], count[a:z], slice(a, z))


def _total(count: Any) -> int:
    """The sum of trip counts, which may be more than 64 bits hold: then to 53 bits."""
    rough = float(np.sum(count, dtype=np.float64))
    return int(rough) if rough >= MOST / 2 else int(np.sum(count, dtype=np.int64))


def _alone(points: Points, r: Range, begin: int, count: int) -> Iterator[Points]:
    """The values of a range while all other indices stay."""
    dtype = r.index.dtype.numpy
    for start in range(0, count, CHUNK):
        n = min(CHUNK, count - start)
        first = begin + start * r.step
        if n == 1:
            yield Points(points.host, 1, {**points.values, r.index: dtype.type(first)})
            continue
        values = np.arange(first, first + n * r.step, r.step).astype(dtype)
        yield Points(points.host, n, {**points.values, r.index: values}, {r.index: Run(0, first, n)} if r.step == 1 else {})


def _repeated(points: Points, r: Range, begin: np.ndarray, count: np.ndarray, part: slice) -> Points:
    """Each point as often as its range has values, with one of them."""
    total = int(count.sum())
    offset = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    values = {op: v if np.ndim(v) == 0 else np.repeat(v[part], count) for op, v in points.values.items()}
    values[r.index] = (np.repeat(begin, count) + offset * r.step).astype(r.index.dtype.numpy)
    return Points(points.host, total, values)


def _ends(begin: np.ndarray, count: np.ndarray, step: int, few: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The first and the last values of ranges."""
    first = np.minimum(count, few)
    last = np.clip(count - first, 0, few)
    return [(begin, first), (begin + (count - last) * step, last)]
