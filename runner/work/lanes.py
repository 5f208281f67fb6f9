"""Lanes: the threads of a worker. Each runs one trial at a time, in a program of its own, on a stream of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from ...jobs.base import Job
from .spec import BatchEnd, BatchSpec, LaneState, TrialEnd, TrialSpec

Run = Callable[["Lane", BatchSpec, TrialSpec], TrialEnd]
"""Runs one attempt on a lane, and raises nothing."""


@dataclass
class Task:
    """The batches of a call, and the way back. Nobody is woken for each of them: ``over`` is set after the last.

    Attributes:
        batches: in order.
        ends: of batches that are over; who takes them out is the caller.
        running: the launch that runs, and since when by the monotonic clock; None between launches.
        over: the lane has done with all of them, and is free.
    """

    batches: Sequence[BatchSpec]
    ends: deque[BatchEnd] = field(default_factory=deque)
    running: tuple[int, float] | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def taken(self) -> tuple[BatchEnd, ...]:
        """The ends since the last call."""
        return tuple(self.ends.popleft() for _ in range(len(self.ends)))


@dataclass
class Now:
    """The attempt that a lane runs. ``phase``: see ``LaneState``."""

    trial: TrialSpec
    lease: str
    phase: str = "open"
    since: float = field(default_factory=time.monotonic)
    job: Job[Any] | None = None

    def held(self) -> dict[str, int]:
        """Bytes of its program now, by category; read from another thread, so it waits for nothing."""
        program = None if self.job is None else self.job.program
        return {} if program is None else program.usage()


class Lane(threading.Thread):
    """One lane. Between tasks it waits for the next.

    Attributes:
        number: from 0.
        now: what it runs; None when it is idle.
    """

    def __init__(self, number: int, name: str, lanes: Lanes) -> None:
        super().__init__(name=f"{name} lane {number}", daemon=True)
        self.number, self.now, self._lanes = number, None, lanes
        self.now: Now | None
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._task: Task | None = None
        self._stops: dict[str, str] = {}
        self._lock = threading.Lock()

    def give(self, task: Task | None) -> None:
        """Its next task; None ends the thread."""
        self._tasks.put(task)

    def run(self) -> None:
        """The thread."""
        while (task := self._tasks.get()) is not None:
            with self._lock:
                self._task = task
            for batch in task.batches:
                task.ends.append(self._batch(task, batch))
                task.running = None
            with self._lock:
                self._task = None
                self._stops.clear()
            self._lanes.free.put(self)  # before the end is seen: who has it may give the next task
            task.over.set()

    def _batch(self, task: Task, batch: BatchSpec) -> BatchEnd:
        if self._lanes.lost or batch.launch in self._lanes.dropped:
            return BatchEnd(batch.lease, (), self._lanes.retire(), batch.launch)
        self._lanes.begin(self.number, batch.launch)
        task.running = batch.launch, time.monotonic()
        ends = []
        for trial in batch.trials:
            self.now = Now(trial, batch.lease)
            # a context of its own: whatever program or setting a trial leaves behind in its context, the next one does not see
            ends.append(Context().run(self._lanes.run, self, batch, trial))
            self.now = None
        return BatchEnd(batch.lease, tuple(ends), self._lanes.retire(), batch.launch)

    def open(self, job: Job[Any]) -> None:
        """The job of the running attempt, as soon as there is one: it can be watched from now on."""
        with self._lock:
            assert self.now is not None
            self.now.job = job
            why = self._stops.get(self.now.trial.trial)
        if why is not None:
            job.watch.stop(why)

    def asked(self, trial: str) -> str | None:
        """Why a trial was asked to stop; None when it was not."""
        with self._lock:
            return self._stops.get(trial)

    def stop(self, trial: str, why: str) -> bool:
        """Ask a trial that runs or waits here to stop; False when it is not here."""
        with self._lock:
            if self._task is None or not any(t.trial == trial for batch in self._task.batches for t in batch.trials):
                return False
            self._stops.setdefault(trial, why)
            now = self.now
        if now is not None and now.trial.trial == trial and now.job is not None:
            now.job.watch.stop(why)
        return True

    def state(self) -> LaneState:
        """What it does, read from another thread."""
        now = self.now
        if now is None:
            return LaneState(self.number)
        watch = None if now.job is None else now.job.watch
        runs, steps = (0, 0) if watch is None else (watch.runs, watch.steps)
        phase = "run" if now.phase == "open" and runs else now.phase
        seconds = time.monotonic() - now.since
        return LaneState(self.number, now.trial.trial, now.trial.attempt, now.lease, phase, seconds, runs, steps, now.held())


class Lanes:
    """All lanes of a worker.

    Attributes:
        run: runs an attempt.
        retire: says why the worker is to be replaced, empty when it is not.
        begin: is told the lane and the launch before each.
        lost: nothing can be run here any more.
        dropped: launches that are not to begin.
        free: those that have no task.
    """

    def __init__(self, count: int, name: str, run: Run, retire: Callable[[], str], begin: Callable[[int, int], None]) -> None:
        self.run, self.retire, self.begin, self.lost = run, retire, begin, False
        self.dropped: set[int] = set()
        self.all = [Lane(number, name, self) for number in range(count)]
        self.free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self.all:
            lane.start()
            self.free.put(lane)

    def give(self, batches: Sequence[BatchSpec]) -> Task:
        """Hand batches to the next lane that is free, and wait until there is one."""
        task = Task(batches)
        self.free.get().give(task)
        return task

    def held(self) -> int:
        """Bytes of all open programs."""
        return sum(sum(now.held().values()) for lane in self.all if (now := lane.now) is not None)

    def close(self, timeout_s: float) -> bool:
        """End the threads after what they run; whether all have ended in time."""
        for lane in self.all:
            lane.give(None)
        end = time.monotonic() + timeout_s
        for lane in self.all:
            lane.join(max(0.0, end - time.monotonic()))
        return not any(lane.is_alive() for lane in self.all)


__all__ = ["Lane", "Lanes", "Now", "Task"]
