"""Gravity between 32 bodies, 300 steps: how far they spread; gradients of all initial velocities and of the strength of gravity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

DT, SOFTENING = 0.005, 0.05


class NbodyParams(JobParams):
    bodies: int = 32
    steps: int = 300
    velocity: list[float] = Field([])
    gravity: float = 1.0


def positions(bodies: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(bodies, 3))


class Nbody(Job[NbodyParams]):
    gradients = ("velocity", "gravity")

    def build(self) -> None:
        velocity, gravity, loss = self.input("velocity"), self.input("gravity"), self.objective()
        n, steps = self.params.bodies, self.params.steps
        x = qd.Vector.field(3, float, shape=(steps + 1, n), needs_grad=True)
        v = qd.Vector.field(3, float, shape=(steps + 1, n), needs_grad=True)
        first = self.constant(positions(n), vectors=True)

        @qd.kernel
        def begin():
            for i in range(n):
                x[0, i] = first[i]
                v[0, i] = qd.Vector([velocity[3 * i], velocity[3 * i + 1], velocity[3 * i + 2]])

        @qd.kernel
        def step(t: qd.i32):
            for i in range(n):
                pull = qd.Vector([0.0, 0.0, 0.0])
                for j in range(n):
                    d = x[t, j] - x[t, i]
                    r2 = d.norm_sqr() + SOFTENING
                    pull += d / (r2 * qd.sqrt(r2))
                v[t + 1, i] = v[t, i] + DT * gravity[None] / n * pull
                x[t + 1, i] = x[t, i] + DT * v[t + 1, i]

        @qd.kernel
        def spread():
            for i in range(n):
                loss[None] += x[steps, i].norm_sqr() / n

        self.begin, self.step, self.spread = begin, step, spread

    def simulate(self) -> None:
        self.begin()
        for t in range(self.params.steps):
            self.step(t)
        self.spread()


def loss(p: NbodyParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    def step(state: Any, _: Any) -> Any:
        x, v = state
        d = x[None] - x[:, None]
        r2 = (d * d).sum(-1) + SOFTENING
        v = v + DT * inputs["gravity"] / p.bodies * (d / (r2 * jnp.sqrt(r2))[..., None]).sum(1)
        return x + DT * v, v

    v = inputs["velocity"].reshape(p.bodies, 3)
    x, _ = time_steps(step, (jnp.asarray(positions(p.bodies), v.dtype), v), p.steps, every)
    return (x * x).sum() / p.bodies


def sample(rng: np.random.Generator, count: int, p: NbodyParams) -> Columns:
    return {"velocity": 0.3 * rng.normal(size=(count, 3 * p.bodies)), "gravity": rng.uniform(0.5, 2.0, count)}


def cost(p: NbodyParams) -> Cost:
    return gradient_cost(3 * p.bodies, p.steps * 6 * p.bodies, p.steps * p.bodies * (17 * p.bodies + 14))


MODEL = Model(Nbody, sample, loss, cost, {"bodies": 3, "steps": 4})
