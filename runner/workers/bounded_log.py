"""Copies pipes into files of limited size: the logs of a worker's process.

The descriptors 1 and 2 are written by Python, by native code and by child processes. None of them can be stopped, and 100 MB arrive faster
than a poll. So a separate process reads the pipes: it needs no lock of the worker's interpreter, and outlives a worker that dies. A file
that is full loses its middle: its beginning and its end say most.

Runs as a script, without this package: ``bounded_log.py LIMIT DESCRIPTOR PATH [DESCRIPTOR PATH ..]``.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CHUNK = 1 << 16


class BoundedFile:
    """A file that is appended to and stays at most ``limit`` bytes long; what finds no room on the disk is dropped."""

    def __init__(self, path: str, limit: int) -> None:
        self._limit, self._dropped = limit, 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def chunk(self) -> int:
        """Maximum bytes of one write."""
        return min(CHUNK, max(1, self._limit // 4))

    def write(self, data: bytes) -> None:
        """Append at most ``chunk`` bytes."""
        with suppress(OSError):  # a full disk
            if os.fstat(self._file).st_size + len(data) > self._limit:
                self._cut()
            os.write(self._file, data)

    def _cut(self) -> None:
        """Take the middle out: a quarter of the limit stays of the beginning and of the end. Others may append meanwhile."""
        keep, size = self._limit // 4, os.fstat(self._file).st_size
        if size <= 2 * keep:
            return
        last = os.pread(self._file, keep, size - keep)
        self._dropped += size - keep - len(last)
        os.ftruncate(self._file, keep)
        os.write(self._file, f"\n[{self._dropped} bytes were dropped here: the log was full]\n".encode() + last)


def copy(limit: int, paths: Mapping[int, str]) -> None:
    """Copy from descriptors to the files at ``paths``, until all writers have closed them."""
    files = {number: BoundedFile(path, limit) for number, path in paths.items()}
    waiting = select.poll()
    for number in files:
        waiting.register(number, select.POLLIN)
    while files:
        for number, _ in waiting.poll():
            data = os.read(number, files[number].chunk)
            if data:
                files[number].write(data)
            else:
                waiting.unregister(number)
                del files[number]


def start(limit: int, paths: Mapping[int, Path]) -> subprocess.Popen[bytes]:
    """The process that copies; it has the descriptors from now on, and a session of its own: Ctrl-C is not meant for it."""
    words = [text for number, path in paths.items() for text in (str(number), str(path))]
    command = [sys.executable, "-I", "-S", __file__, str(limit), *words]
    nothing = subprocess.DEVNULL
    made = subprocess.Popen(
        command, pass_fds=tuple(paths), stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
    )
    for number in paths:
        os.close(number)
    return made


if __name__ == "__main__":
    copy(int(sys.argv[1]), {int(number): path for number, path in zip(sys.argv[2::2], sys.argv[3::2], strict=True)})
