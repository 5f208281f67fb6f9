"""Descents: the loop from step to step, for one trial and for those of a batch at once. Runs on a worker.

All arrays have a row for each trial. A trial that is over keeps its point while the others go on; one that fails is its own row. The row of
a trial that was optimised has the outputs of the kept point, and those that ``results`` names.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pydantic import BaseModel

from ...jobs.base import BatchSession, Outcome, Session, Stopped
from ...jobs.core import paths
from ..config.optimize_section import OptimizeSection
from ..store.interface import Files
from . import rules
from .evaluate import Alone, DescentError, Evaluate, Starts, TrialsTogether
from .kept import DescentStore, Saver, latest
from .points import Measured, points_of, real
from .results import STOPPED, Ends, in_order
from .rungs import Rungs, compared
from .state import Descents, Key, Rows, joined, key_of, packed, section_hash

Compare = Callable[..., np.ndarray]
"""``rungs.compared`` of a group of descents."""


def body_of(
    optimize: Mapping[str, Any] | None, kept: DescentStore | None = None, trial: str = ""
) -> Callable[[Session], Outcome]:
    """The function that a worker runs on an open job: ``execute(job, .., body=body_of(spec["optimize"]))``. None: run it once.

    Args:
        optimize: ``OptimizeSection`` as plain data, with ``params`` filled in, see ``section_data``.
        kept: where a descent is kept while it runs, so that another attempt goes on from there.
        trial: its id.
    """
    if optimize is None:
        return Session.run
    section = OptimizeSection.model_validate(optimize)
    return lambda session: descend(session, section, kept, trial)


def section_data(section: OptimizeSection | None, gradients: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section as plain data for ``body_of``, with the parameters that it means when it names none."""
    if section is None:
        return None
    data = section.model_dump(mode="json", exclude_unset=True)
    data["bounds"] = {name: [None if math.isinf(end) else end for end in ends] for name, ends in section.bounds.items()}
    return {"rule": section.rule, "steps": section.steps} | data | {"params": optimized(section, gradients, values)}


def optimized(section: OptimizeSection, gradients: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The parameters that are optimised: those that the section names, else all gradients that are parameters."""
    return list(section.params) if section.params is not None else [name for name in gradients if paths.has(values, name)]


def descend(session: Session, section: OptimizeSection, kept: DescentStore | None = None, trial: str = "") -> Outcome:
    """Minimise the loss, starting at the job's parameters.

    Args:
        session: of the job.
        section: the options.
        kept: the storage of the descent for further attempts; None: none.
        trial: its id.

    Raises:
        DescentError: a step leaves what the job's parameters allow.
        Stopped: a stop was requested; its ``outcome`` is that of the best point so far.
    """
    alone = Alone(session, section.params or ())
    try:
        ends = _descend_all(alone, [trial], section, kept, lambda rows: alone)
    finally:
        alone.close()
    if 0 in ends.errors:
        raise ends.errors[0]
    return ends.outcome(0)


def descend_batch(
    batch: BatchSession,
    params: Sequence[BaseModel],
    section: OptimizeSection,
    seeds: Sequence[int] | np.ndarray = (),
    kept: DescentStore | None = None,
    trials: Sequence[str] = (),
) -> Ends:
    """Minimise the loss of each trial of a batch from its parameters on: ``descend_columns`` with the parameters of each trial."""
    return descend_columns(batch, Starts.of(batch, params), section, seeds, kept, trials)


def descend_columns(
    batch: BatchSession,
    starts: Starts,
    section: OptimizeSection,
    seeds: Sequence[int] | np.ndarray = (),
    kept: DescentStore | None = None,
    trials: Sequence[str] = (),
) -> Ends:
    """Minimise the loss of each trial of a batch; of each the outcome that it has alone, or its error.

    Descents that go on from different steps take turns in the program, in groups of equal steps. After a stop request it is ``Stopped`` for
    unfinished trials, with the best point of each so far. Points stay on the device where the batch was opened with ``optimizer_of``.

    Args:
        batch: open, of the group of these trials.
        starts: of all trials.
        section: the options. Its parameters are inputs of the job.
        seeds: of each trial, the same at each step, see ``BatchSession.run_columns``.
        kept: the storage of the descents for further attempts; None: none.
        trials: their ids.

    Raises:
        Stopped: a stop was requested before the first step of all.
    """
    names = list(trials) or [str(row) for row in range(starts.count)]
    together = partial(TrialsTogether, batch, starts, seeds, section.params or ())
    ends = _descend_all(together(), names, section, kept, together)
    stops = [error for error in ends.errors.values() if isinstance(error, Stopped) and error.outcome is None]
    if len(stops) == len(ends):
        raise stops[0]
    return ends


class _Keys(Sequence[Key]):
    """The keys of descents, which are needed where descents are saved: each is made when it is asked for."""

    def __init__(self, trials: Sequence[str], section: Mapping[str, Any], evaluate: Evaluate) -> None:
        self._trials, self._section, self._evaluate = trials, section, evaluate
        self._known: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, row: Any) -> Any:
        if row not in self._known:
            self._known[row] = key_of(str(self._trials[row]), self._section, *self._evaluate.start(row))
        return self._known[row]


def _descend_all(
    every: Evaluate,
    trials: Sequence[str],
    section: OptimizeSection,
    kept: DescentStore | None,
    some: Callable[[Sequence[int]], Evaluate],
) -> Ends:
    """The ends of descents, each group of equal step after the other.

    Args:
        every: all of them.
        trials: their ids.
        section: the options.
        kept: where they are kept.
        some: gives those of some rows.
    """
    given = section.model_dump(mode="json")
    keys = _Keys(trials, given, every)
    saved = {} if kept is None else kept.load(keys)
    groups = defaultdict[int, list[int]](list)
    for row in range(len(keys)):
        groups[saved[keys[row]].step if saved and keys[row] in saved else 0].append(row)
    ends, saver, against = list[tuple[Sequence[int], Ends]](), Saver(kept), section.stop.trials
    rungs = Rungs() if kept is None or against is None else kept.rungs
    for step, rows in sorted(groups.items(), reverse=True):
        evaluate = every if len(rows) == len(keys) else some(rows)
        names = [trials[row] for row in rows]
        now = joined([saved[keys[row]] for row in rows]) if step else _at_start(evaluate, section)
        data = partial(packed, now, _Keys(names, given, evaluate), given)
        compare = None if against is None else partial(compared, against, rungs, trials=names)
        ends.append((rows, _run(now, evaluate, section, saver, data, compare)))
    if kept is not None and not any(isinstance(error, Stopped) for _, one in ends for error in one.errors.values()):
        kept.clear()
    return ends[0][1] if len(ends) == 1 else in_order(ends)


def _at_start(evaluate: Evaluate, section: OptimizeSection) -> Descents:
    x = {name: column / section.scale.get(name, 1.0) for name, column in evaluate.columns.items()}
    return Descents.at(x, len(next(iter(x.values()))))


def _run(
    now: Descents,
    evaluate: Evaluate,
    section: OptimizeSection,
    saver: Saver,
    data: Callable[[], bytes],
    compare: Compare | None,
) -> Ends:
    """Take the steps of descents to their ends. ``data``: their state as bytes; ``compare``: which are behind those of other trials."""
    points = points_of(now, evaluate, section)

    def state() -> bytes:
        points.fetch()
        return data()

    while now.running.any():
        evaluate.begin(now.step, section.steps)
        try:
            found = points.evaluate()
        except Stopped as error:
            if now.history:
                saver.save(state)
            points.fetch(kept=True)
            _interrupt(now, section, str(error), evaluate.builds)
            break
        for row, error in found.errors.items():
            if now.running[row]:
                now.fail(row, error)
        evaluate.log(
            {name: np.where(now.running, value, np.nan) for name, value in (("loss", found.losses), ("grad_norm", found.norms))}
        )
        take = _look(now, section, found, compare)
        last = now.step == section.steps or not now.running.any()
        points.advance(take, last)
        if last:
            break
        now.step += 1
        saver.look(state)
    points.fetch(kept=True)
    now.stopped[now.running] = STOPPED.index("steps")
    kept = real(section, now.point)
    for row, error in evaluate.refused_at_end(kept, np.where(now.alive, now.kept, 0)).items():
        now.fail(row, error)
    ends = _ends(now, kept, evaluate.builds)
    if not now.failed:
        try:
            evaluate.settle(kept, now.kept)
        except Stopped as error:  # it has found what it was to find, and has left nothing of it yet
            error.outcome = ends.outcome(0)
            ends.errors[0] = error
    return ends


def best_so_far(files: Files, trial: str, optimize: Mapping[str, Any]) -> Outcome | None:
    """The best point of a descent whose attempt has ended without a result, from where it was kept; None: nothing was.

    Args:
        files: of the run.
        trial: its id.
        optimize: as of ``body_of``.
    """
    section = OptimizeSection.model_validate(optimize)
    now = latest(files, trial, section_hash(section.model_dump(mode="json")))
    if now is None:
        return None
    now.stopped[now.running] = STOPPED.index("interrupted")
    return _ends(now, real(section, now.point), 1).outcome(0)


def _interrupt(now: Descents, section: OptimizeSection, why: str, builds: int) -> None:
    """The trials that run end here, each with the best point that it has seen."""
    rows = np.flatnonzero(now.running).tolist()
    now.stopped[now.running] = STOPPED.index("interrupted")
    ends = _ends(now, real(section, now.point), builds) if now.history else None
    for row in rows:
        now.failed[row] = stopped = Stopped(why)
        stopped.outcome = None if ends is None else ends.outcome(row)


def _look(now: Descents, section: OptimizeSection, found: Measured, compare: Compare | None) -> np.ndarray:
    """Note a point of each trial, and which trials are over there. One that is not finite is kept as it is, so that its row says so.

    Returns:
        (trials,), which points are to be kept.
    """
    loss, norm, running, stop = found.losses, found.norms, now.running, section.stop
    now.history.append(loss)
    now.steps[running] = now.step
    finite, probe = np.isfinite(loss) & np.isfinite(norm), rules.probes(now)
    take = running & ((~finite & ~probe) | (section.keep == "last") | (finite & (loss < now.best)) | (now.step == 0))
    now.kept[take], now.norm[take], now.loss[take] = now.step, norm[take], loss[take]
    now.best = np.where(running, np.fmin(now.best, loss), now.best)
    better = running & (loss < now.mark - stop.progress)
    now.since = np.where(better, 0, now.since + 1)
    now.mark = np.where(better, loss, now.mark)
    ends = {"not_finite": ~finite & ~probe}
    ends |= {} if stop.gradient_norm is None else {"gradient_norm": norm <= stop.gradient_norm}
    ends |= {} if stop.loss is None else {"loss": loss <= stop.loss}
    ends |= {} if stop.patience is None else {"patience": now.since >= stop.patience}
    for why, over in ends.items():
        now.stopped[over & now.running] = STOPPED.index(why)
    if compare is not None and now.step < section.steps:
        now.stopped[compare(step=now.step, best=now.best, running=now.running)] = STOPPED.index("behind")
    return take


def _ends(now: Descents, point: Rows, builds: int) -> Ends:
    """How descents have ended. ``point``: the kept points of all, in the units of the parameters."""
    numbers = {"kept": now.kept, "gradient_norm": now.norm, "stopped": now.stopped, "builds": np.full(len(now.kept), builds)}
    found = {f"opt.{name}": value for name, value in point.items()}
    found |= {f"opt.{name}": value.astype(np.float64) for name, value in numbers.items()}
    history = np.stack(now.history, axis=1) if now.history else np.zeros((len(now.kept), 0))
    return Ends(now.loss, now.gradients, now.outputs | found, history, now.steps, now.failed)


__all__ = ["DescentError", "best_so_far", "body_of", "descend", "descend_batch", "descend_columns", "optimized", "section_data"]
