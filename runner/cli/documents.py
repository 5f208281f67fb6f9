"""The models of the JSON documents by command. The first field of a document, ``schema``, names it: ``qdrun.<command>/<version>``."""

from __future__ import annotations

from . import models
from .runs import models as of_runs

VERSION = 1
MODELS: dict[str, type[models.Part]] = {
    "submit": models.Submit,
    "search": of_runs.Search,
    "resume": models.Resume,
    "plan": models.Plan,
    "explain": models.Explain,
    "check": models.Check,
    "status": models.Status,
    "watch": models.WatchedRun,
    "ls": models.Ls,
    "results": models.ResultsTable,
    "report": models.Report,
    "logs": models.Logs,
    "cancel": models.Cancel,
    "up": models.Up,
    "down": models.Down,
    "devices": models.Devices,
    "dashboard": models.Dashboard,
    "rerun": of_runs.Rerun,
    "compare": of_runs.Compare,
    "sensitivity": of_runs.Sensitivity,
    "export": of_runs.Export,
    "tag": of_runs.Tag,
    "note": of_runs.Tag,
    "rm": of_runs.Rm,
    "gc": of_runs.Rm,
    "new": models.New,
    "examples": models.Examples,
    "error": models.Error,
}


def document(command: str, data: models.Data) -> models.Data:
    """Build the document of a command and validate it.

    Raises:
        pydantic.ValidationError: ``data`` does not fit the model: an internal error.
    """
    return {"schema": f"qdrun.{command}/{VERSION}"} | MODELS[command].model_validate(data).model_dump(mode="json")
