"""Kernels of a batched program as modules for a GPU: a launch of one kernel, or of a sequence of launches that was recorded.

Both are one function of the device. Each thread takes trials, one after the other, and runs on each of them all that is launched: the tasks
of a kernel, or a table of launches in the device's memory, which every thread walks. Nothing is waited for but the lanes of a trial.

The function's parameters are 8-byte words, packed: how many trials there are, then the words of the kernel; or, for a table, its address
and the number of its launches. A launch in a table is the number of its chunk, its size in words, and the words of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.nodes import Kernel, Op, Task
from ..llvm.function import Module
from ..llvm.kernel import symbol
from ..llvm.target import Target
from .grid_entry import emit_entry
from .grid_kernel import GridCode, info_of
from .hardware import GpuTarget, Word
from .trial_entry import emit_trial_entry
from .trials import Chunk, GridTrialEmitter, TrialShape, define_chunk, emit_chunk, emit_task, meet

TRIALS, PARAMETERS = 0, 1
"""Words of the parameters: how many trials there are; the first of the others."""
TABLE, LAUNCHES = 1, 2
"""Words of the parameters of a table: its address, and how many launches it has."""
NUMBER, SIZE, WORDS = 0, 1, 2
"""Words of a launch in a table: the number of its chunk, its words in all, the first of the chunk's."""


_MOST_BLOCKS = 16
"""Blocks that every GPU can hold on a multiprocessor."""
FILL = (
    Word("fill", "to", "ptr"),
    Word("fill", "group"),
    Word("fill", "count"),
    Word("fill", "step"),
    Word("fill", "value"),
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


def emit_chunks(module: Module, sources: Sequence[TrialSource], shape: TrialShape) -> list[Chunk]:
    """Add the functions of kernels to the module of a device."""
    return [_chunk(module, source, shape, f"{symbol(source.kernel)}_{k}") for k, source in enumerate(sources)]


def _chunk(module: Module, source: TrialSource, shape: TrialShape, name: str) -> Chunk:
    kernel, info = source.kernel, info_of(source.kernel, source.plain, source.far)
    numbers: dict[Word, int] = {}
    tasks = [(f"{name}_{k}", task) for k, task in enumerate(kernel.tasks)]
    for function, task in tasks:
        emit_task(GridTrialEmitter(module, info, task, shape, numbers), function)
    e = GridTrialEmitter(module, info, kernel.tasks[0], shape, numbers) if tasks else _driver(module, shape)
    emit_chunk(e, f"{name}_chunk", tasks)
    return Chunk(f"{name}_chunk", info, tuple(numbers))


def emit_fill(module: Module, size: int, shape: TrialShape) -> Chunk:
    """Add a chunk that fills elements of ``size`` bytes of a trial. Its words are ``FILL``."""
    e, name = _driver(module, shape), f"qd_fill_{size}"
    to, group, count, step, value = (e.parameter(w) for w in FILL)
    width, ty = e.target.trials, f"i{8 * size}"
    word = e.t(f"trunc i64 {value} to {ty}") if size < 8 else value
    begin = e.t(f"mul i64 {e.t(f'udiv i64 %trial, {width}')}, {group}")
    mine = e.t(f"mul i64 {e.t(f'urem i64 %trial, {width}')}, {size}")
    to = e.t(f"getelementptr i8, ptr {to}, i64 {e.t(f'add i64 {begin}, {mine}')}")
    at, body, out = e.slot("i64"), e.label("fill"), e.label("filled")
    e.put(f"store i64 {e.t('zext i32 %lane to i64')}, ptr {at}")
    some = e.t(f"icmp slt i64 {e.t(f'load i64, ptr {at}')}, {count}")
    e.branch(e.t(f"and i1 {some}, %alive"), body, out)
    e.at(body)
    now = e.t(f"load i64, ptr {at}")
    skip = e.t(f"mul i64 {now}, {step}")
    e.put(f"store {ty} {word}, ptr {e.t(f'getelementptr i8, ptr {to}, i64 {skip}')}")
    following = e.t(f"add i64 {now}, {shape.lanes}")
    e.put(f"store i64 {following}, ptr {at}")
    e.branch(e.t(f"icmp slt i64 {following}, {count}"), body, out)
    e.at(out)
    meet(e)
    e.put("ret i1 %alive")
    define_chunk(e, name)
    return Chunk(name, e.info, FILL)


def emit_launch(module: Module, chunk: Chunk, shape: TrialShape, name: str) -> None:
    """Add the function of the device that a launch of one kernel runs."""
    e = _driver(module, shape)
    words = e.t(f"getelementptr i64, ptr %words, i64 {PARAMETERS}")

    def run(at: Where) -> None:
        e.t(_call(chunk, words, at, at.inside))

    _over_trials(e, run)
    _define(e, name, PARAMETERS + len(chunk.words))


def emit_walk(module: Module, chunks: Sequence[Chunk], shape: TrialShape, name: str) -> None:
    """Add the function of the device that walks a table of launches."""
    e = _driver(module, shape)
    table, launches = (_parameter(e, k, ty) for k, ty in ((TABLE, "ptr"), (LAUNCHES, "i64")))
    at, left, alive = e.slot("ptr"), e.slot("i64"), e.slot("i1")

    def run(where: Where) -> None:
        test, launch, joined, out = e.label("test"), e.label("launch"), e.label("joined"), e.label("walked")
        e.put(f"store ptr {table}, ptr {at}")
        e.put(f"store i64 {launches}, ptr {left}")
        e.put(f"store i1 {where.inside}, ptr {alive}")
        e.jump(test)
        e.at(test)
        e.branch(e.t(f"icmp sgt i64 {e.t(f'load i64, ptr {left}')}, 0"), launch, out)
        e.at(launch)
        here = e.t(f"load ptr, ptr {at}")
        number, size = (e.t(f"load i64, ptr {e.t(f'getelementptr i64, ptr {here}, i64 {k}')}") for k in (NUMBER, SIZE))
        words = e.t(f"getelementptr i64, ptr {here}, i64 {WORDS}")
        others: list[tuple[str, Chunk]] = []
        for k, chunk in enumerate(chunks):
            mine, other = e.label("chunk"), e.label("other")
            e.branch(e.t(f"icmp eq i64 {number}, {k}"), mine, other)
            e.at(other)
            others.append((mine, chunk))
        e.jump(joined)
        for mine, chunk in others:
            e.at(mine)
            e.put(f"store i1 {e.t(_call(chunk, words, where, e.t(f'load i1, ptr {alive}')))}, ptr {alive}")
            e.jump(joined)
        e.at(joined)
        e.put(f"store ptr {e.t(f'getelementptr i64, ptr {here}, i64 {size}')}, ptr {at}")
        fewer = e.t(f"sub i64 {e.t(f'load i64, ptr {left}')}, 1")
        e.put(f"store i64 {fewer}, ptr {left}")
        e.jump(test)
        e.at(out)

    _over_trials(e, run)
    _define(e, name, LAUNCHES + 1)


@dataclass(frozen=True, slots=True)
class Where:
    """Registers of a thread at work on a trial: its number, the thread's lane and number, and whether there is such a trial (i1)."""

    trial: str
    lane: str
    thread: str
    inside: str


def _call(chunk: Chunk, words: str, at: Where, alive: str) -> str:
    return f"call i1 @{chunk.name}(ptr %regs, ptr {words}, i64 {at.trial}, i32 {at.lane}, i64 {at.thread}, i1 {alive})"


def _driver(module: Module, shape: TrialShape) -> GridTrialEmitter:
    """For a function that belongs to no kernel."""
    nothing = Kernel("walk", [], [Task("walk", [])])
    return GridTrialEmitter(module, info_of(nothing), nothing.tasks[0], shape, {})


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
        wave = min(e.target.wave, shape.block)
        side, number, thread_in_wave = wave // shape.lanes, e.t(f"udiv i32 {mine}, {wave}"), e.t(f"urem i32 {mine}, {wave}")
        lane = e.t(f"udiv i32 {thread_in_wave}, {side}")
        mine = e.t(f"add i32 {e.t(f'mul i32 {number}, {side}')}, {e.t(f'urem i32 {thread_in_wave}, {side}')}")
    mine = e.t(f"zext i32 {mine} to i64")
    first, body, out = e.slot("i64"), e.label("trials"), e.label("over")
    e.put(f"store i64 {e.t(f'mul i64 {block}, {shape.trials}')}, ptr {first}")
    step = e.t(f"mul i64 {blocks}, {shape.trials}")
    e.branch(e.t(f"icmp slt i64 {e.t(f'load i64, ptr {first}')}, {many}"), body, out)
    e.at(body)
    now = e.t(f"load i64, ptr {first}")
    trial = e.t(f"add i64 {now}, {mine}")
    run(Where(trial, lane, thread, e.t(f"icmp slt i64 {trial}, {many}")))
    following = e.t(f"add i64 {now}, {step}")
    e.put(f"store i64 {following}, ptr {first}")
    e.branch(e.t(f"icmp slt i64 {following}, {many}"), body, out)
    e.at(out)
    e.put("ret void")


def _define(e: GridTrialEmitter, name: str, words: int) -> None:
    blocks = max(1, min(_MOST_BLOCKS, e.side_by_side.resident // e.side_by_side.block))
    e.module.functions.append(e.hardware.define_packed(e, name, words, blocks))


def emit_trial_grid(kernel: Kernel, target: GpuTarget, plain: frozenset[Op], far: frozenset[str]) -> GridCode:
    """Both modules of a kernel of a batched program; see ``grid_kernel.emit_grid``. ``kernel``: not nested (``passes.batch``)."""
    shape, module = TrialShape(target.block), Module(target)
    entry = symbol(kernel)
    host, size = Module(Target(libm=False)), 0
    if kernel.tasks:
        (chunk,) = emit_chunks(module, [TrialSource(kernel, plain, far)], shape)
        emit_launch(module, chunk, shape, entry)
        emit_trial_entry(host, chunk, shape)
        size = 8 * (PARAMETERS + len(chunk.words))
    else:
        emit_entry(host, info_of(kernel), target, [])
    return GridCode(
        trial_text(module, f"kernel {entry}", target, shape),
        host.text(f"; the host's side of kernel {entry} for {target.name}"),
        entry,
        [entry] if kernel.tasks else [],
        target.features if size <= target.small_bytes else target.wide_features,
    )


def trial_text(module: Module, what: str, target: GpuTarget, shape: TrialShape) -> str:
    """The text of the module."""
    return module.text(f"; {what} for {target.name}, blocks of {shape.trials} trials by {shape.lanes} lanes")
