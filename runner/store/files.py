"""Files on any fsspec file system: atomic whole files, append-only files, and the handling of a full disk.

Locally a whole file is written beside its place, synced and renamed, and a growing file is appended to. Object stores have neither
rename nor append: an object appears whole, so a growing file is an object that is written again, longer, at each ``sync``.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from ..regular_files import NoFile, check_size, open_regular
from .interface import (
    Files,
    FolderGone,
    Growing,
    StorageBroken,
    StorageDenied,
    StorageFull,
    StorageLost,
    StorageUnknown,
    StorageUnreachable,
    folder_gone,
    full_said,
)
from .objects import ObjectFiles

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def escaped(name: str) -> str:
    """``name`` as one component of a path, whatever it holds; a name of letters, digits, ``-``, ``_`` and ``.`` stays as it is."""
    text = quote(name, safe="", errors="backslashreplace").replace("~", "%7E")
    text = "%2E" + text[1:] if text.startswith(".") else text
    return (
        text
        if 0 < len(text) <= 200
        else f"{text[:160]}%{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"
    )


PARTIAL = ".partial"
LEFT_S = 600.0
"""What was not written to for so long belongs to no process that still writes."""
SHARED, SHARED_S = (".heartbeat.json.", ".labels.json."), 60.0
"""Files that other processes and threads may be writing at any time: what they left unfinished is removed after so many seconds."""


class LocalFiles:
    """Files of this machine, or of a mounted disk."""

    def __init__(self, root: str, *, own: bool = False) -> None:
        """``own``: files of a run, which only this user may read; the root is never created."""
        self.root, self.own = root, own
        self._mode, self._folder_mode = (0o600, 0o700) if own else (0o666, 0o777)

    def private(self) -> LocalFiles:
        """See ``Files``."""
        return LocalFiles(self.root, own=True)

    def check_there(self, path: str = "") -> None:
        """See ``Files``."""
        try:
            os.stat(self._path(path))
        except FileNotFoundError:
            raise folder_gone(self.root) from None
        except OSError:  # it may come back: the next write tells
            return

    def make_folder(self, path: str) -> Path:
        """The folder at a path, which is made where it is not there.

        Raises:
            FolderGone: the files are those of a run, whose folder is gone: it is not made again.
            OSError: no room, or another reason.
        """
        folder = self._path(path)
        self._make_folder(folder, durable=False)
        return Path(folder)

    def _make_folder(self, folder: str, durable: bool) -> None:
        _make_folder(folder, durable, self._folder_mode, os.path.normpath(self.root) if self.own else "")

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See ``Files``."""
        with full_said(self.root), open_regular(self._path(path)) as stream:
            if end is None:
                check_size(path, stream)
            stream.seek(start)
            return stream.read() if end is None else stream.read(end - start)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """See ``Files``."""
        with full_said(self.root):
            target = self._path(path)
            partial = self._partial(target, data, durable)
            try:
                os.replace(partial, target)
            except OSError:
                _forget(partial)
                raise
            if durable:
                _sync_folder(os.path.dirname(target))

    def _partial(self, target: str, data: bytes, durable: bool) -> str:
        """Write the bytes beside ``target``; when there is no room, leave nothing behind."""
        folder, name = os.path.split(target)
        self._make_folder(folder, durable)
        _forget_left(folder or ".", name)
        partial = os.path.join(folder, f".{name}.{secrets.token_hex(4)}{PARTIAL}")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode)
        try:
            try:
                _write_all(file, data)
                if durable:
                    os.fsync(file)
            finally:
                os.close(file)
        except OSError:
            _forget(partial)
            raise
        return partial

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """See ``Files``."""
        target = self._path(path)
        with full_said(self.root):
            partial = self._partial(target, b"", durable=False)
            file = os.open(partial, os.O_WRONLY)
            try:
                try:
                    with io.BufferedWriter(_Out(file), 1 << 20) as stream:
                        yield stream
                    os.fsync(file)
                finally:
                    os.close(file)
                os.replace(partial, target)
            except BaseException:
                _forget(partial)
                raise
            _sync_folder(os.path.dirname(target) or ".")

    def claim(self, path: str, data: bytes) -> bool:
        """See ``Files``. Atomic by a hard link to a finished file; on file systems without links the file is created, then written."""
        with full_said(self.root):
            target = self._path(path)
            partial = self._partial(target, data, durable=True)
            try:
                os.link(partial, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                if not _made(target, data, self._mode):
                    return False
            finally:
                _forget(partial)
            _sync_folder(os.path.dirname(target))
            return True

    def exists(self, path: str) -> bool:
        """See ``Files``."""
        return os.path.lexists(self._path(path))  # a link to itself stands for a damaged file

    def names(self, path: str) -> list[str]:
        """See ``Files``."""
        try:
            with full_said(self.root):
                return sorted(name for name in os.listdir(self._path(path)) if not name.endswith(PARTIAL))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, path: str) -> dict[str, int]:
        """See ``Files``."""
        found = {}
        for name in self.names(path):
            full = self._path(f"{path}/{name}")
            if os.path.isfile(full):
                found[name] = os.path.getsize(full)
        return found

    def below(self, path: str) -> dict[str, int]:
        """See ``Files``."""
        found = {}
        for folder, _, names in os.walk(self._path(path)):
            inside = os.path.relpath(folder, self.root or ".").replace(os.sep, "/")
            for name in names:
                with suppress(OSError):  # it was there a moment ago, or is a link to itself
                    found[f"{inside}/{name}"] = os.path.getsize(os.path.join(folder, name))
        return found

    def remove(self, path: str) -> None:
        """See ``Files``."""
        with full_said(self.root):
            _forget(self._path(path))

    def sweep(self, path: str, name: str = "") -> int:
        """See ``Files``."""
        count = 0
        for folder, below, names in os.walk(self._path(path)):
            found = [one for one in names if one.startswith(f".{name}") and one.endswith(PARTIAL)]
            for one in found:
                place = os.path.join(folder, one)
                if not one.startswith(SHARED) or time.time() - _changed(place) > SHARED_S:
                    with full_said(self.root):
                        _forget(place)
                    count += 1
            if name:
                below.clear()
        return count

    def grow(self, path: str) -> Growing:
        """See ``Files``."""
        with full_said(self.root):
            self._make_folder(os.path.dirname(self._path(path)), durable=True)
            return _LocalGrowing(self._path(path), self._mode)

    def touch(self, path: str) -> None:
        """See ``Files``."""
        if self.exists(path):
            os.utime(self._path(path))

    def changed(self, path: str) -> float:
        """See ``Files``."""
        try:
            return os.stat(self._path(path)).st_mtime
        except FileNotFoundError:
            return 0.0

    def free_bytes(self) -> int | None:
        """See ``Files``: on the disk of the nearest folder that exists."""
        folder = Path(self.root).absolute()
        while not folder.exists():
            folder = folder.parent
        with full_said(self.root):
            found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def at(self, path: str) -> LocalFiles:
        """See ``Files``."""
        return LocalFiles(self._path(path), own=self.own)


class _Out(io.RawIOBase):
    """A file that is open for writing, as a stream."""

    def __init__(self, file: int) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return os.write(self._file, data)


class _LocalGrowing:
    """A file of this machine that only grows."""

    immediate = True

    def __init__(self, path: str, mode: int) -> None:
        self.path, self.length = path, 0
        self._torn = self._unsynced = self._stale = False
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, mode)
        _sync_folder(os.path.dirname(path))

    def append(self, data: bytes) -> None:
        """See ``Growing``. What a full disk tore is cut off again; where that fails too, the next line begins on a line of its own."""
        with full_said(os.path.dirname(self.path)):
            self._fresh()
            if not os.fstat(self._file).st_nlink:
                raise folder_gone(os.path.dirname(os.path.dirname(self.path)))
            try:
                _write_all(self._file, b"\n" + data if self._torn else data)
            except OSError as error:
                self._stale = error.errno == errno.ESTALE
                self._cut()
                raise
        self.length += len(data) + self._torn
        self._torn, self._unsynced = False, True

    def _fresh(self) -> None:
        """Open the file again where its server has forgotten it: half a line, which came through, is cut off."""
        if self._stale:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            os.close(self._file)
            self._file, self._stale, self._torn = file, False, False
            os.ftruncate(file, self.length)

    def _cut(self) -> None:
        try:
            os.ftruncate(self._file, self.length)
        except OSError:
            if not self._stale:
                self.length, self._torn = os.fstat(self._file).st_size, True

    def sync(self) -> None:
        """See ``Growing``."""
        if self._unsynced:
            with full_said(os.path.dirname(self.path)):
                self._fresh()
                try:
                    os.fsync(self._file)
                except OSError as error:
                    self._stale = error.errno == errno.ESTALE
                    raise
            self._unsynced = False

    def close(self) -> None:
        """See ``Growing``."""
        try:
            self.sync()
        finally:
            os.close(self._file)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _make_folder(folder: str, durable: bool, mode: int, root: str = "") -> None:
    """``os.makedirs`` that syncs the folder above each new one. ``root``: is not made, and nothing above it.

    Raises:
        FolderGone: there is no root.
    """
    if not folder or os.path.isdir(folder):
        return
    if root and os.path.normpath(folder) == root:
        raise folder_gone(root)
    above = os.path.dirname(folder)
    _make_folder(above, durable, mode, root)
    try:
        os.mkdir(folder, mode)
    except FileExistsError:
        return
    except FileNotFoundError:  # it was removed meanwhile
        raise folder_gone(root or above) from None
    if durable:
        _sync_folder(above or ".")


def _sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _made(path: str, data: bytes, mode: int) -> bool:
    """Make a file where there is none and write it."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return False
    try:
        _write_all(file, data)
        os.fsync(file)
    finally:
        os.close(file)
    return True


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return float("inf")


def _forget_left(folder: str, name: str) -> None:
    """Remove what processes that were killed have left of a file. The disk decides whether that works; the file itself matters more."""
    with suppress(OSError):
        for one in os.listdir(folder):
            if one.startswith(f".{name}.") and one.endswith(PARTIAL):
                place = os.path.join(folder, one)
                if time.time() - _changed(place) > LEFT_S:
                    _forget(place)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def open_files(uri: str | os.PathLike[str]) -> Files:
    """The files at a local path or at any fsspec URI (``memory://runs``, ``s3://bucket/runs``).

    Raises:
        StorageUnknown: no such file system, or it is not installed.
    """
    text = os.fspath(uri)
    if "\0" in text:
        raise StorageUnknown(f"{text!r} is no path: it has a NUL in it\n  do: write `storage`, or --output, without it")
    if "://" not in text or text.startswith(("file://", "local://")):
        return LocalFiles(os.path.expanduser(text.removeprefix("file://").removeprefix("local://")))
    import fsspec

    try:
        system, base = fsspec.core.url_to_fs(text)
    except Exception as error:  # each of fsspec's file systems has its own ways to refuse a URI
        raise StorageUnknown(
            f"cannot open {text}: {type(error).__name__}: {error}\n"
            "  do: use a local folder, or install the file system: `pip install s3fs` for s3://"
        ) from error
    return ObjectFiles(system, base, text)


__all__ = [
    "PARTIAL",
    "Files",
    "FolderGone",
    "Growing",
    "LocalFiles",
    "NoFile",
    "StorageBroken",
    "StorageDenied",
    "StorageFull",
    "StorageLost",
    "StorageUnknown",
    "StorageUnreachable",
    "escaped",
    "folder_gone",
    "full_said",
    "open_files",
]
