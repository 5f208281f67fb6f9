"""Jobs whose results cannot be written down, and jobs that end the thread that they run on."""

import ctypes
import platform
from typing import Literal

import numpy as np

from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome

EXIT = {"x86_64": 60, "aarch64": 93}
"""The system call that ends one thread, without a word to Python."""


class BreakingParams(JobParams):
    how: Literal["good", "odd key", "long double", "thread"] = "good"
    number: int = 0


class Breaking(Job[BreakingParams]):
    """loss = number"""

    gradients = ("g",)
    needs_compiler = False

    def plan(self, *, arch=None):
        return MemoryPlan(arch=arch or "cpu", entries=())

    def build(self): ...

    def used(self):
        return {}

    def run(self):
        number = self.params.number
        odd = {"odd key": {3: np.arange(3.0)}, "long double": {"x": np.linspace(0, 1, 20_000, dtype=np.longdouble)}}
        outputs = odd.get(self.params.how, {})
        if self.params.how == "thread":
            ctypes.CDLL(None).syscall(EXIT[platform.machine()], 0)
        return Outcome(float(number), {"g": np.full(2, float(number))}, outputs)
