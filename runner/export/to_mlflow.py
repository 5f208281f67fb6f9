"""MLflow: a run for the sweep, and below it one for each trial."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]

from ..config.export_section import MlflowExport
from ..live.points import Logged
from ..store.layout import RunFolder
from .tracker import Beginning, scalars

logging.getLogger("mlflow").setLevel(logging.WARNING)  # it says on stderr how it makes its tables
AT_ONCE = 1000
"""Metrics of one request, by MLflow's limit; and parameters, of which it takes a hundred."""
PARAMS, TEXT = 100, 500
STATES = {"done": "FINISHED", "cancelled": "KILLED"}


class Mlflow:
    """See ``tracker.Tracker``."""

    def __init__(self, run: str, uri: str | None, experiment: str) -> None:
        self._client, self._run = MlflowClient(uri), run
        found = self._client.get_experiment_by_name(experiment)
        self._experiment = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        self._sweep = self._client.create_run(self._experiment, run_name=run).info.run_id
        self._runs: dict[str, str] = {}

    def begin(self, trial: Beginning) -> None:
        """A trial begins."""
        tags = {"mlflow.parentRunId": self._sweep, "qdrun.run": self._run, "qdrun.trial": trial.trial}
        made = self._client.create_run(self._experiment, run_name=trial.label or trial.trial, tags=tags)
        self._runs[trial.trial] = made.info.run_id
        params = [Param(name, str(value)[:TEXT]) for name, value in trial.params.items()]
        for k in range(0, len(params), PARAMS):
            self._client.log_batch(made.info.run_id, params=params[k : k + PARAMS])

    def log(self, logged: Logged) -> None:
        """Points of a trial."""
        points = list(zip(logged.step.tolist(), logged.t.tolist(), strict=True))
        found = [
            Metric(name, float(column[k]), round(1000 * t), step)
            for name, column in logged.values.items()
            for k, (step, t) in enumerate(points)
            if math.isfinite(column[k])
        ]
        self._metrics(logged.trials[0], found)

    def end(self, trial: str, record: Mapping[str, Any]) -> None:
        """A trial has ended: its numbers and its status."""
        now = round(1000 * float(record.get("ended_t") or record.get("t") or 0.0))
        named = {"loss": record.get("loss"), "gradient_norm": record.get("gradient_norm"), "seconds": record.get("seconds")}
        named |= scalars(record.get("outputs") or {})
        values = {name: value for name, value in named.items() if isinstance(value, int | float) and math.isfinite(value)}
        self._metrics(trial, [Metric(f"result.{name}", float(value), now, 0) for name, value in values.items()])
        tags = [RunTag(f"qdrun.{name}", str(record[name])) for name in ("status", "failure", "device") if record.get(name)]
        self._client.log_batch(self._runs[trial], tags=tags)
        self._client.set_terminated(self._runs[trial], STATES.get(str(record.get("status")), "FAILED"))

    def close(self, state: str) -> None:
        """The run of the sweep ends."""
        self._client.set_terminated(self._sweep, STATES.get(state, "FAILED"))

    def _metrics(self, trial: str, found: list[Metric]) -> None:
        for k in range(0, len(found), AT_ONCE):
            self._client.log_batch(self._runs[trial], metrics=found[k : k + AT_ONCE])


def open_tracker(folder: RunFolder, options: MlflowExport) -> Mlflow:
    """The tracker of a run."""
    return Mlflow(folder.name, options.uri, options.experiment or str(folder.info()["name"]))


__all__ = ["Mlflow", "open_tracker"]
