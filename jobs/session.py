"""A job that stays open while its parameters change: for optimisation, for differences of its loss, and from one trial to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from .outcome import check_outcome
from .plan import launches_of

if TYPE_CHECKING:
    from .base import Job, Outcome


class Session:
    """``with Session(job, backend="cpu") as session: session.run(params)``, again and again.

    The program is kept from one run to the next as long as only parameters in ``Job.live`` change; else it is closed, and the job built
    in a new one.

    Attributes:
        job: the job; its ``params`` are those of the last run.
        builds: how often it was built.
        rebuilt: why the job was built again although only live parameters had changed, if it was.
        used: the most bytes of each kind that one of its programs held.
        peak_bytes: the most bytes that one of them held at once; None for a job without a program.
    """

    def __init__(self, job: Job[Any], **options: Any) -> None:
        self.job, self.builds, self.rebuilt = job, 0, ""
        self.used: dict[str, int] = {}
        self.peak_bytes: int | None = None
        self._options: Mapping[str, Any] = options
        self._open = ExitStack()
        self._fresh = False
        self._begun: Any = None  # what the program was before its first run

    def __enter__(self) -> Self:
        self._build()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.measure()
        self.close()

    def close(self) -> None:
        """Close the program."""
        self._open.close()

    def begin(self) -> None:
        """The job is built and planned, and about to run first: what it is now, ``renew`` makes it again."""
        program = self.job.program
        if self.job.live and self._begun is None and program is not None:
            self._begun = program.begun(launches_of(self.job))

    @property
    def clean(self) -> bool:
        """Whether another trial may run in the open program: the job takes other values (``Job.live``), and its runs have left nothing that
        the trial would notice, see ``Program.is_clean``.
        """
        job = self.job
        built = job._built
        if built is None or built.why or self.builds != 1:
            return False
        return job.program is None or (self._begun is not None and job.program.is_clean(self._begun))

    def renew(self, params: BaseModel, wanted: Sequence[str] | None, seed: int) -> bool:
        """Make the job that of another trial, where it is ``clean``: what follows, its numbers and its bytes, is what it would be in a job
        built for it, see ``Job.renew``. False: it cannot be; close the session.
        """
        job, program = self.job, self.job.program
        job.watch.reset()
        if program is not None:
            program.restart(self._begun)
        if not job.renew(params, wanted=wanted, seed=seed):
            return False
        if program is not None and not (
            program.launches_alike(self._begun, launches_of(job)) and program.is_clean(self._begun)
        ):
            return False
        self._fresh, self.used, self.peak_bytes = True, {}, None
        return True

    def run(self, params: BaseModel | None = None) -> Outcome:
        """Run the job, with other parameters if they are given; the outcome is that of a job built with them.

        Raises:
            Stopped: somebody has asked for the end, see ``Job.watch``.
            BadOutcome: what the job gives is no result, or lacks a wanted gradient.
        """
        self.job.watch.run()
        wanted = self.job.params if params is None else params
        if not (self._fresh and same(wanted, self.job.params)) and not self.job.set(wanted):
            self.measure()
            self.rebuilt = self.rebuilt or (self.job._built.why if self.job._built is not None else "")
            self._open.close()
            self.job.params = wanted
            self._build()
        self._fresh = False
        outcome = self.job.run()
        check_outcome(self.job, outcome)
        return outcome

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


def same(a: Any, b: Any) -> bool:
    """Whether two values of parameters are the same to the bit: equal numbers of other types are not, nor are ``0.0`` and ``-0.0``."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, BaseModel):
        return all(same(getattr(a, name), getattr(b, name)) for name in type(a).model_fields)
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b) if isinstance(a, float) else bool(a == b)


__all__ = ["Session", "same"]
