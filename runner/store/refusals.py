"""The errors of a storage: full, unreachable, removed, unknown."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...compiler.errors import QdrunError

FULL = (errno.ENOSPC, errno.EDQUOT)
AWAY = (
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EREMOTEIO,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOTCONN,
    errno.ENOLINK,
)
"""Error numbers of a network disk with an unreachable server, which a local disk raises occasionally."""


class StorageFull(QdrunError, OSError):
    """The storage of the run is full. Nothing that was written before is lost; unwritten data waits."""

    until = "there is room"
    """The awaited condition, for messages."""


class StorageUnreachable(StorageFull):
    """The store does not answer, or refuses access. A running run waits, as for a full disk."""

    until = "the store answers"


class FolderGone(QdrunError, OSError):
    """The folder of a run is not there any more. Nothing waits for it to come back: a new one would be no run."""

    exit_code = 5


class StorageUnknown(QdrunError, ValueError):
    """A URI names a file system that is not installed, or a file system or a bucket that does not exist."""


@contextmanager
def full_said(where: str) -> Iterator[None]:
    """Turn errors of a full disk, of whatever library, into ``StorageFull``; those of one that is away into ``StorageUnreachable``."""
    try:
        yield
    except OSError as error:
        if error.errno in AWAY and not isinstance(error, StorageFull):
            raise StorageUnreachable(
                f"the disk of {where} does not answer: {os.strerror(error.errno)}\n"
                "  do: look at the disk, or at the server that it is mounted from; a run that still runs waits for it"
            ) from error
        if error.errno not in FULL or isinstance(error, StorageFull):
            raise
        raise StorageFull(
            f"no room left in {where}: {os.strerror(error.errno or 0)}\n"
            "  do: make room there; a running run continues automatically; resume a stopped one with `qdrun resume`"
        ) from error


def folder_gone(folder: str) -> FolderGone:
    """The message about a removed run folder."""
    return FolderGone(
        f"the folder {folder} is gone: it was removed or renamed while it was in use; nothing more is written there\n"
        "  do: put it back and go on with `qdrun resume`, or submit again"
    )
