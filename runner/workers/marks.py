"""Records the launch that each lane began last, in a small file on the host. It survives a crash of the worker and names the suspects.

A mark is one write into the page cache (about a microsecond) in front of each launch. A file that can no longer be written is removed: an
unknown launch is better than a wrong one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NAME = "begun"
LINE, WIDTH = b"%19d\n", 20


class Marks:
    """The file, open for writing. ``path``: where it is; empty when it could not be made."""

    def __init__(self, folder: Path, lanes: int) -> None:
        self.path, self._file = str(folder / NAME), -1
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(self._file, b"".join(_line(0) for _ in range(lanes)))
        except OSError:  # no room
            self._give_up()

    def begin(self, lane: int, launch: int) -> None:
        """A lane begins with a launch of that number."""
        if self._file >= 0:
            try:
                os.pwrite(self._file, _line(launch), lane * WIDTH)
            except OSError:
                self._give_up()

    def _give_up(self) -> None:
        with suppress(OSError):
            os.unlink(self.path)
        self.close()
        self.path = ""

    def close(self) -> None:
        """The file stays."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _line(launch: int) -> bytes:
    return LINE % launch


def last_begun(path: str) -> frozenset[int] | None:
    """The launches that the lanes of a worker began last; None if the file is damaged or not on this host."""
    try:
        lines = Path(path).read_bytes().splitlines()
        return frozenset(int(line) for line in lines) - {0} if lines else None
    except (OSError, ValueError):
        return None


__all__ = ["Marks", "last_begun"]
