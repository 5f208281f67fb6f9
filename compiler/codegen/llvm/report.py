"""What a kernel tells its launcher: failed assertions, overflown stacks, rows that are missing, printed values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.nodes import Assert, Const, Kernel, Op, Operand, Overflow, Print
from ...ir.types import u1
from ...ir.walk import task_blocks
from ..abi import CTX_STATUS, STATUS_WORDS, Message
from .target import Unsupported

if TYPE_CHECKING:
    from .emitter import Emitter


def prints(kernel: Kernel) -> list[Print]:
    """What each site number passed to ``qd_print`` stands for, in program order."""
    return [s for t in kernel.tasks for s in task_blocks(t) if isinstance(s, Print)]


def check(e: Emitter, s: Assert) -> None:
    """Go on if the condition holds, else record the failure and leave."""
    if isinstance(s.cond, Const) and s.cond.value:
        return
    v = e.varying(s.cond)
    cond = e.operand(s.cond, v)
    bad = e.t(f"xor {e.ty(u1, v)} {cond}, {e.lit('true', u1, v)}")
    lanes = e.narrow(bad) if v else ""
    failed, fine = e.label("failed"), e.label("fine")
    e.branch(e.any(lanes) if v else bad, failed, fine, unlikely=True)
    e.at(failed)
    record(e, s, s.args, lanes)
    e.at(fine)


def overflow(e: Emitter, s: Overflow) -> None:
    """Record the overflow and leave."""
    record(e, s, (), e.mask)
    e.at(e.label("dead"))


def record(e: Emitter, s: Message, args: tuple[Operand, ...], lanes: str) -> None:
    """The first failure of a launch writes its code and operands; every failure leaves the function."""
    code = e.info.codes.get(s)
    if code is None:
        raise Unsupported("an assertion outside the body of a task: its message has no number")
    status = e.context(CTX_STATUS, "ptr")
    pair = e.t(f"cmpxchg ptr {status}, i64 0, i64 {code} monotonic monotonic")
    won, write, leave = e.t(f"extractvalue {{ i64, i1 }} {pair}, 1"), e.label("write"), e.label("leave")
    e.branch(won, write, leave)
    e.at(write)
    lane = first_lane(e, lanes) if lanes else "0"
    for k, x in enumerate(args[: STATUS_WORDS - 1]):
        e.put(f"store i64 {word(e, x, lane)}, ptr {e.t(f'getelementptr i64, ptr {status}, i64 {k + 1}')}")
    e.jump(leave)
    e.at(leave)
    e.leave()


def first_lane(e: Emitter, mask: str) -> str:
    """The number (i64) of the first active lane of a mask that is not empty."""
    bits = e.t(f"bitcast <{e.lanes} x i1> {mask} to i{e.lanes}")
    e.module.declare(f"cttz{e.lanes}", f"declare i{e.lanes} @llvm.cttz.i{e.lanes}(i{e.lanes}, i1)")
    found = e.t(f"call i{e.lanes} @llvm.cttz.i{e.lanes}(i{e.lanes} {bits}, i1 true)")
    return found if e.lanes == 64 else e.t(f"{'zext' if e.lanes < 64 else 'trunc'} i{e.lanes} {found} to i64")


def word(e: Emitter, x: Operand, lane: str) -> str:
    """An operand (of one lane) as 8 bytes."""
    v = e.varying(x)
    reg = e.operand(x, v)
    if v:
        reg = e.t(f"extractelement {e.ty(x.dtype, True)} {reg}, i64 {lane}")
    return e.to_word(reg, x.dtype)


def print_(e: Emitter, s: Print) -> None:
    """Hand the values to the launcher, which knows the text around them."""
    if e.lanes > 1:
        raise Unsupported("print in a vectorised task: lanes would print in another order")
    values: list[Operand] = [p for p in s.parts if isinstance(p, (Op, Const))]
    e.printed(s, [word(e, x, "0") for x in values])


def call_printer(e: Emitter, s: Print, values: list[str]) -> None:
    """Call the launcher's function with the values (i64) of a print statement."""
    slot = e.slot(f"[{max(1, len(values))} x i64]")
    for k, x in enumerate(values):
        e.put(f"store i64 {x}, ptr {e.t(f'getelementptr i64, ptr {slot}, i64 {k}')}")
    e.module.declare("qd_print", "declare void @qd_print(ptr, i64, ptr, i64)")
    e.put(f"call void @qd_print(ptr %ctx, i64 {e.info.sites[s]}, ptr {slot}, i64 {len(values)})")
