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
from ..config.limits import limits_of
from ..config.optimize_section import OptimizeSection
from ..store.interface import Files
from . import rules
from .evaluate import Alone, DescentError, Evaluate, Evaluated, TrialsTogether
from .kept import DescentStore, Saver, latest
from .results import STOPPED, result_of
from .rungs import Rungs, compared
from .state import Descents, Rows, joined, key_of, packed, section_hash
from .update_rules import free_part, projected, row_norms

End = Outcome | BaseException
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
    alone = Alone(session)
    try:
        (end,) = _descend_all(alone, [trial], section, kept, lambda rows: alone)
    finally:
        alone.close()
    if isinstance(end, BaseException):
        raise end
    return end


def descend_batch(
    batch: BatchSession,
    params: Sequence[BaseModel],
    section: OptimizeSection,
    seeds: Sequence[int] | np.ndarray = (),
    kept: DescentStore | None = None,
    trials: Sequence[str] = (),
) -> list[End]:
    """Minimise the loss of each trial of a batch from its parameters on; of each the outcome that it has alone, or its error.

    Descents that go on from different steps take turns in the program, in groups of equal steps. After a stop request it is ``Stopped`` for
    unfinished trials, with the best point of each so far.

    Args:
        batch: open, of the group of these trials.
        params: of each trial.
        section: the options. Its parameters are inputs of the job.
        seeds: of each trial, the same at each step, see ``BatchSession.run_columns``.
        kept: the storage of the descents for further attempts; None: none.
        trials: their ids.

    Raises:
        Stopped: a stop was requested before the first step of all.
    """
    names = list(trials) or [str(row) for row in range(len(params))]
    together = partial(TrialsTogether, batch, params, seeds, limits_of(batch.job.Params, section.params or ()))
    ends = _descend_all(together(), names, section, kept, together)
    if all(isinstance(end, Stopped) and end.outcome is None for end in ends):
        raise ends[0]  # pyright: ignore[reportGeneralTypeIssues]
    return ends


def _descend_all(
    every: Evaluate,
    trials: Sequence[str],
    section: OptimizeSection,
    kept: DescentStore | None,
    some: Callable[[Sequence[int]], Evaluate],
) -> list[End]:
    """The ends of descents, each group of equal step after the other.

    Args:
        every: all of them.
        trials: their ids.
        section: the options.
        kept: where they are kept.
        some: gives those of some rows.
    """
    given = section.model_dump(mode="json")
    keys = [key_of(trial, given, start, seed) for trial, start, seed in zip(trials, every.starts, every.seeds, strict=True)]
    saved = {} if kept is None else kept.load(keys)
    groups = defaultdict[int, list[int]](list)
    for row, key in enumerate(keys):
        groups[saved[key].step if key in saved else 0].append(row)
    ends, saver, against = dict[int, End](), Saver(kept), section.stop.trials
    rungs = Rungs() if kept is None or against is None else kept.rungs
    for step, rows in sorted(groups.items(), reverse=True):
        evaluate = every if len(rows) == len(keys) else some(rows)
        own = [keys[row] for row in rows]
        now = joined([saved[key] for key in own]) if step else _at_start(evaluate, section)
        data = lambda now=now, own=own: packed(now, own, given)  # noqa: E731
        compare = None if against is None else partial(compared, against, rungs, trials=[key.trial for key in own])
        ends |= dict(zip(rows, _run(now, evaluate, section, saver, data, compare), strict=True))
    if kept is not None and not any(isinstance(end, Stopped) for end in ends.values()):
        kept.clear()
    return [ends[row] for row in range(len(keys))]


def _at_start(evaluate: Evaluate, section: OptimizeSection) -> Descents:
    scale = {name: section.scale.get(name, 1.0) for name in section.params or ()}
    starts = {name: [paths.get(start, name) for start in evaluate.starts] for name in scale}
    return Descents.at(
        {name: np.array(value, dtype=np.float64) / scale[name] for name, value in starts.items()}, len(evaluate.starts)
    )


def _run(
    now: Descents,
    evaluate: Evaluate,
    section: OptimizeSection,
    saver: Saver,
    data: Callable[[], bytes],
    compare: Compare | None,
) -> list[End]:
    """Take the steps of descents to their ends. ``data``: their state as bytes; ``compare``: which are behind those of other trials."""
    scale = {name: section.scale.get(name, 1.0) for name in section.params or ()}
    bounds = {name: (ends[0] / scale[name], ends[1] / scale[name]) for name, ends in section.bounds.items()}
    while now.running.any():
        evaluate.begin(now.step, section.steps)
        try:
            found = evaluate(_real(section, now.x) if now.step else None, now.step)
        except Stopped as error:
            if now.history:
                saver.save(data)
            _interrupt(now, section, str(error), evaluate.builds)
            break
        for row, error in found.errors.items():
            if now.running[row]:
                now.fail(row, error)
        g = {name: scale[name] * found.gradients[name].astype(np.float64) for name in scale}
        with np.errstate(all="ignore"):  # rows that are over may hold anything
            norms = row_norms(free_part(now.x, g, bounds))
            evaluate.log(
                {name: np.where(now.running, value, np.nan) for name, value in (("loss", found.losses), ("grad_norm", norms))}
            )
            _look(now, section, found, norms, compare)
            if now.step == section.steps or not now.running.any():
                break
            moved, now.rule = rules.advance(section, now, found, g, bounds, evaluate)
        now.stopped[now.running & rules.done(now)] = STOPPED.index("no_descent")
        now.x, now.step = _chosen(now.running, moved, now.x), now.step + 1
        _refuse_what_leaves(now, evaluate, section)
        saver.look(data)
    now.stopped[now.running] = STOPPED.index("steps")
    point = _real(section, now.point)
    ends: list[End] = [now.failed.get(row) or _result(now, point, row, evaluate.builds) for row in range(len(now.stopped))]
    if not now.failed:
        try:
            evaluate.settle(point, now.kept)
        except Stopped as error:  # it has found what it was to find, and has left nothing of it yet
            error.outcome, ends = ends[0], [error]
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
    return _result(now, _real(section, now.point), 0, 1)


def _interrupt(now: Descents, section: OptimizeSection, why: str, builds: int) -> None:
    """The trials that run end here, each with the best point that it has seen."""
    point = _real(section, now.point)
    for row in np.flatnonzero(now.running).tolist():
        now.stopped[row], stopped = STOPPED.index("interrupted"), Stopped(why)
        stopped.outcome = _result(now, point, row, builds) if now.history else None
        now.failed[row] = stopped


def _real(section: OptimizeSection, x: Mapping[str, np.ndarray]) -> Rows:
    """Parameters in their own units, within their bounds to the bit."""
    return projected({name: section.scale.get(name, 1.0) * value for name, value in x.items()}, section.bounds)


def _refuse_what_leaves(now: Descents, evaluate: Evaluate, section: OptimizeSection) -> None:
    """The trials whose step has left what the job's parameters allow have failed, and stay where they began."""
    for row, error in evaluate.refused(_real(section, now.x), now.running, now.step).items():
        now.fail(row, error)
        for name, column in now.x.items():
            column[row] = np.asarray(paths.get(evaluate.starts[row], name)) / section.scale.get(name, 1.0)


def _look(now: Descents, section: OptimizeSection, found: Evaluated, norm: np.ndarray, compare: Compare | None) -> None:
    """Note a point of each trial, and which trials are over there. One that is not finite is kept as it is, so that its row says so."""
    loss, running, stop = found.losses, now.running, section.stop
    now.history.append(loss)
    now.steps[running] = now.step
    finite, probe = np.isfinite(loss) & np.isfinite(norm), rules.probes(now)
    take = running & ((~finite & ~probe) | (section.keep == "last") | (finite & (loss < now.best)) | (now.step == 0))
    now.kept[take], now.norm[take], now.loss[take] = now.step, norm[take], loss[take]
    now.point = _chosen(take, now.x, now.point)
    now.gradients, now.outputs = _chosen(take, found.gradients, now.gradients), _chosen(take, found.outputs, now.outputs)
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


def _chosen(rows: np.ndarray, new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray]) -> Rows:
    """``new`` in these rows, ``old`` in the others; what has no old value is new in all of them."""
    return {
        name: np.where(rows.reshape(-1, *[1] * (value.ndim - 1)), value, old[name]) if name in old else value.copy()
        for name, value in new.items()
    }


def _result(now: Descents, points: Rows, row: int, builds: int) -> Outcome:
    """The outcome of a trial. ``points``: the kept ones of all, in the units of the parameters."""
    groups = [{name: value[row] for name, value in group.items()} for group in (now.gradients, now.outputs)]
    point = {name: value[row] for name, value in points.items()}
    history = np.array([losses[row] for losses in now.history[: now.steps[row] + 1]])
    numbers = (float(now.kept[row]), float(now.norm[row]), float(now.stopped[row]), float(builds))
    return result_of(Outcome(float(now.loss[row]), *groups), point, history, *numbers)


__all__ = ["DescentError", "best_so_far", "body_of", "descend", "descend_batch", "optimized", "section_data"]
