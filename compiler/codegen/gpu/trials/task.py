"""Tasks of a batched program as functions of the device: a thread, or a few threads of one block, run all iterations of a trial's task.

Trials are independent, so nothing waits for another trial. A kernel is one function, its *chunk*, which runs the tasks of one trial one
after the other; an atomic on an element of the trial is a load and a store where one thread has the trial. With several threads, which are
called the lanes of the trial, each takes every n-th iteration, and they meet between tasks::

    i1 chunk(ptr regs, ptr common, ptr words, i64 trial, i32 lane, i64 thread, i1 alive)

Where there are more lanes than iterations, several of them may run one iteration (``team``).

``common`` are parameters of the device function, ``words`` those of the launch (``LaunchWords``); ``thread`` is the number of the thread
in the grid, which is its adstack row. The result says whether the trial goes on: it was alive, and no iteration has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ....ir.alias import may_meet, same_array
from ....ir.nodes import (
    Assert,
    Block,
    ClaimRow,
    Const,
    GlobalStore,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Overflow,
    Place,
    Reduction,
    StackPut,
    Stmt,
    Task,
)
from ....ir.trials import FAILED_CODE, FAILED_WORDS
from ....ir.types import i64
from ....ir.walk import atomic_of, conditional_locals, is_fence, place_of, walk
from ...abi import Message
from ...llvm import memory
from ...llvm.emitter import KernelInfo
from ...llvm.function import LlvmModule
from ...llvm.trials import FAILURE, record_failure
from ...sums.partial_sums import differs
from ..grid import reduce as grid_reduce
from ..grid import rows as grid_rows
from ..grid.emitter import Failures
from ..grid.task import GridTaskEmitter, bounds_of, compute_prologue
from ..hardware import ParamWord
from ..indices import is_narrow, start_iteration
from .team import ALONE, TeamLanes, team_of

ARGS = "ptr %regs, ptr %common, ptr %words, i64 %trial, i32 %lane, i64 %thread"


@dataclass(frozen=True, slots=True)
class TrialShape:
    """How trials lie on a block: side by side. The lanes of a trial are in one wave of threads that execute together, or have several.

    Attributes:
        trials: of a block.
        lanes: threads of a trial, a power of two, as are the trials.
        resident: threads of a multiprocessor at once that the code leaves registers for.
    """

    trials: int
    lanes: int = 1
    resident: int = 512

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.trials * self.lanes


@dataclass(frozen=True, slots=True)
class LaunchWords:
    """Where a chunk finds the words of a launch that it reads: among the parameters of the function, which lie in memory for constants, if
    all its launches have the same value; else with the launch.

    Attributes:
        same: what stands for the value that a word has in all launches; None: it differs.
        common: such values with their numbers among the parameters, for all chunks of the function; grows.
        own: words that lie with the launch, with their numbers; grows.
    """

    same: Callable[[ParamWord], object]
    common: dict[object, int]
    own: dict[ParamWord, int] = field(default_factory=dict)

    def find(self, word: ParamWord) -> tuple[str, int]:
        """The register of the words among which a word is, and its number there."""
        value = self.same(word)
        if value is None:
            return "%words", self.own.setdefault(word, len(self.own))
        return "%common", self.common.setdefault(value, len(self.common))


@dataclass(frozen=True, slots=True)
class TaskChunk:
    """The function of a kernel that runs its tasks for one trial. ``words``: what it reads of its own launch, in order."""

    name: str
    info: KernelInfo
    words: tuple[ParamWord, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A store that is still to be written: its line, and the register of what it stores; "": an atomic."""

    place: Place
    index: tuple[Operand, ...]
    line: str
    value: str = ""


class GridTrialEmitter(GridTaskEmitter):
    """Emits one task of one trial.

    Args:
        module: of the device.
        info: the kernel.
        task: of it.
        shape: of blocks.
        numbers: where the words of a launch are that the kernel reads.
    """

    def __init__(self, module: LlvmModule, info: KernelInfo, task: Task, shape: TrialShape, numbers: LaunchWords) -> None:
        super().__init__(module, info, task, Failures())
        self.late: list[Waiting] = []
        self.side_by_side, self.numbers, self.where = shape, numbers, "thread"
        self.threads_of_block, self.flexible, self.copies, self.wide_accesses = shape.block, False, 1, None
        self.serial = shape.lanes == 1 or not task.parallel
        found = team_of(task, shape.lanes) if self.target.teams else ALONE
        self.team = TeamLanes(self, found, shape.lanes, shape.block)
        self.scope = f'syncscope("{self.target.block_scope}") ' if self.target.wave > 1 else self.scope

    def parameter(self, word: ParamWord) -> str:
        """The register of a word of the launch."""
        words, k = self.numbers.find(word)
        at = self.hoist(("word*", words, k), f"getelementptr i64, ptr {words}, i64 {k}")
        space = self.target.global_space
        if word.ty != "ptr" or not space:
            return self.hoist(("word", at, word.ty), f"load {word.ty}, ptr {at}, !invariant.load !0")
        far = self.hoist(("far word", at), f"load ptr addrspace({space}), ptr {at}, !invariant.load !0")
        return self.hoist(("word", at, "ptr"), f"addrspacecast ptr addrspace({space}) {far} to ptr")

    # -- stores wait, so that what follows them is loaded early: a thread goes on until it needs what it loads
    def block(self, block: Block) -> None:
        """Every statement of a block, in order, but that a store comes at the end if it may, and an atomic after the last load."""
        loads = [k for k, s in enumerate(block) if isinstance(s, Op) and (s.op == "gload" or self._is_plain(s))]
        for k, s in enumerate(block):
            self.statement(s)
            if k >= max(loads, default=0) and any(not w.value for w in self.late):
                self.flush()
        self.flush()

    def _is_plain(self, s: Op) -> bool:
        """Whether an atomic is a load and a store: nothing else disturbs the element."""
        return s.op == "atomic" and not self.team.inside and (self.serial or s in self.info.plain)

    def statement(self, s: Stmt) -> None:
        """One statement, after the stores that it may not overtake."""
        if isinstance(s, GlobalStore):
            ptr, _ = memory.address(self, s.place, s.index)
            self._wait(s.place, s.index, ptr, self.operand(s.value, False))
        elif isinstance(s, Op) and s in self.team.sums:
            self.team.sum_up(s)
        elif isinstance(s, Op) and s.op in ("gload", "atomic"):
            self._access(s)
        elif isinstance(s, Loop) and not self.team.inside and s in self.team.loops:
            self.flush()
            self.team.run(s, self.flush, self._add)
        else:
            if not isinstance(s, (Op, LocalStore, StackPut)) or is_fence(s):
                self.flush()
            super().statement(s)

    def _access(self, s: Op) -> None:
        place = place_of(s)
        assert place is not None
        index, values = s.args[: place.ndim], s.args[place.ndim :]
        plain = self._is_plain(s)
        before = self._before(place, index) if plain or s.op == "gload" else None
        old = before.value if before is not None else ""
        if not old and any(may_meet(place, index, w.place, w.index) for w in self.late):
            self.flush()
        if old:
            self.values[s] = (old, False)
        elif plain or s.op == "gload":
            ptr, _ = memory.address(self, place, index)
            self.values[s] = (memory.read(self, place.dtype, ptr, "uniform", memory.alignment(place)), False)
        else:
            super().statement(s)
            if s not in self.uniform.used and " = atomicrmw " in self.lines[-1]:
                self.late.append(Waiting(place, index, self.lines.pop()))
        if plain:
            ptr, _ = memory.address(self, place, index)
            given = [self.operand(x, False) for x in values]
            new = memory.combine(self, atomic_of(s)[1], place.dtype, False, self.values[s][0], given)
            self._wait(place, index, ptr, new)

    def _before(self, place: Place, index: tuple[Operand, ...]) -> Waiting | None:
        """The store to this element that waits, if no later one may have changed it."""
        for w in reversed(self.late):
            if same_array(w.place, place) and w.index == index:
                return w
            if may_meet(w.place, w.index, place, index):
                return None
        return None

    def _wait(self, place: Place, index: tuple[Operand, ...], ptr: str, value: str) -> None:
        """Store a value later, in place of one to the same element that waits."""
        before = self._before(place, index)
        if before is not None and before.value:
            self.late.remove(before)
        memory.write(self, place.dtype, value, ptr, "uniform", memory.alignment(place))
        self.late.append(Waiting(place, index, self.lines.pop(), value))

    def flush(self) -> None:
        """Write the stores that wait, in their order."""
        lines, self.late = [w.line for w in self.late], []
        if lines and self.team.size > 1 and not self.team.inside:
            self.team.by_first(lines)
        else:
            self.lines += lines

    def _add(self, s: Op, total: str) -> None:
        """Add what an atomic of a divided loop has summed up in all lanes of a team."""
        place, _ = atomic_of(s)
        index = s.args[: place.ndim]
        if self._before(place, index) is not None or any(may_meet(place, index, w.place, w.index) for w in self.late):
            self.flush()
        ptr, _ = memory.address(self, place, index)
        begin = len(self.lines)
        (memory.update if self._is_plain(s) else memory.exchange)(self, "add", place, ptr, [total])
        self.lines, lines = self.lines[:begin], self.lines[begin:]
        self.team.by_first(lines)

    def trial_base(self, place: Place) -> str:
        """The trial's part of a buffer: that of its group, from the trial's first number on."""
        width, base = self.target.trials, memory.buffer_base(self, place.buffer)
        size = memory.trial_bytes(self, place)
        group, mine = (self.hoist((how, width), f"{how} i64 %trial, {width}") for how in ("udiv", "urem"))
        whole = width * size if isinstance(size, int) else self.hoist(("group of", size), f"mul i64 {size}, {width}")
        skip = self.hoist(("group", whole), f"mul i64 {group}, {whole}")
        start = self.hoist(("group", base, whole), f"getelementptr i8, ptr {base}, i64 {skip}")
        skip = self.hoist(("mine", place.dtype.size), f"mul i64 {mine}, {place.dtype.size}")
        return self.hoist(("mine", start, place.dtype.size), f"getelementptr i8, ptr {start}, i64 {skip}")

    def report_failure(self, s: Message, args: tuple[Operand, ...], lanes: str) -> None:
        """Record the failure of a trial, if it is its first, and that there is one."""
        at = [memory.address(self, FAILURE, (Const(k, i64),))[0] for k in range(FAILED_WORDS)]
        swap = f"cmpxchg ptr {at[FAILED_CODE]}, i32 0, i32 {self.info.codes[s]} {self.scope}monotonic monotonic"
        record_failure(self, s, args, at, self.t(f"extractvalue {{ i32, i1 }} {self.t(swap)}, 1"))

    def thread(self) -> str:
        return "%thread"

    def atomic(self, s: Op, ptr: str, values: list[str]) -> str:
        """An atomic that other lanes of the trial may disturb; what the place held."""
        place, code = atomic_of(s)
        return memory.exchange(self, code, place, ptr, values)

    def claim_row(self, s: ClaimRow) -> None:
        """Every thread has its row."""

    def leave(self) -> None:
        """An iteration has failed: the trial's task ends here."""
        self.jump_out(self.finish)


def emit_task(e: GridTrialEmitter, name: str) -> None:
    """Add the function of one task: ``void name(ARGS)``."""
    unset = conditional_locals(e.task)
    if e.side_by_side.lanes > 1 and not e.task.parallel:
        first = e.label("first")
        e.branch(e.t(f"icmp ult i32 %lane, {e.team.size}"), first, e.finish)
        e.at(first)
    compute_prologue(e)
    grid_reduce.start(e)
    bounds = bounds_of(e)
    grid_rows.find(e, e.thread())
    if e.task.axes:
        _iterations(e, *bounds, unset)
    else:
        for x in unset:
            e.reset(x)
        e.block(e.task.body)
    for r in e.task.reductions:
        _fold(e, r)
    e.jump(e.finish)
    e.at(e.finish)
    e.put("ret void")
    head = [f"define internal void @{name}({ARGS}) nounwind alwaysinline {{", "entry:"]
    e.module.functions.append("\n".join([*head, *e.slots, *e.head, *e.lines, "}"]))


def _iterations(e: GridTrialEmitter, begins: list[str], sizes: list[str], count: str, unset: list[Local]) -> None:
    """The iterations of the lane's team: ``n, n + teams, ..`` of a parallel loop, all of another one."""
    ty = "i32" if is_narrow(e, begins) else "i64"
    first, step = "0", 1
    if e.task.parallel and e.side_by_side.lanes > 1:
        step, size = e.side_by_side.lanes // e.team.size, e.team.size
        first = "%lane" if size == 1 else e.t(f"lshr i32 %lane, {size.bit_length() - 1}")
    if first != "0" and ty == "i64":
        first = e.t(f"zext i32 {first} to i64")

    def run(now: str) -> None:
        start_iteration(e, now, ty, begins, sizes)
        for x in unset:
            e.reset(x)
        e.block(e.task.body)

    strided(e, ty, "iteration", first, count, str(step), run)


def strided(e: GridTrialEmitter, ty: str, name: str, begin: str, end: str, step: str, run: Callable[[str], None]) -> None:
    """Add a loop over the numbers ``begin``, ``begin + step``, .. that are less than ``end``; ``run`` adds its body for one of them."""
    at, body, out = e.slot(ty), e.label(name), e.label("done")
    e.put(f"store {ty} {begin}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {begin}, {end}"), body, out)
    e.at(body)
    now = e.t(f"load {ty}, ptr {at}")
    run(now)
    following = e.t(f"add nsw {ty} {now}, {step}")
    e.put(f"store {ty} {following}, ptr {at}")
    e.branch(e.t(f"icmp slt {ty} {following}, {end}"), body, out)
    e.at(out)


def _fold(e: GridTrialEmitter, r: Reduction) -> None:
    """What the lane has reduced goes into the place: each lane by an atomic, where there are several."""
    d = r.local.dtype
    value, after = e.t(f"load {e.ty(d, False)}, ptr {e.local(r.local)}"), e.label("reduced")
    if e.side_by_side.lanes > 1 or not r.sure:  # a lane without iterations, or an element that need not exist
        exists = e.label("exists")
        adds = differs(e, r, value)
        e.branch(e.t(f"and i1 {adds}, {e.team.is_first()}") if e.team.size > 1 else adds, exists, after)
        e.at(exists)
    ptr, _ = memory.address(e, r.place, r.index)
    if e.side_by_side.lanes > 1:
        memory.exchange(e, r.code, r.place, ptr, [value])
    else:
        memory.update(e, r.code, r.place, ptr, [value])
    e.jump(after)
    e.at(after)


def emit_chunk(e: GridTrialEmitter, name: str, tasks: list[tuple[str, Task]]) -> None:
    """Add the chunk of a kernel.

    Args:
        e: fresh, of any task of the kernel.
        name: of the function.
        tasks: in their order, with the names of their functions.
    """
    alive = e.slot("i1")
    e.put(f"store i1 %alive, ptr {alive}")
    if any(_fails(task) for _, task in tasks):
        _look(e, alive)
    for function, task in tasks:
        run, ran = e.label("run"), e.label("ran")
        e.branch(e.t(f"load i1, ptr {alive}"), run, ran)
        e.at(run)
        e.put(f"call void @{function}({ARGS})")
        e.jump(ran)
        e.at(ran)
        meet(e)
        if _fails(task):
            _look(e, alive)
    e.put(f"ret i1 {e.t(f'load i1, ptr {alive}')}")
    define_chunk(e, name)


def meet(e: GridTrialEmitter) -> None:
    """The lanes of a trial wait for each other, and see what they have written: in one wave, or in one block."""
    if e.side_by_side.lanes > e.target.wave:
        e.hardware.barrier(e)
    elif e.side_by_side.lanes > 1:
        e.hardware.wave_barrier(e)


def define_chunk(e: GridTrialEmitter, name: str) -> None:
    """Add the function whose code the emitter holds."""
    head = [f"define internal i1 @{name}({ARGS}, i1 %alive) nounwind {{", "entry:"]
    e.module.functions.append("\n".join([*head, *e.slots, *e.head, *e.lines, "}"]))


def _fails(task: Task) -> bool:
    """Whether an iteration can fail; every thread has an adstack row."""
    return any(isinstance(s, (Assert, Overflow)) for s in walk(task.body))


def _look(e: GridTrialEmitter, alive: str) -> None:
    """Whether the trial has failed by now. A lane that looks late may find a failure of the next task, and leaves that out, too."""
    look, on = e.label("look"), e.label("on")
    e.branch(e.t(f"load i1, ptr {alive}"), look, on)
    e.at(look)
    code, _ = memory.address(e, FAILURE, (Const(FAILED_CODE, i64),))
    now = e.t(f"load atomic volatile i32, ptr {code} {e.scope}monotonic, align 4")
    e.put(f"store i1 {e.t(f'icmp eq i32 {now}, 0')}, ptr {alive}")
    e.jump(on)
    e.at(on)
