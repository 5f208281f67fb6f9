"""Fits: jobs that give residuals, with few parameters and many residuals, and the other way round."""

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class DecayParams(JobParams):
    height: float = 1.0
    rate: float = 0.5
    offset: float = 0.0
    data: list[float] = Field([3.1, 2.2, 1.7, 1.25, 1.1, 0.9, 0.85, 0.8])


class Decay(Job[DecayParams]):
    """offset + height exp(-rate t) beside measured numbers."""

    gradients = ("height", "rate", "offset")

    def build(self):
        height, rate, offset, data = (self.input(name) for name in ("height", "rate", "offset", "data"))
        count = len(self.params.data)
        r, model = self.residuals(count), qd.field(qd.f64, shape=count, needs_grad=True)

        @qd.kernel
        def decay():
            for i in model:
                model[i] = offset[None] + height[None] * qd.exp(-rate[None] * i)

        @qd.kernel
        def compare():
            for i in model:
                r[i] = model[i] - data[i]

        self.decay, self.compare = decay, compare

    def simulate(self):
        self.decay()
        self.compare()


class ChainParams(JobParams):
    push: list[float] = Field([0.1] * 12, description="in each time step")
    target: list[float] = Field([1.0, -0.5], description="where it ends, and how fast")


class Chain(Job[ChainParams]):
    """A mass on a spring that is pushed at each time step, with its state kept by a time loop: two residuals."""

    gradients = ("push",)

    def build(self):
        push, target, steps = self.input("push"), self.input("target"), len(self.params.push)
        r = self.residuals(2)
        x, v = (qd.field(qd.f64, shape=steps + 1, needs_grad=True) for _ in range(2))

        @qd.kernel
        def step(t: qd.i32):
            v[t + 1] = v[t] + 0.1 * (push[t] - qd.sin(x[t]))
            x[t + 1] = x[t] + 0.1 * v[t + 1]

        @qd.kernel
        def end():
            r[0] = x[steps] - target[0]
            r[1] = v[steps] - target[1]

        self.step, self.end = step, end

    def simulate(self):
        for t in range(len(self.params.push)):
            self.step(t)
        self.end()
