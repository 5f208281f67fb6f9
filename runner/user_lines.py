"""Locates the user's Python line of an error for messages: file, line, source text and a caret."""

from __future__ import annotations

import contextlib
import linecache
import os
import sysconfig
import traceback
from pathlib import Path

from ..compiler.errors import QdrunError

_ROOT = Path(__file__).parent.parent
COMPILER = tuple(str(_ROOT / part) + os.sep for part in ("compiler", "library"))
CALLERS = (*(str(_ROOT / part) + os.sep for part in ("runner", "jobs/core", "jobs/planning")), contextlib.__file__)
"""Modules that call a job, and that of context managers between them; the other files of ``jobs`` are jobs."""
LIBRARIES = tuple(
    path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))
)
_INSIDE = tuple(path for path in LIBRARIES if path.startswith(str(_ROOT) + os.sep))
"""Libraries of a virtual environment in the folder of the package."""
AT = "\n  at "
CALLS_SHOWN = 3


def described(error: BaseException) -> str:
    """``Type: message``, followed by the user's line where the message does not name it itself.

    Returns:
        One or more lines. A message of the compiler that has a location keeps it; for any other error the innermost frame outside of
        this package and of installed libraries is shown, with the frames that led there.
    """
    if isinstance(error, SyntaxError) and not isinstance(error, QdrunError):
        return _syntax(error)
    try:
        message = str(error)
    except Exception as broken:  # the user's own __str__
        message = f"(its message raised {type(broken).__name__})"
    head = f"{type(error).__name__}: {message}"
    if isinstance(error, QdrunError) and AT in message:
        return head
    first, hints = head, ""
    if "\n  do: " in head:  # the place comes before the advice
        first, _, hints = head.partition("\n  do: ")
        hints = "\n  do: " + hints
    return first + where(error) + hints


def where(error: BaseException) -> str:
    """The user's line in which ``error`` arose, as lines to append to a message; empty where no line of Python led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if _is_users(frame.filename)]
    if not users:
        return ""
    *before, frame = users
    inside = "" if frame.name == "<module>" else f" in {frame.name}"
    lines = [f"{AT}{frame.filename}:{frame.lineno}{inside}", *_shown(frame)]
    lines += [f"\n  called from {call.filename}:{call.lineno}" for call in before[-CALLS_SHOWN:][::-1]]
    return "".join(lines)


def _is_users(file: str) -> bool:
    if file.startswith("<") or file.startswith((*COMPILER, *CALLERS, *_INSIDE)):
        return False
    return file.startswith(str(_ROOT) + os.sep) or not file.startswith(LIBRARIES)


def _shown(frame: traceback.FrameSummary) -> list[str]:
    """The source line of a frame and a caret below the part that was evaluated."""
    text = linecache.getline(frame.filename, frame.lineno or 0).rstrip()
    if not text.strip():
        return []
    raw, start, end = text.encode(), frame.colno or 0, frame.end_colno
    if frame.colno is None or end is None or frame.end_lineno != frame.lineno:
        start, end = len(raw) - len(raw.lstrip()), len(raw)
    return _caret(text, len(raw[:start].decode("utf-8", "replace")), len(raw[:end].decode("utf-8", "replace")))


def _caret(text: str, start: int, end: int) -> list[str]:
    lead = len(text) - len(text.lstrip())
    return [f"\n    {text.strip()}", "\n    " + " " * max(0, start - lead) + "^" * max(1, min(end, len(text)) - start)]


def _syntax(error: SyntaxError) -> str:
    """A file that is no Python: the place is part of the error, and of no frame."""
    head = f"{type(error).__name__}: {error.msg}"
    if error.filename is None or error.lineno is None:
        return head
    lines = [f"{head}{AT}{error.filename}:{error.lineno}"]
    if error.text and error.text.strip() and error.offset:
        end = error.end_offset if error.end_offset and error.end_lineno == error.lineno else error.offset + 1
        lines += _caret(error.text.rstrip(), error.offset - 1, max(end - 1, error.offset))
    return "".join(lines)


__all__ = ["described", "where"]
