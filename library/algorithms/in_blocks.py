"""Reductions, prefix sums and compaction for GPUs whose waves exchange values, each in one launch. They have no gradient.

A wave of a block takes rows of neighbouring elements, an element for each lane. ``look_back`` says how blocks follow each other.
"""

from __future__ import annotations

from typing import Any

from ...compiler.extend import block, fence, from_lane, group_size, inclusive_tiled, invocation_id, log2_group_size, votes
from ...compiler.face import (
    Template,
    Tensor,
    Vector,
    atomic_add,
    cast,
    func,
    i32,
    kernel,
    loop_config,
    max,
    min,
    popcnt,
    select,
    static,
    u32,
    u64,
)
from .look_back import THREADS, ahead_of, reduced, take_tile

ROWS = 16
"""Elements of each thread of a tile."""

TILE = THREADS * ROWS

MOST_BLOCKS = 4096
"""Blocks of a reduction: many more than run at a time, so that the last ones leave little of the device idle."""


def tiles_of(n: int) -> int:
    """The number of tiles of so many elements."""
    return -(-n // TILE)


def blocks_of(n: int) -> int:
    """The blocks of a reduction of so many elements."""
    tiles = tiles_of(n)
    return tiles if tiles < MOST_BLOCKS else MOST_BLOCKS


@func
def _add(a: Any, b: Any) -> Any:
    return a + b


@func
def _least(a: Any, b: Any) -> Any:
    return min(a, b)


@func
def _most(a: Any, b: Any) -> Any:
    return max(a, b)


COMBINE = {"add": _add, "min": _least, "max": _most}


@func
def _fold(
    x: Any, parts: Any, left: Any, out: Any, number: Any, blocks: Any, op: Any, start: Any, dtype: Any, axes: Any
) -> None:
    """Thread ``number`` of all: elements at this distance from each other; the block that is done last combines what blocks have."""
    t, threads = block.thread_idx(), blocks * THREADS
    totals = Vector([start for _ in range(ROWS)], dt=dtype)
    for row in range((x.shape[0] - 1) // (threads * ROWS) + 1):
        first = row * ROWS * threads + number
        values = [x[min(first + k * threads, x.shape[0] - 1)] for k in range(ROWS)]  # all are read before one is waited for
        for k in static(range(ROWS)):
            totals[k] = op(totals[k], select(first + k * threads < x.shape[0], cast(values[k], dtype), cast(start, dtype)))
    for step in static((8, 4, 2, 1)):
        for k in static(range(step)):
            totals[k] = op(totals[k], totals[k + step])
    whole = reduced(totals[0], op, dtype)
    arrived = block.SharedArray(1, i32)
    if t == 0:
        parts[number // THREADS] = whole
        fence("grid")
        arrived[0] = atomic_add(left[0], 1)
    block.sync()
    if arrived[0] == blocks - 1:
        fence("grid")
        mine = cast(start, dtype)
        for k in static(range(MOST_BLOCKS // THREADS)):
            if k * THREADS + t < blocks:
                mine = op(mine, parts[k * THREADS + t])
        total = reduced(mine, op, dtype)
        if t == 0:
            out[0 if static(axes) else None] = cast(total, out.dtype)
            left[0] = 0


@kernel
def fold(
    x: Tensor,
    parts: Tensor,
    left: Tensor,
    out: Tensor,
    blocks: int,
    op: Template,
    start: Template,
    dtype: Template,
    axes: Template,
) -> None:
    """``out`` = the elements of ``x`` combined."""
    loop_config(block_dim=THREADS)
    for i in range(blocks * THREADS):
        _fold(x, parts, left, out, i, blocks, op, start, dtype, axes)


@func
def _first_of(tile: Any) -> Any:
    """The element of this lane in the first row of its wave; those of the next rows follow at a distance of a wave."""
    return tile * TILE + block.thread_idx() // group_size() * static(ROWS * group_size()) + invocation_id()


@func
def waves_ahead(mine: Any, op: Any, start: Any, dtype: Any) -> Any:
    """What lies ahead of this wave in the block, and that of the whole block. ``mine``: that of the wave, in its first lane."""
    wave = block.thread_idx() // group_size()
    parts = block.SharedArray(static(THREADS // group_size()), dtype)
    if invocation_id() == 0:
        parts[wave] = mine
    block.sync()
    ahead, whole = cast(start, dtype), cast(start, dtype)
    for w in static(range(THREADS // group_size())):
        if w == wave:
            ahead = whole
        whole = op(whole, parts[w])
    return ahead, whole


@func
def _scan(x: Any, left: Any, out: Any, tiles: Any, op: Any, start: Any, dtype: Any, bits: Any, inclusive: Any) -> None:
    tile, mark = take_tile(left, tiles)
    first, lane = _first_of(tile), invocation_id()
    values = Vector([start for _ in range(ROWS)], dt=dtype)
    for k in static(range(ROWS)):
        if first + static(k * group_size()) < x.shape[0]:
            values[k] = cast(x[first + static(k * group_size())], dtype)
    total = cast(start, dtype)
    for k in static(range(ROWS)):
        upto = inclusive_tiled(values[k], op, log2_group_size())
        row = from_lane(upto, static(group_size() - 1))
        if static(not inclusive):
            upto = from_lane(upto, lane - 1)
            if lane == 0:
                upto = cast(start, dtype)
        values[k] = op(total, upto)
        total = op(total, row)
    before, whole = waves_ahead(total, op, start, dtype)
    before = op(ahead_of(left, tile, tiles, mark, whole, op, start, dtype, bits), before)
    for k in static(range(ROWS)):
        if first + static(k * group_size()) < x.shape[0]:
            out[first + static(k * group_size())] = cast(op(before, values[k]), out.dtype)


@kernel
def scan(
    x: Tensor,
    left: Tensor,
    out: Tensor,
    tiles: int,
    op: Template,
    start: Template,
    dtype: Template,
    bits: Template,
    inclusive: Template,
) -> None:
    """``out`` = the prefix sums of ``x``."""
    loop_config(block_dim=THREADS)
    for _ in range(tiles * THREADS):
        _scan(x, left, out, tiles, op, start, dtype, bits, inclusive)


@func
def _pick(x: Any, picks: Any, left: Any, out: Any, count: Any, tiles: Any, n: Any, chosen: Any, value: Any, axes: Any) -> None:
    tile, mark = take_tile(left, tiles)
    first, lane = _first_of(tile), invocation_id()
    flags = Vector([0 for _ in range(ROWS)], dt=i32)
    for k in static(range(ROWS)):
        if first + static(k * group_size()) < n:
            flags[k] = cast(chosen(picks, first + static(k * group_size())), i32)
    places, total = Vector([0 for _ in range(ROWS)], dt=i32), 0
    for k in static(range(ROWS)):
        lanes = votes(flags[k])
        places[k] = total + popcnt(lanes & ((cast(1, u64) << cast(lane, u64)) - cast(1, u64)))
        total += popcnt(lanes)
    before, whole = waves_ahead(total, _add, 0, i32)
    values = [value(x, min(first + k * group_size(), n - 1)) for k in range(ROWS)]  # all are read before one is waited for
    ahead = ahead_of(left, tile, tiles, mark, whole, _add, 0, i32, u32)
    for k in static(range(ROWS)):
        if flags[k] != 0:
            out[ahead + before + places[k]] = values[k]
    if tile == tiles - 1 and block.thread_idx() == 0:
        count[0 if static(axes) else None] = ahead + whole


@kernel
def pick(
    x: Tensor,
    picks: Tensor,
    left: Tensor,
    out: Tensor,
    count: Tensor,
    tiles: int,
    chosen: Template,
    value: Template,
    axes: Template,
) -> None:
    """``out`` = ``value(x, i)`` of all i for which ``chosen(picks, i)``, in their order, and ``count`` = how many they are."""
    loop_config(block_dim=THREADS)
    for _ in range(tiles * THREADS):
        _pick(x, picks, left, out, count, tiles, picks.shape[0], chosen, value, axes)
