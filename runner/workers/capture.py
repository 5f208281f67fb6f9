"""Captures the output of each trial in its own files, while several trials run in one process.

At the level of Python a text goes to the attempt in whose context it is written: the lane's thread, what it awaits, and the prints of its
kernels, whatever thread runs them. Everything else is the process's own: threads that a job starts, libraries that write to the descriptors
1 and 2, child processes, and what faulthandler says of a crash. It goes to the log of the worker.
"""

from __future__ import annotations

import faulthandler
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any, TextIO

from ...compiler.runtime.status import OUTPUT
from ..store.attempts import LOG_BYTES, STREAMS, Attempt, Log
from ..store.files import LocalFiles
from ..store.interface import StorageFull, full_said
from ..store.layout import RunFolder
from .bounded_log import start as start_writer

PRINTED_S, PRINTED_BYTES = 1.0, 4096
END_S = 2.0
"""Maximum seconds to wait for the end of a log."""
_here: ContextVar[dict[str, AttemptText] | None] = ContextVar("qdrun_attempt_text", default=None)
_lock = threading.Lock()
_users = 0


class _Bytes:
    """``sys.stdout.buffer`` of an attempt."""

    def __init__(self, text: AttemptText) -> None:
        self._text = text

    def write(self, data: Any) -> int:
        """To the attempt's file, as the bytes are."""
        raw = bytes(data)
        self._text.put(raw)
        return len(raw)

    def flush(self) -> None:
        """Nothing is kept back."""


class AttemptText:
    """A stream of one attempt. After its end, what still comes goes to the process."""

    __slots__ = ("_attempt", "_ended", "_folder", "_lock", "_log", "_stream")

    encoding, errors, newlines, closed = "utf-8", "backslashreplace", None, False

    def __init__(self, stream: str, folder: RunFolder, attempt: Attempt) -> None:
        self._stream, self._folder, self._attempt = stream, folder, attempt
        self._lock = threading.Lock()
        self._log: Log | None = None  # most attempts print nothing
        self._ended = False

    @property
    def name(self) -> str:
        """As of a file."""
        return f"<{self._stream}>"

    @property
    def used(self) -> bool:
        """Whether anything was written so far."""
        return self._log is not None

    @property
    def buffer(self) -> _Bytes:
        """For bytes."""
        return _Bytes(self)

    def write(self, text: str) -> int:
        """To the attempt's file."""
        self.put(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """One after the other."""
        for line in lines:
            self.write(line)

    def put(self, data: bytes) -> None:
        """Bytes to the attempt's file."""
        with self._lock:
            if not self._ended:
                if self._log is None:
                    self._log = Log(self._folder, self._attempt, self._stream)
                self._log.write(data)
                return
        late = process_stream(self._stream)
        late.write(data.decode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        """It is a file."""
        return False

    def writable(self) -> bool:
        """It is."""
        return True

    def readable(self) -> bool:
        """It is not."""
        return False

    def fileno(self) -> int:
        """The descriptor of the process: what a child process inherits."""
        return process_stream(self._stream).fileno()

    def end(self) -> None:
        """The attempt is over."""
        with self._lock:
            self._ended = True
            log, self._log = self._log, None
        if log is not None:
            log.close()


class Router:
    """Takes the place of ``sys.stdout`` or ``sys.stderr``: each write goes where it belongs in the context that it comes from."""

    def __init__(self, stream: str, process: TextIO) -> None:
        self.stream, self.process = stream, process

    def _now(self) -> Any:
        mine = _here.get()
        return self.process if mine is None else mine[self.stream]

    def write(self, text: str) -> int:
        """See the class."""
        return self._now().write(text)

    def flush(self) -> None:
        """See the class."""
        self._now().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)


def process_stream(stream: str) -> Any:
    """``stdout`` or ``stderr`` of the process, beside all attempts."""
    now = getattr(sys, stream)
    return now.process if isinstance(now, Router) else now


def install() -> None:
    """From now on attempts have streams of their own. Each call needs one of ``uninstall``."""
    global _users
    with _lock:
        _users += 1
        for stream in STREAMS:
            if not isinstance(getattr(sys, stream), Router):
                setattr(sys, stream, Router(stream, getattr(sys, stream)))


def uninstall() -> None:
    """The last one gives the process its streams back."""
    global _users
    with _lock:
        _users -= 1
        for stream in STREAMS if not _users else ():
            now = getattr(sys, stream)
            if isinstance(now, Router):
                setattr(sys, stream, now.process)


class captured:
    """Redirect the output of this context to the files of an attempt."""

    __slots__ = ("_here", "_output", "_texts")

    def __init__(self, folder: RunFolder, attempt: Attempt) -> None:
        self._texts = {
            "stdout": AttemptText("stdout", folder, attempt),
            "stderr": AttemptText("stderr", folder, attempt),
        }

    def __enter__(self) -> None:
        self._here, self._output = _here.set(self._texts), OUTPUT.set(self._texts["stdout"])  # type: ignore[arg-type]

    def __exit__(self, *error: object) -> None:
        OUTPUT.reset(self._output)
        _here.reset(self._here)
        self._texts["stdout"].end()
        self._texts["stderr"].end()


def has_printed() -> bool:
    """Whether the attempt of this context has written anything so far."""
    here = _here.get()
    return here is not None and (here["stdout"].used or here["stderr"].used)


def printing_as_here(context: Context) -> Context:
    """A copy of a context with the output of the present one."""
    here, output, inner = _here.get(), OUTPUT.get(), context.copy()
    inner.run(_here.set, here)
    inner.run(OUTPUT.set, output)
    return inner


class _Descriptor(io.FileIO):
    """A descriptor without a reader: output that cannot be written is dropped, so that printing never fails."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


class ProcessLog:
    """The descriptors 1 and 2 of a process, in files: ``stdout.log`` and ``stderr.log`` in a folder of the run, where that is local;
    else in a temporary folder of the host, from where they are copied into the run while they grow (``uploader``). Where there is no room
    for them when the worker starts, they stay what they were, the files of Ray: a full disk pauses a run, and fails no worker.

    They are pipes, which a separate process reads (``bounded``), so that the files stay below a limit. The stacks of a crash alone
    go straight to the file, as they are looked for when the process has died.

    Attributes:
        where: the folder that they lie in now.
    """

    def __init__(self, folder: RunFolder, path: str, limit: int = LOG_BYTES) -> None:
        files = folder.files
        local = isinstance(files, LocalFiles)
        self.where = Path(files.root, path) if local else Path(tempfile.mkdtemp(prefix="qdrun-worker-"))
        self._saved: dict[int, tuple[int, TextIO]] = {}
        self._faults_before = faulthandler.is_enabled()
        logs = [self.where / f"{stream}.log" for stream in STREAMS]
        try:
            with full_said(files.root):
                if isinstance(files, LocalFiles):
                    files.make_folder(path)
                opened = [open(log, "ab", buffering=0) for log in logs]
        except StorageFull:
            self._faults = None
            return
        opened[0].close()
        self._faults = opened[1]
        pipes = [os.pipe() for _ in STREAMS]
        self._writer = start_writer(limit, {read: log for (read, _), log in zip(pipes, logs, strict=True)})
        for number, (stream, (_, write)) in enumerate(zip(STREAMS, pipes, strict=True), 1):
            self._redirect(number, stream, write)
        faulthandler.enable(self._faults)
        paths = {f"{path}/{log.name}": log for log in logs}
        self._uploader = None if local else Uploader(paths, files.put)
        if self._uploader is not None:
            self._uploader.start()

    def _redirect(self, number: int, stream: str, pipe: int) -> None:
        before = process_stream(stream)
        with suppress(ValueError, OSError):
            before.flush()
        self._saved[number] = os.dup(number), before
        os.dup2(pipe, number)
        os.close(pipe)
        raw = io.BufferedWriter(_Descriptor(number, "w", closefd=False))
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        _replace(stream, text)

    def printed(self) -> str:
        """The end of what processes that a job has started have printed to stderr; waits a moment for the last of it."""
        found, log, end = b"", self.where / "stderr.log", time.monotonic() + PRINTED_S
        while time.monotonic() < end:
            before = found
            with suppress(OSError), open(log, "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - PRINTED_BYTES))
                found = stream.read()
            if found and found == before:
                break
            time.sleep(PRINTED_S / 5)
        return found.decode("utf-8", "backslashreplace")

    def close(self) -> None:
        """Give the process its descriptors back; upload the files a last time where the run is not local."""
        if self._faults is None:
            return
        for (number, (saved, before)), stream in zip(self._saved.items(), STREAMS):
            process_stream(stream).flush()
            os.dup2(saved, number)
            os.close(saved)
            _replace(stream, before)
        if self._faults_before:
            faulthandler.enable()
        else:
            faulthandler.disable()
        self._faults.close()
        with suppress(subprocess.TimeoutExpired):  # a process that the job has left behind may still print
            self._writer.wait(END_S)
        if self._uploader is not None:
            self._uploader.close()


def _replace(stream: str, text: TextIO) -> None:
    now = getattr(sys, stream)
    if isinstance(now, Router):
        now.process = text
    else:
        setattr(sys, stream, text)


LOOK_EVERY_S = 0.5
UPLOAD_EVERY_S = 5.0
UPLOAD_SHARE = 0.1
"""Of the time: a slow store is written to less often."""


class Uploader(threading.Thread):
    """Looks at files now and then, from a thread of its own.

    Args:
        files: by the path that they have in the run.
        upload: writes a file into the run.
    """

    def __init__(self, files: Mapping[str, Path], upload: Callable[[str, bytes], None]) -> None:
        super().__init__(name="log uploader", daemon=True)
        self._files, self._upload = files, upload
        self._sent: dict[str, tuple[int, int]] = {}
        self._due, self._over = 0.0, threading.Event()

    def run(self) -> None:
        """The thread."""
        while not self._over.wait(LOOK_EVERY_S):
            self.look()

    def look(self, *, now: bool = False) -> None:
        """Upload what has changed when it is time, or ``now``. What finds no room is tried again at the next look."""
        began = time.monotonic()
        if began < self._due and not now:
            return
        for name, path in self._files.items():
            with suppress(OSError):
                seen = path.stat()
                version = (seen.st_size, seen.st_mtime_ns)
                if seen.st_size and version != self._sent.get(name):
                    self._upload(name, path.read_bytes())
                    self._sent[name] = version
        self._due = time.monotonic() + max(UPLOAD_EVERY_S, (time.monotonic() - began) / UPLOAD_SHARE)

    def close(self) -> None:
        """End the thread; a last look."""
        self._over.set()
        if self.is_alive():
            self.join()
        self.look(now=True)


__all__ = [
    "AttemptText",
    "ProcessLog",
    "Router",
    "captured",
    "has_printed",
    "install",
    "printing_as_here",
    "process_stream",
    "uninstall",
]
