"""The folder of a run: its files, its creation, and the search for runs.

<where>/<run>/ run.json  config.yaml  config.resolved.json  plan.json  trials.jsonl    written once owners/000001.json claims of owners; the
  highest number holds (owner.py) heartbeat.json                signs of life of the owner requests/                     what others ask of
  the owner: to cancel events/000001-000001.jsonl    the journal: owner, number of the segment (journal.py) trials/<id>/a<k>/
  what an attempt leaves beside its line in the journal (attempts.py) results.parquet               rebuilt from the journal at any time
  (table.py)
  remarks.json                  of a run that has ended: warnings about its gradients and optimisation runs (observe/remarks.py)
  summary.json                  of a run that has ended: what lists show, and of which journal (summary.py)

All JSON is strict and has checksums (encoding.py). The folder is its user's alone: 0700, its files 0600.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...compiler.errors import QdrunError
from ..clock import now
from ..config.values import differing
from ..processes import gone_from_here, pid_space
from ..study.plan import PlannedGroup
from ..study.trial_file import TrialList, ids_of, of_growing, read_trials, trial_lines, trial_of, write_as_made
from ..study.trial_list import Trial, Trials
from ..value_columns import ranges_of
from .columns import named_at
from .encoding import Damaged, crc_of, document, read_document
from .files import Files, LocalFiles, StorageDenied, StorageFull, StorageUnknown, escaped, full_said, open_files
from .interface import why_of

if TYPE_CHECKING:
    from ..study.plan import Prepared

FORMAT, READABLE = 5, (3, 4, 5)
"""Format 3 names the trials of a batch, see ``columns``; up to 4 a line of ``trials.jsonl`` has one trial."""
LOST_AFTER_S = 30.0
BEAT_EVERY_S = 2.0
BEAT_STEPS = 256
LATEST = "latest"
HEARTBEAT, TRIALS = "heartbeat.json", "trials"
Listed = TypeVar("Listed", bound=Sequence[Any])
Describe = Callable[[Files], None]
"""Writes further files of a new run, such as its code."""


class RunNotFound(QdrunError, LookupError):
    """A path or an id names no run."""


class NoPlace(QdrunError, OSError):
    """The folder of a run, or a file of its own, cannot be made where it was wanted."""


class OtherFormat(QdrunError, ValueError):
    """The folder of a run was written by another version."""


class ConfigChanged(QdrunError, ValueError):
    """A run was made from another config than the one at hand."""


class RunExists(QdrunError, ValueError):
    """A new run was wanted where one is."""


class RunFolder:
    """One run, on any storage. A local run is a path: ``open(os.path.join(folder, "config.yaml"))``."""

    def __init__(self, where: str | os.PathLike[str] | Files) -> None:
        self.files: Files = (open_files(where) if isinstance(where, str | os.PathLike) else where).private()
        self.uri = self.files.root.rstrip("/")

    def __repr__(self) -> str:
        return f"RunFolder({self.uri!r})"

    def __reduce__(self) -> tuple[type[RunFolder], tuple[str]]:
        return (RunFolder, (self.uri,))  # to a worker goes the URI, and nothing that is open

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The id of the run."""
        return self.uri.replace(os.sep, "/").rpartition("/")[2]

    @property
    def path(self) -> Path:
        """The path of the run on this machine.

        Raises:
            ValueError: the run is not on this machine.
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
        """The content of ``run.json``: id, name, creation time and version.

        Raises:
            Damaged: the file has changed since it was written.
            OtherFormat: another version wrote it.
        """
        data = self.files.read("run.json")
        found = _format_of(data)
        if found is not None and found not in READABLE:
            raise OtherFormat(
                f"{self.uri} has format {found}, this version of qdrun reads formats {READABLE[0]} to {READABLE[-1]}\n"
                "  do: read it with the qdrun that made it"
            )
        return self._checked("run.json", data)

    def config(self) -> dict[str, Any]:
        """The resolved config. Raises ``Damaged``."""
        return self._checked("config.resolved.json", self.files.read("config.resolved.json"))

    def config_text(self) -> str:
        """The config as its user wrote it. Raises ``Damaged``."""
        data = self.files.read("config.yaml")
        if crc_of(data) != self.info()["config_crc"]:
            raise Damaged(
                f"{self.uri}/config.yaml is not as it was written\n  do: give the config: `qdrun resume {self.uri} --config FILE`"
            )
        return data.decode()

    def _checked(self, name: str, data: bytes) -> dict[str, Any]:
        try:
            return read_document(data)
        except Damaged as error:
            raise Damaged(f"{self.uri}/{name} is damaged: {error}\n  do: {_REMEDY[name].format(uri=self.uri)}") from None

    def trials(self) -> Trials:
        """The trials of the run, in the order of the sweep.

        Raises:
            Damaged: a line of ``trials.jsonl`` is not as it was written.
        """
        found = self.found_trials()
        if found.problems:
            raise Damaged(f"{self.uri}/{found.problems[0]}\n  do: {_REMEDY['trials.jsonl'].format(uri=self.uri)}")
        return found.trials

    def found_trials(self) -> TrialList:
        """The trials of the run as far as they can be read: of a damaged line come trials without parameters."""
        found = read_trials(self.files.read("trials.jsonl"))
        self._not_empty(found.trials, found.problems)
        return found.so_far() if found.problems and self.silent_s() < LOST_AFTER_S else found

    def trial_ids(self) -> list[str]:
        """The ids of its trials, in the order of the sweep; a tenth of the time of ``trials``. Those of damaged lines as far as
        they can be told.
        """
        return self.found_ids()[0]

    def found_ids(self) -> tuple[list[str], list[str]]:
        """``trial_ids``, and the damage of the lines."""
        ids, problems = self._not_empty(*ids_of(self.files.read("trials.jsonl")))
        return ids, of_growing(problems)[0] if problems and self.silent_s() < LOST_AFTER_S else problems

    def _not_empty(self, found: Listed, problems: list[str]) -> tuple[Listed, list[str]]:
        """What was found in ``trials.jsonl``, and its damage; it is empty for a run without trials only."""
        if not found:
            try:
                empty = self.info()["trials"] == 0
            except (Damaged, FileNotFoundError):
                empty = False
            problems += [] if empty else ["trials.jsonl: it is empty, the parameters of all trials are lost"]
        return found, problems

    def trial(self, name: str) -> Trial | None:
        """One trial of the run, by its id; None where its line is damaged or gone."""
        return trial_of(self.files.read("trials.jsonl"), name)

    def save_trials(self, trials: Trials) -> None:
        """Write the trials, or their first block, see ``TrialNames.later``. Raises ``StorageFull``."""
        if trials.names is not None and trials.names.later and isinstance(self.files, LocalFiles):
            write_as_made(self.files, trials, trials.names)
        else:
            self.files.put("trials.jsonl", trial_lines(trials))

    def plan(self, ids: Sequence[str] | None = None) -> list[PlannedGroup]:
        """The memory plan of the run; empty while it is still being made. Raises ``Damaged``.

        ``ids``: of its trials, if read: an older file names them.
        """
        if not self.files.exists("plan.json"):
            return []
        groups = self._checked("plan.json", self.files.read("plan.json"))["groups"]
        if any("trials" in group for group in groups):
            known = {name: place for place, name in enumerate(self.trial_ids() if ids is None else ids)}
            for group in groups:
                found = named_at(group.pop("trials"), known)
                group["at"] = ranges_of(found[found >= 0])
        return [PlannedGroup.of(group) for group in groups]

    def save_plan(self, groups: list[PlannedGroup]) -> None:
        """Write the memory plan, with the places of trials as ranges, that of the planned one first. A later call changes nothing.

        Raises:
            StorageFull: no room; nothing was written.
        """
        self.files.claim("plan.json", document({"groups": [group.stored() for group in groups]}, indent=1))

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

    def beat(self, owner: int = 0, steps: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Say that the run is alive. On a full disk the old sign of life gets a new time.

        ``steps``: how far running trials are, by their ids, see ``LaneState.seen``; the first ``BEAT_STEPS`` of them are kept.
        """
        sign = {
            "t": time.time(),
            "pid": os.getpid(),
            "host": platform.node(),
            "owner": owner,
            "where": pid_space(),
            "now": now(),
        }
        sign |= {"steps": dict(islice(steps.items(), BEAT_STEPS))} if steps else {}
        try:
            self.files.put(HEARTBEAT, document(sign), durable=False)
        except OSError:
            self.files.touch(HEARTBEAT)
            raise

    def last_beat(self) -> dict[str, Any] | None:
        """The last sign of life: ``t``, ``pid``, ``host``, ``owner``, ``where`` as of ``Owner``, ``now`` by the clock of the run, and
        ``steps``, see ``beat``; None: there is none, or it is damaged.
        """
        try:
            beat = read_document(self.files.read(HEARTBEAT))
            return {"t": max(float(beat["t"]), self.files.changed(HEARTBEAT) if beat["host"] == platform.node() else 0.0)} | {
                "pid": int(beat["pid"]),
                "host": str(beat["host"]),
                "owner": int(beat.get("owner", 0)),
                "where": str(beat.get("where", "")),
                "now": float(beat.get("now", beat["t"])),
                "steps": {str(trial): dict(step) for trial, step in dict(beat.get("steps", {})).items()},
            }
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def clock(self) -> float:
        """The present time by the clock of a live run's process, to compute the age of what it has written."""
        beat = self.last_beat()
        return now() if beat is None else beat["now"] + min(LOST_AFTER_S, max(0.0, time.time() - beat["t"]))

    def silent_s(self) -> float:
        """Seconds since the last heartbeat; infinite when there was none, or when its process, which was one of those here, is gone."""
        beat = self.last_beat()
        if beat is None or gone_from_here(beat["pid"], beat["host"], beat["where"]):
            return float("inf")
        return time.time() - beat["t"]


def _format_of(data: bytes) -> Any:
    """The format that a ``run.json`` names; None where it names none."""
    try:
        return json.loads(data).get("format")
    except (ValueError, AttributeError, RecursionError):
        return None


_REMEDY = {
    "run.json": "`qdrun results {uri}` shows what the run has found; submit config.yaml, which lies there, again to go on",
    "config.resolved.json": "`qdrun results {uri}` shows what the run has found; submit config.yaml, which lies there, again to go on",
    "plan.json": "remove the file: `qdrun resume {uri}` makes the plan again, and `qdrun results` needs none",
    "trials.jsonl": "`qdrun resume {uri}` writes it again from the config; `qdrun results` shows what is left",
}


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


def create(
    prepared: Prepared,
    where: str | os.PathLike[str],
    more: Mapping[str, Any] | None = None,
    describe: Describe | None = None,
) -> RunFolder:
    """Make the folder of a new run under ``where`` and write everything that is known before it starts.

    ``more``: for ``run.json``. ``describe``: see ``write_run``.

    Raises ``StorageFull`` and ``NoPlace``, see ``write_run``.
    """
    loaded, source = prepared.loaded, prepared.target.source
    origin = {
        "config": str(Path(loaded.document.file).resolve()),
        "source_hash": source and hashlib.sha256(source.encode()).hexdigest()[:16],
    }
    return write_run(
        where,
        loaded.config.name,
        loaded.document.text,
        prepared.resolved,
        prepared.trials,
        origin | dict(more or {}),
        describe,
    )


def _check_place(folder: RunFolder) -> None:
    """Create the folder of a local run."""
    if not isinstance(folder.files, LocalFiles):
        return
    try:
        with full_said(folder.uri):
            folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        if isinstance(error, StorageFull) and not isinstance(error, StorageDenied):
            raise
        raise NoPlace(
            f"cannot make the run's folder {folder.path}: {why_of(error)}\n"
            "  do: set `storage` in the config, or --output, to a folder in which you may write"
        ) from error


@contextmanager
def _unmade_on_error(folder: RunFolder) -> Iterator[None]:
    """Remove the folder of a run that is not made after all, as on Ctrl-C: before ``run.json`` there is no run in it."""
    try:
        yield
    except BaseException:
        with suppress(OSError, QdrunError):
            for path in folder.files.below(""):
                folder.files.remove(path)
            if isinstance(folder.files, LocalFiles):
                shutil.rmtree(folder.path)
        raise


def write_run(
    where: str | os.PathLike[str],
    name: str,
    config: str,
    resolved: Mapping[str, Any],
    trials: Iterable[Trial],
    origin: Mapping[str, Any],
    describe: Describe | None = None,
) -> RunFolder:
    """Write the files of a new run; ``run.json`` comes last: before it, there is no run.

    Args:
        where: the folder or URI in which the run gets a folder of its own.
        name: of the run; its id is made of it.
        config: as the user wrote it.
        resolved: as it was understood.
        trials: in the order of the sweep.
        origin: what else ``run.json`` is to say about where the run comes from.
        describe: writes what else a run needs before anybody may resume it.

    Raises:
        StorageFull: no room.
        NoPlace: the folder cannot be made.
    """
    identity = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{escaped(name)}-{secrets.token_hex(2)}"
    folder = RunFolder(open_files(where).at(identity))
    _check_place(folder)
    trials = Trials.of(trials)
    info = {"format": FORMAT, "id": identity, "name": name, "created": now(), "python": platform.python_version()}
    info |= {
        "host": platform.node(),
        "config_hash": config_hash(resolved),
        "trials": len(trials),
        "config_crc": crc_of(config.encode()),
        **origin,
    }
    with _unmade_on_error(folder):
        folder.files.put("config.yaml", config.encode())
        folder.files.put("config.resolved.json", document(dict(resolved), indent=1))
        folder.save_trials(trials)
        if describe is not None:
            describe(folder.files)
        folder.beat()
        folder.files.put("run.json", document(info, indent=1))
    return folder


def find(run: str, where: str | os.PathLike[str] = "runs", *, newest: bool = False) -> RunFolder:
    """Return a run by its path or URI, or under ``where``: by its id, by a part that no other id there has, or the ``latest``.

    ``newest``: of several runs with this name, as a rerun leaves them, take the newest, and warn that there are others.

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
    named = [folder for folder in fitting if re.fullmatch(rf"[\d-]+-{re.escape(escaped(run))}-[0-9a-f]{{4}}", folder.name)]
    if newest and named:
        warnings.warn(f"`{run}` names {len(named)} runs in {files.root}: the newest is read, {named[-1].name}", stacklevel=3)
        return named[-1]
    if fitting:
        raise RunNotFound(f"`{run}` fits {len(fitting)} runs in {files.root}\n  do: give more of the id: {names}")
    hint = (
        f"the latest in {files.root}: {names}" if known else f"there are no runs in {files.root}; start one with `qdrun submit`"
    )
    inside = [folder.name for folder in all_runs(run)[-5:]] if Path(run).is_dir() else []
    if inside:
        hint = f"`{run}` holds runs: {', '.join(inside)}"
    raise RunNotFound(f"no run at `{run}`\n  do: give the folder of a run; {hint}")


def all_runs(where: str | os.PathLike[str]) -> list[RunFolder]:
    """The runs under ``where``, oldest first."""
    return list(each_run(where))[::-1]


def each_run(where: str | os.PathLike[str]) -> Iterator[RunFolder]:
    """The runs under ``where``, newest first. Folders are read lazily, because in a bucket each read is a request."""
    files = open_files(where)
    for name in reversed(files.names("")):
        folder = RunFolder(files.at(name))
        if folder.is_run:
            yield folder


def _latest(where: str | os.PathLike[str]) -> RunFolder | None:
    """The newest run; None if there is none. Only folders with a name that may be the newest are read.

    Names begin with a time in UTC; those of older versions with a local one.
    """
    found: list[RunFolder] = []
    first = ""
    for folder in each_run(where):
        day = folder.name[:8]
        if first and day.isdigit() and day < first:
            break
        with suppress(ValueError):  # of a folder with a user's name
            first = first or (datetime.strptime(day, "%Y%m%d") - timedelta(days=2)).strftime("%Y%m%d")
        found.append(folder)
    return max(found, key=lambda folder: (folder.info()["created"], folder.name), default=None)
