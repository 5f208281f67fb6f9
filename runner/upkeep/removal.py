"""Removes runs. A run that may be alive is never removed, nor is a file in its folder that no run has."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

from ...compiler.errors import QdrunError
from ..clock import now
from ..fields import about
from ..store.files import PARTIAL, LocalFiles, open_files
from ..store.layout import RunFolder
from ..store.owner import OWNERS, RunAlive, lives, take
from ..store.status import status_or_damage
from .caches import CacheEntry
from .labels import labels_of

PARTS = (
    *(
        "config.yaml",
        "config.resolved.json",
        "plan.json",
        "trials.jsonl",
        "heartbeat.json",
        "results.parquet",
        "summary.json",
        "remarks.json",
    ),
    *("labels.json", "launch.json", "runner.log", "provenance.json", "source.diff", "code.json", "report.html"),
    *("requests", "events", "trials", "workers", "source", "code", "inputs", "descents", "tensorboard", "wandb"),
    *(OWNERS, "run.json"),
)
"""What a run consists of, in the order of removal: while ``run.json`` is there, what is left can be removed by its name."""


RUN_ID = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{4}")
MADE_S = 3600.0
"""A run is made within seconds, with its inputs within minutes."""


class NotRemovable(QdrunError, RuntimeError):
    """A run cannot be removed: it may be running."""


@dataclass(frozen=True)
class Removal:
    """What the removal of a run would free."""

    run: Annotated[str, about("its id")]
    folder: Annotated[str, about("its folder or URI")]
    state: Annotated[str, about("as in status")]
    age_s: Annotated[float | None, about("seconds since it was made; null if unknown")]
    tags: Annotated[tuple[str, ...], about("its tags")]
    files: Annotated[int, about("number of files")]
    bytes: Annotated[int, about("their size")]
    stays: Annotated[tuple[str, ...], about("names in its folder that are no part of a run")] = ()


@dataclass(frozen=True)
class RemovedDocument:
    """What was removed, or would be."""

    runs: Annotated[Sequence[Removal], about("runs")]
    caches: Annotated[Sequence[CacheEntry], about("entries of caches")]
    bytes: Annotated[int, about("size of all")]
    removed: Annotated[bool, about("whether it was removed; false: it would be, with --yes")]


def removal_of(folder: RunFolder) -> Removal:
    """What the removal of a run would free. Nothing is removed."""
    state = str(status_or_damage(folder)["state"])
    below = _below(folder)
    others = {path.partition("/")[0] for path in below} - {*PARTS}
    gone = [size for path, size in below.items() if path.partition("/")[0] not in others]
    age = None
    with suppress(OSError, ValueError, KeyError):
        age = max(0.0, now() - float(folder.info()["created"]))
    sizes = len(gone), sum(gone)
    return Removal(folder.name, folder.uri, state, age, labels_of(folder).tags, *sizes, tuple(sorted(others)))


def check_removable(found: Removal) -> None:
    """Check that a run is not alive, and is not waiting in the queue of a cluster.

    Raises:
        NotRemovable: it is, or may be.
    """
    folder = RunFolder(found.folder)
    queued = folder.files.exists("launch.json") and not folder.files.names(OWNERS)
    if found.state == "running" or queued or (found.state == "damaged" and lives(folder)):
        what = "was handed to a cluster and has not begun" if queued else "is running"
        raise NotRemovable(f"{folder.name} {what}: it is not removed\n  do: `qdrun cancel {folder.uri}`, and wait for its end")


def remove(found: Removal) -> None:
    """Remove a run. It is claimed before, so that no process resumes it meanwhile.

    Raises:
        NotRemovable: it may be running.
        OSError: a file cannot be removed; what is left can be removed by another call.
    """
    check_removable(found)
    folder = RunFolder(found.folder)
    try:
        take(folder)
    except RunAlive as error:
        raise NotRemovable(str(error)) from error
    folder.files.sweep("")
    if not isinstance(folder.files, LocalFiles):
        for path in sorted(_below(folder), key=lambda path: _rank(path.partition("/")[0])):
            if path.partition("/")[0] in PARTS:
                folder.files.remove(path)
        return
    for name in PARTS:
        path = folder.path / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # other files are there, and stay
        os.rmdir(folder.path)


@contextmanager
def discarding(folder: RunFolder, error: type[BaseException]) -> Iterator[None]:
    """Remove a new run when the block raises this error, before any trial has begun: it would be the latest run."""
    try:
        yield
    except error:
        with suppress(NotRemovable, OSError):
            remove(removal_of(folder))
        raise


def _below(folder: RunFolder) -> dict[str, int]:
    return {path.removeprefix("./"): size for path, size in folder.files.below("").items()}


def _rank(name: str) -> int:
    return PARTS.index(name) if name in PARTS else -1


def unmade(where: str | os.PathLike[str], older_s: float) -> list[Removal]:
    """Folders on this machine in which a run was being made when its process was killed: they hold no run, and nothing else.

    ``older_s``: they were not changed for so long; at least ``MADE_S``.
    """
    files, found = open_files(where), list[Removal]()
    for name in files.names("") if isinstance(files, LocalFiles) else ():
        folder = RunFolder(files.at(name))
        if not RUN_ID.fullmatch(name) or folder.is_run or not folder.path.is_dir():
            continue
        below, age = _below(folder), now() - folder.path.stat().st_mtime
        ours = all(path.partition("/")[0] in PARTS or path.endswith(PARTIAL) for path in below)
        if ours and age >= max(older_s, MADE_S):
            found.append(Removal(folder.name, folder.uri, "never made", age, (), len(below), sum(below.values())))
    return found


def old(found: Removal, states: Sequence[str], older_s: float) -> bool:
    """Whether a run is in one of these states, so old, and without a tag."""
    return found.state in states and not found.tags and found.age_s is not None and found.age_s >= older_s


def age_text(seconds: float | None) -> str:
    """An age for people: ``3 d``, ``5 h``, ``2 min``."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400.0), ("h", 3600.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 60:.0f} min"


__all__ = [
    "PARTS",
    "NotRemovable",
    "Removal",
    "RemovedDocument",
    "age_text",
    "check_removable",
    "discarding",
    "old",
    "removal_of",
    "remove",
    "unmade",
]
