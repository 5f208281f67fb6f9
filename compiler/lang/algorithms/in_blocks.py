"""The kernels of prefix sums and of a pass of a radix sort for GPUs whose waves exchange values: a block of threads takes a tile.

Their threads read neighbouring elements, where the kernels for other backends take segments one by one. They have no gradient.

D. Merrill, A. Grimshaw, "Parallel scan for stream architectures", 2009, and "High performance and scalable radix sorting", 2011.
"""

from __future__ import annotations

from typing import Any

from ...frontend.library.functions import cast, max, min, popcnt, select
from ...frontend.markers import loop_config, static
from ...frontend.syntax.lanes import from_lane, group_size, invocation_id, log2_group_size, votes
from ...ir.types import i32, u64
from ...program.program import current_program
from ..data.tensor import Tensor
from ..data.types import Template
from ..function import func
from ..kernel import kernel
from ..simt import block
from ..simt.tiles import inclusive_tiled, reduce_tiled
from .arrays import differentiated

THREADS = 256
"""Threads of a block; as many as a digit of 8 bits has values."""

ROUNDS = 8
"""Elements of each thread of a tile."""

TILE = THREADS * ROUNDS


def usable(*arrays: Any) -> bool:
    """Whether these kernels run on the device of the program, and no derivative is asked for."""
    program = current_program()
    return program.device.lanes > 0 and program.trials is None and not differentiated(*arrays)


def tiles(n: int) -> int:
    """The number of tiles of so many elements."""
    return -(-n // TILE)


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
def _tile_sum(x: Any, sums: Any, number: Any, op: Any, start: Any, dtype: Any) -> None:
    """Thread ``number`` of all: its part of the sum of its tile."""
    t, tile = block.thread_idx(), number // THREADS
    parts = block.SharedArray(static(THREADS // group_size()), dtype)
    total = cast(start, dtype)
    for k in static(range(ROUNDS)):
        i = tile * TILE + static(k * THREADS) + t
        if i < x.shape[0]:
            total = op(total, x[i])
    total = reduce_tiled(total, op, log2_group_size())
    if invocation_id() == 0:
        parts[t // group_size()] = total
    block.sync()
    if t == 0:
        for w in static(range(1, THREADS // group_size())):
            total = op(total, parts[w])
        sums[tile] = total


@kernel
def tile_sums(x: Tensor, sums: Tensor, op: Template, start: Template, dtype: Template) -> None:
    """``sums`` = the elements of each tile of ``x`` combined."""
    loop_config(block_dim=THREADS)
    for i in range(sums.shape[0] * THREADS):
        _tile_sum(x, sums, i, op, start, dtype)


@func
def _tile_scan(x: Any, before: Any, out: Any, number: Any, op: Any, start: Any, dtype: Any, inclusive: Any) -> None:
    """Thread ``number`` of all: its elements of the prefix sums of its tile, a round of a block after the other."""
    t, tile, lane = block.thread_idx(), number // THREADS, invocation_id()
    parts = block.SharedArray(static(THREADS // group_size()), dtype)
    base = before[tile]
    for k in range(ROUNDS):
        i = tile * TILE + k * THREADS + t
        value = cast(start, dtype)
        if i < x.shape[0]:
            value = x[i]
        upto = inclusive_tiled(value, op, log2_group_size())
        if lane == group_size() - 1:
            parts[t // group_size()] = upto
        block.sync()
        ahead, whole = base, base
        for w in static(range(THREADS // group_size())):
            whole = op(whole, parts[w])
            if w < t // group_size():
                ahead = whole
        if static(not inclusive):
            upto = from_lane(upto, lane - 1)
            if lane == 0:
                upto = cast(start, dtype)
        if i < x.shape[0]:
            out[i] = op(ahead, upto)
        base = whole
        block.sync()


@kernel
def tile_scans(
    x: Tensor, before: Tensor, out: Tensor, op: Template, start: Template, dtype: Template, inclusive: Template
) -> None:
    """``out`` = the prefix sums of each tile, after what comes before it."""
    loop_config(block_dim=THREADS)
    for i in range(before.shape[0] * THREADS):
        _tile_scan(x, before, out, i, op, start, dtype, inclusive)


@func
def _digit(b: Any, shift: Any, bits: Any) -> Any:
    return cast((b >> cast(shift, bits)) & cast(THREADS - 1, bits), i32)


@func
def _count_digits(b: Any, counts: Any, number: Any, shift: Any, bits: Any) -> None:
    t, tile = block.thread_idx(), number // THREADS
    mine = block.SharedArray(THREADS, i32)
    mine[t] = 0
    block.sync()
    for k in static(range(ROUNDS)):
        i = tile * TILE + static(k * THREADS) + t
        if i < b.shape[0]:
            mine[_digit(b[i], shift, bits)] += 1
    block.sync()
    counts[t * (counts.shape[0] // THREADS) + tile] = mine[t]


@kernel
def count_digits(b: Tensor, counts: Tensor, shift: int, bits: Template) -> None:
    """``counts`` = how often each tile has each digit: for each digit, a number for each tile."""
    loop_config(block_dim=THREADS)
    for i in range(counts.shape[0]):
        _count_digits(b, counts, i, shift, bits)


@func
def _same(digit: Any, there: Any) -> Any:
    """The lanes that have the digit of this one, u64: of those that have a bit of it, or have it not, as this one does."""
    lanes = votes(there)
    for bit in static(range(8)):
        found = votes((digit >> bit) & 1)
        lanes = lanes & select((digit >> bit) & 1 != 0, found, ~found)
    return lanes


@func
def _move(b: Any, index: Any, to_b: Any, to_index: Any, begins: Any, number: Any, shift: Any, first: Any, bits: Any) -> None:
    """Thread ``number`` of all: a round of elements after the other goes to where its digit is, in the order of the threads."""
    t, tile, lane = block.thread_idx(), number // THREADS, invocation_id()
    wave = t // group_size()
    begin = block.SharedArray(THREADS, i32)  # where the next element of a digit goes
    counts = block.SharedArray((static(THREADS // group_size()), THREADS), i32)  # of the waves
    begin[t] = begins[t * (begins.shape[0] // THREADS) + tile]
    for k in range(ROUNDS):
        for w in static(range(THREADS // group_size())):
            counts[w, t] = 0
        block.sync()
        i = tile * TILE + k * THREADS + t
        there = i < b.shape[0]
        key = cast(0, bits)
        if there:
            key = b[i]
        digit = _digit(key, shift, bits)
        lanes = _same(digit, there)
        rank = popcnt(lanes & ((cast(1, u64) << cast(lane, u64)) - cast(1, u64)))
        if there and rank == 0:
            counts[wave, digit] = popcnt(lanes)
        block.sync()
        at = begin[t]
        for w in static(range(THREADS // group_size())):
            count = counts[w, t]
            counts[w, t] = at
            at += count
        begin[t] = at
        block.sync()
        if there:
            to = counts[wave, digit] + rank
            to_b[to] = key
            if static(first):
                to_index[to] = i
            else:
                to_index[to] = index[i]
        block.sync()


@kernel
def move(
    b: Tensor, index: Tensor, to_b: Tensor, to_index: Tensor, begins: Tensor, shift: int, first: Template, bits: Template
) -> None:
    """Move keys and their indices to the place of their digit. ``begins``: where the first one of a digit and a tile goes."""
    loop_config(block_dim=THREADS)
    for i in range(begins.shape[0]):
        _move(b, index, to_b, to_index, begins, i, shift, first, bits)
