"""Files of an object store, or of anything else that fsspec opens."""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from .interface import Growing, StorageBroken, StorageDenied, StorageFull, StorageUnknown, StorageUnreachable, full_said

BUCKETS = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"))
"""File systems whose first folder is a bucket. One that is not there is a slip of the pen, which fsspec would make come true."""
SETTLE_S = 2.0
"""Maximum seconds from the check of a claim to its write, in a store that cannot refuse to overwrite."""
_ANSWERS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
"""Errors by which a store says how things are: it was reached."""


@contextmanager
def reached(root: str) -> Iterator[None]:
    """Convert errors of a store's library about a missing answer or missing permission to ``StorageUnreachable``.

    Some of that is no OSError: botocore has errors of its own. Programming errors (TypeError and the like) are not converted.
    """
    try:
        with full_said(root):
            yield
    except (StorageDenied, StorageBroken) as error:  # said by a disk: a store of objects has other reasons
        raise _unreachable(root, error.__cause__ or error) from error.__cause__
    except (StorageFull, StorageUnknown, *_ANSWERS):
        raise
    except Exception as error:
        if type(error).__module__ == "builtins" and not isinstance(error, OSError):
            raise
        raise _unreachable(root, error) from error


def _unreachable(root: str, error: BaseException) -> StorageUnreachable:
    return StorageUnreachable(
        f"{root} does not answer, or refuses: {type(error).__name__}: {error}\n"
        "  do: look at the URI, at the network, and at the credentials (for s3://: AWS_PROFILE, or AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY; AWS_ENDPOINT_URL for a store that is not Amazon's)"
    )


class ObjectFiles:
    """Files of an object store, or of anything else that fsspec opens: every file is written whole."""

    def __init__(self, system: Any, base: str, root: str) -> None:
        self.system, self.base, self.root = system, base.rstrip("/"), root.rstrip("/")

    def _path(self, path: str) -> str:
        return f"{self.base}/{path}" if path else self.base

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See ``Files``."""
        whole = start == 0 and end is None
        with reached(self.root):
            try:
                return self.system.cat_file(self._path(path), **({} if whole else {"start": start, "end": end}))
            except OSError as error:
                if error.errno != errno.EINVAL or whole or start < self._size(path):
                    raise
                return b""  # S3 refuses a range that begins where the object ends

    def _size(self, path: str) -> int:
        self.system.invalidate_cache(self._path(path))
        return self.system.info(self._path(path))["size"]

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """See ``Files``."""
        self._pipe(path, data)

    def _pipe(self, path: str, data: bytes, **how: Any) -> None:
        with reached(self.root):
            try:
                self.system.pipe_file(self._path(path), data, **how)
            except FileNotFoundError as error:  # a file system that has folders, sftp for one
                protocol = self.system.protocol
                if not BUCKETS.isdisjoint((protocol,) if isinstance(protocol, str) else protocol):
                    raise StorageUnknown(
                        f"there is no bucket `{self.base.partition('/')[0]}` for {self.root}: {error}\n"
                        "  do: create it first, or set `storage` to an existing one"
                    ) from error
                self.system.makedirs(self._path(path).rpartition("/")[0], exist_ok=True)
                self.system.pipe_file(self._path(path), data, **how)

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """See ``Files``: kept in a file of this machine until it is whole."""
        with tempfile.NamedTemporaryFile() as stream:
            yield stream
            stream.flush()
            with reached(self.root):
                self.system.put_file(stream.name, self._path(path))

    def claim(self, path: str, data: bytes) -> bool:
        """See ``Files``.

        A second attempt detects a store that overwrites in spite of the condition. There the last of concurrent claims wins, and each
        claimant waits ``SETTLE_S`` before it reads the winner.
        """
        if self.exists(path):
            return False
        try:
            self._pipe(path, data, mode="create")
        except FileExistsError:  # perhaps by us: an answer that was lost makes a library ask again
            return self.read(path) == data
        try:
            self._pipe(path, data, mode="create")
        except FileExistsError:
            return self.read(path) == data
        time.sleep(SETTLE_S)
        return self.read(path) == data

    def exists(self, path: str) -> bool:
        """See ``Files``. Asks the store, not a cached listing."""
        try:
            self.read(path, 0, 1)
        except FileNotFoundError:
            return False
        return True

    def _listed(self, path: str) -> list[dict[str, Any]]:
        self.system.invalidate_cache(self._path(path))
        try:
            with reached(self.root):
                found = self.system.ls(self._path(path), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [entry for entry in found if entry["name"].strip("/") != self._path(path).strip("/")]

    def names(self, path: str) -> list[str]:
        """See ``Files``."""
        return sorted(entry["name"].rstrip("/").rpartition("/")[2] for entry in self._listed(path))

    def sizes(self, path: str) -> dict[str, int]:
        """See ``Files``."""
        return {entry["name"].rpartition("/")[2]: entry["size"] for entry in self._listed(path) if entry["type"] == "file"}

    def below(self, path: str) -> dict[str, int]:
        """See ``Files``: one listing, a request for a thousand files."""
        self.system.invalidate_cache(self._path(path))
        with reached(self.root):
            found = self.system.find(self._path(path), detail=True)
        skip = len(self.base.strip("/")) + 1
        return {name.strip("/")[skip:]: entry["size"] for name, entry in found.items()}

    def remove(self, path: str) -> None:
        """See ``Files``."""
        if self.exists(path):
            with reached(self.root):
                self.system.rm_file(self._path(path))

    def sweep(self, path: str, name: str = "") -> int:
        """See ``Files``: objects are atomic."""
        return 0

    def grow(self, path: str) -> Growing:
        """See ``Files``."""
        if self.exists(path):
            raise FileExistsError(path)
        return _ObjectGrowing(lambda data: self.put(path, data))

    def touch(self, path: str) -> None:
        """See ``Files``: an object store has no way to say it."""

    def changed(self, path: str) -> float:
        """See ``Files``: clocks of stores are not ours."""
        return 0.0

    def free_bytes(self) -> int | None:
        """See ``Files``."""
        return None

    def check_there(self, path: str = "") -> None:
        """See ``Files``: a store has no folders."""

    def private(self) -> ObjectFiles:
        """See ``Files``: the bucket defines the permissions of objects."""
        return self

    def at(self, path: str) -> ObjectFiles:
        """See ``Files``."""
        return ObjectFiles(self.system, self._path(path), f"{self.root}/{path}")


class _ObjectGrowing:
    """An object that is written again, longer, at each sync."""

    immediate = False

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put, self._data, self._written = put, bytearray(), 0

    @property
    def length(self) -> int:
        """Bytes appended so far."""
        return len(self._data)

    def append(self, data: bytes) -> None:
        """See ``Growing``."""
        self._data += data

    def sync(self) -> None:
        """See ``Growing``."""
        if self._written < len(self._data):
            self._put(bytes(self._data))
            self._written = len(self._data)

    def close(self) -> None:
        """See ``Growing``."""
        self.sync()
