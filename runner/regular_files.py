"""Opens the files of run folders for reading, and nothing else in their place: a named pipe would be waited for, a device is endless.

Anybody may have put something into a folder of runs; a list of runs shows it as damage of the one run, and reads the others.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

from ..compiler.errors import QdrunError

MOST_BYTES = {".json": 256 << 20, ".jsonl": 1 << 30, ".yaml": 64 << 20, ".cut": 256 << 20}
"""The largest file of each kind that is read whole: documents, and lists of lines, of which the journal has several."""
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class NoFile(QdrunError, OSError, ValueError):
    """In the place of a file lies something that cannot be read as one: a pipe, a device, a folder, a file without end."""


def open_regular(path: str) -> IO[bytes]:
    """Open a file, without waiting for anything.

    Raises:
        NoFile: something else lies there.
        FileNotFoundError, OSError: as ``open``.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _no_file(path, "a link to itself") from error
        if error.errno == errno.ENXIO:
            raise _no_file(path, "a socket") from error
        raise
    try:
        kind = stat.S_IFMT(os.fstat(number).st_mode)
        if kind != stat.S_IFREG:
            raise _no_file(path, KINDS.get(kind, "something else"))
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def check_size(path: str, stream: IO[bytes]) -> None:
    """Refuse to read a file whole that is larger than one of its kind can be.

    Raises:
        NoFile: it is.
    """
    size, most = os.fstat(stream.fileno()).st_size, MOST_BYTES.get(os.path.splitext(path)[1])
    if most is not None and size > most:
        raise _no_file(path, f"{size:,} bytes long, where at most {most:,} can be")


def _no_file(path: str, what: str) -> NoFile:
    return NoFile(f"{path} is damaged: it is {what}\n  do: remove it; `qdrun results` shows what is left of the run")


__all__ = ["NoFile", "check_size", "open_regular"]
