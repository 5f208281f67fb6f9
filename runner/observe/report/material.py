"""What a report is made of, read from the run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....jobs.core.paths import get, has
from ...live.points import Series, live_values
from ...query.run_table import RunTable, as_column
from ...store.attempts import ResultMissing, arrays_of
from ...store.follower import Detail, JournalEntry
from ...store.layout import RunFolder
from ...store.replay import Replay, Replayer
from ...study.plan import PlannedBytes
from ...study.trial_list import Trial, Trials
from ...value_columns import ABSENT
from ...workers.records import gradient_norm
from ..device_load import Load, loads
from ..show import differ
from ..table import rows_of
from ..view import RunView, RunWatch


@dataclass(frozen=True)
class Material:
    """The data of a report: the run by its journal, its rows, and its devices over time.

    Attributes:
        rows: one for each of ``trials``, with ``gradient_norm`` also where it was computed from files here.
        live: what trials have logged, by their id.
    """

    folder: RunFolder
    info: Mapping[str, Any]
    config: str
    view: RunView
    trials: Trials
    rows: RunTable
    found: Replay
    loads: Sequence[Load]
    live: Mapping[str, Series]


def column_in(runs: Sequence[Material], name: str) -> list[Any]:
    """The values of a column in the tables of several runs, one after the other."""
    return [value for run in runs for value in run.rows.column(name)]


def swept_of(runs: Sequence[Material]) -> list[str]:
    """The parameters that differ between the trials of a run, or between runs."""
    names = dict.fromkeys(name for run in runs for name in run.trials.swept)
    if len(runs) > 1:  # one that is constant in each of them is in no ``swept``
        firsts = [run.trials[0].params for run in runs if len(run.trials)]
        names |= dict.fromkeys(
            name for params in firsts for name, value in params.items() if not isinstance(value, list | dict)
        )
    return [name for name in names if differ([value for run in runs for value in values_of(run.trials, name)])]


def values_of(trials: Trials, name: str) -> list[Any]:
    """The values of a swept parameter, see ``value_of``."""
    column = trials.swept.get(name)
    if column is None or ABSENT in column.distinct():
        return [value_of(trial, name) for trial in trials]
    return column.tolist()


def value_of(trial: Trial, name: str) -> Any:
    """The value of a swept parameter in a trial: a list of trials need not give it, then it is that of the config or the job."""
    if name in trial.swept:
        return trial.swept[name]
    return get(trial.params, name) if has(trial.params, name) else None


def gather(folder: RunFolder) -> Material:
    """Read a run; one pass over its journal, and the files of large gradients whose norm was not written down.

    Raises:
        OSError: the run cannot be read.
    """
    trials, info, entries = folder.trials(), folder.info(), list[JournalEntry]()
    reader = Replayer(folder, Detail.SMALL, trials.ids, entries)
    view, found = RunWatch(folder, trials, reader).view(), reader.look()
    rows = rows_of(folder, found, trials, view.state)
    known = zip(trials.ids, rows.column("gradient_norm"), strict=True)
    norms = [_norm(folder, found, name) if norm is None else norm for name, norm in known]
    planned = PlannedBytes(folder.plan(found.ids))
    return Material(
        folder=folder,
        info=info,
        config=folder.files.read("config.yaml").decode("utf-8", "replace"),
        view=view,
        trials=trials,
        rows=rows.replaced({"gradient_norm": as_column(norms, "gradient_norm")}),
        found=found,
        loads=loads(
            (entry.event for entry in entries),
            float(info["created"]),
            {name: planned[place] for place, name in enumerate(found.ids)},
            found.ids,
        ),
        live=live_values(folder),
    )


def _norm(folder: RunFolder, found: Replay, trial: str) -> float | None:
    state = found.trials[trial]
    if state.entry is None or not state.entry.event.get("gradients"):
        return None
    norm = gradient_norm(state.entry.event)
    if norm is not None:
        return norm
    try:
        arrays = arrays_of(folder, state.entry.event).values()
    except ResultMissing:  # the row counts without them
        return None
    return math.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays))
