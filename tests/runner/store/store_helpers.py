"""Runs made by hand, without a config; a machine that stops at any of its file operations, and a disk that is full."""

import errno
import os
from collections import Counter
from functools import cache

from qdrun.jobs.planning.memory_plan import MemoryPlan, PlanEntry
from qdrun.runner.store import files as store_files
from qdrun.runner.store.attempts import Attempt, ended, pack, started
from qdrun.runner.store.follower import read
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.plan import PlannedGroup
from qdrun.runner.study.trials import Trial, trial_id

RESOLVED = {"name": "made", "job": {"target": "m:J", "params": {}}, "gradients": ["x"], "limits": {}}


@cache
def trials(count):
    """Trials with one swept parameter."""
    return [
        Trial(id=trial_id({"x": float(i)}, 0), index=i, replicate=0, seed=i, swept={"x": float(i)}, params={"x": float(i)})
        for i in range(count)
    ]


def make_run(where, count=3):
    """A run of ``count`` trials under ``where``, planned."""
    folder = write_run(where, "made", "version: 1\n", RESOLVED, trials(count), {})
    entries = (PlanEntry(kind="state", bytes=64, source="build()"), PlanEntry(kind="gradients", bytes=64, source="build()"))
    folder.save_plan([PlannedGroup(places=range(count), first=0, example="x=0", plan=MemoryPlan(entries=entries))])
    return folder


def record(loss, gradient=None):
    """What a worker gives back."""
    return {"status": "done", "loss": float(loss), "gradients": {"x": 2.0 * loss if gradient is None else gradient}}


def run_one(folder, journal, trial, loss, gradient=None, number=1):
    """One trial from its start to its row."""
    attempt = Attempt(trial, number, journal.owner.number)
    started(journal, [(attempt, {"device": "cpu"})])
    ended(journal, [(attempt, pack(folder, attempt, record(loss, gradient)))])


class Stop(BaseException):
    """The machine is off: nothing that runs after this may reach the disk."""


class Machine:
    """``os`` as the store sees it: counts what changes the disk, and stops before a given operation or in the middle of its bytes.

    Attributes:
        stop: the machine is off after so many operations.
        part: of the bytes of the write at which it stops, what still reaches the disk: 0 to 1.
        room: bytes that can still be written, then the disk is full; None: it never is.
        calls: the names of all operations so far.
    """

    CHANGES = ("open", "replace", "link", "mkdir", "unlink", "ftruncate", "utime")

    def __init__(self, stop=None, part=0.0, room=None):
        self.stop, self.part, self.room = stop, part, room
        self.calls, self.off = [], False
        self._paths, self._synced = {}, {}

    def _step(self, name):
        if self.off:
            raise Stop
        self.calls.append(name)
        self.off = self.stop is not None and len(self.calls) > self.stop

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in self.CHANGES:
            return real

        def call(*args, **options):
            self._step(name)
            if self.off:
                raise Stop
            found = real(*args, **options)
            if name == "open":
                self._paths[found] = args[0]
                self._synced.setdefault(args[0], 0)
            elif name in ("replace", "link"):  # the bytes have a new name, and are as safe as they were
                self._synced[args[1]] = self._synced[args[0]]
            return found

        return call

    def fsync(self, file):
        """Nothing is slow here: what was synced is remembered, not waited for."""
        self._step("fsync")
        if self.off:
            raise Stop
        self._synced[self._paths[file]] = os.fstat(file).st_size

    def write(self, file, data):
        self._step("write")
        if self.off:
            os.write(file, bytes(data)[: round(self.part * len(data))])
            raise Stop
        if self.room is not None:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = bytes(data)[: self.room]
            self.room -= len(data)
        return os.write(file, data)

    def lose_power(self):
        """What was never synced is gone, but for ``part`` of it."""
        for path, safe in self._synced.items():
            if os.path.isfile(path):
                os.truncate(path, safe + round(self.part * max(0, os.path.getsize(path) - safe)))

    def __enter__(self):
        store_files.os = self
        return self

    def __exit__(self, kind, error, trace):
        store_files.os = os
        return kind is Stop


def rows_written(folder):
    """How many rows the journal holds for each trial, read without any of the rules of ``replay`` but its cuts."""
    return Counter(event["trial"] for event in read(folder).events if event["event"] == "ended")


class CountingFiles:
    """Files that count how often each of their calls is made."""

    def __init__(self, files):
        self._files, self.calls = files, Counter()

    def __getattr__(self, name):
        found = getattr(self._files, name)
        if not callable(found):
            return found

        def call(*args, **options):
            self.calls[name] += 1
            return found(*args, **options)

        return call
