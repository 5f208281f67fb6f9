"""Kernels of a batched program as modules for a GPU: a launch of one kernel, or of a sequence of launches that was recorded.

Both are one function of the device. Each thread takes trials, one after the other, and runs on each of them all that is launched: the tasks
of a kernel, or a table of launches in the device's memory, which every thread walks. Nothing is waited for but the lanes of a trial.

The function's parameters are 8-byte words, packed: how many trials there are, for a table its address and the number of its launches, and
the words that all launches of a chunk have in common (``trials.LaunchWords``). A launch in a table is the number of its chunk, its size in
words, and the other words of the chunk. One more launch stands at the end, which is read and not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....ir.nodes import Kernel, Op, Task
from ...llvm.function import LlvmModule
from ...llvm.kernel import symbol
from ...llvm.target import Target
from ..abilities import check
from ..grid.entry import emit_entry
from ..grid.kernel import GridCode, info_of
from ..hardware import GpuTarget, ParamWord
from .entry import emit_trial_entry
from .task import GridTrialEmitter, LaunchWords, TaskChunk, TrialShape, define_chunk, emit_chunk, emit_task, meet, strided

TRIALS, PARAMETERS = 0, 1
"""Words of the parameters: how many trials there are; the first of the others."""
TABLE, LAUNCHES = 1, 2
"""Words of the parameters of a table: its address, and how many launches it has."""
NUMBER, SIZE, WORDS = 0, 1, 2
"""Words of a launch in a table: the number of its chunk, its words in all, the first of the chunk's."""


_MOST_BLOCKS = 16
"""Blocks that every GPU can hold on a multiprocessor."""
FILL = (
    ParamWord("fill", "to", "ptr"),
    ParamWord("fill", "group"),
    ParamWord("fill", "count"),
    ParamWord("fill", "step"),
    ParamWord("fill", "value"),
)
"""What a fill reads: where the first trial's elements begin, bytes from one group of trials to the next, how many elements a trial has,
bytes from one of them to the next, their bits."""


@dataclass(frozen=True, slots=True, eq=False)
class TrialSource:
    """A kernel of a sequence.

    Attributes:
        kernel: verified IR with exits lowered, in the form that a device compiles.
        plain: atomics that no other iteration can disturb.
        far: tapes that lie in the heap.
    """

    kernel: Kernel
    plain: frozenset[Op] = frozenset()
    far: frozenset[str] = frozenset()


def emit_chunks(
    module: LlvmModule, sources: Sequence[TrialSource], shape: TrialShape, same: Sequence[Callable[[ParamWord], object]]
) -> tuple[list[TaskChunk], list[Any]]:
    """Add the functions of kernels to the module of a device; they, and the values that they have in common.

    Args:
        module: of the device.
        sources: the kernels.
        shape: of blocks.
        same: for each kernel, ``LaunchWords.same``.
    """
    common: dict[object, int] = {}
    chunks = [
        _chunk(module, source, shape, f"{symbol(source.kernel)}_{k}", LaunchWords(same[k], common))
        for k, source in enumerate(sources)
    ]
    return chunks, list(common)


def _chunk(module: LlvmModule, source: TrialSource, shape: TrialShape, name: str, numbers: LaunchWords) -> TaskChunk:
    kernel, info = source.kernel, info_of(source.kernel, source.plain, source.far)
    tasks = [(f"{name}_{k}", task) for k, task in enumerate(kernel.tasks)]
    for function, task in tasks:
        emit_task(GridTrialEmitter(module, info, task, shape, numbers), function)
    e = GridTrialEmitter(module, info, kernel.tasks[0], shape, numbers) if tasks else _driver(module, shape)
    emit_chunk(e, f"{name}_chunk", tasks)
    return TaskChunk(f"{name}_chunk", info, tuple(numbers.own))


def emit_fill(module: LlvmModule, size: int, shape: TrialShape, copies: bool = False) -> TaskChunk:
    """Add a chunk that fills elements of ``size`` bytes of a trial. Its words are ``FILL``.

    ``copies``: with the elements of the first group of trials, which it leaves alone; it does not read the value.
    """
    e, name = _driver(module, shape), f"qd_copy_{size}" if copies else f"qd_fill_{size}"
    to, group, count, step, value = (e.parameter(w) for w in FILL)
    width, ty = e.target.trials, f"i{8 * size}"
    word = e.t(f"trunc i64 {value} to {ty}") if size < 8 else value
    begin = e.t(f"mul i64 {e.t(f'udiv i64 %trial, {width}')}, {group}")
    mine = e.t(f"mul i64 {e.t(f'urem i64 %trial, {width}')}, {size}")
    first = e.t(f"getelementptr i8, ptr {to}, i64 {mine}")
    to = e.t(f"getelementptr i8, ptr {first}, i64 {begin}")
    takes_part = "%alive"
    if copies:
        takes_part = e.t(f"and i1 %alive, {e.t(f'icmp sge i64 %trial, {width}')}")

    def run(now: str) -> None:
        skip = e.t(f"mul i64 {now}, {step}")
        source = e.t(f"getelementptr i8, ptr {first}, i64 {skip}")
        content = e.t(f"load {ty}, ptr {source}") if copies else word
        e.put(f"store {ty} {content}, ptr {e.t(f'getelementptr i8, ptr {to}, i64 {skip}')}")

    many = e.t(f"select i1 {takes_part}, i64 {count}, i64 0")
    strided(e, "i64", "fill", e.t("zext i32 %lane to i64"), many, str(shape.lanes), run)
    meet(e)
    e.put("ret i1 %alive")
    define_chunk(e, name)
    return TaskChunk(name, e.info, FILL)


def emit_launch(module: LlvmModule, chunk: TaskChunk, common: int, shape: TrialShape, name: str) -> None:
    """Add the function of the device that a launch of one kernel runs. ``common``: how many words all launches have in common."""
    e = _driver(module, shape)

    def run(at: Where) -> None:
        words = e.t(f"getelementptr i64, ptr %words, i64 {PARAMETERS}")
        e.t(_call(chunk, words, words, at, at.inside))

    _over_trials(e, run)
    _define(e, name, PARAMETERS + common)


def emit_walk(module: LlvmModule, chunks: Sequence[TaskChunk], common: int, shape: TrialShape, name: str) -> None:
    """Add the function of the device that walks a table of launches. The head of a launch is read while the one before it runs."""
    e = _driver(module, shape)
    table, launches = (_parameter(e, k, ty) for k, ty in ((TABLE, "ptr"), (LAUNCHES, "i64")))
    at, left, alive, number, size = (e.slot(ty) for ty in ("ptr", "i64", "i1", "i64", "i64"))

    def look(here: str) -> None:
        e.put(f"store ptr {here}, ptr {at}")
        for slot, k in ((number, NUMBER), (size, SIZE)):
            word = e.t(f"getelementptr i64, ptr {here}, i64 {k}")
            e.put(f"store i64 {e.t(f'load i64, ptr {word}')}, ptr {slot}")

    def run(where: Where) -> None:
        test, launch, joined, out = e.label("test"), e.label("launch"), e.label("joined"), e.label("walked")
        shared = e.t(f"getelementptr i64, ptr %words, i64 {LAUNCHES + 1}")
        look(table)
        e.put(f"store i64 {launches}, ptr {left}")
        e.put(f"store i1 {where.inside}, ptr {alive}")
        e.jump(test)
        e.at(test)
        e.branch(e.t(f"icmp sgt i64 {e.t(f'load i64, ptr {left}')}, 0"), launch, out)
        e.at(launch)
        here, now = e.t(f"load ptr, ptr {at}"), e.t(f"load i64, ptr {number}")
        words = e.t(f"getelementptr i64, ptr {here}, i64 {WORDS}")
        look(e.t(f"getelementptr i64, ptr {here}, i64 {e.t(f'load i64, ptr {size}')}"))
        for k, chunk in enumerate(chunks):
            mine, other = e.label("chunk"), e.label("other")
            e.branch(e.t(f"icmp eq i64 {now}, {k}"), mine, other)
            e.at(mine)
            goes_on = e.t(_call(chunk, shared, words, where, e.t(f"load i1, ptr {alive}")))
            e.put(f"store i1 {goes_on}, ptr {alive}")
            e.jump(joined)
            e.at(other)
        e.jump(joined)
        e.at(joined)
        fewer = e.t(f"sub i64 {e.t(f'load i64, ptr {left}')}, 1")
        e.put(f"store i64 {fewer}, ptr {left}")
        e.jump(test)
        e.at(out)

    _over_trials(e, run)
    _define(e, name, LAUNCHES + 1 + common)


@dataclass(frozen=True, slots=True)
class Where:
    """Registers of a thread at work on a trial: its number, the thread's lane and number, and whether there is such a trial (i1)."""

    trial: str
    lane: str
    thread: str
    inside: str


def _call(chunk: TaskChunk, common: str, words: str, at: Where, alive: str) -> str:
    return f"call i1 @{chunk.name}(ptr %regs, ptr {common}, ptr {words}, i64 {at.trial}, i32 {at.lane}, i64 {at.thread}, i1 {alive})"


def _driver(module: LlvmModule, shape: TrialShape) -> GridTrialEmitter:
    """For a function that belongs to no kernel."""
    nothing = Kernel("walk", [], [Task("walk", [])])
    return GridTrialEmitter(module, info_of(nothing), nothing.tasks[0], shape, LaunchWords(lambda _: None, {}))


def _parameter(e: GridTrialEmitter, word: int, ty: str) -> str:
    at = e.t(f"getelementptr i64, ptr %words, i64 {word}")
    if ty != "ptr" or not e.target.global_space:
        return e.t(f"load {ty}, ptr {at}")
    far = e.t(f"load ptr addrspace({e.target.global_space}), ptr {at}, !invariant.load !0")
    return e.t(f"addrspacecast ptr addrspace({e.target.global_space}) {far} to ptr")


def _over_trials(e: GridTrialEmitter, run: Callable[[Where], None]) -> None:
    """Every thread takes trials: neighbours side by side, the lanes of a trial in one block, which goes on together."""
    many, shape, hardware = _parameter(e, TRIALS, "i64"), e.side_by_side, e.hardware
    mine, lane = hardware.thread_in_block(e), "0"
    block, blocks = (e.t(f"zext i32 {x} to i64") for x in (hardware.block_number(e), hardware.blocks(e)))
    thread = e.t(f"add i64 {e.t(f'mul i64 {block}, {shape.block}')}, {e.t(f'zext i32 {mine} to i64')}")
    if shape.lanes > 1:
        team = max(min(e.target.wave, shape.block), shape.lanes)  # threads that meet
        side, number, thread_in_team = team // shape.lanes, e.t(f"udiv i32 {mine}, {team}"), e.t(f"urem i32 {mine}, {team}")
        lane = e.t(f"udiv i32 {thread_in_team}, {side}")
        mine = e.t(f"add i32 {e.t(f'mul i32 {number}, {side}')}, {e.t(f'urem i32 {thread_in_team}, {side}')}")
    mine = e.t(f"zext i32 {mine} to i64")

    def take(first: str) -> None:
        trial = e.t(f"add i64 {first}, {mine}")
        run(Where(trial, lane, thread, e.t(f"icmp slt i64 {trial}, {many}")))

    first, step = (e.t(f"mul i64 {x}, {shape.trials}") for x in (block, blocks))
    strided(e, "i64", "trials", first, many, step, take)
    e.put("ret void")


def _define(e: GridTrialEmitter, name: str, words: int) -> None:
    blocks = max(1, min(_MOST_BLOCKS, e.side_by_side.resident // e.side_by_side.block))
    e.module.functions.append(e.hardware.define_packed(e, name, words, blocks))


def emit_trial_grid(kernel: Kernel, target: GpuTarget, plain: frozenset[Op], far: frozenset[str]) -> GridCode:
    """Both modules of a kernel of a batched program; see ``grid.kernel.emit_grid``. ``kernel``: not nested (``passes.batch``)."""
    check(kernel, replace(target, wide_atomics=True))  # one thread has a trial, and no atomics
    shape, module = TrialShape(target.block), LlvmModule(target)
    entry = symbol(kernel)
    host, size = LlvmModule(Target(libm=False)), 0
    if kernel.tasks:
        (chunk,), words = emit_chunks(module, [TrialSource(kernel, plain, far)], shape, [lambda word: word])
        emit_launch(module, chunk, len(words), shape, entry)
        emit_trial_entry(host, chunk.info, target, words, shape)
        size = 8 * (PARAMETERS + len(words))
    else:
        emit_entry(host, info_of(kernel), target, [])
    return GridCode(
        trial_text(module, f"kernel {entry}", target, shape),
        host.text(f"; the host's side of kernel {entry} for {target.name}"),
        entry,
        [entry] if kernel.tasks else [],
        target.features if size <= target.small_bytes else target.wide_features,
    )


def trial_text(module: LlvmModule, what: str, target: GpuTarget, shape: TrialShape) -> str:
    """The text of the module."""
    return module.text(f"; {what} for {target.name}, blocks of {shape.trials} trials by {shape.lanes} lanes")
