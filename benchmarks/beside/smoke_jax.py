"""``jobs/gallery/smoke.py`` in JAX, in f64: a scan over time steps, with one of the sweeps in it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import ours
from .measure import Run


def central(a: Any, axis: int) -> Any:
    return jnp.roll(a, -1, axis) - jnp.roll(a, 1, axis)


def sample(field: Any, v: Any) -> Any:
    n = len(field)
    i, j = jnp.meshgrid(jnp.arange(n), jnp.arange(n), indexing="ij")
    x, y = i - v[..., 0], j - v[..., 1]
    left, low = jnp.floor(x), jnp.floor(y)
    a, b = x - left, y - low
    if field.ndim == 3:
        a, b = a[..., None], b[..., None]
    i0, j0 = left.astype(int) % n, low.astype(int) % n
    i1, j1 = (i0 + 1) % n, (j0 + 1) % n
    return (1 - a) * ((1 - b) * field[i0, j0] + b * field[i0, j1]) + a * ((1 - b) * field[i1, j0] + b * field[i1, j1])


def loss(wind: Any, p: Any) -> Any:
    n = p.grid
    i, j = jnp.meshgrid(jnp.arange(n), jnp.arange(n), indexing="ij")
    x, y = i + 0.5 - n / 2, j + 0.5 - n / 2
    out = jnp.sqrt(x * x + y * y) / n - p.radius
    smoke, wanted = 1 / (1 + jnp.exp(out * n)), jnp.exp(-((n * out / 4) ** 2))
    v = wind.reshape(n, n, 2) + jnp.stack([p.push[0] - p.spin * y, p.push[1] + p.spin * x], axis=2)

    def step(state: Any, _: Any) -> Any:
        v, smoke, pressure = state
        u = sample(v, v)
        source = -0.5 / n * (central(u[..., 0], 0) + central(u[..., 1], 1))

        def sweep(q: Any, _: Any) -> Any:
            beside = jnp.roll(q, 1, 0) + jnp.roll(q, -1, 0) + jnp.roll(q, 1, 1) + jnp.roll(q, -1, 1)
            return (source + beside) / 4, None

        pressure, _ = jax.lax.scan(sweep, pressure, None, length=p.sweeps)
        v = u - 0.5 * n * jnp.stack([central(pressure, 0), central(pressure, 1)], axis=2)
        return (v, sample(smoke, v), pressure), None

    (_, smoke, _), _ = jax.lax.scan(step, (v, smoke, jnp.zeros((n, n))), None, length=p.steps)
    return ((smoke - wanted) ** 2).mean()


def make() -> Run:
    """The loss and its gradient with respect to the wind."""
    jax.config.update("jax_enable_x64", True)
    p = ours.smoke()
    f, wind = jax.jit(jax.value_and_grad(lambda wind: loss(wind, p))), jnp.asarray(p.wind)
    return lambda: tuple(map(np.asarray, f(wind)))  # pyright: ignore[reportReturnType]


SOURCE = [central, sample, loss]
