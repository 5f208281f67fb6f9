"""What others see of a job while it runs, and how they ask it to stop."""

from __future__ import annotations

from typing import Any


class Stopped(BaseException):
    """Somebody asked for the end of a run. No ``Exception``, so that a job that goes on after errors does not go on after this.

    ``outcome``: the best result so far of what was stopped, where there is one: of an optimisation.
    """

    outcome: Any = None


class Watch:
    """One open job, seen from another thread: how far it is, and a request to stop that its loops look for.

    Attributes:
        runs: how often the job was run.
        steps: time steps of the current run that were begun, where the job calls ``Job.checkpoint``.
        time_steps: how many time steps a run takes; 0 where that is not known.
        descent: the current step of an optimisation and the most steps it may take; None: the job is not optimised.
        loss: the latest loss: of the last run, or what the job gave to ``checkpoint`` since; None before the first.
        asked: why it is to stop; empty while nobody has asked.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Another trial begins. Nobody asks the last one any more."""
        self.runs = self.steps = self.time_steps = 0
        self.descent: tuple[int, int] | None = None
        self.loss: float | None = None
        self.asked = ""

    def stop(self, why: str) -> None:
        """Ask: the job ends at its next ``checkpoint``, or before its next run."""
        self.asked = self.asked or why

    def check(self) -> None:
        """Obey.

        Raises:
            Stopped: somebody has asked.
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
        """How far the current run is, as text: ``time step 3 of 40``, ``optimize step 2 of 100, backward, loss 0.125``.

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
