"""A parabola that takes its time, so that its descent can be met in the middle."""

import time

from pydantic import Field

from qdrun.jobs.base import Job, JobParams, Outcome


class SlowParams(JobParams):
    x: float = 5.0
    hang_at: int = Field(-1, description="the run that does not end, nor look whether it is to")


class Slow(Job[SlowParams]):
    gradients = ("x",)
    needs_compiler = False

    def build(self): ...

    def run(self):
        if self.watch.runs == self.params.hang_at:
            time.sleep(3600.0)
        time.sleep(0.02)
        return Outcome(self.params.x**2, {"x": 2.0 * self.params.x})
