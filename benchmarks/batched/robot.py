"""The robot of ``jobs/mass_spring.py``: 8 masses, 14 springs, 200 time steps, gradients of stiffness and actuation.

``robot`` varies these two from trial to trial. What depends on neither, as the muscles' activation, JAX computes once for all trials.
``robot-all`` varies the other numbers, too, as a sweep over any of them would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.batched.model import Columns, Model, uniform

STEPS = 200


def _job() -> tuple[Any, Mapping[str, Any]]:
    from qdrun.jobs.mass_spring import MassSpring

    return MassSpring, {"steps": STEPS}


def _sample(rng: np.random.Generator, count: int) -> Columns:
    columns = {"stiffness": uniform(rng, 500.0, 1500.0, count), "actuation": uniform(rng, [0.2] * 4, 0.35, count)}
    columns["stiffness"][0], columns["actuation"][0] = 1000.0, [0.30, 0.25, 0.30, 0.25]  # the quickstart's
    return columns


def _sample_all(rng: np.random.Generator, count: int) -> Columns:
    others = {"omega": (15.0, 25.0), "damping": (5.0, 20.0), "gravity": (-6.0, -4.0)}
    return _sample(rng, count) | {name: uniform(rng, low, high, count) for name, (low, high) in others.items()}


def _loss(scatter: bool, unroll: int, inputs: Any) -> Any:
    """The loss of one trial.

    Args:
        scatter: forces are gathered and scattered by index; else by products with the matrix that says which spring ends where.
        unroll: time steps in one iteration of the compiled loop.
        inputs: stiffness, actuation, and any of omega, damping and gravity.
    """
    import jax.numpy as jnp
    from jax import lax

    from qdrun.jobs.mass_spring import MassSpringParams, truss

    p = MassSpringParams(steps=STEPS)
    body = truss(p.columns)
    start = jnp.asarray(body.points)
    low, high = body.ends[:, 0], body.ends[:, 1]
    rest = np.linalg.norm(body.points[low] - body.points[high], axis=1)
    difference = np.zeros((len(low), len(start)))  # of the ends of each spring
    difference[np.arange(len(low)), low], difference[np.arange(len(low)), high] = 1.0, -1.0
    pulls = np.where(body.muscle >= 0, 1.0, 0.0)
    muscle = np.maximum(body.muscle, 0)
    omega, damping, gravity = (inputs.get(name, getattr(p, name)) for name in ("omega", "damping", "gravity"))
    drag, weight = jnp.exp(-p.dt * damping), jnp.stack([0.0, gravity])
    phase = 6.283185307179586 * np.arange(p.columns) / p.columns
    amplitude = inputs["actuation"][muscle] * pulls

    def muscles(a: Any, wanted: Any) -> Any:
        for _ in range(p.substeps):
            a = a + 4.0 * p.dt * omega / p.substeps * (wanted - a) / (1.0 + a * a)
        return a

    def step(state: Any, t: Any) -> tuple[Any, None]:
        x, v, a = state
        a = muscles(a, jnp.sin(omega * p.dt * t + phase))
        length = rest * (1.0 + amplitude * a[muscle])
        span = x[low] - x[high] if scatter else difference @ x
        distance = jnp.sqrt((span * span).sum(axis=1))
        f = (inputs["stiffness"] * (distance - length) / distance)[:, None] * span
        force = jnp.zeros_like(x).at[low].add(-f).at[high].add(f) if scatter else -(difference.T @ f)
        speed = drag * (v + p.dt * (force + weight))
        hits = (x[:, 1] + p.dt * speed[:, 1] < 0.0) & (speed[:, 1] < -1e-6)
        down = jnp.where(hits, speed[:, 1], -1.0)  # keeps the division's gradient finite where it is not used
        until_ground = jnp.where(hits, jnp.maximum(0.0, -x[:, 1] / down), p.dt)
        return (x + until_ground[:, None] * speed, jnp.where(hits[:, None], 0.0, speed), a), None

    begin = (start, jnp.zeros_like(start), jnp.zeros(p.columns))
    x = lax.scan(step, begin, jnp.arange(p.steps), unroll=unroll)[0][0]
    return -(x[:, 0] - start[:, 0]).mean()


def _variants() -> Mapping[str, Callable[[Any], Any]]:
    ways = {"scatter": True, "matrix": False}
    return {f"{name}, unroll {n}": partial(_loss, way, n) for name, way in ways.items() for n in (1, 4)}


MODEL = Model(
    name="robot",
    job=_job,
    sample=_sample,
    wanted=("stiffness", "actuation"),
    variants=_variants,
    tolerance=1e-8,
    default_batches=(1, 8, 32, 128, 512, 2048, 8192),
)
MODEL_ALL = replace(MODEL, name="robot-all", sample=_sample_all)
