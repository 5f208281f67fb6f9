"""Loads the code of an open job before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..planning.plan import differentiated, launches_of

if TYPE_CHECKING:
    from ..base import Job


def load_code(job: Job[Any]) -> None:
    """Compile the kernels that an open job names in ``launches``, and their gradients under their plans, and load them. Runs nothing.

    Raises:
        OutOfMemory: no plan of a gradient fits.
        TypeError: see ``launches_of``.
    """
    import qdrun as qd

    if job.program is None:
        return
    launches = launches_of(job)
    qd.compile(*[(kernel, *args) for kernel, args in launches], gradients=bool(job.wanted))
    for kernel, args in differentiated(job, launches):
        kernel.grad.load(*args)


__all__ = ["load_code"]
