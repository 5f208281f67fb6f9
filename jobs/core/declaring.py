"""The part of a job that declares what goes in and out, and leaves it to the base class to run what ``simulate`` launches."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from ..planning.memory_plan import Launches
from .declared import Declared
from .recorded import Recorded
from .watch import Watch
from .watched import watched

MANY = 8
"""Launches of one kernel in a run that look like time steps."""
LOGS = "simulate() logs values"
"""Why the launches of such a job are not recorded."""


class Declaring:
    """The base of ``Job``; the attributes are described there."""

    gradients: ClassVar[tuple[str, ...]]
    precision: Any
    params: Any
    wanted: tuple[str, ...]
    program: Any
    window: int
    snapshot_bytes: int | None
    _declared: Declared
    _launches: dict[bool, Launches]
    _real_params: BaseModel
    _recorded: dict[bool, Recorded]
    _first: Any
    _given: frozenset[str]
    _sequences: dict[bool, int]
    _copies: dict[bool, int]
    _backwards: Any  # the rehearsal of a run with gradients
    _kept_by_tape: int
    _repeats: bool
    _ran: bool
    _why: str
    _logs: bool
    jacobian: str
    tangents: Mapping[str, np.ndarray]
    watch: Watch
    _made: bool
    _seed_used: bool
    _artifacts_used: bool

    def input(self, name: str) -> Any:
        """Declare a parameter as an input, in ``build``: a float, an integer, or a list of them.

        Kernels read it from the returned field, which has the parameter's shape (0-d for a number) and is filled before each run. If
        ``gradients`` names it, the field has a gradient, which becomes a column. ``build`` cannot read the value of an input, because
        trials with other values share the program.

        Raises:
            ValueError: there is no such parameter, it is no number, or it was declared or read before.
        """
        return self._declared.input(self._real_params, name, name in self.gradients)

    def objective(self) -> Any:
        """Declare, in ``build``, the loss: the 0-d field that this gives. Kernels add to it; it is zero before.

        Raises:
            ValueError: there is one already.
        """
        return self._declared.objective()

    def residuals(self, count: int) -> Any:
        """Declare, in ``build``, the loss as half the sum of the squares of residuals: the field of shape (count,) that this gives.

        Kernels of ``simulate`` write it; it is zero before a run. There is no ``objective`` then. The rule ``levenberg_marquardt`` of
        ``optimize`` takes its steps from the Jacobian of the residuals.

        Raises:
            ValueError: there is an objective, or there are residuals already.
        """
        return self._declared.residual_field(count, self.jacobian)

    def output(self, name: str, shape: int | Sequence[int] = (), *, needs_grad: bool = False) -> Any:
        """Declare, in ``build``, a further column: a field of floats, zero before a run, whose values after it are ``out.<name>``.

        Args:
            name: of the column.
            shape: of the field.
            needs_grad: the loss is computed from it.

        Raises:
            ValueError: there is one of that name already.
        """
        return self._declared.output(name, (shape,) if isinstance(shape, int) else shape, needs_grad)

    def constant(self, values: Any, *, vectors: bool = False) -> Any:
        """In ``build``: a field with the values of an array, which all trials share and nothing writes.

        Args:
            values: an array; whole numbers become i32, other numbers the float type of the job's ``precision``.
            vectors: its last axis are the components of a ``qd.Vector.field``.
        """
        import qdrun as qd

        values = np.asarray(values)
        real, dtype = (qd.f32, np.float32) if self.precision == "f32" else (qd.f64, np.float64)
        kind, dtype = (qd.i32, np.int32) if values.dtype.kind == "i" else (real, dtype)
        shape = values.shape[:-1] if vectors else values.shape
        made = qd.Vector.field(values.shape[-1], dtype=kind, shape=shape, per_trial=False) if vectors else None
        made = qd.field(dtype=kind, shape=shape, per_trial=False) if made is None else made
        made.from_numpy(values.astype(dtype))
        return made

    def simulate(self) -> None:
        """Launch the kernels of one run, and do nothing else: the launches are recorded once, and made again for other trials. Python that
        looks at a field here is refused.
        """
        raise NotImplementedError(f"{type(self).__name__} has no simulate()\n  do: write `def simulate(self) -> None` in it")

    def time_loop(self, step: Callable[[int, int], Any]) -> None:
        """In ``simulate``: call ``step(t, k)`` for each of ``time_steps``, from slot k of the state arrays to slot k + 1.

        Where a memory budget is too small for all slots, and with ``temporaries``, this is ``qd.ad.checkpointed_steps``.
        """
        steps, temporaries = self.time_steps(), self.temporaries()
        if self.window < steps or temporaries:
            import qdrun as qd

            arrays = {"temporaries": temporaries, "budget": self.snapshot_bytes}
            qd.ad.checkpointed_steps(step, steps, self.state(), self.scratch(), **arrays)
            return
        tape = self.program.recorders.tape
        for t in range(steps):
            if tape is not None:
                tape.step_begins(t)
            step(t, t)
        if tape is not None:
            tape.step_begins(None)

    def time_steps(self) -> int:
        """How many time steps ``run`` takes with ``qd.ad.checkpointed_steps``, on arrays that ``build`` gives ``self.window`` slots (state
        arrays one more); 0: a job that does not. Such a job fits itself into a memory budget.
        """
        return 0

    def state(self) -> Sequence[Any]:
        """The state arrays of the time steps, after ``build``."""
        return ()

    def scratch(self) -> Sequence[Any]:
        """The scratch arrays of the time steps, after ``build``."""
        return ()

    def temporaries(self) -> Sequence[Any]:
        """Arrays without slots for what a time step writes and reads itself, after ``build``: the right-hand side and the solution of a
        linear system. See ``qd.ad.checkpointed_steps``.
        """
        return ()

    def logs(self) -> Sequence[Any]:
        """Other arrays that the time steps write, and none of them reads, after ``build``: a loss, a log. The gradient keeps copies of them
        while it runs steps again.
        """
        return ()

    def rehearsed(self) -> Launches:
        """The launches of ``simulate``, found once by a rehearsal.

        Raises:
            QdrunRuntimeError: ``simulate`` does anything but launch kernels.
            ValueError: ``simulate`` reads the value of an input.
        """
        backwards = bool(self.wanted)
        if backwards not in self._launches:
            found = self._rehearse(backwards)
            self._backwards = found if backwards else self._backwards
            self._launches[backwards], self._sequences[backwards], self._copies[backwards] = (
                found.launches,
                found.sequence,
                found.most,
            )
            self._kept_by_tape = max(self._kept_by_tape, found.tape_bytes)
        return self._launches[backwards]

    def repeated_kernel(self) -> str:
        """The kernel that ``simulate`` launches most often, for a job that takes time steps and does not declare them; else empty."""
        if self._backwards is None or self.time_steps():
            return ""
        name, times = self._backwards.most_launched()
        return name if times >= MANY else ""

    def _rehearse(self, backwards: bool) -> Any:
        """Call ``simulate`` while nothing runs, see ``Rehearsal``. Attributes of the job that it changes are put back."""
        before = self._attributes()
        try:
            with self._watching():
                return self.program.rehearse(self._simulated, f"{type(self).__name__}.simulate", backwards)
        finally:
            now = self._attributes()
            changed = [name for name in {**before, **now} if not alike(before.get(name), now.get(name))]
            for name in changed:
                put_back(self, name, before.get(name))
            if changed:
                self._why = self._why or f"simulate() changes the attribute `{changed[0]}`"

    def _attributes(self) -> dict[str, tuple[Any, ...]]:
        """The attributes that the job has made, each with the items that it holds."""
        return {name: (value, *items_of(value)) for name, value in vars(self).items() if name not in self._given}

    def _why_not_again(self) -> str:
        """Why a job that leaves its run to the base class cannot run again in the open program; see ``Job.why_built_again``."""
        if self._ran and not self._why and not self._repeats:
            self.rehearsed()
            again = self._rehearse(bool(self.wanted)).sequence
            self._repeats = not self._why and again == self._sequences[bool(self.wanted)]
            if not self._repeats:
                self._why = self._why or "simulate() launches something else when it is called again"
        return self._why

    def writes_inputs(self) -> bool:
        """Whether runs overwrite inputs, as the first one tells."""
        written = () if self._first is None else self._first.written
        return any(field is one for field in self._declared.inputs.values() for one in written)

    @property
    def declared(self) -> Declared:
        """The declarations of ``build``."""
        return self._declared

    def reads_of_its_own(self) -> str:
        """The per-trial value that ``build`` or ``simulate`` has read, as a phrase; empty if none."""
        return "it reads its seed" if self._seed_used else "it uses its artifacts" if self._artifacts_used else ""

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Parameters refuse to show the values of inputs; it is noted whether the seed or the artifacts are asked for."""
        before, self.params = self.params, watched(self.params, self._declared.reads)
        made, self._made = self._made, False
        try:
            yield
        finally:
            self.params, self._made = before, made

    def _new_declarations(self) -> Declared:
        return Declared(type(self).__name__, self.precision)

    def simulate_once(self) -> None:
        """Run ``simulate``, and the gradients if some are wanted. All but the inputs is put back to what ``build`` has left. Where a job
        cannot be put back (``why_built_again``), nothing has run in it.
        """
        wanted, clean = bool(self.wanted), not self._ran
        launch = self._launch_backwards if wanted else self._launch_forwards if self.jacobian == "forward" else self._simulated
        if clean:
            self._begin()
        self._ran = True
        if self._first is None or self._why:
            launch()
        else:
            if wanted not in self._recorded:
                why = LOGS if self._logs else "forward mode" if self.jacobian == "forward" else ""
                self._recorded[wanted] = Recorded(self.program, launch, self._first, clean, why)
            self._recorded[wanted].run()
            self._declared.forget(self._first.written)
        self.watch.steps = max(self.watch.steps, self.time_steps())

    def run_once(self) -> Mapping[str, int]:
        """Launches that run once for all trials of a batch: how many of each kernel. They are known after the second run."""
        recorded = self._recorded.get(bool(self.wanted))
        return {} if recorded is None else recorded.once

    def launched(self) -> str:
        """How the last run was launched: from a record of its launches, or one by one, and then why; of a batch also the trials of a group,
        and on a GPU the threads of a trial and of a block. Empty before the first run, and for a job that overrides ``run``.
        """
        if not self._ran or self.program is None:
            return ""
        recorded = self._recorded.get(bool(self.wanted))
        how = f"one by one: {self._why}" if recorded is None else recorded.how
        trials = self.program.trials
        return how if trials is None else f"{how}; trials of a group: {trials.width}"

    def _number(self, name: str, value: Any) -> Any:
        """A value for ``log`` as a number, or that of a 0-d field, in a batched program with a row for each trial; None: not read now.

        Raises:
            TypeError: it is something else.
        """
        if hasattr(value, "to_numpy") and getattr(value, "shape", None) == () and self.program is not None:
            if not self.watch.live.may_read():
                return None
            began = time.perf_counter()
            found = self._declared.read(value, self.program)
            self.watch.live.has_read(time.perf_counter() - began)
            return found if found.ndim else float(found)
        try:
            if np.ndim(value) == 0 and not isinstance(value, str | bytes):
                return float(value)
        except (TypeError, ValueError):
            pass
        raise TypeError(
            f"{type(self).__name__} logs `{name}`, which is neither a number nor a 0-d field: {value!r:.80}\n"
            "  do: log numbers; an array is an output: self.output(name, shape) in build"
        )

    def _begin(self) -> None:
        """Before the first run: look at what it will write."""
        from qdrun import QdrunRuntimeError

        steps, apart = self.window < self.time_steps() or self.temporaries(), list(self._declared.inputs.values())
        also = [*self.state(), *self.scratch(), *self.temporaries(), *self.logs()] if steps else []
        try:
            self._first = self.program.first_values(self.rehearsed(), also, apart)
        except QdrunRuntimeError as error:
            self._why = str(error).splitlines()[0]
        else:
            self._why = self._why or self._first.why

    def _simulated(self) -> None:
        """All launches of a run: those of ``simulate``, and the loss of the residuals."""
        self.simulate()
        if self._declared.finish is not None:
            self._declared.finish()

    def _launch_backwards(self) -> None:
        import qdrun as qd

        with qd.ad.Tape(loss=self._declared.loss):
            self._simulated()

    def _launch_forwards(self) -> None:
        """Values and tangents: of each trial of a batch in the direction that ``tangents`` gives it."""
        import qdrun as qd

        fields = {name: self._declared.inputs[name] for name in self.tangents}
        first = next(iter(fields.values()))
        with qd.ad.FwdMode(loss=self._declared.residuals, param=first, seed=np.zeros(first.shape)):
            for name, field in fields.items():
                self.program.column(field.dual).write(self.tangents[name])
            self.simulate()


def items_of(value: Any) -> tuple[Any, ...]:
    """The items of a list, a set or a dict; none for other objects."""
    if isinstance(value, dict):
        return *value, *value.values()
    return tuple(value) if isinstance(value, (list, set)) else ()


def alike(before: tuple[Any, ...] | None, now: tuple[Any, ...] | None) -> bool:
    """Whether an attribute is the same object as before, with the same items in it."""
    return before is not None and now is not None and len(before) == len(now) and all(map(operator.is_, before, now))


def put_back(job: object, name: str, before: tuple[Any, ...] | None) -> None:
    """Make an attribute what it was; None: there was none."""
    if before is None:
        delattr(job, name)
        return
    value, *items = before
    setattr(job, name, value)
    if isinstance(value, list):
        value[:] = items
    elif isinstance(value, (set, dict)):
        half = len(items) // 2
        value.clear()
        value.update(zip(items[:half], items[half:], strict=True) if isinstance(value, dict) else items)


__all__ = ["Declaring"]
