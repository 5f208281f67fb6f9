"""The job of the runs that are killed: it notes when it begins and ends, takes a little while, and has a gradient of any size."""

import ctypes
import os
import platform
import random
import time
from contextlib import suppress

import numpy as np
from pydantic import Field

from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome, PlanEntry

EXIT_THREAD = {"x86_64": 60, "aarch64": 93}
"""The system call that ends one thread."""
LARGE = 10_000
"""Numbers of a gradient that does not fit into the journal."""


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


class Shaken(Job[ShakenParams]):
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
        self.note("begin")
        self.trap()
        print(f"trial {params.number} takes {seconds:.3f} s")
        time.sleep(seconds)
        loss, gradient = expected(params.salt, params.number, params.mean_s)
        self.note("end")
        return Outcome(loss, {"x": gradient} if "x" in self.wanted else {})

    def trap(self):
        """Trigger a trap, if there is one: the first trial to reach it ends its thread silently, as native code may, or its process."""
        if self.params.notes:
            with suppress(FileNotFoundError):
                os.unlink(f"{self.params.notes}.lane")
                ctypes.CDLL(None).syscall(EXIT_THREAD[platform.machine()], 0)
            with suppress(FileNotFoundError):
                os.unlink(f"{self.params.notes}.rerun")
                ctypes.string_at(0)

    def note(self, what):
        """One line, whole or not at all, on a disk that is never full."""
        line = f"{what} {self.params.number} {os.getpid()} {time.time():.6f}\n"
        file = os.open(self.params.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


class Indexed(Shaken):
    """The same for a runner that takes it for a job with kernels: when its process dies by a signal, it runs again with checks."""

    needs_compiler = True
