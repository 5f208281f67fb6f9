"""128 soft particles that repel each other, with neighbour lists made anew every 20 of 100 steps; gradients of velocities and stiffness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

DT, RADIUS, REACH, ROOM = 0.01, 1.0, 1.6, 24


class ParticlesParams(JobParams):
    side: int = Field(8, description="the particles stand in a block of side x 2 side")
    steps: int = 100
    renew: int = Field(20, description="steps that use one list")
    velocity: list[float] = Field([])
    stiffness: float = 50.0


def block(side: int) -> np.ndarray:
    i, j = (a.ravel() for a in np.meshgrid(np.arange(side), np.arange(2 * side), indexing="ij"))
    return 0.8 * np.stack([i, j], axis=1) + np.random.default_rng(0).uniform(-0.05, 0.05, (2 * side**2, 2))


class Particles(Job[ParticlesParams]):
    gradients = ("velocity", "stiffness")

    def build(self) -> None:
        velocity, stiffness, loss = self.input("velocity"), self.input("stiffness"), self.objective()
        steps, renew, n = self.params.steps, self.params.renew, 2 * self.params.side**2
        x = qd.Vector.field(2, float, shape=(steps + 1, n), needs_grad=True)
        v = qd.Vector.field(2, float, shape=(steps + 1, n), needs_grad=True)
        lists = steps // renew + 1
        count = qd.field(int, shape=(lists, n))
        near = qd.field(int, shape=(lists, n, ROOM))
        first = self.constant(block(self.params.side), vectors=True)

        @qd.kernel
        def begin():
            for i in range(n):
                x[0, i] = first[i]
                v[0, i] = qd.Vector([velocity[2 * i], velocity[2 * i + 1]])

        @qd.kernel
        def neighbours(t: qd.i32):
            for i in range(n):
                found = 0
                for j in range(n):
                    if i != j and found < ROOM and (x[t, j] - x[t, i]).norm_sqr() < REACH * REACH:
                        near[t // renew, i, found] = j
                        found += 1
                count[t // renew, i] = found

        @qd.kernel
        def step(t: qd.i32):
            for i in range(n):
                push = qd.Vector([0.0, 0.0])
                for k in range(count[t // renew, i]):
                    d = x[t, i] - x[t, near[t // renew, i, k]]
                    r = d.norm()
                    if r < RADIUS:
                        push += stiffness[None] * (1.0 - r / RADIUS) ** 2 / r * d
                v[t + 1, i] = v[t, i] + DT * push
                x[t + 1, i] = x[t, i] + DT * v[t + 1, i]

        @qd.kernel
        def spread():
            for i in range(n):
                loss[None] += x[steps, i].norm_sqr() / n

        self.begin, self.neighbours, self.step, self.spread = begin, neighbours, step, spread

    def simulate(self) -> None:
        self.begin()
        for t in range(self.params.steps):
            if t % self.params.renew == 0:
                self.neighbours(t)
            self.step(t)
        self.spread()


def loss(p: ParticlesParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax
    import jax.numpy as jnp

    n = 2 * p.side**2

    def neighbours(x: Any) -> tuple[Any, Any]:
        x = jax.lax.stop_gradient(x)
        r2 = ((x[None] - x[:, None]) ** 2).sum(-1) + 1e6 * jnp.eye(n, dtype=x.dtype)
        nearest, near = jax.lax.top_k(-r2, min(ROOM, n))
        return near, nearest > -REACH * REACH

    def renewed(state: Any, _: Any) -> Any:
        near, valid = neighbours(state[0])

        def step(state: Any, _: Any) -> Any:
            x, v = state
            d = x[:, None] - x[near]
            r2 = (d * d).sum(-1)
            touch = valid & (r2 < RADIUS * RADIUS)
            r = jnp.sqrt(jnp.where(touch, r2, 1.0))
            size = jnp.where(touch, inputs["stiffness"] * (1.0 - r / RADIUS) ** 2 / r, 0.0)
            v = v + DT * (size[..., None] * d).sum(1)
            return x + DT * v, v

        return time_steps(step, state, p.renew, every)

    v = inputs["velocity"].reshape(n, 2)
    x, _ = time_steps(renewed, (jnp.asarray(block(p.side), v.dtype), v), p.steps // p.renew, 0)
    return (x * x).sum() / n


def sample(rng: np.random.Generator, count: int, p: ParticlesParams) -> Columns:
    return {"velocity": 0.3 * rng.normal(size=(count, 4 * p.side**2)), "stiffness": rng.uniform(20.0, 60.0, count)}


def cost(p: ParticlesParams) -> Cost:
    n, lists = 2 * p.side**2, p.steps // p.renew
    pairs = 9 * n * (12 * p.steps)  # about 9 of the listed neighbours touch
    return gradient_cost(2 * n, 4 * n * p.steps, pairs + 8 * n * p.steps + 5 / 3 * lists * n * n)


MODEL = Model(Particles, sample, loss, cost, {"side": 2, "steps": 4, "renew": 2})
