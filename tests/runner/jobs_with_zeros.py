"""A job that loses its gradient in as many ways as newcomers do, by its parameter ``way``."""

import time

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome


class ThrowParams(JobParams):
    mass: float = 1.5
    speed: float = 2.0
    way: str = "right"


class Throw(Job[ThrowParams]):
    """Launches the kernels that ``way`` names."""

    gradients = ("mass", "speed")

    def build(self):
        way = self.params.way
        mass, speed, loss = self.input("mass"), self.input("speed"), self.objective()
        y = qd.field(qd.f64, shape=3, needs_grad=way != "array", name="y")

        @qd.kernel
        def first():
            for i in y:
                y[i] = mass[None] * 2.0 + speed[None] * i

        @qd.kernel
        def total():
            for i in y:
                loss[None] += y[i] ** 2

        @qd.kernel
        def cast():
            k = qd.i32(mass[None] * 10.0)
            loss[None] += k * 1.0 + speed[None] ** 2

        @qd.kernel
        def clamp():
            loss[None] += qd.max(mass[None], 100.0) + speed[None] ** 2

        @qd.kernel
        def beyond():
            for i in y:
                y[i + 1] = mass[None] * speed[None]

        ways = {"right": (first, total), "array": (first, total), "unwritten": (first,), "cast": (cast,), "clamp": (clamp,)}
        self.kernels = (ways | {"beyond": (beyond, total), "early": (total, first)})[way]

    def simulate(self):
        for kernel in self.kernels:
            kernel()


class Own(Job[ThrowParams]):
    """The same with a run of its own."""

    gradients = ("mass",)

    def build(self):
        self.mass, self.loss = (qd.field(qd.f64, shape=(), needs_grad=True, name=name) for name in ("mass", "loss"))
        mass, loss, y = self.mass, self.loss, qd.field(qd.f64, shape=3, needs_grad=True, name="y")

        @qd.kernel
        def steps():
            loss[None] += qd.floor(mass[None])

        @qd.kernel
        def beyond():
            for i in y:
                y[i + 1] = mass[None]

        self.steps = beyond if self.params.way == "beyond" else steps

    def launches(self):
        return [(self.steps, ())]

    def run(self):
        self.mass[None] = self.params.mass
        with qd.ad.Tape(self.loss):
            self.steps()
        return Outcome(self.loss[None], {"mass": self.mass.grad[None]})


class SlowToFail(Job[ThrowParams]):
    """Cannot be built, and takes longer to say so than a submit waits before it makes the run's folder."""

    gradients = ("mass",)

    def build(self):
        time.sleep(0.5)
        raise ValueError("no such material")

    def simulate(self): ...


class AliasParams(JobParams):
    mass: float = Field(1.0, alias="m")


class Aliased(Throw):
    Params = AliasParams


class ArrayParams(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    mass: np.ndarray = Field(default_factory=lambda: np.ones(3))


class OfArray(Throw):
    Params = ArrayParams


class ByHandParams(JobParams):
    push: float = 0.5
    steps: int = 40


class ByHand(Job[ByHandParams]):
    """Launches a kernel for each time step, and declares no time steps."""

    gradients = ("push",)

    def build(self):
        push, loss, steps = self.input("push"), self.objective(), self.params.steps
        x = qd.field(qd.f64, shape=(steps + 1, 16), needs_grad=True)

        @qd.kernel
        def step(t: qd.i32):
            for i in range(16):
                x[t + 1, i] = x[t, i] + 0.1 * push[None]

        @qd.kernel
        def end():
            for i in range(16):
                loss[None] += x[steps, i] ** 2

        self.step, self.end = step, end

    def simulate(self):
        for t in range(self.params.steps):
            self.step(t)
        self.end()
