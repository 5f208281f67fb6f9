"""Looks after the log of a process while it grows: it stays below a limit, and where the run is on an object store, it is there, too.

What goes to the descriptors 1 and 2 is written by whoever has them, in C too, and past this process's Python. So nothing can be refused;
a file that has become too long loses its middle: its beginning and its end say most.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ..store.attempts import LOG_BYTES

LOOK_EVERY_S = 0.1
"""A disk takes a GB a second: a log may be above its limit by what is written between two looks."""
UPLOAD_EVERY_S = 5.0
UPLOAD_SHARE = 0.1
"""Of the time: a slow store is written to less often."""


def cut(path: Path, limit: int, dropped: int = 0) -> int:
    """Take the middle out of a log that is longer than ``limit``: a quarter of the limit stays of its beginning and of its end.

    Others append to it meanwhile; what they write at this moment may be lost. ``dropped``: what was taken out before. Gives what has been
    taken out in all.

    Raises:
        OSError: there is no room for the end; the beginning is kept.
    """
    keep = limit // 4
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= limit:
            return dropped
        file.seek(size - keep)
        last = file.read()
        dropped += size - 2 * keep
        file.truncate(keep)
    with open(path, "ab") as file:
        file.write(f"\n[{dropped} bytes were dropped here: the log was full]\n".encode() + last)
    return dropped


class Keeper(threading.Thread):
    """Looks at files now and then, from a thread of its own.

    Args:
        files: by the path that they have in the run.
        upload: to write a file into the run; None where they lie there.
        limit: bytes of each file, but for what is written between two looks.
    """

    def __init__(
        self, files: Mapping[str, Path], upload: Callable[[str, bytes], None] | None = None, limit: int = LOG_BYTES
    ) -> None:
        super().__init__(name="log keeper", daemon=True)
        self._files, self._upload, self._limit = files, upload, limit
        self._dropped: dict[str, int] = {}
        self._sent: dict[str, tuple[int, int]] = {}
        self._due, self._over = 0.0, threading.Event()

    def run(self) -> None:
        """The thread."""
        while not self._over.wait(LOOK_EVERY_S):
            self.look()

    def look(self, *, now: bool = False) -> None:
        """Cut what is too long; upload what has changed when it is time, or ``now``. What finds no room is tried again at the next look."""
        for name, path in self._files.items():
            with suppress(OSError):
                if path.stat().st_size > self._limit:
                    self._dropped[name] = cut(path, self._limit, self._dropped.get(name, 0))
        began = time.monotonic()
        if self._upload is None or (began < self._due and not now):
            return
        for name, path in self._files.items():
            with suppress(OSError):
                seen = path.stat()
                version = (seen.st_size, seen.st_mtime_ns)
                if seen.st_size and version != self._sent.get(name):
                    self._upload(name, path.read_bytes())
                    self._sent[name] = version
        self._due = time.monotonic() + max(UPLOAD_EVERY_S, (time.monotonic() - began) / UPLOAD_SHARE)

    def close(self) -> None:
        """End the thread; a last look."""
        self._over.set()
        if self.is_alive():
            self.join()
        self.look(now=True)


__all__ = ["Keeper", "cut"]
