"""Values of other threads of a wave, in any type."""

from __future__ import annotations

from ...ir.types import DType, u1
from .hardware import GridFn


def from_lane(e: GridFn, d: DType, value: str, lane: str, mask: str) -> str:
    """The value that a lane of a mask has, all of which come here; 4 bytes at a time."""
    ty, bits = e.ty(d, False), "i1" if d is u1 else f"i{d.bits}"
    raw = e.t(f"bitcast {ty} {value} to {bits}") if d.is_real else value
    if bits == "i64":
        low, high = e.t(f"trunc i64 {raw} to i32"), e.t(f"trunc i64 {e.t(f'lshr i64 {raw}, 32')} to i32")
        low, high = (e.t(f"zext i32 {e.hardware.from_lane(e, mask, x, lane)} to i64") for x in (low, high))
        out = e.t(f"or i64 {low}, {e.t(f'shl i64 {high}, 32')}")
    elif bits == "i32":
        out = e.hardware.from_lane(e, mask, raw, lane)
    else:
        out = e.hardware.from_lane(e, mask, e.t(f"zext {bits} {raw} to i32"), lane)
        out = e.t(f"trunc i32 {out} to {bits}")
    return e.t(f"bitcast {bits} {out} to {ty}") if d.is_real else out
