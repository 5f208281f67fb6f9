"""The folder of a run: what lies where, its making, and finding runs again.

<where>/<run>/
  run.json  config.yaml  config.resolved.json  plan.json  trials.jsonl    written once
  owners/000001.json            who may write; the highest number does (owner.py)
  heartbeat.json                signs of life of the owner
  requests/                     what others ask of the owner: to cancel
  events/000001-000001.jsonl    the journal: owner, number of the segment (journal.py)
  trials/<id>/a<k>/             what an attempt leaves beside its line in the journal (attempts.py)
  results.parquet               rebuilt from the journal at any time (table.py)
  summary.json                  of a run that has ended: what lists show, and of which journal (summary.py)
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ...compiler.errors import QdrunError
from ..plan import PlannedGroup
from ..trials import Trial
from .files import Files, LocalFiles, StorageFull, StorageUnknown, escaped, full_said, open_files
from .processes import alive, pid_space

if TYPE_CHECKING:
    from ..plan import Prepared

FORMAT = 2
LOST_AFTER_S = 30.0
BEAT_EVERY_S = 2.0
LATEST = "latest"
HEARTBEAT, TRIALS = "heartbeat.json", "trials"


class RunNotFound(QdrunError, LookupError):
    """A path or an id names no run."""


class NoPlace(QdrunError, OSError):
    """The folder of a run, or a file of its own, cannot be made where it was wanted."""


class ConfigChanged(QdrunError, ValueError):
    """A run was made from another config than the one at hand."""


class RunFolder:
    """One run, wherever it lies."""

    def __init__(self, where: str | os.PathLike[str] | Files) -> None:
        self.files: Files = open_files(where) if isinstance(where, str | os.PathLike) else where
        self.uri = self.files.root.rstrip("/")

    def __repr__(self) -> str:
        return f"RunFolder({self.uri!r})"

    def __reduce__(self) -> tuple[type[RunFolder], tuple[str]]:
        return (RunFolder, (self.uri,))  # to a worker goes the URI, and nothing that is open

    @property
    def name(self) -> str:
        """The id of the run."""
        return self.uri.replace(os.sep, "/").rpartition("/")[2]

    @property
    def path(self) -> Path:
        """Where the run lies on this machine.

        Raises:
            ValueError: it lies elsewhere.
        """
        if not isinstance(self.files, LocalFiles):
            raise ValueError(f"{self.uri} is not a folder of this machine")
        return Path(self.uri)

    @property
    def table(self) -> str:
        """The table of results, rebuilt from the journal."""
        return f"{self.uri}/results.parquet"

    @property
    def is_run(self) -> bool:
        """Whether there is a run here."""
        return self.files.exists("run.json")

    def info(self) -> dict[str, Any]:
        """What ``run.json`` says: id, name, when and by what it was made."""
        return json.loads(self.files.read("run.json"))

    def config(self) -> dict[str, Any]:
        """The resolved config."""
        return json.loads(self.files.read("config.resolved.json"))

    def trials(self) -> list[Trial]:
        """The trials of the run, in the order of the sweep."""
        return [Trial.model_validate_json(line) for line in self.files.read("trials.jsonl").splitlines()]

    def trial_ids(self) -> list[str]:
        """The ids of its trials, in the order of the sweep; a fifth of the time of ``trials``."""
        return [str(from_json(line)["id"]) for line in self.files.read("trials.jsonl").splitlines()]

    def plan(self) -> list[PlannedGroup]:
        """The memory plan of the run; empty while it is still being made."""
        if not self.files.exists("plan.json"):
            return []
        return [PlannedGroup.model_validate(group) for group in json.loads(self.files.read("plan.json"))]

    def save_plan(self, groups: list[PlannedGroup]) -> None:
        """Write the memory plan. It is written once: a later call changes nothing.

        Raises:
            StorageFull: no room; nothing was written.
        """
        self.files.claim("plan.json", json.dumps([group.model_dump(mode="json") for group in groups], indent=1).encode())

    def check_config(self, resolved: Mapping[str, Any]) -> None:
        """Refuse to go on with another config than the run was made from.

        Raises:
            ConfigChanged: names the keys that differ.
        """
        mine = self.config()
        if config_hash(mine) != config_hash(resolved):
            raise ConfigChanged(
                f"{self.name} was made from another config; other now: {', '.join(differing(mine, resolved))}\n"
                "  do: submit the new config as a run of its own, or go on with the trials of this run, under the new limits: "
                f"`qdrun resume {self.uri} --force`"
            )

    def beat(self, owner: int = 0) -> None:
        """Say that the run is alive. On a full disk the old sign of life gets a new time."""
        sign = {"t": time.time(), "pid": os.getpid(), "host": platform.node(), "owner": owner, "where": pid_space()}
        try:
            self.files.put(HEARTBEAT, json.dumps(sign).encode(), durable=False)
        except OSError:
            self.files.touch(HEARTBEAT)
            raise

    def last_beat(self) -> dict[str, Any] | None:
        """The last sign of life: ``t``, ``pid``, ``host``, ``owner``, ``where`` as of ``Owner``; None when there is none or it is damaged."""
        try:
            beat = json.loads(self.files.read(HEARTBEAT))
            return {"t": max(float(beat["t"]), self.files.changed(HEARTBEAT) if beat["host"] == platform.node() else 0.0)} | {
                "pid": int(beat["pid"]),
                "host": str(beat["host"]),
                "owner": int(beat.get("owner", 0)),
                "where": str(beat.get("where", "")),
            }
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def silent_s(self) -> float:
        """Seconds since the last heartbeat; infinite when there was none, or when its process, which was one of those here, is gone."""
        beat = self.last_beat()
        if beat is None or (beat["host"] == platform.node() and beat["where"] == pid_space() and not alive(beat["pid"])):
            return float("inf")
        return time.time() - beat["t"]


def config_hash(resolved: Mapping[str, Any]) -> str:
    """A resolved config in 16 hexadecimal digits; the order of its keys does not matter."""
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_shared(uri: str) -> None:
    """Refuse a place that only this process can see: the workers of a run are processes of their own.

    Raises:
        StorageUnknown: it is that, or names no file system.
    """
    if uri.startswith("memory:"):
        raise StorageUnknown(
            f"{uri} is the memory of one process, which another one cannot see\n  do: set `storage` to a folder or a URI"
        )
    open_files(uri)


def create(prepared: Prepared, where: str | os.PathLike[str]) -> RunFolder:
    """Make the folder of a new run under ``where`` and write everything that is known before it starts.

    Raises:
        StorageFull: no room.
        NoPlace: the folder cannot be made.
    """
    loaded, source = prepared.loaded, prepared.target.source
    origin = {
        "config": str(Path(loaded.document.file).resolve()),
        "source_hash": source and hashlib.sha256(source.encode()).hexdigest()[:16],
    }
    return write_run(where, loaded.config.name, loaded.document.text, prepared.resolved, prepared.trials, origin)


def _check_place(folder: RunFolder) -> None:
    """Make a local run's folder, or say what is in the way."""
    if not isinstance(folder.files, LocalFiles):
        return
    try:
        with full_said(folder.uri):
            folder.path.mkdir(parents=True, exist_ok=True)
    except StorageFull:
        raise
    except OSError as error:
        raise NoPlace(
            f"cannot make the run's folder {folder.path}: {error.strerror}\n"
            "  do: set `storage` in the config, or --output, to a folder in which you may write"
        ) from error


def write_run(
    where: str | os.PathLike[str],
    name: str,
    config: str,
    resolved: Mapping[str, Any],
    trials: Iterable[Trial],
    origin: Mapping[str, Any],
) -> RunFolder:
    """Write the files of a new run; ``run.json`` comes last: before it, there is no run.

    Args:
        where: the folder or URI in which the run gets a folder of its own.
        name: of the run; its id is made of it.
        config: as the user wrote it.
        resolved: as it was understood.
        trials: in the order of the sweep.
        origin: what else ``run.json`` is to say about where the run comes from.

    Raises:
        StorageFull: no room.
        NoPlace: the folder cannot be made.
    """
    identity = f"{time.strftime('%Y%m%d-%H%M%S')}-{escaped(name)}-{secrets.token_hex(2)}"
    folder = RunFolder(open_files(where).at(identity))
    _check_place(folder)
    lines = [trial.model_dump_json() + "\n" for trial in trials]
    info = {"format": FORMAT, "id": identity, "name": name, "created": time.time(), "python": platform.python_version()}
    info |= {"host": platform.node(), "config_hash": config_hash(resolved), "trials": len(lines), **origin}
    folder.files.put("config.yaml", config.encode())
    folder.files.put("config.resolved.json", json.dumps(resolved, indent=1).encode())
    folder.files.put("trials.jsonl", "".join(lines).encode())
    folder.beat()
    folder.files.put("run.json", json.dumps(info, indent=1).encode())
    return folder


def find(run: str, where: str | os.PathLike[str] = "runs") -> RunFolder:
    """A run by its path or URI, or under ``where``: by its id, by a part that no other id there has, or the ``latest``.

    Raises:
        RunNotFound: there is no such run, or several; names runs that there are.
        StorageUnknown: the URI names no file system.
    """
    files = open_files(where)
    places = [RunFolder(run)]
    if re.fullmatch(r"[\w%.-]+", run):
        places.append(RunFolder(files.at(run)))
    for place in places:
        if place.is_run:
            return place
    if run == LATEST and (latest := _latest(where)) is not None:
        return latest
    known = all_runs(where)
    ends = [folder for folder in known if run and (folder.name.startswith(run) or folder.name.endswith(run))]
    fitting = ends or [folder for folder in known if run and run in folder.name]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(folder.name for folder in (fitting or known)[-5:])
    if fitting:
        raise RunNotFound(f"`{run}` fits {len(fitting)} runs in {files.root}\n  do: give more of the id: {names}")
    hint = (
        f"the latest in {files.root}: {names}" if known else f"there are no runs in {files.root}; start one with `qdrun submit`"
    )
    raise RunNotFound(f"no run at `{run}`\n  do: give the folder of a run; {hint}")


def differing(mine: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> list[str]:
    """The dotted keys of two configs that have other values, as deep as both are maps."""
    found: list[str] = []
    for key in sorted({*mine, *other}):
        a, b = mine.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differing(a, b, f"{above}{key}.")
        elif a != b:
            found.append(f"{above}{key}")
    return found


def all_runs(where: str | os.PathLike[str]) -> list[RunFolder]:
    """The runs under ``where``, oldest first."""
    return list(each_run(where))[::-1]


def each_run(where: str | os.PathLike[str]) -> Iterator[RunFolder]:
    """The runs under ``where``, latest first. Each folder is looked into when its turn comes: in a bucket that is a request."""
    files = open_files(where)
    for name in reversed(files.names("")):
        folder = RunFolder(files.at(name))
        if folder.is_run:
            yield folder


def _latest(where: str | os.PathLike[str]) -> RunFolder | None:
    """The run that was made last; None where there is none. Only those whose names may be the latest are looked into.

    Names begin with a time, but of the clock on some wall: two of them can be off by the time zones between, and an hour of summer.
    """
    found: list[RunFolder] = []
    first = ""
    for folder in each_run(where):
        day = folder.name[:8]
        if first and day.isdigit() and day < first:
            break
        with suppress(ValueError):  # of a folder that somebody has named
            first = first or (datetime.strptime(day, "%Y%m%d") - timedelta(days=2)).strftime("%Y%m%d")
        found.append(folder)
    return max(found, key=lambda folder: (folder.info()["created"], folder.name), default=None)
