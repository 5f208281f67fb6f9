"""A picture of 8 smoothly joined balls, 32 x 32 rays that march 32 steps: how far it is from another one; gradients of balls and light."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

SHARP, AWAY, BLUR, STRIDE = 8.0, 3.0, 0.02, 0.25


class RayParams(JobParams):
    pixels: int = 32
    balls: int = 8
    steps: int = 32
    centres: list[float] = Field([])
    radii: list[float] = Field([])
    light: list[float] = Field([0.5, 0.7, -0.5])


class Rays(Job[RayParams]):
    gradients = ("centres", "radii", "light")

    def build(self) -> None:
        centres, radii, light = self.input("centres"), self.input("radii"), self.input("light")
        loss, p = self.objective(), self.params
        n, balls, steps = p.pixels, p.balls, p.steps

        @qd.func
        def distance(at):
            near = 0.0
            for b in range(balls):
                span = at - qd.Vector([centres[3 * b], centres[3 * b + 1], centres[3 * b + 2]])
                near += qd.exp(-SHARP * (span.norm() - radii[b]))
            return -qd.log(near) / SHARP

        @qd.kernel
        def look():
            for i, j in qd.ndrange(n, n):
                ray = qd.Vector([(i + 0.5) / n - 0.5, (j + 0.5) / n - 0.5, 1.0]).normalized()
                start = qd.Vector([0.0, 0.0, -AWAY])
                far = 0.0
                for _ in range(steps):
                    far += qd.min(distance(start + far * ray), STRIDE)
                end, h = start + far * ray, 1e-2
                here = distance(end)
                normal = qd.Vector(
                    [
                        distance(end + qd.Vector([h, 0.0, 0.0])) - here,
                        distance(end + qd.Vector([0.0, h, 0.0])) - here,
                        distance(end + qd.Vector([0.0, 0.0, h])) - here,
                    ]
                )
                lit = normal.dot(qd.Vector([light[0], light[1], light[2]])) / h
                cover = 0.5 - 0.5 * qd.tanh(0.5 * (here - BLUR) / BLUR)
                loss[None] += (cover * (0.5 + 0.5 * lit) - 0.3) ** 2 / (n * n)

        self.look = look

    def simulate(self) -> None:
        self.look()


def loss(p: RayParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    n, kind = p.pixels, inputs["radii"].dtype
    centres = inputs["centres"].reshape(p.balls, 3)

    def distance(at: Any) -> Any:
        span = at[..., None, :] - centres
        length = jnp.sqrt((span * span).sum(-1))
        return -jnp.log(jnp.exp(-SHARP * (length - inputs["radii"])).sum(-1)) / SHARP

    x, y = np.meshgrid((np.arange(n) + 0.5) / n - 0.5, (np.arange(n) + 0.5) / n - 0.5, indexing="ij")
    rays = np.stack([x, y, np.ones_like(x)], axis=-1)
    ray = jnp.asarray(rays / np.linalg.norm(rays, axis=-1, keepdims=True), kind)
    start, h = jnp.array([0.0, 0.0, -AWAY], kind), 1e-2

    def step(far: Any, _: Any) -> Any:
        return far + jnp.minimum(distance(start + far[..., None] * ray), STRIDE)

    far = time_steps(step, jnp.zeros((n, n), kind), p.steps, every)
    end = start + far[..., None] * ray
    here = distance(end)
    normal = jnp.stack([distance(end + h * axis) - here for axis in jnp.eye(3, dtype=kind)], axis=-1)
    cover = 0.5 - 0.5 * jnp.tanh(0.5 * (here - BLUR) / BLUR)
    return ((cover * (0.5 + 0.5 * (normal @ inputs["light"]) / h) - 0.3) ** 2).mean()


def sample(rng: np.random.Generator, count: int, p: RayParams) -> Columns:
    return {
        "centres": rng.uniform(-0.7, 0.7, (count, 3 * p.balls)),
        "radii": rng.uniform(0.2, 0.4, (count, p.balls)),
        "light": rng.uniform(-0.7, 0.7, (count, 3)),
    }


def cost(p: RayParams) -> Cost:
    return gradient_cost(4 * p.balls + 3, 0, p.pixels**2 * (p.steps + 4) * (14 * p.balls + 9))


MODEL = Model(Rays, sample, loss, cost, {"pixels": 4, "balls": 3, "steps": 14}, {"f64": 1e-8, "f32": 2e-2})
