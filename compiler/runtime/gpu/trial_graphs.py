"""Recorded launches of a batched program on a GPU: one kernel, in which each thread walks a table of them for its trials.

The table is made while a function is recorded, from the launches and from what Python writes in between. At the end one module is compiled
of the kernels that are in it; ``codegen.gpu.trials.module`` writes it. A launch of the graph is one launch of that module's function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...codegen.abi import CTX_SEED
from ...codegen.gpu.abilities import needs_wide_atomics
from ...codegen.gpu.grid.rows import chip_bytes, tapes_of
from ...codegen.gpu.hardware import GpuTarget, ParamWord
from ...codegen.gpu.prologue import literal_count
from ...codegen.gpu.trials.module import LAUNCHES, TrialSource, emit_chunks, emit_fill, emit_walk, trial_text
from ...codegen.gpu.trials.task import TaskChunk, TrialShape
from ...codegen.gpu.trials.team import UNKNOWN, useful_lanes
from ...codegen.llvm.function import LlvmModule
from ...ir.nodes import Task
from ...ir.trials import TrialLayout, stack_lanes
from ..base import Allocation
from ..mirror import Mirror
from ..recording import RecordedLaunch, RecordedWrite, RunOnce, Steps
from ..runs import Runs
from .code import GpuCode, GpuKernel
from .driver import LoadedFunction, Texts
from .memory.deferred_release import Unused, shared
from .memory.device_memory import DeviceMemory
from .pacing.paced import Pacing

BLOCK = 128
"""Threads of a block, unless one trial has more, or there are too few trials."""
RESIDENT = {1024: 16, 512: 128, 384: 1 << 30}
"""Threads of a multiprocessor at once that the code leaves registers for, and bytes that a thread may keep outside of its registers then:
the first number, unless there are fewer threads, or one keeps more; then the next one."""
TEAMS = 16
"""Trials of a multiprocessor up to which lanes run an iteration together: more trials fill it by themselves."""
MOST_LANES = 512
WALK = "qd_walk"
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has for trials: threads that it holds at once, its multiprocessors, threads of each of these, of a wave, and of a block
    of trials with one lane; whether lanes run an iteration together (``codegen.gpu.trials.team``).
    """

    threads: int
    processors: int
    resident: int
    wave: int
    block: int
    teams: bool = False


def shape_of(layout: TrialLayout, tasks: Sequence[Task], asked: int, room: Room) -> TrialShape:
    """How the trials of recorded launches lie on a device.

    The fewer trials there are, the more lanes each of them gets, but none that has no iteration. At least a group fills a wave, whose
    threads then read whole sectors of memory, if the device has 1,024 threads for each lane. Blocks are smaller where there would be fewer
    of them than multiprocessors.

    Args:
        layout: of the trials in memory.
        tasks: of all launches.
        asked: lanes that were asked for; 0: what suits the device.
        room: the device.
    """
    if room.teams and layout.count <= room.processors * TEAMS:
        counts = [useful_lanes(t) for t in tasks]
    else:
        counts = [literal_count(t) or UNKNOWN for t in tasks if t.parallel and t.axes]
    most = min(max(counts, default=1), stack_lanes(layout.count) if any(t.stacks for t in tasks) else MOST_LANES)
    lanes = asked or 1 << most.bit_length() - 1
    least = max(1, min(room.wave // layout.width, room.threads // 1024))
    while not asked and lanes > least and layout.count * lanes > room.processors * room.resident:
        lanes //= 2
    if lanes == 1:
        return TrialShape(room.block, 1, room.resident)
    side = max(1, BLOCK // lanes)
    while side > 1 and -(-layout.count // side) < room.processors:
        side //= 2
    return TrialShape(side, lanes, room.resident)


def needed(shape: TrialShape, count: int, room: Room) -> int:
    """Threads that a multiprocessor has at once, at most, when so many trials run."""
    blocks = -(-count // shape.trials)
    return -(-blocks // room.processors) * shape.block


@dataclass(frozen=True, slots=True, eq=False)
class _Code:
    """The code that walks a table: its function; its chunks, what they have in common, and the number of each; its blocks; the module, to
    be unloaded.
    """

    function: LoadedFunction
    chunks: list[TaskChunk]
    common: list[int]
    numbers: dict[object, int]
    shape: TrialShape
    module: Unused


@dataclass(eq=False, slots=True)
class TableWalk:
    """A recorded table and the code that walks it.

    Attributes:
        code: that walks it.
        table: its words on the host.
        address: of the table on the device.
        first: launches and fills that the first group of trials runs before; they begin the table.
        after: words of the table before those of all trials.
        launches: of all trials, and fills.
        blocks, shared: the grid; bytes of on-chip memory of a block.
        seeds: words of the table that are seeds, and the number of each.
    """

    code: _Code
    table: np.ndarray
    address: int
    first: int
    after: int
    launches: int
    blocks: int
    shared: int
    seeds: list[tuple[int, int]]


class TrialGraphs(Pacing):
    """The graphs of one batched program."""

    gpu_lanes: int
    threads: int
    trials: TrialLayout | None
    memory: DeviceMemory
    stream: int
    allocations: Callable[[], list[Allocation]]
    _target: GpuTarget

    def _begin_trial_graphs(self) -> None:
        self._grouped: list[Mirror] = []  # those of memory that each trial has its own part of
        self._walks: dict[int, TableWalk] = {}
        self._numbers = 0

    def _begin_walk(self, wrote: Callable[[RecordedWrite], None], per_trial: Container[int]) -> None:
        """From now on fills are recorded. ``wrote``, ``per_trial``: see ``Graphs.begin_graph``."""
        layout = self.trials
        assert layout is not None
        groups = layout.padded // layout.width

        def fill(to: int, runs: Runs, group: int, value: bytes) -> None:
            of_group = Runs(runs.rows, runs.step, layout.width * len(value))
            wrote(RecordedWrite(to, of_group, value, group, same=True, size=len(value)))

        self._grouped = [m.mirror for m in self.allocations() if m.serial in per_trial and m.mirror is not None]
        for mirror in self._grouped:
            mirror.recorder = len(mirror.view) // groups, fill

    # ---- making
    def _end_walk(self, steps: Steps, once: RunOnce) -> int:
        """The handle of what was recorded. ``once``: what runs once for all trials."""
        for mirror in self._grouped:
            mirror.recorder = None
        self._numbers += 1
        if steps:
            _lay_rows_alike(steps)
            first, others = once.divide(steps)
            with self._failing():
                launches = [s for s in (*first, *others) if isinstance(s, RecordedLaunch)]
                sources = {code: self._source(code) for code in dict.fromkeys(map(_code, launches))}
                self._walks[self._numbers] = self._walk(self._compiled([*first, *others], sources), sources, first, others)
        return self._numbers

    def _compiled(self, steps: Steps, of: Mapping[GpuCode, TrialSource], resident: Sequence[int] = tuple(RESIDENT)) -> _Code:
        """Compile what a table needs, and load it. ``of``: the kernel of each code. ``resident``: see ``RESIDENT``."""
        layout = self.trials
        assert layout is not None
        target = replace(self._target, trials=layout.width)
        launches = [s for s in steps if isinstance(s, RecordedLaunch)]
        codes, sources = list(of), list(of.values())
        room = Room(self.threads, self.info.sms, resident[0], target.wave, target.block, target.teams)
        alone = not target.wide_atomics and any(needs_wide_atomics(s.kernel, s.plain) for s in sources)
        tasks = [task for source in sources for task in source.kernel.tasks]
        shape = shape_of(layout, tasks, 1 if alone else self.gpu_lanes, room)
        while len(resident) > 1 and needed(shape, layout.count, room) <= resident[1]:
            resident = resident[1:]
        shape = replace(shape, resident=resident[0])
        fills = sorted({_fill_key(s) for s in steps if isinstance(s, RecordedWrite)})
        module = LlvmModule(target)
        same = [_same([x for x in launches if _code(x) is c]) for c in codes]
        chunks, common = emit_chunks(module, sources, shape, same)
        chunks += (emit_fill(module, size, shape, copies) for size, copies in fills)
        emit_walk(module, chunks, len(common), shape, WALK)
        numbers: dict[object, int] = {code: k for k, code in enumerate([*codes, *fills])}
        text = trial_text(module, f"the walk of {len(steps)} launches", target, shape)
        wide = 8 * (LAUNCHES + 1 + len(common)) > target.small_bytes
        features = target.wide_features if wide else target.features
        image = self.driver.build(Texts("recorded launches", text, "", WALK, (WALK,), features), self.info, True)
        loaded = self.driver.load_module(image.data, "recorded launches")
        gone, function = Unused(self.driver, loaded, len(image.data)), self.driver.function(loaded, WALK)
        if len(resident) > 1 and function.local_bytes > RESIDENT[resident[0]]:
            shared(self.identity, self.driver).unused.append(gone)
            return self._compiled(steps, of, resident[1:])
        return _Code(function, chunks, common, numbers, shape, gone)

    def _source(self, code: GpuCode) -> TrialSource:
        """The kernel of a batched program, as walks have it; runs passes of the compiler."""
        kernel, plain, far = code.trial_source()
        return TrialSource(kernel, plain, far if self._target.tapes_on_chip else tapes_of(kernel))

    def _walk(self, code: _Code, of: Mapping[GpuCode, TrialSource], first: Steps, others: Steps) -> TableWalk:
        """The table, and the grid. ``of``: the kernel of each code. ``first``: what the first group of trials runs before all others."""
        layout, shape = self.trials, code.shape
        assert layout is not None
        head, (table, numbers) = _table(first, code, layout.width)[0], _table(others, code, layout.width)
        threads, shared_bytes = max(self.threads, shape.block), 0
        for launch in (s for s in others if isinstance(s, RecordedLaunch)):
            source = of[_code(launch)]
            for k, task in enumerate(source.kernel.tasks):
                if task.stacks:
                    threads = min(threads, _param(launch, k, "threads"))
                    near = chip_bytes(task, k, source.far, lambda name, x=launch, k=k: _param(x, k, name))
                    shared_bytes = max(shared_bytes, near)
        blocks = min(max(1, threads // shape.block), -(-layout.count // shape.trials))
        after, words = len(head), np.concatenate([head, table])
        address = self.memory.allocate(words.nbytes)
        self.driver.upload(address, words.ctypes.data, words.nbytes, self.stream)
        seeds = [(after + at, number) for at, number in numbers]
        tapes = shared_bytes * self._target.tape_owners(shape.block)
        return TableWalk(code, words, address, len(first), after, len(others), blocks, tapes, seeds)

    def trial_threads(self, handle: int) -> tuple[int, int]:
        """Threads that share the iterations of a trial in a graph, and those of a block; zeros for a graph without launches."""
        shape = self._walks[handle].code.shape if handle in self._walks else None
        return (0, 0) if shape is None else (shape.lanes, shape.block)

    # ---- running
    def _run(self, walk: TableWalk, name: str, seeds: np.ndarray | None = None) -> None:
        """Put the walk into the stream."""
        assert self.trials is not None
        if walk.seeds and seeds is not None:
            for at, number in walk.seeds:
                walk.table[at] = seeds[number]
            self.driver.upload(walk.address, walk.table.ctypes.data, walk.table.nbytes, self.stream)
        if walk.first:
            some = min(self.trials.count, self.trials.width)
            self._start(walk, name, some, 0, walk.first, -(-some // walk.code.shape.trials))
        self._start(walk, name, self.trials.count, walk.after, walk.launches, walk.blocks)

    def _start(self, walk: TableWalk, name: str, trials: int, begin: int, launches: int, blocks: int) -> None:
        """Launch the code on the first ``trials`` for a part of the table that begins at a word of it."""
        words = np.array([trials, walk.address + 8 * begin, launches, *walk.code.common], np.uint64)
        size = ctypes.c_size_t(words.nbytes)
        extra = (ctypes.c_uint64 * 5)(1, words.ctypes.data, 2, ctypes.addressof(size), self._target.launch_end)
        launch, block = _LAUNCH(self.driver.launch_address), walk.code.shape.block
        grid = (blocks, 1, 1, block, 1, 1, walk.shared)
        code = launch(walk.code.function.handle, *grid, self.stream, None, ctypes.addressof(extra))
        if code:
            raise self.launch_error(code, name)

    def _drop(self, walk: TableWalk) -> None:
        """Give back what a walk has, once it has run."""
        self.memory.free(walk.address)
        shared(self.identity, self.driver).unused.append(walk.code.module)


def _code(launch: RecordedLaunch) -> GpuCode:
    assert isinstance(launch.compiled, GpuKernel)
    return launch.compiled.gpu


def _param(launch: RecordedLaunch, task: int, name: str) -> int:
    """A launch parameter of a task."""
    return int(launch.context[launch.compiled.layout.params[task, name]])


def _value(launch: RecordedLaunch, word: ParamWord) -> int:
    """A word that the kernel's chunk reads."""
    assert isinstance(word.what, int)
    at = 8 * word.what
    return int(launch.context[word.what]) if word.kind == "ctx" else int.from_bytes(launch.words[at : at + 8], "little")


def _lay_rows_alike(steps: Steps) -> None:
    """Threads are in different launches at one time: the adstack rows of all tasks lie at the same distance, that of the fewest rows."""
    words = [
        (s.context, word)
        for s in steps
        if isinstance(s, RecordedLaunch)
        for (_, name), word in s.compiled.layout.params.items()
        if name == "rows"
    ]
    fewest = min((context[word] for context, word in words), default=0)
    for context, word in words:
        context[word] = fewest


def _same(launches: list[RecordedLaunch]) -> Callable[[ParamWord], object]:
    """``Numbers.same`` of a kernel's launches. Seeds are new in each run."""

    def value(word: ParamWord) -> object:
        if (word.kind, word.what) == ("ctx", CTX_SEED) and any(x.seed is not None for x in launches):
            return None
        values = {_value(x, word) for x in launches}
        return values.pop() if len(values) == 1 else None

    return value


def _fill_key(write: RecordedWrite) -> tuple[int, bool]:
    """What decides the code of a fill: bytes of an element, and whether it copies the elements of the first group of trials."""
    return write.size, write.source is not None


def _fill_words(write: RecordedWrite, width: int) -> list[int]:
    """The words of a fill in the order of ``module.FILL``. ``width``: trials of a group."""
    (rows, step, nbytes), element = write.runs, width * write.size
    if nbytes > element:  # elements without gaps
        rows, step = nbytes // element, element
    return [write.to, write.group, rows, step, int.from_bytes(write.content, "little")]


def _table(steps: Steps, code: _Code, width: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The words of the steps, and which of them are seeds."""
    out: list[int] = []
    seeds: list[tuple[int, int]] = []
    for s in steps:
        number = code.numbers[_code(s) if isinstance(s, RecordedLaunch) else _fill_key(s)]
        if isinstance(s, RecordedLaunch):
            wanted = code.chunks[number].words
            if s.seed is not None:
                seeds += [(len(out) + 2 + k, s.seed) for k, w in enumerate(wanted) if (w.kind, w.what) == ("ctx", CTX_SEED)]
            words = [_value(s, w) for w in wanted]
        else:
            words = _fill_words(s, width)
        out += [number, 2 + len(words), *words]
    out += [0, 2]  # read, and not run
    return np.array(out, np.uint64), seeds
