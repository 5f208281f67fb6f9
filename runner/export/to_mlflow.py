"""MLflow: a run for the sweep, and below it one for each trial. A second export changes what has changed, and doubles nothing."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]

from ..config.export_section import MlflowExport
from ..live.points import Logged
from ..provenance.record import provenance_of
from ..store.layout import RunFolder
from .tracker import Beginning, numbers

logging.getLogger("mlflow").setLevel(logging.WARNING)  # it says on stderr how it makes its tables
AT_ONCE = 1000
"""Metrics of one request, by MLflow's limit."""
PARAMS, TEXT, TAG_TEXT = 100, 500, 5000
"""Parameters of one request, characters of a parameter and of a tag, by MLflow's limits."""
PAGE = 1000
STATES = {"done": "FINISHED", "cancelled": "KILLED"}
RUN, TRIAL, ROW = "qdrun.run", "qdrun.trial", "qdrun.row"
"""Tags: the run and the trial that a run of MLflow stands for, and the end of the attempt whose row it shows."""


@dataclass
class _Pending:
    """A trial that an earlier export has told of: its points wait until its row says whether it was run again."""

    trial: Beginning
    points: list[Logged] = field(default_factory=list)


class Mlflow:
    """See ``tracker.Tracker``."""

    def __init__(self, run: str, uri: str | None, experiment: str, about: Mapping[str, str] | None = None) -> None:
        """Find the runs of an earlier export, or create one for the sweep.

        Args:
            run: the name of the run folder.
            uri: of MLflow's server or database; None: its default.
            experiment: its name; created if there is none.
            about: tags of the sweep.
        """
        self._client, self._run = MlflowClient(uri), run
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        self._runs: dict[str, str] = {}
        self._pending: dict[str, _Pending] = {}
        self._losses: list[float] = []
        self._counts: dict[str, int] = {}
        before = self._exported()
        self._before = {trial: made for trial, made in before.items() if trial}
        sweep = before.get("")
        self._sweep = (
            self._client.create_run(self._experiment, run_name=run, tags={RUN: run}).info.run_id
            if sweep is None
            else sweep.info.run_id
        )
        self._client.log_batch(self._sweep, tags=[RunTag(name, value) for name, value in (about or {}).items()])

    def _exported(self) -> dict[str, Any]:
        """The runs of earlier exports by trial; "" stands for the sweep."""
        found, token = dict[str, Any](), None
        while True:
            page = self._client.search_runs(
                [self._experiment], f"tags.`{RUN}` = '{self._run}'", max_results=PAGE, page_token=token
            )
            for made in page:
                found.setdefault(made.data.tags.get(TRIAL, ""), made)
            token = page.token
            if not token:
                return found

    def begin(self, trial: Beginning) -> None:
        """A trial begins."""
        if trial.trial in self._before:
            self._pending[trial.trial] = _Pending(trial)
        else:
            self._create(trial)

    def _create(self, trial: Beginning) -> None:
        tags = {"mlflow.parentRunId": self._sweep, RUN: self._run, TRIAL: trial.trial}
        made = self._client.create_run(self._experiment, run_name=trial.label or trial.trial, tags=tags)
        self._runs[trial.trial] = made.info.run_id
        params = [Param(name, str(value)[:TEXT]) for name, value in trial.params.items()]
        for k in range(0, len(params), PARAMS):
            self._client.log_batch(made.info.run_id, params=params[k : k + PARAMS])

    def log(self, logged: Logged) -> None:
        """Points of a trial."""
        (trial,) = logged.trials
        if trial in self._pending:
            self._pending[trial].points.append(logged)
            return
        points = list(zip(logged.step.tolist(), logged.t.tolist(), strict=True))
        found = [
            Metric(name, float(column[k]), round(1000 * t), step)
            for name, column in logged.values.items()
            for k, (step, t) in enumerate(points)
            if math.isfinite(column[k])
        ]
        self._metrics(self._runs[trial], found)

    def end(self, trial: str, record: Mapping[str, Any]) -> None:
        """A trial has ended: its numbers and its status."""
        status, values = str(record.get("status")), numbers(record)
        self._counts[status] = self._counts.get(status, 0) + 1
        if status == "done" and math.isfinite(values.get("loss", math.nan)):
            self._losses.append(values["loss"])
        row = f"{record.get('attempt')}:{status}:{values.get('loss')}"
        if trial in self._pending and not self._replace(trial, row):
            return
        now = round(1000 * float(record.get("ended_t") or record.get("t") or 0.0))
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._metrics(self._runs[trial], [Metric(f"result.{name}", value, now, 0) for name, value in finite.items()])
        tags = [RunTag(f"qdrun.{name}", str(record[name])) for name in ("status", "failure", "device") if record.get(name)]
        self._client.log_batch(self._runs[trial], tags=[*tags, RunTag(ROW, row)])
        self._client.set_terminated(self._runs[trial], STATES.get(status, "FAILED"))

    def _replace(self, trial: str, row: str | None) -> bool:
        """Whether the run of an earlier export shows another row than this one; then it is deleted and begun anew."""
        pending, before = self._pending.pop(trial), self._before[trial]
        if row is not None and before.data.tags.get(ROW) == row:
            return False
        self._client.delete_run(before.info.run_id)
        self._create(pending.trial)
        for logged in pending.points:
            self.log(logged)
        return True

    def close(self, state: str) -> None:
        """The run of the sweep ends: its best loss and its counts."""
        for trial in list(self._pending):  # no row yet
            self._replace(trial, None)
        found = {f"trials.{status}": float(count) for status, count in self._counts.items()}
        found |= {"best_loss": min(self._losses)} if self._losses else {}
        shown = self._client.get_run(self._sweep).data.metrics
        now = round(1000 * time.time())
        self._metrics(self._sweep, [Metric(name, value, now, 0) for name, value in found.items() if shown.get(name) != value])
        if state == "running":
            self._client.update_run(self._sweep, "RUNNING")
        else:
            self._client.set_terminated(self._sweep, STATES.get(state, "FAILED"))

    def _metrics(self, run: str, found: list[Metric]) -> None:
        for k in range(0, len(found), AT_ONCE):
            self._client.log_batch(run, metrics=found[k : k + AT_ONCE])


def open_tracker(folder: RunFolder, options: MlflowExport) -> Mlflow:
    """Return the tracker of a run."""
    made = provenance_of(folder.files)
    about = {"qdrun.folder": folder.uri, "qdrun.config": folder.config_text()[:TAG_TEXT]}
    if made is not None and made.git is not None:
        about |= {"mlflow.source.git.commit": made.git.commit, "mlflow.source.git.branch": made.git.branch}
        about["qdrun.dirty"] = str(made.git.dirty)
    return Mlflow(folder.name, options.uri, options.experiment or str(folder.info()["name"]), about)


__all__ = ["Mlflow", "open_tracker"]
