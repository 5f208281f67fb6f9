"""A job that stays open while its parameters change: for optimisation, for differences of its loss, and from one trial to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel

from .debug import Debug
from .job import Job, same
from .memory_plan import MemoryPlan
from .outcome import Outcome, check_outcome
from .plan import launches_of


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
        self.job.watch.run(_time_steps(self.job))
        wanted = self.job.params if params is None else params
        if not (self._fresh and same(wanted, self.job.params)) and not self.job.set(wanted):
            self.measure()
            self.rebuilt = self.rebuilt or (self.job._built.why if self.job._built is not None else "")
            self._open.close()
            self.job.params = wanted
            self._build()
        self._fresh = False
        outcome = self.job.run()
        check_outcome(outcome, type(self.job).__name__, self.job.params, self.job.wanted)
        self.job.watch.loss = float(outcome.loss)
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


def _time_steps(job: Job[Any]) -> int:
    """How many time steps a run of a job takes; 0 where the job does not say."""
    horizon = getattr(job.params, job.horizon, 0)
    return job.time_steps() or (horizon if type(horizon) is int else 0)


def device_name(program: Any) -> str:
    """What a program runs on: the name of its device, and where there are several the UUID."""
    return "" if program is None else f"{program.device.name} {program.device.identity.partition(' ')[2]}".strip()


@dataclass(frozen=True)
class Finished:
    """What ``execute`` gives back: the outcome, the plan made before it, bytes used, seconds of each part, and the name of the device."""

    outcome: Outcome
    plan: MemoryPlan
    used: dict[str, int]
    peak_bytes: int | None
    seconds: dict[str, float]
    device: str = ""


def execute(
    job: Job[Any],
    *,
    backend: str,
    device: int | str | None = None,
    threads: int | None,
    memory_limit_bytes: int | None,
    memory_budget_bytes: int | None = None,
    debug: Debug | Mapping[str, bool] | bool | None = None,
    body: Callable[[Session], Outcome] = Session.run,
) -> Finished:
    """Open, build, plan and run ``job``: the one way through which every trial goes.

    ``body``: what to do with the open job, by default to run it once; an optimisation runs it again and again. ``debug``: see
    ``Job.opened``.
    """
    start = time.perf_counter()
    limits: dict[str, Any] = {"memory_limit_bytes": memory_limit_bytes, "memory_budget_bytes": memory_budget_bytes}
    with Session(job, backend=backend, device=device, threads=threads, debug=debug, **limits) as session:
        return run_trial(session, body, start)


def run_trial(session: Session, body: Callable[[Session], Outcome], start: float) -> Finished:
    """Plan and run the job of an open session, whether it was built for this trial or renewed.

    Args:
        session: opened or renewed since ``start``, by ``time.perf_counter``.
        body: see ``execute``.
        start: see above.
    """
    job = session.job
    built = time.perf_counter()
    plan = job.plan()
    job.watch.check()
    session.begin()
    planned = time.perf_counter()
    outcome = body(session)
    job.forget_recorded()
    done = time.perf_counter()
    session.measure()
    seconds = {"build": built - start, "plan": planned - built, "run": done - planned}
    return Finished(outcome, plan, session.used, session.peak_bytes, seconds, device_name(job.program))
