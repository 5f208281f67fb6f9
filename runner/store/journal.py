"""The journal of a run: append-only lines of JSON, the one truth about its trials. A torn line costs itself alone.

Each owner of a run writes segments of its own. The first line of an owner names the bytes of all older segments that count, so what a
former owner still writes after that is never read (``refused`` counts its lines).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from pydantic_core import from_json, to_json

from .files import Growing, StorageFull
from .layout import RunFolder
from .owner import Owner, OwnerLost, check_owner, give_up, take

SYNC_EVERY_S = 0.5
SEGMENT_BYTES = {True: 64 << 20, False: 256 << 10}
"""A segment is closed beyond this: of files that are appended to, and of objects that each sync writes again."""
EVENTS, OLD_EVENTS = "events", "events.jsonl"
Event = dict[str, Any]


def plain(value: Any) -> Any:
    """``value`` as strict JSON can hold it: numbers that are not finite become texts: ``NaN``, ``Infinity``, ``-Infinity``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def readable(value: Any) -> Any:
    r"""``value`` with texts that every reader takes: a lone surrogate, half of a character, becomes its escape (``\ud800``)."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    return [readable(item) for item in value] if isinstance(value, list | tuple) else value


def line_of(event: Event) -> bytes:
    """One line of the journal, as ``plain`` and ``json.dumps`` would write it, for large arrays ten times as fast."""
    try:
        return to_json(event, inf_nan_mode="strings") + b"\n"
    except ValueError:  # a text with lone surrogates, or a value that only json.dumps takes
        return json.dumps(readable(plain(event)), allow_nan=False, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True)
class Entry:
    """An event, and where it stands: its owner, and the segment and the bytes that hold its line."""

    event: Event
    owner: int
    segment: str
    start: int
    end: int


@dataclass
class Events:
    """What a journal says.

    Attributes:
        entries: in the order of owners and of their writing.
        damaged: lines that could not be read; the others were.
        refused: lines that a former owner wrote after it had lost the run.
        lengths: bytes of each segment that count: those that end in a whole line.
    """

    entries: list[Entry] = field(default_factory=list)
    damaged: int = 0
    refused: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    @property
    def events(self) -> list[Event]:
        """The events alone."""
        return [entry.event for entry in self.entries]


def read(folder: RunFolder, *, slim: bool = False) -> Events:
    """All events of a run; works while another process writes, and for a run of format 1.

    A last line without its newline is still being written, or was torn by a crash: it is left out. A journal that does not exist yet
    has no events.

    Args:
        folder: the run.
        slim: leave the numbers of large runs where they are: gradients and outputs; ``event_at`` reads them again.
    """
    files, out = folder.files, Events()
    names = [name for name in files.names(EVENTS) if _owner_of(name)]
    last, counted = _last_word(folder, names)
    with suppress(FileNotFoundError):
        _read_segment(out, OLD_EVENTS, 0, files.read(OLD_EVENTS), counted.get(OLD_EVENTS), slim)
    for name in names:
        owner = _owner_of(name)
        data = files.read(f"{EVENTS}/{name}")
        _read_segment(out, name, owner, data, counted.get(name, 0) if owner < last else None, slim)
    return out


def _owner_of(name: str) -> int:
    """The owner of a segment; 0 for a file that is none."""
    owner, _, number = name.removesuffix(".jsonl").partition("-")
    return int(owner) if name.endswith(".jsonl") and owner.isdigit() and number.isdigit() else 0


def _last_word(folder: RunFolder, names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """The latest owner whose first line is whole, and what that line counts of the older segments.

    An owner that died before its first line changed nothing. Where that line was damaged, nothing older is cut off.
    """
    first: dict[int, str] = {}
    for name in names:
        first.setdefault(_owner_of(name), name)
    if len(first) < 2:  # never taken over: nothing to cut off
        return 0, {}
    for owner in sorted(first, reverse=True):
        line, newline, _ = folder.files.read(f"{EVENTS}/{first[owner]}").partition(b"\n")
        event = _parsed(line) if newline else None
        if event is not None and event["event"] == "owner":
            return owner, event.get("counted", {})
    return 0, {}


def _parsed(line: bytes) -> Event | None:
    try:
        event = _loaded(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _loaded(line: bytes) -> Any:
    """The value of a line; also of one with lone surrogates, as earlier versions wrote them.

    Raises:
        ValueError, RecursionError: it is not JSON.
    """
    try:
        return from_json(line)
    except ValueError:
        if b"\\ud" not in line and b"\\uD" not in line:
            raise
        return readable(json.loads(line))


def _read_segment(out: Events, name: str, owner: int, data: bytes, count: int | None, slim: bool) -> None:
    whole = data.rfind(b"\n") + 1
    counted = whole if count is None else min(count, whole)
    out.lengths[name] = counted
    out.refused += data.count(b"\n", counted)
    start = 0
    while start < counted:
        end = data.index(b"\n", start)
        if end > start:
            event = _parsed(data[start:end])
            if event is None:
                out.damaged += 1
            else:
                if slim:
                    event.pop("gradients", None)
                    event.pop("outputs", None)
                out.entries.append(Entry(event, owner, name, start, end))
        start = end + 1


def event_at(folder: RunFolder, entry: Entry) -> Event:
    """The event of an entry, read again."""
    path = entry.segment if entry.segment == OLD_EVENTS else f"{EVENTS}/{entry.segment}"
    return _loaded(folder.files.read(path, entry.start, entry.end))


class Journal:
    """Appends events. One owner, any of its threads; every line is written whole and synced at most half a second later.

    Locally a line can be read as soon as ``write`` returns. On an object store it can after the next sync.
    """

    def __init__(self, folder: RunFolder, *, gone: int = 0) -> None:
        """Claim the run and begin this owner's part of its journal. ``gone``: see ``take``.

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
            self._begin()
        except BaseException:  # no room: the claim must not keep others, or this process, from another try
            with suppress(OSError):
                give_up(folder, self.owner)
            raise

    def _begin(self) -> None:
        before = read(self.folder, slim=True)
        lengths = {name: length for name, length in before.lengths.items() if _owner_of(name) < self.owner.number}
        self._seq = 1 + max((int(entry.event.get("seq", -1)) for entry in before.entries), default=-1)
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

    def write_all(self, events: Sequence[tuple[str, Event]], *, sync: bool = False) -> None:
        """Append events in one write: those of a batch of trials, for example.

        Raises:
            StorageFull: there is no room. The events are kept, in order, and written by the next ``retry`` or ``write``: do not write
                them again. Until ``retry`` gives True, start nothing.
            OwnerLost: another process has taken the run over; nothing was written.
        """
        with self._lock:
            for event, fields in events:
                self._pending.append(line_of({"seq": self._seq, "t": time.time(), "event": event, **fields}))
                self._seq += 1
            self._wanted |= sync
            self._flush()

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

    def beat(self) -> None:
        """Give a sign of life, and ``retry``. On a full disk the sign is given all the same.

        Raises:
            OwnerLost: another process has taken the run over.
        """
        self.retry()
        if self.closed:
            return
        check_owner(self.folder, self.owner)
        with suppress(StorageFull):
            self.folder.beat(self.owner.number)

    def _flush(self) -> None:
        try:
            self._write_pending()
        except StorageFull:
            self.full = True
            raise
        except OwnerLost:
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

    def close(self) -> None:
        """Write and sync what waits, and let the run go: another process may take it over at once. Closing again does nothing.

        Raises:
            StorageFull: there is still no room; what waits is lost, and its trials run again after `qdrun resume`.
            OwnerLost: another process has taken the run over, and something waited.
        """
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


def segments(folder: RunFolder) -> Iterator[str]:
    """The paths of the journal's files, for tools that look at them."""
    names = [f"{EVENTS}/{name}" for name in folder.files.names(EVENTS) if _owner_of(name)]
    yield from names or ([OLD_EVENTS] if folder.files.exists(OLD_EVENTS) else [])
