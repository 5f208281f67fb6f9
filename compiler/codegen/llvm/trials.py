"""Batched kernels on the CPU: a worker runs whole trials, from the first task of the kernel to the last.

A task is ``void task(ptr args, i64 trial, i64 worker)``: it runs the trials that lie side by side in the lanes of a thread, or one trial.
The chunk function runs all tasks for the trials of a range in turn, and the entry is a parallel loop over chunks. So no trial ever waits
for another one, and what a trial works on stays in the caches.

Lanes of padding (``ir.trials``) hold zeros, or what was copied there. They take part where that is harmless; in a task that could loop
for ever, or leave its memory, they are masked.
"""

from __future__ import annotations

from typing import Literal

from ...ir.nodes import Assert, Buffer, ClaimRow, Const, FaultKind, Local, Loop, Op, Operand, Overflow, Place, Stack, Task
from ...ir.trials import FAILED, FAILED_CODE, FAILED_STATUS, FAILED_VALUES, FAILED_WORDS, TRIALS
from ...ir.types import i64
from ...ir.walk import conditional_locals, index_of, place_of, walk
from ..abi import CTX_POOL, Message
from . import memory, report, rows
from .cost import grain
from .emitter import KernelInfo
from .function import LlvmModule
from .task_emitter import TaskEmitter
from .uniform import Shapes, analyse

_MAX_CHUNKS = 512
_TWO_COPIES = 4000  # statements; above this a task has only the masked copy of its body
FAILURE = Place("failed", i64, Buffer("trial", FAILED), 1, (FAILED_WORDS,), (8,), trial_bytes=8 * FAILED_WORDS)


class TrialEmitter(TaskEmitter):
    """Emits a task for the trials of a thread's lanes. ``trial``: the register of the first one's number."""

    trial = "%trial"
    dead = ""  # the slot with the lanes that have failed, in a task where some can

    def trial_base(self, place: Place) -> str:
        """The trial's part of a buffer: that of its group, and with one lane, of the trial in it."""
        width, base = self.module.target.trials, memory.buffer_base(self, place.buffer)
        size = memory.trial_bytes(self, place)
        group = self.hoist(("group", self.trial), f"udiv i64 {self.trial}, {width}")
        whole: int | str = width * size if isinstance(size, int) else self.hoist(("group of", size), f"mul i64 {size}, {width}")
        byte = self.hoist(("group byte", group, whole), f"mul i64 {group}, {whole}")
        base = self.hoist(("group at", base, byte), f"getelementptr i8, ptr {base}, i64 {byte}")
        if self.lanes > 1 or width == 1:
            return base
        lane = self.hoist(("lane", self.trial), f"urem i64 {self.trial}, {width}")
        byte = self.hoist(("lane byte", lane, place.dtype.size), f"mul i64 {lane}, {place.dtype.size}")
        return self.hoist(("lane at", base, byte), f"getelementptr i8, ptr {base}, i64 {byte}")

    def claim_row(self, s: ClaimRow) -> None:
        """Each worker has a row of its own."""
        if not self.claimed:
            rows.check(self, s, "%worker")
            rows.find_stacks(self, "%worker")

    # -- failures
    def living(self, mask: str) -> str:
        if not self.dead:
            return mask
        flags = self.vec("i1", True)
        dead = self.t(f"load {flags}, ptr {self.dead}")
        return self.t(f"and {flags} {mask}, {self.t(f'xor {flags} {dead}, splat (i1 true)')}")

    def active(self) -> str:
        """The mask as a vector, without lanes that have failed."""
        return self.living(super().active())

    def goes_on(self, kind: FaultKind | Literal["stack"], lanes: str) -> bool:
        """Unless all lanes have failed."""
        return bool(lanes) and self.lanes > 1

    def drop_failed(self) -> None:
        """Whether only some lanes run the block; otherwise unguarded operations may run for all lanes."""
        if self.mask:
            self.mask = self.active()

    def stack_word(self, stack: Stack, field: int, slot: Operand) -> tuple[str, str]:
        """A lane whose loop ran too far has no slot."""
        ptr, kind = super().stack_word(stack, field, slot)
        return ptr, "guarded" if kind == "linear" and self.dead else kind

    def report_failure(self, s: Message, args: tuple[Operand, ...], lanes: str) -> None:
        """Record the failure of the trials, where it is their first, and that there is one. Their lanes have failed."""
        if self.lanes == 1:
            self._record(s, args, "0")
            return
        flags, bits = self.vec("i1", True), f"i{self.lanes}"
        lanes, dead = lanes or self.active(), self.t(f"load {flags}, ptr {self.dead}")
        dead = self.t(f"or {flags} {dead}, {lanes}")
        self.put(f"store {flags} {dead}, ptr {self.dead}")
        left, turn, done = self.slot(bits), self.label("turn"), self.label("done")
        mask = self.t(f"bitcast {flags} {lanes} to {bits}")
        self.put(f"store {bits} {mask}, ptr {left}")
        self.branch(self.t(f"icmp ne {bits} {mask}, 0"), turn, done)
        self.at(turn)
        now = self.t(f"load {bits}, ptr {left}")
        self._record(s, args, report.first_lane(self, self.t(f"bitcast {bits} {now} to {flags}")))
        rest = self.t(f"and {bits} {now}, {self.t(f'sub {bits} {now}, 1')}")
        self.put(f"store {bits} {rest}, ptr {left}")
        self.branch(self.t(f"icmp ne {bits} {rest}, 0"), turn, done)
        self.at(done)

    def _record(self, s: Message, args: tuple[Operand, ...], lane: str) -> None:
        """Write the failure of the trial of a lane, if it has none."""
        at = [memory.address(self, FAILURE, (Const(k, i64),))[0] for k in range(FAILED_WORDS)]
        at = [self.t(f"getelementptr i64, ptr {p}, i64 {lane}") for p in at]
        free = self.t(f"icmp eq i64 {self.t(f'load i64, ptr {at[FAILED_CODE]}')}, 0")
        record_failure(self, s, args, at, free, lane)


def record_failure(e: TaskEmitter, s: Message, args: tuple[Operand, ...], at: list[str], free: str, lane: str = "0") -> None:
    """Add the code that writes the failure of a trial, and to the kernel's status that there is one.

    Args:
        e: the emitter of a task.
        s: the failed check.
        args: the values of its message.
        at: addresses of the words of the trial's record.
        free: the register that says whether the record is free.
        lane: the lane of the trial among ``args``.
    """
    code, status = e.info.codes[s], e.context(e.status_word, "ptr")
    first, known = e.label("first"), e.label("known")
    e.branch(free, first, known)
    e.at(first)
    for slot, x in zip(at[FAILED_VALUES:], args):
        e.put(f"store i64 {report.word(e, x, lane)}, ptr {slot}")
    e.put(f"store i64 {e.t(f'ptrtoint ptr {status} to i64')}, ptr {at[FAILED_STATUS]}")
    e.put(f"store i64 {code}, ptr {at[FAILED_CODE]}")
    e.put(f"store atomic i32 {code}, ptr {status} monotonic, align 4")
    e.jump(known)
    e.at(known)


def emit_trials(module: LlvmModule, info: KernelInfo, names: list[str], entry: str, ended: list[str]) -> None:
    """Add the functions of a batched kernel to the module.

    Args:
        module: see above.
        info: of the kernel.
        names: of its tasks' functions.
        entry: the name of the entry; that of the chunk function is ``chunk_of(entry)``.
        ended: what a launch does at its end.
    """
    for task, name in zip(info.kernel.tasks, names):
        _emit_task(module, info, task, name)
    _emit_chunk(module, info, names, chunk_of(entry))
    _emit_entry(module, info, entry, ended)


def chunk_of(entry: str) -> str:
    """The name of the chunk function of a kernel."""
    return f"{entry}_chunk"


def _emit_task(module: LlvmModule, info: KernelInfo, task: Task, name: str) -> None:
    lanes = module.target.lanes
    e = TrialEmitter(module, info, task, analyse(task) if lanes > 1 else Shapes(), lanes, True)
    unset = conditional_locals(task)
    claim = next((s for s in task.body if isinstance(s, ClaimRow)), None)
    if lanes > 1 and _may_fail(task):
        e.dead = e.slot(e.vec("i1", True))
        e.put(f"store {e.vec('i1', True)} zeroinitializer, ptr {e.dead}")
    if claim is not None:
        e.claim_row(claim)
        e.claimed = True
    if lanes > 1 and (e.dead or _needs_mask(e, task)):
        _whole_or_part(e, unset)
    else:
        _body(e, unset)
    e.put("ret void")
    attributes = "nounwind" + (' "prefer-vector-width"="512"' if lanes > 1 else "")
    head = [f"define internal void @{name}(ptr %args, i64 %trial, i64 %worker) {attributes} {{", "entry:", *e.slots]
    head.append("  %ctx = load ptr, ptr %args, !invariant.load !0")
    module.functions.append("\n".join([*head, *e.head, *e.lines, "}"]))


def _may_fail(task: Task) -> bool:
    """Whether a trial can fail in a task."""
    return any(isinstance(s, (Assert, Overflow)) for s in walk(task.body))


def _body(e: TaskEmitter, unset: list[Local]) -> None:
    for x in unset:
        e.reset(x)
    e.block(e.task.body)


def _needs_mask(e: TaskEmitter, task: Task) -> bool:
    """Whether padding lanes could do harm: loop endlessly, or access memory of other trials."""
    for s in walk(task.body):
        if isinstance(s, Loop) and s in e.shapes.varying:
            return True
        if place_of(s) is not None and any(x in e.shapes.varying for x in index_of(s) if isinstance(x, Op)):
            return True
    return False


def _whole_or_part(e: TrialEmitter, unset: list[Local]) -> None:
    """The body for a full group, and once more with a mask, for the last one and for one in which a trial has failed before."""
    whole, part, some, join = e.label("whole"), e.label("part"), e.label("some"), e.label("join")
    flags, words = e.vec("i1", True), e.vec("i64", True)
    numbers = "<" + ", ".join(f"i64 {k}" for k in range(e.lanes)) + ">"
    left = e.broadcast(e.t(f"sub i64 {e.param(TRIALS)}, {e.trial}"), "i64")
    mask = e.t(f"icmp sgt {words} {left}, {numbers}")
    if e.dead:
        codes = e.t(f"load {words}, ptr {memory.address(e, FAILURE, (Const(FAILED_CODE, i64),))[0]}, align 8")
        mask = e.t(f"and {flags} {mask}, {e.t(f'icmp eq {words} {codes}, zeroinitializer')}")
    bits = e.t(f"bitcast {flags} {mask} to i{e.lanes}")
    wide, claimed, stacks = dict(e.wide), e.claimed, dict(e.stacks)
    if sum(1 for _ in walk(e.task.body)) <= _TWO_COPIES:
        e.branch(e.t(f"icmp eq i{e.lanes} {bits}, -1"), whole, part)
        e.at(whole)
        _body(e, unset)
        e.jump(join)
        e.at(part)
    e.wide, e.claimed, e.stacks = wide, claimed, stacks
    e.branch(e.t(f"icmp ne i{e.lanes} {bits}, 0"), some, join)
    e.at(some)
    for x in unset:
        e.reset(x)
    e.mask = e.there = mask
    e.block(e.task.body)
    e.mask = e.there = ""
    e.jump(join)
    e.at(join)


def _emit_chunk(module: LlvmModule, info: KernelInfo, names: list[str], chunk: str) -> None:
    """All tasks for each trial of a range, or for each group; a trial that has failed stops."""
    lanes = module.target.lanes
    e = TrialEmitter(module, info, info.kernel.tasks[0], Shapes(), 1, True)
    e.trial = ""
    body, after, out = e.label("trial"), e.label("next"), e.label("done")
    slot = e.slot("i64")
    e.put(f"store i64 %begin, ptr {slot}")
    e.branch(e.t("icmp slt i64 %begin, %end"), body, out)
    e.at(body)
    now = e.t(f"load i64, ptr {slot}")
    checks = lanes == 1 and any(map(_may_fail, info.kernel.tasks))
    for name in names:
        if checks:
            go = e.label("go")
            e.branch(e.t(f"icmp eq i64 {_code_of(e, now)}, 0"), go, after)
            e.at(go)
        e.put(f"call void @{name}(ptr %args, i64 {now}, i64 %worker)")
    e.jump(after)
    e.at(after)
    following = e.t(f"add nsw i64 {now}, {lanes}")
    e.put(f"store i64 {following}, ptr {slot}")
    e.branch(e.t(f"icmp slt i64 {following}, %end"), body, out)
    e.at(out)
    head = [f"define void @{chunk}(ptr %args, i64 %begin, i64 %end, i64 %worker) nounwind {{", "entry:", *e.slots]
    head.append("  %ctx = load ptr, ptr %args, !invariant.load !0")
    module.functions.append("\n".join([*head, *e.head, *e.lines, "  ret void", "}"]))


def _code_of(e: TrialEmitter, trial: str) -> str:
    """Load the failure record of a trial, at each use."""
    width = e.module.target.trials
    group, lane = e.t(f"udiv i64 {trial}, {width}"), e.t(f"urem i64 {trial}, {width}")
    byte = e.t(f"mul i64 {group}, {width * FAILURE.trial_bytes}")
    at = e.t(f"getelementptr i8, ptr {memory.buffer_base(e, FAILURE.buffer)}, i64 {byte}")
    return e.t(f"load i64, ptr {e.t(f'getelementptr i64, ptr {at}, i64 {lane}')}")


def _emit_entry(module: LlvmModule, info: KernelInfo, entry: str, ended: list[str]) -> None:
    """The chunks, in the pool."""
    width, tasks = module.target.trials, info.kernel.tasks
    stateful = next((t for t in tasks if t.stacks), None)
    e = TrialEmitter(module, info, stateful or tasks[0], Shapes(), 1, True)
    n = e.param(TRIALS)
    per = e.t(f"udiv i64 {e.t(f'add i64 {n}, {_MAX_CHUNKS * width - 1}')}, {_MAX_CHUNKS * width}")
    least = min(grain(t, width) for t in tasks)
    e.module.declare("smax64", "declare i64 @llvm.smax.i64(i64, i64)")
    chunk = e.t(f"call i64 @llvm.smax.i64(i64 {e.t(f'mul i64 {per}, {width}')}, i64 {least})")
    args = f"ptr {e.context(CTX_POOL, 'ptr')}, ptr @{chunk_of(entry)}, ptr %args, i64 {n}, i64 {chunk}"
    if stateful is not None:
        module.declare("qd_parallel_for_up_to", "declare void @qd_parallel_for_up_to(ptr, ptr, ptr, i64, i64, i64)")
        e.put(f"call void @qd_parallel_for_up_to({args}, i64 {e.param('threads')})")
    else:
        module.declare("qd_parallel_for", "declare void @qd_parallel_for(ptr, ptr, ptr, i64, i64)")
        e.put(f"call void @qd_parallel_for({args})")
    head = [f"define void @{entry}(ptr %args) nounwind {{", "entry:", *e.slots]
    head.append("  %ctx = load ptr, ptr %args, !invariant.load !0")
    module.functions.append("\n".join([*head, *e.head, *e.lines, *ended, "  ret void", "}"]))
