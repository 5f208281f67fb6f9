"""Decides which failed attempts are charged, which trials are retried, and the rows of trials. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..store.attempts import Failure
from ..store.columns import BatchRows
from ..value_columns import Places, index_of
from . import messages as m
from .failures import Rules, counted, decide, halves, last, smaller
from .parts import NOT_CHARGED, Claims, Crash, Flight, TrialAt, Work

RETRIED = (Failure.infrastructure, Failure.out_of_memory, Failure.crash)
SPLIT = (Failure.crash, Failure.out_of_memory, Failure.timeout)
"""Failures of a batch that no single trial can be blamed for: the batch is split in halves, and no trial is charged."""
OWN = (Failure.user_error, Failure.not_finite)
CHECKED = "run again with every index checked"
NOTHING = f"{CHECKED}, it {{how}}: no index out of bounds was found"
ELSEWHERE = "\n  do: if a trial before it in its process wrote out of bounds, `qdrun submit --debug` finds the line; else look at the stack"
Ending = tuple[int, Failure, m.Error, m.Record]
"""A failed trial of a launch: its place, the class, the error, and what its worker said of it."""


class Verdicts:
    """The trials that are not over, and how those ended that are.

    Attributes:
        trials: all of them.
        counts: ended trials by status.
        open: trials that have no row.
        stopping: the state of the run once no more trials are started; empty until then.
        curves: the claims of a trial that ran out of memory: all their points.
        most: bytes that the largest device of a class can give a trial.
        checks: a trial whose process died by a signal, or lost its GPU to a kernel, runs again once with every index checked.
        out: the actions that follow.
    """

    def __init__(
        self, work: Sequence[TrialAt] | int, rules: Rules, before: Mapping[str, int], out: list[m.Action], checks: bool
    ) -> None:
        self.rules, self.out, self.checks = rules, out, checks
        self.curves: Callable[[int], Claims] = lambda place: {}
        self.most: Mapping[str, int] = {}
        self.trials = Work(work)
        for place, charged in self.trials.charged.items():
            if checks and charged[Failure.crash] > rules.crash:  # its runner was lost before the investigation
                self.trials.crash[place] = Crash("a signal, before the run was resumed")
                self.trials.alone.add(place)
        self.counts: Counter[str] = Counter(dict(before))
        self.open = int(self.trials.open.sum())
        self.stopping = ""

    def alone(self, trials: Iterable[int]) -> bool:
        """Whether one of the trials runs with nothing beside it."""
        return bool(self.trials.alone) and not self.trials.alone.isdisjoint(trials)

    def set_alone(self, trials: Iterable[int]) -> None:
        """From now on they do."""
        self.trials.alone.update(trials)

    def judge(self, flight: Flight, ends: Sequence[Ending], *, charged: bool = True) -> list[Places]:
        """Judge the failed trials of a launch; the batches in which those are tried again that get another try."""
        together = len(flight.launch.trials) > 1
        again: dict[Failure, list[int]] = {}
        for place, failure, error, record in ends:
            split = together and failure in SPLIT
            held, checked = flight.launch.bytes, flight.launch.checked
            if self.again(place, failure, error, record, charged=charged, split=split, held=held, checked=checked):
                again.setdefault(failure, []).append(place)
        out: list[Places] = []
        for failure, places in again.items():
            out += halves(tuple(places)) if together and failure in SPLIT else [tuple(places)]
        return out

    def again(
        self,
        place: int,
        failure: Failure,
        error: m.Error,
        record: m.Record,
        *,
        charged: bool,
        held: int,
        split: bool = False,
        checked: bool = False,
    ) -> bool:
        """Whether a trial is tried again after a failure with ``held`` bytes; else it has ended. ``split``: it is in one half of its batch
        then. ``checked``: see ``Launch``.
        """
        trials, crash = self.trials, self.trials.crash.get(place)
        signal, tries = trials.signal.pop(place, ""), int(trials.tries[place])
        retried = failure in RETRIED
        if checked and crash is not None and failure not in (Failure.infrastructure, Failure.cancelled):
            if failure not in OWN:
                how = {Failure.crash: "died again", Failure.timeout: "took longer than limits.trial_timeout"}
                return self._nothing_found(place, how.get(failure, "ran out of memory"))
            error = noted(error, f"its process died before: {crash.signal}; this is what it says when it is {CHECKED}")
        charged = (charged or not retried) and not split
        if charged:
            trials.charged[place] = trials.charged.get(place, NOT_CHARGED).more(failure, 1)
        decision = decide(failure, trials.charged[place], self.rules) if charged else None
        status = decision.status if decision is not None else None
        if signal and failure is Failure.crash and charged and self.checks and place not in trials.found and not self.stopping:
            trials.crash[place] = Crash(signal, status or "", error, record)
            status = None
        elif status is None and self.stopping:
            status, error = "cancelled", {**error, "message": f"{error.get('message', '')}; the run was {self.stopping}"}
        if status is not None:
            if crash is not None and crash.status and failure not in OWN:
                return self._nothing_found(place, "did not end")
            failure = Failure.cancelled if status == "cancelled" else failure
            error = counted(error, tries) if retried and status != "cancelled" else error
            error = noted(error, trials.found.get(place, "")) if status == "poisoned" else error
            self.end(place, {**record, "status": status, "failure": failure, "error": dict(error)})
            return False
        if decision is not None:
            if decision.alone and failure is not Failure.crash:  # a crash: where workers are shared, see State
                trials.alone.add(place)
            if decision.step:
                known, most = self.curves(place), self.most
                now = trials.claims.get(place) or known
                trials.claims[place] = last(known, held, most) if decision.alone else smaller(now, held, most)
        self.out.append(m.WriteRetry(place, int(trials.number[place]), failure, error, charged))
        return True

    def ended_well(self, place: int, record: m.Record, *, checked: bool) -> bool:
        """Record the result of an attempt: the row of its trial, unless it only investigated a crash.

        Returns whether the trial is retried.
        """
        if checked and place in self.trials.crash:
            return self._nothing_found(place, "ended well")
        self.end(place, record)
        return False

    def ended_together(self, launch: int, rows: BatchRows) -> None:
        """Trials of a batch have results: their rows."""
        at = index_of(rows.trials)
        assert self.trials.open[at].all()
        self.trials.open[at] = False
        self.open -= len(rows.trials)
        self.counts["done"] += len(rows.trials)
        self.out.append(m.WriteRows(launch, rows))

    def _nothing_found(self, place: int, how: str) -> bool:
        """The attempt that investigated a crash has found nothing: the trial continues as without it."""
        crash, found = self.trials.crash.pop(place), NOTHING.format(how=how) + ELSEWHERE
        self.trials.found[place] = found
        if crash.status:
            error = noted(counted(crash.error, int(self.trials.tries[place])), found)
            self.end(place, {**crash.record, "status": crash.status, "failure": Failure.crash, "error": error})
            return False
        error = {"type": "Checked", "message": found, "traceback": ""}
        if self.stopping:
            error["message"] += f"; the run was {self.stopping}"
            self.end(place, {"status": "cancelled", "failure": Failure.cancelled, "error": error})
            return False
        self.out.append(m.WriteRetry(place, int(self.trials.number[place]), Failure.crash, error, False))
        return True

    def pardon(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Take the charge of a crash back: these attempts died together with others. Their trials run alone from now on."""
        trials = self.trials
        for place, number in attempts:
            if trials.open[place]:
                trials.charged[place] = trials.charged.get(place, NOT_CHARGED).more(Failure.crash, -1)
                trials.alone.add(place)
                if place in trials.crash:
                    trials.crash[place] = replace(trials.crash[place], status="")
                self.out.append(m.WritePardon(place, number))

    def end(self, place: int, record: m.Record) -> None:
        """Give a trial its row."""
        assert self.trials.open[place], place
        self.trials.open[place] = False
        self.open -= 1
        self.counts[str(record["status"])] += 1
        self.out.append(m.WriteEnded(place, int(self.trials.number[place]), record))

    def cancel(self, place: int, why: str) -> None:
        """End a trial that does not run. ``why``: where that is not what happens to the whole run."""
        crash = self.trials.crash.get(place)
        if crash is not None and crash.status:
            self._nothing_found(place, "did not begin")
            return
        error = {"error": {"type": "Stopped", "message": why, "traceback": ""}} if why else {}
        self.end(place, {"status": "cancelled", "failure": Failure.cancelled, **error})

    @property
    def may_fail(self) -> int | None:
        """The number of further failures that end the run, including the last one; None: unlimited."""
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


def noted(error: m.Error, note: str) -> dict[str, str]:
    """An error with a line more in its message, before what it says to do; a note that says what to do itself takes the place of that."""
    if not note:
        return dict(error)
    first, advice, rest = error.get("message", "").partition("\n  do: ")
    return {**error, "message": f"{first}\n  {note}" + ("" if "\n  do: " in note else advice + rest)}
