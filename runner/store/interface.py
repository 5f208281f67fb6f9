"""What the runner asks of a place for files: ``LocalFiles`` and ``ObjectFiles`` offer it."""

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
    """What the store asks of a file system. Paths are relative to ``root``, with ``/``."""

    root: str

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of a file; raises FileNotFoundError."""
        ...

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a whole file: a reader sees the old one or the new one. ``durable``: also after a loss of power."""
        ...

    def writing(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """As a durable ``put``, of what is written to a stream: it is the file when the block ends without an error."""
        ...

    def claim(self, path: str, data: bytes) -> bool:
        """Write a whole file where there is none; False where there is one."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        ...

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; none when it does not exist. Unfinished files of ours are left out."""
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
        """Bytes that can still be written; None where nobody can say."""
        ...

    def at(self, path: str) -> Files:
        """The files below a folder."""
        ...

    def check_there(self, path: str = "") -> None:
        """Make sure that a file is there that always is, by default the root, where that costs nothing. Raises ``FolderGone``."""
        ...

    def private(self) -> Files:
        """The same files; new ones are for their user alone, and a root that is gone is an error, ``FolderGone``."""
        ...
