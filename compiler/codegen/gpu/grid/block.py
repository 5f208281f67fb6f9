"""Loops whose threads meet: barriers, and memory that the threads of a block share.

Iteration n is thread ``n % block`` of block ``n // block``, and a block takes all of its iterations at the same time. In the last block,
threads may have no iteration. They come to every barrier like the others, and do nothing else: the statements of a block of code that has
a barrier in it run one by one, and those that touch memory under the condition that the thread has an iteration. What decides whether
a barrier is reached must therefore be the same for all threads of a block.

A failed iteration becomes one of these threads, so that the others do not wait for it for ever.
"""

from __future__ import annotations

from ....ir.nodes import Assert, Block, GlobalStore, If, Local, LocalStore, Loop, Op, Stmt
from ....ir.ops import TABLE
from ....ir.walk import holds_lanes, is_fence, meets, place_of
from ..barriers import BlockCooperation
from ..indices import is_narrow, start_iteration
from .emitter import GridEmitter


def run(e: GridEmitter, s: Stmt, m: BlockCooperation, alone: bool) -> None:
    """Emit one statement of a block of code that all threads execute. ``alone``: those of a wave do, perhaps without the others."""
    if e.part and not alone and isinstance(s, (If, Loop)) and id(_inner(s)) in m.waves:
        _by_waves(e, s)
        return
    if not e.part or _harmless(s, m, alone):
        e.statement(s)
        return
    inside, skip = e.label("active"), e.label("passive")
    value = e.slot(e.ty(s.dtype, False)) if isinstance(s, Op) else ""
    if value:
        assert isinstance(s, Op)
        e.put(f"store {e.ty(s.dtype, False)} zeroinitializer, ptr {value}")
    e.branch(e.is_active(), inside, skip)
    e.at(inside)
    e.way_out = skip
    e.statement(s)
    e.way_out = ""
    if value:
        assert isinstance(s, Op)
        e.put(f"store {e.ty(s.dtype, False)} {e.operand(s, False)}, ptr {value}")
    e.jump(skip)
    e.at(skip)
    if value:
        assert isinstance(s, Op)
        e.values[s] = (e.t(f"load {e.ty(s.dtype, False)}, ptr {value}"), False)


def _inner(s: If | Loop) -> Block:
    return s.then if isinstance(s, If) else s.body


def _by_waves(e: GridEmitter, s: If | Loop) -> None:
    """Emit what a wave runs without the others of its block. One without an iteration leaves it out: it might never end."""
    inside, skip = e.label("wave"), e.label("idle")
    some = e.hardware.ballot(e, "-1", e.is_active())
    e.branch(e.t(f"icmp ne {e.ty(e.target.mask, False)} {some}, 0"), inside, skip)
    e.at(inside)
    e.statement(s)
    e.jump(skip)
    e.at(skip)


def _harmless(s: Stmt, m: BlockCooperation, alone: bool) -> bool:
    """Whether threads without an iteration run a statement: it has no memory access, or is the same in all threads of the block, one of
    which has an iteration (a wave alone may have none), or belongs to an exchange, in which all threads take part.
    """
    match s:
        case If():
            return id(s.then) in m.open
        case Loop():
            return id(s.body) in m.open
        case GlobalStore():
            return holds_lanes(s.place)
        case Op(op="gload"):
            return holds_lanes(place_of(s)) or (not alone and all(map(m.same, s.args)))
        case Op():
            return s.op == "load" or meets(s) or is_fence(s) or TABLE[s.op].pure
        case Assert():
            return not alone and m.same(s.cond)
        case LocalStore():
            return True
    return False


def iterations(
    e: GridEmitter, m: BlockCooperation, unset: list[Local], begins: list[str], sizes: list[str], count: str
) -> None:
    """Block after block, each with all of its threads; where the grid has as many blocks as there are, each takes one."""
    threads, body, out = e.threads_of_block, e.label("block"), e.label("done")
    ty = "i32" if is_narrow(e, begins) else "i64"
    at = e.slot(ty)
    number, blocks, mine = (
        e.t(f"zext i32 {x} to i64") if ty == "i64" else x
        for x in (e.hardware.block_number(e), e.hardware.blocks(e), e.hardware.thread_in_block(e))
    )
    every = e.t(f"add {ty} {count}, {threads - 1}")
    every = e.t(f"udiv {ty} {every}, {threads}")
    e.put(f"store {ty} {number}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {number}, {every}"), body, out)
    e.at(body)
    now = e.t(f"load {ty}, ptr {at}")
    iteration = e.t(f"add {ty} {e.t(f'mul {ty} {now}, {threads}')}, {mine}")
    start_iteration(e, iteration, ty, begins, sizes)
    e.part = "" if m.whole else e.t(f"icmp slt {ty} {iteration}, {count}")
    if e.may_fail:
        slot = e.slot("i1")
        e.put(f"store i1 {e.part or 'true'}, ptr {slot}")
        e.part = slot
    for x in unset:
        e.reset(x)
    e.block(e.task.body)
    following = e.t(f"add {ty} {now}, {blocks}")
    e.put(f"store {ty} {following}, ptr {at}")
    again = e.label("again")
    e.branch(e.t(f"icmp slt {ty} {following}, {every}"), again, out)
    e.at(again)
    e.hardware.barrier(e)  # the memory of this block is that of the next one
    e.jump(body)
    e.at(out)
