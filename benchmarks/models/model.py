"""A model of this benchmark: a job of ours, and the same simulation as a function of JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]
"""A row for each trial, by the name of the parameter."""


@dataclass(frozen=True)
class Cost:
    """The least work of one trial with its gradient, counted from the equations.

    Attributes:
        numbers: that cross the memory: parameters and their gradients once, and each state that the gradient needs twice.
        flops: operations on numbers; a gradient counts twice the operations of its simulation. A root or a transcendental function is one.
    """

    numbers: float
    flops: float


def gradient_cost(parameters: float, states: float, forward_flops: float) -> Cost:
    """The cost of a trial by the sizes of its parts, see ``Cost``."""
    return Cost(2 * parameters + 2 * states, 3 * forward_flops)


@dataclass(frozen=True)
class Model:
    """One simulation, written twice.

    Attributes:
        job: ours. Its parameters without a column are sizes.
        sample: columns of random parameters of a number of trials, for a job with such parameters.
        loss: JAX's function of (parameters with the sizes, arrays of one trial by name, ``every`` of ``time_steps``).
        cost: by the sizes.
        small: sizes for a test.
        tolerance: largest relative difference of losses and gradients by precision, see ``benchmarks.batched.check``.
    """

    job: Any
    sample: Callable[[np.random.Generator, int, Any], Columns]
    loss: Callable[[Any, Mapping[str, Any], int], Any]
    cost: Callable[[Any], Cost]
    small: Mapping[str, int]
    tolerance: Mapping[str, float] = field(default_factory=lambda: {"f64": 1e-8, "f32": 1e-3})

    def rows(self, columns: Columns, sizes: Mapping[str, int] | None = None) -> list[Any]:
        """The parameters of each trial."""
        count = len(next(iter(columns.values())))
        return [self.job.Params(**(sizes or {}), **{n: c[i].tolist() for n, c in columns.items()}) for i in range(count)]


def time_steps(step: Callable[[Any, Any], Any], state: Any, count: int, every: int, inputs: Any = None) -> Any:
    """The state after some steps in JAX: ``step(state, input of this step)``, by ``lax.scan``.

    Args:
        step: one step.
        state: the first one.
        count: of the steps.
        every: the gradient keeps the state of every so many steps, and computes the others again; 0: it keeps all that it needs.
        inputs: an array with a row for each step; None: the number of the step.
    """
    import jax
    import jax.numpy as jnp

    def scan(state: Any, inputs: Any) -> Any:
        return jax.lax.scan(lambda state, x: (step(state, x), None), state, inputs)[0]

    inputs = jnp.arange(count) if inputs is None else inputs
    if not every:
        return scan(state, inputs)
    parts = count // every
    segment = jax.checkpoint(scan)
    inner = inputs[: parts * every].reshape(parts, every, *inputs.shape[1:])
    state = jax.lax.scan(lambda state, x: (segment(state, x), None), state, inner)[0]
    return segment(state, inputs[parts * every :]) if count % every else state
