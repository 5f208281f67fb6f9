"""Sums, scans and sorting of the lanes of a subgroup, or of tiles of ``2**log2_size`` consecutive lanes of it.

The lanes that have no iteration are the last ones, and are left out. The order of the values is that of the lanes, always with the same
brackets, so that the bits are the same in every run. Reductions halve the distance to the first lane (a tree), scans double their reach.

W. D. Hillis, G. L. Steele, "Data parallel algorithms", CACM 29(12), 1986. K. E. Batcher, "Sorting networks and their applications", 1968.
"""

from __future__ import annotations

from typing import Any

from ...frontend.library.functions import cast as _cast
from ...frontend.library.functions import clz
from ...frontend.library.functions import max as _max
from ...frontend.library.functions import min as _min
from ...frontend.markers import static as _static
from ...frontend.markers import static_assert
from ...frontend.syntax.lanes import all_lanes, from_lane, group_size, invocation_id, log2_group_size, neutral, votes
from ...ir.types import u64
from ..function import Function, func


@func
def check_tile(log2_size: Any) -> None:
    """Refuse tiles that are no part of a subgroup."""
    static_assert(0 <= log2_size <= log2_group_size(), "a tile of 2**log2_size lanes is larger than a subgroup of this backend")


@func
def add(a: Any, b: Any) -> Any:
    """The sum."""
    return a + b


@func
def mul(a: Any, b: Any) -> Any:
    """The product."""
    return a * b


@func
def least(a: Any, b: Any) -> Any:
    """The smaller one."""
    return _min(a, b)


@func
def most(a: Any, b: Any) -> Any:
    """The larger one."""
    return _max(a, b)


@func
def and_bits(a: Any, b: Any) -> Any:
    """The conjunction of the bits."""
    return a & b


@func
def or_bits(a: Any, b: Any) -> Any:
    """The union of the bits."""
    return a | b


@func
def xor_bits(a: Any, b: Any) -> Any:
    """The exclusive union of the bits."""
    return a ^ b


@func
def reduce_tiled(value: Any, op: Any, log2_size: Any) -> Any:
    """The values of this lane and of those after it in the tile, combined by ``op``, an associative func of two values."""
    check_tile(log2_size)
    lane, there = invocation_id(), _cast(0, u64)
    if _static(not all_lanes()):
        there = votes(True)
    total = value
    for k in _static(range(log2_size)):
        other = lane + _static(1 << k)
        theirs = from_lane(total, other)
        inside = (lane & _static((1 << log2_size) - 1)) + _static(1 << k) < _static(1 << log2_size)
        if _static(not all_lanes()):
            inside = inside and (there >> _cast(other & (group_size() - 1), u64)) & 1 != 0
        if inside:
            total = op(total, theirs)
    return total


@func
def reduce_all_tiled(value: Any, op: Any, log2_size: Any) -> Any:
    """The values of all lanes of the tile combined by ``op``."""
    return from_lane(reduce_tiled(value, op, log2_size), invocation_id() & _static(-(1 << log2_size)))


@func
def inclusive_tiled(value: Any, op: Any, log2_size: Any) -> Any:
    """The values of this lane and of all before it in the tile, combined by ``op``."""
    check_tile(log2_size)
    lane, total = invocation_id(), value
    for k in _static(range(log2_size)):
        theirs = from_lane(total, lane - _static(1 << k))
        if (lane & _static((1 << log2_size) - 1)) >= _static(1 << k):
            total = op(theirs, total)
    return total


@func
def exclusive_tiled(value: Any, op: Any, first: Any, log2_size: Any) -> Any:
    """The values of all lanes before this one in the tile, combined by ``op``; ``first`` for the first lane."""
    out = from_lane(inclusive_tiled(value, op, log2_size), invocation_id() - 1)
    if invocation_id() & _static((1 << log2_size) - 1) == 0:
        out = first
    return out


@func
def segmented_tiled(value: Any, head_flag: Any, op: Any, log2_size: Any) -> Any:
    """The values from the last lane on whose ``head_flag`` is not 0, or from the first of the tile, up to this lane, combined by ``op``."""
    check_tile(log2_size)
    lane, heads, total = invocation_id(), votes(head_flag), value
    inside = lane & _static((1 << log2_size) - 1)
    up_to_here = (_cast(2, u64) << _cast(inside, u64)) - _cast(1, u64)
    seen = (heads >> _cast(lane - inside, u64)) & up_to_here | _cast(1, u64)
    length = inside - (63 - clz(seen))  # how many lanes of the segment come before this one
    for k in _static(range(log2_size)):
        theirs = from_lane(total, lane - _static(1 << k))
        if length >= _static(1 << k):
            total = op(theirs, total)
    return total


@func
def bitonic_sort_kv_tiled(key: Any, value: Any, log2_size: Any) -> Any:
    """The pairs of the tile in ascending order of their keys, of equal keys in that of their values: lane k has the k-th.

    Every lane must have an iteration.
    """
    check_tile(log2_size)
    lane, k, v = invocation_id(), key, value
    inside = lane & _static((1 << log2_size) - 1)
    for up in _static(range(1, log2_size + 1)):
        for down in _static(range(up - 1, -1, -1)):
            other_k = from_lane(k, lane ^ _static(1 << down))
            other_v = from_lane(v, lane ^ _static(1 << down))
            first = (inside & _static(1 << down) == 0) == ((inside & _static((1 << up) % (1 << log2_size))) == 0)
            less = other_k < k or (other_k == k and other_v < v)
            more = other_k > k or (other_k == k and other_v > v)
            if (first and less) or (not first and more):
                k, v = other_k, other_v
    return k, v


@func
def bitonic_sort_kv(key: Any, value: Any) -> Any:
    """``bitonic_sort_kv_tiled`` of the whole subgroup."""
    return bitonic_sort_kv_tiled(key, value, log2_group_size())


def named(name: str, text: str, fn: Function) -> Function:
    """The same function under a name and with a docstring."""
    vars(fn).update(__name__=name, __qualname__=name, __doc__=text)
    return fn


def reductions(code: str, op: Function, what: str) -> tuple[Function, Function, Function, Function]:
    """``reduce_..``, ``reduce_.._tiled``, ``reduce_all_..`` and ``reduce_all_.._tiled`` of an operation."""

    @func
    def whole(value: Any) -> Any:
        return reduce_tiled(value, op, log2_group_size())

    @func
    def tiled(value: Any, log2_size: Any) -> Any:
        return reduce_tiled(value, op, log2_size)

    @func
    def all_of(value: Any) -> Any:
        return reduce_all_tiled(value, op, log2_group_size())

    @func
    def all_tiled(value: Any, log2_size: Any) -> Any:
        return reduce_all_tiled(value, op, log2_size)

    return (
        named(f"reduce_{code}", f"The {what} of all lanes, in lane 0; each other lane gets that from itself on.", whole),
        named(
            f"reduce_{code}_tiled", f"The {what} of the tile, in its first lane; each other gets that from itself on.", tiled
        ),
        named(f"reduce_all_{code}", f"The {what} of all lanes of the subgroup.", all_of),
        named(f"reduce_all_{code}_tiled", f"The {what} of all lanes of the tile.", all_tiled),
    )


def scans(code: str, op: Function, what: str) -> tuple[Function, Function, Function, Function]:
    """``inclusive_..``, ``inclusive_.._tiled``, ``exclusive_..`` and ``exclusive_.._tiled`` of an operation."""

    @func
    def upto(value: Any) -> Any:
        return inclusive_tiled(value, op, log2_group_size())

    @func
    def upto_tiled(value: Any, log2_size: Any) -> Any:
        return inclusive_tiled(value, op, log2_size)

    @func
    def before(value: Any) -> Any:
        return exclusive_tiled(value, op, neutral(code, value), log2_group_size())

    @func
    def before_tiled(value: Any, log2_size: Any) -> Any:
        return exclusive_tiled(value, op, neutral(code, value), log2_size)

    none = f"the first one gets what changes no {what}."
    return (
        named(f"inclusive_{code}", f"The {what} of this lane and of all before it.", upto),
        named(f"inclusive_{code}_tiled", f"The {what} of this lane and of those before it in the tile.", upto_tiled),
        named(f"exclusive_{code}", f"The {what} of all lanes before this one; {none}", before),
        named(f"exclusive_{code}_tiled", f"The {what} of the lanes before this one in the tile; {none}", before_tiled),
    )


def segmented(code: str, op: Function, what: str) -> tuple[Function, Function]:
    """``segmented_reduce_..`` and ``segmented_reduce_.._tiled`` of an operation."""

    @func
    def whole(value: Any, head_flag: Any) -> Any:
        return segmented_tiled(value, head_flag, op, log2_group_size())

    @func
    def tiled(value: Any, head_flag: Any, log2_size: Any) -> Any:
        return segmented_tiled(value, head_flag, op, log2_size)

    since = "from the last lane on whose ``head_flag`` is not 0, or from the first of the"
    return (
        named(f"segmented_reduce_{code}", f"The {what} {since} subgroup, up to this lane.", whole),
        named(f"segmented_reduce_{code}_tiled", f"The {what} {since} tile, up to this lane.", tiled),
    )
