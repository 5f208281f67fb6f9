"""A neo-Hookean block of 256 material points on 32 x 32 cells, 64 steps: where it flies; gradients of velocities and stiffness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

DT, WEIGHT = 1e-3, 9.8


class MpmParams(JobParams):
    cells: int = 32
    side: int = Field(16, description="points on a side of the block")
    steps: int = 64
    velocity: list[float] = Field([])
    stiffness: float = 100.0


def block(p: MpmParams) -> np.ndarray:
    """Two points in the width of a cell."""
    i, j = (a.ravel() for a in np.meshgrid(np.arange(p.side), np.arange(p.side), indexing="ij"))
    return (0.2 * p.cells + 0.5 * np.stack([i, j], axis=1) + 0.1) / p.cells


class Mpm(Job[MpmParams]):
    gradients = ("velocity", "stiffness")

    def build(self) -> None:
        velocity, stiffness, loss = self.input("velocity"), self.input("stiffness"), self.objective()
        p = self.params
        steps, n, points = p.steps, p.cells, p.side**2
        dx, volume = 1.0 / n, (0.5 / n) ** 2
        x, v = (qd.Vector.field(2, float, shape=(steps + 1, points), needs_grad=True) for _ in range(2))
        C, F = (qd.Matrix.field(2, 2, float, shape=(steps + 1, points), needs_grad=True) for _ in range(2))
        momentum, speed = (qd.Vector.field(2, float, shape=(steps, n, n), needs_grad=True) for _ in range(2))
        mass = qd.field(float, shape=(steps, n, n), needs_grad=True)
        first = self.constant(block(p), vectors=True)

        @qd.kernel
        def begin():
            for m in range(points):
                x[0, m] = first[m]
                v[0, m] = qd.Vector([velocity[2 * m], velocity[2 * m + 1]])
                F[0, m] = qd.Matrix([[1.0, 0.0], [0.0, 1.0]])

        @qd.kernel
        def to_grid(t: qd.i32):
            for m in range(points):
                base = qd.cast(x[t, m] * n - 0.5, int)
                fx = x[t, m] * n - base
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new = F[t, m] + DT * C[t, m] @ F[t, m]
                F[t + 1, m] = new
                eye = qd.Matrix([[1.0, 0.0], [0.0, 1.0]])
                stress = stiffness[None] * (new @ new.transpose() - eye + 0.5 * qd.log(new.determinant()) * eye)
                affine = volume * C[t, m] - DT * 4.0 * n * n * volume * stress
                for i, j in qd.static(qd.ndrange(3, 3)):
                    away = (qd.Vector([i, j]) - fx) * dx
                    weight = w[i][0] * w[j][1]
                    momentum[t, base[0] + i, base[1] + j] += weight * (volume * v[t, m] + affine @ away)
                    mass[t, base[0] + i, base[1] + j] += weight * volume

        @qd.kernel
        def on_grid(t: qd.i32):
            for i, j in qd.ndrange(n, n):
                if mass[t, i, j] > 0.0:
                    u = momentum[t, i, j] / mass[t, i, j]
                    u[1] -= DT * WEIGHT
                    if (i < 3 and u[0] < 0.0) or (i > n - 3 and u[0] > 0.0):
                        u[0] = 0.0
                    if (j < 3 and u[1] < 0.0) or (j > n - 3 and u[1] > 0.0):
                        u[1] = 0.0
                    speed[t, i, j] = u

        @qd.kernel
        def to_points(t: qd.i32):
            for m in range(points):
                base = qd.cast(x[t, m] * n - 0.5, int)
                fx = x[t, m] * n - base
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_v, new_C = qd.Vector([0.0, 0.0]), qd.Matrix([[0.0, 0.0], [0.0, 0.0]])
                for i, j in qd.static(qd.ndrange(3, 3)):
                    u = w[i][0] * w[j][1] * speed[t, base[0] + i, base[1] + j]
                    new_v += u
                    new_C += 4.0 * n * u.outer_product(qd.Vector([i, j]) - fx)
                v[t + 1, m] = new_v
                x[t + 1, m] = x[t, m] + DT * new_v
                C[t + 1, m] = new_C

        @qd.kernel
        def measure():
            for m in range(points):
                loss[None] += (x[steps, m] - qd.Vector([0.7, 0.5])).norm_sqr() / points

        self.begin, self.to_grid, self.on_grid = begin, to_grid, on_grid
        self.to_points, self.measure = to_points, measure

    def simulate(self) -> None:
        self.begin()
        for t in range(self.params.steps):
            self.to_grid(t)
            self.on_grid(t)
            self.to_points(t)
        self.measure()


def loss(p: MpmParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    n, points, kind = p.cells, p.side**2, inputs["velocity"].dtype
    dx, volume, eye = 1.0 / n, (0.5 / n) ** 2, jnp.eye(2, dtype=kind)
    offsets = np.array([(i, j) for i in range(3) for j in range(3)])
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")

    def step(state: Any, _: Any) -> Any:
        x, v, C, F = state
        base = (x * n - 0.5).astype(int)
        fx = x * n - base
        w = jnp.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2])
        F = F + DT * C @ F
        log = jnp.log(F[:, 0, 0] * F[:, 1, 1] - F[:, 0, 1] * F[:, 1, 0])
        stress = inputs["stiffness"] * (F @ F.transpose(0, 2, 1) - eye + 0.5 * log[:, None, None] * eye)
        affine = volume * C - DT * 4.0 * n * n * volume * stress
        weight = (w[offsets[:, 0], :, 0] * w[offsets[:, 1], :, 1]).T[..., None]  # point, neighbour
        away = offsets - fx[:, None]
        a, b = base[:, None, 0] + offsets[:, 0], base[:, None, 1] + offsets[:, 1]
        moved = weight * (volume * v[:, None] + dx * jnp.einsum("pij,pqj->pqi", affine, away))
        momentum = jnp.zeros((n, n, 2), kind).at[a, b].add(moved)
        mass = jnp.zeros((n, n), kind).at[a, b].add(volume * weight[..., 0])
        u = jnp.where(mass > 0.0, 1.0, 0.0)[..., None] * momentum / jnp.where(mass > 0.0, mass, 1.0)[..., None]
        ux, uy = u[..., 0], u[..., 1] - DT * WEIGHT
        ux = jnp.where(((i < 3) & (ux < 0.0)) | ((i > n - 3) & (ux > 0.0)), 0.0, ux)
        uy = jnp.where(((j < 3) & (uy < 0.0)) | ((j > n - 3) & (uy > 0.0)), 0.0, uy)
        u = weight * jnp.stack([ux, uy], axis=-1)[a, b]
        v = u.sum(1)
        return x + DT * v, v, 4.0 * n * jnp.einsum("pqi,pqj->pij", u, away), F

    first = (jnp.asarray(block(p), kind), inputs["velocity"].reshape(points, 2), jnp.zeros((points, 2, 2), kind))
    x = time_steps(step, (*first, jnp.broadcast_to(eye, (points, 2, 2))), p.steps, every)[0]
    return ((x - jnp.array([0.7, 0.5], kind)) ** 2).sum() / points


def sample(rng: np.random.Generator, count: int, p: MpmParams) -> Columns:
    velocity = np.array([2.0, 1.0]) + 0.2 * rng.normal(size=(count, p.side**2, 2))
    return {"velocity": velocity.reshape(count, -1), "stiffness": rng.uniform(50.0, 150.0, count)}


def cost(p: MpmParams) -> Cost:
    points, cells = p.side**2, p.cells**2
    return gradient_cost(2 * points, p.steps * (12 * points + 3 * cells), p.steps * (points * (75 + 9 * 34) + 6 * cells))


MODEL = Model(Mpm, sample, loss, cost, {"cells": 10, "side": 3, "steps": 3})
