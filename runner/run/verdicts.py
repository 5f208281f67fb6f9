"""What becomes of the trials of a run: which of their failed attempts are charged, which are tried again, and their rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..store.attempts import Failure
from . import messages as m
from .failures import Rules, counted, decide, halves, last, smaller
from .parts import Claims, Flight, TrialAt, Work

RETRIED = (Failure.infrastructure, Failure.out_of_memory, Failure.crash)
SPLIT = (Failure.crash, Failure.out_of_memory)
Ending = tuple[str, Failure, m.Error, m.Record]
"""A failed trial of a launch: its id, the class, the error, and what its worker said of it."""


class Verdicts:
    """The trials that are not over, and how those ended that are.

    Attributes:
        trials: by id.
        counts: ended trials by status.
        open: trials that have no row.
        stopping: the state of the run once no more trials are started; empty until then.
        curves: the claims of a trial that ran out of memory: all their points.
        most: bytes that the largest device of a class can give a trial.
        out: the actions that follow.
    """

    def __init__(self, work: Iterable[Work], rules: Rules, before: Mapping[str, int], out: list[m.Action]) -> None:
        self.rules, self.out = rules, out
        self.curves: Callable[[str], Claims] = lambda name: {}
        self.most: Mapping[str, int] = {}
        self.trials = {
            one.id: TrialAt(one.id, one.number, Counter(dict(one.charged)), one.number, alone=one.alone) for one in work
        }
        self.counts: Counter[str] = Counter(dict(before))
        self.open = len(self.trials)
        self.stopping = ""

    def alone(self, trials: Iterable[str]) -> bool:
        """Whether one of the trials runs with nothing beside it."""
        for name in trials:  # asked for every launch
            if self.trials[name].alone:
                return True
        return False

    def set_alone(self, trials: Iterable[str]) -> None:
        """From now on they do."""
        for name in trials:
            self.trials[name].alone = True

    def judge(self, flight: Flight, ends: Sequence[Ending], *, charged: bool = True) -> list[tuple[str, ...]]:
        """Judge the failed trials of a launch; the batches in which those are tried again that get another try."""
        together = len(flight.launch.trials) > 1
        again: dict[Failure, list[str]] = {}
        for name, failure, error, record in ends:
            split = together and failure in SPLIT
            if self.again(name, failure, error, record, charged=charged and not split, held=flight.launch.bytes):
                again.setdefault(failure, []).append(name)
        out: list[tuple[str, ...]] = []
        for failure, names in again.items():
            out += halves(tuple(names)) if together and failure in SPLIT else [tuple(names)]
        return out

    def again(self, name: str, failure: Failure, error: m.Error, record: m.Record, *, charged: bool, held: int) -> bool:
        """Whether a trial is tried again after a failure with ``held`` bytes; else it has ended."""
        trial = self.trials[name]
        retried = failure in RETRIED
        charged |= not retried
        trial.charged[failure] += charged
        decision = decide(failure, trial.charged, self.rules) if charged else None
        status = decision.status if decision is not None else None
        if status is None and self.stopping:
            status, error = "cancelled", {**error, "message": f"{error.get('message', '')}; the run was {self.stopping}"}
        elif status is not None and retried:
            error = counted(error, trial.tries)
        if status is not None:
            failure = Failure.cancelled if status == "cancelled" else failure
            self.end(name, {**record, "status": status, "failure": failure, "error": dict(error)})
            return False
        if decision is not None:
            # a crash: where workers are shared, see State
            trial.alone |= decision.alone and failure is not Failure.crash
            if decision.step:
                known, most = self.curves(name), self.most
                trial.claims = last(known, held, most) if decision.alone else smaller(trial.claims or known, held, most)
        self.out.append(m.WriteRetry(name, trial.number, failure, error, charged))
        return True

    def pardon(self, attempts: Iterable[tuple[str, int]]) -> None:
        """Take the charge of a crash back: these attempts died together with others. Their trials run alone from now on."""
        for name, number in attempts:
            trial = self.trials[name]
            if not trial.ended:
                trial.charged[Failure.crash] -= 1
                trial.alone = True
                self.out.append(m.WritePardon(name, number))

    def end(self, name: str, record: m.Record) -> None:
        """Give a trial its row."""
        trial = self.trials[name]
        assert not trial.ended, name
        trial.ended = True
        self.open -= 1
        self.counts[str(record["status"])] += 1
        self.out.append(m.WriteEnded(name, trial.number, record))

    def cancel(self, name: str, why: str) -> None:
        """End a trial that does not run. ``why``: where that is not what happens to the whole run."""
        error = {"error": {"type": "Stopped", "message": why, "traceback": ""}} if why else {}
        self.end(name, {"status": "cancelled", "failure": Failure.cancelled, **error})

    @property
    def may_fail(self) -> int | None:
        """How many trials may still fail until the run is given up, with the one that makes it; None: all."""
        allowed = self.rules.allowed
        return None if allowed is None else allowed + 1 - self.counts["failed"] - self.counts["poisoned"]

    def too_many(self) -> str:
        """Why the run is given up; empty while it is not."""
        if self.rules.allowed is None:
            return ""
        failed = self.counts["failed"] + self.counts["poisoned"]
        if failed <= self.rules.allowed or self.stopping or not self.open:
            return ""
        return f"{failed} trials failed, limits.max_failed allows {self.rules.allowed}: no more are started"
