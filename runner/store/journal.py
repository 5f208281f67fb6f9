"""The journal of a run: append-only lines of JSON, the one truth about its trials. ``follower.py`` reads it.

Each owner of a run writes segments of its own. The first line of an owner names the bytes of all older segments that count, so what a
former owner still writes after that is never read.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from pydantic_core import to_json

from ..clock import now
from .columns import BEGUN, ROWS
from .encoding import document, plain, readable, sealed, writable
from .files import FolderGone, Growing, StorageFull
from .follower import EVENTS, Event, Follower, cut_name, owner_of
from .layout import RunFolder
from .owner import Owner, OwnerLost, check_owner, give_up, take

SYNC_EVERY_S = 0.5
SEGMENT_BYTES = {True: 64 << 20, False: 256 << 10}
"""A segment is closed beyond this: of files that are appended to, and of objects that each sync writes again."""


class JournalReader(Protocol):
    """What a new owner asks of a reader of the journal so far, see ``Follower``."""

    @property
    def last_seq(self) -> int:
        """The largest number of an event."""
        ...

    @property
    def lengths(self) -> dict[str, int]:
        """Valid bytes of each segment."""
        ...

    def look(self) -> object:
        """Read what is new."""
        ...


def line_of(event: Event) -> bytes:
    """Encode one line of the journal: JSON with a checksum; non-finite numbers are texts."""
    columns = event.get("event") in (BEGUN, ROWS)  # megabytes of text, and no integer of a user's
    try:
        return sealed(to_json(event, inf_nan_mode="strings"), looked_through=columns) + b"\n"
    except ValueError:  # a text with lone surrogates, or a value that only json.dumps takes
        return sealed(json.dumps(readable(plain(event)), allow_nan=False, separators=(",", ":")).encode()) + b"\n"


def _unwritten(event: Event, error: Exception) -> Event:
    """An event that no line can hold, without what the line cannot hold. The row of a trial becomes that of a failed one."""
    kept = {name: value for name, value in event.items() if writable({name: value})[name] is value}
    if event["event"] != "ended":
        return kept | {name: value for name, value in writable(event).items() if name not in kept}
    lost = ", ".join(sorted(str(name) for name in event if name not in kept)) or "loss"
    said = f"{type(error).__name__}: {error}"[:500]
    message = (
        f"the result of the trial cannot be written down ({lost}): {said}\n"
        "  do: give numbers and arrays of numbers as Python or numpy has them"
    )
    failed = {"status": "failed", "failure": "user_error", "error": {"type": "BadRecord", "message": message, "traceback": ""}}
    return {name: value for name, value in kept.items() if name != "loss"} | failed


class Journal:
    """Appends events. One owner, any of its threads; every line is written whole and synced at most half a second later.

    Locally a line can be read as soon as ``write`` returns. On an object store it can after the next sync.
    """

    def __init__(self, folder: RunFolder, *, gone: int = 0, reader: JournalReader | None = None) -> None:
        """Claim the run and begin this owner's part of its journal.

        Args:
            folder: the run.
            gone: see ``take``.
            reader: has read the journal, which is then not read again.

        Raises:
            RunAlive: another process runs it.
            StorageFull: no room.
        """
        self.folder = folder
        self.owner: Owner = take(folder, gone=gone)
        self.full = self.closed = False
        self._lock = threading.RLock()
        self._pending: list[bytes] = []
        self._unsynced = 0
        self._number, self._synced, self._wanted, self._lost = 1, time.monotonic(), False, False
        try:
            self._segment: Growing = self._new_segment()
            self._begin(Follower(folder) if reader is None else reader)
        except BaseException:  # no room: the claim must not keep others, or this process, from another try
            with suppress(OSError):
                give_up(folder, self.owner)
            raise

    def _begin(self, reader: JournalReader) -> None:
        reader.look()
        lengths = {name: length for name, length in reader.lengths.items() if owner_of(name) < self.owner.number}
        self._seq = 1 + reader.last_seq
        if self.owner.number > 1:  # backup: nothing but the owner event records how much of the older segments is valid
            self.folder.files.put(cut_name(self.owner.number), document({"counted": lengths}))
        who = {"owner": self.owner.number, "pid": self.owner.pid, "host": self.owner.host}
        self.write("owner", sync=True, **who, counted=lengths)

    def _new_segment(self) -> Growing:
        return self.folder.files.grow(f"{EVENTS}/{self.owner.number:06}-{self._number:06}.jsonl")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """Events that are in this process alone: there is no room for them (then ``full``), or the next sync writes them."""
        return len(self._pending) + self._unsynced

    def write(self, event: str, *, sync: bool = False, **fields: Any) -> None:
        """Append one event with the time in seconds since the epoch; see ``write_all``."""
        self.write_all([(event, fields)], sync=sync)

    def write_all(self, events: Sequence[tuple[str, Event]], *, sync: bool = False) -> list[str]:
        """Append events in one write: those of a batch of trials, for example.

        An event that no line can hold costs no other one: it is written without what cannot be written, and as the row of a trial it
        becomes that of a failed one. Gives the trials of such rows.

        Raises:
            StorageFull: there is no room. The events are kept, in order, and written by the next ``retry`` or ``write``: do not write
                them again. Until ``retry`` gives True, start nothing.
            OwnerLost: another process has taken the run over; nothing was written.
        """
        with self._lock:
            spoiled = []
            for event, fields in events:
                said = {"seq": self._seq, "t": now(), "event": event, **fields}
                try:
                    line = line_of(said)
                    if not isinstance(fields.get("loss"), float | int | None):
                        raise TypeError("the loss is no number")
                except Exception as error:  # whatever a job has given back
                    line = line_of(_unwritten(said, error))
                    spoiled += [str(fields.get("trial"))] if event == "ended" else []
                self._pending.append(line)
                self._seq += 1
            self._wanted |= sync
            self._flush()
            return spoiled

    def retry(self) -> bool:
        """Write what waits for room, and sync when it is time; whether there is room. To be called every half second or so.

        Raises:
            OwnerLost: another process has taken the run over.
        """
        with self._lock:
            try:
                if not self.closed:
                    self._flush()
            except StorageFull:
                return False
            return True

    def beat(self, steps: Mapping[str, Mapping[str, Any]] | None = None) -> bool:
        """Give a sign of life, also on a full disk, and while another thread waits for the store to take lines. False: it was refused.

        ``steps``: see ``RunFolder.beat``.

        Raises:
            OwnerLost: another process has taken the run over.
        """
        if self.closed:
            return True
        check_owner(self.folder, self.owner)
        try:
            self.folder.beat(self.owner.number, steps)
        except StorageFull:
            return False
        return True

    def _flush(self) -> None:
        try:
            self._write_pending()
        except StorageFull:
            self.full = True
            raise
        except (OwnerLost, FolderGone):
            self._lost = True
            self._pending.clear()
            raise
        self.full = False

    def _write_pending(self) -> None:
        due = self._wanted or self.full or time.monotonic() - self._synced > SYNC_EVERY_S
        immediate = self._segment.immediate
        if due or (self._pending and immediate):
            check_owner(self.folder, self.owner)
        if self._pending and (due or immediate):
            self._segment.append(b"".join(self._pending))
            self._unsynced = 0 if immediate else self._unsynced + len(self._pending)
            self._pending.clear()
        if not due:
            return
        self._segment.sync()
        self._unsynced, self._synced, self._wanted = 0, time.monotonic(), False
        if self._segment.length > SEGMENT_BYTES[immediate]:
            self._next_segment()

    def _next_segment(self) -> None:
        self._number += 1
        try:
            new = self._new_segment()
        except StorageFull:  # the old one can grow further; another number is tried after the next sync
            return
        self._segment.close()
        self._segment = new

    def give_up(self) -> None:
        """Touch the store no more, which does not answer: what waits is lost, and its trials run again after `qdrun resume`."""
        self.closed = True

    def close(self) -> None:
        """Write and sync what waits, and let the run go: another process may take it over at once. Closing again does nothing.

        Raises:
            StorageFull: there is still no room; what waits is lost, and its trials run again after `qdrun resume`.
            OwnerLost: another process has taken the run over, and something waited.
        """
        if self.closed:  # or given up: then another thread may hold the lock, and wait for the store
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
            waited, self._wanted = self.waiting, True
            try:
                if not self._lost:
                    self._flush()
            except OwnerLost:
                if waited:
                    raise
            finally:
                self._segment.close()
                with suppress(OSError):
                    give_up(self.folder, self.owner)


__all__ = ["Journal", "JournalReader", "line_of"]
