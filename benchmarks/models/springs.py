"""A sheet of 16 x 16 masses and 930 springs by a list of ends, 100 steps: where it hangs; gradients of all lengths and the stiffness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

DT, DRAG, WEIGHT = 0.01, 0.995, 0.2


class SpringsParams(JobParams):
    n: int = 16
    steps: int = 100
    lengths: list[float] = Field([])
    stiffness: float = 20.0


def mesh(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, which two corners do not move, and the ends of the springs along edges and diagonals."""
    i, j = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    at = np.stack([i / n, j / n, np.zeros(n * n)], axis=1)
    free = np.where((i == 0) & ((j == 0) | (j == n - 1)), 0.0, 1.0)
    ends = [
        (a * n + b, (a + da) * n + b + db)
        for a in range(n)
        for b in range(n)
        for da, db in ((1, 0), (0, 1), (1, 1), (1, -1))
        if a + da < n and 0 <= b + db < n
    ]
    return at, free, np.array(ends)


def spring_count(n: int) -> int:
    return len(mesh(n)[2])


class Springs(Job[SpringsParams]):
    gradients = ("lengths", "stiffness")

    def build(self) -> None:
        lengths, stiffness, loss = self.input("lengths"), self.input("stiffness"), self.objective()
        n, steps = self.params.n, self.params.steps
        masses, springs = n * n, spring_count(n)
        at, movable, pairs = mesh(n)
        x, v, force = (qd.Vector.field(3, float, shape=(steps + 1, masses), needs_grad=True) for _ in range(3))
        first, free, ends = self.constant(at, vectors=True), self.constant(movable), self.constant(pairs)

        @qd.kernel
        def begin():
            for m in range(masses):
                x[0, m] = first[m]

        @qd.kernel
        def pull(t: qd.i32):
            for s in range(springs):
                a, b = ends[s, 0], ends[s, 1]
                d = x[t, b] - x[t, a]
                length = d.norm()
                f = stiffness[None] * (length - lengths[s]) / length * d
                force[t, a] += f
                force[t, b] -= f

        @qd.kernel
        def move(t: qd.i32):
            for m in range(masses):
                v[t + 1, m] = free[m] * (DRAG * v[t, m] + DT * (force[t, m] - qd.Vector([0.0, 0.0, WEIGHT])))
                x[t + 1, m] = x[t, m] + DT * v[t + 1, m]

        @qd.kernel
        def measure():
            for m in range(masses):
                loss[None] += (x[steps, m] - qd.Vector([0.5, 0.5, -0.5])).norm_sqr() / masses

        self.begin, self.pull, self.move, self.measure = begin, pull, move, measure

    def simulate(self) -> None:
        self.begin()
        for t in range(self.params.steps):
            self.pull(t)
            self.move(t)
        self.measure()


def loss(p: SpringsParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    at, free, ends = mesh(p.n)
    a, b = ends.T
    lengths, kind = inputs["lengths"], inputs["lengths"].dtype
    movable, weight = jnp.asarray(free, kind)[:, None], jnp.array([0.0, 0.0, WEIGHT], kind)

    def step(state: Any, _: Any) -> Any:
        x, v = state
        d = x[b] - x[a]
        length = jnp.sqrt((d * d).sum(-1))
        f = (inputs["stiffness"] * (length - lengths) / length)[:, None] * d
        force = jnp.zeros_like(x).at[a].add(f).at[b].add(-f)
        v = movable * (DRAG * v + DT * (force - weight))
        return x + DT * v, v

    first = jnp.asarray(at, kind)
    x, _ = time_steps(step, (first, jnp.zeros_like(first)), p.steps, every)
    return ((x - jnp.array([0.5, 0.5, -0.5], kind)) ** 2).sum() / p.n**2


def sample(rng: np.random.Generator, count: int, p: SpringsParams) -> Columns:
    at, _, ends = mesh(p.n)
    apart = np.linalg.norm(at[ends[:, 0]] - at[ends[:, 1]], axis=1)
    return {"lengths": apart * rng.uniform(0.9, 1.1, (count, len(ends))), "stiffness": rng.uniform(10.0, 30.0, count)}


def cost(p: SpringsParams) -> Cost:
    masses, springs = p.n**2, spring_count(p.n)
    return gradient_cost(springs, p.steps * 6 * masses, p.steps * (24 * springs + 24 * masses))


MODEL = Model(Springs, sample, loss, cost, {"n": 3, "steps": 4})
