"""``qd.simt.warp``: what a warp of 32 threads does together, on GPUs whose subgroups have 32 threads.

Votes look at the lanes of ``mask`` that have an iteration. All threads of the block call an operation together, as ``subgroup`` says; so
the mask of a shuffle and of ``sync`` says nothing.
"""

from __future__ import annotations

from typing import Any

from ...frontend.library.functions import cast as _cast
from ...frontend.library.functions import clz as _clz
from ...frontend.library.functions import select as _select
from ...frontend.syntax.lanes import from_lane as _from_lane
from ...frontend.syntax.lanes import sync as _sync
from ...frontend.syntax.lanes import votes as _votes
from ...frontend.syntax.lanes import warp as _warp
from ...ir.types import DType
from ...ir.types import f32 as _f32
from ...ir.types import i32 as _i32
from ...ir.types import u32 as _u32
from ..function import Function
from ..function import func as _func
from . import subgroup as _subgroup
from .tiles import named as _named


@_func
def _of(mask: Any, predicate: Any) -> Any:
    """The bits of the lanes of a mask whose predicate is not 0, u32."""
    return _cast(_votes(predicate), _u32) & _cast(mask, _u32)


@_func
def all_nonzero(mask: Any, predicate: Any) -> Any:
    """1 if the predicate is 0 in no lane of the mask, else 0 (i32)."""
    _warp("all_nonzero")
    return _cast(_of(mask, predicate == 0) == 0, _i32)


@_func
def any_nonzero(mask: Any, predicate: Any) -> Any:
    """1 if the predicate is not 0 in some lane of the mask, else 0 (i32)."""
    _warp("any_nonzero")
    return _cast(_of(mask, predicate) != 0, _i32)


@_func
def unique(mask: Any, predicate: Any) -> Any:
    """1 if the predicate is 0 in all lanes of the mask, or in none, else 0 (i32)."""
    _warp("unique")
    return _cast((_of(mask, predicate) == 0) | (_of(mask, predicate == 0) == 0), _i32)


@_func
def ballot(predicate: Any) -> Any:
    """A bit for each lane whose predicate is not 0 (u32)."""
    _warp("ballot")
    return _cast(_votes(predicate), _u32)


@_func
def active_mask() -> Any:
    """The bits of the lanes that have an iteration (u32)."""
    _warp("active_mask")
    return _cast(_votes(True), _u32)


@_func
def match_any(mask: Any, value: Any) -> Any:
    """The bits of the lanes of the mask that have the value of this lane (u32)."""
    _warp("match_any")
    found = _cast(0, _u32)
    for k in range(32):
        if _from_lane(value, k) == value:
            found |= _cast(1, _u32) << _cast(k, _u32)
    return found & _of(mask, True)


@_func
def match_all(mask: Any, val: Any) -> Any:
    """The bits of the lanes of the mask if all of them have the same value, else 0 (u32)."""
    _warp("match_all")
    there = _of(mask, True)
    lowest = there & (~there + _cast(1, _u32))
    differs = val != _from_lane(val, 31 - _clz(lowest))
    return _select(_of(there, differs) == 0, there, _cast(0, _u32))


@_func
def sync(mask: Any) -> None:
    """A barrier of the warp."""
    _warp("sync")
    _sync()


def _shuffle(name: str, dtype: DType, move: Function, text: str) -> Function:
    """``shfl_..`` of numbers of a type."""

    @_func
    def shuffled(mask: Any, val: Any, offset: Any) -> Any:
        _warp(name)
        return move(_cast(val, dtype), offset)

    return _named(name, f"The {dtype} {text}", shuffled)


_GIVEN = "that lane ``offset`` gives; lanes count modulo 32."
_BELOW = "of the lane ``offset`` below this one; of this lane, where there is none."
_ABOVE = "of the lane ``offset`` above this one; of this lane, where there is none."
_BESIDE = "of the lane whose number differs from that of this lane in the bits of ``offset``."
shfl_sync_i32 = _shuffle("shfl_sync_i32", _i32, _subgroup.shuffle, _GIVEN)
shfl_sync_f32 = _shuffle("shfl_sync_f32", _f32, _subgroup.shuffle, _GIVEN)
shfl_up_i32 = _shuffle("shfl_up_i32", _i32, _subgroup.shuffle_up, _BELOW)
shfl_up_f32 = _shuffle("shfl_up_f32", _f32, _subgroup.shuffle_up, _BELOW)
shfl_down_i32 = _shuffle("shfl_down_i32", _i32, _subgroup.shuffle_down, _ABOVE)
shfl_down_f32 = _shuffle("shfl_down_f32", _f32, _subgroup.shuffle_down, _ABOVE)
shfl_xor_i32 = _shuffle("shfl_xor_i32", _i32, _subgroup.shuffle_xor, _BESIDE)

__all__ = [
    "active_mask",
    "all_nonzero",
    "any_nonzero",
    "ballot",
    "match_all",
    "match_any",
    "shfl_down_f32",
    "shfl_down_i32",
    "shfl_sync_f32",
    "shfl_sync_i32",
    "shfl_up_f32",
    "shfl_up_i32",
    "shfl_xor_i32",
    "sync",
    "unique",
]
