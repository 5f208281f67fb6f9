"""The loop of a running sweep: which trial starts next, what came back, who took too long, and when to stop."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from .cluster import Capacity
from .places import places
from .plan import PlannedGroup, Prepared, footprints, planned_bytes
from .store.journal import Journal
from .store.layout import RunFolder
from .store.owner import cancel_requests
from .timing import Timing
from .trials import Trial
from .watch.board import Board
from .watch.live import Display

WAIT_S = 0.2
GRACE_S = 10.0


class Interrupts(Protocol):
    """How often the user has asked to stop."""

    count: int


@dataclass(frozen=True)
class RunContext:
    """Where a run writes things down and shows them."""

    folder: RunFolder
    journal: Journal
    board: Board
    screen: Display
    timing: Timing


@dataclass
class Attempt:
    """One try of one trial, from its admission to its end. ``since`` is set when the worker has started it."""

    trial: Trial
    number: int
    stream: Any
    since: float | None = None


class SweepLoop:
    """Runs the trials of one sweep on the places of an open cluster, and writes down everything that happens."""

    def __init__(
        self, prepared: Prepared, groups: list[PlannedGroup], capacity: Capacity, run: RunContext, interrupts: Interrupts
    ) -> None:
        self.prepared, self.interrupts = prepared, interrupts
        self.folder, self.journal, self.board, self.screen, self.timing = (
            run.folder,
            run.journal,
            run.board,
            run.screen,
            run.timing,
        )
        self.limits = prepared.loaded.config.limits
        self.planned, self.footprints = planned_bytes(groups), footprints(groups)
        self.places = places(prepared, capacity)
        self.board.slots = self.places.slots
        self.waiting: deque[tuple[Trial, int]] = deque((trial, 1) for trial in prepared.trials)
        self.attempts: dict[Any, Attempt] = {}
        self.stopping = ""
        self.deadline = float("inf")

    def run(self) -> str:
        """Run until nothing waits or runs; the state of the run: done, failed, cancelled or interrupted."""
        self.board.phase = "running"
        try:
            while self.waiting or self.attempts:
                self._obey()
                self._admit()
                self._collect()
                self._end_late_ones()
                self.journal.retry()
                self.screen.update()
        finally:
            self.places.close()
        self.board.phase = self.stopping or "finished"
        if self.stopping:
            return self.stopping
        return "done" if self.board.counts["done"] == self.board.total else "failed"

    def _obey(self) -> None:
        """Ctrl-C once: start no more and wait a little for what runs. Twice, or a cancel request: stop everything now."""
        if not self.stopping and cancel_requests(self.folder, self.journal.owner).whole:
            self._stop("cancelled", 0.0)
        if self.interrupts.count and not self.stopping:
            self._stop("interrupted", GRACE_S if self.interrupts.count == 1 else 0.0)
        if self.interrupts.count > 1 or time.monotonic() > self.deadline:
            self.deadline = 0.0
            for attempt in list(self.attempts.values()):
                self._give_up(attempt, "cancelled", "Stopped", f"the run was {self.stopping}")

    def _stop(self, state: str, grace_s: float) -> None:
        self.stopping, self.board.phase, self.deadline = state, "stopping", time.monotonic() + grace_s
        self.journal.write("stopping", sync=True, state=state)
        while self.waiting:
            trial, number = self.waiting.popleft()
            self._end(trial, number - 1, {"status": "cancelled"})
        for attempt in list(self.attempts.values()):
            if attempt.since is None:
                self._give_up(attempt, "cancelled", "Stopped", f"the run was {state} before the trial started")
        if self.attempts and grace_s:
            wait = f"waiting up to {grace_s:.0f} s for {len(self.attempts)} running trials; Ctrl-C again stops them now"
            self.screen.note(f"interrupted: no more trials are started, {wait}")

    def _admit(self) -> None:
        while self.waiting and len(self.attempts) < self.places.window:
            trial, number = self.waiting.popleft()
            too_large = self._too_large(trial.id)
            if too_large:
                error = {"type": "OutOfMemory", "message": too_large, "traceback": ""}
                self._end(trial, 0, {"status": "failed", "error": error})
            else:
                stream = self.places.launch(trial, self.planned[trial.id])
                self.attempts[stream] = Attempt(trial, number, stream)

    def _too_large(self, trial: str) -> str:
        planned, footprint = self.planned[trial], self.footprints[trial]
        if planned is None or footprint is None:
            return ""
        wanted = [(planned, *limit) for limit in self.prepared.byte_limits.items()] + [(footprint, *self.places.limit)]
        for need, name, limit in wanted:
            if limit is not None and need > limit:
                return f"the plan needs {need} bytes, {name} is {limit}; the trial was not started"
        return ""

    def _collect(self) -> None:
        import ray

        if not self.attempts:
            return
        ready, _ = ray.wait(list(self.attempts), num_returns=1, timeout=WAIT_S, fetch_local=False)
        for stream in ready:
            attempt = self.attempts[stream]
            try:
                message = ray.get(next(stream))
            except ray.exceptions.RayError as error:
                self._crashed(attempt, error)
                continue
            if message["kind"] == "started":
                self._started(attempt, message)
            elif message.get("restart"):
                self._again(attempt, message["error"], self.limits.retries.infra)
            else:
                del self.attempts[stream]
                self.places.ended(stream, intact=True)
                self.timing.add(message)
                self._end(attempt.trial, attempt.number, message)

    def _started(self, attempt: Attempt, message: dict[str, Any]) -> None:
        attempt.since = time.monotonic()
        self.timing.first_start_t = self.timing.first_start_t or message["t"]
        self.board.started(attempt.trial.id, attempt.trial.label, claimed=self.footprints[attempt.trial.id])
        place = {"pid": message["pid"], "host": message["host"], "worker_t": message["t"]}
        self.journal.write("started", trial=attempt.trial.id, attempt=attempt.number, **place)

    def _end(self, trial: Trial, number: int, message: dict[str, Any]) -> None:
        """Write down the end of a trial, whatever it was."""
        record = {name: value for name, value in message.items() if name != "kind"}
        self.journal.write("ended", trial=trial.id, attempt=number, **record)
        self.board.stopped(trial.id, record["status"], trial.label, record.get("loss"), record)
        planned = self.planned[trial.id]
        if record.get("planned_bytes") not in (None, planned):
            self._note(
                f"{trial.label}: planned {planned} bytes, its own plan says {record['planned_bytes']}; see Job.shape_key"
            )
        if record["status"] == "failed":
            lines = record["error"]["message"].splitlines() or [""]
            self._note(f"{trial.label} failed: {record['error']['type']}: {lines[0]}")
            self._give_up_run()

    def _give_up_run(self) -> None:
        """Start no more trials when more have failed than ``limits.max_failed`` allows."""
        allowed, failed = self.limits.failures_allowed(self.board.total), self.board.counts["failed"]
        if allowed is not None and failed > allowed and not self.stopping:
            self.screen.note(f"{failed} trials failed, limits.max_failed allows {allowed}: no more are started")
            self._stop("failed", GRACE_S)

    def _note(self, text: str) -> None:
        self.board.notes.append(text)
        if len(self.board.notes) <= 20:
            self.screen.note(text)

    def _crashed(self, attempt: Attempt, error: Exception) -> None:
        """The worker process is gone, or Ray could not run the task."""
        first = str(error).splitlines()[0] if str(error) else ""
        self._again(attempt, {"type": type(error).__name__, "message": first, "traceback": ""}, self.limits.retries.crash)

    def _again(self, attempt: Attempt, reason: dict[str, str], retries: int) -> None:
        """Try again in another process, as often as ``limits.retries`` says; then the trial has failed for this reason."""
        del self.attempts[attempt.stream]
        self.places.ended(attempt.stream, intact=False)
        if attempt.number <= retries and not self.stopping:
            self.board.retried(attempt.trial.id)
            self.journal.write("retry", trial=attempt.trial.id, attempt=attempt.number, error=reason)
            self.waiting.appendleft((attempt.trial, attempt.number + 1))
            return
        first, *rest = reason["message"].splitlines() or [""]
        reason = reason | {"message": "\n".join([f"{first} ({attempt.number} attempts)", *rest])}
        self._end(attempt.trial, attempt.number, {"status": "failed", "error": reason})

    def _end_late_ones(self) -> None:
        limit = self.limits.timeout_s
        if limit is None:
            return
        now = time.monotonic()
        for attempt in list(self.attempts.values()):
            if attempt.since is not None and now - attempt.since > limit:
                self._give_up(attempt, "failed", "Timeout", f"the trial ran longer than limits.trial_timeout, {limit:g} s")

    def _give_up(self, attempt: Attempt, status: str, kind: str, message: str) -> None:
        self.places.stop(attempt.stream)
        del self.attempts[attempt.stream]
        error = {"type": kind, "message": message, "traceback": ""}
        self._end(attempt.trial, attempt.number, {"status": status, "error": error})
