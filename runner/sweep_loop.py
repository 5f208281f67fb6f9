"""The loop of a running sweep: which trial starts next, what came back, who took too long, and when to stop."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from .cluster import Capacity
from .folder import RunFolder
from .journal import Journal
from .plan import PlannedGroup, Prepared, planned_bytes
from .progress import Board, Display
from .timing import Timing
from .trials import Trial
from .worker import run_trial

WAIT_S = 0.2
GRACE_S = 10.0
AHEAD = 2
MIB = 1 << 20


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
    """Runs the trials of one sweep on an open cluster, a task for each, and writes down everything that happens."""

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
        import ray

        self.task = ray.remote(run_trial)
        config = prepared.loaded.config
        self.limits, self.threads = config.limits, config.device.threads
        self.planned = planned_bytes(groups)
        self.largest_bytes = capacity.node_memory_bytes
        slots = max(1, capacity.cores // self.threads)
        self.window = self.limits.max_concurrent or slots + AHEAD
        self.board.slots = min(slots, self.window)
        self.waiting: deque[tuple[Trial, int]] = deque((trial, 1) for trial in prepared.trials)
        self.attempts: dict[Any, Attempt] = {}
        self.stopping = ""
        self.deadline = float("inf")

    def run(self) -> str:
        """Run until nothing waits or runs; the state of the run: done, failed, cancelled or interrupted."""
        self.board.phase = "running"
        while self.waiting or self.attempts:
            self._obey()
            self._admit()
            self._collect()
            self._end_late_ones()
            self.screen.update()
        self.board.phase = self.stopping or "finished"
        if self.stopping:
            return self.stopping
        return "done" if self.board.counts["done"] == self.board.total else "failed"

    def _obey(self) -> None:
        """Ctrl-C once: start no more and wait a little for what runs. Twice, or a cancel request: stop everything now."""
        if self.folder.cancel.exists() and not self.stopping:
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
        while self.waiting and len(self.attempts) < self.window:
            trial, number = self.waiting.popleft()
            too_large = self._too_large(self.planned[trial.id])
            if too_large:
                error = {"type": "OutOfMemory", "message": too_large, "traceback": ""}
                self._end(trial, 0, {"status": "failed", "error": error})
            else:
                stream = self._launch(trial)
                self.attempts[stream] = Attempt(trial, number, stream)

    def _too_large(self, planned: int | None) -> str:
        if planned is None:
            return ""
        for name, limit in (*self.prepared.byte_limits.items(), ("the memory of the largest node", self.largest_bytes)):
            if limit is not None and planned > limit:
                return f"the plan needs {planned} bytes, {name} is {limit}; the trial was not started"
        return ""

    def _launch(self, trial: Trial) -> Any:
        memory = -(-(self.planned[trial.id] or 0) // MIB) * MIB
        task = self.task.options(
            name=f"{self.prepared.loaded.config.name}/{trial.label}",
            num_cpus=self.threads,
            memory=memory or None,
            num_returns="streaming",
            max_retries=0,
        )
        return task.remote(self.prepared.spec(trial))

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
            else:
                del self.attempts[stream]
                self.timing.add(message)
                self._end(attempt.trial, attempt.number, message)

    def _started(self, attempt: Attempt, message: dict[str, Any]) -> None:
        attempt.since = time.monotonic()
        self.timing.first_start_t = self.timing.first_start_t or message["t"]
        self.board.started(attempt.trial.id, attempt.trial.label)
        place = {"pid": message["pid"], "host": message["host"], "worker_t": message["t"]}
        self.journal.write("started", trial=attempt.trial.id, attempt=attempt.number, **place)

    def _end(self, trial: Trial, number: int, message: dict[str, Any]) -> None:
        """Write down the end of a trial, whatever it was."""
        record = {name: value for name, value in message.items() if name != "kind"}
        self.journal.write("ended", trial=trial.id, attempt=number, **record)
        self.board.stopped(trial.id, record["status"], trial.label, record.get("loss"))
        planned = self.planned[trial.id]
        if record.get("planned_bytes") not in (None, planned):
            self._note(
                f"{trial.label}: planned {planned} bytes, its own plan says {record['planned_bytes']}; see Job.shape_key"
            )
        if record["status"] == "failed":
            lines = record["error"]["message"].splitlines() or [""]
            self._note(f"{trial.label} failed: {record['error']['type']}: {lines[0]}")

    def _note(self, text: str) -> None:
        self.board.notes.append(text)
        if len(self.board.notes) <= 20:
            self.screen.note(text)

    def _crashed(self, attempt: Attempt, error: Exception) -> None:
        """The worker process is gone, or Ray could not run the task: try again, as often as ``limits.retries`` says."""
        del self.attempts[attempt.stream]
        self.board.running.pop(attempt.trial.id, None)
        reason = {"type": type(error).__name__, "message": str(error).splitlines()[0] if str(error) else "", "traceback": ""}
        if attempt.number <= self.limits.retries and not self.stopping:
            self.journal.write("retry", trial=attempt.trial.id, attempt=attempt.number, error=reason)
            self.waiting.appendleft((attempt.trial, attempt.number + 1))
            return
        reason["message"] += f" ({attempt.number} attempts)"
        self._end(attempt.trial, attempt.number, {"status": "failed", "error": reason})

    def _end_late_ones(self) -> None:
        limit = self.limits.trial_timeout_s
        if limit is None:
            return
        now = time.monotonic()
        for attempt in list(self.attempts.values()):
            if attempt.since is not None and now - attempt.since > limit:
                self._give_up(attempt, "failed", "Timeout", f"the trial ran longer than limits.trial_timeout_s, {limit:g} s")

    def _give_up(self, attempt: Attempt, status: str, kind: str, message: str) -> None:
        import ray

        ray.cancel(attempt.stream, force=True)
        del self.attempts[attempt.stream]
        error = {"type": kind, "message": message, "traceback": ""}
        self._end(attempt.trial, attempt.number, {"status": status, "error": error})
