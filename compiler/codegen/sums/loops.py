"""Serial loops that add to variables, as vectors: ``LoopOrder`` says what their iterations have in common.

An addition of reals waits for the last one, and LLVM does not reorder them. So a loop is written as two, a block of iterations at a time:
one computes the values that are added, in vectors, and stores them to buffers; the other one adds them up, in the order of the iterations.
So are sums in memory whose elements may be the same.
"""

from __future__ import annotations

from ...ir.nodes import Loop, LoopOrder, Op
from ...ir.types import i64
from ..llvm import arith, memory
from ..llvm.function import IN_PARALLEL, PARALLEL
from ..llvm.in_order import counting
from ..llvm.task_emitter import TaskEmitter
from .ordered_adds import OrderedAdds

_NUMBERS = 1024
"""Numbers in all buffers of a loop, about."""


def emit_loop(e: TaskEmitter, s: Loop, order: LoopOrder) -> None:
    """The loop, block by block."""
    d = s.index.dtype
    assert s.end is not None
    begin, end = e.operand(s.begin, False), e.operand(s.end, False)
    low, high = (begin, end) if s.step > 0 else (end, begin)
    some, block, out = e.label("some"), e.label("block"), e.label("out")
    e.branch(arith.compare(e, "lt", d, False, low, high), some, out)
    e.at(some)
    count = e.t(f"sub i64 {e.convert(high, d, i64, False)}, {e.convert(low, d, i64, False)}")
    adds = OrderedAdds(e, order.adds, s.body, s.index)
    steps = [step for x in order.sums for step in x.steps]
    size = max(16, _NUMBERS // max(1, len(steps) + len(adds.kept)))
    adds.make_room(size)
    buffers = {x: e.slot(f"[{size} x {e.ty(x.dtype, False)}]") for x, _ in steps}
    done = e.slot("i64")
    e.put(f"store i64 0, ptr {done}")
    e.jump(block)
    e.at(block)
    e.module.declare("llvm.umin.i64", "declare i64 @llvm.umin.i64(i64, i64)")
    before = e.t(f"load i64, ptr {done}")
    left = e.t(f"sub i64 {count}, {before}")
    number = e.t(f"call i64 @llvm.umin.i64(i64 {left}, i64 {size})")
    with counting(e, number, PARALLEL) as k:
        _set_index(e, s, begin, before, k)
        _values(e, s, order, buffers, adds, k)
    with counting(e, number) as k:
        if adds.any:
            _set_index(e, s, begin, before, k)
            adds.add(k)
        _sums(e, order, buffers, k)
    following = e.t(f"add nuw i64 {before}, {number}")
    e.put(f"store i64 {following}, ptr {done}")
    e.branch(e.t(f"icmp ult i64 {following}, {count}"), block, out)
    e.at(out)


def _set_index(e: TaskEmitter, s: Loop, begin: str, before: str, k: str) -> None:
    """The index of the iteration with a number in its block."""
    d, ty = s.index.dtype, e.ty(s.index.dtype, False)
    at = e.convert(e.t(f"add nsw i64 {before}, {k}"), i64, d, False)
    e.values[s.index] = (e.t(f"{'add' if s.step > 0 else 'sub'} {ty} {begin}, {at}"), False)


def _values(e: TaskEmitter, s: Loop, order: LoopOrder, buffers: dict[Op, str], adds: OrderedAdds, k: str) -> None:
    """An iteration without its sums, whose values it stores."""
    apart = {id(part) for x in order.sums for part in (x.load, *x.updates, x.store)}
    outer, e.access = e.access, IN_PARALLEL
    waiting, e.waiting = e.waiting, adds
    e.block([x for x in s.body if id(x) not in apart])
    for x, place in (step for one in order.sums for step in one.steps):
        where = e.t(f"getelementptr {e.ty(x.dtype, False)}, ptr {buffers[x]}, i64 {k}")
        memory.write(e, x.dtype, e.operand(x.args[1 - place], False), where, "uniform", x.dtype.size)
    adds.keep(k)
    e.access, e.waiting = outer, waiting


def _sums(e: TaskEmitter, order: LoopOrder, buffers: dict[Op, str], k: str) -> None:
    """The sums of an iteration."""
    for one in order.sums:
        slot = e.local(one.store.local)
        total = e.t(f"load {e.ty(one.load.dtype, False)}, ptr {slot}")
        for x, place in one.steps:
            ty = e.ty(x.dtype, False)
            value = e.t(f"load {ty}, ptr {e.t(f'getelementptr {ty}, ptr {buffers[x]}, i64 {k}')}")
            args = [total, value] if place == 0 else [value, total]
            total = arith.pure(e, Op(x.op, x.args, x.dtype), args, False)
        e.put(f"store {e.ty(one.load.dtype, False)} {total}, ptr {slot}")
