"""``qd.ad.Tape``: automatic differentiation over several launches."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ...errors import (
    NothingToDifferentiate,
    OutOfMemory,
    QdrunAssertionError,
    QdrunCompilationError,
    QdrunRuntimeError,
    warn_user,
)
from ...program.memory.given_arrays import GivenArrays
from ...program.memory.memory_regions import tensor_regions
from ...program.memory.overwritten import Overwritten
from ...program.memory.versions import Versions
from ...program.plans.tape_budget import check_budget, make_gradients, of_all
from ...program.program import Program, current_program
from ...program.recorders import CustomFunction
from ..args.frozen import copied, frozen_arguments
from ..data.field import Field
from ..data.ndarray import Ndarray
from ..kernel import log_functions
from ..no_gradient import refuse_in_a_trial, refuse_in_forward_mode, refuse_second_order
from .custom import Replaced
from .grad_check import GradCheck
from .gradient_arrays import check_loss, clear_all_gradients, fill_loss, loss_gradient, unwrapped_loss
from .logged_launches import known_tape
from .lost_gradients import check_broken
from .overwrites import HostWrite, Launch, Overwrites, Timed, all_uses
from .tape_log import TapeLog
from .time_steps.steps_check import Composite
from .zeros.python_reads import PythonReads
from .zeros.tape_paths import PathsOfTape, recorded_by, warn_of_zeros

if TYPE_CHECKING:
    from ...program.call import Call
    from ...program.memory.memory_regions import ExportedMemory
    from ...program.memory.versions import VersionEvent
    from ...program.variant import Variant
    from ...runtime.native.log import LaunchLog


NOTHING = (
    "nothing was launched inside of the tape, so that no gradient is added to"
    "\n  do: launch the kernels that make the loss inside of `with qd.ad.Tape(..):`"
)
"""Of a tape that records nothing."""


class Tape(PathsOfTape):
    """``with qd.ad.Tape(loss=loss):`` records the launches inside and, at the end, runs their gradients last to first.

    On entry all gradients of the program are cleared and the loss is set to zero; at the end the loss's gradient is set to one.
    When the body raises, nothing is replayed.

    Args:
        loss: a 0-D field, or an ndarray or torch tensor of one element, with a gradient; None when the caller seeds gradients by hand.
        clear_gradients: False to accumulate over several tapes.
        validation: every launch keeps the version of what it reads, arrays from outside are compared by checksums, and a gradient that
            is lost on its way is an error instead of a warning.
        grad_check: fields and ndarrays whose gradients are compared with central differences at the end; the loss must be f64.

    Raises:
        QdrunRuntimeError: no such loss, a tape inside a tape, or a second use of the same tape.
    """

    def __init__(
        self, loss: Any = None, clear_gradients: bool = True, validation: bool = False, grad_check: Any = None
    ) -> None:
        self.loss, self.clear_gradients, self.validation = unwrapped_loss(loss), clear_gradients, validation
        self.check = GradCheck(self.loss, grad_check) if grad_check else None
        self.log = TapeLog()
        self._host_reads: dict[int, tuple[int, Any]] = {}  # the first of each tensor, by its id: launches before
        self._python = PythonReads(validation)
        self._inside: CustomFunction | None = None  # the function with a gradient of its own that runs
        self._failed = ""
        self._program: Program | None = None
        self._thread = 0
        self._own_versions = False
        self._overwritten: Overwritten | None = None
        self._now: Launch | None = None  # the launch that runs
        self._quick = False  # whether a quick look has shown that it overwrites nothing
        self._given = GivenArrays()  # arrays of others, as they were at the launches
        self._bound: tuple[Variant, Call] | None = None  # the launch that runs, where it may be given arrays of others

    in_steps = False
    """Whether it records a step of ``checkpointed_steps`` or of a fixed point."""
    repeats = False
    """Whether it records a step of a fixed point: the same launches ran before."""

    @property
    def empty(self) -> bool:
        """Whether nothing has been launched since it was opened."""
        return not (len(self.log) or self.log.hidden or self.in_steps)

    @property
    def inside(self) -> bool:
        """Whether a function with a gradient of its own runs: what it launches is hidden."""
        return self._inside is not None

    # ---- recording
    def expect(self, what: Any) -> None:
        """A launch is about to run.

        Raises:
            QdrunRuntimeError: in another thread than the tape's, so that its place in the order is not known.
        """
        if threading.get_ident() != self._thread:
            raise QdrunRuntimeError(
                f"{what!r} is launched in another thread while a tape records: the order of launches is not known\n"
                "  do: one program for each thread, or launch it before or after the tape"
            )
        if self._program is not None:
            self._program.replay.place = self.locate, len(self.log)
        if self.check is not None:
            self.check.settle()

    def starts(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A kernel is about to run with these arguments: what it overwrites and an earlier gradient needs is copied.

        Raises:
            QdrunRuntimeError: see ``expect``.
        """
        over, program = self._overwritten, self._program
        assert over is not None and program is not None
        if self._python.objects and self._inside is None:
            self._python.passed(program, kernel, args)
        if threading.get_ident() != self._thread or self.check is not None:
            self.expect(kernel)
        program.replay.place = self.locate, len(self.log)
        reverse, checks = self._inside is None, over.quick[kernel]
        self._quick = reverse and not kwargs and checks.plain is not None and checks.plain(args)
        if self._quick:
            self._now, self._bound = (kernel, args, kwargs), None
            return
        now, flat = frozen_arguments(kernel.binder, args, kwargs)
        self._now = kernel, now, {}
        if now is not args:
            self._quick = checks.objects is not None and reverse and flat is not None and checks.objects(flat)
        if not self._quick:
            over.launching(len(self.log), kernel, now, {}, flat, reverse)
        self._bound = over.bound if flat is None else None

    def opens_log(self, kernel: Any) -> bool:
        """See ``TapeRecorder``."""
        if self.log.known is not None:
            self.leave_log()
            return False
        others = self.in_steps or self._python.objects or self._inside or self.check
        if others or self._program is None or threading.get_ident() != self._thread:
            return False
        return self.log.follow(self._program, kernel, self.loss)

    def leave_log(self) -> None:
        """What comes is not that of the known tape: look at the launches that followed its log."""
        log = self.log.known
        if log is None or self._program is None:
            return
        self.log.pause(self._program.admission.state)
        if log.failed:
            self._failed = self._failed or "a launch raised"
        self.log.refuse_changed(self._program)
        self._catch_up(self.log.take_over())

    def _catch_up(self, launches: list[Launch]) -> None:
        """Look at launches that were made."""
        over, program = self._overwritten, self._program
        assert over is not None and program is not None
        if launches:
            program.known_tapes.left(launches[0][0], id(self.loss))
        with over.kept.adopting(self.log.take_copies()):
            for number, (kernel, args, kwargs) in enumerate(launches):
                now, flat = frozen_arguments(kernel.binder, args, kwargs)
                over.launching(number, kernel, now, {}, flat)
                over.launched()
                if flat is None and over.bound is not None:
                    self._given.mark(number, *over.bound)

    def saw(self, tensor: Any, value: Any, index: Any) -> None:
        """See ``TapeRecorder``. Launches from now on may be given what was read."""
        if self._program is not None:
            self.log.pause(self._program.admission.state)
        super().saw(tensor, value, index)

    def launching(self, call: Call) -> None:
        """A kernel is about to run with these arguments; told while versions are kept."""
        if self.check is not None:
            self.check.launching(call)

    def record(self, event: VersionEvent | None = None) -> None:
        """Remember the launch that has run."""
        assert self._now is not None
        if not self._quick and self._overwritten is not None:
            self._overwritten.launched()
        if self._inside is not None:
            self.log.hidden.append(Timed(len(self.log), self._now, self._inside.name, self._inside.cuts))
            return
        if event is None and self._bound is not None:
            self._given.mark(len(self.log), *self._bound)
        if not self._quick and self._program is not None and self._program.arrays.shown and self._overwritten is not None:
            # launches like this one that follow are quick: what changes between them has changed since this mark
            self._given.mark_shown(len(self.log), self._program.arrays.shown.values(), self._overwritten.reads_now)
        self.log.add(self._now, event, None if self._program is None else self._program.seeds.last)

    def show(self, shown: ExportedMemory) -> None:
        """The memory of a field or an ndarray is handed out."""
        self.leave_log()  # what reads this memory from now on is marked
        self._given.show(len(self.log) - 1, shown)

    def custom(self, function: CustomFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with a gradient of its own and remember it as one step. Inside another one it is a plain function."""
        if self._inside is not None:
            return function.fn(*args, **kwargs)
        refuse_second_order(self._program, repr(function))
        self.expect(function)
        self.leave_log()
        function.gradient()
        frozen = tuple(map(copied, args)), {k: copied(v) for k, v in kwargs.items()}
        self._inside = function
        try:
            result = function.fn(*args, **kwargs)
        except BaseException as error:  # what ran before is not known
            self._failed = self._failed or f"{function!r} raised {type(error).__name__}"
            raise
        finally:
            self._inside = None
        self.log.add_other(function, *frozen)
        return result

    def composite(self, steps: Composite) -> None:
        """Run several launches and remember them as one step, or launch by launch."""
        refuse_second_order(self._program, repr(steps))
        self.expect(steps)
        self._protect(steps)
        number = len(self.log)
        if not steps.whole:
            self.log.add_other(steps)
        before, self.in_steps = self.in_steps, True
        try:
            steps.record(self)
        except BaseException as error:  # what ran before is not known
            self._failed = self._failed or f"{steps!r} raised {type(error).__name__}"
            raise
        finally:
            self.in_steps = before
        if steps.whole:
            self.log.add_other(steps)
            self._note_reads(steps, number)

    def _protect(self, steps: Composite) -> None:
        """Copy what several launches will write without telling."""
        assert self._overwritten is not None
        self.leave_log()
        for tensor in steps.arrays():
            self._overwritten.writing(2 * len(self.log) + 1, tensor)

    def _note_reads(self, steps: Composite, number: int) -> None:
        """What later launches must not overwrite without a copy."""
        assert self._overwritten is not None
        own = Overwrites()
        steps.join(own, number)
        self._overwritten.reads((spot, use.patterns()) for spot, use in all_uses(own.reads))

    def failed(self, what: Any, error: BaseException) -> None:
        """A launch raised. What it wrote before has no gradient; one that was refused before it ran wrote nothing."""
        self.locate(error, len(self.log))
        if not isinstance(error, (QdrunCompilationError, OutOfMemory)):
            self._failed = self._failed or f"{what if isinstance(what, str) else repr(what)} raised {type(error).__name__}"

    def step_begins(self, step: int | None) -> None:
        """The launches from now on are those of a time step; None: of none."""
        self.log.step_begins(step)

    def locate(self, error: BaseException, number: int) -> None:
        """Tell a failed check the place of the launch, given its number here."""
        program = self._program
        if isinstance(error, QdrunAssertionError) and program is not None and program.prompt:
            error.locate(*self.log.place_of(number))

    def wrote(self, tensor: Any, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Remember that Python writes to a field or an ndarray between two launches; the arguments are those of ``Program.wrote``."""
        if not isinstance(source, (Field, Ndarray)):
            if self._python and source is not None and self._inside is None and self._program is not None:
                self._python.assigned(self._program, tensor, source)
            source = None
        self.leave_log()
        write = self.log.add_write(tensor, index, source, parts, "" if self._inside is None else self._inside.name)
        if self._overwritten is not None:
            self._overwritten.writing(2 * len(self.log) + (self._inside is not None), tensor, index)
        if self.check is not None:
            self.check.wrote(write)

    # ---- enter, leave
    def __enter__(self) -> Tape:
        if self._program is not None:
            raise QdrunRuntimeError("Tape can be entered only once; do: make a new one")
        program = current_program()
        if program.recorders.tape is not None:
            raise QdrunRuntimeError("a tape is open already; do: put both parts into one tape, or close the first")
        refuse_in_forward_mode(program, "a Tape")
        refuse_in_a_trial(program, "a Tape records the launches of all trials")
        if self.check is not None and program.batch.layout.batched:
            raise QdrunRuntimeError(
                "Tape(grad_check=..) in a batched program: it compares the gradient of one loss"
                "\n  do: check it in a program without batch="
            )
        if program.replay.running and self.clear_gradients:
            raise QdrunRuntimeError(
                "a tape inside the gradient of another would clear the gradients on their way; do: Tape(clear_gradients=False), or"
                " call the .grad() of the kernels"
            )
        program.materialize()
        if self.loss is not None:
            check_loss(self.loss)
        self._program, self._thread = program, threading.get_ident()
        if self.clear_gradients:
            clear_all_gradients()
        if self.loss is not None:
            fill_loss(self.loss, 0)
        if program.recorders.versions is None and (self.validation or self.check is not None):
            self._own_versions = True
            program.recorders.versions = Versions(program.state)
        if self.check is not None:
            self.check.start(program)
        self._overwritten = Overwritten(program)
        program.recorders.tape = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        program = self._program
        assert program is not None
        self.log.pause(program.admission.state)
        program.recorders.tape = program.replay.place = None
        try:
            if kind is None:
                if current_program() is not program:
                    raise QdrunRuntimeError("another program became current inside the tape; do: one tape in one program")
                self.grad()
                if self.check is not None:
                    sampled = [t for _, steps in self.log.composites() for t in steps.sample() if isinstance(t, Timed)]
                    self.check.run(self.log.launches, [timed.launch for timed in (*self.log.timed(), *sampled)])
        finally:
            self._python = PythonReads(self.validation)
            if self._own_versions:
                program.recorders.versions = None
            if self._overwritten is not None:
                self._overwritten.kept.release()
            self.log.release(program)
            for _, steps in self.log.composites():
                steps.release()

    def grad(self) -> None:
        """Run the gradients of the recorded launches, last to first.

        Raises:
            DataAccessError: a later launch, or Python, overwrote what the gradient of an earlier launch must read again.
            DifferentiationError: with ``validation``, a gradient is lost in an array that has none.
            QdrunRuntimeError: a launch inside failed.
        """
        program = self._program
        if program is None:
            raise QdrunRuntimeError("the tape was not entered; do: `with qd.ad.Tape(..) as tape:`")
        self.log.pause(program.admission.state)
        log = self.log.known
        if log is not None and (log.failed or not log.ended):
            self.leave_log()
            log = None
        if self._failed:
            raise QdrunRuntimeError(
                f"{self._failed} inside this tape: what it wrote before has no gradient\n"
                "  do: let the exception leave the tape, or launch it outside"
            )
        assert self._overwritten is not None
        kept = self._overwritten.kept
        self.log.begin_reverse(bool(kept))
        self.log.refuse_changed(program)
        found = None if log is not None else self._checked(program)
        if not kept:  # else each launch is checked when memory is what it was
            self._check_versions(program)
        if found is not None:
            self._given.check(found)
            make_gradients(program, found.variants)
        check_budget(program, kept, self.log.differentiated(), self.log.reserve(program))
        if self.loss is not None:
            if program.recorders.recording is None:
                if not len(self.log):
                    warn_user(NOTHING)
                if found is not None:
                    warn_of_zeros(recorded_by(self, program, found.groups))
            fill_loss(loss_gradient(self.loss), 1)
        others = self._given.shown or self._overwritten.unkept or self.check
        is_plain = found is not None and self.log.is_plain and not (others or found.loses())
        wanted = is_plain and program.known_tapes.wants(program, self.log.launches, id(self.loss)) and log_functions()
        copies = kept.logged() if wanted else None
        was, program.replay.running = program.replay.running, True
        try:
            kept.begin()
            if log is None:
                self._replay(found, 0, len(self.log), self.log.writes)
            else:
                self._walk_back(log)
        except OutOfMemory as error:
            raise of_all(program, error, self.log.differentiated()) from None
        finally:
            program.replay.running, program.seeds.replayed, program.replay.place = was, None, None
            kept.end()
        if copies is not None and wanted:
            known = known_tape(program, self.log.launches, copies, wanted)
            if known is not None:
                program.known_tapes.enter(self.log.launches[0][0], id(self.loss), known)

    def _walk_back(self, log: LaunchLog) -> None:
        """Run the gradients of all launches, last to first: natively, but for those that need Python."""
        program = self._program
        assert program is not None
        log.position = len(self.log)
        log.begin()
        try:
            while (at := log.walk_back()) != 0:
                program.device.copied_natively(log.copy_code)
                program.replay.before_launch = log.is_early(at - 1)
                self._replay(None, at - 1, at, [])
                log.reversed_one()
        except QdrunAssertionError as error:
            self.locate(error, log.position - 1)
            raise
        finally:
            log.end()
            program.device.copied_natively(log.copy_code)

    def _checked(self, program: Program) -> Overwrites:
        """The reads and writes of all launches, which were checked, as were the values that are lost."""
        timed = self.log.timed()
        found = self._overwrites(timed)
        found.check()
        # a captured function was told when it ran before
        if found.loses() and (program.recorders.recording is None or self.validation):
            inner = [(when, t) for when, steps in self.log.composites() for t in steps.sample()]
            order = sorted([*((t.when, t) for t in timed), *inner], key=lambda pair: pair[0])
            check_broken(order, self.log.writes, strict=self.validation)
        return found

    def _overwrites(self, timed: list[Timed]) -> Overwrites:
        """The reads and writes of all launches; of writes, whether copies were made of what they overwrite."""
        assert self._overwritten is not None
        unkept = {time // 2 for time in self._overwritten.unkept}
        found = Overwrites.of(timed, self.log.writes, unkept)
        for when, steps in self.log.composites():
            own = Overwrites()
            steps.join(own, when)
            copied = {spot for tensor in steps.arrays() for spot, _ in tensor_regions(tensor)}
            for spot, use in all_uses(own.writes):
                use.kept = when not in unkept and (steps.told or spot in copied)
            found.add(own)
        return found

    def _check_versions(self, program: Program, begin: int = 0, end: int | None = None) -> None:
        for number in range(begin, len(self.log) if end is None else end) if self.log.events else ():
            event = self.log.events.get(number)
            if event is not None and program.recorders.versions is not None:
                kernel, args, kwargs = self.log.launches[number]
                variant, bound = kernel.variant(args, kwargs)
                program.recorders.versions.check(variant, bound.call, event)

    def _replay(self, found: Overwrites | None, begin: int, end: int, host_writes: list[HostWrite]) -> None:
        """Run the gradients of launches ``begin`` to ``end - 1``, last to first, and of what Python wrote between them."""
        program, seeds, launches = self._program, self.log.seeds, self.log.launches
        assert program is not None
        kept = self._overwritten.kept if self._overwritten is not None and self._overwritten.kept else None
        writes = [w for w in host_writes if not w.hidden]
        for when in range(end, begin - 1, -1):
            if kept is not None:
                kept.restore(2 * when)
            while writes and writes[-1].before == when:
                assert found is not None
                found.reverse(writes.pop())
            if when == begin:
                break
            function, args, kwargs = launches[when - 1]
            program.seeds.replayed, program.replay.place = seeds.get(when - 1), (self.locate, when - 1)
            if kept is not None:
                if when - 1 in kept.before:
                    kept.restore_before(when - 1)
                    program.replay.before_launch = True
                self._check_versions(program, when - 1, when)
            try:
                function.grad(*args, **kwargs)
            except NothingToDifferentiate:
                if isinstance(function, Replaced):
                    raise
            except QdrunAssertionError as error:
                self.locate(error, when - 1)
                raise
            finally:
                program.replay.before_launch = False
