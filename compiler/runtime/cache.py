"""Caches machine code by the text that it was compiled from: a table of loaded code in this process, backed by a folder on disk.

A file of the folder is an entry: a magic line, the SHA-256 of the key and of what follows, a JSON header, the object bytes. It is written
beside its place and moved there in one step, so a reader sees a whole entry or none. Whatever is wrong with an entry (cut short, damaged,
of another version, moved from another key), it is removed and the kernel compiled again.

A checksum finds damage, not malice: an entry holds machine code, which this process runs. So only files count that another user cannot have
written: the folder and each file must belong to this user or to root, and neither their group nor others may write to them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import QdrunError, QdrunRuntimeError
from ..ir.threads import Turns, new_lock
from . import jit
from .jit import LoadedCode

SIZE_LIMIT = 512 << 20
_MAGIC = b"qdrun object 2\n"
_SUFFIX = ".qdo"
_SWEEP_EVERY = 64  # one store in so many looks at the folder's size; at random, as most processes store a few entries alone
_STALE_SECONDS = 3600  # a temporary file older than this was left by a writer that died


class NoHome(QdrunError, RuntimeError):
    """This user has no home folder."""

    exit_code = 2


def home_folder() -> Path:
    """The home folder of this user.

    Raises:
        NoHome: ``HOME`` is not set, and the system does not know this user: in a container that runs as some number, say.
    """
    try:
        return Path.home()
    except RuntimeError as error:
        raise NoHome(
            f"there is no home folder: the variable HOME is not set, and user {os.getuid()} has no entry in /etc/passwd\n"
            "  do: set HOME to a folder of yours, as in `HOME=/tmp/me qdrun ..`"
        ) from error


def cache_dir() -> Path:
    """``$QDRUN_CACHE_DIR``, else ``$XDG_CACHE_HOME/qdrun``, else ``~/.cache/qdrun``."""
    own = os.environ.get("QDRUN_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home_folder() / ".cache") / "qdrun"


def key_of(*parts: str) -> str:
    """The key of everything that decides the object bytes. Lengths are hashed too, so parts cannot run into each other."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


class DiskCache:
    """One folder of compiled kernels, shared by any number of processes."""

    def __init__(self, folder: Path, size_limit: int = SIZE_LIMIT) -> None:
        self.folder, self.size_limit = folder, size_limit
        self._safe: bool | None = None  # unknown while there is no folder
        self._warned = False

    def path(self, key: str) -> Path:
        """The path of an entry."""
        return self.folder / key[:2] / (key + _SUFFIX)

    def get(self, key: str) -> tuple[bytes, dict[str, Any]] | None:
        """The object bytes and header of an entry; None when there is none, or none that is whole."""
        path = self.path(key)
        if not self._is_safe():
            return None
        try:
            with open(path, "rb") as f:
                if _danger(os.fstat(f.fileno())):
                    return None  # in a cache folder that other users can write to
                data = f.read()
        except OSError:
            return None
        entry = _decode(key, data)
        if entry is None:
            self.discard(key)
            return None
        try:
            os.utime(path)  # the sweep removes what was used longest ago
        except OSError:
            pass  # a folder that can only be read serves as well; nothing is swept there
        return entry

    def put(self, key: str, object_bytes: bytes, header: dict[str, Any]) -> None:
        """Store an entry. A folder that cannot be written is reported once and changes nothing else."""
        path = self.path(key)
        try:
            if self._safe is None:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_safe():
                return
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)  # only its owner can read or write it
            try:
                with os.fdopen(handle, "wb") as f:
                    f.write(_encode(key, object_bytes, header))
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            if secrets.randbelow(_SWEEP_EVERY) == 0:
                self.sweep()
        except OSError as e:
            self._warn(f"{self.folder} cannot be written ({e.strerror or e}); set QDRUN_CACHE_DIR to a folder that can")

    def _is_safe(self) -> bool:
        """Whether only this user can write to the folder. Otherwise a warning is issued once."""
        if self._safe is None:
            try:
                danger = _danger(os.stat(self.folder))
            except OSError:
                return True  # there is none yet: nothing is found in it, and ``put`` makes it
            self._safe = not danger
            if danger:
                self._warn(
                    f"{self.folder} {danger}, who could place machine code there that this process would run; "
                    f"`chmod go-w {self.folder}` after removing what lies in it, or set QDRUN_CACHE_DIR to a folder of your own"
                )
        return self._safe

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"compiled kernels are neither kept nor reused: {why}", RuntimeWarning, stacklevel=3)

    def discard(self, key: str) -> None:
        """Remove an entry if possible."""
        _remove(self.path(key))

    def sweep(self) -> None:
        """Bring the folder under its size limit, oldest use first, and remove what dead writers left."""
        entries: list[tuple[float, int, str]] = []
        for file in _files(self.folder):
            try:
                stat = file.stat()
            except OSError:
                continue  # another process removed it
            if file.name.endswith(_SUFFIX):
                entries.append((stat.st_mtime, stat.st_size, file.path))
            elif file.name.endswith(".tmp") and time.time() - stat.st_mtime > _STALE_SECONDS:
                _remove(file.path)
        excess = sum(size for _, size, _ in entries) - self.size_limit
        if excess <= 0:
            return
        excess += self.size_limit // 10  # leave room, so that the next store does not sweep again
        for _, size, path in sorted(entries, key=lambda e: e[0]):
            if excess <= 0:
                return
            _remove(path)
            excess -= size


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries in the folders of two letters. Uses ``os.scandir``: in a full cache, a ``Path`` for each file takes a second."""
    for inner in _listed(folder):
        if len(inner.name) == 2 and inner.is_dir():
            yield from _listed(inner.path)


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []  # another process removed it, or it is not ours to read


def _remove(path: Path | str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # gone already, or in a folder that can only be read


def _danger(stat: os.stat_result) -> str:
    """The other users that could have written a file or a folder, as text; empty if there are none."""
    if not hasattr(os, "geteuid"):
        return ""  # a system without owners and modes
    if stat.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return "can be written by other users" if stat.st_mode & 0o022 else ""


def _encode(key: str, object_bytes: bytes, header: dict[str, Any]) -> bytes:
    text = json.dumps(header, sort_keys=True).encode()
    body = len(text).to_bytes(8, "little") + text + object_bytes
    return _MAGIC + hashlib.sha256(key.encode() + body).digest() + body


def _decode(key: str, data: bytes) -> tuple[bytes, dict[str, Any]] | None:
    start = len(_MAGIC) + 32
    body = data[start:]
    if len(body) < 8 or data[:start] != _MAGIC + hashlib.sha256(key.encode() + body).digest():
        return None
    size = int.from_bytes(body[:8], "little")
    try:
        header = json.loads(body[8 : 8 + size])
    except (ValueError, RecursionError):
        return None
    return (body[8 + size :], header) if isinstance(header, dict) else None


KEEP_BYTES = 128 << 20
"""Bytes of unused code of all devices that stays loaded for later programs."""


class CodeTable:
    """Loaded code by key. Each key is loaded once, also by concurrent threads, and shared while it is in use.

    The most recently used entries are kept when they are unused: a sweep closes one program and opens the next.

    Args:
        recent: how many.
        most_bytes: of their machine code.
    """

    def __init__(self, recent: int = 1024, most_bytes: int = KEEP_BYTES) -> None:
        self._lock = new_lock(self, "_lock")
        self._loaded: weakref.WeakValueDictionary[str, LoadedCode] = weakref.WeakValueDictionary()
        self._making = Turns()
        self._most, self._most_bytes = recent, most_bytes
        self._recent: OrderedDict[int, LoadedCode] = (
            OrderedDict()
        )  # by identity, as code may have several keys; most recently used last
        self._bytes = 0

    def get(self, key: str, make: Callable[[], LoadedCode]) -> tuple[LoadedCode, bool]:
        """The code of a key, and whether it was there. Errors of ``make`` go to the caller and are not remembered."""
        with self._lock:
            code = self._loaded.get(key)
            dropped = self._touch(code)
            if code is not None:
                return code, True
        del dropped
        with self._making.of(key):
            with self._lock:
                code = self._loaded.get(key)
            if code is not None:
                return code, True
            code = make()
            with self._lock:
                self._loaded[key] = code
                dropped = self._touch(code)
            del dropped
            return code, False

    def know(self, key: str, code: LoadedCode) -> None:
        """Code that is loaded, by another key."""
        with self._lock:
            self._loaded[key] = code

    def _touch(self, code: LoadedCode | None) -> list[LoadedCode]:
        """Mark code as used. Returns evicted code, which the caller releases outside of the lock."""
        dropped: list[LoadedCode] = []
        if code is None or not self._most:
            return dropped
        if self._recent.pop(id(code), None) is None:
            self._bytes += len(code.object_bytes)
        self._recent[id(code)] = code
        while len(self._recent) > self._most or (self._bytes > self._most_bytes):
            dropped.append(self._recent.popitem(last=False)[1])
            self._bytes -= len(dropped[-1].object_bytes)
        return dropped

    def release(self) -> None:
        """Evict all unused code."""
        with self._lock:
            dropped, self._recent, self._bytes = self._recent, OrderedDict(), 0
        del dropped


LOADED = CodeTable()
"""The code of this process, of all devices. The linker and the JIT's code memory belong to the process, too."""
_disk_caches: dict[Path, DiskCache] = {}


def load_cached(
    text: str, name: str, exports: list[str], imports: dict[str, int], opt_level: int = 2, offline_cache: bool = True
) -> tuple[LoadedCode, bool]:
    """A module's code, and whether it came from this process or the disk instead of LLVM.

    The key is the module's whole text: it holds all that the emitter decided, so no version number can be forgotten.
    """
    key = _text_key(text, exports, opt_level)
    from_disk = False

    def make() -> LoadedCode:
        nonlocal from_disk
        disk = disk_cache() if offline_cache else None
        code = _from_disk(disk, key, name, exports, imports) if disk else None
        from_disk = code is not None
        if code is None:
            object_bytes = jit.compile_text(text, name, opt_level)
            code = jit.load(object_bytes, exports, imports, name)
            if disk:
                disk.put(key, object_bytes, {"name": name, "machine": jit.host().cpu, "versions": jit.versions()})
        code.key = key
        return code

    code, known = LOADED.get(_linked(key, imports), make)
    return code, known or from_disk


def is_on_disk(text: str, exports: list[str], opt_level: int) -> bool:
    """Whether ``load_cached`` needs no LLVM for a module."""
    disk = disk_cache()
    return disk is not None and disk.get(_text_key(text, exports, opt_level)) is not None


def _text_key(text: str, exports: list[str], opt_level: int) -> str:
    machine = jit.host()
    return key_of(
        text, *exports, str(opt_level), repr(jit.PIPELINES), machine.triple, machine.cpu, machine.features, jit.versions()
    )


def _linked(key: str, imports: dict[str, int]) -> str:
    """The key of loaded code: the same bytes, linked to other addresses, are other code."""
    return " ".join([key, *(f"{name}={address:x}" for name, address in sorted(imports.items()))])


def load_known(key: str, name: str, exports: list[str], imports: dict[str, int]) -> LoadedCode | None:
    """The code of a key that ``load_cached`` returned before, in this or another process; None if it is no longer cached."""

    def make() -> LoadedCode:
        disk = disk_cache()
        code = _from_disk(disk, key, name, exports, imports) if disk else None
        if code is None:
            raise KeyError(key)
        code.key = key
        return code

    try:
        return LOADED.get(_linked(key, imports), make)[0]
    except KeyError:
        return None


def _from_disk(disk: DiskCache, key: str, name: str, exports: list[str], imports: dict[str, int]) -> LoadedCode | None:
    entry = disk.get(key)
    if entry is None:
        return None
    try:
        return jit.load(entry[0], exports, imports, name)
    except QdrunRuntimeError:
        disk.discard(key)  # whole, yet not what this process can link: compile it again
        return None


def kept(key: str, make: Callable[[], bytes], header: dict[str, Any], on_disk: bool = True) -> tuple[bytes, bool]:
    """The bytes of a key, and whether they came from the disk; else they are made and stored there. ``on_disk``: look and store there."""
    disk = disk_cache() if on_disk else None
    entry = disk.get(key) if disk else None
    if entry is not None:
        return entry[0], True
    made = make()
    if disk:
        disk.put(key, made, header)
    return made, False


@cache
def source_key(*packages: str | None) -> str:
    """The key of the Python files of some packages (``__file__`` of each): what they make is good until they change."""
    folders = [Path(init).parent for init in packages if init]
    return key_of(*(file.read_text(encoding="utf-8") for folder in folders for file in sorted(folder.glob("*.py"))))


def disk_cache() -> DiskCache | None:
    """The folder that this process keeps compiled kernels in; None when there can be none."""
    try:
        folder = cache_dir()
    except RuntimeError as e:  # there is no home folder
        warnings.warn(f"compiled kernels are not kept: {e}; set QDRUN_CACHE_DIR", RuntimeWarning, stacklevel=2)
        return None
    return _disk_caches.setdefault(folder, DiskCache(folder))
