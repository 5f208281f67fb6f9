"""``qd.simt.block``: blocks of threads, the memory that they share, barriers, and what is made of these: sums, scans, votes.

Sums and the like count the threads that have an iteration. They are called by all threads of a block together, as ``sync()`` is, and their
order is always the same, so that their bits are.
"""

from __future__ import annotations

from typing import Any, Literal

from ...frontend.library.functions import cast as _cast
from ...frontend.library.functions import popcnt as _popcnt
from ...frontend.markers import atomic_max, static, static_assert
from ...frontend.syntax.block import SharedArray, block_size, global_thread_idx, sync, thread_idx
from ...frontend.syntax.lanes import all_lanes, exchanges, group_size, invocation_id, log2_group_size
from ...frontend.syntax.lanes import fence as _fence
from ...frontend.syntax.lanes import votes as _votes
from ...ir.meaning import identity as _identity
from ...ir.types import i32
from ...ir.types import u64 as _u64
from ..function import Function, func
from .tiles import add as _add
from .tiles import inclusive_tiled, reduce_tiled
from .tiles import least as _least
from .tiles import most as _most
from .tiles import named as _named


@func
def reduce_all(value: Any, block_dim: Any, op: Any, dtype: Any) -> Any:
    """The values of all threads of the block combined by ``op``, an associative func of two values, in the order of the threads.

    ``block_dim``: that of the loop; ``dtype``: the type of the values.
    """
    static_assert(block_dim == block_size(), "block_dim is not that of the loop around")
    return _subgroups_reduced(value, op, dtype) if static(exchanges()) else _threads_reduced(value, block_dim, op, dtype)


@func
def _subgroups_reduced(value: Any, op: Any, dtype: Any) -> Any:
    """``reduce_all`` where lanes exchange values: each subgroup combines its own, and all threads what these have."""
    size, mine = static(block_size() // group_size()), thread_idx() // group_size()
    parts, count = SharedArray(size, dtype), SharedArray(1, i32)
    own: dtype = value  # pyright: ignore[reportInvalidTypeForm]
    own = reduce_tiled(own, op, log2_group_size())
    sync()  # the last use of these arrays is over
    if static(not all_lanes()):
        if thread_idx() == 0:
            count[0] = 0
        sync()
    if invocation_id() == 0:
        parts[mine] = own
        if static(not all_lanes()):
            atomic_max(count[0], mine + 1)
    sync()
    whole = parts[0]
    for w in range(1, size if static(all_lanes()) else count[0]):
        whole = op(whole, parts[w])
    return whole


@func
def _threads_reduced(value: Any, block_dim: Any, op: Any, dtype: Any) -> Any:
    """``reduce_all`` through memory: a tree of the values of all threads."""
    parts, count = SharedArray(block_dim, dtype), SharedArray(1, i32)
    t = thread_idx()
    sync()  # the last use of these arrays is over
    parts[t] = value
    if t == 0:
        count[0] = 0
    sync()
    atomic_max(count[0], t + 1)
    reach = 1
    while reach < block_dim:
        sync()
        if t % (2 * reach) == 0 and t + reach < count[0]:
            parts[t] = op(parts[t], parts[t + reach])
        reach *= 2
    sync()
    return parts[0]


@func
def reduce(value: Any, block_dim: Any, op: Any, dtype: Any) -> Any:
    """As ``reduce_all``: every thread gets the result."""
    return reduce_all(value, block_dim, op, dtype)


def _reduction(code: str, op: Function, what: str) -> Function:
    """``reduce_all_..`` of an operation."""

    @func
    def reduced(value: Any, block_dim: Any, dtype: Any) -> Any:
        return reduce_all(value, block_dim, op, dtype)

    return _named(f"reduce_all_{code}", f"The {what} of the values of all threads of the block.", reduced)


reduce_all_add = _reduction("add", _add, "sum")
reduce_all_min = _reduction("min", _least, "least")
reduce_all_max = _reduction("max", _most, "greatest")
reduce_add, reduce_min, reduce_max = reduce_all_add, reduce_all_min, reduce_all_max


@func
def inclusive_scan(value: Any, block_dim: Any, op: Any, dtype: Any) -> Any:
    """The values of this thread and of all before it in the block, combined by ``op``, an associative func of two values."""
    static_assert(block_dim == block_size(), "block_dim is not that of the loop around")
    return _subgroups_scanned(value, op, dtype) if static(exchanges()) else _threads_scanned(value, block_dim, op, dtype)


@func
def _subgroups_scanned(value: Any, op: Any, dtype: Any) -> Any:
    """``inclusive_scan`` where lanes exchange values: that of each subgroup, after what the subgroups before it have."""
    mine = thread_idx() // group_size()
    parts = SharedArray(static(block_size() // group_size()), dtype)
    total: dtype = value  # pyright: ignore[reportInvalidTypeForm]
    total = inclusive_tiled(total, op, log2_group_size())
    sync()  # the last use of the array is over
    if invocation_id() == group_size() - 1:
        parts[mine] = total
    sync()
    if mine > 0:
        ahead = parts[0]
        for w in range(1, mine):
            ahead = op(ahead, parts[w])
        total = op(ahead, total)
    return total


@func
def _threads_scanned(value: Any, block_dim: Any, op: Any, dtype: Any) -> Any:
    """``inclusive_scan`` through memory: every thread doubles its reach."""
    parts = SharedArray(block_dim, dtype)
    t = thread_idx()
    sync()  # the last use of the array is over
    parts[t] = value
    reach = 1
    while reach < block_dim:
        sync()
        total = parts[t]
        if t >= reach:
            total = op(parts[t - reach], total)
        sync()
        parts[t] = total
        reach *= 2
    return parts[t]


@func
def exclusive_scan(value: Any, block_dim: Any, op: Any, identity: Any, dtype: Any) -> Any:
    """The values of all threads before this one in the block, combined by ``op``; ``identity`` for the first one."""
    static_assert(block_dim == block_size(), "block_dim is not that of the loop around")
    sums = SharedArray(block_dim, dtype)
    t = thread_idx()
    mine = inclusive_scan(value, block_dim, op, dtype)
    sync()
    sums[t] = mine
    sync()
    out = mine
    if t == 0:
        out = identity
    else:
        out = sums[t - 1]
    return out


def _scans(code: Literal["add", "min", "max"], op: Function, what: str, neutral: str = "") -> tuple[Function, Function]:
    """``inclusive_..`` and ``exclusive_..`` of an operation. ``neutral``: what the first thread gets of the latter, in words."""

    @func
    def upto(value: Any, block_dim: Any, dtype: Any) -> Any:
        return inclusive_scan(value, block_dim, op, dtype)

    @func
    def before(value: Any, block_dim: Any, dtype: Any) -> Any:
        return exclusive_scan(value, block_dim, op, _identity(code, dtype), dtype)

    first = f"; for the first one {neutral} of the type" if neutral else ""
    return (
        _named(f"inclusive_{code}", f"The {what} of the values of this thread and of all before it in the block.", upto),
        _named(f"exclusive_{code}", f"The {what} of the values of all threads before this one in the block{first}.", before),
    )


inclusive_add, exclusive_add = _scans("add", _add, "sum")
inclusive_min, exclusive_min = _scans("min", _least, "least", "the greatest number")
inclusive_max, exclusive_max = _scans("max", _most, "greatest", "the least number")


@func
def radix_rank_match_atomic_or(
    key: Any, block_dim: Any, radix_bits: Any, bit_start: Any, num_bits: Any, bins: Any, excl_prefix: Any
) -> Any:
    """The place of this thread's key (u32) among those of the block, sorted by a digit of it; equal digits keep their order (i32).

    Every thread has an iteration. The digit begins at bit ``bit_start`` and has ``num_bits`` bits, at most ``radix_bits``; ``block_dim`` is
    2**radix_bits. ``bins`` and ``excl_prefix`` are shared arrays of as many i32: keys of each digit, and of the digits before it.
    """
    static_assert(block_dim == 1 << radix_bits, "block_dim is not 2**radix_bits: each thread counts the keys of one digit")
    size = static(block_size() // group_size() if block_size() > group_size() else 1)
    counts = SharedArray((size, block_dim), i32)
    t = thread_idx()
    mine, lane = t // group_size(), invocation_id()
    digit = _cast((key >> bit_start) & static((1 << num_bits) - 1), i32)
    alike = _votes(True)
    for k in static(range(num_bits)):
        ones = _votes((digit >> k) & 1)
        alike &= ones if (digit >> k) & 1 else ~ones
    before = _popcnt(alike & ((_cast(1, _u64) << _cast(lane, _u64)) - _cast(1, _u64)))
    sync()  # the last use of these arrays is over
    for w in static(range(size)):
        counts[w, t] = 0
    sync()
    if before == 0:
        counts[mine, digit] = _cast(_popcnt(alike), i32)
    sync()
    total = 0
    for w in static(range(size)):
        own = counts[w, t]
        counts[w, t] = total  # of the subgroups before
        total += own
    first = exclusive_add(total, block_dim, i32)
    bins[t], excl_prefix[t] = total, first
    sync()
    return excl_prefix[digit] + counts[mine, digit] + _cast(before, i32)


@func
def mem_fence() -> None:
    """The other threads of the block see what this thread has written before the fence, if they see what it writes after it."""
    _fence("block")


mem_sync = mem_fence


@func
def sync_count_nonzero(predicate: Any) -> Any:
    """A barrier; for how many threads of the block the predicate is not 0 (i32)."""
    return reduce_all(_cast(predicate != 0, i32), block_size(), _add, i32)


@func
def sync_any_nonzero(predicate: Any) -> Any:
    """A barrier; 1 if the predicate is not 0 for some thread of the block, else 0 (i32)."""
    return reduce_all(_cast(predicate != 0, i32), block_size(), _most, i32)


@func
def sync_all_nonzero(predicate: Any) -> Any:
    """A barrier; 1 if the predicate is not 0 for all threads of the block, else 0 (i32)."""
    return reduce_all(_cast(predicate != 0, i32), block_size(), _least, i32)


__all__ = [
    "SharedArray",
    "block_size",
    "exclusive_add",
    "exclusive_max",
    "exclusive_min",
    "exclusive_scan",
    "global_thread_idx",
    "inclusive_add",
    "inclusive_max",
    "inclusive_min",
    "inclusive_scan",
    "mem_fence",
    "mem_sync",
    "radix_rank_match_atomic_or",
    "reduce",
    "reduce_add",
    "reduce_all",
    "reduce_all_add",
    "reduce_all_max",
    "reduce_all_min",
    "reduce_max",
    "reduce_min",
    "sync",
    "sync_all_nonzero",
    "sync_any_nonzero",
    "sync_count_nonzero",
    "thread_idx",
]
