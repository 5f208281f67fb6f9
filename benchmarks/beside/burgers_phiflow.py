"""``jobs/gallery/burgers_inverse.py`` in phiflow, in f64, on JAX: the loss of the notebook that the job restates, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from phi.jax.flow import Box, CenteredGrid, advect, diffuse, extrapolation, field, math, spatial  # pyright: ignore[reportAttributeAccessIssue]

from . import ours
from .measure import Run


def loss(velocity: Any, wanted: Any, p: Any) -> Any:
    dt = p.duration / p.steps
    for _ in range(p.steps):
        spread = diffuse.explicit(velocity, p.viscosity, dt, substeps=1)
        velocity = advect.semi_lagrangian(spread, spread, dt)
    return field.l2_loss(velocity - wanted) * 2.0 / p.cells


def make() -> Run:
    """The loss and its gradient with respect to the initial velocities."""
    math.set_global_precision(64)
    p = ours.burgers()
    line = {"extrapolation": extrapolation.PERIODIC, "x": p.cells, "bounds": Box(x=(-1, 1))}
    wanted, initial = (CenteredGrid(math.tensor(np.array(a), spatial("x")), **line) for a in (p.target, p.initial))
    f = math.jit_compile(field.gradient(lambda velocity: loss(velocity, wanted, p), "velocity", get_output=True))

    def run() -> tuple[Any, Any]:
        found, gradient = f(initial)
        return found.numpy(), gradient.values.numpy("x")

    return run


SOURCE = [loss]
