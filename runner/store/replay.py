"""Replays the journal of a run into the state of every trial, and recovers the results that a lost owner left.

The rules: a trial waits, an attempt of it runs, ``ended`` gives it its row (with a ``place``: it began since the last write). The first row
counts, and a further one is ``doubled``, unless ``requeued`` asked for it.
A new owner ends all attempts of the one before: what has no row by then waits again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .attempts import Attempt, Failure, Record, ended, left_behind
from .columns import BEGUN, ROWS, expanded
from .journal import LIGHT_NUMBERS, Damage, Event, Events, Journal, JournalEntry, event_at, read
from .layout import HEARTBEAT, TRIALS, RunFolder
from .owner import lives

Status = Literal["waiting", "running", "done", "failed", "cancelled", "poisoned"]
FINAL = ("done", "failed", "cancelled", "poisoned")
ONE_CLOCK_S = 60.0
"""The end of an attempt is written down so soon; where its worker says another time, its clock is not that of the run."""


@dataclass
class AttemptState:
    """One attempt: ``status`` is running, one of ``FINAL``, retried (its trial waits again), or lost (with its owner).

    ``charged``: it counts against the retries of its trial.
    """

    attempt: Attempt
    status: str
    started_t: float | None = None
    ended_t: float | None = None
    failure: str | None = None
    place: dict[str, Any] = field(default_factory=dict)
    charged: bool = True


@dataclass
class TrialState:
    """A trial as the journal has it.

    Attributes:
        id: of the trial.
        status: waiting, running, or how it ended.
        attempts: all of its tries, the last one last.
        entry: its row: the ``ended`` event that counts; None while it has none.
        damaged: a line of the journal that names it is not as it was written.
    """

    id: str
    status: Status = "waiting"
    attempts: list[AttemptState] = field(default_factory=list)
    entry: JournalEntry | None = None
    damaged: bool = False

    @property
    def next_number(self) -> int:
        """The number of the next attempt."""
        return 1 + max((state.attempt.number for state in self.attempts), default=0)

    @property
    def failure(self) -> str | None:
        """The class of its last failure."""
        return next((state.failure for state in reversed(self.attempts) if state.failure), None)

    def failures(self) -> Counter[str]:
        """Failed attempts by class, over all owners: what limits retries. Attempts lost with an owner count as infrastructure."""
        return Counter(state.failure for state in self.attempts if state.failure)


@dataclass(frozen=True)
class Block:
    """Trials of which the journal says one thing alone: that they ended well in one line of a batch.

    Attributes:
        event: of that line, whose columns have a row for each of its trials.
        rows: the rows of these trials.
        trials: their ids.
    """

    event: Event
    rows: list[int]
    trials: list[str]


@dataclass
class Replay:
    """The state of a run by its journal.

    Attributes:
        trials: by id, in the order of the sweep.
        finished: the ``finished`` event of the latest owner; None while the run is running, or if its owner is lost.
        owner: the number of the latest owner that wrote; 0 before the first.
        last_t: time of the last event.
        damage, refused: lines of the journal, see ``Events``.
        doubled: rows that came after the one that counts.
        strays: trials of which the journal has events, and ``trials.jsonl`` no line: that is damaged.
        wrong: what is wrong with the lines of ``trials.jsonl``, where those were read.
        blocks: trials that are done and not among ``trials``, see ``split``.
        places: of all trials in the order of the sweep, where there are blocks.
    """

    trials: dict[str, TrialState]
    finished: dict[str, Any] | None = None
    owner: int = 0
    last_t: float | None = None
    damage: list[Damage] = field(default_factory=list)
    refused: int = 0
    doubled: int = 0
    strays: dict[str, TrialState] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    blocks: Sequence[Block] = ()
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def damaged(self) -> int:
        """The number of damaged lines of the journal and of ``trials.jsonl``."""
        return len(self.damage) + len(self.wrong)

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
        done = {"done": sum(len(block.trials) for block in self.blocks)} if self.blocks else {}
        return Counter(done) + Counter(state.status for state in self.trials.values())

    @property
    def complete(self) -> bool:
        """Whether every trial has its row."""
        return all(state.status in FINAL for state in self.trials.values())


def replay(
    folder: RunFolder,
    *,
    events: Events | None = None,
    trials: Iterable[str] | None = None,
    slim: bool = True,
    light: bool = False,
) -> Replay:
    """Read a journal; one pass over its lines, and no file of any trial is opened.

    Args:
        folder: the run.
        events: its journal, where it was read already.
        trials: the ids of its trials, where they are known.
        slim: leave gradients and outputs out of the rows.
        light: leave large ones alone out of them, see ``journal.read``.
    """
    events = read(folder, slim=slim and not light, light=light) if events is None else events
    names, wrong = (trials, []) if trials is not None else folder.found_ids()
    out = Replay({name: TrialState(name) for name in names}, damage=events.damage, refused=events.refused, wrong=wrong)
    for entry in events.entries:
        _apply(out, entry)
    for name in {name for damage in events.damage for name in damage.trials}:
        if name in out.trials:
            out.trials[name].damaged = True
    return out


def split(events: Events, known: Container[str]) -> tuple[list[Block], Events]:
    """The trials that need no replay, and the events of all others.

    They have begun once and ended well in a batch whose arrays are small; no other event names them, and no damaged line.

    Args:
        events: read ``whole``; the lines of batches are among the events that are given, too, which a replay takes no notice of.
        known: the ids of the run.
    """
    lines = [entry for entry in events.entries if entry.event["event"] in (ROWS, BEGUN)]
    named = {str(entry.event["trial"]) for entry in events.entries if "trial" in entry.event}
    named.update(name for damage in events.damage for name in damage.trials)
    begun, ended = dict[str, tuple[int, int]](), set[str]()
    for entry in lines:
        event, by = entry.event, int(entry.event.get("by", entry.owner) or 1)
        begins = event["event"] == BEGUN
        for name, attempt in zip(event["trials"], event["attempts"], strict=True):
            if begins:
                twice = name in begun or name in ended
                begun[name] = attempt, by
            else:
                twice = name in ended or begun.get(name, (attempt, by)) != (attempt, by)
                ended.add(name)
            if twice or name not in known:
                named.add(name)
    blocks, rest, alone = list[Block](), list[JournalEntry](), ended - named
    for entry in lines:
        if entry.event["event"] == ROWS and _small(entry.event):
            rows = [row for row, name in enumerate(entry.event["trials"]) if name in alone]
            blocks += [Block(entry.event, rows, [entry.event["trials"][row] for row in rows])] if rows else []
    alone = {name for block in blocks for name in block.trials}
    for entry in events.entries:
        rest.append(entry)
        if entry.event["event"] in (ROWS, BEGUN) and not alone.issuperset(entry.event["trials"]):
            made = enumerate(expanded(entry.event, most=LIGHT_NUMBERS))
            rest += [replace(entry, event=one, row=row) for row, one in made if one["trial"] not in alone]
    return blocks, replace(events, entries=rest)


def _small(event: Event) -> bool:
    """Whether a row of the columns of a line is all there is of a trial: no array is left in the journal, or empty."""
    shapes = [column["shape"][1:] for kind in ("gradients", "outputs") for column in event.get(kind, {}).values()]
    return event.get("planned_bytes") is not None and all(0 < math.prod(shape) <= LIGHT_NUMBERS for shape in shapes)


def _apply(out: Replay, entry: JournalEntry) -> None:
    event, kind = entry.event, entry.event["event"]
    out.owner, out.last_t = entry.owner, event.get("t", out.last_t)
    if kind == "owner":
        out.finished = None
        for state in out.trials.values():
            _lose(state)
    elif kind == "finished":
        out.finished = event
    elif kind in ("started", "ended", "retry", "requeued"):
        name = str(event.get("trial"))
        state = out.trials.get(name) or out.strays.setdefault(name, TrialState(name))
        if kind == "started":
            _start(state, entry)
        elif kind == "requeued":
            state.status, state.entry = "waiting", None
        elif state.entry is not None:
            out.doubled += kind == "ended"
        elif kind == "retry":
            _end(state, entry, "retried", event.get("failure") or Failure.infrastructure)
            state.status, state.attempts[-1].charged = "waiting", bool(event.get("charged", True))
        else:
            status = event.get("status")
            status = status if status in FINAL else "failed"
            _end(state, entry, status, event.get("failure"))
            state.status, state.entry = status, entry


def _lose(state: TrialState) -> None:
    for tried in state.attempts:
        if tried.status == "running":
            tried.status, tried.failure = "lost", Failure.infrastructure
    if state.status == "running":
        state.status = "waiting"


def _identity(entry: JournalEntry) -> Attempt:
    event = entry.event
    return Attempt(str(event["trial"]), int(event.get("attempt", 0)), int(event.get("by", entry.owner) or 1))


def _start(state: TrialState, entry: JournalEntry) -> None:
    event = entry.event
    beside = ("seq", "t", "event", "trial", "attempt", "by")
    place = {name: value for name, value in event.items() if name not in beside}
    state.attempts.append(AttemptState(_identity(entry), "running", event.get("t"), place=place))
    if state.entry is None:
        state.status = "running"


def _end(state: TrialState, entry: JournalEntry, status: str, failure: str | None) -> None:
    attempt = _identity(entry)
    known = next((tried for tried in reversed(state.attempts) if tried.attempt == attempt), None)
    if known is None:  # it was never started: too large, or cancelled while it waited; or its line is damaged
        place = entry.event.get("place")  # of one that began and ended between two writes
        if place is None and (attempt.number == 0 or status == "cancelled"):
            return
        known = AttemptState(attempt, status, place=place or {})
        state.attempts.append(known)
        if place is not None:
            known.started_t, known.ended_t = _times(entry.event)
    known.status, known.ended_t, known.failure = status, known.ended_t or entry.event.get("t"), failure


def _times(event: Event) -> tuple[float | None, float | None]:
    """When an attempt started and ended that has one line, as its worker says it; where that clock is not the run's, it ended then."""
    started, ended, t = event.get("started_t"), event.get("ended_t"), event.get("t")
    if started is None or ended is None or t is None:
        return started, ended
    there = ended if 0.0 <= t - ended < ONE_CLOCK_S else t
    return there - max(0.0, ended - started), there


def recover(folder: RunFolder, journal: Journal) -> Replay:
    """Recover a run for a new owner: accept complete results of former owners' attempts that have no line in the journal, but for those
    of attempts that investigated a crash.

    Lists the files of trials once, and opens those of results alone: of a large batch each trial was running. Returns the state after that:
    every trial either has its one row or waits. Files that processes of former owners did not finish are removed.

    Raises:
        StorageFull, OwnerLost: see ``Journal.write_all``.
    """
    folder.files.sweep(TRIALS)
    folder.files.sweep("", HEARTBEAT)
    state = replay(folder)
    found: list[tuple[Attempt, Record]] = []
    lost = [(trial, tried) for trial in state.trials.values() if trial.entry is None for tried in reversed(trial.attempts)]
    lost = [(trial.id, tried.attempt) for trial, tried in lost if tried.status == "lost" and not tried.place.get("checked")]
    there, seen = folder.files.below(TRIALS) if lost else {}, set[str]()
    for name, attempt in lost:
        if name not in seen and attempt.result in there:
            record = left_behind(folder, attempt)
            if record is not None:
                found.append((attempt, record | {"recovered": True}))
                seen.add(name)
    if not found:
        return state
    ended(journal, found, sync=True)
    return replay(folder)


def record_of(folder: RunFolder, state: TrialState) -> Record | None:
    """The whole row of a trial, gradients and outputs included; None while it has none."""
    return None if state.entry is None else event_at(folder, state.entry)


def run_state(folder: RunFolder, state: Replay, alive: Callable[[RunFolder], bool] = lives) -> str:
    """Running, done, failed, cancelled, interrupted: the journal's last word; or lost, when the process behind the run is not ``alive``."""
    if state.finished is not None:
        return str(state.finished.get("state", "failed"))
    return "running" if alive(folder) else "lost"
