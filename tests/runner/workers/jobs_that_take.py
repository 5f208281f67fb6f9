"""A job that takes memory of its host."""

import os
import time

import numpy as np

from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome


class TakingParams(JobParams):
    mib: int = 1
    at_once: bool = True
    until: str = ""


class Taking(Job[TakingParams]):
    """loss = mib"""

    gradients = ("g",)
    needs_compiler = False

    def plan(self, *, arch=None):
        return MemoryPlan(arch=arch or "cpu", entries=())

    def build(self): ...

    def used(self):
        return {}

    def run(self):
        mib = self.params.mib
        sizes = [mib] if self.params.at_once else [1] * mib
        held = [np.ones(size << 17) for size in sizes]
        while self.params.until and not os.path.exists(self.params.until):
            time.sleep(0.005)
        return Outcome(float(sum(one.nbytes for one in held) >> 20), {"g": np.zeros(1)})
