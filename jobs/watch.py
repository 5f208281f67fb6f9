"""What others see of a job while it runs, and how they ask it to stop."""

from __future__ import annotations

from typing import Any


class Stopped(BaseException):
    """Somebody asked for the end of a run. No ``Exception``, so that a job that goes on after errors does not go on after this.

    ``outcome``: the best result so far of what was stopped, where there is one: of an optimisation.
    """

    outcome: Any = None


class Watch:
    """One open job, seen from another thread: numbers that only grow, and a request that its loops look for.

    Attributes:
        runs: how often the job was run; of an optimisation, its step plus one.
        steps: time steps that were begun, where the job calls ``Job.checkpoint``.
        asked: why it is to stop; empty while nobody has asked.
    """

    def __init__(self) -> None:
        self.runs = self.steps = 0
        self.asked = ""

    def reset(self) -> None:
        """Another trial begins. Nobody asks the last one any more."""
        self.runs = self.steps = 0
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

    def run(self) -> None:
        """The job is about to run once more. Raises ``Stopped``."""
        self.check()
        self.runs += 1

    def step(self) -> None:
        """A time step begins. Raises ``Stopped``."""
        if self.asked:
            raise Stopped(self.asked)
        self.steps += 1


__all__ = ["Stopped", "Watch"]
