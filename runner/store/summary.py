"""The summary of a finished run, so that lists of runs need not read journals.

``summary.json`` is written beside the table, and says from how many bytes of which segments it was made. A journal only grows: as long as
its sizes are the same, so is what stands in it. A run that goes on again writes a segment of its own, and its summary counts no more.
It has the checksum of the table, too.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable
from typing import IO, Any

from ..regular_files import open_regular
from .encoding import document, read_document
from .files import LocalFiles
from .follower import EVENTS
from .layout import RunFolder
from .owner import lives
from .replay import Replay, replay, run_state

SUMMARY = "summary.json"
Summary = dict[str, Any]


def unfinished_word(state: str) -> str:
    """The status of trials without a row in a run that has stopped in the given state; empty while the run is running."""
    return {"running": "", "lost": "lost", "damaged": "lost"}.get(state, "cancelled")


def summary(folder: RunFolder, alive: Callable[[RunFolder], bool] = lives) -> Summary:
    """A run's state, counts by trial status, smallest loss, last time, and damaged lines: from its summary if that still holds.

    ``alive``: see ``run_state``.
    """
    kept = summary_of(folder)
    if kept is not None:
        return kept
    found = replay(folder)
    state = "damaged" if found.unreadable and found.finished is None else run_state(folder, found, alive)
    return _summed(state, found)


def keep(folder: RunFolder, sizes: dict[str, int], found: Replay, table: str = "") -> None:
    """Write the summary of a run that has ended; of another, nothing.

    Args:
        folder: the run.
        sizes: of its segments before they were read: lines that came meanwhile make the summary count no more.
        found: the run as they have it.
        table: the checksum of ``results.parquet``, see ``Hashing``.

    Raises:
        StorageFull: no room; the run is read in full, as before.
    """
    if found.finished is not None and sizes:
        said = {"journal": sizes, "table": table, "summary": _summed(run_state(folder, found), found)}
        said |= {"written": table_mark(folder)} if table else {}
        folder.files.put(SUMMARY, document(said, indent=1), durable=False)


def current(folder: RunFolder) -> bool:
    """Whether the summary, and the table that was written just before it, are those of the journal as it is now."""
    return summary_of(folder) is not None


def summary_of(folder: RunFolder) -> Summary | None:
    """The summary of a run that has ended; None where it is not that of the journal as it is now, or there is none."""
    try:
        said = read_document(folder.files.read(SUMMARY))
        return said["summary"] if said["journal"] == folder.files.sizes(EVENTS) else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def cut_segments(folder: RunFolder) -> list[str]:
    """Segments of the journal that are shorter than when the run ended, with what to do: a journal only grows."""
    try:
        counted = read_document(folder.files.read(SUMMARY))["journal"]
        sizes = folder.files.sizes(EVENTS)
        cut = [(name, sizes.get(name, 0), size) for name, size in counted.items() if sizes.get(name, 0) < size]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []
    return [
        f"{folder.uri}/{EVENTS}/{name} has {now:,} bytes, and had {then:,} when the run ended: rows are lost\n"
        f"  do: put the whole file back; or `qdrun resume {folder.uri}` runs trials again that lost their row. results.parquet may"
        " still have these rows: copy it first"
        for name, now, then in cut
    ]


class Hashing(io.RawIOBase):
    """Writes to a stream, and computes the SHA-256 of what it writes."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream, self._written, self.sha256 = stream, 0, hashlib.sha256()

    @property
    def checksum(self) -> str:
        """The SHA-256 and the number of bytes: a file of another size need not be read."""
        return f"{self.sha256.hexdigest()}-{self._written}"

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The number of bytes so far."""
        return self._written

    def write(self, data: Any) -> int:
        """Write all of the bytes."""
        part = memoryview(data).cast("B")
        self._stream.write(part)
        self.sha256.update(part)
        self._written += len(part)
        return len(part)


def table_checksums(folder: RunFolder) -> tuple[str, str]:
    """The checksum that ``results.parquet`` had when it was written, and its ``table_mark``; empty where there is no summary, or an older
    qdrun wrote it.
    """
    try:
        said = read_document(folder.files.read(SUMMARY))
        return str(said.get("table", "")), str(said.get("written", ""))
    except (FileNotFoundError, ValueError):
        return "", ""


def table_mark(folder: RunFolder) -> str:
    """The time and size of the table of a run on this machine, with the checksum of its footer: of what its pages' checksums do not cover.

    A table with the mark that it was written with need not be read in full. Empty where there is no such file, or it is elsewhere.
    """
    if not isinstance(folder.files, LocalFiles):
        return ""
    try:
        with open_regular(folder.table) as stream:
            about = os.fstat(stream.fileno())
            stream.seek(-8, os.SEEK_END)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(-min(about.st_size, 8 + length), os.SEEK_END)
            return f"{about.st_mtime_ns}-{about.st_size}-{hashlib.sha256(stream.read()).hexdigest()}"
    except (OSError, ValueError):
        return ""


def _summed(state: str, found: Replay) -> Summary:
    best = found.best()
    return {
        "state": state,
        "trials": len(found.ids),
        "counts": dict(_counts(found, unfinished_word(state))),
        "best": best and {"trial": found.ids[best[0]], "loss": best[1]},
        "last_t": found.last_t,
        "damaged_lines": found.damaged,
        "refused_lines": found.refused,
        "timing": found.finished.get("timing") if found.finished else None,
    }


def _counts(found: Replay, unfinished: str) -> Counter[str]:
    """Trials by the status that is shown."""
    counts = found.counts()
    if not unfinished:
        return counts
    left = counts.pop("waiting", 0) + counts.pop("running", 0)
    names = {name for damage in found.damage for name in damage.trials if name in found.places} if left else ()
    damaged = sum(found.trials[name].entry is None for name in names)
    return counts + Counter({"damaged": damaged, unfinished: left - damaged})
