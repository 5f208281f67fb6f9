"""How long a trial of a job would take on a backend, by what the compiler predicts of its launches. Nothing runs or is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .plan import launches_of, runs_backwards

if TYPE_CHECKING:
    from .base import Job


@dataclass(frozen=True)
class TrialTime:
    """The prediction for one trial.

    Attributes:
        launches: each launch that ``Job.launches`` names, and its gradient, with how often it is counted: once for each time step, and
            once in a job without time steps.
    """

    launches: Sequence[tuple[int, Any]]

    @property
    def seconds(self) -> float:
        """Of the trial, alone on its device."""
        return sum(times * launch.seconds for times, launch in self.launches)

    def beside(self, others: float, most: float, resident: int) -> float:
        """Seconds that the trial takes of a GPU which it shares.

        Args:
            others: trials at once, this one included.
            most: what running side by side brings at the most.
            resident: threads of the device.
        """
        return sum(times * launch.beside(others, most, resident) for times, launch in self.launches)


def trial_time(job: Job[Any], arch: str | None = None, threads: int | None = None) -> TrialTime | None:
    """The prediction for an open job; None where it names no ``launches``.

    How often a job without time steps launches its kernels is not known. It is the same on every backend, so that predictions of one job
    can be compared all the same.

    Args:
        job: open, on whatever backend.
        arch: predict for this backend, which need not be there; None: the program's own.
        threads: of a CPU; None: the program's.

    Raises:
        QdrunError: a kernel has no gradient, or the gradient does not fit the program's memory budget.
    """
    program, found = job.program, []
    if program is None:
        return None
    steps = max(1, job.time_steps())
    again = job.steps_plan.replays if job.steps_plan else 0
    for kernel, args in launches_of(job):
        found.append((steps + again, program.launch_time(kernel, args, arch=arch, threads=threads)))
        if runs_backwards(job, kernel, args):
            found.append((steps, program.launch_time(kernel, args, gradient=True, arch=arch, threads=threads)))
    return TrialTime(tuple(found)) if found else None


__all__ = ["TrialTime", "trial_time"]
