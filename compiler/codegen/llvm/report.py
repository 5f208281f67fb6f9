"""Reports of a kernel to its launcher: failed assertions, overflown stacks, missing rows, printed values."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.nodes import Assert, Const, Kernel, Op, Operand, Overflow, Print
from ...ir.types import u1
from ...ir.walk import task_blocks
from ..abi import STATUS_ITERATION, STATUS_LOCK, STATUS_VALUES, STATUS_WORDS, Message
from .emitter import Emitter
from .target import Unsupported
from .uniform import Shapes

_RECORDER = "qd_record"


def prints(kernel: Kernel) -> list[Print]:
    """The print statements by site number of ``qd_print``, in program order."""
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
    e.report_failure(s, s.args, lanes or e.mask)
    if e.goes_on(s.kind, lanes):
        e.jump(fine)
    else:
        e.leave()
    e.at(fine)
    e.drop_failed()


def overflow(e: Emitter, s: Overflow) -> None:
    """Record the overflow and leave."""
    e.report_failure(s, (), e.mask)
    if e.goes_on("stack", e.mask):
        e.drop_failed()
    else:
        e.leave()
        e.at(e.label("dead"))


def record(e: Emitter, s: Message, args: tuple[Operand, ...], lanes: str) -> None:
    """Write code and operands of a failure, unless one of an earlier iteration, or one before in this iteration, has been written.

    ``lanes``: the mask of the lanes that failed; empty: all of them, or there is one.
    """
    code = e.info.codes.get(s)
    if code is None:
        raise Unsupported("an assertion outside the body of a task: its message has no number")
    status = e.context(e.status_word, "ptr")
    lane = first_lane(e, lanes) if lanes else "0"
    number, v = e.iteration
    number = e.t(f"extractelement {e.vec('i64', True)} {number}, i64 {lane}") if v else number
    args = args[: STATUS_WORDS - STATUS_VALUES]
    if e.gpu:
        _record(e, status, str(code), number, lambda: _publish(e, status, [word(e, x, lane) for x in args]))
    else:
        _call_recorder(e, f"ptr {status}, i64 {code}, i64 {number}", [word(e, x, lane) for x in args])


def _publish(e: Emitter, status: str, words: list[str]) -> None:
    for k, x in enumerate(words):
        e.publish(x, e.t(f"getelementptr i64, ptr {status}, i64 {STATUS_VALUES + k}"))


def _call_recorder(e: Emitter, head: str, words: list[str]) -> None:
    """Record by a function that the module has once: in line, each assertion would bring a loop, and double LLVM's time for a kernel
    with checks.
    """
    slot = e.failure_words() if words else "null"
    for k, x in enumerate(words):
        e.put(f"store i64 {x}, ptr {e.t(f'getelementptr i64, ptr {slot}, i64 {k}')}")
    if _RECORDER not in e.module.helpers:
        e.module.helpers[_RECORDER] = _recorder(type(e)(e.module, e.info, e.task, Shapes(), 1, True))
    e.put(f"call void @{_RECORDER}({head}, ptr {slot}, i64 {len(words)})")


def _recorder(e: Emitter) -> str:
    """The function of a module that records a failure."""

    def copy() -> None:
        body, out, at = e.label("copy"), e.label("copied"), e.slot("i64")
        e.put(f"store i64 0, ptr {at}")
        e.branch(e.t("icmp sgt i64 %count, 0"), body, out)
        e.at(body)
        k = e.t(f"load i64, ptr {at}")
        to = e.t(f"getelementptr i64, ptr %status, i64 {e.t(f'add i64 {k}, {STATUS_VALUES}')}")
        e.publish(e.t(f"load i64, ptr {e.t(f'getelementptr i64, ptr %words, i64 {k}')}"), to)
        k = e.t(f"add i64 {k}, 1")
        e.put(f"store i64 {k}, ptr {at}")
        e.branch(e.t(f"icmp slt i64 {k}, %count"), body, out)
        e.at(out)

    _record(e, "%status", "%code", "%iteration", copy)
    args = "ptr %status, i64 %code, i64 %iteration, ptr %words, i64 %count"
    head = [f"define internal void @{_RECORDER}({args}) noinline nounwind {{", "entry:"]
    return "\n".join([*head, *e.slots, *e.lines, "  ret void", "}"])


def _record(e: Emitter, status: str, code: str, number: str, publish_values: Callable[[], None]) -> None:
    """Write a failure under the record's lock.

    The lock is taken and released within one pass of the loop, whose only exit is its head. Code behind another exit would run once all
    threads of a wave have left the loop, on GPUs whose waves have one program counter: the holder would wait for those that wait for it.

    Whether the record is of an earlier iteration is asked before the lock is taken, too: thousands of threads may fail at once. There it
    is asked of 4 bytes, as not every GPU has atomics of 8.

    The lock is acquired and released by its own accesses: a driver's compiler crashes on some kernels with fences in this loop.
    """
    known, lock = (e.t(f"getelementptr i64, ptr {status}, i64 {k}") for k in (STATUS_ITERATION, STATUS_LOCK))
    short = e.t(f"getelementptr i8, ptr {lock}, i64 4")
    mine = e.t(f"xor i64 {number}, -1")
    fits = e.t(f"icmp ult i64 {number}, {2**32 - 1}")
    mine_short = e.t(f"select i1 {fits}, i32 {e.t(f'trunc i64 {mine} to i32')}, i32 0")
    enough = e.t(f"select i1 {fits}, i32 {mine_short}, i32 1")
    wait, take, hold, write, free, out = map(e.label, ("wait", "take", "hold", "write", "free", "recorded"))
    over = e.slot("i1")
    e.put(f"store i1 false, ptr {over}")
    e.jump(wait)
    e.at(wait)
    before = e.t(f"load atomic i32, ptr {short} monotonic, align 4")
    earlier = e.t(f"icmp uge i32 {before}, {enough}")
    e.branch(e.t(f"or i1 {e.t(f'load i1, ptr {over}')}, {earlier}"), out, take)
    e.at(take)
    pair = e.t(f"cmpxchg ptr {lock}, i32 0, i32 1 acquire monotonic")
    e.branch(e.t(f"extractvalue {{ i32, i1 }} {pair}, 1"), hold, wait)
    e.at(hold)
    e.branch(e.t(f"icmp uge i64 {e.collect(known)}, {mine}"), free, write)
    e.at(write)
    publish_values()
    e.publish(code, status)
    e.publish(mine, known)
    e.put(f"store atomic i32 {mine_short}, ptr {short} monotonic, align 4")
    e.jump(free)
    e.at(free)
    e.put(f"store i1 true, ptr {over}")
    e.put(f"store atomic i32 0, ptr {lock} release, align 4")
    e.jump(wait)
    e.at(out)


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
