"""The open program of a lane: batches of one group run in it one after the other, and so do trials of a job that declares its inputs.

A trial runs in the program of the one before when it is of the same job class, with the same options, limits and budget, when the job can
take its parameters (``Session.renew``), and when it printed nothing while it was built: that would be missing in the files of the next
one. A job with a ``run`` of its own is built for each trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

import numpy as np
from pydantic import BaseModel

from ...compiler.errors import QdrunError
from ...jobs.base import Finished, Job, MemoryPlan, Outcome, Session, run_trial
from ...jobs.core.batch import BatchOutcome, BatchSession
from ...jobs.core.inputs import located
from ...jobs.core.session import device_name
from ...jobs.planning.groups import group_key
from ..config.optimize_section import OptimizeSection
from ..optimize.descent import descend_columns
from ..optimize.evaluate import Starts
from ..optimize.kept import DescentStore
from ..optimize.points import optimizer_of
from ..optimize.results import Ends
from ..study.target import input_files
from .capture import has_printed, printing_as_here
from .spec import BatchColumns
from .together import Ran

BATCH_OPTIONS = ("backend", "device", "threads", "memory_limit_bytes")
OPTIONS = ("backend", "device", "threads", "memory_limit_bytes", "memory_budget_bytes")
Body = Callable[[Session], Outcome]
KeptBatch = tuple[Sequence[str], DescentStore | None]


def options_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """How the program of a trial is opened: the options of ``Job.opened``."""
    return {name: spec[name] for name in OPTIONS} | {"debug": spec.get("debug")}


class OpenProgram:
    """A session whose program is open on a lane.

    Attributes:
        key: what a trial or batch must have in common with the ones before it to run here.
        session: of a job, or of batches.
        plan: the memory of a batch.
    """

    def __init__(self, key: tuple[Any, ...], session: Session | BatchSession) -> None:
        self.key, self.session, self.plan = key, session, MemoryPlan()
        self._context = copy_context()  # the program is current in it; what the trials change there, the next does not see
        self._printed = has_printed()

    def here(self) -> Context:
        """A context for something that is done with the program, and prints where the caller does."""
        return printing_as_here(self._context)

    def over(self) -> bool:
        """The last trial is over: whether another may follow. Raises what its launches still report, as the close of the program would."""
        program = self.session.job.program
        if program is not None:
            program.synchronize()
        return not self._printed and not self.session.job.why_built_again()

    def close(self) -> None:
        """Close it. Raises what the close of a program raises; it is closed nevertheless."""
        self.here().run(self.session.close)

    def held(self) -> dict[str, int]:
        """Bytes of the program by category; read from another thread, so it waits for nothing."""
        program = self.session.job.program
        return {} if program is None else program.usage()


class Keeper:
    """What a lane has open: the program of a trial, or of a batch.

    Attributes:
        program: None: nothing.
    """

    def __init__(self, watch: Callable[[Job[Any]], None]) -> None:
        """``watch``: is told the job of each trial before it runs."""
        self.program: OpenProgram | None = None
        self._watch = watch

    def run_batch(
        self, job: type[Job[Any]], spec: Mapping[str, Any], together: BatchColumns, rows: Sequence[int], kept: KeptBatch
    ) -> Ran:
        """Run trials of a batch, in the open program or in a new one, which has room for all of them. It stays open.

        Args:
            job: the class.
            spec: of its first trial.
            together: the trials.
            rows: those that run.
            kept: their ids, and where their descents are kept.

        Raises:
            BaseException: what the job raises for all of them; nothing is open then.
        """
        start = time.perf_counter()
        try:
            params = located(job.Params.model_validate(spec["params"]), input_files(spec))
            options = {name: spec[name] for name in BATCH_OPTIONS} | {"debug": spec.get("debug"), "wanted": spec["gradients"]}
            group = group_key(job, params, wanted=spec["gradients"])
            key = job, repr(options), len(together.seeds), group, repr(together.optimize)
            if self.program is None or self.program.key != key:
                self.close()
                section = None if together.optimize is None else OptimizeSection.model_validate(together.optimize)
                options["optimizer"] = optimizer_of(section, params, debug=spec.get("debug") is not None)
                self.program = OpenProgram(key, BatchSession.open(job, params, len(together.seeds), **options))
                self.program.plan = self.program.here().run(self.program.session.job.plan)
            made = self.program.session.job
            made.watch.reset(len(rows))  # a request to stop may have come when the batch before could not see it any more
            self._watch(made)
            return self.program.here().run(self._run_batch, self.program, params, together, rows, kept, start)
        except BaseException:
            self.close_after_failure()
            raise

    @staticmethod
    def _run_batch(
        program: OpenProgram,
        params: BaseModel,
        together: BatchColumns,
        rows: Sequence[int],
        kept: KeptBatch,
        start: float,
    ) -> Ran:
        session, opened = program.session, time.perf_counter()
        assert isinstance(session, BatchSession)
        ends: Ends | None = None
        outcome, seeds = BatchOutcome(np.empty(0)), np.asarray(together.seeds)[rows]
        inputs = {name: np.asarray(values)[rows] for name, values in together.inputs.items()}
        if together.optimize is None:
            outcome = session.run_columns(inputs, seeds, params)
        else:
            section, starts = OptimizeSection.model_validate(together.optimize), Starts(params, inputs, len(rows))
            ends = descend_columns(session, starts, section, seeds, kept[1], kept[0])
        done = time.perf_counter()
        session.measure()
        seconds = {"build": opened - start, "run": done - opened}
        where = device_name(session.job.program), session.job.launched()
        return Ran(outcome, seconds, program.plan, dict(session.used), session.peak_bytes, *where, ends)

    def run(self, job: type[Job[Any]], spec: Mapping[str, Any], body: Body) -> Finished:
        """Run a trial, in the open program or in a new one. It stays open if another trial may follow.

        Raises:
            BaseException: what the job raises; nothing is open then.
        """
        params, options = located(job.Params.model_validate(spec["params"]), input_files(spec)), options_of(spec)
        start = time.perf_counter()
        try:
            key = job, repr(options)
            if self.program is None or not self._renewed(self.program, key, params, spec):
                self.close()
                made = job(params, wanted=spec["gradients"], seed=spec["seed"])
                self._watch(made)
                session = Session(made, **options)
                self.program = OpenProgram(key, session.__enter__())
                return self._run(body, start)
            self._watch(self.program.session.job)
            return self.program.here().run(self._run, body, start)
        except BaseException:
            self.close_after_failure()
            raise

    @staticmethod
    def _renewed(program: OpenProgram, key: tuple[Any, ...], params: Any, spec: Mapping[str, Any]) -> bool:
        if program.key != key:
            return False
        assert isinstance(program.session, Session)  # the keys of batches are longer
        return program.here().run(program.session.renew, params, spec["gradients"], spec["seed"])

    def _run(self, body: Body, start: float) -> Finished:
        assert self.program is not None and isinstance(self.program.session, Session)
        finished = run_trial(self.program.session, body, start)
        if not self.program.over():
            program, self.program = self.program, None
            program.session.close()
        return finished

    def close(self) -> None:
        """Close what is open. Raises what the close of a program raises; it is closed nevertheless."""
        if self.program is not None:
            try:
                self.program.close()
            finally:
                self.program = None

    def close_after_failure(self) -> None:
        """Close what is open after a trial that has failed, whose own error is the one that counts."""
        with suppress(QdrunError):
            self.close()


__all__ = ["Keeper", "OpenProgram", "options_of"]
