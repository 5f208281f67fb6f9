"""Heat on a periodic 64 x 64 grid, 200 explicit steps: how far the end is from a bump; gradients of all initial values and of alpha."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams


class HeatParams(JobParams):
    n: int = 64
    steps: int = 200
    start: list[float] = Field([])
    alpha: float = 0.2


def bump(n: int) -> np.ndarray:
    i = np.arange(n) - n // 2
    return np.exp(-(i[:, None] ** 2 + i[None] ** 2) / (0.1 * n) ** 2)


class Heat(Job[HeatParams]):
    gradients = ("start", "alpha")

    def build(self) -> None:
        start, alpha, loss = self.input("start"), self.input("alpha"), self.objective()
        n, steps = self.params.n, self.params.steps
        u = qd.field(float, shape=(steps + 1, n, n), needs_grad=True)
        target = self.constant(bump(n))

        @qd.kernel
        def begin():
            for i, j in qd.ndrange(n, n):
                u[0, i, j] = start[i * n + j]

        @qd.kernel
        def step(t: qd.i32):
            for i, j in qd.ndrange(n, n):
                beside = u[t, (i + 1) % n, j] + u[t, (i - 1) % n, j] + u[t, i, (j + 1) % n] + u[t, i, (j - 1) % n]
                u[t + 1, i, j] = u[t, i, j] + alpha[None] * (beside - 4.0 * u[t, i, j])

        @qd.kernel
        def compare():
            for i, j in qd.ndrange(n, n):
                loss[None] += (u[steps, i, j] - target[i, j]) ** 2

        self.begin, self.step, self.compare = begin, step, compare

    def simulate(self) -> None:
        self.begin()
        for t in range(self.params.steps):
            self.step(t)
        self.compare()


def loss(p: HeatParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    def step(u: Any, _: Any) -> Any:
        beside = jnp.roll(u, -1, 0) + jnp.roll(u, 1, 0) + jnp.roll(u, -1, 1) + jnp.roll(u, 1, 1)
        return u + inputs["alpha"] * (beside - 4.0 * u)

    u = time_steps(step, inputs["start"].reshape(p.n, p.n), p.steps, every)
    return ((u - bump(p.n)) ** 2).sum()


def sample(rng: np.random.Generator, count: int, p: HeatParams) -> Columns:
    return {"start": rng.random((count, p.n**2)), "alpha": rng.uniform(0.1, 0.24, count)}


def cost(p: HeatParams) -> Cost:
    cells = p.n**2
    return gradient_cost(cells, p.steps * cells, 7 * p.steps * cells)


MODEL = Model(Heat, sample, loss, cost, {"n": 4, "steps": 3})
