"""The pendulums of ``jobs/gallery/sysid_pendulum.py`` with diffrax: vmap over trials, Tsit5 with constant steps.

Of diffrax' adjoints and of its ways to save the states, these were the fastest here.
"""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from qdrun.jobs.gallery.sysid_pendulum import SysidPendulumParams

from . import ours
from .measure import Run


def loss(parameters: Any, p: Any) -> Any:
    mass, length, damping = parameters

    def slope(t: Any, state: Any, args: Any) -> Any:
        inertia = mass * length**2
        pull = p.torque * jnp.sin(p.rate * t) - mass * 9.81 * length * jnp.sin(state[0]) - damping * state[1]
        return jnp.stack([state[1], pull / inertia])

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        diffrax.Tsit5(),
        t0=0.0,
        t1=p.steps * p.dt,
        dt0=p.dt,
        y0=jnp.array([p.angle, 0.0]),
        saveat=diffrax.SaveAt(steps=True),
        adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=p.steps),
        max_steps=p.steps,
    )
    return 0.5 * ((solution.ys[:, 0] - jnp.asarray(p.recorded)) ** 2).sum()


def make() -> Run:
    """The losses and the gradients of all pendulums."""
    jax.config.update("jax_enable_x64", True)
    p = SysidPendulumParams()
    f = jax.jit(jax.vmap(jax.value_and_grad(lambda parameters: loss(parameters, p))))
    given = tuple(map(jnp.asarray, ours.pendulums().values()))

    def run() -> tuple[Any, Any]:
        losses, gradients = f(given)
        return np.asarray(losses), np.stack([np.asarray(one) for one in gradients])

    return run


SOURCE = [loss]
