"""The folder of a run: its files, its making, its heartbeat, and the request to cancel it."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compiler.errors import QdrunError
from .plan import PlannedGroup, Prepared
from .trials import Trial

LOST_AFTER_S = 30.0
BEAT_EVERY_S = 2.0


class RunNotFound(QdrunError, LookupError):
    """A path or an id names no run."""


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path

    @property
    def events(self) -> Path:
        """The journal."""
        return self.path / "events.jsonl"

    @property
    def table(self) -> Path:
        """The table of results, rebuilt from the journal."""
        return self.path / "results.parquet"

    @property
    def cancel(self) -> Path:
        """Exists when somebody asked to cancel the run."""
        return self.path / "cancel"

    @property
    def heartbeat(self) -> Path:
        """Written every two seconds by the process that runs the sweep."""
        return self.path / "heartbeat.json"

    def info(self) -> dict[str, Any]:
        """What ``run.json`` says: id, name, when and by what it was made."""
        return json.loads((self.path / "run.json").read_text(encoding="utf-8"))

    def config(self) -> dict[str, Any]:
        """The resolved config."""
        return json.loads((self.path / "config.resolved.json").read_text(encoding="utf-8"))

    def trials(self) -> list[Trial]:
        """The trials of the run, in the order of the sweep."""
        lines = (self.path / "trials.jsonl").read_text(encoding="utf-8").splitlines()
        return [Trial.model_validate_json(line) for line in lines]

    def plan(self) -> list[PlannedGroup]:
        """The memory plan of the run; empty while it is still being made."""
        path = self.path / "plan.json"
        return [PlannedGroup.model_validate(group) for group in json.loads(path.read_text("utf-8"))] if path.exists() else []

    def save_plan(self, groups: list[PlannedGroup]) -> None:
        """Write the memory plan."""
        replace_text(self.path / "plan.json", json.dumps([group.model_dump(mode="json") for group in groups], indent=1))

    def beat(self) -> None:
        """Say that the run is alive."""
        replace_text(self.heartbeat, json.dumps({"t": time.time(), "pid": os.getpid(), "host": platform.node()}))

    def silent_s(self) -> float:
        """Seconds since the last heartbeat; infinite when there was none, or when its process on this host is gone."""
        if not self.heartbeat.exists():
            return float("inf")
        try:
            beat = json.loads(self.heartbeat.read_text(encoding="utf-8"))
        except ValueError:  # damaged: as good as none
            return float("inf")
        if beat["host"] == platform.node() and not _alive(beat["pid"]):
            return float("inf")
        return time.time() - beat["t"]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's process: it exists
    return True


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def create(prepared: Prepared, output: Path) -> RunFolder:
    """Make the folder of a new run under ``output`` and write everything that is known before it starts.

    Raises:
        OSError: the folder cannot be made.
    """
    config = prepared.loaded.config
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.name}-{secrets.token_hex(2)}"
    folder = RunFolder(output / name)
    folder.path.mkdir(parents=True)
    info = {"format": 1, "id": name, "name": config.name, "created": time.time(), "python": platform.python_version()}
    info |= {
        "host": platform.node(),
        "config": str(Path(prepared.loaded.document.file).resolve()),
        "trials": len(prepared.trials),
    }
    resolved = config.model_dump(mode="json", by_alias=True, exclude_none=True) | {
        "gradients": list(prepared.gradients),
        "job": {"target": prepared.target.text, "params": config.job.params},
    }
    resolved["device"]["backend"] = prepared.backend
    replace_text(folder.path / "config.yaml", prepared.loaded.document.text)
    replace_text(folder.path / "config.resolved.json", json.dumps(resolved, indent=1))
    replace_text(folder.path / "trials.jsonl", "".join(trial.model_dump_json() + "\n" for trial in prepared.trials))
    folder.beat()
    replace_text(folder.path / "run.json", json.dumps(info, indent=1))
    return folder


def find(run: str, output: Path = Path("runs")) -> RunFolder:
    """The run at the path ``run``, or with the id ``run`` under ``output``.

    Raises:
        RunNotFound: there is no such run; names the runs that there are.
    """
    places = [Path(run)]
    if re.fullmatch(r"[\w.-]+", run):
        places.append(output / run)
    for place in places:
        if (place / "run.json").is_file():
            return RunFolder(place)
    known = [folder.path.name for folder in all_runs(output)][-5:]
    hint = (
        f"the latest in {output}: {', '.join(known)}"
        if known
        else f"there are no runs in {output}; start one with `qdrun submit`"
    )
    raise RunNotFound(f"no run at `{run}`\n  do: give the folder of a run; {hint}")


def all_runs(output: Path) -> list[RunFolder]:
    """The runs under ``output``, oldest first."""
    if not output.is_dir():
        return []
    return [RunFolder(path) for path in sorted(output.iterdir()) if (path / "run.json").is_file()]
