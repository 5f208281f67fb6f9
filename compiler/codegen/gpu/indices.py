"""The indices of an iteration of a device function, of 32 bits where they fit."""

from __future__ import annotations

from ...ir.types import DType
from .grid.emitter import GridEmitter
from .prologue import literal_count

_NARROW_COUNT = (1 << 31) - (1 << 24)  # a thread's next iteration is at most 2**24 threads away


def is_narrow(e: GridEmitter, begins: list[str]) -> bool:
    """Whether iterations and indices fit into i32, which is known of literal bounds."""
    count = literal_count(e.task)
    if count is None or count > _NARROW_COUNT or (e.task.stacks and e.task.parallel):
        return False
    return all(abs(int(b)) + count <= _NARROW_COUNT for b in begins)


def start_iteration(e: GridEmitter, now: str, ty: str, begins: list[str], sizes: list[str]) -> None:
    """The iteration's number taken apart, the last axis fastest. A literal size becomes a multiplication; LLVM divides in 32 bits where
    both numbers are small.
    """
    e.iteration = (now if ty == "i64" else e.t(f"zext i32 {now} to i64"), False)
    left, nsw = now, "" if e.meeting is not None else "nsw "  # a thread without an iteration may be past the end of the type
    for k in range(len(e.task.axes) - 1, -1, -1):
        axis = e.task.axes[k]
        relative = left
        if k:
            relative, left = e.t(f"urem {ty} {left}, {sizes[k]}"), e.t(f"udiv {ty} {left}, {sizes[k]}")
        index = relative if begins[k] == "0" else e.t(f"add {nsw}{ty} {relative}, {begins[k]}")
        wide = index if ty == "i64" else e.t(f"sext i32 {index} to i64")
        e.wide[axis.index] = wide
        e.values[axis.index] = (_narrowed(e, axis.index.dtype, index, ty, wide), False)


def _narrowed(e: GridEmitter, d: DType, index: str, ty: str, wide: str) -> str:
    """An index in its own type: bounds of that type enclose it, so the truncation loses nothing."""
    if d.bits == 64:
        return wide
    if d.bits == 32 and ty == "i32":
        return index
    flag = "" if e.meeting is not None else "nuw " if d.kind == "u" else "nsw "
    return e.t(f"trunc {flag}{ty} {index} to {e.ty(d, False)}")
