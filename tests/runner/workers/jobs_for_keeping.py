"""A job whose trials differ in everything that a kept program could get wrong: seeds, random numbers, loops whose length is data."""

from typing import Literal

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome

MOODS = (
    "good",
    "seed in build",
    "borrow in build",
    "print in build",
    "print",
    "leave an array",
    "launch more",
    "launch more where k is large",
    "lose a gradient",
    "raise",
    "nan",
    "change the context",
)


class ChanceParams(JobParams):
    n: int = 5
    k: float = 1.0
    turns: float = Field(3.0, description="of the inner loop: the field that bounds it gets the whole part")
    tilt: float = Field(0.0, description="a constant of the kernel")
    mood: Literal[MOODS] = "good"


class Chance(Job[ChanceParams]):
    gradients = ("k", "x")

    def build(self):
        p = self.params
        self.x = qd.field(qd.f64, shape=p.n, needs_grad=True)
        self.y = qd.field(qd.f64, shape=p.n, needs_grad=True)
        self.k = qd.field(qd.f64, shape=(), needs_grad=True)
        self.count = qd.field(qd.i32, shape=())
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        self.plain = qd.field(qd.f64, shape=p.n)
        self.offset = float(self.seed % 7) if p.mood == "seed in build" else 0.0
        if p.mood == "borrow in build":
            qd.ndarray(qd.f64, shape=1000)  # the most bytes that are in use are those of this moment
        if p.mood == "print in build":
            print("built", self.params.n)
        self.kernels()

    def kernels(self):
        x, y, k, count, loss, plain = self.x, self.y, self.k, self.count, self.loss, self.plain
        n, tilt, offset, lost = self.params.n, self.params.tilt, self.offset, self.params.mood == "lose a gradient"

        @qd.kernel
        def walk():
            for i in range(n):
                a = x[i] + tilt
                for _ in range(count[None]):
                    a = a + 0.1 * qd.sin(k[None] * a)
                y[i] = a + 0.01 * qd.random(qd.f64) + offset
                if qd.static(lost):
                    plain[i] = a

        @qd.kernel
        def total():
            for i in range(n):
                loss[None] += y[i] * y[i]
                if qd.static(lost):
                    loss[None] += plain[i]

        @qd.kernel
        def more():
            for i in range(n):
                plain[i] = 1.0

        self.walk, self.total, self.more = walk, total, more

    def fill(self):
        self.x.from_numpy(np.random.default_rng(self.seed).random(self.params.n))
        self.k[None], self.count[None] = self.params.k, int(self.params.turns)

    def launches(self):
        return [(self.walk, ()), (self.total, ()), *([(self.more, ())] if self.needs_more() else [])]

    def needs_more(self):
        return self.params.mood == "launch more where k is large" and self.params.k > 1.2

    def run(self):
        p = self.params
        if p.mood == "print":
            print("runs with", p.k, self.seed)
        if p.mood == "raise":
            raise RuntimeError("raises")
        with qd.ad.Tape(loss=self.loss):
            self.walk()
            self.total()
        if p.mood == "leave an array":
            self.more_memory = qd.ndarray(qd.f64, shape=100)
        if p.mood == "launch more" or self.needs_more():
            self.more()
        if p.mood == "change the context":
            other = qd.init(arch=qd.cpu, cpu_max_num_threads=1)
            np.seterr(all="ignore")
            assert qd.field(qd.f64, shape=3) is not None and not other.closed
        scale = float("nan") if p.mood == "nan" else 1.0
        found = {"k": float(self.k.grad[None]), "x": self.x.grad.to_numpy()}
        return Outcome(scale * float(self.loss[None]), {name: found[name] for name in self.wanted}, {"y": self.y.to_numpy()})
