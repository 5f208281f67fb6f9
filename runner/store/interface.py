"""The file operations of the store, which ``LocalFiles`` and ``ObjectFiles`` implement."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import IO, Protocol


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
