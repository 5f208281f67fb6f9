"""``Board`` collects the starts and ends of a run, and produces a ``RunView`` at any time."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..optimize.results import best_at
from .view import (
    SHOWN,
    FailureView,
    RunningTrial,
    RunView,
    Snapshot,
    WaitCount,
    batch_label,
    device_views,
    failure_view,
    rate,
    reasons,
    retry_kind,
)

TICK_S = 1.0
KEPT_ENDS = 10_000
"""The rate looks back at no more ends than this."""


class Exports(Protocol):
    """The receiver of figures: ``metrics.Metrics``."""

    def observe(self, view: RunView) -> None:
        """The run as it is now."""
        ...

    def over(self, state: str, view: RunView) -> None:
        """The run has ended in ``state``."""
        ...

    def started(self, trials: int, waited_s: float) -> None:
        """A batch of so many trials has started, so many seconds after it was submitted."""
        ...

    def ended(self, record: Mapping[str, Any], trials: int = 1) -> None:
        """A trial has its row, or ``count`` trials of a batch have, with their common part."""
        ...

    def retried(self, failure: str) -> None:
        """An attempt failed and its trial waits again."""
        ...


class RunningCheck(Protocol):
    """A check that is running: ``first_check.FirstCheck``."""

    def end(self, wait: bool, stopped: Callable[[], bool]) -> None:
        """End it; ``wait`` for its result before, unless the user stops that."""
        ...


@dataclass(frozen=True)
class _StartedTrial:
    label: str
    device: str
    bytes: int | None
    began: float


@dataclass
class _Batch:
    """A batch that runs: its first trial, and how many of its trials have no row yet."""

    first: str
    shown: _StartedTrial
    left: int


@dataclass
class Board:
    """The state of a running sweep, as far as people look at it. Used by one thread; ``view`` may be asked by another."""

    run: str
    total: int
    slots: int = 1
    counts: Counter[str] = field(default_factory=Counter)
    """Trials that have ended, by status."""
    running: dict[str, str] = field(default_factory=dict)
    """The trials that run, with their labels."""
    best: tuple[float, str] | None = None
    check: RunningCheck | None = None
    """A check of the job that runs beside the run."""
    warnings: list[str] = field(default_factory=list)
    """Warnings that trials have given, each once."""
    notes: list[str] = field(default_factory=list)
    phase: str = "starting Ray"
    began: float = field(default_factory=time.monotonic)
    first_start: float | None = None
    snapshot: Snapshot | None = None
    """Set the devices and the reasons for waiting, from the packer or the ledger; see ``view``."""
    steps: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Set the progress of running trials, of a batch at its first one, from the last report of their workers: ``LaneState.seen``."""
    retries: Counter[str] = field(default_factory=Counter)
    metrics: Exports | None = None
    """Told of everything that the board is told of: set it to ``Metrics(run)`` when Ray is there, and call ``tick``."""
    _ticked: float = float("-inf")
    _waits: dict[str, float] = field(default_factory=dict)
    """Since when a trial that is tried again waits."""
    _lanes: dict[str, _StartedTrial] = field(default_factory=dict)
    _batches: dict[int, _Batch] = field(default_factory=dict)
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_ENDS))
    _failures: deque[FailureView] = field(default_factory=lambda: deque(maxlen=SHOWN))

    def checked(self, wait: bool, stopped: Callable[[], bool]) -> list[str]:
        """The warnings of the run, with that of the check, which ends, see ``RunningCheck.end``."""
        if self.check is not None:
            self.check.end(wait, stopped)
        return self.warnings

    @property
    def ended(self) -> int:
        """Trials that will not run any more."""
        return sum(self.counts.values())

    @property
    def now_running(self) -> int:
        """Trials that run, those of batches included. A failed one of a batch that goes on has its row already."""
        return len(self.running) + sum(batch.left for batch in list(self._batches.values()))

    def started(self, trial: str, label: str, device: str = "", claimed: int | None = None) -> None:
        """A trial has started on a device, with so many bytes claimed."""
        self.passed(trial)
        self.running[trial] = label
        self._lanes[trial] = _StartedTrial(label, device, claimed, time.monotonic())

    def batch_started(self, launch: int, first: str, trials: int, label: str, device: str, claimed: int) -> None:
        """A batch of so many trials has started, ``first`` among them."""
        self.passed(first, trials)
        self._batches[launch] = _Batch(
            first, _StartedTrial(batch_label(trials, label), device, claimed, time.monotonic()), trials
        )

    def batch_ended(self, launch: int, shared: Mapping[str, Any], trials: int) -> None:
        """So many trials of a batch have ended well. ``shared``: what is the same in their rows."""
        if launch in self._batches:
            self._batches[launch].left -= trials
        self.counts["done"] += trials
        self._ends.extend([time.monotonic()] * min(trials, KEPT_ENDS))
        if self.metrics is not None:
            self.metrics.ended(shared, trials)

    def batch_over(self, launch: int) -> None:
        """A batch runs no more; what became of its other trials has been told."""
        over = self._batches.pop(launch, None)
        self.steps.pop("" if over is None else over.first, None)

    def found_best(self, loss: float, label: str, outputs: Mapping[str, Any]) -> None:
        """The smallest loss so far."""
        self.best = (loss, best_at(label, outputs))

    def passed(self, first: str, trials: int = 1) -> None:
        """A trial, or so many of a batch, have started, and perhaps ended, since the board was told last."""
        now = time.monotonic()
        self.first_start = self.first_start or now
        if self.metrics is not None:
            self.metrics.started(trials, now - self._waits.pop(first, self.began))

    def follow(self, steps: Mapping[str, Mapping[str, Any]]) -> None:
        """The progress of trials by id; a new dict at each call, because the heartbeat's thread reads it."""
        known = self.running.keys() | {batch.first for batch in self._batches.values()}
        self.steps = {trial: step for trial, step in steps.items() if trial in known}

    def shows(self, status: str, loss: float | None) -> bool:
        """Whether the label of a trial that ended so will be shown."""
        if status != "done":
            return status in ("failed", "poisoned")
        return loss is not None and (self.best is None or loss < self.best[0])

    def retried(self, trial: str, failure: str = "infrastructure", charged: bool = True) -> None:
        """An attempt ended without a row: its trial waits again. ``charged``: see ``WriteRetry``."""
        self._leave(trial)
        self.retries[retry_kind(failure, charged)] += 1
        self._waits[trial] = time.monotonic()
        if self.metrics is not None:
            self.metrics.retried(failure)

    def stopped(self, trial: str, status: str, label: str, loss: float | None, record: Mapping[str, Any] | None = None) -> None:
        """A trial has ended with ``status``. ``record``: its row, whose error is shown."""
        self._leave(trial)
        self.counts[status] += 1
        self._ends.append(time.monotonic())
        if status == "done" and loss is not None and (self.best is None or loss < self.best[0]):
            self.found_best(loss, label, (record or {}).get("outputs") or {})
        if status in ("failed", "poisoned") and record is not None:
            self._failures.append(failure_view(trial, label, record))
        if self.metrics is not None:
            self.metrics.ended(record or {})

    def tick(self, *, now: bool = False) -> None:
        """Export the gauges, at most once a second; ``now``: in any case, as at the end of a run."""
        clock = time.monotonic()
        if self.metrics is not None and (now or clock - self._ticked >= TICK_S):
            self._ticked = clock
            self.metrics.observe(self.view())

    def over(self, state: str) -> None:
        """Export the end of the run."""
        if self.metrics is not None:
            self.metrics.over(state, self.view())

    def _leave(self, trial: str) -> None:
        self.running.pop(trial, None)
        self._lanes.pop(trial, None)
        self.steps.pop(trial, None)

    def left_s(self) -> float | None:
        """Estimated seconds to the end, from how fast trials ended lately."""
        speed = rate(list(self._ends), self.first_start, time.monotonic())
        left = self.total - self.ended
        return left / speed if speed and left > 0 else None

    def view(self) -> RunView:
        """The board as the views take it."""
        now = time.monotonic()
        shown = [(trial, one) for trial, one in list(self._lanes.items()) if trial in self.running]
        shown += [(one.first, one.shown) for one in list(self._batches.values())]
        lanes = tuple(
            RunningTrial.seen(self.steps.get(trial), trial, one.label, one.device, now - one.began, one.bytes)
            for trial, one in shown
        )
        counts = Counter(self.counts) + Counter(running=self.now_running)
        counts["waiting"] = max(0, self.total - sum(counts.values()))
        return RunView(
            run=self.run,
            state=self.phase,
            total=self.total,
            counts={name: number for name, number in counts.items() if number},
            seconds=now - self.began,
            rate=rate(list(self._ends), self.first_start, now),
            eta_s=self.left_s(),
            best=self.best,
            devices=device_views(self.snapshot, tuple(lane for lane in lanes if lane.device)),
            lanes=lanes,
            failures=tuple(self._failures),
            reasons=self._reasons(),
            retries=dict(self.retries),
        )

    def _reasons(self) -> tuple[WaitCount, ...]:
        waiting = self.total - self.ended - self.now_running
        return reasons(self.snapshot, max(0, waiting))
