"""The elastic block of ``jobs/mpm88.py``: 512 particles, 64 time steps, gradients of its initial velocity and its stiffness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.batched.model import Columns, Model, uniform

PARTICLES, STEPS = 512, 64


def _job() -> tuple[Any, Mapping[str, Any]]:
    from qdrun.jobs.mpm88 import Mpm88

    return Mpm88, {"particles": PARTICLES, "steps": STEPS}


def _sample(rng: np.random.Generator, count: int) -> Columns:
    return {
        "velocity": uniform(rng, [2.0, -2.0], [4.0, 0.0], count),
        "stiffness": uniform(rng, 20.0, 60.0, count),
    }


def _product(a: Any, b: Any) -> Any:
    """Products of 2 x 2 matrices, as multiplications and sums that the compiler fuses with what is around them."""
    return (a[..., :, :, None] * b[..., None, :, :]).sum(axis=-2)


def _start() -> np.ndarray:
    from qdrun.jobs.mpm88 import SIDE

    per_row = int(np.ceil(np.sqrt(PARTICLES)))
    k = np.arange(PARTICLES)
    return np.stack([0.6 + SIDE * (k % per_row) / per_row, 0.2 + SIDE * (k // per_row) / per_row], axis=1)


def _wall(moved: Any, grid: int) -> Any:
    """Speeds of the cells without what points into a wall."""
    import jax.numpy as jnp

    cell = np.arange(grid)
    low, high = (cell < 3), (cell > grid - 3)
    u, v = moved[..., 0], moved[..., 1]
    u = jnp.where((low[:, None] & (u < 0.0)) | (high[:, None] & (u > 0.0)), 0.0, u)
    v = jnp.where((low[None] & (v < 0.0)) | (high[None] & (v > 0.0)), 0.0, v)
    return jnp.stack([u, v], axis=-1)


def _by_index(x: Any, v: Any, affine: Any, volume: float, grid: int, on_grid: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Particles to grid and back by the indices of the nine cells around each particle.

    Args:
        x: places, in cells.
        v: velocities.
        affine: of each particle what its momentum changes by in a cell's distance.
        volume: the mass of a particle.
        grid: cells on a side.
        on_grid: gives the cells' velocities from their momenta and masses.

    Returns:
        The particles' velocities, and the gradient of the velocity in cells.
    """
    import jax.numpy as jnp

    base = (x - 0.5).astype(jnp.int32)
    fx = x - base
    w = jnp.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2], axis=1)
    weight = (w[:, :, None, 0] * w[:, None, :, 1]).reshape(len(x), 9)
    offsets = np.array([(i, j) for i in range(3) for j in range(3)])
    cells = base[:, None] + offsets
    away = offsets - fx[:, None]
    push = volume * v[:, None] + (affine[:, None] * away[:, :, None]).sum(axis=-1)
    both = jnp.concatenate([weight[..., None] * push, volume * weight[..., None]], axis=-1)
    moved = on_grid(jnp.zeros((grid, grid, 3)).at[cells[..., 0], cells[..., 1]].add(both))
    g = weight[..., None] * moved[cells[..., 0], cells[..., 1]]
    return g.sum(axis=1), (g[..., :, None] * away[..., None, :]).sum(axis=1)


def _dense(x: Any, v: Any, affine: Any, volume: float, grid: int, on_grid: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The same by products of matrices with the weight of each particle in each column and each row of cells: no index at all."""
    import jax.numpy as jnp

    cell = jnp.arange(grid)
    d = jnp.abs(x[:, :, None] - cell)
    w = jnp.where(d < 0.5, 0.75 - d * d, jnp.where(d < 1.5, 0.5 * (1.5 - d) ** 2, 0.0))
    wx, wy = w[:, 0], w[:, 1]
    rest = volume * v - (affine * x[:, None]).sum(axis=-1)
    parts = jnp.concatenate([rest, affine[:, :, 0], affine[:, :, 1], jnp.full((len(x), 1), volume)], axis=1)
    sums = jnp.einsum("qic,qj->ijc", wx[:, :, None] * parts[:, None], wy)
    momentum = sums[..., 0:2] + sums[..., 2:4] * cell[:, None, None] + sums[..., 4:6] * cell[None, :, None]
    moved = on_grid(jnp.concatenate([momentum, sums[..., 6:]], axis=-1))
    by_row = jnp.einsum("qi,ijc->qjc", wx, moved)
    along_x = jnp.einsum("qi,ijc->qjc", wx * (cell - x[:, :1]), moved)
    slope = [(along_x * wy[..., None]).sum(axis=1), (by_row * (wy * (cell - x[:, 1:]))[..., None]).sum(axis=1)]
    return (by_row * wy[..., None]).sum(axis=1), jnp.stack(slope, axis=-1)


def _loss(product: Callable[[Any, Any], Any], transfer: Callable[..., tuple[Any, Any]], checkpointed: bool, inputs: Any) -> Any:
    """The loss of one trial.

    Args:
        product: of 2 x 2 matrices.
        transfer: from particles to grid and back.
        checkpointed: the gradient keeps the state of each step only, and computes the step again.
        inputs: velocity and stiffness.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    from qdrun.jobs.mpm88 import SIDE, Mpm88Params

    p = Mpm88Params(particles=PARTICLES, steps=STEPS)
    n, grid, dt, volume = p.particles, p.grid, p.dt, SIDE * SIDE / p.particles
    dx, inv_dx = 1.0 / grid, float(grid)
    mu = inputs["stiffness"] / (2 * (1 + p.poisson))
    lam = inputs["stiffness"] * p.poisson / ((1 + p.poisson) * (1 - 2 * p.poisson))
    unit = jnp.eye(2)

    def on_grid(sums: Any) -> Any:
        full = sums[..., 2:] > 0.0
        speed = sums[..., :2] / jnp.where(full, sums[..., 2:], 1.0) + dt * jnp.array([0.0, p.gravity])
        return _wall(jnp.where(full, speed, 0.0), grid)

    def step(state: Any, _: Any) -> tuple[Any, None]:
        x, v, C, F = state
        F = product(unit + dt * C, F)
        J = F[:, 0, 0] * F[:, 1, 1] - F[:, 0, 1] * F[:, 1, 0]
        cauchy = mu * (product(F, F.swapaxes(1, 2)) - unit) + lam * jnp.log(J)[:, None, None] * unit
        affine = -dt * volume * 4.0 * inv_dx * inv_dx * cauchy + volume * C
        v, slope = transfer(x * inv_dx, v, affine * dx, volume, grid, on_grid)
        return (x + dt * v, v, 4.0 * inv_dx * slope, F), None

    first = jnp.asarray(_start())
    begin = (first, jnp.broadcast_to(inputs["velocity"], (n, 2)), jnp.zeros((n, 2, 2)), jnp.broadcast_to(unit, (n, 2, 2)))
    x = lax.scan(jax.checkpoint(step) if checkpointed else step, begin, None, length=STEPS)[0][0]
    off = x.mean(axis=0) - jnp.array(p.target)
    return (off * off).sum()


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


def _variants() -> Mapping[str, Callable[[Any], Any]]:
    ways = {"index, matmul": (_matmul, _by_index), "index": (_product, _by_index), "dense": (_product, _dense)}
    return {
        f"{name}{', checkpointed' if again else ''}": partial(_loss, *way, again)
        for name, way in ways.items()
        for again in (False, True)
    }


MODEL = Model(
    name="mpm88",
    job=_job,
    sample=_sample,
    wanted=("velocity", "stiffness"),
    variants=_variants,
    tolerance=1e-8,
    default_batches=(1, 8, 32, 128),
)
