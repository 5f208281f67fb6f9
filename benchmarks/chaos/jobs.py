"""The jobs of the runs that are killed: they note when they begin and end, take a little while, and give arrays of any size.

``Shaken`` overrides ``run``, so each trial runs by itself. ``Batched`` declares what goes in and out, so its trials run in batches; some of
them have a trap, which fails the trial or ends the process.
"""

import ctypes
import os
import platform
import random
import signal
import time
from contextlib import suppress

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome, PlanEntry
from qdrun.runner.clock import now

EXIT_THREAD = {"x86_64": 60, "aarch64": 93}
"""The system call that ends one thread."""
LARGE = 10_000
"""Numbers of an array that does not fit into the journal."""
PULLS, CAPACITY = (0.1, 0.2, 0.3), 20.0
STEPS, RATE = 2, 0.01
"""Of a descent."""
GOOD = 0.0
TRAPS = {"nan": 1.0, "raise": 2.0, "assert": 3.0, "memory": 4.0, "wild": 5.0, "abort": 6.0, "kill": 7.0, "endless": 8.0}
"""How a trial of ``Batched`` goes wrong: its loss is infinite; its Python raises, for a whole batch; an assert of a kernel; no memory;
a kernel writes far out of bounds; SIGABRT; SIGKILL; a kernel that does not end.
"""
KILLS = ("memory", "wild", "abort", "kill", "endless")
"""Traps that hit a whole batch, which is then halved."""


class ShakenParams(JobParams):
    number: int = Field(0, description="of the trial")
    salt: int = Field(0, description="of the run")
    mean_s: float = Field(0.1, ge=0, description="what a trial takes on average, s")
    notes: str = Field("", description="a file for notes")


def choices(salt, number, mean_s):
    """Seconds and the size of the gradient of one trial."""
    rng = random.Random(f"{salt}/{number}")
    return min(3 * mean_s, rng.expovariate(1 / mean_s)), LARGE if rng.random() < 0.3 else rng.randint(1, 20)


def expected(salt, number, mean_s):
    """The loss and the gradient of one trial."""
    _, size = choices(salt, number, mean_s)
    return number + salt / 7, np.arange(size) * 0.5 + number


class Noted:
    """What a job of these runs does besides its numbers."""

    def trap(self):
        """Trigger a trap, if there is one: the first trial to reach it ends its thread silently, as native code may, or its process."""
        if self.params.notes:
            with suppress(FileNotFoundError):
                os.unlink(f"{self.params.notes}.lane")
                ctypes.CDLL(None).syscall(EXIT_THREAD[platform.machine()], 0)
            with suppress(FileNotFoundError):
                os.unlink(f"{self.params.notes}.rerun")
                ctypes.string_at(0)

    def note(self, what, *numbers):
        """One line for each trial, all or none of them, on a disk that is never full."""
        if not self.params.notes:
            return
        lines = [f"{what} {number:.0f} {os.getpid()} {now():.6f}\n" for number in numbers]
        file = os.open(self.params.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, "".join(lines).encode())
        finally:
            os.close(file)


class Shaken(Noted, Job[ShakenParams]):
    """loss = number + salt / 7"""

    gradients = ("x",)
    needs_compiler = False

    def build(self): ...

    def plan(self, *, arch=None):
        return MemoryPlan(arch=arch or "cpu", entries=(PlanEntry(kind="state", bytes=1 << 20, source="build()"),))

    def used(self):
        return self.plan().by_kind()

    def peak_bytes(self):
        return self.plan().bytes

    def run(self):
        params = self.params
        seconds, _ = choices(params.salt, params.number, params.mean_s)
        self.note("begin", params.number)
        self.trap()
        print(f"trial {params.number} takes {seconds:.3f} s")
        time.sleep(seconds)
        loss, gradient = expected(params.salt, params.number, params.mean_s)
        self.note("end", params.number)
        return Outcome(loss, {"x": gradient} if "x" in self.wanted else {})


class Indexed(Shaken):
    """The same for a runner that takes it for a job with kernels: when its process dies by a signal, it runs again with checks."""

    needs_compiler = True


class BatchedParams(JobParams):
    number: float = Field(0.0, description="of the trial")
    trap: float = Field(GOOD, description="one of `TRAPS`, or `GOOD`")
    pulls: list[float] = Field(list(PULLS), description="rates of growth")
    salt: int = Field(0, description="of the run")
    mean_s: float = Field(0.1, ge=0, description="what a trial takes on average, s")
    notes: str = Field("", description="a file for notes")
    size: int = Field(1, ge=1, description="numbers of the output `path`")


def grown(number, pulls, salt):
    """The loss of ``Batched`` and its gradients with respect to ``number`` and ``pulls``, computed forward."""
    y, slopes = number, np.array([1.0, *np.zeros(len(pulls))])
    for k, pull in enumerate(pulls):
        step = y * (1.0 - y / CAPACITY)
        slopes *= 1.0 + pull * (1.0 - 2.0 * y / CAPACITY)
        slopes[1 + k] += step
        y += pull * step
    return y + salt / 7, slopes[0], slopes[1:]


def batched(salt, number, size, *, descends=False):
    """The loss, the gradients and the output of one trial of ``Batched``. ``descends``: after ``STEPS`` steps of ``pulls``."""
    pulls = np.array(PULLS)
    for _ in range(STEPS if descends else 0):
        pulls = pulls - RATE * grown(number, pulls, salt)[2]
    loss, slope, slopes = grown(number, pulls, salt)
    return loss, {"number": slope, "pulls": slopes}, {"path": number + 0.5 * np.arange(size)}


class Batched(Noted, Job[BatchedParams]):
    """Growth towards ``CAPACITY`` from ``number``; the loss is where it ends, plus salt / 7."""

    gradients = ("number", "pulls")

    def build(self):
        number, code, pulls = self.input("number"), self.input("trap"), self.input("pulls")
        loss, path = self.objective(), self.output("path", self.params.size)
        salt, size = self.params.salt, self.params.size
        spot = qd.field(qd.f64, shape=4, name="spot")

        @qd.kernel
        def spring():
            for _ in range(1):
                assert code[None] != 3.0, "a trap"
                place = 0
                if code[None] == 5.0:
                    place = 1 << 28
                spot[place] = 1.0
                while code[None] == 8.0:
                    spot[1] += 1.0

        @qd.kernel
        def grow():
            for _ in range(1):
                y = number[None]
                for k in range(3):
                    y += pulls[k] * y * (1.0 - y / 20.0)
                if code[None] == 1.0:
                    y /= code[None] - 1.0
                loss[None] += y + salt / 7.0

        @qd.kernel
        def walk():
            for k in range(size):
                path[k] = number[None] + 0.5 * k

        self.kernels, self.who = (spring, grow, walk), (number, code)

    def simulate(self):
        for kernel in self.kernels:
            kernel()

    def simulate_once(self):
        """Note which trials run, and trigger the traps that are no matter of kernels. Of a descent the first and the last run are noted."""
        # of a batch with a row for each trial; one that is not full repeats the last
        names, traps = (set(np.ravel(field.to_numpy()).tolist()) for field in self.who)
        step, steps = self.watch.descent or (0, 0)
        if TRAPS["raise"] in traps and len(names) > 1:
            raise ValueError("one trial of this batch is wrong")
        if step == 0:
            self.note("begin", *names)
        self.trap()
        if TRAPS["raise"] in traps:
            raise ValueError("this trial is wrong")
        if TRAPS["memory"] in traps:
            raise MemoryError("a trap")
        if TRAPS["abort"] in traps:
            os.abort()
        if TRAPS["kill"] in traps:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(max(choices(self.params.salt, int(name), self.params.mean_s)[0] for name in names) / (steps + 1))
        super().simulate_once()
        self.program.synchronize()
        if step == steps:
            self.note("end", *names)
