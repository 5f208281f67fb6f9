"""A job that stays open while its parameters change: for optimisation, and for differences of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pydantic import BaseModel

    from .base import Job, Outcome


class Session:
    """``with Session(job, backend="cpu") as session: session.run(params)``, again and again.

    The program is kept from one run to the next as long as only parameters in ``Job.live`` change; else it is closed, and the job built
    in a new one.

    Attributes:
        job: the job; its ``params`` are those of the last run.
        builds: how often it was built.
        used: the most bytes of each kind that one of its programs held.
        peak_bytes: the most bytes that one of them held at once; None for a job without a program.
    """

    def __init__(self, job: Job[Any], **options: Any) -> None:
        self.job, self.builds = job, 0
        self.used: dict[str, int] = {}
        self.peak_bytes: int | None = None
        self._options: Mapping[str, Any] = options
        self._open = ExitStack()
        self._fresh = False

    def __enter__(self) -> Self:
        self._build()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.measure()
        self._open.close()

    def run(self, params: BaseModel | None = None) -> Outcome:
        """Run the job, with other parameters if they are given; the outcome is that of a job built with them.

        Raises:
            Stopped: somebody has asked for the end, see ``Job.watch``.
        """
        self.job.watch.run()
        wanted = self.job.params if params is None else params
        if not (self._fresh and wanted == self.job.params) and not self.job.set(wanted):
            self.measure()
            self._open.close()
            self.job.params = wanted
            self._build()
        self._fresh = False
        return self.job.run()

    def measure(self) -> None:
        """Bring ``used`` and ``peak_bytes`` up to date."""
        for kind, amount in self.job.used().items():
            self.used[kind] = max(self.used.get(kind, 0), amount)
        peak = self.job.peak_bytes()
        if peak is not None:
            self.peak_bytes = max(self.peak_bytes or 0, peak)

    def _build(self) -> None:
        self._open.enter_context(self.job.opened(**self._options))
        self.builds += 1
        self._fresh = True


__all__ = ["Session"]
