"""The kernels between two steps of ``qd.ad.fixed_point``: they move a state and measure its change."""

from __future__ import annotations

from ....frontend.library.extra import zero
from ....frontend.markers import grouped, static
from ...data.element_types import NdarrayType
from ...data.types import template
from ...kernel import kernel

_ARRAY = NdarrayType(None, 1)


@kernel
def advance(old: template(), new: template(), sums: _ARRAY, done: _ARRAY, k: template(), scalar: template()) -> None:  # type: ignore[reportInvalidTypeForm]
    """``old = new`` in each trial that is not done; adds the squares of the change and of the new state to ``sums``."""
    for i in grouped(old):
        change = new[i] - old[i]
        if static(scalar):
            sums[2 * k] += change * change
            sums[2 * k + 1] += new[i] * new[i]
        else:
            sums[2 * k] += change.norm_sqr()
            sums[2 * k + 1] += new[i].norm_sqr()
        if done[0] == 0:
            old[i] = new[i]


@kernel
def collect(old: template(), new: template(), sums: _ARRAY, k: template(), scalar: template()) -> None:  # type: ignore[reportInvalidTypeForm]
    """Move the gradient of the fixed point, which both arrays hold, to ``new``; adds its squares to ``sums``."""
    for i in grouped(old):
        gradient = new.grad[i] + old.grad[i]
        new.grad[i] = gradient
        old.grad[i] = zero(gradient)
        if static(scalar):
            sums[2 * k] += gradient * gradient
        else:
            sums[2 * k] += gradient.norm_sqr()


@kernel
def drop(new: template(), done: _ARRAY) -> None:  # type: ignore[reportInvalidTypeForm]
    """Clear the gradient of ``new`` in each trial that is done."""
    for i in grouped(new):
        if done[0] != 0:
            new.grad[i] = zero(new.grad[i])
