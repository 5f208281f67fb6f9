"""The host's side of a kernel on a GPU: ``void <symbol>(ptr args)``, code for the processor, which launches the device functions.

For each task it computes the bounds, where they do not depend on the device's memory, and the grid, puts the words that the device
function wants side by side, and calls the driver. Nothing here waits for the device. A launch that the driver refuses is noted in the
status record as minus its error code, and ends the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....ir.nodes import ClaimRow, Op, Task
from ....ir.walk import conditional_locals, cooperates, meets_in_grid
from ...abi import (
    CTX_FUNCTIONS,
    CTX_GPU,
    CTX_LAUNCHES,
    CTX_SCRATCH,
    CTX_STATUS,
    RECENT,
    SCRATCH_CLAIMS,
    SCRATCH_MET,
    SCRATCH_PARTIALS,
    TABLE_BEGUN,
    TABLE_LAUNCHES,
    TABLE_PROCESSORS,
    TABLE_RECENT,
    TABLE_RESIDENT,
    TABLE_SCRATCH,
    TABLE_STREAM,
)
from ...llvm.emitter import KernelInfo
from ...llvm.function import LlvmModule
from ...llvm.kernel import stores_to_fields, symbol
from ...llvm.task_emitter import TaskEmitter
from ...llvm.uniform import Shapes
from ..barriers import threads_of
from ..hardware import DeviceFunction, GpuTarget, ParamWord
from ..prologue import begin_and_size, where
from .emitter import to_word
from .rows import on_chip, shared_bytes

LAUNCH, TOGETHER, MEMSET = "qd_launch", "qd_launch_together", "qd_memset"
"""The functions of the driver that an entry calls. They return 0, or the code of a failure::

    int qd_launch(function, blocks, 1, 1, threads of a block, 1, 1, bytes of on-chip memory, stream, null, extra)
    int qd_launch_together(the same): fails where not all blocks can run at the same time
    int qd_memset(address, 4-byte word, how many of them, stream)

``extra`` is null, or {1, address of the packed parameters, 2, address of their size, ``GpuTarget.launch_end``}.
"""
_LAUNCH = "(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)"
_MEMSET = f"declare i32 @{MEMSET}(ptr, i32, i64, ptr)"
_ROUNDS = 16
"""Maximum blocks of a launch with wide accesses, in multiples of the resident blocks of the device."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Begin and size of each axis and the number of iterations, i64; the number of the launch. ``count`` is empty where only the
    device knows them.
    """

    begins: list[str]
    sizes: list[str]
    count: str
    launch: str


def emit_entry(module: LlvmModule, info: KernelInfo, target: GpuTarget, functions: list[DeviceFunction]) -> None:
    """Add the entry function to the host module.

    Args:
        module: of the host.
        info: the kernel.
        target: the GPU.
        functions: the device functions in the order of their launches; the handles lie in this order at ``CTX_FUNCTIONS``.
    """
    slots: list[str] = []
    lines: list[str] = []
    launch = ""
    by_task: dict[Task, list[tuple[int, DeviceFunction]]] = {}
    for k, f in enumerate(functions):
        by_task.setdefault(f.task, []).append((k, f))
    for e in task_emitters(module, info, slots, lines):
        task = e.task
        if task is info.kernel.tasks[0] and any(w.kind == "launch" for f in functions for w in f.words):
            launch = _begin(e)
        _run_task(e, task, target, by_task[task], launch)
    define_entry(module, info, slots, lines)


def task_emitters(module: LlvmModule, info: KernelInfo, slots: list[str], lines: list[str]) -> Iterator[TaskEmitter]:
    """An emitter for the host's side of each task. What each has emitted comes to ``slots`` and ``lines``, which are one function."""
    number = 0
    for task in info.kernel.tasks:
        e = TaskEmitter(module, info, task, Shapes(), 1, True)
        e._n = number  # registers of all tasks share this function
        yield e
        number = e._n
        slots += e.slots
        lines += e.head + e.lines


def define_entry(module: LlvmModule, info: KernelInfo, slots: list[str], lines: list[str]) -> None:
    """Add the function whose code launches, with what comes before and after."""
    ended = ["  br label %ended", "ended:", f"  %table.p = getelementptr i64, ptr %ctx, i64 {CTX_GPU}"]
    ended += ["  %table = load ptr, ptr %table.p", *_count("%table", TABLE_LAUNCHES, "launches")]
    ended += [
        f"  %recent = and i64 %launches.old, {RECENT - 1}",
        f"  %recent.n = add i64 %recent, {TABLE_RECENT}",
        "  %recent.p = getelementptr i64, ptr %table, i64 %recent.n",
        "  store ptr %ctx, ptr %recent.p",
    ]
    if stores_to_fields(info.kernel):
        ended += _count("%ctx", CTX_LAUNCHES, "stores")
    refused = [
        "  ret void",
        "refused:",
        "  %code = load i64, ptr %refusal",
        f"  %status.p = getelementptr i64, ptr %ctx, i64 {CTX_STATUS}",
        "  %status = load ptr, ptr %status.p",
        "  %refused.old = cmpxchg ptr %status, i64 0, i64 %code monotonic monotonic",
        "  br label %ended",
    ]
    head = [f"define void @{symbol(info.kernel)}(ptr %args) nounwind {{", "entry:", "  %refusal = alloca i64", *slots]
    head.append("  %ctx = load ptr, ptr %args, !invariant.load !0")
    module.functions.append("\n".join([*head, *lines, *ended, *refused, "}"]))


def _count(base: str, word: int, name: str) -> list[str]:
    return [
        f"  %{name}.p = getelementptr i64, ptr {base}, i64 {word}",
        f"  %{name}.old = atomicrmw add ptr %{name}.p, i64 1 release",
    ]


def _table(e: TaskEmitter, word: int, ty: str = "i64") -> str:
    """A word of the device's launch table."""
    p = e.hoist(("table*", word), f"getelementptr i64, ptr {e.context(CTX_GPU, 'ptr')}, i64 {word}")
    return e.hoist(("table", word), f"load {ty}, ptr {p}")


def _begin(e: TaskEmitter) -> str:
    """The number of a launch: no two of a device have the same."""
    p = e.t(f"getelementptr i64, ptr {e.context(CTX_GPU, 'ptr')}, i64 {TABLE_BEGUN}")
    return e.t(f"add i64 {e.t(f'atomicrmw add ptr {p}, i64 1 monotonic')}, 1")


def _zero(e: TaskEmitter, word: int) -> None:
    """Zero a word of the scratch memory, in the stream."""
    e.module.declare(MEMSET, _MEMSET)
    at = e.hoist(("scratch", word), f"getelementptr i64, ptr {e.context(CTX_SCRATCH, 'ptr')}, i64 {word}")
    _checked(e, e.t(f"call i32 @{MEMSET}(ptr {at}, i32 0, i64 2, ptr {_table(e, TABLE_STREAM, 'ptr')})"))


def _checked(e: TaskEmitter, code: str) -> None:
    """Leave with minus the code of a call that failed."""
    on, bad = e.label("on"), e.label("bad")
    e.branch(e.t(f"icmp ne i32 {code}, 0"), bad, on, unlikely=True)
    e.at(bad)
    wide = e.t(f"zext i32 {code} to i64")
    e.put(f"store i64 {e.t(f'sub i64 0, {wide}')}, ptr %refusal")
    e.jump("refused")
    e.at(on)


def _run_task(e: TaskEmitter, task: Task, target: GpuTarget, functions: list[tuple[int, DeviceFunction]], launch: str) -> None:
    """Prologue, bounds, launches of one task."""
    start, after = e.label("task"), e.label("after")
    e.head += [f"  br label %{start}", f"{start}:"]
    bounds = Bounds([], [], "1", launch)
    if where(task) == "host":
        for x in conditional_locals(Task("", task.prologue)):
            e.reset(x)
        e.block(task.prologue)
        bounds = _bounds(e, task, launch) if task.axes else bounds
    elif task.axes:
        bounds = Bounds([], [], "", launch)
    if task.axes and bounds.count:
        some = e.label("some")
        e.branch(e.t(f"icmp sgt i64 {bounds.count}, 0"), some, after)
        e.at(some)
    if gated(task):
        _zero(e, SCRATCH_CLAIMS)
    if meets_in_grid(task):
        _zero(e, SCRATCH_MET)
    for position, f in functions:
        wide = task.parallel and not f.before
        block = "1"
        if wide:
            block = _block(e, target, bounds.count) if f.flexible and bounds.count else str(threads_of(task, target))
        blocks = _blocks(e, f, target, block, bounds.count) if wide else "1"
        _launch(e, target, f, position, blocks, block, bounds)
    e.jump(after)
    e.at(after)


def gated(task: Task) -> bool:
    """Whether threads claim adstack rows by a counter: not every iteration needs one."""
    return bool(task.parallel and task.stacks) and not any(isinstance(s, ClaimRow) for s in task.body)


def _bounds(e: TaskEmitter, task: Task, launch: str) -> Bounds:
    """The values of the prologue."""
    begins, sizes, n = [], [], ""
    for axis in task.axes:
        begin, size = begin_and_size(e, axis)
        begins.append(begin)
        sizes.append(size)
        n = e.t(f"mul i64 {n}, {size}") if n else size
    return Bounds(begins, sizes, n, launch)


def _block(e: TaskEmitter, target: GpuTarget, count: str) -> str:
    """Threads of a block: fewer where few iterations would else leave multiprocessors without work."""
    block = str(target.block)
    for size in (target.block // 2, target.block // 4):
        if size >= target.wave:
            most = e.t(f"mul i64 {_table(e, TABLE_PROCESSORS)}, {2 * size}")
            block = e.t(f"select i1 {e.t(f'icmp slt i64 {count}, {most}')}, i64 {size}, i64 {block}")
    return block


def _blocks(e: TaskEmitter, f: DeviceFunction, target: GpuTarget, block: str, count: str) -> str:
    """Blocks of a launch: one thread for each iteration, at most as many as the device holds at once or the plan has threads, and no more
    than there is room for their partial results. With wide accesses more, if each thread has enough to do.
    """
    e.module.declare("smin64", "declare i64 @llvm.smin.i64(i64, i64)")
    task = f.task
    if cooperates(task) and count:
        return least(e, rounded_up(e, count, block), str(target.most_blocks))
    if task.stacks:
        most = rounded_up(e, e.param("threads"), block)
    else:
        per = e.t(f"udiv i64 {_table(e, TABLE_RESIDENT)}, {block}")
        if cooperates(task) or (
            block.isdigit() and int(block) > target.block
        ):  # an emulated device holds fewer threads than that
            e.module.declare("umax64", "declare i64 @llvm.umax.i64(i64, i64)")
            per = e.t(f"call i64 @llvm.umax.i64(i64 {per}, i64 1)")
        most = e.t(f"mul i64 {_table(e, TABLE_PROCESSORS)}, {per}")
    if task.reductions:
        words = e.t(f"sub i64 {e.t(f'udiv i64 {_table(e, TABLE_SCRATCH)}, 8')}, {SCRATCH_PARTIALS}")
        most = least(e, most, e.t(f"udiv i64 {words}, {len(task.reductions)}"))
    if not count:
        return least(e, most, str(target.most_blocks))
    blocks = least(e, most, rounded_up(e, count, block))
    if f.wide == 1 or task.reductions:
        return blocks
    busy = e.t(f"udiv i64 {count}, {e.t(f'mul i64 {block}, {f.wide}')}")
    rounds = least(e, e.t(f"mul i64 {most}, {_ROUNDS}"), busy)
    e.module.declare("smax64", "declare i64 @llvm.smax.i64(i64, i64)")
    return e.t(f"call i64 @llvm.smax.i64(i64 {blocks}, i64 {rounds})")


def rounded_up(e: TaskEmitter, n: str, by: str) -> str:
    """``n`` divided by ``by``, rounded up."""
    if by == "1":
        return n
    return e.t(f"udiv i64 {e.t(f'add i64 {n}, {_less_one(e, by)}')}, {by}")


def _less_one(e: TaskEmitter, n: str) -> str:
    return str(int(n) - 1) if n.isdigit() else e.t(f"sub i64 {n}, 1")


def least(e: TaskEmitter, a: str, b: str) -> str:
    """The smaller of two numbers."""
    return e.t(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")


def _launch(
    e: TaskEmitter, target: GpuTarget, f: DeviceFunction, position: int, blocks: str, block: str, bounds: Bounds
) -> None:
    shared = "0"
    if not f.before and any(on_chip(e, stack) for stack in f.task.stacks):
        threads = "1" if target.private_tapes else block
        shared = e.t(f"trunc i64 {e.t(f'mul i64 {shared_bytes(e, f.task)}, {threads}')} to i32")
    together = not f.before and meets_in_grid(f.task)
    given = [_value(e, word, bounds) for word in f.words]
    launch_words(e, target, given, position, blocks, block, shared, TOGETHER if together else LAUNCH)


def launch_words(
    e: TaskEmitter,
    target: GpuTarget,
    given: list[tuple[str, str]],
    position: int,
    blocks: str,
    block: str,
    shared: str,
    call: str = LAUNCH,
) -> None:
    """Words (type and register of each), then the call. All parameters are one packed buffer, which the driver copies."""
    e.module.declare(call, f"declare i32 @{call}{_LAUNCH}")
    extra = "null"
    if given:
        words, size, extra = e.slot(f"[{len(given)} x i64]"), e.slot("i64"), e.slot("[5 x i64]")
        for k, (ty, value) in enumerate(given):
            e.put(f"store {ty} {value}, ptr {e.t(f'getelementptr i64, ptr {words}, i64 {k}')}")
        e.put(f"store i64 {8 * len(given)}, ptr {size}")
        for k, item in enumerate(("i64 1", f"ptr {words}", "i64 2", f"ptr {size}", f"i64 {target.launch_end}")):
            e.put(f"store {item}, ptr {e.t(f'getelementptr i64, ptr {extra}, i64 {k}')}")
    handle = e.t(f"getelementptr i64, ptr {e.context(CTX_FUNCTIONS, 'ptr')}, i64 {position}")
    handle = e.t(f"load ptr, ptr {handle}")
    grid = blocks if blocks.isdigit() else e.t(f"trunc i64 {blocks} to i32")
    threads = block if block.isdigit() else e.t(f"trunc i64 {block} to i32")
    dims = f"i32 {grid}, i32 1, i32 1, i32 {threads}, i32 1, i32 1, i32 {shared}"
    stream = _table(e, TABLE_STREAM, "ptr")
    _checked(e, e.t(f"call i32 @{call}(ptr {handle}, {dims}, ptr {stream}, ptr null, ptr {extra})"))


def _value(e: TaskEmitter, word: ParamWord, bounds: Bounds) -> tuple[str, str]:
    """Type and register of a device function's parameter."""
    what = word.what
    match word.kind:
        case "ctx":
            assert isinstance(what, int)
            return word.ty, e.context(what, word.ty)
        case "arg":
            assert isinstance(what, int)
            return word.ty, e.argument(what, word.ty)
        case "begin":
            assert isinstance(what, int)
            return "i64", bounds.begins[what]
        case "size":
            assert isinstance(what, int)
            return "i64", bounds.sizes[what]
        case "count":
            return "i64", bounds.count
        case "launch":
            return "i64", bounds.launch
        case "self":
            return "ptr", "%ctx"
    assert word.kind == "value" and isinstance(what, Op)
    return "i64", to_word(e, e.operand(what, False), what.dtype)
