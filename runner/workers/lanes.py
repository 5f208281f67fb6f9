"""Lanes: the threads of a worker. Each runs one trial at a time, in a program of its own, on a stream of its own.

A lane keeps its program from batch to batch where it can (``program_cache``), and closes it at the end of a call, before that end is seen;
not where the next call of the same lease waits for it already, see ``BatchSpec.behind``: that runs on the same lane, in the same program.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...jobs.base import Job
from ..live.points import Logged
from ..store.columns import BatchRows
from .program_cache import Keeper
from .records import Record
from .spec import BatchSpec, LaneState, LaunchEnded

Ends = dict[str, Record]
"""Records of attempts, by trial."""
Run = Callable[["Lane", BatchSpec], Record]
"""Runs one attempt on a lane. What it raises becomes the end of that attempt."""
Together = Callable[["Lane", BatchSpec], tuple[Ends, tuple[BatchRows, ...]] | None]
"""Runs the trials of a batch at once: the ends of those that failed, and the rows of the others; None: they must run one by one."""
Broken = Callable[[BatchSpec, BaseException], Record]
"""The end of an attempt from an exception of the worker."""
PHASES = {"open": "build"}
"""The phases of a lane whose names mean nothing to users."""
TASKS = Path("/proc/self/task")
JOIN_S = 1.0
SAVE_S = 900.0
"""A lane that has been writing down one result for so long hangs: a store that is away is given up after ``storage_wait_s``."""


BYTES = 256
"""More than a ``fenv_t`` takes anywhere: 32 with x86-64, 16 with aarch64."""


class FloatEnvironment:
    """As it was in this thread when this was made. A trial that changes it, or a library of its, must not change the bits of others."""

    def __init__(self) -> None:
        libm = ctypes.CDLL(None)
        if not hasattr(libm, "fesetenv"):
            libm = ctypes.CDLL("libm.so.6")
        self._set, self._kept = libm.fesetenv, ctypes.create_string_buffer(BYTES)
        libm.fegetenv(self._kept)

    def restore(self) -> None:
        """Put it back, in the thread in which this was made; about a third of a microsecond."""
        self._set(self._kept)


class LaneDied(RuntimeError):
    """The thread of a lane has ended in the middle of a trial, or hangs where no job runs."""


@dataclass
class WorkerCall:
    """The batches of one call of a worker, and their results. ``over`` is set after the last; no thread is woken before.

    Attributes:
        batches: in order.
        ends: of batches that are over; the caller takes them out.
        running: the launch that runs, and since when by the monotonic clock; None between launches.
        over: the lane has finished all of them, and is free.
        failed: number of trials that have not succeeded.
        lane: the lane that runs the call, once one has it.
        told: how many ends there have been.
        names: its trials, computed on demand.
    """

    batches: Sequence[BatchSpec]
    ends: deque[LaunchEnded] = field(default_factory=deque)
    running: tuple[int, float] | None = None
    over: threading.Event = field(default_factory=threading.Event)
    failed: int = 0
    lane: Lane | None = None
    told: int = 0
    names: frozenset[str] | None = None

    def has(self, trial: str) -> bool:
        """Whether a trial is among them."""
        if self.names is None:  # looked up once for each of a batch
            self.names = frozenset(trial for batch in self.batches for trial in batch.trials)
        return trial in self.names

    def tell(self, end: LaunchEnded) -> None:
        """The next batch is over."""
        self.ends.append(end)
        self.told += 1
        self.running = None

    def taken(self) -> tuple[LaunchEnded, ...]:
        """The ends since the last call."""
        return tuple(self.ends.popleft() for _ in range(len(self.ends)))


@dataclass(slots=True)
class Now:
    """The attempts that a lane runs at once. ``rows``: of the batch, those that run. ``phase``: see ``LaneState``. ``saving``: since when
    their results are written down.
    """

    batch: BatchSpec
    rows: Sequence[int]
    phase: str = "open"
    since: float = field(default_factory=time.monotonic)
    job: Job[Any] | None = None
    saving: float = 0.0


class Lane(threading.Thread):
    """One lane. Between tasks it waits for the next.

    Attributes:
        number: from 0.
        now: the running batch; None if it is idle.
        open: its program.
    """

    def __init__(self, number: int, name: str, lanes: Lanes) -> None:
        super().__init__(name=f"{name} lane {number}", daemon=True)
        self.number, self.now, self._lanes = number, None, lanes
        self.now: Now | None
        self.open = Keeper(self._opening)
        self._floats: FloatEnvironment | None = None  # that of its thread
        self._tasks: queue.SimpleQueue[WorkerCall | None] = queue.SimpleQueue()
        self._task: WorkerCall | None = None
        self._stops: dict[str, str] = {}
        self._lock = threading.Lock()

    def give(self, task: WorkerCall | None) -> None:
        """The next task; None ends the thread."""
        self._tasks.put(task)

    @property
    def waits(self) -> bool:
        """Whether the present task is its last one."""
        return self._tasks.empty()

    def run(self) -> None:
        """The thread."""
        self._floats = FloatEnvironment()
        while (task := self._tasks.get()) is not None:
            try:
                self._run(task)
            except BaseException as error:  # an internal error: the caller that waits for the task must receive it
                self._lanes.died(task, error)
        self._close()

    def _run(self, task: WorkerCall) -> None:
        with self._lock:
            self._task = task
        *before, last = task.batches
        for batch in before:
            task.tell(self._batch(task, batch))
        end = self._batch(task, last)
        if self.waits or self._lanes.lost:
            self._close()  # before its end is seen: the bytes are free then
        with self._lock:
            self._task = None
            self._stops.clear()
        self._lanes.done(self, last.lease)  # before the end is visible: the caller may then submit the next task
        task.tell(end)
        task.over.set()

    def _close(self) -> None:
        """Close the program, if one is open. No trial runs: what it raises is the device's."""
        try:
            self.open.close()
        except BaseException as error:  # a job's, too: what it opened ends here
            self._lanes.failed(error)

    def _batch(self, task: WorkerCall, batch: BatchSpec) -> LaunchEnded:
        enough = batch.may_fail is not None and task.failed >= batch.may_fail
        if self._lanes.lost or enough or batch.launch in self._lanes.dropped:
            return LaunchEnded(batch.launch, {}, retire=self._lanes.retire(), begun=False)
        self._lanes.begin(self.number, batch.launch)
        task.running = batch.launch, time.monotonic()
        ends, rows = self._together(batch) if len(batch.trials) > 1 else (self._one_by_one((batch,)), ())
        task.failed += sum(record["status"] != "done" for record in ends.values())
        return LaunchEnded(batch.launch, ends, rows, self._lanes.retire())

    def _together(self, batch: BatchSpec) -> tuple[Ends, tuple[BatchRows, ...]]:
        """The trials of a batch at once; one by one where the job raises for all of them: each then has its own error, or its row."""
        assert self._floats is not None
        rows = range(len(batch.trials))
        self.now = Now(batch, rows)
        self._floats.restore()
        try:
            found = Context().run(self._lanes.together, self, batch)
        except BaseException as error:
            found = {trial: self._lanes.broken(batch, error) for trial in batch.trials}, ()
        self.now = None
        return (self._one_by_one(map(batch.part, rows)), ()) if found is None else found

    def _one_by_one(self, batches: Iterable[BatchSpec]) -> Ends:
        ends, floats = Ends(), self._floats
        assert floats is not None
        for batch in batches:
            if ends and self._lanes.lost:  # by the one before; a trial that does not begin has no end
                break
            self.now = Now(batch, (0,))
            floats.restore()
            # a context of its own: whatever program or setting a trial leaves behind in its context, the next one does not see
            try:
                record = Context().run(self._lanes.run, self, batch)
            except BaseException as error:
                record = self._lanes.broken(batch, error)
            ends[batch.trials[0]] = record
            self.now = None
        return ends

    def _opening(self, job: Job[Any]) -> None:
        """The job of the running attempt, as soon as there is one: it can be watched from now on."""
        with self._lock:
            assert self.now is not None
            self.now.job = job
            why = self._stops.get(self.now.batch.trials[0])
            if why is not None:
                job.watch.stop(why)

    def runs(self, rows: Sequence[int]) -> None:
        """Those trials of the batch that were not stopped before run at once now: the rows of what they log."""
        with self._lock:
            assert self.now is not None
            self.now.rows = rows

    def save(self) -> None:
        """The running attempt no longer uses its job and cannot be stopped: another trial may use the job."""
        with self._lock:
            assert self.now is not None
            logged = self._logged(last=True)
            self.now.phase, self.now.job, self.now.saving = "save", None, time.monotonic()
        if logged is not None:
            self._lanes.tell(logged)

    def logged(self) -> Logged | None:
        """What the running attempt has logged since this was called last, from another thread; None: nothing."""
        with self._lock:
            return self._logged()

    def _logged(self, *, last: bool = False) -> Logged | None:
        now = self.now
        points = [] if now is None or now.job is None else now.job.watch.live.take(last=last)
        if now is None or not points:
            return None
        return Logged.of([now.batch.trials[row] for row in now.rows], [now.batch.attempts[row] for row in now.rows], points)

    def take_artifacts(self) -> TemporaryDirectory[str] | None:
        """The folder with the artifacts of the running attempt, None where it has none; the caller removes it."""
        now = self.now
        return None if now is None or now.job is None else now.job.take_artifacts()

    def asked(self, trial: str) -> str | None:
        """Why a trial was asked to stop; None when it was not."""
        with self._lock:
            return self._stops.get(trial)

    def stop(self, trial: str, why: str) -> bool:
        """Ask a trial that runs or waits here to stop; False when it is not here."""
        with self._lock:
            if self._task is None or not self._task.has(trial):
                return False
            self._stops.setdefault(trial, why)
            now = self.now
            if now is not None and now.batch.trials[0] == trial and now.job is not None:
                now.job.watch.stop(why)
        return True

    def stop_all(self, why: str) -> None:
        """Ask all trials that run here to stop. Those that wait do not begin once nothing can be run here, see ``Lanes.lost``."""
        now = self.now
        for trial in () if now is None else [now.batch.trials[row] for row in now.rows]:
            self.stop(trial, why)

    def held(self) -> dict[str, int]:
        """Bytes of its program now, by category; read from another thread, so it waits for nothing."""
        now, kept = self.now, self.open.program
        job = None if now is None else now.job
        program = None if job is None else job.program  # each attribute is read once: the lane continues meanwhile
        if program is not None:
            return program.usage()
        return {} if kept is None else kept.held()

    def ended(self) -> bool:
        """Whether its thread has come to an end. Native code can end a thread that Python takes for alive."""
        return not self.is_alive() or (TASKS.is_dir() and not (TASKS / str(self.native_id)).exists())

    def gone(self) -> str:
        """Why it will never come to the end of its task; empty while it may."""
        now = self.now
        if self.ended():
            return "the thread of its lane has ended: native code of the job may have ended it"
        if now is not None and now.phase == "save" and now.saving and time.monotonic() - now.saving > SAVE_S:
            return f"its result has been written for more than {SAVE_S:.0f} s"
        return ""

    def state(self) -> LaneState:
        """The state of the lane, read from another thread."""
        now = self.now
        if now is None:
            return LaneState(self.number)
        job, seconds = now.job, time.monotonic() - now.since
        runs, steps = (0, 0) if job is None else (job.watch.runs, job.watch.steps)
        phase = "run" if now.phase == "open" and runs else now.phase
        progress = job.watch.progress(job.program) if phase == "run" and job is not None else PHASES.get(phase, phase)
        batch, point = now.batch, None if job is None else job.watch.live.latest
        shown = None if point is None else point._replace(values=point.row())
        head = self.number, batch.trials[0], batch.attempts[0], batch.lease, phase, seconds, runs, steps
        return LaneState(*head, self.held(), progress, shown)


class Lanes:
    """All lanes of a worker.

    Attributes:
        run: runs an attempt.
        together: runs the attempts of a batch.
        retire: says why the worker is to be replaced, empty when it is not.
        begin: is told the lane and the launch before each.
        failed: is told what the close of a program between two trials raised, and why a lane has died.
        broken: makes the end of an attempt from what it raised, or from the death of its lane.
        tell: takes the last values that an attempt has logged.
        lost: nothing can be run here any more.
        dropped: launches that are not to begin.
        free: those that have no task, and no program.
        running: those that run a lease.
    """

    def __init__(
        self,
        count: int,
        name: str,
        run: Run,
        together: Together,
        retire: Callable[[], str],
        begin: Callable[[int, int], None],
        failed: Callable[[BaseException], None],
        broken: Broken,
        tell: Callable[[Logged], None],
    ) -> None:
        self.run, self.retire, self.begin, self.failed, self.lost = run, retire, begin, failed, False
        self.together, self.broken, self.tell = together, broken, tell
        self.dropped: set[int] = set()
        self.running: dict[str, Lane] = {}
        self._over: set[str] = set()  # leases of which nothing runs any more
        self._changed = threading.Condition()
        self.all = [Lane(number, name, self) for number in range(count)]
        self.free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self.all:
            lane.start()
            self.free.put(lane)

    def give(self, batches: Sequence[BatchSpec]) -> WorkerCall:
        """Hand batches to the next lane that is free, and wait until there is one; those behind others go to the lane of their lease."""
        task, lease = WorkerCall(batches), batches[0].lease
        if batches[0].behind:
            with self._changed:
                self._changed.wait_for(
                    lambda: lease in self.running or lease in self._over
                )  # the call before may wait for a lane
                if lease in self.running:
                    task.lane = self.running[lease]
                    task.lane.give(task)
                    return task
        task.lane = self.free.get()
        with self._changed:
            self.running[lease] = task.lane
            self._changed.notify_all()
        task.lane.give(task)
        return task

    def done(self, lane: Lane, lease: str) -> None:
        """A lane is over with a call: it is free, unless the next one of the lease waits for it."""
        with self._changed:
            if lane.waits:
                self.running.pop(lease, None)
                self._over.add(lease)
                self._changed.notify_all()
                self.free.put(lane)

    def wait(self, task: WorkerCall, seconds: float) -> bool:
        """Whether a task is over within so many seconds. That of a lane that is gone is: see ``died``."""
        if task.over.wait(seconds):
            return True
        why = task.lane.gone() if task.lane is not None else ""
        if why and not task.over.is_set():
            self.died(task, LaneDied(why))
        return task.over.is_set()

    def died(self, task: WorkerCall, error: BaseException) -> None:
        """A lane will not come to the end of its task. The attempt that it was at ends with an error, the others had not begun; the worker
        takes nothing more.
        """
        self.lost = True
        self.failed(error)
        running = task.running
        for batch in task.batches[task.told :]:
            begun = running is not None and running[0] == batch.launch
            ends = {trial: self.broken(batch, error) for trial in batch.trials} if begun else {}
            task.tell(LaunchEnded(batch.launch, ends, retire=self.retire(), begun=begun))
        task.over.set()

    def logged(self) -> list[Logged]:
        """What the attempts that run have logged since this was called last."""
        return [logged for lane in self.all if (logged := lane.logged()) is not None]

    def held(self) -> int:
        """Bytes of all open programs."""
        return sum(sum(lane.held().values()) for lane in self.all)

    def close(self, timeout_s: float) -> bool:
        """End the threads after what they run; whether all have ended in time."""
        for lane in self.all:
            lane.give(None)
        end = time.monotonic() + timeout_s
        for lane in self.all:
            while not lane.ended() and lane.is_alive() and time.monotonic() < end:
                lane.join(min(JOIN_S, max(0.0, end - time.monotonic())))
        return not any(lane.is_alive() and not lane.ended() for lane in self.all)


__all__ = ["Lane", "LaneDied", "Lanes", "Now", "WorkerCall"]
