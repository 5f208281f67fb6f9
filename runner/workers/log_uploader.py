"""Copies the logs of a process into the run while they grow, where the run is on an object store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

LOOK_EVERY_S = 0.5
UPLOAD_EVERY_S = 5.0
UPLOAD_SHARE = 0.1
"""Maximum fraction of time for uploads: a slow store is written to less often."""


class Uploader(threading.Thread):
    """Looks at files now and then, from a thread of its own.

    Args:
        files: by the path that they have in the run.
        upload: writes a file into the run.
    """

    def __init__(self, files: Mapping[str, Path], upload: Callable[[str, bytes], None]) -> None:
        super().__init__(name="log uploader", daemon=True)
        self._files, self._upload = files, upload
        self._sent: dict[str, tuple[int, int]] = {}
        self._due, self._over = 0.0, threading.Event()

    def run(self) -> None:
        """The thread."""
        while not self._over.wait(LOOK_EVERY_S):
            self.look()

    def look(self, *, now: bool = False) -> None:
        """Upload what has changed when it is time, or ``now``. What finds no room is tried again at the next look."""
        began = time.monotonic()
        if began < self._due and not now:
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


__all__ = ["Uploader"]
