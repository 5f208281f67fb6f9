"""The state of a run as its journal has it, in columns: a status, a loss and a row for each trial.

The rules: a trial waits, an attempt of it runs, ``ended`` gives it its row (with a ``place``: it began since the last write). The first row
counts, and a further one is ``doubled``, unless ``requeued`` asked for it. A new owner ends all attempts of the one before: what has no row
by then waits again.

Nearly all trials begin once and end once. They are numbers in columns; a ``TrialState`` is made of those when it is asked for. All others
have one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .attempts import Attempt, Failure, Record, ended, left_behind
from .columns import ARRAYS, BEGUN, ROWS, attempts_of, decoded, places_in
from .follower import Damage, Detail, Event, Follower, JournalEntry, each_trial, event_at
from .journal import Journal
from .layout import HEARTBEAT, TRIALS, RunFolder
from .owner import lives
from .trial_state import FINAL, AttemptState, TrialState, by_of, times_of

STATUSES = ("waiting", "running", *FINAL)
WAITING, RUNNING, DONE = range(3)
CODES = {status: code for code, status in enumerate(STATUSES)}
NONE = -1
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Block:
    """Trials that ended well in one line of a batch: its event, their rows there, and their places in the sweep."""

    event: Event
    rows: Array
    places: Array


class RunningTogether(NamedTuple):
    """Trials that run together: the attempt of the first one, and the places of all in the sweep."""

    first: AttemptState
    places: list[int]


class Replay:
    """The state of a run by its journal.

    Attributes:
        ids: of the trials, in the order of the sweep.
        status: (trials,), places in ``STATUSES``.
        losses, ended_t: (trials,), of rows; NaN where there is none.
        finished: the ``finished`` event of the latest owner; None while the run is running, or if its owner is lost.
        owner: the number of the latest owner that wrote; 0 before the first.
        began_t, last_t: times of the first attempt and of the last event.
        latest: the latest event of each kind that is about no trial.
        damage, refused: lines of the journal, see ``Follower``.
        doubled: rows that came after the one that counts.
        strays: trials of which the journal has events, and ``trials.jsonl`` no line: that is damaged.
        wrong: what is wrong with the lines of ``trials.jsonl``, where those were read.
        charged: charged failures by class, of trials that were not requeued since; what was lost with an owner is not charged.
        suspects: trials that crashed beside others and were not charged: they may have killed those.
    """

    def __init__(self, ids: Sequence[str], wrong: Sequence[str] = ()) -> None:
        self.ids, self.wrong = ids, list(wrong)
        count = len(self.ids)
        self.status, self.losses = np.zeros(count, np.int8), np.full(count, math.nan)
        self.ended_t = np.full(count, math.nan)
        self.finished: Event | None = None
        self.owner, self.refused, self.doubled = 0, 0, 0
        self.began_t: float | None = None
        self.last_t: float | None = None
        self.latest = dict[str, Event]()
        self.damage, self._damaged_ids = list[Damage](), set[str]()
        self.strays = dict[str, TrialState]()
        self.charged, self.suspects = dict[str, Counter[str]](), set[str]()
        self._own = dict[int, TrialState]()
        self._plain = np.ones(count, bool)  # the columns have all there is of a trial
        self._entries = list[JournalEntry]()
        # Places in ``_entries``, and in the line of the batch there, of the start and of the end of plain trials.
        self._begun, self._begun_row = np.full(count, NONE, np.int32), np.zeros(count, np.int32)
        self._ended, self._ended_row = np.full(count, NONE, np.int32), np.zeros(count, np.int32)
        self._number, self._by = np.zeros(count, np.int32), np.zeros(count, np.int32)  # of the attempt that has begun
        self._made = dict[str, tuple[int, list[JournalEntry]]]()  # the last line that was taken apart, by kind

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each trial in the sweep, by its id."""
        return {name: place for place, name in enumerate(self.ids)}

    def named(self, ids: Sequence[str], wrong: Sequence[str]) -> None:
        """``trials.jsonl`` has more lines now."""
        self.ids, self.wrong = ids, list(wrong)
        self.__dict__.pop("places", None)
        self._made.clear()

    @property
    def trials(self) -> Mapping[str, TrialState]:
        """The trials by their ids, in the order of the sweep."""
        return _States(self)

    @property
    def odd(self) -> Iterable[TrialState]:
        """The trials that were tried again, lost, or named out of order: those with more than a start and an end."""
        return self._own.values()

    @property
    def damaged(self) -> int:
        """The number of damaged lines of the journal and of ``trials.jsonl``."""
        return len(self.damage) + len(self.wrong)

    @property
    def unreadable(self) -> bool:
        """Whether something else lies in the place of a segment."""
        return any(one.why for one in self.damage)

    def problems(self, folder: RunFolder) -> list[str]:
        """The damage: file and line, what is lost, and what to do."""
        lost = [f"{folder.uri}/{one.text}" for one in self.damage]
        lost += [f"{folder.uri}/{text}" for text in self.wrong]
        lost += [
            f"{folder.uri}/trials.jsonl: it has no line of trial {name}, whose parameters are lost" for name in self.strays
        ]
        return [
            f"{text}\n  do: `qdrun resume {folder.uri}` makes good what can be: it runs trials again that lost their row"
            for text in lost
        ]

    def counts(self) -> Counter[str]:
        """Trials by status."""
        found = np.bincount(self.status, minlength=len(STATUSES)).tolist()
        return Counter({status: count for status, count in zip(STATUSES, found, strict=True) if count})

    @property
    def complete(self) -> bool:
        """Whether every trial has its row."""
        return bool((self.status > RUNNING).all())

    def has_row(self, trial: str) -> bool:
        """Whether the run has such a trial, and the trial its row."""
        return trial in self.places and bool(self.status[self.places[trial]] > RUNNING)

    def best(self) -> tuple[int, float] | None:
        """The place of the trial with the smallest loss of those that are done, the first of equals, and the loss."""
        losses = np.where(self.status == DONE, self.losses, math.nan)
        if np.isnan(losses).all():
            return None
        at = int(np.nanargmin(losses))
        return at, float(losses[at])

    def state_at(self, place: int) -> TrialState:
        """The state of the trial at a place in the sweep."""
        known = self._own.get(place)
        if known is not None:
            known.damaged = known.id in self._damaged_ids
            return known
        state = TrialState(self.ids[place], damaged=self.ids[place] in self._damaged_ids)
        for numbers, rows in ((self._begun, self._begun_row), (self._ended, self._ended_row)):
            if numbers[place] != NONE:
                state.apply(self._entry(int(numbers[place]), int(rows[place])))
        return state

    def single_rows(self) -> Iterator[TrialState]:
        """The trials whose row has a line of its own."""
        for place in np.flatnonzero(self.status > RUNNING).tolist():
            if not self._plain[place] or self._entries[self._ended[place]].event["event"] != ROWS:
                yield self.state_at(place)

    def unended(self) -> Array:
        """Which trials wait, or run for the first time, and have nothing else to them."""
        return self._plain & (self.status <= RUNNING)

    def begun(self) -> Iterator[tuple[Event, Array]]:
        """The trials that run for the first time, by the events that began them."""
        running = np.flatnonzero(self._plain & (self.status == RUNNING))
        for number in np.unique(self._begun[running]).tolist():
            yield self._entries[number].event, running[self._begun[running] == number]

    def blocks(self) -> list[Block]:
        """The trials that ended well in batches, by the lines that have their rows."""
        places = np.flatnonzero(self._plain & (self.status == DONE))
        places = places[np.argsort(self._ended[places], kind="stable")]
        numbers, starts = np.unique(self._ended[places], return_index=True)
        parts = zip(numbers.tolist(), np.split(places, starts[1:]), strict=True) if len(places) else ()
        lines = [(self._entries[number].event, part) for number, part in parts]
        return [
            Block(event, self._ended_row[part], part) for event, part in lines if event["event"] == ROWS and _is_complete(event)
        ]

    def launches(self) -> list[RunningTogether]:
        """What runs, the oldest first; the trials of a batch have one launch."""
        found = dict[Any, RunningTogether]()
        running = np.flatnonzero(self.status == RUNNING)
        for number in np.unique(self._begun[running[self._plain[running]]]).tolist():
            places = running[self._plain[running] & (self._begun[running] == number)].tolist()
            (first,) = self.state_at(places[0]).attempts
            launch = found.setdefault(first.place.get("launch", first.attempt), RunningTogether(first, []))
            launch.places.extend(places)
        for place in running[~self._plain[running]].tolist():
            state = self._own[place]
            for tried in state.attempts:
                if tried.status == "running":
                    key = tried.place.get("launch", tried.attempt)
                    found.setdefault(key, RunningTogether(tried, [])).places.append(place)
        return sorted(found.values(), key=lambda launch: launch.first.started_t or 0.0)

    def note_damage(self, follower: Follower) -> None:
        """Take what a reader says of the lines that it could not read, or had to leave out."""
        self.damage, self.refused = follower.damage, follower.refused
        self._damaged_ids = {name for damage in self.damage for name in damage.trials}

    def take(self, entry: JournalEntry) -> None:
        """Take the next entry of the journal."""
        event, kind = entry.event, entry.event["event"]
        self.owner, self.last_t = entry.owner, event.get("t", self.last_t)
        if kind in (BEGUN, ROWS):
            self._take_batch(entry)
        elif kind in ("started", "ended", "retry", "requeued", "pardoned"):
            self._take_one(entry)
        else:
            self.latest[kind] = event
        if kind == "owner":
            self.finished = None
            for place in np.flatnonzero(self.status == RUNNING).tolist():
                self._alone(place)
            for state in (*self._own.values(), *self.strays.values()):
                state.lose()
            self._update(self._own)
        elif kind == "finished":
            self.finished = event

    def _take_batch(self, entry: JournalEntry) -> None:
        """Take a line of a batch: as columns where it is the only one of its kind for its trials, else trial by trial."""
        event, by, begins = entry.event, by_of(entry), entry.event["event"] == BEGUN
        if "at" in event:
            places = places_in(event["at"])
            places[places >= len(self.ids)] = NONE
        else:  # a journal of before, or a trial that the list of trials does not have
            places = np.array([self.places.get(name, NONE) for name in event["trials"]], np.int64)
        numbers = attempts_of(event, len(places))
        fits = self._plain[places] & (self._ended[places] == NONE) & (places != NONE)
        if begins:
            fits &= self._begun[places] == NONE
        else:
            fits &= (self._begun[places] == NONE) | ((self._number[places] == numbers) & (self._by[places] == by))
        others = ~fits
        if not (places[1:] > places[:-1]).all() and len(np.unique(places)) < len(places):  # as almost always they ascend
            fits[:], others[:] = False, True
        elif not begins:
            second = self._plain[places] & (self._ended[places] != NONE) & (places != NONE)
            self.doubled += int(second.sum())  # the first row counts
            others &= ~second
        rows = np.flatnonzero(fits)
        places = places[rows]
        if len(rows) and begins:
            self._begin(entry, places, rows, numbers[rows], by)
        elif len(rows):
            self._end(entry, places, rows)
            if "loss" in event.get("columns", {}):
                self.losses[places] = decoded(event["columns"]["loss"])[rows]
        if others.any():
            made = each_trial(entry, self.ids)
            for row in np.flatnonzero(others).tolist():
                self._take_alone(made[row])

    def _take_one(self, entry: JournalEntry) -> None:
        """Take an event of one trial."""
        event, kind, by = entry.event, entry.event["event"], by_of(entry)
        self._count_failure(event)
        place, number = self.places.get(str(event.get("trial")), NONE), int(event.get("attempt", 0))
        if kind == "pardoned":
            return
        plain = place != NONE and self._plain[place] and self._ended[place] == NONE
        known = plain and self._begun[place] != NONE
        if plain and kind == "started" and not known:
            self._begin(entry, place, 0, number, by)
        elif plain and kind == "ended" and (not known or (self._number[place] == number and self._by[place] == by)):
            self._end(entry, place, 0)
            self.losses[place] = _loss_of(event)
        elif place != NONE and self._plain[place] and self._ended[place] != NONE and kind == "ended":
            self.doubled += 1
        else:
            self._take_alone(entry)

    def _count_failure(self, event: Event) -> None:
        kind, name = event["event"], str(event.get("trial"))
        if kind == "retry" and event.get("charged", True):
            self.charged.setdefault(name, Counter())[str(event.get("failure"))] += 1
        elif kind == "retry" and event.get("failure") == Failure.crash:
            self.suspects.add(name)
        elif kind == "pardoned":
            self.charged.setdefault(name, Counter())[Failure.crash.value] -= 1
        elif kind == "requeued":
            self.charged.pop(name, None)

    def _begin(self, entry: JournalEntry, places: Array | int, rows: Array | int, numbers: Array | int, by: int) -> None:
        self._begun[places], self._begun_row[places] = len(self._entries), rows
        self._number[places], self._by[places], self.status[places] = numbers, by, RUNNING
        self._entries.append(entry)
        self._began(entry.event.get("t"))

    def _end(self, entry: JournalEntry, places: Array | int, rows: Array | int) -> None:
        event, short = entry.event, self._begun[places] == NONE
        self._ended[places], self._ended_row[places] = len(self._entries), rows
        self.status[places] = CODES[event["status"]] if event.get("status") in FINAL else CODES["failed"]
        self.ended_t[places] = event["t"] if event.get("t") is not None else math.nan
        self._entries.append(entry)
        if "place" in event and short.any():  # they began and ended between two writes
            started_t, ended_t = times_of(event)
            self._began(started_t)
            if ended_t:
                self.ended_t[np.atleast_1d(places)[np.atleast_1d(short)]] = ended_t

    def _began(self, t: float | None) -> None:
        if t is not None:
            self.began_t = t if self.began_t is None else min(self.began_t, t)

    def _take_alone(self, entry: JournalEntry) -> None:
        """Take an event of one trial that does not fit into the columns."""
        name = str(entry.event.get("trial"))
        place = self.places.get(name, NONE)
        if place == NONE:
            self.doubled += self.strays.setdefault(name, TrialState(name)).apply(entry)
            return
        state = self._alone(place)
        self.doubled += state.apply(entry)
        self._began(state.attempts[-1].started_t if state.attempts else None)
        self._update((place,))

    def _alone(self, place: int) -> TrialState:
        """The state of a trial, from now on beside the columns."""
        if place not in self._own:
            self._own[place] = self.state_at(place)
            self._plain[place], self._begun[place], self._ended[place] = False, NONE, NONE
        return self._own[place]

    def _update(self, places: Iterable[int]) -> None:
        """The columns that all trials have, of those beside them."""
        for place in places:
            state = self._own[place]
            self.status[place] = CODES[state.status]
            self.losses[place] = math.nan if state.entry is None else _loss_of(state.entry.event)
            ended = None if state.entry is None or not state.attempts else state.attempts[-1].ended_t
            self.ended_t[place] = math.nan if ended is None else ended

    def _entry(self, number: int, row: int) -> JournalEntry:
        """The entry of one trial, of a line that may be that of a batch."""
        entry = self._entries[number]
        if entry.event["event"] not in (BEGUN, ROWS):
            return entry
        kind = str(entry.event["event"])
        if self._made.get(kind, (NONE, ()))[0] != number:
            self._made[kind] = number, each_trial(entry, self.ids)
        return self._made[kind][1][row]


class _States(Mapping[str, TrialState]):
    def __init__(self, run: Replay) -> None:
        self._run = run

    def __getitem__(self, name: str) -> TrialState:
        return self._run.state_at(self._run.places[name])

    def __contains__(self, name: object) -> bool:
        return name in self._run.places

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.ids)

    def __len__(self) -> int:
        return len(self._run.ids)


def _loss_of(event: Event) -> float:
    """The loss of a row; texts are numbers that are not finite."""
    loss = event.get("loss")
    return math.nan if loss is None else float(loss)


def _is_complete(event: Event) -> bool:
    """Whether the line of a batch says all there is of its trials, and no array is empty."""
    shapes = [column["shape"][1:] for kind in ARRAYS for column in event.get(kind, {}).values()]
    return event.get("planned_bytes") is not None and bool(event.get("device")) and all(map(math.prod, shapes))


class Replayer:
    """The state of a run, kept up to date: each line of the journal is read once.

    Args:
        folder: the run.
        detail: of the rows, what to keep of gradients and outputs.
        ids: of its trials, where they are known.
        entries: a list to which all entries are added.
    """

    def __init__(
        self,
        folder: RunFolder,
        detail: Detail = Detail.NONE,
        ids: Sequence[str] | None = None,
        entries: list[JournalEntry] | None = None,
    ) -> None:
        self.folder, self._ids, self._given, self.follower = folder, ids, entries, Follower(folder, detail)
        self._state: Replay | None = None

    @property
    def lengths(self) -> dict[str, int]:
        """See ``Follower``."""
        return self.follower.lengths

    @property
    def last_seq(self) -> int:
        """See ``Follower``."""
        return self.follower.last_seq

    def look(self) -> Replay:
        """The state now: the same object with what is new, or another one where a former owner's lines do not count any more."""
        news = self.follower.look()
        if self._state is None or news.again:
            ids, wrong = self.folder.found_ids() if self._ids is None else (self._ids, [])
            self._state = Replay(ids, wrong)
            if self._given is not None:
                self._given.clear()
        elif self._ids is None and self._state.ids[-1:] == [f"line-{len(self._state.ids)}"]:  # it was being written
            self._state.named(*self.folder.found_ids())
        if self._given is not None:
            self._given += news.entries
        for entry in news.entries:
            self._state.take(entry)
        self._state.note_damage(self.follower)
        return self._state


def replay(folder: RunFolder, detail: Detail = Detail.NONE, *, trials: Iterable[str] | None = None) -> Replay:
    """Read a journal; one pass over its lines, and no file of any trial is opened.

    Args:
        folder: the run.
        detail: of the rows, what to keep of gradients and outputs.
        trials: the ids of its trials, where they are known.
    """
    return Replayer(folder, detail, None if trials is None else list(trials)).look()


def recover(folder: RunFolder, journal: Journal, reader: Replayer | None = None) -> Replay:
    """Recover a run for a new owner: accept complete results of former owners' attempts that have no line in the journal, but for those
    of attempts that investigated a crash.

    Lists the files of trials once, and opens those of results alone: of a large batch each trial was running. Returns the state after that:
    every trial either has its one row or waits. Files that processes of former owners did not finish are removed.

    Args:
        folder: the run.
        journal: of the new owner.
        reader: has read the journal so far.

    Raises:
        StorageFull, OwnerLost: see ``Journal.write_all``.
    """
    folder.files.sweep(TRIALS)
    folder.files.sweep("", HEARTBEAT)
    reader = Replayer(folder) if reader is None else reader
    state = reader.look()
    found: list[tuple[Attempt, Record]] = []
    lost = [(trial, tried) for trial in state.odd if trial.entry is None for tried in reversed(trial.attempts)]
    lost = [(trial.id, tried.attempt) for trial, tried in lost if tried.status == "lost" and not tried.place.get("checked")]
    there, seen = folder.files.below(TRIALS) if lost else {}, set[str]()
    for name, attempt in lost:
        if name not in seen and attempt.result in there:
            record = left_behind(folder, attempt)
            if record is not None:
                found.append((attempt, record | {"recovered": True}))
                seen.add(name)
    if found:
        ended(journal, found, sync=True)
    return reader.look()


def record_of(folder: RunFolder, state: TrialState) -> Record | None:
    """The whole row of a trial, gradients and outputs included; None while it has none."""
    return None if state.entry is None else event_at(folder, state.entry)


def run_state(folder: RunFolder, state: Replay, alive: Callable[[RunFolder], bool] = lives) -> str:
    """Running, done, failed, cancelled, interrupted: the journal's last word; or lost, when the process behind the run is not ``alive``."""
    if state.finished is not None:
        return str(state.finished.get("state", "failed"))
    return "running" if alive(folder) else "lost"
