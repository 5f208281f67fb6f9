"""The file operations of the store, which ``LocalFiles`` and ``ObjectFiles`` implement, and the errors by which a store refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Protocol

from ...compiler.errors import QdrunError
from ..exit_codes import RESUMABLE


class Growing(Protocol):
    """A file that only grows, with one writer."""

    immediate: bool
    """Whether ``append`` reaches the file; else ``sync`` does."""

    @property
    def length(self) -> int:
        """Bytes appended so far."""
        ...

    def append(self, data: bytes) -> None:
        """Add bytes at the end: all of them, or none and ``StorageFull``."""
        ...

    def sync(self) -> None:
        """Make what was appended survive a loss of power."""
        ...

    def close(self) -> None:
        """Sync and let go."""
        ...


class Files(Protocol):
    """The operations of a file system that the store uses. Paths are relative to ``root``, with ``/``."""

    root: str

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of a file; raises FileNotFoundError."""
        ...

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a whole file: a reader sees the old one or the new one. ``durable``: also after a loss of power."""
        ...

    def writing(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """A durable ``put`` from a stream: its content becomes the file when the block ends without an error."""
        ...

    def claim(self, path: str, data: bytes) -> bool:
        """Write a whole file where there is none; False where there is one."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        ...

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; none if it does not exist. Unfinished files of the store are left out."""
        ...

    def sizes(self, path: str) -> dict[str, int]:
        """Bytes of the files in a folder, by name."""
        ...

    def below(self, path: str) -> dict[str, int]:
        """Bytes of all files below a folder, at any depth, by their path."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file that may not be there."""
        ...

    def sweep(self, path: str, name: str = "") -> int:
        """Remove what processes that write no more left unfinished: of the file ``name`` in a folder, or all below it; how many."""
        ...

    def grow(self, path: str) -> Growing:
        """A new growing file; raises FileExistsError."""
        ...

    def touch(self, path: str) -> None:
        """Mark a file as changed now, without room for a new one."""
        ...

    def changed(self, path: str) -> float:
        """When a file was last changed, in seconds since the epoch; 0 when that is not known."""
        ...

    def free_bytes(self) -> int | None:
        """Free bytes; None if unknown."""
        ...

    def at(self, path: str) -> Files:
        """The files below a folder."""
        ...

    def check_there(self, path: str = "") -> None:
        """Check that a permanent file exists, by default the root, if the check is cheap. Raises ``FolderGone``."""
        ...

    def private(self) -> Files:
        """The same files, with new files private to this user, and with ``FolderGone`` if the root was removed."""
        ...


FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""The disk was mounted read-only after an error, or its server refuses this user, for a while."""
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""This process, or this machine, has too many open files, or no memory."""
ANSWERS = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY)
"""A store says how things are: it was reached."""
NEVER = (
    *(errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.ELOOP, errno.ENOSYS, errno.EOPNOTSUPP, errno.EILSEQ),
    *(errno.EBADF, errno.EXDEV, errno.EMLINK, errno.EFAULT),
)
"""Nothing that could be waited for mends these. Every other error number is of a disk that is away: EIO, ESTALE, ETIMEDOUT, ENODEV .."""
RESUMES = "a run that still runs waits for it; `qdrun resume` continues one that has ended"


class StorageFull(QdrunError, OSError):
    """The storage of the run is full. Nothing that was written before is lost; unwritten data waits."""

    until = "there is room"
    """The awaited condition, for messages."""


class StorageUnreachable(StorageFull):
    """The store does not answer, or refuses access. A running run waits, as for a full disk."""

    until = "the store answers"


class StorageDenied(StorageUnreachable):
    """The store takes nothing from this user now: it is mounted read-only, or its permissions have changed."""

    until = "the store can be written again"


class StorageBroken(QdrunError, OSError):
    """The store cannot do what it was asked for, and waiting does not help: a name that is too long, a file that is too large."""

    exit_code = RESUMABLE


class StorageLost(QdrunError, OSError):
    """A run ends because its store has not taken its lines in time, or because the user does not want to wait. It can be resumed."""

    exit_code = RESUMABLE


class FolderGone(QdrunError, OSError):
    """The folder of a run is not there any more. Nothing waits for it to come back: a new one would be no run."""

    exit_code = 5


class StorageUnknown(QdrunError, ValueError):
    """A URI names a file system that is not installed, or a file system or a bucket that does not exist."""


@contextmanager
def full_said(where: str) -> Iterator[None]:
    """Turn errors of a disk, of whatever library, into ``StorageFull`` and its kinds, by their number; ``ANSWERS`` stay as they are."""
    try:
        yield
    except OSError as error:
        if isinstance(error, QdrunError) or error.errno is None or error.errno in ANSWERS:
            raise
        raise _refusal(where, error.errno) from error


def _refusal(where: str, number: int) -> QdrunError:
    why = os.strerror(number)
    if number in FULL:
        return StorageFull(
            f"no room left in {where}: {why}\n"
            "  do: make room there; a running run continues automatically; resume a stopped one with `qdrun resume`"
        )
    if number in NEVER:
        return StorageBroken(
            f"the disk of {where} cannot do that: {why}\n"
            f"  do: move the folder to another disk, or shorten its path, then `qdrun resume {where}`"
        )
    if number in DENIED:
        return StorageDenied(f"{where} cannot be used: {why}\n  do: see how its disk is mounted, and who owns it; {RESUMES}")
    if number in SCARCE:
        return StorageUnreachable(f"no file of {where} can be opened: {why}\n  do: raise the limit (`ulimit -n`); {RESUMES}")
    return StorageUnreachable(
        f"the disk of {where} does not answer: {why}\n"
        f"  do: look at the disk, or at the server that it is mounted from; {RESUMES}"
    )


def why_of(error: OSError) -> str:
    """The reason of an error in words, also of one that ``full_said`` has turned into one of ours."""
    own = error.__cause__ if isinstance(error, QdrunError) else error
    return (own.strerror if isinstance(own, OSError) else None) or str(error).partition("\n")[0]


def folder_gone(folder: str) -> FolderGone:
    """The message about a removed run folder."""
    return FolderGone(
        f"the folder {folder} is gone: it was removed or renamed while it was in use; nothing more is written there\n"
        "  do: put it back and go on with `qdrun resume`, or submit again"
    )
