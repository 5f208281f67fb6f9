"""What a place says that takes or gives no bytes: full, away, gone, unknown."""

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
"""What a disk that is mounted over a network says while its server is away, and one of this machine now and then."""


class StorageFull(QdrunError, OSError):
    """There is no room where the run is stored. Nothing that was written before is lost; what could not be written waits."""

    until = "there is room"
    """What is waited for, for messages."""


class StorageUnreachable(StorageFull):
    """The store does not answer, or refuses who asks. A run that goes on does what it does on a full disk: it keeps and waits."""

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
            "  do: make room there; a run that still runs goes on by itself, another one with `qdrun resume`"
        ) from error


def folder_gone(folder: str) -> FolderGone:
    """What is said of a run's folder that is not there any more."""
    return FolderGone(
        f"the folder {folder} is gone: it was removed or renamed while it was in use; nothing more is written there\n"
        "  do: put it back and go on with `qdrun resume`, or submit again"
    )
