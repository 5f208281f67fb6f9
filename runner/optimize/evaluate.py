"""Evaluates the points of descents: one trial in a session of its job, or those of a batch in one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ValidationError

from ...compiler.errors import QdrunError
from ...jobs.base import BatchSession, Session
from ...jobs.core import paths
from ...jobs.core.outcome import arrays_of
from ..config.limits import limits_of
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
    def columns(self) -> Rows:
        """The parameters that are optimised as each began with them."""
        ...

    def start(self, row: int) -> tuple[dict[str, Any], int]:
        """All parameters that a descent began with, as plain data, and its seed."""
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
        """The rows whose next point is beyond the limits of the job's parameters, each with its error. Validators are not asked."""
        ...

    def refused_at_end(self, real: Rows, kept: np.ndarray) -> dict[int, BaseException]:
        """The rows whose kept point a validator of the job refuses, each with its error. Limits alone have been looked at in each step.

        Args:
            real: the kept points.
            kept: the steps that they were.
        """
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
    """One trial in a session. ``names``: the parameters that are optimised."""

    def __init__(self, session: Session, names: Sequence[str]) -> None:
        self.session, self._last = session, -1
        self._jacobian: Jacobian | None = None
        self._first, self._model = session.job.params, type(session.job.params)
        self._limited = limits_of(self._model, names) is not None
        self._start, self._seed = paths.plain_params(self._first), session.job.seed
        self.columns = {name: np.array([paths.get(self._start, name)], dtype=np.float64) for name in names}

    def start(self, row: int) -> tuple[dict[str, Any], int]:
        """See ``Evaluate``."""
        return self._start, self._seed

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
            x = {name: value[0] for name, value in real.items()}
            try:
                point = at_point(self._model, self._start, x, step)
            except DescentError:
                if self._limited:
                    raise
                point = unvalidated(self._first, x)  # validators decide about the point that is kept
        found, self._last = self.session.run(point), step
        gradients, outputs = arrays_of(found.gradients, "gradient"), arrays_of(found.outputs, "output")
        return Evaluated(np.array([float(found.loss)]), _rows(gradients), _rows(outputs), {})

    def refused(self, real: Rows, running: np.ndarray, step: int) -> dict[int, BaseException]:
        """See ``Evaluate``: the run says it."""
        return {}

    def refused_at_end(self, real: Rows, kept: np.ndarray) -> dict[int, BaseException]:
        """See ``Evaluate``."""
        return {} if self._limited or not kept[0] else _refused([0], real, self._model, self.start, kept)

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


@dataclass(frozen=True)
class Starts:
    """Where the descents of a batch begin.

    Attributes:
        params: of any of these trials: what is no input is the same in all of them.
        inputs: a column for each input that differs between trials or is optimised, (B, ...).
        count: B.
    """

    params: BaseModel
    inputs: Mapping[str, np.ndarray]
    count: int

    @classmethod
    def of(cls, batch: BatchSession, params: Sequence[BaseModel]) -> Starts:
        """The starts of trials of a batch, from the parameters of each."""
        columns = {name: np.array([getattr(one, name) for one in params]) for name in batch.job.declared.inputs}
        return cls(params[0], columns, len(params))


class TrialsTogether:
    """Trials of a batch.

    Args:
        batch: open, of the group of these trials.
        starts: of all of them.
        seeds: of each trial, see ``BatchSession.run_columns``; none: 0, 1, 2 and so on.
        names: the parameters that are optimised.
        rows: which of the trials take part; None: all.
    """

    def __init__(
        self,
        batch: BatchSession,
        starts: Starts,
        seeds: Sequence[int] | np.ndarray,
        names: Sequence[str],
        rows: Sequence[int] | None = None,
    ) -> None:
        self.batch, self._params, self._all = batch, starts.params, starts.count
        self._limits = limits_of(batch.job.Params, names)
        self._rows = np.arange(starts.count) if rows is None else np.asarray(rows)
        self.seeds = np.asarray(seeds if len(seeds) else range(starts.count))[self._rows]
        self._inputs = {name: np.asarray(column)[self._rows] for name, column in starts.inputs.items()}
        count = len(self._rows)
        for name in names:
            if name not in self._inputs:
                self._inputs[name] = np.repeat(np.asarray(getattr(starts.params, name))[None], count, axis=0)
        self.columns = {name: self._inputs[name].astype(np.float64) for name in names}

    @cached_property
    def _plain(self) -> dict[str, Any]:
        return paths.plain_params(self._params)

    def start(self, row: int) -> tuple[dict[str, Any], int]:
        """See ``Evaluate``."""
        return self._plain | {name: column[row].tolist() for name, column in self._inputs.items()}, int(self.seeds[row])

    @property
    def builds(self) -> int:
        """See ``Evaluate``."""
        return 1

    def begin(self, step: int, most: int) -> None:
        """See ``Evaluate``."""
        self.batch.job.watch.descent = step, most

    def __call__(self, real: Rows | None, step: int) -> Evaluated:
        """See ``Evaluate``."""
        found = self.batch.run_columns(self._inputs | (real or {}), self.seeds, self._params)
        return Evaluated(found.losses, dict(found.gradients), dict(found.outputs), found.errors)

    def refused(self, real: Rows, running: np.ndarray, step: int) -> dict[int, BaseException]:
        """See ``Evaluate``."""
        if self._limits is None:
            return {}
        rows = np.flatnonzero(running & ~self._limits.certainly_allow(real)).tolist()
        return _refused(rows, real, self.batch.job.Params, self.start, np.full(len(running), step))

    def refused_at_end(self, real: Rows, kept: np.ndarray) -> dict[int, BaseException]:
        """See ``Evaluate``."""
        if self._limits is not None:
            return {}
        return _refused(np.flatnonzero(kept).tolist(), real, self.batch.job.Params, self.start, kept)

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


def _refused(
    rows: Sequence[int],
    real: Rows,
    model: type[BaseModel],
    start: Callable[[int], tuple[dict[str, Any], int]],
    steps: np.ndarray,
) -> dict[int, BaseException]:
    """Validate points. Returns the errors of those that the model refuses, by row."""
    found: dict[int, BaseException] = {}
    for row in rows:
        try:
            at_point(model, start(row)[0], {name: column[row] for name, column in real.items()}, int(steps[row]))
        except Exception as error:  # also what a validator of the job raises
            found[row] = error
    return found


def unvalidated(params: BaseModel, x: Mapping[str, np.ndarray]) -> BaseModel:
    """Parameters with other numbers, by dotted paths, that no validator has seen. Lists and tuples stay what they are."""
    for name, value in x.items():
        params = _with(params, name.split("."), value)
    return params


def _with(here: Any, path: Sequence[str], value: np.ndarray) -> Any:
    if not path:
        return _shaped(value.tolist(), here)
    if isinstance(here, BaseModel):
        return here.model_copy(update={path[0]: _with(getattr(here, path[0]), path[1:], value)})
    if isinstance(here, Mapping):
        return {**here, path[0]: _with(here[path[0]], path[1:], value)}
    items = list(here)
    items[int(path[0])] = _with(items[int(path[0])], path[1:], value)
    return type(here)(items)


def _shaped(value: Any, like: Any) -> Any:
    """Nested lists as the nested tuples and lists that they stand for."""
    return type(like)(map(_shaped, value, like)) if isinstance(like, list | tuple) else value


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


__all__ = ["Alone", "DescentError", "Evaluate", "Evaluated", "Starts", "TrialsTogether", "at_point"]
