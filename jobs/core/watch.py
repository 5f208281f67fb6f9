"""Observes a running job from other threads: its progress, and requests to stop it."""

from __future__ import annotations

from typing import Any


class Stopped(BaseException):
    """A run was asked to stop. Not an ``Exception``, so that a job that catches errors does not continue after it.

    ``outcome``: the best result so far of a stopped optimisation; else None.
    """

    outcome: Any = None


class Watch:
    """The progress of one open job, and a stop request, for other threads.

    Attributes:
        runs: number of runs of the job.
        steps: begun time steps of the current run, if the job calls ``Job.checkpoint``.
        time_steps: number of time steps of a run; 0 if unknown.
        descent: the current step of an optimisation and the most steps it may take; None: the job is not optimised.
        loss: the latest loss: of the last run, or what the job gave to ``checkpoint`` since; None before the first.
        asked: the reason of a stop request; empty without one.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset for the next trial, and drop a stop request of the last one."""
        self.runs = self.steps = self.time_steps = 0
        self.descent: tuple[int, int] | None = None
        self.loss: float | None = None
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

    def progress(self, program: Any) -> str:
        """The progress of the current run, as text: ``time step 3 of 40``, ``optimize step 2 of 100, backward, loss 0.125``.

        Without time steps it names the phase: ``forward`` while a tape records, ``backward`` while the tape runs its gradients, else
        ``run``.

        Args:
            program: of the job; None for a job without one.
        """
        parts = []
        if self.descent is not None:
            parts.append(f"optimize step {self.descent[0]} of {self.descent[1]}")
        elif self.runs > 1:
            parts.append(f"run {self.runs}")
        if program is not None and program.replaying:
            parts.append("backward")
        elif self.steps:
            known = self.steps <= self.time_steps
            parts.append(f"time step {self.steps}" + (f" of {self.time_steps}" if known else ""))
        else:
            parts.append("run" if program is None or program.tape is None else "forward")
        parts += [] if self.loss is None else [f"loss {self.loss:.6g}"]
        return ", ".join(parts)


__all__ = ["Stopped", "Watch"]
