"""Writes the live values of a worker's trials to the run's folder, from a thread of its own: no lane waits for a file."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..store.files import StorageFull
from ..store.interface import Growing
from ..store.layout import RunFolder
from ..store.owner import OwnerLost
from .points import FOLDER, Logged

WRITE_EVERY_S = 1.0
SOON_S = 0.05
"""After the end of an attempt its last points are written so soon, with those of others that end meanwhile."""
SYNC_EVERY_S, SHARE = 5.0, 0.1
"""Between two writes to a store without append, which writes a file again; and the most that they may take of the time."""
SEGMENT_BYTES = {True: 64 << 20, False: 256 << 10}
"""A file is closed beyond this: one that is appended to, and one that each sync writes again."""


class LiveWriter(threading.Thread):
    """The thread. A store that is full or away costs the values that could not be written, and nothing else.

    Args:
        folder: the run.
        path: the folder of the worker in it.
        look: gives what lanes have logged since it was called last.
        check: is called before each write, and refuses a lost owner.
    """

    def __init__(self, folder: RunFolder, path: str, look: Callable[[], Sequence[Logged]], check: Callable[[], None]) -> None:
        super().__init__(name="live values", daemon=True)
        self._files, self._path, self._look, self._check = folder.files, f"{path}/{FOLDER}", look, check
        self._waiting = deque[Logged]()
        self._file: Growing | None = None
        self._number, self._sync_due = 0, 0.0
        self._ended, self._writing = threading.Event(), threading.Lock()
        self._over = self._lost = False

    def put(self, logged: Logged) -> None:
        """The last points of an attempt that is over."""
        self._waiting.append(logged)
        self._ended.set()

    def run(self) -> None:
        """The thread."""
        while not self._over:
            if self._ended.wait(WRITE_EVERY_S) and not self._over:
                time.sleep(SOON_S)
            self._ended.clear()
            self.write()

    def write(self, *, sync: bool = False) -> None:
        """Write what there is, from any thread. ``sync``: also to a store without append, now."""
        with self._writing:
            self._write(sync)

    def _write(self, sync: bool) -> None:
        self._waiting.extend(self._look())
        lines = b"".join(self._waiting.popleft().line() for _ in range(len(self._waiting)))
        if self._lost or not (lines or self._file):
            return
        with suppress(StorageFull, OSError):
            try:
                if lines:
                    self._check()
                    self._append(lines)
                self._synced(sync)
            except OwnerLost:
                self._lost = True

    def _append(self, lines: bytes) -> None:
        if self._file is None or self._file.length > SEGMENT_BYTES[self._file.immediate]:
            before, self._number = self._file, self._number + 1
            if before is not None:
                before.close()
            self._file = self._files.grow(f"{self._path}/{self._number:06}.jsonl")
        self._file.append(lines)

    def _synced(self, now: bool) -> None:
        began = time.monotonic()
        if self._file is not None and not self._file.immediate and (now or began >= self._sync_due):
            self._file.sync()
            self._sync_due = time.monotonic() + max(SYNC_EVERY_S, (time.monotonic() - began) / SHARE)

    def close(self) -> None:
        """End the thread after a last write."""
        self._over = True
        self._ended.set()
        if self.is_alive():
            self.join()
        self.write(sync=True)
        if self._file is not None:
            with suppress(StorageFull, OSError):
                self._file.close()
            self._file = None


__all__ = ["LiveWriter"]
