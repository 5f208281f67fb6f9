"""Batches: many trials of one job, which differ in inputs only, run by one program.

A job says what goes in and out of it (``Job.input``, ``Job.objective``, ``Job.output``) and what it launches (``Job.simulate``). Trials
whose other parameters are equal, and whose inputs have equal shapes, form a group: they share fields, kernels and launches. A batch is
some of them in one program, which ``qd.init(batch=B)`` makes; inputs go in and results come out as columns, with a row for each trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from pydantic import BaseModel

from .debug import Debug
from .job import Job
from .memory_plan import MemoryPlan
from .outcome import Outcome


@dataclass(frozen=True)
class BatchOutcome:
    """What a batch gives back: columns with a row for each trial, in the order in which the trials were given.

    Attributes:
        losses: (B,), f64.
        gradients: for each wanted gradient (B, ...): B times the shape of the parameter.
        outputs: for each output of the job (B, ...).
        errors: row -> what a kernel reported for that trial alone (an assert, an index, an overflow, a NaN check). The numbers in its row
            mean nothing; the other rows are what they are without it.
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


@dataclass(frozen=True)
class BatchPlan:
    """The memory of batches of one group, for every number of trials: ``fixed + ceil(B / width) * width * per_trial + heap``.

    Attributes:
        width: trials that lie side by side; memory is allocated for whole groups of so many.
        per_trial: bytes of one trial: its fields and their gradients.
        fixed: bytes that all trials share.
        heaps: bytes of the adstack heap: (trials, bytes) where it changes, ascending; a batch takes the last whose trials it reaches.
        most: the most trials that one program can hold whatever its memory; None: no limit.
        memory: the plan of one trial alone, whose entries say what asks for the bytes.
    """

    width: int
    per_trial: int
    fixed: int
    heaps: tuple[tuple[int, int], ...]
    memory: MemoryPlan
    most: int | None = None

    def bytes(self, trials: int) -> int:
        """What a program of so many trials holds at its peak, to the byte."""
        raise NotImplementedError

    def max_batch(self, limit: int) -> int:
        """The most trials whose program holds at most ``limit`` bytes; 0: not even one fits. The exact inverse of ``bytes``."""
        raise NotImplementedError


def group_key(job: type[Job[Any]], params: BaseModel, *, wanted: Sequence[str] | None = None) -> str:
    """A text that is equal for two trials if and only if they may run in one batch: all parameters that are no inputs are equal, the
    inputs have equal shapes, and they want the same gradients.

    Which parameters are inputs is found by building the job once for each ``Job.shape_key``, on the CPU; nothing runs.

    Args:
        job: whose trials ``why_not_batched`` has nothing against.
        params: of a trial.
        wanted: its gradients; None: all of ``Job.gradients``.
    """
    raise NotImplementedError


def why_not_batched(
    job: type[Job[Any]],
    params: BaseModel,
    *,
    wanted: Sequence[str] | None = None,
    memory_budget_bytes: int | None = None,
) -> str:
    """Why trials with these parameters cannot run in a batch, as one phrase for a table or a message; empty where they can.

    For instance: ``it overrides run()``, ``it has no simulate()``, ``build reads seed``, ``memory_budget of 1,000,000 bytes: its time steps
    run in windows of 10 of 200``.

    Args:
        job: the class.
        params: of a trial.
        wanted: its gradients; None: all of ``Job.gradients``.
        memory_budget_bytes: of one trial, as in ``Job.opened``.
    """
    raise NotImplementedError


def batch_plan(
    job: type[Job[Any]],
    params: BaseModel,
    *,
    wanted: Sequence[str] | None = None,
    backend: str = "cpu",
    threads: int | None = None,
    arch: str | None = None,
) -> BatchPlan:
    """Plan the batches of the group that ``params`` belongs to, without a device of ``arch``; compiles and runs nothing.

    Args:
        job: the class.
        params: of any trial of the group.
        wanted: gradients; None: all of ``Job.gradients``.
        backend: where the job is built for its plan, as in ``Job.opened``.
        threads: CPU threads of the program; None: as many as the compiler takes.
        arch: plan for this backend, which need not be there; None: for ``backend``.

    Raises:
        ValueError: the job cannot run in batches, see ``why_not_batched``.
    """
    raise NotImplementedError


class BatchSession:
    """An open batch: one program with room for ``trials`` trials of one group, which runs batch after batch.

    ``with BatchSession.open(MassSpring, params[0], 1000) as batch: outcome = batch.run(params, seeds)``

    Attributes:
        job: the job that was built; its ``params`` are those of ``open``.
        trials: the most trials of one ``run``.
        key: the group, see ``group_key``.
        used: the most bytes of each kind that the program held, once closed or after ``measure``.
        peak_bytes: the most bytes that it held at once, likewise.
    """

    job: Job[Any]
    trials: int
    key: str
    used: dict[str, int]
    peak_bytes: int | None

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
    ) -> Self:
        """Open a program for a group of trials, and build the job in it. The keywords are those of ``Job.opened``.

        Args:
            job: the class.
            params: of any trial of the group.
            trials: the most trials of one run.
            wanted: gradients; None: all of ``Job.gradients``.
            backend: see ``Job.opened``.
            device: see ``Job.opened``.
            threads: see ``Job.opened``.
            memory_limit_bytes: see ``Job.opened``.
            debug: see ``Job.opened``.

        Raises:
            ValueError: the job cannot run in batches, see ``why_not_batched``.
            OutOfMemory: the batch does not fit ``memory_limit_bytes`` or the device.
        """
        raise NotImplementedError

    def run(self, params: Sequence[BaseModel], seeds: Sequence[int] = ()) -> BatchOutcome:
        """Run trials of the group: at most ``trials``, fewer are possible.

        Args:
            params: of each trial.
            seeds: of each trial, as ``Job.seed``; empty: zeros.

        Raises:
            ValueError: one of them belongs to another group, or there are too many.
            Exception: what a job raises for the whole batch, and a device that is lost. What concerns one trial is in ``errors``.
        """
        raise NotImplementedError

    def run_columns(self, inputs: Mapping[str, np.ndarray], seeds: Sequence[int] | np.ndarray = ()) -> BatchOutcome:
        """As ``run``, with the inputs as columns: for each input of the job (B, ...); one that is missing has the value of ``open``."""
        raise NotImplementedError

    def measure(self) -> None:
        """Bring ``used`` and ``peak_bytes`` up to date."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the program; once is enough."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


__all__ = ["BatchOutcome", "BatchPlan", "BatchSession", "batch_plan", "group_key", "why_not_batched"]
