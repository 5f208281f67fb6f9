"""Gradient descent of all trials of a batch at once: each trial's steps are those of ``descent.descend``, as rows of arrays.

A trial that is over keeps its point while the others go on. One that fails is its own row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel

from ...jobs.base import Outcome, Stopped
from ...jobs.core import paths
from ...jobs.core.batch import BatchOutcome, BatchSession
from ..config.optimize_section import OptimizeSection
from .descent import STOPPED, at_point, result_of
from .update_rules import Arrays, State, clipped_rows, free_part, projected, rate_at, row_norms, update

Rows = dict[str, np.ndarray]
"""Arrays with a row for each trial."""
RUNNING = -1


@dataclass
class _Descents:
    """The state of the descents of a batch; see ``descent_state.Descent`` for the terms.

    Attributes:
        stopped: of each trial the number of ``STOPPED``; ``RUNNING``.
        steps: number of steps of each.
        failed: the trials that cannot go on.
    """

    x: Rows
    best: np.ndarray
    mark: np.ndarray
    norm: np.ndarray
    kept: np.ndarray
    since: np.ndarray
    stopped: np.ndarray
    steps: np.ndarray
    state: State = field(default_factory=State)
    history: list[np.ndarray] = field(default_factory=list)
    point: Rows = field(default_factory=dict)
    outcome: BatchOutcome | None = None
    failed: dict[int, BaseException] = field(default_factory=dict)

    @classmethod
    def at(cls, x: Rows, trials: int) -> _Descents:
        """Before the first step."""
        real = [np.full(trials, math.inf), np.full(trials, math.inf), np.zeros(trials)]
        whole = [np.zeros(trials, np.int64), np.zeros(trials, np.int64), np.full(trials, RUNNING), np.zeros(trials, np.int64)]
        return cls(x, *real, *whole)

    @property
    def running(self) -> np.ndarray:
        """The trials that are not over."""
        return self.stopped == RUNNING

    def fail(self, trial: int, error: BaseException) -> None:
        """A trial ends without a result."""
        self.failed[trial], self.stopped[trial] = error, STOPPED.index("not_finite")


def descend_batch(
    batch: BatchSession, params: Sequence[BaseModel], section: OptimizeSection, seeds: Sequence[int] | np.ndarray = ()
) -> list[Outcome | BaseException]:
    """Minimise the loss of each trial from its parameters on; of each the outcome that ``descent.descend`` gives, or its error.

    After a stop request it is ``Stopped`` for unfinished trials, with the best point of each so far.

    Args:
        batch: open, of the group of these trials.
        params: of each trial.
        section: how. Its parameters are inputs of the job.
        seeds: of each trial, the same at each step, see ``BatchSession.run_columns``.

    Raises:
        Stopped: a stop was requested before the first step.
    """
    starts = [paths.plain_params(one) for one in params]
    scale = {name: section.scale.get(name, 1.0) for name in section.params or ()}
    bounds = {name: (ends[0] / scale[name], ends[1] / scale[name]) for name, ends in section.bounds.items()}
    inputs = {name: np.array([getattr(one, name) for one in params]) for name in batch.job.declared.inputs}
    first = {name: inputs[name].astype(np.float64) / scale[name] for name in scale}
    now = _Descents.at(first, len(params))
    for step in range(section.steps + 1):
        batch.job.watch.descent = (step, section.steps)
        try:
            outcome = batch.run_columns(inputs | (_real(section, now.x) if step else {}), seeds)
        except Stopped as error:
            if step == 0:
                raise
            _interrupt(now, section, str(error))
            break
        for trial, error in outcome.errors.items():
            if now.stopped[trial] == RUNNING:
                now.fail(trial, error)
        g = {name: scale[name] * outcome.gradients[name].astype(np.float64) for name in scale}
        with np.errstate(all="ignore"):  # rows that are over may hold anything
            norms = row_norms(free_part(now.x, g, bounds))
            logged = {"loss": outcome.losses, "grad_norm": norms}
            batch.job.watch.log({name: np.where(now.running, column, np.nan) for name, column in logged.items()})
            _look(now, section, outcome, norms, step)
            if step == section.steps or not now.running.any():
                break
            g = g if section.clip is None else clipped_rows(g, section.clip)
            rate = rate_at(step, section.learning_rate, section.steps)
            moved, now.state = update(section.rule, section.options, now.state, now.x, g, rate)
            now.x = _chosen(now.running, projected(moved, bounds), now.x)
        _refuse_what_leaves(now, batch, section, starts, step + 1)
    now.stopped[now.running] = STOPPED.index("steps")
    return [now.failed[k] if k in now.failed else _result(now, section, k) for k in range(len(params))]


def _interrupt(now: _Descents, section: OptimizeSection, why: str) -> None:
    """The trials that run end here, each with the best point that it has seen."""
    for trial in np.flatnonzero(now.running).tolist():
        now.stopped[trial], stopped = STOPPED.index("interrupted"), Stopped(why)
        stopped.outcome = _result(now, section, trial)
        now.failed[trial] = stopped


def _real(section: OptimizeSection, x: Arrays) -> Rows:
    return projected({name: section.scale.get(name, 1.0) * value for name, value in x.items()}, section.bounds)


def _refuse_what_leaves(
    now: _Descents, batch: BatchSession, section: OptimizeSection, starts: Sequence[dict[str, Any]], step: int
) -> None:
    """The trials whose step has left what the job's parameters allow have failed, and stay where they began."""
    real = _real(section, now.x)
    for trial in np.flatnonzero(now.running).tolist():
        try:
            at_point(batch.job.Params, starts[trial], {name: column[trial] for name, column in real.items()}, step)
        except Exception as error:  # also what a validator of the job raises
            now.fail(trial, error)
            for name, column in now.x.items():
                column[trial] = np.asarray(paths.get(starts[trial], name)) / section.scale.get(name, 1.0)


def _look(now: _Descents, section: OptimizeSection, outcome: BatchOutcome, norm: np.ndarray, step: int) -> None:
    """Note a point of each trial, and which trials are over there."""
    loss, running, stop = outcome.losses, now.running, section.stop
    now.history.append(loss)
    now.steps[running] = step
    finite = np.isfinite(loss) & np.isfinite(norm)
    take = running & (~finite | (section.keep == "last") | (loss < now.best) | (step == 0))
    now.kept[take], now.norm[take] = step, norm[take]
    now.point = _chosen(take, now.x, now.point or now.x)
    now.outcome = outcome if now.outcome is None else _outcomes(take, outcome, now.outcome)
    now.best = np.where(running, np.fmin(now.best, loss), now.best)
    better = running & (loss < now.mark - stop.progress)
    now.since = np.where(better, 0, now.since + 1)
    now.mark = np.where(better, loss, now.mark)
    ends = {"not_finite": ~finite}
    ends |= {} if stop.gradient_norm is None else {"gradient_norm": norm <= stop.gradient_norm}
    ends |= {} if stop.loss is None else {"loss": loss <= stop.loss}
    ends |= {} if stop.patience is None else {"patience": now.since >= stop.patience}
    for why, over in ends.items():
        now.stopped[over & now.running] = STOPPED.index(why)


def _chosen(rows: np.ndarray, new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray]) -> Rows:
    """``new`` in these rows, ``old`` in the others."""
    return {name: np.where(rows.reshape(-1, *[1] * (value.ndim - 1)), value, old[name]) for name, value in new.items()}


def _outcomes(rows: np.ndarray, new: BatchOutcome, old: BatchOutcome) -> BatchOutcome:
    gradients, outputs = _chosen(rows, new.gradients, old.gradients), _chosen(rows, new.outputs, old.outputs)
    return BatchOutcome(np.where(rows, new.losses, old.losses), gradients, outputs)


def _result(now: _Descents, section: OptimizeSection, trial: int) -> Outcome:
    assert now.outcome is not None
    found = {name: value[trial] for name, value in _real(section, now.point).items()}
    history = np.array([losses[trial] for losses in now.history[: now.steps[trial] + 1]])
    numbers = (float(now.kept[trial]), float(now.norm[trial]), float(now.stopped[trial]), 1.0)
    return result_of(now.outcome.row(trial), found, history, *numbers)


__all__ = ["descend_batch"]
