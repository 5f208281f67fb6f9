"""A job that stays open while its parameters change: for optimisation, for differences of its loss, and from one trial to the next."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from threading import RLock
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from pydantic import BaseModel

from ..planning.memory_plan import MemoryPlan, PlanEntry
from ..planning.plan import differentiated, launches_of
from .debug import Debug
from .declared import same
from .job import Job
from .outcome import Outcome, check_outcome

P = ParamSpec("P")
R = TypeVar("R")


class InTurn(Protocol):
    """A session: it has a lock, and a job with the open program."""

    job: Any
    _turn: RLock  # type: ignore[valid-type]


S = TypeVar("S", bound=InTurn)


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """One thread at a time runs the method, with the session's program as its current one."""

    @functools.wraps(method)
    def run(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._turn:
            program = self.job.program
            with nullcontext() if program is None else program.current_here():
                return method(self, *args, **kwargs)

    return run


class Session:
    """``with Session(job, backend="cpu") as session: session.run(params)``, again and again, from any thread.

    The program is kept from one run to the next as long as only inputs change (``Job.set``); else it is closed, and the job built in a
    new one. A job that overrides ``run`` is built for each run.

    Attributes:
        job: the job; its ``params`` are those of the last run.
        builds: how often it was built.
        rebuilt: why the job is built for each run although it has inputs, if it is.
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
        self._plan: MemoryPlan | None = None
        self._turn = RLock()
        self._beside: list[PlanEntry] = []

    def __enter__(self) -> Self:
        self._build()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.measure()
        self.close()

    @in_turn
    def close(self) -> None:
        """Close the program."""
        self._open.close()

    @in_turn
    def renew(self, params: BaseModel, wanted: Sequence[str] | None, seed: int) -> bool:
        """Make the open job that of another trial: what follows, its numbers and its bytes, is what it would be in a job built for it.

        False: that is not possible, and the session must be closed: other parameters than inputs differ, or gradients; the job runs once in
        a program (``Job.why_built_again``); it has read its seed or its artifacts while it was built, or has an ``__init__`` of its own.
        """
        job = self.job
        names = tuple(job.gradients if wanted is None else wanted)
        if names != job.wanted or self.builds != 1 or job.reads_of_its_own() or type(job).__init__ is not Job.__init__:
            return False
        job.watch.reset()
        if self._beside:
            self._beside, self._plan = [], None
        before = self.plan()
        if not job.set(params):
            return False
        job.give_seed(seed)
        self._plan = None
        if self.plan() != before:  # what bounds its loops has changed
            return False
        self._fresh, self.used, self.peak_bytes = True, {}, None
        return True

    @in_turn
    def plan(self) -> MemoryPlan:
        """The memory plan of the open job with its parameters, and of what ``runs_beside`` it."""
        if self._plan is None:
            plan = self.job.plan()
            self._plan = plan.model_copy(update={"entries": (*plan.entries, *self._beside)}) if self._beside else plan
        return self._plan

    @in_turn
    def runs_beside(self, entry: PlanEntry, used: int) -> None:
        """Another program has run beside that of the job, with these bytes planned and used."""
        self._beside, self._plan = [entry], None
        self.used[entry.kind] = max(self.used.get(entry.kind, 0), used)
        self.measure()
        self.peak_bytes = (self.peak_bytes or 0) + used

    @in_turn
    def run(self, params: BaseModel | None = None) -> Outcome:
        """Run the job, with other parameters if they are given; the outcome is that of a job built with them.

        Raises:
            Stopped: a stop was requested, see ``Job.watch``.
            BadOutcome: the job returns no valid result, or lacks a wanted gradient.
        """
        job = self.job
        job.watch.run(_time_steps(job))
        wanted = job.params if params is None else params
        if not (self._fresh and same(wanted, job.params)) and not job.set(wanted):
            self.measure()
            self.rebuilt = self.rebuilt or (job.why_built_again() if job.declared.inputs else "")
            self._open.close()
            job.params = wanted
            self._build()
        self._fresh = False
        outcome = job.run()
        if not job.declares():
            check_outcome(outcome, type(job).__name__, job.params, job.wanted)
        return outcome

    @in_turn
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
        self._fresh, self._plan = True, None


def _time_steps(job: Job[Any]) -> int:
    """The number of time steps of a run; 0 if unknown."""
    horizon = getattr(job.params, job.horizon, 0)
    return job.time_steps() or (horizon if type(horizon) is int else 0)


def device_name(program: Any) -> str:
    """The device of a program: its name, and the UUID if there are several devices."""
    return "" if program is None else f"{program.device.name} {program.device.identity.partition(' ')[2]}".strip()


@dataclass(frozen=True)
class Finished:
    """The result of ``execute``: the outcome, the plan, the used bytes, the seconds of each part, the name of the device, how the last
    run was launched (``Job.launched``), and what tapes have said of gradients of a job that overrides ``run``.
    """

    outcome: Outcome
    plan: MemoryPlan
    used: dict[str, int]
    peak_bytes: int | None
    seconds: dict[str, float]
    device: str = ""
    launched: str = ""
    warnings: tuple[str, ...] = ()


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
    session.plan()
    job.watch.check()
    planned = time.perf_counter()
    outcome = body(session)
    session.measure()
    job.save_once()
    done = time.perf_counter()
    seconds = {"build": built - start, "plan": planned - built, "run": done - planned}
    where, told = device_name(job.program), () if job.program is None or job.declares() else tuple(job.program.state.told)
    return Finished(outcome, session.plan(), session.used, session.peak_bytes, seconds, where, job.launched(), told)


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
