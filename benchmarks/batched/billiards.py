"""Billiards: ten balls in a triangle, a cue ball, 1,024 time steps, gradients of where the cue ball begins and how fast.

Of each pair of balls (j < i) that would be nearer than two radii after the step and that approach each other, both get an impulse along
the line between them, and a displacement for the part of the step after the impact. The loss is the squared distance of the last ball
from the goal at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.batched.model import Columns, Model, uniform

STEPS, ROWS, RADIUS, ELASTICITY, DT = 1024, 4, 0.03, 0.8, 0.003
GOAL = (0.9, 0.75)


def _job() -> tuple[Any, Mapping[str, Any]]:
    from qdrun.jobs.billiards import Billiards

    return Billiards, {"steps": STEPS}


def _sample(rng: np.random.Generator, count: int) -> Columns:
    return {
        "position": uniform(rng, [0.1, 0.49], [0.15, 0.51], count),
        "velocity": uniform(rng, [0.3, -0.02], [0.5, 0.02], count),
    }


def balls() -> np.ndarray:
    """Where all balls but the cue ball begin: row r of the triangle holds r + 1 of them."""
    return np.array(
        [(0.5 + 2 * RADIUS * r, 0.5 + 2 * RADIUS * c - 0.7 * RADIUS * r) for r in range(ROWS) for c in range(r + 1)]
    )


def _impulse(span: Any, closing: Any) -> tuple[Any, Any]:
    """What the first ball of each pair gets: impulse and displacement, of arrays whose last axis is x and y.

    Args:
        span: from the second ball to the first, after the step.
        closing: speed of the first relative to the second.
    """
    import jax.numpy as jnp

    squared = (span * span).sum(axis=-1)
    near = (squared > 0.0) & (squared < (2 * RADIUS) ** 2)
    distance = jnp.sqrt(jnp.where(near, squared, 1.0))
    direction = span / distance[..., None]
    along = (direction * closing).sum(axis=-1)
    hit = near & (along < 0.0)
    impulse = jnp.where(hit, -(1 + ELASTICITY) * 0.5 * along, 0.0)[..., None] * direction
    impact = (distance - 2 * RADIUS) / jnp.minimum(-1e-3, along)
    return impulse, jnp.where(hit, jnp.minimum(impact - DT, 0.0), 0.0)[..., None] * impulse


def _pairs(x: Any, v: Any) -> tuple[Any, Any]:
    """Impulses and displacements of all balls, by a list of the 55 pairs."""
    import jax.numpy as jnp

    first, second = np.tril_indices(len(x), -1)
    ahead = x + DT * v
    impulse, shift = _impulse(ahead[first] - ahead[second], v[first] - v[second])
    none = jnp.zeros_like(x)
    return none.at[first].add(impulse).at[second].add(-impulse), none.at[first].add(shift).at[second].add(-shift)


def _square(x: Any, v: Any) -> tuple[Any, Any]:
    """The same by all 11 x 11 pairs, without indices: a ball does not hit itself, as there its distance is 0."""
    ahead = x + DT * v
    impulse, shift = _impulse(ahead[:, None] - ahead[None], v[:, None] - v[None])
    return impulse.sum(axis=1), shift.sum(axis=1)


def _loss(collide: Callable[[Any, Any], tuple[Any, Any]], remember: int, inputs: Any) -> Any:
    """The loss of one trial.

    Args:
        collide: gives the impulses and displacements of all balls.
        remember: 0: the gradient keeps everything that it needs of each step; else it keeps the state of every so many steps.
        inputs: position and velocity of the cue ball.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    x = jnp.concatenate([inputs["position"][None], jnp.asarray(balls())])
    v = jnp.zeros_like(x).at[0].set(inputs["velocity"])

    def step(state: Any, _: Any) -> tuple[Any, None]:
        x, v = state
        impulse, shift = collide(x, v)
        v = v + impulse
        return (x + DT * v + shift, v), None

    def segment(state: Any, _: Any) -> tuple[Any, None]:
        return lax.scan(step, state, None, length=remember)[0], None

    if remember:
        x, v = lax.scan(jax.checkpoint(segment), (x, v), None, length=STEPS // remember)[0]
    else:
        x, v = lax.scan(step, (x, v), None, length=STEPS)[0]
    off = x[-1] - jnp.array(GOAL)
    return (off * off).sum()


def _variants() -> Mapping[str, Callable[[Any], Any]]:
    ways = {"pairs": _pairs, "square": _square}
    return {f"{name}{', checkpointed' if n else ''}": partial(_loss, way, n) for name, way in ways.items() for n in (0, 32)}


MODEL = Model(
    name="billiards",
    job=_job,
    sample=_sample,
    wanted=("position", "velocity"),
    variants=_variants,
    tolerance=1e-6,
    default_batches=(1, 8, 32, 128, 512, 2048),
)
