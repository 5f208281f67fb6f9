"""The radix sort of GPUs whose waves exchange values: one launch counts the digits of all passes, and each pass is one more.

A. Adinets, D. Merrill, "Onesweep: a faster least significant digit radix sort for GPUs", 2022.
"""

from __future__ import annotations

from typing import Any

from ...compiler.extend import (
    block,
    fence,
    from_lane,
    group_size,
    inclusive_tiled,
    invocation_id,
    log2_group_size,
    sync,
    votes,
)
from ...compiler.face import (
    Template,
    Tensor,
    Vector,
    atomic_add,
    atomic_exchange,
    cast,
    func,
    i32,
    kernel,
    loop_config,
    max,
    popcnt,
    select,
    static,
    u32,
    u64,
    volatile_load,
)
from .in_blocks import _add, waves_ahead
from .keys import digit_of, ordered
from .look_back import THREADS, leave, take_tile

__qd_wraps__ = True  # see FunctionSource.wraps

AT_ONCE = 4
"""Keys, or messages of tiles, that a thread reads before it looks at them."""

MOST_BLOCKS = 1024
"""Blocks that count digits: about as many as run at a time."""


def rows_of(bits: Any) -> int:
    """Elements of each thread of a tile: what fits into the memory of a block."""
    return 64 // bits.size


def tiles_of(n: int, bits: Any) -> int:
    """The number of tiles of so many keys."""
    return -(-n // (THREADS * rows_of(bits)))


@func
def _votes(predicate: Any) -> Any:
    """A bit for each lane whose predicate is not 0, in as few bits as there are lanes."""
    return cast(votes(predicate), static(u32 if group_size() == 32 else u64))


@func
def _before(lanes: Any) -> Any:
    """How many of the lanes come before this one."""
    mask = static(u32 if group_size() == 32 else u64)
    return popcnt(lanes & ((cast(1, mask) << cast(invocation_id(), mask)) - cast(1, mask)))


@func
def _ahead_in_block(value: Any) -> Any:
    """The sum of the values of the threads before this one in the block, i32."""
    upto = inclusive_tiled(value, _add, log2_group_size())
    ahead, _ = waves_ahead(from_lane(upto, static(group_size() - 1)), _add, 0, i32)
    return ahead + upto - value


@func
def _count(keys: Any, counts: Any, begins: Any, left: Any, number: Any, blocks: Any, wide: Any, bits: Any) -> None:
    """Thread ``number`` of all counts the digits of keys at this distance from each other. Lanes with the digit of the first one of their
    wave are counted at once: other threads wait for those that add to the same number.
    """
    t = block.thread_idx()
    mine = block.SharedArray((static(bits.size), THREADS), i32)
    for d in static(range(bits.size)):
        mine[d, t] = 0
    block.sync()
    for step in range((keys.shape[0] - 1) // (blocks * static(THREADS * AT_ONCE)) + 1):
        first = step * blocks * static(THREADS * AT_ONCE) + number
        b = Vector([0 for _ in range(AT_ONCE)], dt=bits)
        for k in static(range(AT_ONCE)):
            b[k] = ordered(keys[min(first + k * blocks * THREADS, keys.shape[0] - 1)], wide, bits)
        for k in static(range(AT_ONCE)):
            there = first + k * blocks * THREADS < keys.shape[0]
            for d in static(range(bits.size)):
                digit = digit_of(b[k], static(8 * d), bits)
                lead = from_lane(digit, 0)
                same = _votes(there and digit == lead)
                if invocation_id() == 0:
                    mine[d, lead] += popcnt(same)
                elif there and digit != lead:
                    mine[d, digit] += 1
    block.sync()
    for d in static(range(bits.size)):
        if mine[d, t] > 0:
            counts[static(THREADS * d) + t] += mine[d, t]
    fence("grid")
    arrived = block.SharedArray(1, i32)
    block.sync()
    if t == 0:
        arrived[0] = atomic_add(left[0], 1)
    block.sync()
    if arrived[0] == blocks - 1:
        fence("grid")
        for d in static(range(bits.size)):
            begins[static(THREADS * d) + t] = _ahead_in_block(atomic_exchange(counts[static(THREADS * d) + t], 0))
        if t == 0:
            left[0] = 0


@kernel
def count(keys: Tensor, counts: Tensor, begins: Tensor, left: Tensor, blocks: int, wide: Template, bits: Template) -> None:
    """``begins`` = for each pass and digit, how many keys have a smaller one. ``counts`` and ``left`` are 0 before and after."""
    loop_config(block_dim=THREADS)
    for i in range(blocks * THREADS):
        _count(keys, counts, begins, left, i, blocks, wide, bits)


@func
def _same(digit: Any, there: Any) -> Any:
    """The lanes that have the digit of this one: of those that have a bit of it, or have it not, as this one does."""
    lanes = _votes(there)
    for bit in static(range(8)):
        found = _votes((digit >> bit) & 1)
        lanes = lanes & select((digit >> bit) & 1 != 0, found, ~found)
    return lanes


@func
def _ahead_of_digit(left: Any, tile: Any, total: Any, mark: Any) -> Any:
    """How many keys of the tiles before have the digit of this thread. A message is twice a number, and 1 if it counts all tiles before."""
    ahead, at = 0, tile - 1
    while at >= 0:
        words = Vector([0 for _ in range(AT_ONCE)], dt=u64)
        for j in static(range(AT_ONCE)):
            words[j] = volatile_load(left[1 + max(at - j, 0) * THREADS + block.thread_idx()])
        known = True
        for j in static(range(AT_ONCE)):
            known = known and at >= 0 and (words[j] & cast(0xFFFFFFFF, u64)) == mark
            if known:
                value = cast(words[j] >> cast(32, u64), i32)
                ahead += value >> 1
                at = select(value & 1 != 0, -1, at - 1)
    if tile > 0:
        leave(left, tile * THREADS + block.thread_idx(), 2 * (ahead + total) + 1, mark, u32)
    return ahead


@func
def _move(
    b: Any,
    index: Any,
    to_b: Any,
    to_index: Any,
    begins: Any,
    left: Any,
    tiles: Any,
    shift: Any,
    first: Any,
    with_keys: Any,
    with_index: Any,
    wide: Any,
    bits: Any,
) -> None:
    """A block moves its tile: in its own memory to the order of the digits, then each run of a digit to its place."""
    t, wave = block.thread_idx(), block.thread_idx() // group_size()
    counts = block.SharedArray((static(THREADS // group_size()), THREADS), i32)
    for w in static(range(THREADS // group_size())):
        counts[w, t] = 0
    tile, mark = take_tile(left, tiles)
    begin = tile * static(THREADS * 64 // bits.size)
    mine = begin + wave * static(64 // bits.size * group_size()) + invocation_id()
    keys = Vector([0 for _ in range(64 // bits.size)], dt=bits)
    ranks = Vector([0 for _ in range(64 // bits.size)], dt=i32)
    for k in static(range(64 // bits.size)):
        if mine + static(k * group_size()) < b.shape[0]:
            if static(first):
                keys[k] = ordered(b[mine + static(k * group_size())], wide, bits)
            else:
                keys[k] = b[mine + static(k * group_size())]
    for k in static(range(64 // bits.size)):
        there, digit = mine + static(k * group_size()) < b.shape[0], digit_of(keys[k], shift, bits)
        lanes, before = _same(digit, there), counts[wave, digit]
        ranks[k] = before + _before(lanes)
        sync()
        if there and ranks[k] == before:
            counts[wave, digit] = before + popcnt(lanes)
        sync()
    block.sync()
    total = 0
    for w in static(range(THREADS // group_size())):
        total += counts[w, t]
    leave(left, tile * THREADS + t, 2 * total + select(tile == 0, 1, 0), mark, u32)
    place = _ahead_in_block(total)
    to_place = block.SharedArray(THREADS, i32)
    to_place[t] = -place
    for w in static(range(THREADS // group_size())):
        here = counts[w, t]
        counts[w, t] = place
        place += here
    block.sync()
    moved = block.SharedArray(static(THREADS * 64 // bits.size), bits)
    moved_index = block.SharedArray(static(THREADS * 64 // bits.size if with_index else 1), i32)
    numbers = Vector([0 for _ in range(64 // bits.size)], dt=i32)  # all are read before one is waited for
    for k in static(range(64 // bits.size)):
        numbers[k] = mine + static(k * group_size())
        if static(with_index and not first):
            numbers[k] = index[min(mine + static(k * group_size()), b.shape[0] - 1)]
    for k in static(range(64 // bits.size)):
        if mine + static(k * group_size()) < b.shape[0]:
            at = counts[wave, digit_of(keys[k], shift, bits)] + ranks[k]
            moved[at] = keys[k]
            if static(with_index):
                moved_index[at] = numbers[k]
    to_place[t] += begins[shift * static(THREADS // 8) + t] + _ahead_of_digit(left, tile, total, mark)
    block.sync()
    for k in static(range(64 // bits.size)):
        at = static(k * THREADS) + t
        if begin + at < b.shape[0]:
            key = moved[at]
            to = to_place[digit_of(key, shift, bits)] + at
            if static(with_keys):
                to_b[to] = key
            if static(with_index):
                to_index[to] = moved_index[at]


@kernel
def move(
    b: Tensor,
    index: Tensor,
    to_b: Tensor,
    to_index: Tensor,
    begins: Tensor,
    left: Tensor,
    tiles: int,
    shift: int,
    first: Template,
    with_keys: Template,
    with_index: Template,
    wide: Template,
    bits: Template,
) -> None:
    """Move keys, their indices or both to the place of their digit. ``first``: ``b`` are the keys, and their indices ascend."""
    loop_config(block_dim=THREADS)
    for _ in range(tiles * THREADS):
        _move(b, index, to_b, to_index, begins, left, tiles, shift, first, with_keys, with_index, wide, bits)
