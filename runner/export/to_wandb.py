"""Weights & Biases: a run for each trial, all in the group of the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb  # pyright: ignore[reportMissingImports]

from ..config.export_section import WandbExport
from ..config.values import expanded
from ..live.points import Logged
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from .tracker import Beginning, numbers


class Wandb:
    """See ``tracker.Tracker``."""

    def __init__(self, group: str, **options: Any) -> None:
        """``options``: of ``wandb.init``."""
        self._group, self._options = group, options
        self._runs: dict[str, Any] = {}

    def begin(self, trial: Beginning) -> None:
        """A trial begins. Its steps are a value of their own, because wandb's own steps cannot go back."""
        settings = wandb.Settings(silent=True, console="off")
        who = {"id": f"{self._group}-{trial.trial}", "name": trial.label or trial.trial, "group": self._group}
        run = wandb.init(**who, config=dict(trial.params), reinit="create_new", settings=settings, **self._options)
        run.define_metric("*", step_metric="step")
        self._runs[trial.trial] = run

    def log(self, logged: Logged) -> None:
        """Points of a trial."""
        for k, (step, t) in enumerate(zip(logged.step.tolist(), logged.t.tolist(), strict=True)):
            values = {name: float(column[k]) for name, column in logged.values.items() if column[k] == column[k]}
            self._runs[logged.trials[0]].log({"step": step, "t": t, **values})

    def end(self, trial: str, record: Mapping[str, Any]) -> None:
        """A trial has ended: its numbers are the summary."""
        run = self._runs.pop(trial)
        named = {f"result/{name}": value for name, value in numbers(record).items()}
        kept = ("status", "failure", "planned_bytes", "used_bytes", "device")
        run.summary.update({f"result/{name}": record[name] for name in kept if record.get(name) is not None} | named)
        run.finish(exit_code=0 if record.get("status") == "done" else 1)

    def close(self, state: str) -> None:
        """The runs of trials that have no row end as failed ones."""
        for run in self._runs.values():
            run.finish(exit_code=1)
        self._runs.clear()


def open_tracker(folder: RunFolder, options: WandbExport) -> Wandb:
    """The tracker of a run."""
    where = folder.path if isinstance(folder.files, LocalFiles) else Path.cwd()
    given = {
        "project": options.project or str(folder.info()["name"]),
        "dir": expanded(options.folder) if options.folder else str(where),
    }
    given |= {name: value for name in ("entity", "mode") if (value := getattr(options, name)) is not None}
    return Wandb(folder.name, **given)


__all__ = ["Wandb", "open_tracker"]
