"""``qd.ad.checkpointed_steps``: time steps whose arrays hold a window of a few steps. The gradient runs the others again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import QdrunAssertionError, QdrunRuntimeError
from ....program.memory.kept import TAPE
from ....program.memory.overwritten import Overwritten
from ....program.program import Program
from ....program.recorders import TapeRecorder
from ....program.rehearsal import Rehearsal
from ....runtime.base import next_serial
from .repeats import REMEDY, Kinds, Trace
from .steps_check import Composite, Moved, Outside, WindowAccesses, add_writes, cleared, program_arrays
from .steps_plan import Action, schedule
from .steps_window import ArrayCopies, Check, Snapshots, Window, name_of, tolerance_of
from .window_log import WindowLogs
from .window_tape import WindowTape

if TYPE_CHECKING:
    from ....runtime.base import Allocation
    from ..overwrites import HostWrite, Overwrites, Timed
    from ..tape import Tape

Step = Callable[[int, int], Any]


class Steps(Composite):
    """``n`` steps on a window; see ``checkpointed_steps``.

    A tape records several windows as one launch. One window it records launch by launch, and this before them.
    """

    def __init__(self, step: Step, n: int, window: Window, snapshots: int) -> None:
        self.step, self.n, self.window, self.snapshots = step, n, window, snapshots
        self.windows = -(-n // window.length)
        self.whole = self.windows > 1 or bool(window.temporaries)
        self._program: Program = window.program
        self._accesses = WindowAccesses(window)
        self._actions: Iterator[Action] = schedule(self.windows, snapshots)
        self._recorded: WindowTape | None = None
        self._tape: Tape | None = None
        self._earlier = 0  # its launches before the steps
        self._memory: Snapshots | None = None
        self._kept: ArrayCopies | None = None  # what each step of a window left in the temporaries
        self._newest: dict[int, Any] = {}  # and what is known of the writes to them, while versions are kept
        self.made_bytes = 0
        self._before: tuple[Allocation, list[np.ndarray]] | None = None  # the start's gradient before the tape
        self._draws: dict[int, int] = {}  # random launches before each window
        self._flags: dict[int, int] = {}  # flags of graph kernels that each window found set
        self._kinds, self._logs = Kinds(window.program, next_serial()), WindowLogs(window.program)
        self._traces: dict[int, Trace] = {}  # what the first run of each window launched and assigned
        self._checks: dict[int, list[Check]] = {}  # of the state at each window's start, with validation
        self._done = False

    told = True

    def arrays(self) -> list[Any]:
        """The arrays of the window."""
        return [*self.window, *self.window.temporaries, *self.window.in_place]

    def __repr__(self) -> str:
        name = getattr(self.step, "__qualname__", str(self.step)).rsplit("<locals>.", maxsplit=1)[-1]
        return f"checkpointed_steps({name}, {self.n})"

    def _bounds(self, number: int) -> tuple[int, int]:
        """First step and length of a window; they are aligned to the end."""
        begin = self.n - (self.windows - number) * self.window.length
        return max(0, begin), self.window.length + min(0, begin)

    # ---- forward
    def __call__(self) -> None:
        """Repeat what the tape has recorded as this."""
        if self.whole:
            self.forward()
        else:
            self.window.clear()

    def forward(self) -> None:
        """Run all steps, for their values alone."""
        for number in range(self.windows):
            self.window.clear()
            self._run(number)
            if number + 1 < self.windows:
                self.window.advance(self._bounds(number)[1])

    def rehearse(self, rehearsal: Rehearsal) -> None:
        """Call all steps while nothing runs; the arrays stay as they are."""
        if rehearsal.differentiates:
            rehearsal.keeps(self.window.length * self.window.temporary_bytes)
        before = rehearsal.kept
        for number in range(self.windows):
            rehearsal.kept = before  # two windows do not keep copies at the same time
            over = Overwritten(self._program, run=False, puts_back=self.windows == 1)
            with rehearsal.within(over) if self.whole else nullcontext():
                self._run(number, over=over)
            if rehearsal.differentiates:
                rehearsal.keeps(over.kept.nbytes)

    def _run(self, number: int, tape: WindowTape | None = None, over: Overwritten | None = None) -> None:
        """Run the steps of a window, whose slots were cleared; ``tape`` is told where one ends. ``over``: counts what a rehearsal keeps."""
        begin, length = self._bounds(number)
        for k in range(length):
            self._begin(begin + k)
            if self._program.recorders.rehearsal is None and self.window.temporaries:
                with recorded_by(self._program, None):
                    self.window.begin_step()
            if tape is not None:
                tape.begin_step(self.window.temporaries)
            elif over is not None:
                over.forget(self.window.temporaries)
            try:
                self.step(begin + k, k)
            except QdrunAssertionError as error:
                if self._program.prompt:
                    error.locate(step=begin + k)
                raise
            if tape is not None:
                tape.step_done()
                if self._kept is not None:
                    self._keep(k)

    def _keep(self, slot: int) -> None:
        """Keep what a step left in the temporaries."""
        assert self._kept is not None
        self._kept.store(slot)
        if self._program.recorders.versions is not None:
            self._newest[slot] = self._program.recorders.versions.newest(self.window.temporaries)

    def _enter(self, slot: int) -> None:
        """Put it back."""
        assert self._kept is not None
        self._kept.restore(slot)
        if self._program.recorders.versions is not None:
            self._program.recorders.versions.put_back(self._newest[slot])

    def _begin(self, step: int | None) -> None:
        if self._program.recorders.tape is not None:
            self._program.recorders.tape.step_begins(step)

    def record(self, tape: Tape) -> None:
        """Run all steps while ``tape`` records: the last window stays in the arrays, snapshots are kept of others.

        Raises:
            OutOfMemory: the snapshots do not fit.
        """
        if not self.whole:
            with recorded_by(self._program, None):
                self.window.clear()
            self._run(0)
            self._begin(None)
            return
        self._tape, self._earlier = tape, len(tape.log)
        try:
            what = f"{self!r}: {self.snapshots} snapshots and the final state"
            if self.windows > 1:
                self._memory = Snapshots(self.window, self.snapshots + 1, what)
                self._put_aside()
            if self.window.temporaries:
                self._kept = ArrayCopies(self._program, self.window.temporaries, self.window.length)
            with recorded_by(self._program, None):
                for action in self._actions:
                    if action.kind == "gradient":
                        break
                    self._forward(action)
        except BaseException:
            self.release()
            raise

    def _forward(self, action: Action) -> None:
        """One action of the first pass, which records every window, so that its reads and writes are checked once."""
        number = action.window
        if action.kind == "store":
            self._store(action)
            return
        self._draws[number], flags = self._program.seeds.drawn, self._program.flags_set
        if self._validates():
            self._checks[number] = self.window.checks()
        with counting_flags(self._program):
            tape = self._recording(number, action.kind == "record")
        self._flags[number], self._traces[number] = self._program.flags_set - flags, tape.trace
        tape.hand_to(self._accesses, number)
        if action.kind == "advance":
            self._forget()
            self.window.advance(self._bounds(number)[1])

    def _recording(self, number: int, reverses: bool) -> WindowTape:
        """Run a window and record it; ``reverses``: its gradient comes next, which needs what launches overwrite."""
        assert self._tape is not None
        self._forget()
        over = Overwritten(self._program, puts_back=self.windows == 1) if reverses else None
        follows = self._logs.get(reverses) if number and self._bounds(number)[1] == self.window.length else None
        tape = self._recorded = WindowTape(self._tape, self._kinds, self.window if number else None, over, follows)
        tape.earlier = self._earlier
        self.window.clear()
        before = self._held()
        with recorded_by(self._program, tape):
            self._run(number, tape)
            tape.end()
        if tape.log.known is None:
            if follows is not None:
                self._logs.left(reverses)
            elif not self.window.temporaries and tape.is_plain:
                self._logs.recorded(tape.log.launches, tape.trace, tape.copies)
        self.made_bytes = max(self.made_bytes, self._held() - before)
        return tape

    def _held(self) -> int:
        """Bytes of the program's arrays and copies, but for what its algorithms keep for other calls."""
        usage = self._program.usage()
        kept = sum(x._memory.nbytes for a in program_arrays(self._program) for x in (a, a.grad, a.dual) if x is not None)
        return sum(usage.get(kind, 0) for kind in ("ndarrays", "gradients", "fields", "snapshots", TAPE)) - kept

    def _forget(self) -> None:
        """What the window before recorded is no longer needed."""
        if self._recorded is not None:
            self._recorded.release()
        self._recorded = None

    def _put_aside(self) -> None:
        """A gradient that earlier tapes left at the start belongs to the first window; until it is its turn, slot 0 is another state's."""
        window = self.window
        if window.seeded():
            memory = self._program.allocate(window.start_gradient_bytes, "snapshots")
            self._before = memory, window.start_gradient_views(memory.view)
            window.swap_start_gradient(self._before[1], memory.mirror)

    def _put_gradient_back(self) -> None:
        if self._before is not None:
            memory, slots = self._before
            self.window.swap_start_gradient(slots, memory.mirror)
            self._program.device.free(memory)
            self._before = None

    # ---- what the tape around it asks
    def join(self, found: Overwrites, when: int) -> None:
        """Check what the steps read and write, and enter it as launch ``when`` of the tape.

        Raises:
            DataAccessError: the steps cannot be run again, or a gradient would read what was overwritten.
        """
        if self.whole:
            self._accesses.finish()
            self._accesses.join(found, when)
        add_writes(found, cleared(self.window, when))

    def sample(self) -> list[Timed | Moved]:
        """The launches of the first two windows, and between them the move of the state."""
        return self._accesses.sample

    def host_writes(self) -> list[HostWrite]:
        """What Python writes in the first two windows."""
        return self._accesses.host_writes

    # ---- backward
    def grad(self) -> None:
        """Run the gradients of all steps, last to first. Afterwards the arrays hold the final state again.

        Raises:
            QdrunRuntimeError: they were run already; with validation, a step did not do the same twice.
        """
        if self._done:
            raise QdrunRuntimeError(f"the gradients of {self!r} were run already; do: record the steps in another tape")
        self._done = self.windows > 1  # of one window, everything is still there
        with recorded_by(self._program, None):
            if self.windows > 1:
                self._go_back()
            elif self.whole:
                self._gradient(0)
            else:
                self.window.drop_gradients()

    def _go_back(self) -> None:
        assert self._memory is not None
        self._memory.store(self.snapshots, self.window.length)
        draws, outside = self._program.seeds.drawn, self._outside()
        try:
            self._gradient(self.windows - 1)
            for action in self._actions:
                self._backward(action)
        finally:
            self._memory.restore(self.snapshots, self.window.length)
            self._program.seeds.drawn = draws
            for place, memory, content in outside:
                place.put(memory.mirror, content)
                self._program.device.free(memory)
            self.release()

    def _outside(self) -> list[tuple[Outside, Allocation, np.ndarray]]:
        """Copies of what the steps write and the window does not hold: losses, logs. Running steps again writes there again."""
        out = []
        for place in self._accesses.outside.values():
            memory = self._program.allocate(place.array.nbytes, "snapshots")
            content = memory.view.view(place.array.dtype).reshape(place.array.shape)
            place.get(memory.mirror, content)
            out.append((place, memory, content))
        return out

    def _backward(self, action: Action) -> None:
        number = action.window
        if action.kind == "store":
            self._store(action)
        elif action.kind == "restore":
            assert self._memory is not None
            self._memory.restore(action.slot)
        elif action.kind == "gradient":
            self._gradient(number)
        else:
            self._program.seeds.drawn, flags = self._draws[number], self._program.flags_set
            begin, length = self._bounds(number)
            with counting_flags(self._program):
                tape = self._recording(number, action.kind == "record")
            if self._program.flags_set - flags != self._flags[number]:
                raise QdrunRuntimeError(
                    f"{self!r}: run again from step {begin}, graph kernels find other flags set than in the first run\n"
                    "  do: set the flag of `qd.graph.do_while` in the step, before the kernel, from the state or from constants"
                )
            step, text = tape.trace.difference(self._traces[number])
            if text:
                raise QdrunRuntimeError(
                    f"{self!r}: step {begin + step} is not the same when it is run again: {text}\n  {REMEDY}"
                )
            self._compare(number + 1, length)
            if action.kind == "advance":
                self._forget()
                self.window.advance(length)

    def _gradient(self, number: int) -> None:
        """The gradients of the window that is recorded; hands the gradient of its start to the window before."""
        tape = self._recorded
        assert tape is not None
        if self._kept is None:
            tape.reverse()
        else:
            tape.reverse(self._enter, self.window.end_step_backwards)
        if number == 0:
            self.window.drop_gradients()
            return
        self.window.hand_back(self._bounds(number - 1)[1])
        if number == 1:
            self._put_gradient_back()

    def _store(self, action: Action) -> None:
        assert self._memory is not None
        self._memory.store(action.slot)

    # ---- validation
    def _validates(self) -> bool:
        assert self._tape is not None
        return self._tape.validation or self._program.options.debug

    def _compare(self, number: int, slot: int) -> None:
        """With validation: what a window that was run again leaves in ``slot`` is what the next one began with.

        Raises:
            QdrunRuntimeError: it is not; names the array.
        """
        for was, (tensor, now) in zip(self._checks.get(number, ()), self.window.checks_of(slot)):
            if was.differs(now, tolerance_of(tensor, self._program)):
                begin, _ = self._bounds(number)
                raise QdrunRuntimeError(
                    f"{self!r}: run again up to step {begin}, {name_of(tensor)} differs from the first run: a step is not deterministic\n"
                    f"  {REMEDY}"
                )

    def release(self) -> None:
        """Give the snapshots back; a gradient that was put aside returns to its place."""
        if self._program.closed:
            return
        self._put_gradient_back()
        if self._kept is not None:
            self._kept.free()
            self._kept = None
        if self.whole:
            self._forget()
            self._tape = None  # which has this: arrays that steps made are free at once
        if self._memory is not None:
            self._memory.free()
            self._memory = None


@contextmanager
def counting_flags(program: Program) -> Iterator[None]:
    """Inside the block the host drives the loops of graph kernels, and counts the flags that it finds set."""
    before, program.counts_flags = program.counts_flags, True
    try:
        yield
    finally:
        program.counts_flags = before


@contextmanager
def recorded_by(program: Program, tape: TapeRecorder | None) -> Iterator[None]:
    """Let another tape, or none, record."""
    before = program.recorders.tape
    program.recorders.tape = tape
    try:
        yield
    finally:
        program.recorders.tape = before
