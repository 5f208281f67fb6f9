"""A parabola on the device, so that its trials run in batches, too."""

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class WellsParams(JobParams):
    x: float = 5.0


class Wells(Job[WellsParams]):
    gradients = ("x",)

    def build(self):
        x, loss = self.input("x"), self.objective()

        @qd.kernel
        def square():
            for _ in range(1):
                loss[None] += x[None] ** 2

        self.square = square

    def simulate(self):
        self.square()
