"""The journal of a run: append-only lines of JSON, the one truth about its trials. A torn line costs itself alone.

Each owner of a run writes segments of its own. The first line of an owner names the bytes of all older segments that count, so what a
former owner still writes after that is never read (``refused`` counts its lines).
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from pydantic_core import to_json

from ..clock import now
from .columns import BEGUN, ROWS, expanded
from .encoding import Damaged, document, is_sealed, plain, read_document, readable, sealed, unsealed, writable
from .files import FolderGone, Growing, LocalFiles, NoFile, StorageFull
from .layout import RunFolder
from .owner import OWNERS, Owner, OwnerLost, check_owner, give_up, take

SYNC_EVERY_S = 0.5
KEPT_BYTES = 64 << 20
SEGMENT_BYTES = {True: 64 << 20, False: 256 << 10}
"""A segment is closed beyond this: of files that are appended to, and of objects that each sync writes again."""
EVENTS = "events"
LIGHT_NUMBERS, HISTORY = 256, "opt.history"
"""Arrays of more numbers are left in the journal by ``read(light=True)``, but for the history of a descent, which reports draw."""
_TRIAL = re.compile(rb'"trial":"([^"\\\\]{1,200})"')
_TRIALS = re.compile(rb'"trials":\[((?:"[^"\\\\]{1,200}",?)*)')
Event = dict[str, Any]
Lessened = Callable[[Event], list[Event]]


def line_of(event: Event) -> bytes:
    """Encode one line of the journal: JSON with a checksum; non-finite numbers are texts."""
    try:
        return sealed(to_json(event, inf_nan_mode="strings")) + b"\n"
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


@dataclass(frozen=True)
class JournalEntry:
    """An event, and where it stands: its owner, and the segment and the bytes that hold its line; ``row``: its place in the line of a
    batch, which has an event for each trial.
    """

    event: Event
    owner: int
    segment: str
    start: int
    end: int
    row: int = 0


@dataclass(frozen=True)
class Damage:
    """A line that is not as it was written: its segment, its number there from 1, and the trials that it still names.

    ``line`` 0: the segment is not there, or ends too early; ``why``: something else lies in its place.
    """

    segment: str
    line: int
    trials: tuple[str, ...] = ()
    why: str = ""

    @property
    def text(self) -> str:
        """In words."""
        what = f"{EVENTS}/{self.segment}"
        if self.why:
            return f"{what}: {self.why}, and the events there are lost"
        if not self.line:
            return f"{what}: its end, or all of it, is gone, and the events there are lost"
        named = f"; it named {', '.join(self.trials)}" if self.trials else ""
        return f"{what}, line {self.line}: the checksum does not match, and its event is lost{named}"


@dataclass
class Events:
    """The content of a journal.

    Attributes:
        entries: events in the order of owners, and of their writing.
        damage: damaged lines; all others were read.
        refused: lines that a former owner wrote after it had lost the run.
        lengths: valid bytes of each segment, up to its last complete line.
    """

    entries: list[JournalEntry] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    refused: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    @property
    def events(self) -> list[Event]:
        """The events alone."""
        return [entry.event for entry in self.entries]

    @property
    def damaged(self) -> int:
        """The number of damaged lines."""
        return len(self.damage)

    @property
    def unreadable(self) -> bool:
        """Whether something else lies in the place of a segment."""
        return any(one.why for one in self.damage)


def read(folder: RunFolder, *, slim: bool = False, light: bool = False, whole: bool = False) -> Events:
    """All events of a run; works while another process writes.

    A last line without its newline is still being written, or was torn by a crash: it is left out. A journal that does not exist yet
    has no events.

    Args:
        folder: the run.
        slim: leave gradients and outputs where they are; ``event_at`` reads them again.
        light: leave those of more than ``LIGHT_NUMBERS`` numbers there; in their place stands ``{"shape": [..]}``.
        whole: as ``light``, and the lines of batches stay as they are: see ``replay.split``.
    """
    lessened = _of_trials_alone if whole else _without_arrays if slim else _without_large if light else expanded
    files, out = folder.files, Events()
    names = [name for name in files.names(EVENTS) if _owner_of(name)]
    last, counted = _last_word(folder, names)
    out.damage += [Damage(name, 0) for name in _missing(names, counted)]
    for name in names:
        owner = _owner_of(name)
        try:
            data = files.read(f"{EVENTS}/{name}")
        except NoFile as error:
            out.damage.append(Damage(name, 0, why=str(error).partition("\n")[0].partition(" is damaged: ")[2]))
            continue
        _read_segment(out, name, owner, data, counted.get(name, 0) if owner < last else None, lessened)
    return out


def _missing(names: Sequence[str], counted: Mapping[str, int]) -> list[str]:
    """Segments that there must have been: those that a later owner has counted, and those between others of their owner."""
    last = {_owner_of(name): int(name[7:13]) for name in names}  # of each owner, as names are in order
    known = {f"{owner:06}-{number:06}.jsonl" for owner, end in last.items() for number in range(1, end)}
    return sorted((known | {name for name, length in counted.items() if length}) - set(names))


def _owner_of(name: str) -> int:
    """The owner of a segment; 0 for a file that is none."""
    owner, _, number = name.removesuffix(".jsonl").partition("-")
    return int(owner) if name.endswith(".jsonl") and owner.isdigit() and number.isdigit() else 0


def _last_word(folder: RunFolder, names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """The latest owner whose first line is whole, and what that line counts of the older segments.

    An owner that died before its first line changed nothing. Where that line is damaged, a file beside the owner's claim says the same.
    """
    first = {_owner_of(name): name for name in reversed(names)}
    if max(first, default=0) < 2:
        return 0, {}  # never taken over: nothing to cut off
    for owner in sorted(first, reverse=True):
        try:
            line, newline, _ = folder.files.read(f"{EVENTS}/{first[owner]}").partition(b"\n")
        except NoFile:  # its other lines cannot be read either
            line, newline = b"", b"\n"
        event = _parsed(line) if newline else None
        if event is not None and event["event"] == "owner":
            return owner, event.get("counted", {})
        if newline:
            with suppress(FileNotFoundError, Damaged):
                return owner, read_document(folder.files.read(_cut_name(owner)))["counted"]
    return 0, {}


def counted(folder: RunFolder) -> Callable[[str], int | None]:
    """The bytes of a segment, by its path, that count now: of a former owner those that its successor has counted; None: all."""
    last, lengths = _last_word(folder, [path[len(EVENTS) + 1 :] for path in segments(folder)])
    return lambda path: lengths.get(path[len(EVENTS) + 1 :], 0) if _owner_of(path[len(EVENTS) + 1 :]) < last else None


def _cut_name(owner: int) -> str:
    return f"{OWNERS}/{owner:06}.cut"


def _parsed(line: bytes) -> Event | None:
    try:
        event = unsealed(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event.get("event"), str) else None


def _read_segment(out: Events, name: str, owner: int, data: bytes, count: int | None, lessened: Lessened) -> None:
    whole = data.rfind(b"\n") + 1
    counted = whole if count is None else min(count, whole)
    out.lengths[name] = counted
    out.refused += data.count(b"\n", counted)
    start = number = 0
    while start < counted:
        number += 1
        end = data.index(b"\n", start)
        if end > start:
            event = _parsed(data[start:end])
            if event is None:
                out.damage.append(_damage(name, number, data[start:end]))
            else:
                found = enumerate(lessened(event))
                out.entries += [JournalEntry(one, owner, name, start, end, row) for row, one in found]
        start = end + 1
    rest = data[whole:count]
    if (count or 0) > whole and not rest:
        out.damage.append(Damage(name, 0))
    elif rest and (count is not None or is_sealed(rest[:-1])):  # not torn by a crash: the newline itself is damaged
        out.damage.append(_damage(name, number + 1, rest))


def _without_arrays(event: Event) -> list[Event]:
    found = expanded(event, slim=True)
    event.pop("gradients", None)
    event.pop("outputs", None)
    return found


def _of_trials_alone(event: Event) -> list[Event]:
    return [event] if event["event"] in (ROWS, BEGUN) else _without_large(event)


def _without_large(event: Event) -> list[Event]:
    found = expanded(event, most=LIGHT_NUMBERS)
    if found[0] is not event:  # of a batch
        return found
    for kind in ("gradients", "outputs"):
        arrays = event.get(kind) or {}
        for name, value in arrays.items():
            if isinstance(value, list) and name != HISTORY and math.prod(shape := shape_of(value)) > LIGHT_NUMBERS:
                arrays[name] = {"shape": shape}
    return found


def shape_of(value: Any) -> list[int]:
    """The shape of an array as nested lists."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape


def _damage(segment: str, line: int, data: bytes) -> Damage:
    found = _TRIAL.findall(data) + [one.strip(b'"') for some in _TRIALS.findall(data) for one in some.split(b",") if one]
    return Damage(segment, line, tuple(dict.fromkeys(one.decode("utf-8", "replace") for one in found)))


def event_at(folder: RunFolder, entry: JournalEntry) -> Event:
    """The event of an entry, read again.

    Raises:
        Damaged: its line has changed since.
    """
    data = folder.files.read(f"{EVENTS}/{entry.segment}", entry.start, entry.end)
    return expanded(unsealed(data))[entry.row]


class EventReader:
    """Events read again, in any order. Of an object store whole segments are kept, ``KEPT_BYTES`` of them; and the last line, which
    may be that of a batch.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._segments = folder, dict[str, bytes]()
        self._last: tuple[str, int] = "", 0
        self._events: list[Event] = []

    def at(self, entry: JournalEntry) -> Event:
        """As ``event_at``."""
        where = entry.segment, entry.start
        if where != self._last:
            self._events, self._last = expanded(unsealed(self._line(entry))), where
        return self._events[entry.row]

    def _line(self, entry: JournalEntry) -> bytes:
        if isinstance(self._folder.files, LocalFiles):
            return self._folder.files.read(f"{EVENTS}/{entry.segment}", entry.start, entry.end)
        data = self._segments.pop(entry.segment, None)
        if data is None:
            data = self._folder.files.read(f"{EVENTS}/{entry.segment}")
            while self._segments and sum(map(len, self._segments.values())) + len(data) > KEPT_BYTES:
                del self._segments[next(iter(self._segments))]
        self._segments[entry.segment] = data  # the last one that was used comes last
        return data[entry.start : entry.end]


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
        if self.owner.number > 1:  # twice: nothing else says which lines of former owners count
            self.folder.files.put(_cut_name(self.owner.number), document({"counted": lengths}))
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


def segments(folder: RunFolder) -> Iterator[str]:
    """The paths of the journal's files, for tools that look at them."""
    yield from (f"{EVENTS}/{name}" for name in folder.files.names(EVENTS) if _owner_of(name))
