"""Reads the traces of a dead worker process: the signal and the stack in its own log, which Ray does not report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..store.files import open_files
from ..workers.marks import last_begun
from ..workers.spec import WorkerSpec, log_folder

TAIL = 1 << 16
"""Bytes at the end of the log that are read."""
FATAL = "Fatal Python error: "
"""The prefix of the output of ``faulthandler``; the stacks of the thread that died and of the others follow."""
CURRENT = "Current thread "
DIED = "its process died"
NEAR = 10
"""Number of lines after the prefix that may contain the name of the signal."""


SIGNALS = frozenset(
    (
        "Segmentation fault",
        "Aborted",
        "Bus error",
        "Floating point exception",
        "Floating-point exception",
        "Illegal instruction",
    )
)
"""The descriptions of SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL in a fatal error."""


def signal_of(error: Mapping[str, str]) -> str:
    """The signal that ``last_words`` names; empty where it names none, or one that others send."""
    said = error.get("message", "").partition("\n")[0].removeprefix(f"{DIED}: ")
    return said if said in SIGNALS else ""


def left_behind(begun: str) -> tuple[frozenset[int] | None, str | None]:
    """Read the traces of a dead worker on its host, where this runs: the launches that its lanes began last, and the end of its log.

    Args:
        begun: the path of the file of ``workers.marks``, beside which the log lies; empty where there is none.

    Returns:
        None for what cannot be read.
    """
    text = None
    with suppress(OSError):
        with open(Path(begun).with_name("stderr.log") if begun else "", "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
            text = stream.read().decode("utf-8", "replace")
    return last_begun(begun), text


def last_words(error: Mapping[str, str], spec: WorkerSpec, text: str | None = None) -> dict[str, str]:
    """The error of a worker that died, with what its log says of it, and where that log is.

    Args:
        error: what Ray says of it.
        spec: of the worker: its log lies in the run's folder. A log that cannot be read says nothing.
        text: the end of the log on the worker's host; None where that is not known. A store of objects gets the log later than that.
    """
    path = f"{log_folder(spec.device, spec.number, spec.owner)}/stderr.log"
    if text is None:
        with suppress(OSError):
            files = open_files(spec.run)
            size = files.sizes(path.rpartition("/")[0]).get("stderr.log", 0)
            text = files.read(path, max(0, size - TAIL)).decode("utf-8", "replace")
    why, stack = _fatal(text or "")
    word = "without a word: " if text is not None else "before its log was in the run's folder: by a signal, "
    said = why or f"{word}killed, perhaps for its memory (`dmesg` says so), or ended by the job (`os._exit`)"
    see = f"  see: `qdrun logs {spec.run} --workers`, {path}"
    message = f"{DIED}{': ' if why else ' '}{said}\n{see}"
    trace = "\n".join([f"{error['type']}: {DIED}: {why}", *stack, see]) if stack else ""
    return {**error, "message": message, "traceback": trace}


def _fatal(text: str) -> tuple[str, list[str]]:
    """The last fatal error of a log, and the stack of the thread in which it happened."""
    lines = text.splitlines()
    start = next((k for k in range(len(lines) - 1, -1, -1) if lines[k].startswith(FATAL)), None)
    if start is None:
        return "", []
    here = next((k for k in range(start, len(lines)) if lines[k].startswith(CURRENT)), len(lines))
    stack = []
    for line in lines[here + 1 :]:
        if not line.startswith("  "):
            break
        stack.append(line)
    return _words(lines[start : min(here, start + NEAR)]), stack


def _words(lines: list[str]) -> str:
    """The description of a fatal error. Ray's own handler may write between ``FATAL`` and the name of the signal, and behind the name."""
    said = (line.removeprefix(FATAL) for line in lines)
    return next(
        (name for line in said for name in SIGNALS if line.endswith(name) or line.startswith(name)),
        lines[0].removeprefix(FATAL),
    )
