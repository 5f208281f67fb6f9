"""Evaluates the points of descents: one trial in a session of its job, or those of a batch in one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ValidationError

from ...compiler.errors import QdrunError
from ...jobs.base import BatchSession, Session
from ...jobs.core import paths
from ...jobs.core.outcome import arrays_of
from ..config.limits import Limits
from .jacobian import Jacobian, choose
from .state import Rows


class DescentError(QdrunError, ValueError):
    """A step left the range that the job allows."""


class Evaluated(NamedTuple):
    """The results at the points of all descents. ``errors``: the trials that failed there, by row."""

    losses: np.ndarray
    gradients: Rows
    outputs: Rows
    errors: Mapping[int, BaseException]


class Evaluate(Protocol):
    """The points of descents that take their steps together."""

    @property
    def starts(self) -> Sequence[dict[str, Any]]:
        """The parameters that each began with, as plain data."""
        ...

    @property
    def seeds(self) -> Sequence[int]:
        """The seed of each."""
        ...

    @property
    def builds(self) -> int:
        """How often the job was built."""
        ...

    def begin(self, step: int, most: int) -> None:
        """A step of at most so many begins."""
        ...

    def __call__(self, real: Rows | None, step: int) -> Evaluated:
        """Run the job.

        Args:
            real: the parameters that are optimised, in their own units; None: the starts.
            step: the number of the step.

        Raises:
            Stopped: a stop was requested.
            BaseException: what fails all of them.
        """
        ...

    def refused(self, real: Rows, running: np.ndarray, step: int) -> dict[int, BaseException]:
        """The rows whose next point the job does not allow, each with its error."""
        ...

    def log(self, values: Rows) -> None:
        """Log values of the present step."""
        ...

    def jacobian(self, names: Sequence[str]) -> np.ndarray:
        """That of the residuals at the point that was evaluated last, (residuals, numbers of the parameters)."""
        ...

    def settle(self, real: Rows, kept: np.ndarray) -> None:
        """The descents have ended well: whatever the job leaves behind is to be that of the points that are kept.

        Args:
            real: these points.
            kept: the steps that they were.
        """
        ...


class Alone:
    """One trial in a session."""

    def __init__(self, session: Session) -> None:
        self.session, self._last = session, -1
        self._jacobian: Jacobian | None = None
        self.starts = [paths.plain_params(session.job.params)]
        self.seeds = [session.job.seed]

    @property
    def builds(self) -> int:
        """See ``Evaluate``."""
        return self.session.builds

    def begin(self, step: int, most: int) -> None:
        """See ``Evaluate``."""
        self.session.job.watch.descent = step, most

    def __call__(self, real: Rows | None, step: int) -> Evaluated:
        """See ``Evaluate``."""
        point = None
        if real is not None:
            point = at_point(
                type(self.session.job.params), self.starts[0], {name: value[0] for name, value in real.items()}, step
            )
        found, self._last = self.session.run(point), step
        gradients, outputs = arrays_of(found.gradients, "gradient"), arrays_of(found.outputs, "output")
        return Evaluated(np.array([float(found.loss)]), _rows(gradients), _rows(outputs), {})

    def refused(self, real: Rows, running: np.ndarray, step: int) -> dict[int, BaseException]:
        """See ``Evaluate``: the run says it."""
        return {}

    def log(self, values: Rows) -> None:
        """See ``Evaluate``."""
        self.session.job.watch.log({name: float(value[0]) for name, value in values.items()})

    def jacobian(self, names: Sequence[str]) -> np.ndarray:
        """See ``Evaluate``. Its program is opened once, and counts in the plan of the trial."""
        job = self.session.job
        if self._jacobian is None:
            plan = self.session.plan()
            self._jacobian = Jacobian(job, names, choose(job, plan, names), plan.bytes)
        return self._jacobian.at(job.params)

    def close(self) -> None:
        """Close what was opened beside the session."""
        if self._jacobian is not None:
            self.session.runs_beside(self._jacobian.entry, self._jacobian.peak_bytes)
            self._jacobian.close()

    def settle(self, real: Rows, kept: np.ndarray) -> None:
        """See ``Evaluate``: a job that saves has its fields as they were there."""
        if self.session.job.saves() and int(kept[0]) != self._last:
            self(real, int(kept[0]))


class TrialsTogether:
    """Trials of a batch.

    Args:
        batch: open, of the group of these trials.
        params: of each trial.
        seeds: of each trial, see ``BatchSession.run_columns``; none: 0, 1, 2 and so on.
        limits: of the parameters that are optimised; None: each point is validated.
        rows: which of the trials take part; None: all.
    """

    def __init__(
        self,
        batch: BatchSession,
        params: Sequence[BaseModel],
        seeds: Sequence[int] | np.ndarray,
        limits: Limits | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self.batch, self._limits, self._all = batch, limits, len(params)
        self._rows = list(range(len(params))) if rows is None else list(rows)
        own = [params[row] for row in self._rows]
        given = seeds if len(seeds) else range(len(params))
        self.starts, self.seeds = [paths.plain_params(one) for one in own], [int(given[row]) for row in self._rows]
        self._inputs = {name: np.array([getattr(one, name) for one in own]) for name in batch.job.declared.inputs}

    @property
    def builds(self) -> int:
        """See ``Evaluate``."""
        return 1

    def begin(self, step: int, most: int) -> None:
        """See ``Evaluate``."""
        self.batch.job.watch.descent = step, most

    def __call__(self, real: Rows | None, step: int) -> Evaluated:
        """See ``Evaluate``."""
        found = self.batch.run_columns(self._inputs | (real or {}), self.seeds)
        return Evaluated(found.losses, dict(found.gradients), dict(found.outputs), found.errors)

    def refused(self, real: Rows, running: np.ndarray, step: int) -> dict[int, BaseException]:
        """See ``Evaluate``."""
        found: dict[int, BaseException] = {}
        if self._limits is not None:
            running = running & ~self._limits.certainly_allow(real)
        for row in np.flatnonzero(running).tolist():
            try:
                at_point(self.batch.job.Params, self.starts[row], {name: column[row] for name, column in real.items()}, step)
            except Exception as error:  # also what a validator of the job raises
                found[row] = error
        return found

    def log(self, values: Rows) -> None:
        """See ``Evaluate``. A point of the log has a row for each trial of the batch."""
        logged = {}
        for name, value in values.items():
            logged[name] = np.full(self._all, np.nan)
            logged[name][self._rows] = value
        self.batch.job.watch.log(logged)

    def jacobian(self, names: Sequence[str]) -> np.ndarray:
        """See ``Evaluate``: trials that need it run one by one."""
        raise NotImplementedError("a batch computes the Jacobian of one trial")

    def settle(self, real: Rows, kept: np.ndarray) -> None:
        """See ``Evaluate``: trials of a batch leave nothing but their rows."""


def _rows(arrays: Mapping[str, np.ndarray]) -> Rows:
    """Arrays of one trial as rows."""
    return {name: value[None] for name, value in arrays.items()}


def at_point(model: type[BaseModel], start: dict[str, Any], x: Mapping[str, np.ndarray], step: int) -> BaseModel:
    """The parameters of a step.

    Args:
        model: of the parameters.
        start: those that the descent began with.
        x: those that it has found, in their own units.
        step: its number.

    Raises:
        DescentError: the model refuses them.
    """
    values = start
    for name, value in x.items():
        values = paths.replaced(values, name, value.tolist())
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise DescentError(
            f"step {step} sets {where} to {first['input']}, which the job refuses: {first['msg'].lower()}\n"
            f"  do: give optimize.bounds for {where}, or a smaller optimize.learning_rate"
        ) from error


__all__ = ["Alone", "DescentError", "Evaluate", "Evaluated", "TrialsTogether", "at_point"]
