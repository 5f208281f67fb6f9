"""Heat conduction through 450 triangles, element by element, by 30 iterations of conjugate gradients; gradients of all conductivities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams


class FemParams(JobParams):
    n: int = Field(15, description="squares on a side, of two triangles each")
    steps: int = Field(30, description="iterations of the solver")
    conductivity: list[float] = Field([])
    source: float = 1.0


def mesh(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Corners of the triangles, the 3 x 3 matrix of each, and which nodes are free: those on one side have the value 0."""
    i, j = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    node = i * (n + 1) + j
    corners = np.concatenate([np.stack([node, node + n + 1, node + 1], 1), np.stack([node + n + 2, node + 1, node + n + 1], 1)])
    x = np.stack([np.arange((n + 1) ** 2) // (n + 1), np.arange((n + 1) ** 2) % (n + 1)], axis=1) / n
    a, b, c = (x[corners[:, k]] for k in range(3))
    edges = np.stack([c - b, a - c, b - a], axis=1)
    area = 0.5 * np.abs((b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0])
    return corners, np.einsum("eai,ebi->eab", edges, edges) / (4 * area)[:, None, None], np.where(x[:, 0] > 0.0, 1.0, 0.0)


class Fem(Job[FemParams]):
    gradients = ("conductivity", "source")

    def build(self) -> None:
        conductivity, source, loss = self.input("conductivity"), self.input("source"), self.objective()
        steps, n = self.params.steps, self.params.n
        nodes, elements = (n + 1) ** 2, 2 * n * n
        corners, matrices, movable = mesh(n)
        corner, stiffness, free = self.constant(corners), self.constant(matrices), self.constant(movable)
        u, r, d = (qd.field(float, shape=(steps + 1, nodes), needs_grad=True) for _ in range(3))
        product = qd.field(float, shape=(steps, nodes), needs_grad=True)
        curvature = qd.field(float, shape=steps, needs_grad=True)
        square = qd.field(float, shape=steps + 1, needs_grad=True)

        @qd.kernel
        def begin():
            for m in range(nodes):
                r[0, m] = free[m] * source[None] / nodes
                d[0, m] = free[m] * source[None] / nodes
                square[0] += (free[m] * source[None] / nodes) ** 2

        @qd.kernel
        def multiply(k: qd.i32):
            for e in range(elements):
                for a in range(3):
                    total = 0.0
                    for b in range(3):
                        total += stiffness[e, a, b] * d[k, corner[e, b]]
                    product[k, corner[e, a]] += conductivity[e] * total
            for m in range(nodes):
                curvature[k] += d[k, m] * free[m] * product[k, m]

        @qd.kernel
        def advance(k: qd.i32):
            for m in range(nodes):
                length = square[k] / curvature[k]
                u[k + 1, m] = u[k, m] + length * d[k, m]
                r[k + 1, m] = r[k, m] - length * free[m] * product[k, m]
            for m in range(nodes):
                square[k + 1] += r[k + 1, m] ** 2
            for m in range(nodes):
                d[k + 1, m] = r[k + 1, m] + square[k + 1] / square[k] * d[k, m]

        @qd.kernel
        def measure():
            for m in range(nodes):
                loss[None] += (u[steps, m] - 0.2) ** 2 / nodes

        self.begin, self.multiply, self.advance, self.measure = begin, multiply, advance, measure

    def simulate(self) -> None:
        self.begin()
        for k in range(self.params.steps):
            self.multiply(k)
            self.advance(k)
        self.measure()


def loss(p: FemParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    corners, matrices, movable = mesh(p.n)
    kind = inputs["conductivity"].dtype
    free = jnp.asarray(movable, kind)
    stiffness = inputs["conductivity"][:, None, None] * jnp.asarray(matrices, kind)

    def step(state: Any, _: Any) -> Any:
        u, r, d, square = state
        product = free * jnp.zeros_like(u).at[corners].add(jnp.einsum("eab,eb->ea", stiffness, d[corners]))
        length = square / (d @ product)
        r = r - length * product
        new = r @ r
        return u + length * d, r, r + new / square * d, new

    first = free * inputs["source"] / len(movable)
    u = time_steps(step, (jnp.zeros_like(first), first, first, first @ first), p.steps, every)[0]
    return ((u - 0.2) ** 2).sum() / len(movable)


def sample(rng: np.random.Generator, count: int, p: FemParams) -> Columns:
    return {"conductivity": rng.uniform(0.5, 2.0, (count, 2 * p.n**2)), "source": rng.uniform(0.5, 2.0, count)}


def cost(p: FemParams) -> Cost:
    nodes, elements = (p.n + 1) ** 2, 2 * p.n**2
    return gradient_cost(elements, p.steps * 4 * nodes, p.steps * (24 * elements + 14 * nodes))


MODEL = Model(Fem, sample, loss, cost, {"n": 3, "steps": 3}, {"f64": 1e-6, "f32": 1e-2})  # the solver amplifies rounding
