"""Observes a running job from other threads: its progress, the values that it logs, and requests to stop it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

FULL, FEW, NUMBERS = 1024, 64, 1 << 16
"""Points that are all kept, of one trial; the least of a batch; and the numbers of each name that decide in between."""
READ_SHARE = 0.01
"""Of the time since the trial began: the most that reading fields for the log may take."""
SHOWN = 4
"""Names whose latest values are part of the text of the progress."""


class Stopped(BaseException):
    """A run was asked to stop. Not an ``Exception``, so that a job that catches errors does not continue after it.

    ``outcome``: the best result so far of a stopped optimisation; else None.
    """

    outcome: Any = None


class StepValues(NamedTuple):
    """The values of one step: numbers, of a batch also arrays with a row for each trial. ``t``: seconds since 1970."""

    step: int
    t: float
    values: Mapping[str, Any]

    def row(self, trial: int | None = None) -> dict[str, float]:
        """The values of one trial of a batch; None: of the one with the smallest ``loss``, or the first."""
        if trial is None:
            losses = np.asarray(self.values.get("loss", 0.0))
            trial = int(np.argmin(np.where(np.isnan(losses), np.inf, losses))) if losses.ndim else 0
        return {name: float(value[trial]) if np.ndim(value) else float(value) for name, value in self.values.items()}


class LiveValues:
    """The values that one attempt logs: a point for each step. The job's thread logs, another one takes the points away.

    Logging again in the same step adds to its point, or replaces a value. The first ``full`` points are all kept, then every second one
    until there were twice as many, then every fourth, and so on: the points of n steps are ``full * (1 + log2(n / full) / 2)`` at most.
    The last one is always kept.

    Args:
        rows: trials of a batch.
    """

    def __init__(self, rows: int = 1) -> None:
        self._full = min(FULL, max(FEW, NUMBERS // rows))
        self._points: deque[StepValues] = deque()
        self._now: tuple[int, float, Mapping[str, Any]] | None = None
        self._values: Mapping[str, Any] = {}  # the last of each name
        self._count, self._stride, self._next = 0, 1, self._full
        self._began = time.perf_counter()
        self._reading = 0.0

    @property
    def latest(self) -> StepValues | None:
        """The present step, with the last value of each name; None before the first."""
        now, values = self._now, self._values
        return None if now is None else StepValues(now[0], now[1], values)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values to the point of a step, which becomes the present one. ``values`` stay as they are from now on."""
        now = self._now
        self._values = values if values.keys() == self._values.keys() else {**self._values, **values}
        if now is not None:
            if now[0] == step:
                self._now = step, now[1], {**now[2], **values}
                return
            count = self._count
            if count == self._next:
                self._stride, self._next = 2 * self._stride, 2 * self._next
            if count % self._stride == 0:
                self._points.append(StepValues._make(now))
            self._count = count + 1
        self._now = step, time.time(), values

    def take(self, *, last: bool = False) -> list[StepValues]:
        """The points of finished steps since the last call, from any thread. ``last``: the attempt is over, its present step included."""
        points = [self._points.popleft() for _ in range(len(self._points))]
        if last and self._now is not None:
            points.append(StepValues._make(self._now))
            self._now = None
        return points

    def may_read(self) -> bool:
        """Whether a field may be read for the log: reads have taken less than ``READ_SHARE`` of the time so far."""
        return self._reading <= READ_SHARE * (time.perf_counter() - self._began)

    def has_read(self, seconds: float) -> None:
        """A read has taken so long."""
        self._reading += seconds


class Watch:
    """The progress of one open job, and a stop request, for other threads.

    Attributes:
        runs: number of runs of the job.
        steps: begun time steps of the current run, if the job calls ``Job.checkpoint``.
        time_steps: number of time steps of a run; 0 if unknown.
        descent: the current step of an optimisation and the most steps it may take; None: the job is not optimised.
        live: the values that the job and its optimisation have logged.
        asked: the reason of a stop request; empty without one.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self, rows: int = 1) -> None:
        """Reset for the next trial, or batch of so many, and drop a stop request of the last one."""
        self.runs = self.steps = self.time_steps = 0
        self.descent: tuple[int, int] | None = None
        self.live = LiveValues(rows)
        self.asked = ""

    def stop(self, why: str) -> None:
        """Ask: the job ends at its next ``checkpoint``, or before its next run."""
        self.asked = self.asked or why

    def check(self) -> None:
        """End the run if a stop was requested.

        Raises:
            Stopped: a stop was requested.
        """
        if self.asked:
            raise Stopped(self.asked)

    def run(self, time_steps: int = 0) -> None:
        """The job is about to run once more. Raises ``Stopped``."""
        self.check()
        self.runs, self.steps, self.time_steps = self.runs + 1, 0, time_steps

    def step(self) -> None:
        """A time step begins. Raises ``Stopped``."""
        if self.asked:
            raise Stopped(self.asked)
        self.steps += 1

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log values. ``step``: by default that of the optimisation, or the number of time steps that have begun."""
        if step is None:
            step = self.steps if self.descent is None else self.descent[0]
        if values:
            self.live.log(step, values)

    def progress(self, program: Any) -> str:
        """The progress of the current run, as text: ``time step 3 of 40``, ``optimize step 2 of 100, backward, loss 0.125``.

        Without time steps it names the phase: ``forward`` while a tape records, ``backward`` while the tape runs its gradients, else
        ``run``. The latest logged values follow, ``SHOWN`` of them; those of the trial with the smallest loss in a batch.

        Args:
            program: of the job; None for a job without one.
        """
        parts = []
        if self.descent is not None:
            parts.append(f"optimize step {self.descent[0]} of {self.descent[1]}")
        elif self.runs > 1:
            parts.append(f"run {self.runs}")
        if program is not None and program.replay.running:
            parts.append("backward")
        elif self.steps:
            known = self.steps <= self.time_steps
            parts.append(f"time step {self.steps}" + (f" of {self.time_steps}" if known else ""))
        else:
            parts.append("run" if program is None or program.recorders.tape is None else "forward")
        point = self.live.latest
        parts += [] if point is None else [f"{name} {value:.6g}" for name, value in list(point.row().items())[:SHOWN]]
        return ", ".join(parts)


__all__ = ["LiveValues", "StepValues", "Stopped", "Watch"]
