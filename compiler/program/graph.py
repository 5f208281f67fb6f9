"""Graphs: launches recorded once and launched again as one."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codegen.abi import CTX_LAUNCHES, PLANES
from ..errors import DeviceError, QdrunRuntimeError
from ..ir.trials import TrialLayout
from ..ir.types import PLANES as PLANE_BYTES
from ..runtime.base import Allocation
from .memory.memory_regions import memory_of
from .plans.invariant import Invariant, find_invariant
from .program import Program, current_program
from .recording import Recording
from .services.batch import TrialBatch

if TYPE_CHECKING:
    from ..tape.heap_plan import HeapPlan
    from .call import Call
    from .services.batch import TrialBatch
from .recording import LaunchableGradient

_NONE = np.empty(0, np.uint64)


class Graph:
    """Launches that were recorded by ``qd.capture``. Calling it launches all of them at once, with the numbers that they had then.

    Attributes:
        launches: kernels in it, of one call.
        once: in a batched program the launches that run once for all trials, because they compute the same for each: how many of each
            kernel, by name.
        assumes: the fields of ``TrialBatch.same`` that those launches read.
    """

    def __init__(self, program: Program, recording: Recording, device: Any, handle: int, invariant: Invariant) -> None:
        self.program, self.name, self.launches = program, recording.name, len(recording.launches)
        self.once, self.assumes = invariant.kernels, invariant.assumes
        self._recording, self._device, self._handle = recording, device, handle
        at = 8 * CTX_LAUNCHES
        counts = [ctypes.c_int64.from_buffer(e.context.data, at) for e in recording.executables]
        self._counts = [*counts, *(c for x in recording.written.values() for c in program.data.writes_to(x))]
        watched: dict[tuple[object, ...], tuple[LaunchableGradient, Call, int | None, HeapPlan]] = {}
        for entry in recording.gradients:
            gradient, call, budget, _ = entry
            apart = gradient.watched(call)
            if apart is not None:
                watched.setdefault((gradient, budget, apart), entry)
        self._watched = list(watched.values())
        plans = {id(plan): plan for *_, plan in recording.gradients}
        planes = {plane for plan in plans.values() for plane in plan.planes}
        self._heap = {plane: self.program.heap.memory(plane) for plane in PLANES if plane in planes}
        self._fields = {memory.serial: memory for e in recording.executables for memory in e.owners.values()}.values()
        self._workers = self._most_workers()
        self._draws = {launch.executable: launch.seed for launch in recording.launches if launch.seed is not None}
        self._end = weakref.finalize(self, device.drop_graph, handle)
        self._end.atexit = False

    def __call__(self) -> None:
        """Launch. Like that of a kernel the call returns at once on a GPU, and at the end of the last launch on the CPU.

        Raises:
            QdrunRuntimeError: the program is closed, something records launches, or the adstack heap that was there when it was recorded
                is not the one that is needed now; on the CPU also what a launch of it reports, with which it ends.
        """
        why = self.launch()
        if why:
            raise QdrunRuntimeError(why)

    def launch(self) -> str:
        """Launch as a call does, unless it is stale.

        Returns:
            Why nothing was launched: see ``stale``; empty where it was.

        Raises:
            QdrunRuntimeError: see ``__call__``.
        """
        program = self.program
        if program.closed:
            raise QdrunRuntimeError(f"{self!r} belongs to a program that is closed; do: qd.init() and capture it again")
        for active, what in (
            (program.recorders.recording, "another graph is recorded: its launches would not be in it"),
            (
                program.recorders.tape,
                "a tape records: it would not know the launches; do: open the tape in the captured function",
            ),
            (program.recorders.forward, "qd.ad.FwdMode is open: it would not know the launches"),
        ):
            if active is not None:
                raise QdrunRuntimeError(f"{self!r} cannot be launched while {what}")
        program.recorders.refuse_unrecorded(repr(self))
        with program.admission.running(), program.admission.alone():
            why = self.stale()
            if why:
                return why
            failed = self._run()
            for count in self._counts:
                count.value += 1
            self._raise(failed)
        if self._device.ahead:
            program.admission.launched(self._device.weight(-self._handle))
        return ""

    def _most_workers(self) -> int:
        """The number of threads that may run it at once: the most adstack rows that one of its launches needs."""
        threads = [t.params["threads"] for x in self._recording.launches if x.plan for t in x.plan.tasks if t.stride]
        for plane, words in self._device.row_words(self._handle).items():
            memory = self._heap.get(plane)
            threads += [memory.nbytes // (words * PLANE_BYTES[plane])] if memory is not None and words else []
        return max(1, min(threads, default=self._device.threads))

    def _run(self) -> int:
        """Launch; the row of the launch that has failed, -1 for none or where the device tells later."""
        count = len(self._recording.seeds)
        seeds = self.program.seeds.draw_many(count) if count else _NONE
        for executable, number in self._draws.items():
            executable.last_seed = self.program.seeds.last = int(seeds[number])
        what, args = f"graph of {self.name}", (self._handle, f"graph of {self.name}", seeds, self._workers)
        launch, profiler = self._device.launch_graph, self.program.profiler
        return launch(*args) if profiler is None else profiler.launch(what, launch, *args)

    def _raise(self, failed: int) -> None:
        """Raise what launches have reported on the CPU. ``failed``: what ``_run`` gives."""
        if failed >= 0:
            self._recording.raise_status(failed)
        elif isinstance(self.program.batch, TrialBatch) and self._device.on_host:
            if any([e.take_status() for e in self._recording.executables]):
                self.program.batch.report_failures()

    def stale(self) -> str:
        """Why it cannot be launched any more, and must be captured again; empty where it can."""
        for plane, memory in self._heap.items():
            if self.program.heap.memory(plane) is not memory:
                return (
                    f"{self!r} uses an adstack heap that the program has replaced by another since\n  do: capture it again, after"
                    " the gradients that need most"
                )
        if any(memory.freed for memory in self._fields):
            return f"{self!r} uses a field that was destroyed\n  do: make the field anew, and capture it again"
        for field in self.assumes:
            if not any(field is x for x in self.program.batch.same):
                return (
                    f"{self!r} was recorded when `{field.name}` was the same in all trials, and launches that read it run once\n"
                    "  do: capture it again"
                )
        for gradient, call, budget, plan in self._watched:
            now = gradient.plan(call, budget, launched=True)
            if now != plan:
                return (
                    f"{self!r} was recorded with an adstack heap of {plan.bytes:,} bytes for the gradient `{gradient.name}`, which"
                    f" has another plan now, of {now.bytes:,} bytes: what bounds its loops has changed\n  do: capture it again"
                )
        return ""

    def forget_arguments(self) -> None:
        """Let the arguments of the launches go: the caller launches the graph only while others lie in the same place. Not in a batch."""
        self._recording.forget_arguments()

    def close(self) -> None:
        """Forget the launches. Calls are errors afterwards."""
        self._end()

    @property
    def threads(self) -> tuple[int, int]:
        """Of a batch on a GPU: threads of a trial, and of a block. Zeros where threads are no part of the graph."""
        if not self.program.batch.layout.batched or self.program.device.on_host:
            return 0, 0
        return self._device.trial_threads(self._handle)

    @property
    def how(self) -> str:
        """Its launches in words: how many, which of a batch run once for all trials, and on a GPU the threads of a trial and of a block."""
        lanes, block = self.threads
        text = f"{self.launches} launches"
        if self.once:
            text += f" ({sum(self.once.values())} of them once for all trials: {', '.join(self.once)})"
        if not block:
            return text
        return f"{text} for {self.program.batch.layout.count} trials, threads of a trial: {lanes}, of a block: {block}"

    def __repr__(self) -> str:
        return f"<graph of `{self.name}`: {self.how}>"


def capture(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """Record the launches of a function, and return them as one graph.

    The function is called once, and its launches do not run: calling the graph runs them. Numbers that it passes, and those that Python
    writes to fields (``x[None] = 1.0``, ``x.fill(0)``), are part of the graph; whole arrays are not. A ``with qd.ad.Tape(loss):`` in it is
    recorded with its gradients. Run the function once before, so that all kernels are compiled and all memory is there.

    Args:
        function: what to call.
        args: its arguments.
        kwargs: its keyword arguments.

    Raises:
        QdrunRuntimeError: the function does what a graph cannot: it reads what its launches write, waits, allocates, compiles, prints,
            launches a kernel that returns a value, or, on a GPU, one that draws random numbers. Names it.
    """
    name = getattr(function, "__qualname__", type(function).__name__).rsplit("<locals>.", maxsplit=1)[-1]
    return record(current_program(), name, lambda: function(*args, **kwargs))


def record(program: Program, name: str, function: Callable[[], object]) -> Graph:
    """The launches of a function as a graph that is called so. See ``capture``, also for what is raised."""
    device = _device(program, name)
    with program.admission.running(), program.admission.alone(), device.lock:
        recording = Recording(name, program.heap.memory, device.records, device.on_host)
        with _recorded(program, device, recording) as made:
            function()
        return Graph(program, recording, device, *made[0])


def _device(program: Program, name: str) -> Any:
    """The program's device; refuses what cannot be recorded."""
    if not program.device.native:
        raise QdrunRuntimeError(
            f"qd.capture: the {program.arch.value} backend has no graphs\n  do: call `{name}` itself, or use another backend"
        )
    for active, what in (
        (program.recorders.recording, "another graph is recorded"),
        (
            program.recorders.tape,
            "a tape records: it would replay launches that did not run; do: open the tape in the captured function",
        ),
        (program.recorders.forward, "qd.ad.FwdMode is open; do: open it in the captured function"),
        (program.recorders.versions, "launches are checked one by one; do: qd.init(debug=False)"),
    ):
        if active is not None:
            raise QdrunRuntimeError(f"qd.capture: `{name}` cannot be recorded while {what}")
    program.materialize()
    return program.device


@contextmanager
def _recorded(program: Program, device: Any, recording: Recording) -> Iterator[list[tuple[int, Invariant]]]:
    """Launches inside are recorded; at the end the list has the graph's handle, and its invariant launches. After an exception there is
    no graph.
    """
    made: list[tuple[int, Invariant]] = []
    drawn = program.seeds.state()
    device.begin_graph(recording.write, *_memories(program))
    program.recorders.recording = recording
    try:
        yield made
        recording.settled()
        program.recorders.recording = None
        invariant = find_invariant(program, recording)
        made.append((device.end_graph(recording.steps, invariant.once), invariant))
    except BaseException:
        program.recorders.recording = None
        with suppress(DeviceError):
            device.cancel_graph()
        raise
    finally:
        recording.ended()
        program.seeds.restore(drawn)


def _memories(program: Program) -> tuple[list[Allocation], TrialLayout | None, set[int]]:
    """What a CPU must know of memory: that of ndarrays, which may be another library's, and kernels that refer to one by name know it by
    an object of theirs; the trials of a batched program; and the serial numbers of what each of them has its own of.
    """
    arrays: list[Any] = list(program.arrays.alive)
    memories = [m for a in arrays for m in (a._memory, None if a._buffer is None else a._buffer.owner) if m is not None]
    placed: list[Any] = [x for x in (*arrays, *program.root.fields()) if x.per_trial]
    return memories, program.trials, {memory_of(x).serial for x in placed if program.batch.layout.batched}
