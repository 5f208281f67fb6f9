"""``optimize.warm_start``: the trials of a run begin where those of another run have ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...jobs.base import Job
from ...jobs.core import paths
from ..config.yaml_lines import ConfigError
from ..observe import table
from ..optimize.descent import optimized
from ..optimize.results import found_by
from ..store.attempts import arrays_of
from ..store.follower import Detail, EventReader
from ..store.layout import RunFolder, find
from ..store.replay import replay
from ..study.plan import Prepared
from ..study.trials import Trial, Trials, check_optimize, resolve, trial_id, trial_seed

KEY = ("optimize", "warm_start")


@dataclass(frozen=True)
class WarmPoint:
    """A trial of the other run that has a loss: its parameters with the values that its descent has found."""

    id: str
    loss: float
    params: Mapping[str, Any]


def warm_started(prepared: Prepared, job: type[Job[Any]]) -> Prepared:
    """The same with the values of another run in the parameters that are optimised, and the ids that follow from them; unchanged where the
    config asks for no warm start.

    Raises:
        ConfigError: there is no such run, it has no point for a trial, or its point is not allowed.
    """
    section = prepared.loaded.config.optimize
    if section is None or section.warm_start is None or not prepared.trials:
        return prepared
    document, warm = prepared.loaded.document, section.warm_start
    names = optimized(section, prepared.gradients, prepared.trials.params(0))
    folder = _run(prepared, warm.run)
    ended = _ended(folder, names)
    made = list[Trial]()
    for trial in prepared.trials:
        point = _point(trial, ended, names, warm.take)
        if point is None:
            what = f"{folder.name} has no point for trial {trial.label}: no trial with a loss has its other parameters"
            raise document.error(document.problem(KEY, what, hint=f"write warm_start: {{run: {warm.run}, take: best}}"))
        made.append(_moved(prepared, job, trial, {name: paths.get(dict(point), name) for name in names}))
    _refuse_equal(prepared, made)
    check_optimize(prepared.loaded, job, prepared.gradients, made)
    return prepared.model_copy(update={"trials": Trials.of(made)})


def _run(prepared: Prepared, run: str) -> RunFolder:
    """The other run: a folder relative to the config, a URI, or an id among the runs of the config's storage."""
    loaded = prepared.loaded
    beside = Path(loaded.folder, run)
    if "://" not in run and RunFolder(beside).is_run:
        return RunFolder(beside)
    try:
        return find(run, loaded.config.uri)
    except LookupError as error:
        what, _, hint = str(error).partition("\n  do: ")
        raise loaded.document.error(loaded.document.problem((*KEY, "run"), what, hint=hint)) from error


def _ended(folder: RunFolder, names: Sequence[str]) -> list[WarmPoint]:
    """The trials of a run that have a loss, the smallest first."""
    found = replay(folder, Detail.SMALL)
    trials, lines = folder.found_trials().trials.named, EventReader(folder)
    rows = table.rows_of(folder, found)
    ended = []
    for name, loss in zip(rows.column("trial"), rows.column("loss"), strict=True):
        trial = trials.get(name)
        if loss is None or not math.isfinite(loss) or trial is None:
            continue
        entry = found.trials[name].entry
        record = lines.at(entry) if entry is not None else {}
        outputs = {name: value for name, value in (record.get("outputs") or {}).items() if name.removeprefix("opt.") in names}
        values = arrays_of(folder, {**record, "outputs": outputs}, "outputs") if found_by({**outputs, "opt.stopped": 0}) else {}
        params = _copied(trial.params)
        for name, value in values.items():
            paths.put(params, name.removeprefix("opt."), np.asarray(value).tolist())
        ended.append(WarmPoint(trial.id, float(loss), params))
    return sorted(ended, key=lambda one: one.loss)


def _point(trial: Trial, ended: Sequence[WarmPoint], names: Sequence[str], take: str) -> Mapping[str, Any] | None:
    """The parameters from which a trial goes on; None: there are none."""
    if take == "best":
        fitting = [one for one in ended if all(paths.has(dict(one.params), name) for name in names)]
    else:
        own = [one for one in ended if one.id == trial.id]
        others = _without(trial.params, names)
        fitting = own or [one for one in ended if _agree(others, _without(one.params, names))]
    return fitting[0].params if fitting else None


def _without(params: Mapping[str, Any], names: Sequence[str], above: str = "") -> dict[str, Any]:
    """Parameters by dotted names, but for some."""
    out: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            out |= _without(value, names, f"{above}{name}.")
        elif f"{above}{name}" not in names:
            out[f"{above}{name}"] = value
    return out


def _agree(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[name] == b[name] for name in a.keys() & b.keys())


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _moved(prepared: Prepared, job: type[Job[Any]], trial: Trial, values: Mapping[str, Any]) -> Trial:
    """A trial with other values of some parameters, its id and its seed."""
    params, swept = _copied(trial.params), dict(trial.swept)
    for name, value in values.items():
        paths.put(params, name, value)
        swept |= {given: paths.get(params, given) for given in swept if given == name or given.startswith(f"{name}.")}
    try:
        params = resolve(job, params, {})
    except ValueError as error:
        document = prepared.loaded.document
        said = str(error).partition("\n")[0]
        raise document.error(document.problem(KEY, f"trial {trial.label} cannot begin there: {said}")) from error
    identity, sweep = trial_id(params, trial.replicate), prepared.loaded.config.sweep
    seed = trial_seed(sweep.seed if sweep is not None else 0, identity)
    return trial.model_copy(update={"id": identity, "seed": seed, "swept": swept, "params": params})


def _refuse_equal(prepared: Prepared, trials: Sequence[Trial]) -> None:
    first: dict[str, Trial] = {}
    for trial in trials:
        if trial.id in first:
            document = prepared.loaded.document
            what = f"trials {first[trial.id].index} and {trial.index} begin at the same point, {trial.label}"
            raise document.error(document.problem(KEY, what, hint="leave out the sweep of what is optimised"))
        first[trial.id] = trial


__all__ = ["ConfigError", "warm_started"]
