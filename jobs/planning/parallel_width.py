"""Computes the parallel iterations of a job's launches, to choose between a CPU and a GPU. Nothing runs or is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .plan import launches_of

if TYPE_CHECKING:
    from ..base import Job


def parallel_width(job: Job[Any]) -> float | None:
    """Iterations of a parallel loop, the mean over the tasks of all launches that ``Job.launches`` names; a serial task counts 1.

    None where the job names no launches, or where only running can tell the iterations of any loop. The width is the same on every
    backend.

    Args:
        job: open, on whatever backend.

    Raises:
        TypeError: ``launches`` gives something else than kernels with their arguments.
    """
    if job.program is None:
        return None
    tasks = [n for kernel, args in launches_of(job) for n in job.program.parallel_iterations(kernel, args)]
    known = [n for n in tasks if n is not None]
    return sum(known) / len(known) if known else None


__all__ = ["parallel_width"]
