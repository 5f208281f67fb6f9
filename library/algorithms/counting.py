"""Histograms: every segment of the input has counts of its own, which are added up; on a GPU every block of threads, in shared memory.

With weights, threads add to the bins directly, so that the gradient of the sums is that of the loop.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...compiler.extend import DType, Function, block, scratch
from ...compiler.face import (
    QdrunTypeError,
    QdrunValueError,
    Template,
    Tensor,
    cast,
    current_program,
    f32,
    func,
    i32,
    i64,
    kernel,
    loop_config,
    static,
)
from ...compiler.face import min as lesser
from .arrays import different, line, no_gradient, typed
from .look_back import THREADS, can_meet

SEGMENTS = 64
"""Segments of the input, and threads of a block on a GPU."""

MOST_SHARED = 8192
"""Bins that the threads of a block may have in shared memory."""

MOST_BLOCKS = 1024


@lru_cache(256)
def _place(kind: DType, low: float, scale: float = 1.0, high: float = 0.0, closed: bool = False) -> Function:
    """A func of a value and the number of bins: its bin, i32; -1: it has none. One object for the same bins, by which launches are found.

    Args:
        kind: the type in which values are compared.
        low: where the first bin begins.
        scale: bins for each unit.
        high: where the last one ends, if it is ``closed``.
        closed: the last bin has its end.
    """

    @func
    def bin_of(v: Any, bins: Any) -> Any:
        k = cast(-1, i32)
        if static(kind.is_real):
            x = cast(v, kind)
            at = (x - cast(low, kind)) * cast(scale, kind)
            if at >= 0 and (x <= cast(high, kind) if static(closed) else at < cast(bins, kind)):
                k = lesser(cast(at, i32), bins - 1)
        else:
            at = cast(v, i64) - cast(low, i64)
            if at >= 0 and at < bins:
                k = cast(at, i32)
        return k

    return bin_of


@func
def _bin(v: Any, bins: Any, bin_of: Any) -> Any:
    return bin_of(v, bins)


@kernel
def _zero(counts: Tensor) -> None:
    for k in counts:
        counts[k] = cast(0, counts.dtype)


@kernel
def _added(x: Tensor, sums: Tensor, bin_of: Template) -> None:
    for i in x:
        k = _bin(x[i], sums.shape[0], bin_of)
        if k >= 0:
            sums[k] += 1


@kernel
def _weighted(x: Tensor, w: Tensor, sums: Tensor, bin_of: Template) -> None:
    for i in x:
        k = _bin(x[i], sums.shape[0], bin_of)
        if k >= 0:
            sums[k] += w[i]


@kernel
def _segments(x: Tensor, parts: Tensor, counts: Tensor, bin_of: Template) -> None:
    for s in range(parts.shape[0] // counts.shape[0]):
        bins = counts.shape[0]
        length = (x.shape[0] - 1) // (parts.shape[0] // bins) + 1
        for k in range(bins):
            parts[s * bins + k] = 0
        for i in range(s * length, lesser(x.shape[0], s * length + length)):
            k = _bin(x[i], bins, bin_of)
            if k >= 0:
                parts[s * bins + k] = parts[s * bins + k] + 1
    for k in counts:
        total = 0
        for s in range(parts.shape[0] // counts.shape[0]):
            total += parts[s * counts.shape[0] + k]
        counts[k] = total


@func
def _count_block(x: Any, counts: Any, first: Any, threads: Any, bins: Any, bin_of: Any) -> None:
    """A thread of a block takes every ``threads``-th element from the ``first`` on."""
    mine, t = block.SharedArray(bins, i32), block.thread_idx()
    for k in range((bins - 1) // THREADS + 1):
        if k * THREADS + t < bins:
            mine[k * THREADS + t] = 0
    block.sync()
    for step in range((x.shape[0] - first - 1) // threads + 1):
        k = _bin(x[first + step * threads], counts.shape[0], bin_of)
        if k >= 0:
            mine[k] += 1
    block.sync()
    for k in range((bins - 1) // THREADS + 1):
        if k * THREADS + t < bins:
            if mine[k * THREADS + t] > 0:
                counts[k * THREADS + t] += mine[k * THREADS + t]


@kernel
def _blocks(x: Tensor, counts: Tensor, threads: int, bins: Template, bin_of: Template) -> None:
    loop_config(block_dim=THREADS)
    for first in range(threads):
        _count_block(x, counts, first, threads, bins, bin_of)


def histogram(x: Any, counts: Any, low: float = 0, high: float | None = None, weights: Any = None) -> None:
    """``counts[k]`` = how many elements of ``x`` lie in bin k; of ``weights``, their sum.

    Without ``high``, bin k has the values from ``low + k`` up to ``low + k + 1``, which has the next bin. With it, the bins have equal
    widths from ``low`` to ``high``, which is in the last bin, as numpy.histogram's. Other values, and NaN, are left out.

    Args:
        x: one axis of numbers.
        counts: a number for each bin: i32, or of the type of ``weights``; it is overwritten.
        low: the least value of the first bin.
        high: the greatest value of the last bin, for reals; integers have bins of width 1.
        weights: a number for each element. Sums of reals are added in any order; their gradient is that of the bin of each element.

    Raises:
        QdrunTypeError: other types; ``x`` has a gradient in a tape, or a dual in forward mode.
        QdrunValueError: other shapes; ``high`` for integers, or not above ``low``.
    """
    what = "histogram"
    x = line(x, what, "x")
    counts = line(counts, what, "counts")
    bin_of = _bins(x.dtype, low, high, counts.shape[0])
    no_gradient(what, "a bin does not change with its elements", "give x without a gradient", x)
    if weights is None:
        different(what, x, counts)
        _counted(x, typed(counts, what, "counts", i32), bin_of)
        return
    weights = line(weights, what, "weights", x.shape[0])
    typed(counts, what, "counts", weights.dtype)
    different(what, x, counts, weights)
    _zero(counts)
    _weighted(x, weights, counts, bin_of)


def _bins(dtype: DType, low: float, high: float | None, bins: int) -> Function:
    """The func that gives elements of a type their bins."""
    if not dtype.is_real:
        if high is not None:
            raise QdrunTypeError(
                f"algorithms.histogram: bins of {dtype} have the width 1, and high={high} gives another", hint="leave out high"
            )
        if int(low) != low:
            raise QdrunValueError(f"algorithms.histogram: bins of {dtype} begin at an integer, not at low={low}")
        return _place(i64, int(low))
    kind = f32 if dtype.size < 4 else dtype
    if high is None:
        return _place(kind, float(low))
    if not high > low:
        raise QdrunValueError(f"algorithms.histogram: high={high} is not above low={low}")
    return _place(kind, float(low), bins / (high - low), float(high), True)


def _counted(x: Any, counts: Any, bin_of: Function) -> None:
    """The histogram without weights."""
    n, bins = x.shape[0], counts.shape[0]
    if current_program().device.on_host:
        parts = max(1, min(SEGMENTS, n // max(bins, 1024)))
        _segments(x, scratch("histogram.parts", parts * bins, i32), counts, bin_of)
        return
    _zero(counts)
    if bins <= MOST_SHARED and can_meet():
        _blocks(x, counts, THREADS * max(1, min(MOST_BLOCKS, n // (16 * THREADS))), bins, bin_of)
    else:
        _added(x, counts, bin_of)
