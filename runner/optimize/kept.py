"""Where descents are kept while they run: ``trials/<id>/descent.safetensors``, and of a batch ``descents/<owner>-<launch>.safetensors``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ..store.files import Files, StorageFull, escaped
from .rungs import FOLDER, Rungs
from .state import Descents, Key, header_of, unpacked

EVERY_S, SHARE = 1.0, 0.005
"""A descent is saved so often, and less often where that would take a larger share of the time. A crash costs what came after that."""
BATCHES, DESCENT = "descents", "/descent.safetensors"
HEAD_BYTES = 8


class DescentStore(Protocol):
    """The storage of descents between attempts."""

    def load(self, keys: Sequence[Key]) -> dict[Key, Descents]:
        """The last saved state of each descent that has one, as one row."""
        ...

    def save(self, data: bytes) -> None:
        """Keep this instead of what was saved before."""
        ...

    def clear(self) -> None:
        """The descents are over: nothing is to go on."""
        ...

    @property
    def rungs(self) -> Rungs:
        """What the descents of the run have reached."""
        ...


def path_of(trial: str) -> str:
    """The file of a descent that runs alone."""
    return f"trials/{escaped(trial)}{DESCENT}"


def batch_path(owner: int, launch: int) -> str:
    """The file of the descents of a batch."""
    return f"{BATCHES}/{owner:06}-{launch:06}.safetensors"


@dataclass(frozen=True)
class KeptFiles:
    """Files in a run folder. A store that is full or away costs what was not kept, and not the descent.

    Attributes:
        files: of the run.
        path: that is written.
        check: is called before each write, and refuses a lost owner.
        first: the first attempts of these trials: there is nothing to load.
        rungs: what the descents of the run have reached.
    """

    files: Files
    path: str
    check: Callable[[], None]
    first: bool = False
    rungs: Rungs = field(default_factory=Rungs)
    _heads: dict[str, list[Key]] = field(default_factory=dict)

    def load(self, keys: Sequence[Key]) -> dict[Key, Descents]:
        """See ``DescentStore``. A trial may have run alone and in batches: the state with the most steps counts."""
        found: dict[Key, Descents] = {}
        if self.first:
            return found
        paths = [path_of(key.trial) for key in keys] + [path for path in self.batches() if set(self.rows(path)) & set(keys)]
        for path in paths:
            with suppress(OSError):
                for key, one in unpacked(self.files.read(path), keys).items():
                    if key not in found or one.step > found[key].step:
                        found[key] = one
        return found

    def batches(self) -> list[str]:
        """The files of batches."""
        with suppress(OSError):
            return [f"{BATCHES}/{name}" for name in self.files.names(BATCHES) if name.endswith(".safetensors")]
        return []

    def rows(self, path: str) -> list[Key]:
        """The descents in a file."""
        if path not in self._heads:
            with suppress(OSError):
                size = int.from_bytes(self.files.read(path, 0, HEAD_BYTES), "little")
                head = header_of(self.files.read(path, 0, HEAD_BYTES + size))
                self._heads[path] = [] if head is None else head["rows"]
        return self._heads.get(path, [])

    def save(self, data: bytes) -> None:
        """See ``DescentStore``."""
        with suppress(StorageFull, OSError):
            self.check()
            self.files.put(self.path, data, durable=False)

    def clear(self) -> None:
        """See ``DescentStore``."""
        with suppress(StorageFull, OSError):
            if self.files.exists(self.path):
                self.check()
                self.files.remove(self.path)


def forget_batches(files: Files) -> None:
    """Remove what batches have kept, and what descents have reached: all trials of the run have their rows."""
    for folder in (BATCHES, FOLDER):
        with suppress(StorageFull, OSError):
            for name in files.names(folder):
                files.remove(f"{folder}/{name}")


def latest(files: Files, trial: str, section: str) -> Descents | None:
    """The saved descent of a trial with the most steps, as one row. ``section``: the hash of what it descends by."""
    kept, found = KeptFiles(files, "", lambda: None), list[Descents]()
    for path in [path_of(trial), *kept.batches()]:
        with suppress(OSError):
            keys = [key for key in kept.rows(path) if key.trial == trial]
            data = files.read(path) if keys else None
            head = None if data is None else header_of(data)
            if head is not None and head["section"] == section:
                found += unpacked(data, keys).values()
    return max(found, key=lambda one: one.step, default=None)


class Saver:
    """Saves descents while they run, as often as ``EVERY_S`` and ``SHARE`` say."""

    def __init__(self, kept: DescentStore | None) -> None:
        self._kept, self._due = kept, time.monotonic() + EVERY_S

    def look(self, data: Callable[[], bytes]) -> None:
        """Save what ``data`` gives, if it is time."""
        if self._kept is not None and time.monotonic() >= self._due:
            self.save(data)

    def save(self, data: Callable[[], bytes]) -> None:
        """Save in any case."""
        if self._kept is not None:
            began = time.monotonic()
            self._kept.save(data())
            now = time.monotonic()
            self._due = now + max(EVERY_S, (now - began) / SHARE)


__all__ = ["BATCHES", "DescentStore", "KeptFiles", "Saver", "batch_path", "forget_batches", "latest", "path_of"]
