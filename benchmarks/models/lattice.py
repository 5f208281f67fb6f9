"""Lattice Boltzmann (D2Q9) on a periodic 48 x 24 channel with a porous body, 60 steps; gradients of the pores, the force and the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

X = (0, 1, 0, -1, 0, 1, -1, -1, 1)
Y = (0, 0, 1, 0, -1, 1, 1, -1, -1)
WEIGHTS = (4 / 9, *[1 / 9] * 4, *[1 / 36] * 4)
BACK = (0, 3, 4, 1, 2, 7, 8, 5, 6)


class LatticeParams(JobParams):
    width: int = 48
    height: int = 24
    steps: int = 60
    solid: list[float] = Field([], description="share of each cell that reflects, 0 to 1")
    force: float = 1e-3
    relaxation: float = 0.8


class Lattice(Job[LatticeParams]):
    gradients = ("solid", "force", "relaxation")

    def build(self) -> None:
        solid, force, relaxation = self.input("solid"), self.input("force"), self.input("relaxation")
        loss, p = self.objective(), self.params
        width, height, steps = p.width, p.height, p.steps
        f = qd.Vector.field(9, float, shape=(steps + 1, width, height), needs_grad=True)

        @qd.kernel
        def begin():
            for i, j in qd.ndrange(width, height):
                f[0, i, j] = qd.Vector(WEIGHTS)

        @qd.kernel
        def step(t: qd.i32):
            for i, j in qd.ndrange(width, height):
                came = qd.Vector([0.0] * 9)
                for q in qd.static(range(9)):
                    came[q] = f[t, (i - X[q]) % width, (j - Y[q]) % height][q]
                density, x, y = 0.0, 0.0, 0.0
                for q in qd.static(range(9)):
                    density += came[q]
                    x += X[q] * came[q]
                    y += Y[q] * came[q]
                x = x / density + force[None] * relaxation[None]
                y /= density
                share = solid[i * height + j]
                for q in qd.static(range(9)):
                    along = 3.0 * (X[q] * x + Y[q] * y)
                    rest = WEIGHTS[q] * density * (1.0 + along + 0.5 * along * along - 1.5 * (x * x + y * y))
                    collided = came[q] + (rest - came[q]) / relaxation[None]
                    f[t + 1, i, j][q] = (1.0 - share) * collided + share * came[BACK[q]]

        @qd.kernel
        def measure():
            for i, j in qd.ndrange(width, height):
                flow = 0.0
                for q in qd.static(range(9)):
                    flow += X[q] * f[steps, i, j][q]
                loss[None] += (100.0 * flow - 1.0) ** 2 / (width * height)

        self.begin, self.step, self.measure = begin, step, measure

    def simulate(self) -> None:
        self.begin()
        for t in range(self.params.steps):
            self.step(t)
        self.measure()


def loss(p: LatticeParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    kind, tau = inputs["solid"].dtype, inputs["relaxation"]
    cx, cy, weights = (jnp.array(a, kind)[:, None, None] for a in (X, Y, WEIGHTS))
    share = inputs["solid"].reshape(p.width, p.height)

    def step(f: Any, _: Any) -> Any:
        came = jnp.stack([jnp.roll(f[q], (X[q], Y[q]), (0, 1)) for q in range(9)])
        density = came.sum(0)
        x = (cx * came).sum(0) / density + inputs["force"] * tau
        y = (cy * came).sum(0) / density
        along = 3.0 * (cx * x + cy * y)
        rest = weights * density * (1.0 + along + 0.5 * along * along - 1.5 * (x * x + y * y))
        return (1.0 - share) * (came + (rest - came) / tau) + share * came[jnp.array(BACK)]

    f = time_steps(step, jnp.broadcast_to(weights, (9, p.width, p.height)), p.steps, every)
    return ((100.0 * (cx * f).sum(0) - 1.0) ** 2).sum() / (p.width * p.height)


def sample(rng: np.random.Generator, count: int, p: LatticeParams) -> Columns:
    return {
        "solid": rng.uniform(0.0, 0.2, (count, p.width * p.height)),
        "force": rng.uniform(5e-4, 2e-3, count),
        "relaxation": rng.uniform(0.7, 1.2, count),
    }


def cost(p: LatticeParams) -> Cost:
    cells = p.width * p.height
    return gradient_cost(cells, 9 * cells * p.steps, cells * p.steps * 190)


MODEL = Model(Lattice, sample, loss, cost, {"width": 4, "height": 3, "steps": 3})
