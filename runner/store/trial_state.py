"""One trial as the journal has it: its attempts, and its row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from .attempts import Attempt, Failure
from .follower import Event, JournalEntry

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

    def lose(self) -> None:
        """End what runs, as its owner is gone."""
        for tried in self.attempts:
            if tried.status == "running":
                tried.status, tried.failure = "lost", Failure.infrastructure
        if self.status == "running":
            self.status = "waiting"

    def apply(self, entry: JournalEntry) -> bool:
        """Take an event that names the trial; whether it is a row that comes after the one that counts."""
        event, kind = entry.event, entry.event["event"]
        if kind == "started":
            place = {name: value for name, value in event.items() if name not in _BESIDE}
            self.attempts.append(AttemptState(_identity(entry), "running", event.get("t"), place=place))
            if self.entry is None:
                self.status = "running"
        elif kind == "requeued":
            self.status, self.entry = "waiting", None
        elif self.entry is not None:
            return kind == "ended"
        elif kind == "retry":
            self._end(entry, "retried", event.get("failure") or Failure.infrastructure)
            self.status, self.attempts[-1].charged = "waiting", bool(event.get("charged", True))
        else:
            status = event["status"] if event.get("status") in FINAL else "failed"
            self._end(entry, status, event.get("failure"))
            self.status, self.entry = status, entry
        return False

    def _end(self, entry: JournalEntry, status: str, failure: str | None) -> None:
        attempt = _identity(entry)
        known = next((tried for tried in reversed(self.attempts) if tried.attempt == attempt), None)
        if known is None:  # it was never started: too large, or cancelled while it waited; or its line is damaged
            place = entry.event.get("place")  # of one that began and ended between two writes
            if place is None and (attempt.number == 0 or status == "cancelled"):
                return
            known = AttemptState(attempt, status, place=place or {})
            self.attempts.append(known)
            if place is not None:
                known.started_t, known.ended_t = times_of(entry.event)
        known.status, known.ended_t, known.failure = status, known.ended_t or entry.event.get("t"), failure

    def failures(self) -> Counter[str]:
        """Failed attempts by class, over all owners: what limits retries. Attempts lost with an owner count as infrastructure."""
        return Counter(state.failure for state in self.attempts if state.failure)


_BESIDE = ("seq", "t", "event", "trial", "attempt", "by")


def _identity(entry: JournalEntry) -> Attempt:
    event = entry.event
    return Attempt(str(event["trial"]), int(event.get("attempt", 0)), by_of(entry))


def by_of(entry: JournalEntry) -> int:
    """The owner whose attempt an event is about."""
    return int(entry.event.get("by", entry.owner) or 1)


def times_of(event: Event) -> tuple[float | None, float | None]:
    """When an attempt started and ended that has one line, as its worker says it; where that clock is not the run's, it ended then."""
    started, ended, t = event.get("started_t"), event.get("ended_t"), event.get("t")
    if started is None or ended is None or t is None:
        return started, ended
    there = ended if 0.0 <= t - ended < ONE_CLOCK_S else t
    return there - max(0.0, ended - started), there


__all__ = ["FINAL", "AttemptState", "Status", "TrialState"]
