"""Tiles of an array in one launch, on GPUs whose waves exchange values: a block takes a tile, and waits for what lies ahead of it.

Blocks take tiles by a counter, in ascending order: the tiles ahead of a block's are done, or blocks that run have them, so that waiting
ends. A block leaves the sum of its tile before it waits for others. The tiles of a group, one for each thread of a block, are added up
in the order of the tiles, after what lies ahead of the group: the brackets, and so the bits, are the same in each run.

A message between blocks is a word of 8 bytes: half is the number of the launch, half is the value, so that one atomic says both. Values of
8 bytes take two words. Nothing is cleared between launches: half of the counter is the number of the launch, the other half of the tile.

D. Merrill, M. Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016.
"""

from __future__ import annotations

from typing import Any

from ...compiler.extend import block, group_size, log2_group_size, reduce_tiled, scratch
from ...compiler.face import (
    atomic_add,
    atomic_exchange,
    bit_cast,
    cast,
    current_program,
    func,
    i32,
    static,
    u32,
    u64,
    volatile_load,
)
from .arrays import differentiated

__qd_wraps__ = True  # see FunctionSource.wraps

FEWEST = 256
"""Up to so many elements one thread is as fast."""

THREADS = 256
"""Threads of a block, tiles of a group, and values of a digit of 8 bits."""


def can_meet() -> bool:
    """Whether the threads of a block may wait for each other: those of a batch cannot, and a check may end an iteration early."""
    program = current_program()
    o = program.options
    return not program.batch.layout.batched and not (o.debug or o.check_out_of_bound or o.overflow_check or o.nan_check)


def usable(n: int, *arrays: Any) -> bool:
    """Whether these kernels take ``n`` elements on the device of the program: there is work for more than a thread, its lanes exchange
    values, its blocks can meet, and no derivative is asked for.
    """
    return FEWEST < n < 1 << 30 and current_program().device.lanes > 0 and can_meet() and not differentiated(*arrays)


def messages(what: str, tiles: int, each: int = 1, words: int = 1) -> Any:
    """The counter, and the words that tiles leave: ``each`` values of a tile, and as many of each group."""
    return scratch(what, 1 + (tiles + -(-tiles // THREADS)) * each * words, u64)


@func
def take_tile(left: Any, tiles: Any) -> Any:
    """The next tile (i32), and the mark of the messages of this launch (u64), for all threads of the block."""
    taken = block.SharedArray(1, u64)
    if block.thread_idx() == 0:
        taken[0] = atomic_add(left[0], cast(1, u64))
        if cast(cast(taken[0], u32), i32) == tiles - 1:  # the last one: the next launch begins with tile 0
            atomic_exchange(left[0], ((taken[0] >> cast(32, u64)) + cast(1, u64)) << cast(32, u64))
    block.sync()
    return cast(cast(taken[0], u32), i32), cast(cast((taken[0] >> cast(32, u64)) + cast(1, u64), u32), u64)


@func
def leave(left: Any, place: Any, value: Any, mark: Any, bits: Any) -> None:
    """Leave a value, of the type of whose bits is ``bits``, at a place of the messages."""
    b = bit_cast(value, bits)
    for h in static(range(bits.size // 4)):
        half = cast(cast(b >> cast(32 * h, bits), u32), u64) if static(bits.size == 8) else cast(b, u64)
        atomic_exchange(left[1 + place * static(bits.size // 4) + h], (half << cast(32, u64)) | mark)


@func
def wait_for(left: Any, place: Any, mark: Any, dtype: Any, bits: Any) -> Any:
    """The value that another block leaves at a place in this launch."""
    b = cast(0, bits)
    for h in static(range(bits.size // 4)):
        word = volatile_load(left[1 + place * static(bits.size // 4) + h])
        while (word & cast(0xFFFFFFFF, u64)) != mark:
            word = volatile_load(left[1 + place * static(bits.size // 4) + h])
        b = b | (cast(word >> cast(32, u64), bits) << cast(static(32 * h), bits))
    return bit_cast(b, dtype)


@func
def reduced(value: Any, op: Any, dtype: Any) -> Any:
    """The values of all threads of the block combined, in all of them. Every thread has an iteration."""
    t = block.thread_idx()
    parts = block.SharedArray(static(THREADS // group_size()), dtype)
    total: dtype = value  # pyright: ignore[reportInvalidTypeForm]
    total = reduce_tiled(total, op, log2_group_size())
    if t % group_size() == 0:
        parts[t // group_size()] = total
    block.sync()
    whole = parts[0]
    for w in static(range(1, THREADS // group_size())):
        whole = op(whole, parts[w])
    return whole


@func
def ahead_of(left: Any, tile: Any, tiles: Any, mark: Any, whole: Any, op: Any, start: Any, dtype: Any, bits: Any) -> Any:
    """What lies ahead of a tile, combined. ``whole``: that of the tile, which others wait for."""
    t, group = block.thread_idx(), tile // THREADS
    if t == 0:
        leave(left, tile, whole, mark, bits)
    mine = cast(start, dtype)
    if group * THREADS + t < tile:
        mine = wait_for(left, group * THREADS + t, mark, dtype, bits)
    elif t == THREADS - 1 and group > 0:
        mine = wait_for(left, tiles + group - 1, mark, dtype, bits)
    ahead = reduced(mine, op, dtype)
    if t == 0 and tile % THREADS == THREADS - 1:
        leave(left, tiles + group, op(ahead, whole), mark, bits)
    return ahead
