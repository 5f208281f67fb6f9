"""Lorenz' equations below chaos, 2,000 steps of Runge and Kutta: the mean of z; gradients of the parameters and of the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

H = 0.005


class LorenzParams(JobParams):
    steps: int = 2000
    sigma: float = 10.0
    rho: float = 14.0
    beta: float = 2.6
    start: list[float] = Field([1.0, 1.0, 1.0])


class Lorenz(Job[LorenzParams]):
    gradients = ("sigma", "rho", "beta", "start")

    def build(self) -> None:
        sigma, rho, beta = self.input("sigma"), self.input("rho"), self.input("beta")
        start, loss, steps = self.input("start"), self.objective(), self.params.steps

        @qd.func
        def slope(q):
            x, y, z = q[0], q[1], q[2]
            return qd.Vector([sigma[None] * (y - x), x * (rho[None] - z) - y, x * y - beta[None] * z])

        @qd.kernel
        def play():
            for _ in range(1):
                q, total = qd.Vector([start[0], start[1], start[2]]), 0.0
                for _t in range(steps):
                    k1 = slope(q)
                    k2 = slope(q + 0.5 * H * k1)
                    k3 = slope(q + 0.5 * H * k2)
                    k4 = slope(q + H * k3)
                    q += H / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
                    total += q[2]
                loss[None] += total / steps

        self.play = play

    def simulate(self) -> None:
        self.play()


def loss(p: LorenzParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    def slope(q: Any) -> Any:
        x, y, z = q
        return jnp.stack([inputs["sigma"] * (y - x), x * (inputs["rho"] - z) - y, x * y - inputs["beta"] * z])

    def step(state: Any, _: Any) -> Any:
        q, total = state
        k1 = slope(q)
        k2 = slope(q + 0.5 * H * k1)
        k3 = slope(q + 0.5 * H * k2)
        k4 = slope(q + H * k3)
        q = q + H / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        return q, total + q[2]

    return time_steps(step, (inputs["start"], 0.0 * inputs["sigma"]), p.steps, every)[1] / p.steps


def sample(rng: np.random.Generator, count: int, p: LorenzParams) -> Columns:
    low, high = np.array([8.0, 10.0, 2.2]), np.array([12.0, 16.0, 3.0])
    sigma, rho, beta = rng.uniform(low, high, (count, 3)).T.copy()
    return {"sigma": sigma, "rho": rho, "beta": beta, "start": rng.uniform(0.5, 1.5, (count, 3))}


def cost(p: LorenzParams) -> Cost:
    return gradient_cost(6, 3 * p.steps, p.steps * (4 * 9 + 3 * 9 + 24))


MODEL = Model(Lorenz, sample, loss, cost, {"steps": 5})
