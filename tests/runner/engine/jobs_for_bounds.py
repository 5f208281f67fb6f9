"""Jobs that leave their fields in one time step, or whose process ends by a signal of its own."""

import os
from typing import Literal

from pydantic import Field

import qdrun as qd
from qdrun.compiler.runtime.cuda.results import device_error
from qdrun.jobs.base import Job, JobParams, Outcome


class AwayParams(JobParams):
    x: float = 2.0
    at: int = Field(1, description="the element of 4 that the last step takes")
    steps: int = 6
    way: Literal["forward", "reverse", "abort", "gpu"] = "forward"


class Away(Job[AwayParams]):
    """loss = steps * x**3, on a field that one time step leaves."""

    gradients = ("x",)

    def build(self) -> None:
        self.x = x = qd.field(qd.f64, 4, needs_grad=True)
        self.y = y = qd.field(qd.f64, (), needs_grad=True)
        far = qd.field(qd.i32, 4)

        @qd.kernel
        def step(at: qd.i32):
            for i in range(1):
                y[None] += x[at + i] ** 3

        @qd.kernel
        def away(at: qd.i32):
            for i in range(1):
                far[at + i] = 1

        @qd.ad.grad_replaced
        def last(at):
            step(1)

        @qd.ad.grad_for(last)
        def last_gradient(at):
            away(at)
            step.grad(1)

        self.step, self.last = step, last

    def fill(self) -> None:
        self.x.fill(self.params.x)

    def run(self) -> Outcome:
        p = self.params
        with qd.ad.Tape(loss=self.y):
            for k in range(p.steps):
                self.checkpoint()
                if k < p.steps - 1:
                    self.step(1)
                elif p.way == "reverse":
                    self.last(p.at)
                elif p.way == "gpu" and not self.program.options.check_out_of_bound:
                    raise device_error(700, "kernel `step` failed")
                else:
                    self.step(p.at)
        if p.way == "abort":
            os.abort()
        return Outcome(float(self.y[None]), {"x": float(self.x.grad.to_numpy().sum())})


class SlipParams(JobParams):
    x: float = Field(2.0, description="where the square root is taken")
    count: int = 1


class Slip(Job[SlipParams]):
    """loss = sqrt(x), with an infinite slope at 0 and a NaN below; and a count that is squared in 32 bits."""

    gradients = ("x",)

    def build(self) -> None:
        self.x = x = qd.field(qd.f64, (), needs_grad=True)
        self.y = y = qd.field(qd.f64, (), needs_grad=True)
        self.n = n = qd.field(qd.i32, ())

        @qd.kernel
        def count(k: qd.i32):
            n[None] = k * k

        @qd.kernel
        def root():
            y[None] += qd.sqrt(x[None])

        self.count, self.root = count, root

    def fill(self) -> None:
        self.x[None] = self.params.x

    def run(self) -> Outcome:
        with qd.ad.Tape(loss=self.y):
            self.checkpoint()
            self.count(self.params.count)
            self.checkpoint()
            self.root()
        return Outcome(float(self.y[None]), {"x": float(self.x.grad[None])})
