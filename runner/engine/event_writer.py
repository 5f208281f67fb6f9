"""Writes the events of a run to its journal, in one write per round, and updates the board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..ledger.client import RunLedger
from ..ledger.leases import Waits
from ..observe.board import Board
from ..observe.live import Display
from ..observe.timing import Timing
from ..optimize.descent import best_so_far
from ..ray_adapter.worker_pool import Workers
from ..store.attempts import Attempt, pack
from ..store.columns import BEGUN, ROWS, BatchRows, who
from ..store.files import StorageFull
from ..store.follower import Event
from ..store.journal import Journal, line_of
from ..store.layout import RunFolder
from ..study.trial_list import BatchColumns, Trials
from ..value_columns import Places
from ..workers.records import numbers_of
from . import messages as m
from .writer_threads import Interrupts

SHOWN_NOTES = 20
SNAPSHOT_BYTES_S = 1024
"""Maximum growth of a journal by snapshots in bytes per second: 84 MiB a day."""


@dataclass(frozen=True)
class Outside:
    """The environment of a run: its journal, its board and its controls."""

    folder: RunFolder
    journal: Journal
    board: Board
    screen: Display
    timing: Timing
    ledger: RunLedger
    workers: Workers
    interrupts: Interrupts


@dataclass(frozen=True)
class Inside:
    """What a run is: its trials, what a worker is told of those of a launch, and when a batch gets another budget.

    ``budget``: the ``memory_budget`` of a trial that was granted so many bytes at a relative time; None: what its spec says.
    ``planned``: bytes of a trial, None where they are not known. ``too_large``: why a trial is not to be started; empty where it is.
    ``loose``: whether a trial may take more than it claims, as its plan is known to lack something. ``device``: about the device of a name,
    for the journal. ``may_use``: the devices that there are for the run now.
    """

    trials: Trials
    columns: Callable[[Places], BatchColumns]
    planned: Callable[[int], int | None] = lambda place: None
    budget: Callable[[m.Launch], int | None] = lambda launch: None
    too_large: Callable[[int], str] = lambda place: ""
    loose: Callable[[int], bool] = lambda place: False
    device: Callable[[str], Mapping[str, Any]] = lambda name: {}
    may_use: Callable[[], set[str]] = set


@dataclass(frozen=True)
class Kept:
    """The existing rows of a resumed run: their number by status, and the smallest loss with the parameters of its trial."""

    counts: Mapping[str, int] = field(default_factory=dict)
    best: tuple[float, str] | None = None

    def show(self, board: Board) -> Mapping[str, int]:
        """Put them on the board of the run; gives their numbers."""
        board.counts.update(self.counts)
        board.best = self.best
        return self.counts


def with_best(inside: Inside, journal: Journal, row: Event) -> Event:
    """The row of a trial whose attempt was killed, with the best point of its descent; any other row as it is. Reads the store."""
    if row["status"] == "done" or not row["attempt"] or row.get("loss") is not None:
        return row
    if inside.columns(range(1)).optimize is None:
        return row
    optimize = inside.columns((inside.trials.places[row["trial"]],)).optimize
    found = best_so_far(journal.folder.files, row["trial"], optimize) if optimize else None
    if found is None:
        return row
    try:
        return pack(journal.folder, Attempt(row["trial"], row["attempt"], journal.owner.number), row | numbers_of(found))
    except StorageFull:  # of arrays that need files of their own
        return row


class Book:
    """Takes the actions of the state that are to be written or shown. Starts and ends of trials are shown once they are written."""

    def __init__(self, inside: Inside, outside: Outside) -> None:
        self.inside, self.board, self.screen = inside, outside.board, outside.screen
        self._noted: list[m.Action] = []
        self._writes: list[tuple[str, Event]] = []
        self._shows: list[Callable[[], None]] = []  # what the board is told once all that was written is in the journal
        self._short: dict[int, m.Record] = {}  # began and ended since the last write: one event
        self._short_batches: dict[int, m.Record] = {}  # the same for batches all of whose trials have ended well
        self._batches: dict[int, Places] = {}  # that run: the bytes of their trials are shares
        self._notes = 0
        self._failures: set[str] = set()
        self._devices: set[str] = set()  # about which the journal says what they are
        self._snapshot: Mapping[str, Any] = {}
        self._snapshot_due = float("-inf")

    def events(self) -> list[tuple[str, Event]]:
        """The events of all actions since the last call, in their order, for the journal."""
        noted, self._noted = self._noted, []
        over = {(action.trial, action.number) for action in noted if type(action) is m.WriteEnded}
        well: Counter[int] = Counter()
        for action in noted:
            if type(action) is m.WriteRows:
                well[action.launch] += len(action.rows.trials)
        for action in noted:
            if type(action) is m.WriteEnded:
                self._ended(action)
            elif type(action) is m.WriteBegun and well[action.launch] == len(action.trials) > 1:
                self._short_batches[action.launch] = action.place
            elif type(action) is m.WriteBegun and len(action.trials) == 1 and (action.trials[0], action.numbers[0]) in over:
                self._short[action.trials[0]] = action.place
            else:
                self._take(action)
        writes, self._writes = self._writes, []
        return [*self._new_devices(writes), *writes]

    def _new_devices(self, writes: list[tuple[str, Event]]) -> list[tuple[str, Event]]:
        """An event for each device on which a trial has begun for the first time: what it is, its UUID and its driver."""
        places = [event.get("place", event) for kind, event in writes if kind in ("started", BEGUN) or "place" in event]
        new = {str(place["device"]) for place in places if "device" in place} - self._devices
        self._devices |= new
        about = {name: self.inside.device(name) for name in sorted(new)}
        return [("device", {"device": name, **told}) for name, told in about.items() if told]

    def note(self, action: m.Action) -> None:
        """Write an action down and show it: it is among the next ``events``."""
        self._noted.append(action)

    def show(self) -> None:
        """All that ``events`` has given is written: show what it says of trials."""
        shows, self._shows = self._shows, []
        for show in shows:
            show()

    def _take(self, action: m.Action) -> None:
        match action:
            case m.WriteBegun():
                self._begun(action)
            case m.WriteRows():
                place = self._short_batches.get(action.launch)
                self._writes.append((ROWS, action.rows.event() | ({} if place is None else {"place": place})))
                self._shows.append(partial(self._show_rows, action.launch, action.rows, short=place is not None))
            case m.BatchOver():
                self._short_batches.pop(action.launch, None)
                self._batches.pop(action.launch, None)
                self._shows.append(partial(self.board.batch_over, action.launch))
            case m.WriteRetry():
                fields = {"failure": action.failure, "error": dict(action.error), "charged": action.charged}
                self._write("retry", action.trial, action.number, fields)
                self._shows.append(partial(self.board.retried, self._id(action.trial), action.failure, action.charged))
            case m.WriteRetired():
                place = {"device": action.worker.device, "slot": action.worker.slot}
                self._writes.append(("retired", place | {"why": action.why}))
            case m.WritePardon():
                self._write("pardoned", action.trial, action.number, {})
            case m.Avoid():
                why = f"{action.error['type']}: {action.error['message']}".splitlines()[0]
                self._writes.append(("avoided", {"device": action.device, "seconds": action.seconds, "why": why}))
                self._say(
                    f"{action.device} is of no use again and again: no trial is started there for {action.seconds:g} s; {why}"
                )
            case m.Stopping():
                self._writes.append(("stopping", {"state": action.state}))
                self.board.phase = "stopping"
                wait = f", waiting for {action.running} running trials; Ctrl-C again stops them now"
                self.screen.note(action.why + (wait if action.running and action.state != "cancelled" else ""))

    def _begun(self, action: m.WriteBegun) -> None:
        first, count, place = action.trials[0], len(action.trials), action.place
        label, where = self._label(first), (str(place["device"]), int(place["bytes"]))
        if count == 1:
            self._write("started", first, action.numbers[0], place)
            self._shows.append(partial(self.board.started, self._id(first), label, *where))
            return
        self._batches[action.launch] = action.trials
        self._writes.append((BEGUN, {**who(action.trials, action.numbers), "launch": action.launch, **place}))
        self._shows.append(partial(self.board.batch_started, action.launch, self._id(first), count, label, *where))

    def _write(self, event: str, trial: int, number: int, fields: Mapping[str, Any]) -> None:
        self._writes.append((event, {"trial": self._id(trial), "attempt": number, **fields}))

    def _id(self, trial: int) -> str:
        return self.inside.trials.ids[trial]

    def _label(self, trial: int) -> str:
        return self.inside.trials[trial].label

    def _ended(self, action: m.WriteEnded) -> None:
        place = self._short.pop(action.trial, None)
        own = {"trial": self._id(action.trial), "attempt": action.number, **action.record}
        if place is not None:
            own["place"] = place
        self._writes.append(("ended", own))
        shared = any(action.trial in trials for trials in self._batches.values())
        self._shows.append(partial(self._show_end, action.trial, action.record, short=place is not None, shared=shared))

    def _show_end(self, trial: int, record: m.Record, *, short: bool, shared: bool) -> None:
        """``short``: the board was not told of its start. ``shared``: its bytes are its share of a batch."""
        if short:
            self.board.passed(self._id(trial))
        for warning in record.get("warnings", ()):
            if warning not in self.board.warnings:
                self.board.warnings.append(warning)
                self._say(f"warning: {warning}")
        status, loss = record["status"], record.get("loss")
        planned, own = self.inside.planned(trial), record.get("planned_bytes")
        grown = own is not None and planned is not None and own > planned and not shared
        label = self._label(trial) if grown or self.board.shows(status, loss) else ""
        self.board.stopped(self._id(trial), status, label, loss, record)
        if grown:
            self._say(f"{label}: planned {planned} bytes, its own plan says {own}; see Job.shape_key")
        if status in ("failed", "poisoned"):
            lines = record["error"]["message"].splitlines() or [""]
            failure = f"{record['error']['type']}: {lines[0]}"
            if failure not in self._failures:  # equal ones are counted on the board
                self._failures.add(failure)
                self._say(f"{label} {status}: {failure}")

    def _show_rows(self, launch: int, rows: BatchRows, *, short: bool) -> None:
        """As ``_show_end`` for trials of a batch that ended well."""
        if short:
            self.board.passed(self._id(rows.trials[0]), len(rows.trials))
        at, loss = rows.best
        if self.board.shows("done", loss):
            self.board.found_best(loss, self._label(rows.trials[at]), rows.outputs_of(at))
        self.board.batch_ended(launch, rows.shared, len(rows.trials))

    def _say(self, text: str) -> None:
        self.board.notes.append(text)
        self._notes += 1
        if self._notes <= SHOWN_NOTES:
            self.screen.note(text)

    def snapshot(
        self, seen: Mapping[str, Any], why: Mapping[str, Waits], used: Mapping[str, int] | None = None, now: float = 0.0
    ) -> None:
        """What the ledger says of devices and of what waits, and workers of the bytes in use of each pool: for the board, and for the
        journal when it has changed.

        Of what runs on a device the bytes alone are kept: whose they are, ``started`` events say. A large cluster's are written less often
        (``now``: seconds), as only the last of them is ever looked at.
        """
        waiting = [{"count": one.count, "example": name, "why": one.why} for name, one in why.items()]
        devices = [one | {"running": [{"bytes": run["bytes"]} for run in one["running"]]} for one in seen.get("devices", ())]
        shown = {"waiting": waiting, "pools": seen.get("pools", []), "devices": devices}
        if used:
            shown["used"] = dict(used)
        self.board.snapshot = shown
        if shown != self._snapshot and now >= self._snapshot_due:
            self._snapshot = shown
            self._writes.append(("snapshot", shown))
            self._snapshot_due = now + len(line_of(shown)) / SNAPSHOT_BYTES_S
