"""The journal of a run: append-only lines of JSON, the truth while it runs and after. A torn line costs itself alone."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

SYNC_EVERY_S = 0.5


def plain(value: Any) -> Any:
    """``value`` as strict JSON can hold it: numbers that are not finite become texts: ``NaN``, ``Infinity``, ``-Infinity``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


class Journal:
    """Appends events to a file. One writer; every line is written whole, and synced to disk at most half a second later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        torn = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if torn:
            os.write(self._file, b"\n")
        self._seq = len(read(path)[0])
        self._synced = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def write(self, event: str, *, sync: bool = False, **fields: Any) -> None:
        """Append one event with the time in seconds since the epoch.

        Raises:
            OSError: the disk is full or gone; nothing is lost that was written before.
        """
        record = {"seq": self._seq, "t": time.time(), "event": event, **plain(fields)}
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        self._seq += 1
        now = time.monotonic()
        if sync or now - self._synced > SYNC_EVERY_S:
            os.fsync(self._file)
            self._synced = now


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All events of a journal, and how many damaged lines it has; works while another process writes.

    A last line without its newline is still being written, or was torn by a crash: it is left out, and counts as damaged only
    when something follows it. A journal that does not exist yet has no events.
    """
    if not path.exists():
        return [], 0
    *lines, _unfinished = path.read_bytes().split(b"\n")
    events, damaged = [], 0
    for line in lines:
        if not line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            damaged += 1
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
        else:
            damaged += 1
    return events, damaged
