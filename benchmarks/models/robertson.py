"""Robertson's stiff reactions, 120 growing implicit steps of Newton's method: the mean of a product; gradients of the three rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

FIRST, GROWTH = 1e-4, 1.12


class RobertsonParams(JobParams):
    steps: int = 120
    newton: int = Field(4, description="iterations in each step")
    rates: list[float] = Field([1.0, 1.0, 1.0], description="relative to 0.04, 3e7 and 1e4")


class Robertson(Job[RobertsonParams]):
    gradients = ("rates",)

    def build(self) -> None:
        rates, loss = self.input("rates"), self.objective()
        steps, newton = self.params.steps, self.params.newton

        @qd.kernel
        def play():
            for _ in range(1):
                k1, k2, k3 = 0.04 * rates[0], 3e7 * rates[1], 1e4 * rates[2]
                y, h, total = qd.Vector([1.0, 0.0, 0.0]), FIRST, 0.0
                for _t in range(steps):
                    z = y
                    for _n in range(newton):
                        a, b, c = k1 * z[0], k2 * z[1] * z[1], k3 * z[1] * z[2]
                        off = z - y - h * qd.Vector([c - a, a - b - c, b])
                        db, dc, dz = 2.0 * k2 * z[1], k3 * z[2], k3 * z[1]
                        slope = qd.Matrix(
                            [
                                [1.0 + h * k1, -h * dc, -h * dz],
                                [-h * k1, 1.0 + h * (db + dc), h * dz],
                                [0.0, -h * db, 1.0],
                            ]
                        )
                        z -= qd.solve(slope, off)
                    y = z
                    h *= GROWTH
                    total += y[2]
                loss[None] += total / steps

        self.play = play

    def simulate(self) -> None:
        self.play()


def loss(p: RobertsonParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    k1, k2, k3 = jnp.array([0.04, 3e7, 1e4], inputs["rates"].dtype) * inputs["rates"]

    def solve(rows: Any, b: Any) -> Any:
        """By Cramer's rule: faster than ``jnp.linalg.solve``."""
        x, y, z = rows[:, 0], rows[:, 1], rows[:, 2]
        yz = jnp.cross(y, z)
        return jnp.stack([b @ yz, b @ jnp.cross(z, x), b @ jnp.cross(x, y)]) / (x @ yz)

    def step(state: Any, _: Any) -> Any:
        y, h, total = state
        z = y
        for _n in range(p.newton):
            a, b, c = k1 * z[0], k2 * z[1] * z[1], k3 * z[1] * z[2]
            off = z - y - h * jnp.stack([c - a, a - b - c, b])
            db, dc, dz = 2.0 * k2 * z[1], k3 * z[2], k3 * z[1]
            slope = [1.0 + h * k1, -h * dc, -h * dz, -h * k1, 1.0 + h * (db + dc), h * dz, 0.0 * h, -h * db, 1.0 + 0.0 * h]
            z = z - solve(jnp.stack(slope).reshape(3, 3), off)
        return z, GROWTH * h, total + z[2]

    zero = 0.0 * k1
    return time_steps(step, (jnp.stack([zero + 1.0, zero, zero]), zero + FIRST, zero), p.steps, every)[2] / p.steps


def sample(rng: np.random.Generator, count: int, p: RobertsonParams) -> Columns:
    del p
    return {"rates": rng.uniform(0.5, 2.0, (count, 3))}


def cost(p: RobertsonParams) -> Cost:
    return gradient_cost(3, 3 * p.steps, p.steps * (2 + p.newton * 75))


MODEL = Model(Robertson, sample, loss, cost, {"steps": 5}, {"f64": 1e-8, "f32": 1e-2})
