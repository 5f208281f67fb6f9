"""``qd.simt.subgroup``: what the threads of a subgroup do together.

A subgroup is ``group_size()`` consecutive threads of a block, and one iteration on a backend without blocks. All threads of the block call
an operation together, as they do ``simt.block.sync()``. Votes, sums and scans leave out lanes without an iteration (those of the last
block, past the end of the loop); what such a lane gives to a shuffle is undefined. Values are numbers of any type, or vectors and matrices
of them. ``_tiled`` forms do the same for each ``2**log2_size`` consecutive lanes.
"""

from __future__ import annotations

from typing import Any

from ...frontend.library.functions import cast as _cast
from ...frontend.library.functions import select as _select
from ...frontend.markers import static as _static
from ...frontend.syntax import lanes as _lanes
from ...frontend.syntax.lanes import fence as _fence
from ...frontend.syntax.lanes import from_lane as _from_lane
from ...frontend.syntax.lanes import invocation_id, sync
from ...frontend.syntax.lanes import offset as _offset
from ...frontend.syntax.lanes import votes as _votes
from ...ir.types import i32 as _i32
from ...ir.types import u32 as _u32
from ...ir.types import u64 as _u64
from ...program.program import current_program as _current_program
from ..function import func as _func
from . import tiles as _tiles
from .tiles import bitonic_sort_kv, bitonic_sort_kv_tiled
from .tiles import check_tile as _check_tile
from .tiles import reductions as _reductions
from .tiles import scans as _scans
from .tiles import segmented as _segmented


def group_size() -> int:
    """Threads of a subgroup, a compile-time value in kernels; elsewhere that of the program.

    Raises:
        QdrunRuntimeError: called outside of a kernel without a program.
    """
    device = _current_program().device
    return _lanes.size_of(not device.on_host, device.lanes)


def log2_group_size() -> int:
    """The binary logarithm of ``group_size()``."""
    return group_size().bit_length() - 1


vars(group_size)["__qd_marker__"] = _lanes.group_size  # what kernels call
vars(log2_group_size)["__qd_marker__"] = _lanes.log2_group_size


@_func
def mem_fence() -> None:
    """Other threads see what this thread has written before the fence, if they see what it writes after it."""
    _fence("block")


barrier, memory_barrier = sync, mem_fence


@_func
def elect() -> Any:
    """1 for lane 0, else 0 (i32)."""
    return _cast(invocation_id() == 0, _i32)


# -- values of other lanes
@_func
def shuffle(value: Any, index: Any) -> Any:
    """The value that lane ``index`` gives; lanes count modulo ``group_size()``."""
    return _from_lane(value, _offset(index))


@_func
def shuffle_xor(value: Any, mask: Any) -> Any:
    """The value of lane ``invocation_id() ^ mask``."""
    return _from_lane(value, invocation_id() ^ _offset(mask))


@_func
def shuffle_up(value: Any, offset: Any) -> Any:
    """The value of lane ``invocation_id() - offset``; of this lane, where there is none."""
    lane, back = invocation_id(), _offset(offset)
    return _from_lane(value, _select(back <= lane, lane - back, lane))


@_func
def shuffle_down(value: Any, offset: Any) -> Any:
    """The value of lane ``invocation_id() + offset``; of this lane, where there is none."""
    lane, on = invocation_id(), _offset(offset)
    return _from_lane(value, _select(on < _lanes.group_size() - lane, lane + on, lane))


@_func
def broadcast(value: Any, index: Any) -> Any:
    """The value that lane ``index`` gives."""
    return _from_lane(value, _offset(index))


@_func
def broadcast_first(value: Any) -> Any:
    """The value that lane 0 gives."""
    return _from_lane(value, 0)


# -- votes
@_func
def ballot(predicate: Any) -> Any:
    """A bit for each lane whose predicate is not 0 (u64)."""
    return _votes(predicate)


ballot_full_subgroup = ballot


@_func
def ballot_first_n(predicate: Any, n: Any) -> Any:
    """The bits of ``ballot`` of the first ``n`` lanes, 1 to 32, a compile-time value (u32)."""
    return _cast(_votes(predicate) & _static((1 << n) - 1), _u32)


@_func
def _tile_votes(predicate: Any, log2_size: Any) -> Any:
    """The bits of the lanes of this tile whose predicate is not 0, u64."""
    _check_tile(log2_size)
    found = _votes(predicate)
    if _static(log2_size < _lanes.log2_group_size()):
        first = invocation_id() & _static(-(1 << log2_size))
        found = (found >> _cast(first, _u64)) & _static((1 << (1 << log2_size)) - 1)
    return found


@_func
def all_true_tiled(predicate: Any, log2_size: Any) -> Any:
    """1 if the predicate is not 0 in any lane of the tile, else 0 (i32)."""
    return _cast(_tile_votes(predicate == 0, log2_size) == 0, _i32)


@_func
def any_true_tiled(predicate: Any, log2_size: Any) -> Any:
    """1 if the predicate is not 0 in some lane of the tile, else 0 (i32)."""
    return _cast(_tile_votes(predicate, log2_size) != 0, _i32)


@_func
def all_equal_tiled(value: Any, log2_size: Any) -> Any:
    """1 if all lanes of the tile have the same value, else 0 (i32)."""
    first = _from_lane(value, invocation_id() & _static(-(1 << log2_size)))
    return all_true_tiled(value == first, log2_size)


@_func
def all_true(predicate: Any) -> Any:
    """1 if the predicate is 0 in no lane of the subgroup, else 0 (i32)."""
    return all_true_tiled(predicate, _lanes.log2_group_size())


@_func
def any_true(predicate: Any) -> Any:
    """1 if the predicate is not 0 in some lane of the subgroup, else 0 (i32)."""
    return any_true_tiled(predicate, _lanes.log2_group_size())


@_func
def all_equal(value: Any) -> Any:
    """1 if all lanes of the subgroup have the same value, else 0 (i32)."""
    return all_equal_tiled(value, _lanes.log2_group_size())


# -- sets of the first 32 lanes
@_func
def lanemask_lt(lane_id: Any) -> Any:
    """The bits of the lanes below ``lane_id``, 0 to 31 (u32)."""
    return (_cast(1, _u32) << _cast(lane_id, _u32)) - _cast(1, _u32)


@_func
def lanemask_eq(lane_id: Any) -> Any:
    """The bit of lane ``lane_id``, 0 to 31 (u32)."""
    return _cast(1, _u32) << _cast(lane_id, _u32)


@_func
def lanemask_le(lane_id: Any) -> Any:
    """The bits of lane ``lane_id``, 0 to 31, and of those below (u32)."""
    return lanemask_lt(lane_id) | lanemask_eq(lane_id)


@_func
def lanemask_gt(lane_id: Any) -> Any:
    """The bits of the lanes above ``lane_id``, 0 to 31 (u32)."""
    return ~lanemask_le(lane_id)


@_func
def lanemask_ge(lane_id: Any) -> Any:
    """The bits of lane ``lane_id``, 0 to 31, and of those above (u32)."""
    return ~lanemask_lt(lane_id)


# -- sums and scans
reduce_add, reduce_add_tiled, reduce_all_add, reduce_all_add_tiled = _reductions("add", _tiles.add, "sum")
reduce_mul, reduce_mul_tiled, reduce_all_mul, reduce_all_mul_tiled = _reductions("mul", _tiles.mul, "product")
reduce_min, reduce_min_tiled, reduce_all_min, reduce_all_min_tiled = _reductions("min", _tiles.least, "least")
reduce_max, reduce_max_tiled, reduce_all_max, reduce_all_max_tiled = _reductions("max", _tiles.most, "greatest")
reduce_and, reduce_and_tiled, reduce_all_and, reduce_all_and_tiled = _reductions(
    "and", _tiles.and_bits, "conjunction of the bits"
)
reduce_or, reduce_or_tiled, reduce_all_or, reduce_all_or_tiled = _reductions("or", _tiles.or_bits, "union of the bits")
reduce_xor, reduce_xor_tiled, reduce_all_xor, reduce_all_xor_tiled = _reductions(
    "xor", _tiles.xor_bits, "exclusive union of the bits"
)
inclusive_add, inclusive_add_tiled, exclusive_add, exclusive_add_tiled = _scans("add", _tiles.add, "sum")
inclusive_mul, inclusive_mul_tiled, exclusive_mul, exclusive_mul_tiled = _scans("mul", _tiles.mul, "product")
inclusive_min, inclusive_min_tiled, exclusive_min, exclusive_min_tiled = _scans("min", _tiles.least, "least")
inclusive_max, inclusive_max_tiled, exclusive_max, exclusive_max_tiled = _scans("max", _tiles.most, "greatest")
inclusive_and, inclusive_and_tiled, exclusive_and, exclusive_and_tiled = _scans(
    "and", _tiles.and_bits, "conjunction of the bits"
)
inclusive_or, inclusive_or_tiled, exclusive_or, exclusive_or_tiled = _scans("or", _tiles.or_bits, "union of the bits")
inclusive_xor, inclusive_xor_tiled, exclusive_xor, exclusive_xor_tiled = _scans(
    "xor", _tiles.xor_bits, "exclusive union of the bits"
)
segmented_reduce_add, segmented_reduce_add_tiled = _segmented("add", _tiles.add, "sum")
segmented_reduce_min, segmented_reduce_min_tiled = _segmented("min", _tiles.least, "least")
segmented_reduce_max, segmented_reduce_max_tiled = _segmented("max", _tiles.most, "greatest")

_FORMS = ("reduce", "reduce_all", "inclusive", "exclusive")
_COMBINED = [
    *(f"{form}_{op}" for form in _FORMS for op in ("add", "mul", "min", "max", "and", "or", "xor")),
    *(f"segmented_reduce_{op}" for op in ("add", "min", "max")),
]

__all__ = [
    "all_equal",
    "all_equal_tiled",
    "all_true",
    "all_true_tiled",
    "any_true",
    "any_true_tiled",
    "ballot",
    "ballot_first_n",
    "ballot_full_subgroup",
    "barrier",
    "bitonic_sort_kv",
    "bitonic_sort_kv_tiled",
    "broadcast",
    "broadcast_first",
    "elect",
    "group_size",
    "invocation_id",
    "lanemask_eq",
    "lanemask_ge",
    "lanemask_gt",
    "lanemask_le",
    "lanemask_lt",
    "log2_group_size",
    "mem_fence",
    "memory_barrier",
    "shuffle",
    "shuffle_down",
    "shuffle_up",
    "shuffle_xor",
    "sync",
]
__all__ += [name + tile for name in _COMBINED for tile in ("", "_tiled")]  # pyright: ignore[reportUnsupportedDunderAll]
