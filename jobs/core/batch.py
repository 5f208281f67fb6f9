"""Batches: many trials of one job, which differ in inputs only, run by one program.

A job says what goes in and out of it (``Job.input``, ``Job.objective``, ``Job.output``) and what it launches (``Job.simulate``). Trials
whose other parameters are equal, and whose inputs have equal shapes, form a group: they share fields, kernels and launches. A batch is
some of them in one program, which ``qd.init(batch=B)`` makes; inputs go in and results come out as columns, with a row for each trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Self

import numpy as np
from pydantic import BaseModel

from ..planning.batch_plan import BatchPlan, batch_plan
from ..planning.groups import group_key, why_not_batched
from .debug import Debug
from .job import Job
from .optimizer import Optimizer, OptimizerSpec
from .outcome import Outcome
from .session import in_turn


@dataclass(frozen=True)
class BatchOutcome:
    """The results of a batch: columns with a row per trial, in the order of the trials.

    Attributes:
        losses: (B,), f64.
        gradients: for each wanted gradient (B, ...): B times the shape of the parameter.
        outputs: for each output of the job (B, ...).
        errors: row -> the error that a kernel reported for that trial (an assert, an index, an overflow, a NaN check). The numbers in its
            row are invalid; the other rows are what they are without it.
    """

    losses: np.ndarray
    gradients: Mapping[str, np.ndarray] = field(default_factory=dict)
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    errors: Mapping[int, Exception] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.losses)

    def row(self, trial: int) -> Outcome:
        """The outcome of one trial, as ``Job.run`` gives it.

        Raises:
            Exception: what the trial failed with, where it did.
        """
        if trial in self.errors:
            raise self.errors[trial]
        return Outcome(float(self.losses[trial]), self._of(self.gradients, trial), self._of(self.outputs, trial))

    @staticmethod
    def _of(columns: Mapping[str, np.ndarray], trial: int) -> dict[str, Any]:
        return {name: float(c[trial]) if c.ndim == 1 else np.array(c[trial]) for name, c in columns.items()}


class BatchSession:
    """An open batch: one program with room for ``trials`` trials of one group, which runs batch after batch, from any thread.

    ``with BatchSession.open(MassSpring, params[0], 1000) as batch: outcome = batch.run(params)``

    Attributes:
        job: the job that was built; its ``params`` are those of ``open``.
        trials: the most trials of one ``run``.
        key: the group, see ``group_key``.
        used: the most bytes of each kind that the program held, after ``measure`` or ``close``.
        peak_bytes: the most bytes that it held at once, likewise.
    """

    def __init__(self, job: Job[Any], trials: int, key: str, options: Mapping[str, Any]) -> None:
        self.job, self.trials, self.key, self._options = job, trials, key, options
        self.used: dict[str, int] = {}
        self.peak_bytes: int | None = None
        self._open = ExitStack()
        self._turn = RLock()
        self._differ: set[str] = set()  # inputs that have differed between the trials of a run

    @classmethod
    def open(
        cls,
        job: type[Job[Any]],
        params: BaseModel,
        trials: int,
        *,
        wanted: Sequence[str] | None = None,
        backend: str = "cpu",
        device: int | str | None = None,
        threads: int | None = None,
        memory_limit_bytes: int | None = None,
        debug: Debug | Mapping[str, bool] | bool | None = None,
        optimizer: OptimizerSpec | None = None,
    ) -> Self:
        """Open a program for a group of trials, and build the job in it.

        Args:
            job: the class.
            params: of any trial of the group.
            trials: the most trials of one run.
            wanted: gradients; None: all of ``Job.gradients``.
            backend: see ``Job.opened``, also for what follows.
            device: see there.
            threads: see there.
            memory_limit_bytes: see there.
            debug: see there.
            optimizer: its steps run in the program, too, see ``step`` and ``run_again``.

        Raises:
            ValueError: the job cannot run in batches, see ``why_not_batched``.
            OutOfMemory: the batch does not fit ``memory_limit_bytes`` or the device.
        """
        why = why_not_batched(job, params, wanted=wanted)
        if why:
            raise ValueError(f"{job.__name__} cannot run in batches: {why}\n  do: run its trials one by one, in a Session")
        how: dict[str, Any] = {"backend": backend, "device": device, "threads": threads, "debug": debug}
        how |= {"memory_limit_bytes": memory_limit_bytes, "batch": trials}
        made = cls(job(params, wanted=wanted), trials, group_key(job, params, wanted=wanted), how)
        made.job.optimizer_spec = optimizer
        made.build()
        return made

    def build(self) -> None:
        """Open the program, and build the job in it."""
        self._open.enter_context(self.job.opened(**self._options))
        self.job.program.batch.keep_failures = True
        self._counted = False  # the seeds that the trials have are 0, 1, 2 and so on

    @in_turn
    def run(self, params: Sequence[BaseModel], seeds: Sequence[int] | np.ndarray = ()) -> BatchOutcome:
        """Run trials of the group: at most ``trials``, fewer are possible. ``seeds``: see ``run_columns``.

        Raises:
            ValueError: one of them belongs to another group, or there are too many.
            Exception: as ``run_columns``.
        """
        for number, one in enumerate(params):
            if group_key(type(self.job), one, wanted=self.job.wanted) != self.key:
                raise ValueError(
                    f"trial {number} belongs to another batch: {one!r:.200}\n  do: give trials of one group_key to a session"
                )
        columns = {name: np.array([getattr(one, name) for one in params]) for name in self.job.declared.inputs}
        return self.run_columns(columns, seeds if len(seeds) else range(len(params)))

    @in_turn
    def run_columns(
        self, inputs: Mapping[str, np.ndarray], seeds: Sequence[int] | np.ndarray = (), params: BaseModel | None = None
    ) -> BatchOutcome:
        """Like ``run``, with the inputs as columns: for each input of the job (B, ...); a missing one has the value in ``params``.

        Args:
            inputs: columns by name.
            seeds: ``Job.seed`` of each trial, which the random numbers of its kernels come from; none: 0, 1, 2 and so on.
            params: of any of these trials; None: those of ``open``.

        Raises:
            ValueError: there are too many trials, or a column has another shape than its input.
            Stopped: a stop was requested, see ``Job.watch``.
            Exception: what stops all trials, such as a device that is lost. What concerns one trial is in ``errors``.
        """
        job = self.job
        count = self._rows(inputs, len(seeds))
        job.watch.run(job.time_steps())
        if job.ran and job.why_built_again():  # with checks of inputs (``debug``), for instance
            self._open.close()
            self.build()
        declared, program = job.declared, job.program
        declared.fill(params or job.params, program, inputs)
        for name, column in inputs.items():
            declared.put(name, self._filled(column), program)
        state = program.batch
        apart = self._differ.union(job.wanted)
        self._differ |= {name for name, column in inputs.items() if name not in apart and not _equal_rows(column)}
        apart |= self._differ
        state.same = [field for name, field in declared.inputs.items() if name not in apart]
        state.forget_failures()
        if len(seeds) or not self._counted:
            state.set_seeds(self._filled(np.asarray(seeds)) if len(seeds) else np.arange(self.trials))
            self._counted = not len(seeds)
        job.simulate_once()
        program.synchronize()
        loss, gradients, outputs = declared.columns(job.wanted, program)
        return BatchOutcome(
            loss[:count].astype(np.float64, copy=False),
            {name: column[:count] for name, column in gradients.items()},
            {name: column[:count] for name, column in outputs.items()},
            {trial: error for trial, error in state.failed().items() if trial < count},
        )

    @property
    def optimizer(self) -> Optimizer | None:
        """That of the open program; None: there is none, or inputs must be written before each run, as the first one tells."""
        return None if self.job.why_built_again() or self.job.writes_inputs() else self.job.optimizer

    @property
    def _open_optimizer(self) -> Optimizer:
        found = self.job.optimizer
        if found is None:
            raise ValueError("the batch has no optimiser\n  do: give one to BatchSession.open, on a device with f64")
        return found

    @in_turn
    def put(self, fields: Sequence[Any], columns: Sequence[np.ndarray]) -> None:
        """Write fields of the optimiser. ``columns``: of each (B, ...)."""
        self._open_optimizer.write(fields, [self._filled(column) for column in columns])

    @in_turn
    def get(self, fields: Sequence[Any], count: int) -> list[np.ndarray]:
        """Read fields of the optimiser, (count, ...) each."""
        return [column[:count] for column in self._open_optimizer.read(fields)]

    @in_turn
    def measure_step(self, count: int) -> list[np.ndarray]:
        """Measure what the last run has left: the objective of the first ``count`` trials, and the fields that ``Optimizer.told`` names."""
        found = self._open_optimizer
        found.measure()
        self.job.program.synchronize()
        return self.get([self.job.declared.loss, *found.told], count)

    @in_turn
    def forget_memory(self) -> None:
        """Set the memory of the optimiser's rule to zero."""
        self._open_optimizer.forget()

    @in_turn
    def step(self, codes: np.ndarray, rate: float, scales: tuple[float, float]) -> None:
        """Take a step of the optimiser, which writes the inputs of the next run.

        Args:
            codes: (B,), of each trial ``TAKE`` and ``MOVE``.
            rate: the learning rate.
            scales: of Adam, see ``OptimizerSpec``.
        """
        self.put([self._open_optimizer.code], [codes])
        self._open_optimizer.step(rate, *scales)

    @in_turn
    def run_again(self, count: int) -> tuple[list[np.ndarray], dict[int, Exception]]:
        """Run the trials of the last run again, at the points to which the optimiser has moved them; nothing else crosses the bus.

        Returns:
            What ``measure_step`` gives, and the errors, as of ``BatchOutcome``.

        Raises:
            Stopped: a stop was requested.
            Exception: what stops all trials.
        """
        job, state = self.job, self.job.program.batch
        job.watch.run(job.time_steps())
        state.forget_failures()
        job.simulate_once()
        found = self.measure_step(count)
        return found, {trial: error for trial, error in state.failed().items() if trial < count}

    def _filled(self, column: np.ndarray) -> np.ndarray:
        """A column with a row for each trial of the program: the last one again where there are fewer."""
        missing = self.trials - len(column)
        return np.concatenate([column, np.repeat(column[-1:], missing, 0)]) if missing else column

    def _rows(self, inputs: Mapping[str, np.ndarray], seeds: int) -> int:
        """The number of trials in the columns."""
        declared, program = self.job.declared, self.job.program
        fields = declared.inputs
        for name, column in inputs.items():
            if name not in fields:
                raise ValueError(f"`{name}` is no input of {type(self.job).__name__}\n  do: name one of: {', '.join(fields)}")
            if np.shape(column)[1:] != (shape := declared.shape(name, program)):
                raise ValueError(
                    f"the column `{name}` has shape {np.shape(column)}, its input {shape}\n  do: give a row for each trial"
                )
        lengths = {name: len(column) for name, column in inputs.items()} | ({"seeds": seeds} if seeds else {})
        count = next(iter(lengths.values()), self.trials)
        if set(lengths.values()) - {count} or not 1 <= count <= self.trials:
            raise ValueError(
                f"columns of {lengths} rows for a batch of {self.trials} trials\n  do: give 1 to {self.trials} rows in each"
            )
        return count

    @in_turn
    def measure(self) -> None:
        """Bring ``used`` and ``peak_bytes`` up to date."""
        self.used, self.peak_bytes = self.job.used(), self.job.peak_bytes()

    @in_turn
    def close(self) -> None:
        """Close the program; once is enough."""
        if self.job.program is not None:
            self.measure()
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _equal_rows(column: np.ndarray) -> bool:
    """Whether all rows are the same to the bit."""
    if column[-1].tobytes() != column[0].tobytes():
        return False
    rows = np.ascontiguousarray(column).reshape(len(column), -1)
    rows = rows.view(np.uint64 if rows.itemsize == 8 else np.uint8)
    return bool((rows == rows[0]).all())


__all__ = ["BatchOutcome", "BatchPlan", "BatchSession", "batch_plan", "group_key", "why_not_batched"]
