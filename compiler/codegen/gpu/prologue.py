"""Chooses where the bounds of a task are computed: on the host, by every thread of the device, or by one thread before all others.

The host can where nothing is read from memory. Every thread of the device can where the task's own body cannot change what the prologue
reads. Else a function of one thread leaves the bounds in the scratch memory, before the task starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...ir.nodes import Axis, Buffer, Const, Operand, Print, Task
from ...ir.types import i64
from ...ir.walk import place_of, walk, written_places

if TYPE_CHECKING:
    from ..llvm.emitter import Emitter

Where = Literal["host", "thread", "before"]


def where(task: Task) -> Where:
    """The origin of the values of a task's prologue; literals are part of the code."""
    reads = [place_of(s) for s in walk(task.prologue)]
    read = {p.buffer for p in reads if p is not None}
    if any(isinstance(s, Print) for s in walk(task.prologue)):
        return "before"
    if not read:
        return "host"
    written = {p.buffer for p in written_places(task.body)} | {r.place.buffer for r in task.reductions}
    return "before" if any(_meet(a, b) for a in read for b in written) else "thread"


def wanted(task: Task) -> list[Operand]:
    """The values of the prologue that the task uses: bounds, begin before end, then the indices of its reductions."""
    bounds = [x for axis in task.axes for x in (axis.begin, axis.end)]
    return bounds + [x for r in task.reductions for x in r.index]


def _meet(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers may share memory. A caller may pass the same memory as two arguments, or a field's as an argument."""
    if "block" in (a.kind, b.kind):
        return False
    if "tmp" in a.kind or "tmp" in b.kind or "ret" in (a.kind, b.kind):
        return a.kind == b.kind
    if a.kind == b.kind == "field":
        return a is b
    return True


def constant(x: Operand) -> int | None:
    """The value of a literal."""
    return int(x.value) if isinstance(x, Const) else None


def literal_count(task: Task) -> int | None:
    """The number of iterations, where all bounds are literals."""
    n = 1
    for axis in task.axes:
        begin, end = constant(axis.begin), constant(axis.end)
        if begin is None or end is None:
            return None
        n *= max(0, end - begin)
    return n


def begin_and_size(e: Emitter, axis: Axis) -> tuple[str, str]:
    """The first index of an axis and how many there are, as i64; the difference of two 64-bit ends ends at those of its type."""
    begin, end = (e.convert(e.operand(x, False), x.dtype, i64, False) for x in (axis.begin, axis.end))
    difference = e.t(f"sub i64 {end}, {begin}")
    if (
        axis.index.dtype.bits == 64 and constant(axis.begin) != 0
    ):  # no saturating instruction: not every GPU has one for 64 bits
        e.module.declare("umin64", "declare i64 @llvm.umin.i64(i64, i64)")
        size = e.t(f"call i64 @llvm.umin.i64(i64 {difference}, i64 {2**63 - 1})")
        return begin, e.t(f"select i1 {e.t(f'icmp sgt i64 {end}, {begin}')}, i64 {size}, i64 0")
    e.module.declare("smax64", "declare i64 @llvm.smax.i64(i64, i64)")
    return begin, e.t(f"call i64 @llvm.smax.i64(i64 {difference}, i64 0)")
