"""Decides which failed attempts are charged, which trials are retried, and the rows of trials. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..store.attempts import Failure
from ..store.columns import BatchRows
from . import messages as m
from .failures import Rules, counted, decide, halves, last, smaller
from .parts import Claims, Crash, Flight, TrialAt

RETRIED = (Failure.infrastructure, Failure.out_of_memory, Failure.crash)
SPLIT = (Failure.crash, Failure.out_of_memory, Failure.timeout)
"""Failures of a batch that no single trial can be blamed for: the batch is split in halves, and no trial is charged."""
OWN = (Failure.user_error, Failure.not_finite)
CHECKED = "run again with every index checked"
NOTHING = f"{CHECKED}, it {{how}}: no index out of bounds was found"
ELSEWHERE = "\n  do: if a trial before it in its process wrote out of bounds, `qdrun submit --debug` finds the line; else look at the stack"
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
        checks: a trial whose process died by a signal, or lost its GPU to a kernel, runs again once with every index checked.
        out: the actions that follow.
    """

    def __init__(
        self, work: Iterable[TrialAt], rules: Rules, before: Mapping[str, int], out: list[m.Action], checks: bool
    ) -> None:
        self.rules, self.out, self.checks = rules, out, checks
        self.curves: Callable[[str], Claims] = lambda name: {}
        self.most: Mapping[str, int] = {}
        self.trials = {one.id: one for one in work}
        for trial in self.trials.values():
            # its runner was lost before the investigation
            if checks and trial.charged and trial.charged[Failure.crash] > rules.crash:
                trial.crash, trial.alone = Crash("a signal, before the run was resumed"), True
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
            held, checked = flight.launch.bytes, flight.launch.checked
            if self.again(name, failure, error, record, charged=charged, split=split, held=held, checked=checked):
                again.setdefault(failure, []).append(name)
        out: list[tuple[str, ...]] = []
        for failure, names in again.items():
            out += halves(tuple(names)) if together and failure in SPLIT else [tuple(names)]
        return out

    def again(
        self,
        name: str,
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
        trial = self.trials[name]
        signal, trial.signal = trial.signal, ""
        retried = failure in RETRIED
        if checked and trial.crash is not None and failure not in (Failure.infrastructure, Failure.cancelled):
            if failure not in OWN:
                how = {Failure.crash: "died again", Failure.timeout: "took longer than limits.trial_timeout"}
                return self._nothing_found(trial, how.get(failure, "ran out of memory"))
            error = noted(error, f"its process died before: {trial.crash.signal}; this is what it says when it is {CHECKED}")
        charged = (charged or not retried) and not split
        trial.charged = trial.charged.more(failure, charged)
        decision = decide(failure, trial.charged, self.rules) if charged else None
        status = decision.status if decision is not None else None
        if signal and failure is Failure.crash and charged and self.checks and not trial.found and not self.stopping:
            trial.crash = Crash(signal, status or "", error, record)
            status = None
        elif status is None and self.stopping:
            status, error = "cancelled", {**error, "message": f"{error.get('message', '')}; the run was {self.stopping}"}
        if status is not None:
            if trial.crash is not None and trial.crash.status and failure not in OWN:
                return self._nothing_found(trial, "did not end")
            failure = Failure.cancelled if status == "cancelled" else failure
            error = counted(error, trial.tries) if retried and status != "cancelled" else error
            error = noted(error, trial.found) if status == "poisoned" else error
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

    def ended_well(self, name: str, record: m.Record, *, checked: bool) -> bool:
        """Record the result of an attempt: the row of its trial, unless it only investigated a crash.

        Returns whether the trial is retried.
        """
        trial = self.trials[name]
        if checked and trial.crash is not None:
            return self._nothing_found(trial, "ended well")
        self.end(name, record)
        return False

    def ended_together(self, launch: int, rows: BatchRows) -> None:
        """Trials of a batch have results: their rows."""
        for name in rows.trials:
            trial = self.trials[name]
            assert not trial.ended, name
            trial.ended = True
        self.open -= len(rows.trials)
        self.counts["done"] += len(rows.trials)
        self.out.append(m.WriteRows(launch, rows))

    def _nothing_found(self, trial: TrialAt, how: str) -> bool:
        """The attempt that investigated a crash has found nothing: the trial continues as without it."""
        crash, trial.crash, trial.found = trial.crash, None, NOTHING.format(how=how) + ELSEWHERE
        assert crash is not None
        if crash.status:
            error = noted(counted(crash.error, trial.tries), trial.found)
            self.end(trial.id, {**crash.record, "status": crash.status, "failure": Failure.crash, "error": error})
            return False
        error = {"type": "Checked", "message": trial.found, "traceback": ""}
        if self.stopping:
            error["message"] += f"; the run was {self.stopping}"
            self.end(trial.id, {"status": "cancelled", "failure": Failure.cancelled, "error": error})
            return False
        self.out.append(m.WriteRetry(trial.id, trial.number, Failure.crash, error, False))
        return True

    def pardon(self, attempts: Iterable[tuple[str, int]]) -> None:
        """Take the charge of a crash back: these attempts died together with others. Their trials run alone from now on."""
        for name, number in attempts:
            trial = self.trials[name]
            if not trial.ended:
                trial.charged = trial.charged.more(Failure.crash, -1)
                trial.alone = True
                trial.crash = trial.crash and replace(trial.crash, status="")
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
        trial = self.trials[name]
        if trial.crash is not None and trial.crash.status:
            self._nothing_found(trial, "did not begin")
            return
        error = {"error": {"type": "Stopped", "message": why, "traceback": ""}} if why else {}
        self.end(name, {"status": "cancelled", "failure": Failure.cancelled, **error})

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
