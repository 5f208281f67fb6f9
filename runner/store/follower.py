"""Reads the journal of a run, at once or while it grows. ``Follower`` is the one reader: each line once, with the cut of ownership applied.

Of a former owner only the bytes count that its successor has counted in the first line of its own part. A torn line costs itself alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from .columns import ARRAYS, BEGUN, ROWS, expanded, names_of
from .encoding import Damaged, is_sealed, read_document, unsealed
from .files import LocalFiles, NoFile
from .layout import RunFolder
from .owner import OWNERS, owner_numbers

KEPT_BYTES, FIRST_LINE_BYTES = 64 << 20, 1 << 14
EVENTS = "events"
SMALL_NUMBERS, HISTORY = 256, "opt.history"
"""``Detail.SMALL`` leaves arrays of more numbers in the journal, except for the history of an optimisation run, which reports draw."""
_TRIAL = re.compile(rb'"trial":"([^"\\\\]{1,200})"')
_AT = re.compile(rb'"at":\[(\d+,\d+(?:,\d+,\d+)*)\]')
_TRIALS = re.compile(rb'"trials":\[((?:"[^"\\\\]{1,200}",?)*)')
Event = dict[str, Any]


class Detail(Enum):
    """How much of gradients and outputs a reader keeps."""

    FULL = auto()
    SMALL = auto()  # larger arrays become {"shape": [..]}
    NONE = auto()  # `event_at` reads them later


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An event, and where it stands: its owner, and the segment and the bytes that hold its line.

    ``row``: the place of a trial in the line of a batch, where the event was made of that.
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


@dataclass(frozen=True)
class News:
    """New entries of a journal, in the order of owners and of their writing. The line of a batch is one entry.

    ``again``: they begin with the first one, as entries that were given before do not count any more.
    """

    entries: list[JournalEntry]
    again: bool = False


@dataclass
class _Segment:
    """What was read of a segment: bytes up to the last complete line that counts, lines, damage, and lines that do not count."""

    length: int = 0
    lines: int = 0
    size: int = -1
    limit: int | None = None
    damage: list[Damage] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    refused: int = 0


class Follower:
    """Reads a journal again and again, also while another process appends to it.

    A last line without its newline is still being written, or was torn by a crash: it waits. A journal that does not exist yet has no
    entries.

    Args:
        folder: the run.
        detail: what to keep of gradients and outputs.
        settled: give nothing while a new owner has claimed the run and not yet said which lines of the former ones count. For readers that
            cannot take back what they have passed on.
    """

    def __init__(self, folder: RunFolder, detail: Detail = Detail.NONE, *, settled: bool = False) -> None:
        self.folder, self._detail, self._settled = folder, detail, settled
        self._segments = dict[str, _Segment]()
        self._cuts = dict[int, dict[str, int]]()  # by owner: the first line of its part never changes
        self._missing = list[Damage]()
        self.last_seq = -1

    @property
    def damage(self) -> list[Damage]:
        """Damaged lines; all others were read."""
        return [*self._missing, *(one for seen in self._segments.values() for one in (*seen.damage, *seen.torn))]

    @property
    def refused(self) -> int:
        """Lines that former owners wrote after they had lost the run."""
        return sum(seen.refused for seen in self._segments.values())

    @property
    def lengths(self) -> dict[str, int]:
        """Valid bytes of each segment, up to its last complete line."""
        return {name: seen.length for name, seen in self._segments.items()}

    def look(self, *, last: bool = False) -> News:
        """Read what is new. ``last``: nothing more is waited for, see ``settled``.

        Raises:
            OSError: the store does not answer; the next look continues.
        """
        files = self.folder.files
        names, sizes = [name for name in files.names(EVENTS) if owner_of(name)], files.sizes(EVENTS)
        owner, counted = self._last_word(names)
        limits = {name: counted.get(name, 0) if owner_of(name) < owner else None for name in names}
        again = any(
            limit is not None and name in self._segments and self._segments[name].length > limit
            for name, limit in limits.items()
        )
        known = {} if again else self._segments
        data = dict[str, bytes | NoFile]()
        for name, limit in limits.items():
            seen = known.get(name)
            if seen is None or sizes.get(name) != seen.size or limit != seen.limit:
                try:
                    data[name] = files.read(f"{EVENTS}/{name}", 0 if seen is None else seen.length)
                except NoFile as error:
                    data[name] = error
        if self._settled and not last and max(owner_numbers(files), default=1) > max(owner, 1):
            return News([])
        if again:
            self._segments = {}
        self._missing = [Damage(name, 0) for name in _missing(names, counted)]
        entries = list[JournalEntry]()
        for name, found in data.items():
            seen = self._segments.setdefault(name, _Segment())
            if isinstance(found, NoFile):
                said = str(found).partition("\n")[0].partition(" is damaged: ")[2]
                seen.torn = [Damage(name, 0, why=said)]
            else:
                entries += self._read(name, seen, found, limits[name])
        return News(entries, again)

    def _last_word(self, names: Sequence[str]) -> tuple[int, dict[str, int]]:
        """The latest owner whose first line is complete, and what that line counts of the older segments.

        An owner that died before its first line changed nothing. Where that line is damaged, a file beside the owner's claim says the same.
        """
        first = {owner_of(name): name for name in reversed(names)}
        for owner in sorted(
            (owner for owner in first if owner > 1), reverse=True
        ):  # before the first there is nothing to cut off
            if owner not in self._cuts:
                cut = self._cut_of(owner, first[owner])
                if cut is None:
                    continue
                self._cuts[owner] = cut
            return owner, self._cuts[owner]
        return 0, {}

    def _cut_of(self, owner: int, segment: str) -> dict[str, int] | None:
        try:
            line, newline, _ = self.folder.files.read(f"{EVENTS}/{segment}", 0, FIRST_LINE_BYTES).partition(b"\n")
            if not newline:
                line, newline, _ = self.folder.files.read(f"{EVENTS}/{segment}").partition(b"\n")
        except NoFile:  # its other lines cannot be read either
            line, newline = b"", b"\n"
        event = parsed(line) if newline else None
        if event is not None and event["event"] == "owner":
            return event.get("counted", {})
        if newline:
            with suppress(FileNotFoundError, Damaged):
                return read_document(self.folder.files.read(cut_name(owner)))["counted"]
        return None

    def _read(self, name: str, seen: _Segment, data: bytes, limit: int | None) -> list[JournalEntry]:
        """The entries of new bytes of a segment. ``limit``: the bytes of the segment that count; None: all."""
        base, owner, entries = seen.length, owner_of(name), list[JournalEntry]()
        count = None if limit is None else limit - base
        whole = data.rfind(b"\n") + 1
        counted = whole if count is None else min(count, whole)
        start = 0
        while start < counted:
            seen.lines += 1
            end = data.index(b"\n", start)
            if end > start:
                event = parsed(data[start:end])
                if event is None:
                    seen.damage.append(self._damage(name, seen.lines, data[start:end]))
                else:
                    self.last_seq = max(self.last_seq, int(event.get("seq", -1)))
                    _lessen(event, self._detail)
                    entries.append(JournalEntry(event, owner, name, base + start, base + end))
            start = end + 1
        seen.length, seen.size, seen.limit = base + counted, base + len(data), limit
        seen.refused, seen.torn = data.count(b"\n", counted), []
        rest = data[whole:count]
        if (count or 0) > whole and not rest:
            seen.torn = [Damage(name, 0)]
        elif rest and (limit is not None or is_sealed(rest[:-1])):  # not torn by a crash: the newline itself is damaged
            seen.torn = [self._damage(name, seen.lines + 1, rest)]
        return entries

    def _damage(self, segment: str, line: int, data: bytes) -> Damage:
        found = _TRIAL.findall(data) + [one.strip(b'"') for some in _TRIALS.findall(data) for one in some.split(b",") if one]
        names = [one.decode("utf-8", "replace") for one in found]
        for ranges in _AT.findall(data):
            with suppress(OSError, ValueError):
                names += names_of({"at": list(map(int, ranges.split(b",")))}, self.folder.trial_ids())
        return Damage(segment, line, tuple(dict.fromkeys(names)))


def segments(folder: RunFolder) -> Iterator[str]:
    """The paths of the journal's files, in the order of owners and of their writing."""
    yield from (f"{EVENTS}/{name}" for name in folder.files.names(EVENTS) if owner_of(name))


def owner_of(name: str) -> int:
    """The owner of a segment; 0 for a file that is none."""
    owner, _, number = name.removesuffix(".jsonl").partition("-")
    return int(owner) if name.endswith(".jsonl") and owner.isdigit() and number.isdigit() else 0


def cut_name(owner: int) -> str:
    """The file that says which bytes of older segments count, as the first line of an owner does."""
    return f"{OWNERS}/{owner:06}.cut"


def _missing(names: Sequence[str], counted: Mapping[str, int]) -> list[str]:
    """Segments that there must have been: those that a later owner has counted, and those between others of their owner."""
    last = {owner_of(name): int(name[7:13]) for name in names}  # of each owner, as names are in order
    known = {f"{owner:06}-{number:06}.jsonl" for owner, end in last.items() for number in range(1, end)}
    return sorted((known | {name for name, length in counted.items() if length}) - set(names))


def parsed(line: bytes) -> Event | None:
    """The event of a line; None where the line is damaged."""
    try:
        event = unsealed(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event.get("event"), str) else None


def _lessen(event: Event, detail: Detail) -> None:
    """Take arrays out of an event that are not to be kept."""
    if detail is Detail.FULL:
        return
    for kind in ARRAYS:
        if kind not in event:
            continue
        if detail is Detail.NONE:
            del event[kind]
            continue
        arrays = event.get(kind) or {}
        for name, value in arrays.items():
            if event["event"] == ROWS:
                if math.prod(value["shape"][1:]) > SMALL_NUMBERS:
                    value.pop("data")
            elif isinstance(value, list) and name != HISTORY and math.prod(shape := shape_of(value)) > SMALL_NUMBERS:
                arrays[name] = {"shape": shape}


def shape_of(value: Any) -> list[int]:
    """The shape of an array as nested lists."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape


@dataclass
class Events:
    """The content of a journal, with an entry for each trial of a batch. Attributes as those of ``Follower``."""

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


def read(folder: RunFolder, detail: Detail = Detail.FULL) -> Events:
    """Read all events of a run; works while another process writes."""
    follower = Follower(folder, detail)
    entries = follower.look().entries
    ids = folder.trial_ids() if any(entry.event["event"] in (ROWS, BEGUN) for entry in entries) else ()
    made = [one for entry in entries for one in each_trial(entry, ids)]
    return Events(made, follower.damage, follower.refused, follower.lengths)


def each_trial(entry: JournalEntry, ids: Sequence[str]) -> list[JournalEntry]:
    """An entry of a batch as one for each of its trials; any other as it is. ``ids``: of the run."""
    if entry.event["event"] not in (ROWS, BEGUN):
        return [entry]
    return [replace(entry, event=event, row=row) for row, event in enumerate(expanded(entry.event, ids))]


def event_at(folder: RunFolder, entry: JournalEntry) -> Event:
    """The event of an entry of one trial, read again with all of its arrays.

    Raises:
        Damaged: its line has changed since.
    """
    data = folder.files.read(f"{EVENTS}/{entry.segment}", entry.start, entry.end)
    return _named(expanded(unsealed(data))[entry.row], entry)


def _named(event: Event, entry: JournalEntry) -> Event:
    """An event that was read again, with the trial of its entry: in the line of a batch there is its place."""
    return event | {"trial": entry.event["trial"]} if "trial" in entry.event else event


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
        return _named(self._events[entry.row], entry)

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
