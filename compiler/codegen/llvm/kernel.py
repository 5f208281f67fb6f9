"""A kernel's entry function and the module around it."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.nodes import Kernel, Loop, LoopOrder, Op, RowOrder, Task
from ...ir.walk import conditional_locals, walk, written_places
from ..abi import ALL_THREADS, CTX_LAUNCHES, CTX_POOL, CTX_STATUS, WAYS, arg_offsets, context_layout, messages
from ..gpu.prologue import begin_and_size
from ..math.calls import settle
from ..sums.partial_sums import MAX_CHUNKS, combine_partials
from .cost import gains_by_packing, grain, least_of_sums
from .emitter import KernelInfo
from .function import UNPACKED, LlvmModule
from .in_order import FRAME_TURN, least_chunk, order_of
from .report import prints
from .rows import FRAME_CLAIMS, new_claims
from .target import Target
from .task import FRAME_AXES, FRAME_CHUNK, FRAME_PARTIALS, emit_task
from .task_emitter import TaskEmitter
from .trials import chunk_of, emit_trials
from .uniform import Shapes

_HELPERS = frozenset("print record launch memset launch_together parallel_for parallel_for_up_to".split())
"""Functions of a kernel's modules whose names a kernel could have, too. Those of mathematics and of shared arrays end in a number."""


def symbol(kernel: Kernel) -> str:
    """The name of the entry function, which no other function has."""
    name = "".join([c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in kernel.name])
    like_helper = name in _HELPERS or ("_" in name and name[-1].isdigit())
    return f"qd_{name}_" if like_helper else f"qd_{name}"


def exports_of(kernel: Kernel, batched: bool) -> list[str]:
    """The exported functions of a kernel: the entry, and for a batched one the chunk function."""
    return [symbol(kernel), chunk_of(symbol(kernel))] if batched else [symbol(kernel)]


def emit_kernel(
    kernel: Kernel,
    target: Target,
    plain: frozenset[Op] = frozenset(),
    ordered: frozenset[Op] = frozenset(),
    rows: Mapping[Task, RowOrder] | None = None,
    loops: Mapping[Loop, LoopOrder] | None = None,
) -> str:
    """A kernel as LLVM text: ``void <symbol>(ptr args)`` and what it calls.

    Args:
        kernel: verified IR with exits lowered.
        target: the machine and the number of lanes.
        plain: atomics that no other iteration can disturb; they become a load and a store.
        ordered: atomics whose order decides bits; their tasks run their iterations in order.
        rows: the order of the rows of some tasks; those of others run one iteration after the other.
        loops: that of some serial loops.

    Raises:
        Unsupported: the kernel has something that this target or lane width cannot do.
    """
    module = LlvmModule(target)
    codes = {s: k + 1 for k, s in enumerate(messages(kernel))}
    sites = {s: k for k, s in enumerate(prints(kernel))}
    info = KernelInfo(
        kernel,
        context_layout(kernel),
        arg_offsets(kernel.args),
        codes,
        sites,
        plain,
        order=order_of(kernel, ordered, target),
        rows=rows or {},
        loops=loops or {},
    )
    names = [f"{symbol(kernel)}.{k}" for k in range(len(kernel.tasks))]
    if target.trials and kernel.tasks:
        ended = ["  " + line for line in _count("%launches")] if stores_to_fields(kernel) else []
        emit_trials(module, info, names, symbol(kernel), ended)
    else:
        for task, name in zip(kernel.tasks, names):
            emit_task(module, info, task, name)
        _emit_entry(module, info, names)
    settle(module)
    packed = "" if gains_by_packing(kernel.tasks) else UNPACKED
    return module.text(f"; kernel {symbol(kernel)} for {target.name}, {target.lanes} lanes{packed}")


def _emit_entry(module: LlvmModule, info: KernelInfo, names: list[str]) -> None:
    slots: list[str] = []
    lines: list[str] = []
    number, counts = 0, stores_to_fields(info.kernel)
    ended = ["  " + line for line in _count("%launches")] if counts else []
    for task, name in zip(info.kernel.tasks, names):
        e = TaskEmitter(module, info, task, Shapes(), 1, True)
        e._n = number  # registers of all tasks share this function
        _run_task(e, task, name, counts)
        number = e._n
        slots += e.slots
        lines += e.head + e.lines
    most = max((len(t.reductions) for t in info.kernel.tasks), default=0)
    if most:
        slots.append(f"  %partials = alloca [{MAX_CHUNKS * most} x i64]")
    head = [f"define void @{symbol(info.kernel)}(ptr %args) nounwind {{", "entry:", *slots]
    head.append("  %ctx = load ptr, ptr %args, !invariant.load !0")
    module.functions.append("\n".join([*head, *lines, *ended, "  ret void", "}"]))


def stores_to_fields(kernel: Kernel) -> bool:
    """Whether a kernel stores to fields."""
    written = (p for t in kernel.tasks for p in (*written_places(t.body), *(r.place for r in t.reductions)))
    return any(p.buffer.kind == "field" for p in written)


def _count(name: str) -> list[str]:
    """Count a finished launch, even a failed one: plans that read its stores must be checked again."""
    return [
        f"{name} = getelementptr i64, ptr %ctx, i64 {CTX_LAUNCHES}",
        f"{name}.old = atomicrmw add ptr {name}, i64 1 monotonic",
    ]


def _run_task(e: TaskEmitter, task: Task, name: str, counts: bool) -> None:
    """Prologue, frame, call; the code of one task in the entry, which may count its launches."""
    start = e.label("task")
    e.head += [f"  br label %{start}", f"{start}:"]
    for x in conditional_locals(Task("", task.prologue)):
        e.reset(x)
    e.block(task.prologue)
    frame = e.slot(f"[{FRAME_AXES + 2 * len(task.axes)} x i64]")
    e.put(f"store ptr %args, ptr {frame}")
    if task.reductions:
        e.put(f"store ptr %partials, ptr {_word(e, frame, FRAME_PARTIALS)}")
    if task.stacks and task.parallel:
        e.put(f"store ptr {new_claims(e)}, ptr {_word(e, frame, FRAME_CLAIMS)}")
    if task.axes:
        _run_axes(e, task, name, frame)
    else:
        e.put(f"call void @{name}(ptr {frame}, i64 0, i64 1, i64 0)")
    if any(s in e.info.codes for s in walk(task.body)):  # type: ignore[operator]
        status = e.t(f"load i64, ptr {e.context(CTX_STATUS, 'ptr')}")
        stop, on = e.label("stop"), e.label("on")
        e.branch(e.t(f"icmp ne i64 {status}, 0"), stop, on, unlikely=True)
        e.at(stop)
        for line in _count(f"%{e.label('launches')}") if counts else ():
            e.put(line)
        e.put("ret void")
        e.at(on)


def _word(e: TaskEmitter, frame: str, word: int) -> str:
    return e.t(f"getelementptr i64, ptr {frame}, i64 {word}")


def _run_axes(e: TaskEmitter, task: Task, name: str, frame: str) -> None:
    """The extents, the number of iterations, the chunks; then the loop, here or in the pool."""
    n = ""
    for k, axis in enumerate(task.axes):
        begin, size = begin_and_size(e, axis)
        e.put(f"store i64 {begin}, ptr {_word(e, frame, FRAME_AXES + 2 * k)}")
        e.put(f"store i64 {size}, ptr {_word(e, frame, FRAME_AXES + 2 * k + 1)}")
        n = e.t(f"mul i64 {n}, {size}") if n else size
    some, after = e.label("some"), e.label("after")
    e.branch(e.t(f"icmp sgt i64 {n}, 0"), some, after)
    e.at(some)
    chunk = _chunk(e, task, n)
    e.put(f"store i64 {chunk}, ptr {_word(e, frame, FRAME_CHUNK)}")
    if task in e.info.order.deferred:
        e.put(f"store i64 0, ptr {_word(e, frame, FRAME_TURN)}")
    if task.parallel and (task.reductions or task not in e.info.order.alone):
        small, large, ran = e.label("small"), e.label("large"), e.label("ran")
        e.branch(e.t(f"icmp sle i64 {n}, {chunk}"), small, large)
        e.at(small)
        e.put(f"call void @{name}(ptr {frame}, i64 0, i64 {n}, i64 0)")
        e.jump(ran)
        e.at(large)
        _call_pool(e, task, f"ptr {e.context(CTX_POOL, 'ptr')}, ptr @{name}, ptr {frame}, i64 {n}, i64 {chunk}")
        e.jump(ran)
        e.at(ran)
    else:
        e.put(f"call void @{name}(ptr {frame}, i64 0, i64 {n}, i64 0)")
    if task.reductions:
        _combine(e, task, n, chunk)
    e.jump(after)
    e.at(after)


def _call_pool(e: TaskEmitter, task: Task, args: str) -> None:
    """All threads, or as many as the plan of the adstack counts on; the caller alone, chunk by chunk, where sums are made in order."""
    name = "qd_parallel_for_in_order" if task in e.info.order.deferred else "qd_parallel_for_up_to"
    limit = "1" if task in e.info.order.alone else e.param("threads") if task.stacks else str(ALL_THREADS)
    e.module.declare(name, f"declare void @{name}(ptr, ptr, ptr, i64, i64, i64)")
    e.put(f"call void @{name}({args}, i64 {limit})")


def _combine(e: TaskEmitter, task: Task, n: str, chunk: str) -> None:
    """Unless an iteration failed (then no partial result can be trusted), fold the partial results."""
    status = e.t(f"load i64, ptr {e.context(CTX_STATUS, 'ptr')}")
    fold, skip = e.label("fine"), e.label("skip")
    e.branch(e.t(f"icmp eq i64 {status}, 0"), fold, skip)
    e.at(fold)
    last = e.t(f"add i64 {n}, {e.t(f'sub i64 {chunk}, 1')}")
    chunks = e.t(f"udiv i64 {last}, {chunk}")
    for k, r in enumerate(task.reductions):
        combine_partials(e, k, r, chunks)
    e.jump(skip)
    e.at(skip)


def _chunk(e: TaskEmitter, task: Task, n: str) -> str:
    """Iterations per chunk: from n and the body alone, so that sums have the same bits on any number of threads."""
    if not task.parallel or (task in e.info.order.alone and not task.reductions):
        return n
    lanes = e.module.target.lanes_of(e.number, task)
    if not task.reductions:
        least = grain(task, lanes)
        if task in e.info.order.deferred:
            return str(least_chunk(task, e.info.order, least))
        return _enough(e, n, least, lanes)
    least = least_of_sums(task, lanes)
    return _enough(e, n, least, WAYS if least % WAYS == 0 else lanes)


def _enough(e: TaskEmitter, n: str, least: int, unit: int) -> str:
    """The iterations of each of ``MAX_CHUNKS`` chunks, in units, or the least number if that is more."""
    per = e.t(f"udiv i64 {e.t(f'add i64 {n}, {MAX_CHUNKS * unit - 1}')}, {MAX_CHUNKS * unit}")
    per = e.t(f"mul i64 {per}, {unit}") if unit > 1 else per
    return e.t(f"call i64 @llvm.smax.i64(i64 {per}, i64 {least})")
