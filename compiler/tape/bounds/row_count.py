"""Counts the iterations of a task that pass its row predicate.

Only the axes that the conditions use are walked, in blocks, and no further than until enough iterations are found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from ...ir.types import DType
from .evaluate import Points, Run, Values
from .queries import HostInputs, IterationRange, reducer_of
from .row_predicates import RowPredicate, distinct
from .sizeexpr import Index, Range

FIRST_BLOCK, LARGEST_BLOCK = 1 << 12, 1 << 18  # iterations


def extent_of(gate: RowPredicate, host: HostInputs) -> IterationRange | None:
    """The iterations of a launch; None when a bound cannot be read (an index outside of an array)."""
    point = Points(host)
    begins, sizes = [], []
    for r in gate.axes:
        (begin, bad), (end, outside) = (point.eval(x) for x in r.ends)
        if np.any(bad) or np.any(outside):
            return None
        begins.append(int(begin))
        sizes.append(max(0, int(end) - int(begin)))
    used = {x.op for t in gate.tests for x in distinct(t.cond) if isinstance(x, Index)}
    return IterationRange(tuple(begins), tuple(sizes), tuple(k for k, r in enumerate(gate.axes) if r.index in used))


def count_passing(gate: RowPredicate, extent: IterationRange, host: HostInputs, enough: int) -> int:
    """Count the passing iterations, up to at least ``enough``. An iteration with conditions that read outside of an array passes.

    Args:
        gate: the predicate.
        extent: the extent of the launch.
        host: the launch.
        enough: the count may stop there.
    """
    others = math.prod(n for k, n in enumerate(extent.sizes) if k not in extent.used)
    found = 0
    reducer = reducer_of(host)
    if reducer is not None and extent.iterations and extent.used:
        counted = reducer.passing(gate, extent)
        if counted is not None:
            return counted * others
    if extent.iterations:
        axes = [gate.axes[k] for k in extent.used]
        for windows in _windows([range(extent.begins[k], extent.begins[k] + extent.sizes[k]) for k in extent.used]):
            found += _passing(gate, axes, windows, host)
            if found * others >= enough:
                break
    return found * others


def _passing(gate: RowPredicate, axes: list[Range], windows: tuple[range, ...], host: HostInputs) -> int:
    shape = tuple(map(len, windows))
    runs = {r.index: Run(k, w.start, len(w)) for k, (r, w) in enumerate(zip(axes, windows))}
    block = Points(host, math.prod(shape), {op: _along(op.dtype, run, len(shape)) for op, run in runs.items()}, runs)
    passes: Values = np.True_
    for t in gate.tests:
        value, bad = block.eval(t.cond)
        passes = passes & ((value if t.holds else ~value) | bad)
        if not np.any(passes):
            return 0
    return int(np.count_nonzero(np.broadcast_to(passes, shape)))


def _along(dtype: DType, run: Run, dimensions: int) -> np.ndarray:
    """The values of a run in a block of so many dimensions."""
    shape = [1] * dimensions
    shape[run.dimension] = run.count
    return np.arange(run.first, run.first + run.count).astype(dtype.numpy).reshape(shape)


def _windows(ranges: list[range]) -> Iterator[tuple[range, ...]]:
    """The index space in blocks. The first ones are small: most gates pass often, and then a few iterations are enough."""
    room = FIRST_BLOCK
    first = ranges[0] if ranges else range(1)
    rest = ranges[1:]
    at = 0
    while at < len(first):
        inner = math.prod(map(len, rest))
        step = max(1, room // max(1, inner))
        window = first[at : at + step]
        parts = [[window]] + [
            _pieces(r, max(1, LARGEST_BLOCK // math.prod(map(len, rest[k + 1 :])))) for k, r in enumerate(rest)
        ]
        yield from product(*parts) if ranges else [()]
        at += step
        room = min(LARGEST_BLOCK, 4 * room)


def _pieces(r: range, most: int) -> list[range]:
    return [r[k : k + most] for k in range(0, len(r), most)]
