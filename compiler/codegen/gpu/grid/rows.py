"""Adstacks in device functions: every thread has a row of the heap, and a part of the on-chip memory of its block.

The rows of the heap are interleaved, so that the threads of a warp write one line: word (row, slot, field) of a plane lies at word
``(offset + slot * width + field) * rows + row``. The row is the thread's number where every iteration needs one; behind a gate a thread
claims one by a counter, unless there is a row for every thread. A stack on chip lies at byte
``offset * block + ((slot * width + field) * block + thread) * size``: its ``offset`` is in bytes of one thread. With ``private_tapes`` the
memory is the thread's own, as if a block were one thread. Which stacks lie on chip is known when the code is made, how large they are when
it is launched.
"""

from __future__ import annotations

from collections.abc import Callable

from ....ir.nodes import ClaimRow, Kernel, Loop, Op, Operand, Stack, StackPut, Task
from ....ir.ops import is_function
from ....ir.walk import walk
from ...abi import CTX_HEAP, PLANES, SCRATCH_CLAIMS, plane_of
from ...llvm.emitter import Emitter
from ...llvm.function import ROLLED, unrolled
from ...llvm.rows import check
from .emitter import GridEmitter

_FUNCTION = 16
OFTEN = 8
"""How often a short loop is written out: one of a quarter of the operations below, or of half where a state
is read from the heap, which takes longest."""
_MOST = 160
"""Operations of a loop that is unrolled four times, functions counted as ``_FUNCTION``."""


def name_of(task: int, stack: str) -> str:
    """The unique name of a stack of a task (by number in the kernel) among all stacks of the kernel."""
    return f"{task}:{stack}"


def on_chip(e: Emitter, stack: Stack) -> bool:
    """Whether a stack of the task lies on chip: the tapes that are not said to be far."""
    return stack.kind == "tape" and name_of(e.number, stack.name) not in e.info.far


def tapes_of(kernel: Kernel) -> frozenset[str]:
    """The names of all tapes of a kernel."""
    tapes = ((k, s) for k, task in enumerate(kernel.tasks) for s in task.stacks if s.kind == "tape")
    return frozenset(name_of(k, s.name) for k, s in tapes)


def planes_of(stack: Stack) -> list[str]:
    """The planes in which a stack has words."""
    return sorted({plane_of(v.dtype) for v in stack.locals})


def width_of(stack: Stack, plane: str) -> int:
    """Words of a slot in a plane."""
    return sum(plane_of(v.dtype) == plane for v in stack.locals)


def shared_bytes(e: Emitter, task: Task) -> str:
    """In the host's entry: bytes of on-chip memory that each thread of a launch gets, i64: up to the end of its last stack."""
    most = "0"
    for stack in task.stacks:
        if on_chip(e, stack):
            slots = e.param(f"S.{stack.name.rpartition('.')[2]}")
            for plane in planes_of(stack):
                size = e.t(f"mul i64 {slots}, {width_of(stack, plane) * int(plane[1])}")
                end = e.t(f"add i64 {size}, {e.param(f'{stack.name}.{plane}')}")
                e.module.declare("smax64", "declare i64 @llvm.smax.i64(i64, i64)")
                most = e.t(f"call i64 @llvm.smax.i64(i64 {most}, i64 {end})")
    return most


def chip_bytes(task: Task, number: int, far: frozenset[str], value: Callable[[str], int]) -> int:
    """The same with known launch parameters. ``number``: of the task in its kernel; ``value``: of a launch parameter."""
    near = [s for s in task.stacks if s.kind == "tape" and name_of(number, s.name) not in far]
    ends = [
        value(f"S.{s.name.rpartition('.')[2]}") * width_of(s, plane) * int(plane[1]) + value(f"{s.name}.{plane}")
        for s in near
        for plane in planes_of(s)
    ]
    return max(ends, default=0)


def start(e: GridEmitter) -> None:
    """Before the first iteration: a thread takes its row, or, behind a gate, has none yet."""
    if not e.task.stacks or not e.task.parallel:
        return
    if any(isinstance(s, ClaimRow) for s in e.task.body):
        find(e, e.thread())
        e.claimed = True
    else:
        e.put(f"store i64 -1, ptr {_mine(e)}")


def claim(e: GridEmitter, s: ClaimRow) -> None:
    """Give the thread a row where it needs one for the first time, and find its stacks."""
    if e.task.parallel:
        find(e, _claimed(e, s))
    else:
        check(e, s, "0")
        find(e, "0")


def find(e: GridEmitter, row: str) -> None:
    """The first words of all stacks of the task in a row."""
    for stack in e.task.stacks:
        for plane in planes_of(stack):
            name = f"{stack.name}.{plane}"
            if on_chip(e, stack):
                e.stacks[stack.name, plane] = _on_chip(e, name, int(plane[1]))
            else:
                e.stacks[stack.name, plane] = _in_heap(e, name, plane, row)


def _mine(e: GridEmitter) -> str:
    slot = e.hoisted.get("row")
    if slot is None:
        slot = e.hoisted["row"] = e.slot("i64")
    return slot


def _claimed(e: GridEmitter, s: ClaimRow) -> str:
    """The row of a thread behind a gate."""
    rows, mine = e.param("rows"), _mine(e)
    take, count, whole, have = e.label("take"), e.label("count"), e.label("each"), e.label("have")
    e.branch(e.t(f"icmp slt i64 {e.t(f'load i64, ptr {mine}')}, 0"), take, have)
    e.at(take)
    e.branch(e.t(f"icmp slt i64 {rows}, {e.param('threads')}"), count, whole)
    e.at(whole)
    e.put(f"store i64 {e.thread()}, ptr {mine}")
    e.jump(have)
    e.at(count)
    claims = e.t(f"atomicrmw add ptr {e.scratch(SCRATCH_CLAIMS)}, i32 1 {e.scope}monotonic")
    row = e.t(f"zext i32 {claims} to i64")
    check(e, s, row)
    e.put(f"store i64 {row}, ptr {mine}")
    e.jump(have)
    e.at(have)
    return e.t(f"load i64, ptr {mine}")


def _in_heap(e: GridEmitter, name: str, plane: str, row: str) -> str:
    """The address of slot 0, field 0 of this thread."""
    heap = e.context(CTX_HEAP + PLANES.index(plane), "ptr")
    first = e.t(f"mul i64 {e.param(name)}, {e.param('rows')}")
    word = first if row == "0" else e.t(f"add i64 {first}, {row}")
    return e.t(f"getelementptr i8, ptr {heap}, i64 {e.t(f'mul i64 {word}, {plane[1]}')}")


def _on_chip(e: GridEmitter, name: str, size: int) -> str:
    """The same for an on-chip stack. On-chip offsets have 32 bits."""
    base = e.hardware.dynamic_shared(e)
    offset = e.t(f"trunc i64 {e.param(name)} to i32")
    if e.target.private_tapes:
        return e.t(f"getelementptr i8, ptr {base}, i32 {offset}")
    offset = e.t(f"mul nuw nsw i32 {offset}, {e.threads_of_block}")
    mine = e.t(f"mul nuw nsw i32 {e.hardware.thread_in_block(e)}, {size}")
    return e.t(f"getelementptr i8, ptr {base}, i32 {e.t(f'add nuw nsw i32 {offset}, {mine}')}")


def unrolling(e: GridEmitter, s: Loop) -> str:
    """What LLVM is told of a loop: see ``copies``."""
    times = copies(e, s)
    return unrolled(times) if times > 1 else "" if times else ROLLED


def copies(e: GridEmitter, s: Loop) -> int:
    """How often an innermost loop is written out, where it reads or writes stacks or evaluates functions: each iteration counts and
    branches beside a body that may be short, constants are loaded again, and a GPU has no other means to read the next state early.
    0: it must not be; 1: it need not be.
    """
    if s.exit is not None or any(isinstance(x, Loop) for x in s.body):
        return 1
    weight, far, puts, functions = 0, False, False, False
    for x in walk(s.body):
        if isinstance(x, Loop):
            return 1
        if isinstance(x, Op) and x.op == "atomic" and e.uniform.way(x):
            return 1  # what the lanes of a warp do together stands once: LLVM would not copy it
        puts |= isinstance(x, StackPut)
        long = isinstance(x, Op) and is_function(x.op)
        functions |= long
        weight += _FUNCTION if long else 1
        if isinstance(x, Op) and x.op == "stack_get" and isinstance(x.attr, tuple):
            far |= not on_chip(e, x.attr[0])
    if not (functions or e.task.stacks):
        return 1
    if far and puts:  # slots that move, once in a while
        return 0
    often = weight <= (_MOST // 2 if far else _MOST // 4)
    return OFTEN if often else 4 if weight <= _MOST else 2 if weight <= 2 * _MOST else 1


def word(e: GridEmitter, stack: Stack, field: int, slot: Operand) -> str:
    """The address of one state word."""
    plane = plane_of(stack.locals[field].dtype)
    size, width = int(plane[1]), width_of(stack, plane)
    place = [k for k, x in enumerate(stack.locals) if plane_of(x.dtype) == plane].index(field)
    base, at = e.stacks[stack.name, plane], e.operand(slot, False)
    if on_chip(e, stack):
        step = size * e.target.tape_owners(e.threads_of_block)
        if place:
            base = e.t(f"getelementptr i8, ptr {base}, i32 {place * step}")
        return e.t(f"getelementptr i8, ptr {base}, i64 {e.t(f'mul nsw i64 {at}, {width * step}')}")
    step = e.t(f"mul i64 {e.param('rows')}, {size}")
    if place:
        base = e.t(f"getelementptr i8, ptr {base}, i64 {e.t(f'mul i64 {step}, {place}')}")
    stride = e.t(f"mul i64 {step}, {width}")
    return e.t(f"getelementptr i8, ptr {base}, i64 {e.t(f'mul i64 {at}, {stride}')}")
