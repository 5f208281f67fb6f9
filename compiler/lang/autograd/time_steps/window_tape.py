"""The tape of one window of time steps, or of one step of a fixed point."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ....program.plans.tape_budget import check_budget
from ....runtime.base import next_serial
from ...args.frozen import frozen_arguments
from ..overwrites import Overwrites
from ..tape import Tape
from .repeats import Kinds, Trace
from .steps_check import Composite, StepEnd, WindowAccesses, add_writes, handed_over

if TYPE_CHECKING:
    from ....program.call import Call
    from ....program.memory.kept import KeptElements
    from ....program.memory.overwritten import Overwritten
    from ....program.program import Program
    from ....program.recorders import CustomFunction
    from ..overwrites import Launch
    from .steps_window import Window
    from .window_log import WindowLog


class WindowTape(Tape):
    """The launches of one window of ``checkpointed_steps``, to be run backwards when it is the window's turn.

    Args:
        outer: the tape that records all steps.
        kinds: those of the events of all runs of the steps.
        before: the window, if another one has filled its slot 0.
        overwritten: keeps what launches overwrite and gradients of earlier ones read; None: no gradient will be run, or all is there.
        follows: the log of a window that has launched the same.

    Attributes:
        trace: what the steps launch and assign.
        earlier: launches of the outer tape before the steps.
    """

    in_steps = True
    earlier = 0

    def __init__(
        self,
        outer: Tape,
        kinds: Kinds,
        before: Window | None = None,
        overwritten: Overwritten | None = None,
        follows: WindowLog | None = None,
    ) -> None:
        super().__init__(clear_gradients=False, validation=outer.validation)
        self._outer, self._program, self._thread, self._before = outer, outer._program, outer._thread, before
        self._ends = [StepEnd(0, 0, next_serial())]  # the beginning, and the end of each step
        self.trace, self._overwritten, self.follows = Trace(kinds), overwritten, follows

    @property
    def copies(self) -> KeptElements | None:
        """What launches overwrite and gradients of earlier ones read; None: no gradient will be run."""
        return None if self._overwritten is None else self._overwritten.kept

    @property
    def is_plain(self) -> bool:
        """Whether a log can have all that it has recorded."""
        unkept = self._overwritten is not None and self._overwritten.unkept
        return self.log.is_plain and not (self._given or unkept or self.trace.reads)

    def opens_log(self, kernel: Any) -> bool:
        known, program = self.follows, self._program
        if self.log.known is not None:
            self.leave_log()
            return False
        if known is None or program is None or len(self.log) or not self.is_plain or self._python.objects:
            return False
        return threading.get_ident() == self._thread and self.log.follow_log(program, known.log)

    def _catch_up(self, launches: list[Launch]) -> None:
        over = self._overwritten
        with nullcontext() if over is None else over.kept.adopting(self.log.take_copies()):
            for number, (kernel, args, _) in enumerate(launches):
                self._look_at(kernel, args, number)
                if over is not None and not self._quick:
                    over.launched()
        self.trace.end_steps([end.launches for end in self._ends[1:]])

    def step_done(self) -> None:
        """A step has made its launches."""
        self.trace.step_done()
        self._ends.append(StepEnd(len(self.log), len(self.log.writes), next_serial()))

    def expect(self, what: Any) -> None:
        self._outer.expect(what)
        assert self._program is not None
        self._program.replay.place = self.locate, len(self.log)

    def starts(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See ``Tape.starts``: for the tape around it."""
        self.expect(kernel)
        if self._python.objects and self._inside is None and self._program is not None:
            self._python.passed(self._program, kernel, args)
        self._look_at(kernel, args if not kwargs else tuple(kernel.binder.arguments(args, kwargs)), len(self.log))

    def _look_at(self, kernel: Any, args: tuple[Any, ...], number: int) -> None:
        """Have both tapes, and the trace, look at a launch."""
        args, flat = frozen_arguments(kernel.binder, args, {})
        self._now, over = (kernel, args, {}), self._outer._overwritten
        if not (self._program is None or self._program.replay.running or over is None):
            check = over.quick[kernel].writes
            if check is None or flat is None or not check(flat):
                over.launching(len(self._outer.log), kernel, args, {}, flat, reverse=False)
        if self._overwritten is not None:
            own, reverse = self._overwritten, self._inside is None
            checks = own.quick[kernel]
            check = checks.plain if flat is args else checks.objects
            self._quick = check is not None and reverse and flat is not None and check(flat)
            if not self._quick:
                own.launching(number, kernel, args, {}, flat, reverse)
        found = kernel.variant(args, {}) if flat is None else None
        self._bound = None if found is None else (found[0], found[1].call)
        self.trace.launch(kernel, flat, found)

    def custom(self, function: CustomFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.trace.function(function.name, (*args, *kwargs.values()))
        return super().custom(function, args, kwargs)

    def composite(self, steps: Composite) -> None:
        self.trace.function(repr(steps))
        super().composite(steps)

    def wrote(self, tensor: Any, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        outer = self._outer._overwritten
        if not (self._program is None or self._program.replay.running or outer is None):
            outer.writing(2 * len(self._outer.log) + 1, tensor, index)
        super().wrote(tensor, index, source, parts)
        self.trace.wrote(self.log.writes[-1])

    def looked_at(self, tensor: Any) -> None:
        super().looked_at(tensor)
        self.trace.reads = True

    def _protect(self, steps: Composite) -> None:
        if self._program is not None and not self._program.replay.running:
            self._outer._protect(steps)

    def _note_reads(self, steps: Composite, number: int) -> None:
        """See ``Tape._note_reads``; the tape around it is told at the end of all."""
        if self._overwritten is not None:
            super()._note_reads(steps, number)

    def begin_step(self, temporaries: Iterable[Any]) -> None:
        """A step begins: its temporaries are zero, and it has them to itself."""
        if self._overwritten is not None:
            self._overwritten.forget(temporaries)

    def launching(self, call: Call) -> None:
        self._outer.launching(call)

    def failed(self, what: Any, error: BaseException) -> None:
        self.locate(error, len(self.log))
        self._outer.failed(what, error)

    def end(self) -> None:
        """All steps of the window have been made."""
        known, program = self.log.known, self._program
        if known is None or program is None:
            return
        self.log.pause(program.admission.state)
        if known.failed or not known.ended:
            self.leave_log()
        else:
            assert self.follows is not None
            self.follows.write_trace(self.trace, [end.launches for end in self._ends[1:]])

    def hand_to(self, accesses: WindowAccesses, number: int) -> None:
        """Have the launches checked: window ``number``."""
        self._outer._failed = self._outer._failed or self._failed
        if self.log.known is not None:
            accesses.skip(self._ends)
            return
        accesses.add(number, self.log.timed(), self.log.writes, self.log.composites(), self._ends)

    def release(self) -> None:
        """Give back what the steps within steps keep."""
        if self._program is not None:
            self.log.release(self._program)
        self.log.forget()
        if self._overwritten is not None:
            self._overwritten.kept.release()
        for _, steps in self.log.composites():
            steps.release()

    def reverse(self, enter: Callable[[int], None] | None = None, leave: Callable[[], None] | None = None) -> None:
        """Run the gradients of the launches, last to first.

        Args:
            enter: called before the launches of each step, with its slot.
            leave: called after them.
        """
        program = self._program
        assert program is not None
        if self._overwritten is None:
            self._reverse(program, enter, leave)
            return
        kept, unkept = self._overwritten.kept, {time // 2 for time in self._overwritten.unkept}
        if unkept:
            Overwrites.of(self.log.timed(), self.log.writes, unkept).check()
        check_budget(program, kept, self.log.differentiated())
        kept.begin()
        try:
            self._reverse(program, enter, leave)
        finally:
            kept.end()

    def _reverse(self, program: Program, enter: Callable[[int], None] | None, leave: Callable[[], None] | None) -> None:
        found, keeps = None, self._overwritten is not None and bool(self._overwritten.kept)
        if self._given:
            self._given.check(Overwrites.of(self.log.timed(), self.log.writes))
        if self.log.writes:
            found = Overwrites.of(self.log.timed(), self.log.writes)
            for when, steps in self.log.composites():
                steps.join(found, when)
            if self._before is not None:
                add_writes(found, handed_over(self._before))
            elif self.earlier:
                found.add(self._outer.log.accesses_before(self.earlier))
            if self.repeats:
                found.happened_before(len(self.log) + 1)
        if enter is None or leave is None:
            if not keeps:
                self._check_versions(program)
            if self.log.known is not None:
                self._walk_back(self.log.known)
            else:
                self._replay(found, 0, len(self.log), self.log.writes)
            return
        for slot in reversed(range(len(self._ends) - 1)):
            begin, end = self._ends[slot : slot + 2]
            enter(slot)
            if not keeps:
                self._check_versions(program, begin.launches, end.launches)
            self._replay(found, begin.launches, end.launches, self.log.writes[begin.writes : end.writes])
            leave()
