"""Waves in a box of 20^3 cells, 40 steps: the mean square at the end in half of it; gradients of the medium in each cell and the pulse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams


class WaveParams(JobParams):
    n: int = 20
    steps: int = 40
    medium: list[float] = Field([])
    pulse: float = 1.0


def shape_of_pulse(n: int) -> np.ndarray:
    """A bump near one side; 0 at the walls."""
    x, y, z = np.meshgrid(*[np.arange(n)] * 3, indexing="ij")
    bump = np.exp(-((x - n // 3) ** 2 + (y - n // 2) ** 2 + (z - n // 2) ** 2) / (0.1 * n) ** 2)
    inside = (np.minimum(np.minimum(x, y), z) > 0) & (np.maximum(np.maximum(x, y), z) < n - 1)
    return np.where(inside, bump, 0.0)


class Wave(Job[WaveParams]):
    gradients = ("medium", "pulse")

    def build(self) -> None:
        medium, pulse, loss = self.input("medium"), self.input("pulse"), self.objective()
        n, steps = self.params.n, self.params.steps
        u = qd.field(float, shape=(steps + 2, n, n, n), needs_grad=True)
        shape = self.constant(shape_of_pulse(n))

        @qd.kernel
        def begin():
            for i, j, k in qd.ndrange(n, n, n):
                u[0, i, j, k] = pulse[None] * shape[i, j, k]
                u[1, i, j, k] = pulse[None] * shape[i, j, k]

        @qd.kernel
        def step(t: qd.i32):
            for i, j, k in qd.ndrange((1, n - 1), (1, n - 1), (1, n - 1)):
                c = u[t, i, j, k]
                around = u[t, i + 1, j, k] + u[t, i - 1, j, k] + u[t, i, j + 1, k] + u[t, i, j - 1, k]
                around += u[t, i, j, k + 1] + u[t, i, j, k - 1] - 6.0 * c
                u[t + 1, i, j, k] = 2.0 * c - u[t - 1, i, j, k] + medium[(i * n + j) * n + k] * around

        @qd.kernel
        def measure():
            for i, j, k in qd.ndrange((n // 2, n), n, n):
                loss[None] += u[steps + 1, i, j, k] ** 2 / n

        self.begin, self.step, self.measure = begin, step, measure

    def simulate(self) -> None:
        self.begin()
        for t in range(1, self.params.steps + 1):
            self.step(t)
        self.measure()


def loss(p: WaveParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    n, inner = p.n, slice(1, -1)
    medium = inputs["medium"].reshape(n, n, n)[inner, inner, inner]

    def step(state: Any, _: Any) -> Any:
        before, u = state
        c = u[inner, inner, inner]
        around = u[2:, inner, inner] + u[:-2, inner, inner] + u[inner, 2:, inner] + u[inner, :-2, inner]
        around += u[inner, inner, 2:] + u[inner, inner, :-2] - 6.0 * c
        return u, jnp.pad(2.0 * c - before[inner, inner, inner] + medium * around, 1)

    first = inputs["pulse"] * jnp.asarray(shape_of_pulse(n), medium.dtype)
    _, u = time_steps(step, (first, first), p.steps, every)
    return (u[n // 2 :] ** 2).sum() / n


def sample(rng: np.random.Generator, count: int, p: WaveParams) -> Columns:
    return {"medium": rng.uniform(0.05, 0.3, (count, p.n**3)), "pulse": rng.uniform(0.5, 2.0, count)}


def cost(p: WaveParams) -> Cost:
    cells = p.n**3
    return gradient_cost(cells, p.steps * cells, 11 * p.steps * cells)


MODEL = Model(Wave, sample, loss, cost, {"n": 5, "steps": 3})
