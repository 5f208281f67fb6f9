"""The results of attempts: a line in the journal, and a folder for results that are too large for a line.

A record (loss, gradients, outputs, bytes, seconds) of up to ``INLINE_BYTES`` of arrays is a line of the journal and nothing else: the
measurements are in benchmarks/store.py. A larger one leaves its arrays as ``gradients.safetensors`` and ``outputs.safetensors`` in a
folder of the attempt, then ``result.json``, which says that they are whole; then the line of the journal that names them. A runner that
died between the two is made good by ``replay.recover``. ``safetensors`` because a file maps into memory, holds names, types and shapes,
and runs no code when it is read; its package is 1.4 MB and needs nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np

from ...compiler.errors import QdrunError
from .encoding import Damaged, crc_of, document, unsealed, writable
from .files import LocalFiles, escaped
from .follower import Event
from .journal import Journal, line_of
from .layout import RunFolder

INLINE_BYTES = 64 << 10
LOG_BYTES = 16 << 20
ARRAYS = ("gradients", "outputs")
STREAMS = ("stdout", "stderr")
Record = dict[str, Any]
Array = np.ndarray[Any, Any]


class Failure(StrEnum):
    """Why an attempt ended without a result; retries are counted for each class."""

    infrastructure = "infrastructure"
    out_of_memory = "out_of_memory"
    crash = "crash"
    timeout = "timeout"
    user_error = "user_error"
    not_finite = "not_finite"
    cancelled = "cancelled"


PREEMPTED = "Preempted"
"""The type of the error of an attempt that has ended because its machine goes away; it is not charged."""


class ResultMissing(QdrunError, LookupError):
    """The arrays of a trial are not where its row says."""


class Attempt(NamedTuple):
    """One attempt of one trial: the trial, the number of the attempt, and the owner. Only this owner writes to its folder."""

    trial: str
    number: int
    owner: int = 1

    @property
    def folder(self) -> str:
        """Its folder in the run's folder: ``trials/<id>/a2``, or ``a2-owner3`` for an owner other than the first."""
        return f"trials/{escaped(self.trial)}/a{self.number}" + (f"-owner{self.owner}" if self.owner > 1 else "")

    @property
    def result(self) -> str:
        """The file that says that its other files are whole."""
        return f"{self.folder}/result.json"

    @property
    def artifacts(self) -> str:
        """The folder of the job's artifacts, in the run's folder."""
        return f"{self.folder}/artifacts"


def started(journal: Journal, attempts: Mapping[Attempt, Event] | list[tuple[Attempt, Event]], *, sync: bool = False) -> None:
    """Write down that attempts run now, with where and with how many bytes: one write for a whole batch.

    Raises:
        StorageFull, OwnerLost: see ``Journal.write_all``.
    """
    pairs = attempts.items() if isinstance(attempts, Mapping) else attempts
    journal.write_all([("started", {"trial": a.trial, "attempt": a.number, **place}) for a, place in pairs], sync=sync)


def ended(journal: Journal, records: list[tuple[Attempt, Record]], *, sync: bool = False) -> None:
    """Accept records, one for each trial: from here on these are the rows of their trials. One write for a whole batch.

    Raises:
        StorageFull, OwnerLost: see ``Journal.write_all``.
    """
    events = [("ended", {"trial": a.trial, "attempt": a.number, **_by(journal, a), **record}) for a, record in records]
    journal.write_all(events, sync=sync)


def retried(journal: Journal, attempt: Attempt, failure: Failure, error: Mapping[str, str]) -> None:
    """Write down that an attempt failed and its trial waits again.

    Raises:
        StorageFull, OwnerLost: see ``Journal.write_all``.
    """
    fields = {"trial": attempt.trial, "attempt": attempt.number, "failure": failure, "error": dict(error)}
    journal.write("retry", **_by(journal, attempt), **fields)


def requeued(journal: Journal, trials: Mapping[str, str]) -> None:
    """Write down that ended trials are to run again, each with the reason; their new row replaces the old one.

    Raises:
        StorageFull, OwnerLost: see ``Journal.write_all``.
    """
    journal.write_all([("requeued", {"trial": trial, "reason": why}) for trial, why in trials.items()], sync=True)


def _by(journal: Journal, attempt: Attempt) -> Event:
    return {} if attempt.owner == journal.owner.number else {"by": attempt.owner}


def pack(folder: RunFolder, attempt: Attempt, record: Mapping[str, Any], before: Callable[[], None] = lambda: None) -> Record:
    """Prepare ``record`` for the journal: large arrays are saved in files and replaced by their shapes.

    Runs in the worker. Arrays are numpy arrays or nested lists of numbers. ``before``: is called before the first file.

    Raises:
        StorageFull: no room. Nothing of the attempt was stored; call it again.
    """
    slim = writable({name: value for name, value in record.items() if name not in ARRAYS})
    files: dict[str, dict[str, int]] = {}
    for kind in ARRAYS:
        if not record.get(kind):
            continue
        arrays = {name: np.asarray(value) for name, value in record[kind].items()}
        large, path = _large(arrays), ""
        if large:
            path = f"{attempt.folder}/{kind}.safetensors"
            data = _safetensors(large)
            if not files:
                before()
            folder.files.put(path, data)
            files[path] = {"bytes": len(data), "crc": crc_of(data)}
        slim[kind] = {
            name: {"shape": list(a.shape), "dtype": str(a.dtype), "file": path} if name in large else a.tolist()
            for name, a in arrays.items()
        }
    if files:
        slim["files"] = files
        folder.files.put(attempt.result, line_of(slim))
    return slim


def _large(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays that do not go into a line: the largest ones, until the others have at most ``INLINE_BYTES``."""
    inline, large = 0, {}
    for name, array in sorted(arrays.items(), key=lambda item: item[1].nbytes):
        inline += array.nbytes
        if inline > INLINE_BYTES:
            large[name] = array
    return large


def _safetensors(arrays: Mapping[str, Array]) -> bytes:
    from safetensors.numpy import save

    if "__metadata__" in arrays:
        raise ValueError("an array cannot be named __metadata__\n  do: give the gradient or output of the job another name")
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def left_behind(folder: RunFolder, attempt: Attempt) -> Record | None:
    """The result of an attempt that no journal names yet; None when it has none, or one whose files are not whole."""
    try:
        record = unsealed(folder.files.read(attempt.result).rstrip(b"\n"))
    except (FileNotFoundError, ValueError):
        return None
    return record if not missing_file(record, folder.files.below(attempt.folder)) else None


def missing_file(record: Mapping[str, Any], there: Mapping[str, int]) -> str:
    """A file that a record names and that is not there with all its bytes; empty where none is missing. ``there``: bytes by path."""
    return next((path for path, one in (record.get("files") or {}).items() if there.get(path) != one["bytes"]), "")


def arrays_of(folder: RunFolder, record: Mapping[str, Any], kind: str = "gradients") -> dict[str, Array]:
    """The gradients (or ``outputs``) of a record of the journal, wherever they lie. Local files are mapped, not read.

    Raises:
        ResultMissing: a file that the record names is not there, or not as it was written.
    """
    named: dict[str, Any] = record.get(kind) or {}
    found: dict[str, Array] = {}
    for name, value in named.items():
        if not isinstance(value, dict):
            found[name] = np.asarray(_numbers(value), dtype=np.float64)
        elif name not in found:
            found |= _load(folder, str(value["file"]), record)
    return {name: found[name] for name in named}


def _numbers(value: Any) -> Any:
    return [_numbers(item) for item in value] if isinstance(value, list) else float(value)


def _load(folder: RunFolder, path: str, record: Mapping[str, Any]) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        check_inside(folder, path)
        data = folder.files.read(path)
        check_crc(record, path, data)
        return load(data)
    except (FileNotFoundError, Damaged, SafetensorError) as error:
        raise missing(folder, path, error) from error


def check_inside(folder: RunFolder, path: str) -> None:
    """Refuse a path that leads out of the run. Raises ``ResultMissing``."""
    if ".." in path.split("/") or path.startswith("/"):
        raise ResultMissing(f"{folder.name} names a file outside of itself: {path}\n  do: do not trust this run folder")


def check_crc(record: Mapping[str, Any], path: str, data: bytes | memoryview) -> None:
    """Compare the bytes of a file with what the record of its trial says of them.

    Raises:
        Damaged: they are others.
    """
    said = (record.get("files") or {}).get(path)
    if said is None or said["bytes"] != len(data) or said["crc"] != crc_of(data):
        raise Damaged("its checksum does not match that in the journal")


def missing(folder: RunFolder, path: str, error: Exception) -> ResultMissing:
    """The error text for arrays that cannot be read."""
    return ResultMissing(
        f"{folder.uri}/{path} cannot be read: {error}\n"
        f"  do: remove the file if it is there; `qdrun resume {folder.uri}` then runs the trial again"
    )


def write_spec(folder: RunFolder, attempt: Attempt, spec: Mapping[str, Any]) -> None:
    """Keep what a worker was given, so that the attempt can be run again by hand.

    Raises:
        StorageFull: no room.
    """
    folder.files.put(f"{attempt.folder}/spec.json", document(dict(spec), indent=1), durable=False)


class Log:
    """The output of an attempt, in its own file, which is created with the first byte. It never fails a trial.

    On an object store the text is kept in a temporary file and uploaded by ``close``. Beyond ``LOG_BYTES``, and where there is no room,
    text is dropped; ``dropped`` counts its bytes and the last line of the log says so.
    """

    def __init__(self, folder: RunFolder, attempt: Attempt, stream: str, limit: int = LOG_BYTES) -> None:
        assert stream in STREAMS, stream
        self.folder, self.path = folder, f"{attempt.folder}/{stream}.log"
        self.limit, self.length, self.dropped = limit, 0, 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Append bytes; they can be read at once where the run is local."""
        kept, written = data[: max(0, self.limit - self.length)], 0
        with suppress(OSError):  # a full disk: count the lost bytes
            while written < len(kept):
                written += self._open().write(kept[written:])
        self.length += written
        self.dropped += len(data) - written

    def _open(self) -> IO[bytes]:
        if self._file is None:
            files = self.folder.files
            if isinstance(files, LocalFiles):
                where, _, name = self.path.rpartition("/")
                self._file = open(files.make_folder(where) / name, "ab", buffering=0, opener=_private)
            else:
                self._file = tempfile.TemporaryFile()
        return self._file

    def close(self) -> None:
        """End the log; upload it where the run is not local."""
        if self.dropped:
            note = f"\n[{self.dropped} bytes were dropped: the log was full, or the disk was]\n".encode()
            self.limit += len(note)
            self.write(note)
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            if not isinstance(self.folder.files, LocalFiles):
                file.seek(0)
                try:
                    self.folder.files.put(self.path, self._before() + file.read())
                except OSError:
                    self.dropped += self.length

    def _before(self) -> bytes:
        """The content of an earlier log of the same attempt."""
        try:
            return self.folder.files.read(self.path)
        except FileNotFoundError:
            return b""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_log(folder: RunFolder, attempt: Attempt, stream: str, start: int = 0) -> bytes:
    """The output of an attempt so far, from byte ``start`` on; empty if there is none."""
    assert stream in STREAMS, stream
    try:
        return folder.files.read(f"{attempt.folder}/{stream}.log", start)
    except FileNotFoundError:
        return b""


def log_name(attempt: Attempt, stream: str) -> str:
    """The path of the log of an attempt below the run's folder."""
    return f"{attempt.folder}/{stream}.log"


def log_path(folder: RunFolder, attempt: Attempt, stream: str) -> str:
    """The path of the log of an attempt."""
    return os.path.join(folder.uri, attempt.folder, f"{stream}.log")
