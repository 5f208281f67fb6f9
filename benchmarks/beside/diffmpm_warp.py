"""``jobs/gallery/diffmpm2d.py`` in Warp, in f32, with its tape: the kernels of ``benchmarks.cuda_warp``, and a grid for each step."""

# annotations of kernels are read as they are: no "from __future__ import annotations"
from typing import Any

import numpy as np
import warp as wp

from benchmarks import cuda_warp as kernels

from . import ours
from .measure import Run


@wp.kernel
def throw(
    start: wp.array(dtype=wp.vec2),
    places: wp.array(dtype=wp.vec2),
    x: wp.array2d(dtype=wp.vec2),
    v: wp.array2d(dtype=wp.vec2),
    F: wp.array2d(dtype=wp.mat22),
):
    q = wp.tid()
    x[0, q] = places[q]
    v[0, q] = start[0]
    F[0, q] = wp.mat22(1.0, 0.0, 0.0, 1.0)


@wp.kernel
def miss(target: wp.vec2, mean: wp.array(dtype=wp.vec2), loss: wp.array(dtype=float)):
    loss[0] = 0.5 * wp.length_sq(mean[0] - target)


def simulate(p: Any) -> Run:
    count, n, steps = p.side**2, p.grid, p.steps

    def new(shape: Any, kind: Any) -> Any:
        return wp.zeros(shape, dtype=kind, requires_grad=True)

    x, v = (new((steps + 1, count), wp.vec2) for _ in range(2))
    C, F = (new((steps + 1, count), wp.mat22) for _ in range(2))
    momentum, moved = ([new((n, n), wp.vec2) for _ in range(steps)] for _ in range(2))
    mass = [new((n, n), float) for _ in range(steps)]
    mean, loss, places = new(1, wp.vec2), new(1, float), wp.array(p.block(), dtype=wp.vec2)
    start = wp.array([p.velocity], dtype=wp.vec2, requires_grad=True)

    def run() -> tuple[Any, Any]:
        for one in (*momentum, *mass, mean):
            one.zero_()
        tape = wp.Tape()
        with tape:
            wp.launch(throw, count, inputs=[start, places], outputs=[x, v, F])
            for t in range(steps):
                wp.launch(kernels.p2g, count, inputs=[t, float(n), x, v, C, F], outputs=[momentum[t], mass[t]])
                wp.launch(kernels.grid_op, (n, n), inputs=[n, momentum[t], mass[t]], outputs=[moved[t]])
                wp.launch(kernels.g2p, count, inputs=[t, float(n), x, v, C, moved[t]])
            wp.launch(kernels.average, count, inputs=[steps, float(count), x], outputs=[mean])
            wp.launch(miss, 1, inputs=[wp.vec2(*p.target), mean], outputs=[loss])
        tape.backward(loss)
        found = loss.numpy()[0], np.array(start.grad.numpy()[0])
        tape.zero()
        return found

    return run


def make() -> Run:
    """The loss and its gradient with respect to the initial velocity."""
    wp.config.quiet = True
    wp.set_device("cpu")
    return simulate(ours.diffmpm())


SOURCE = [kernels.weight, kernels.p2g, kernels.grid_op, kernels.g2p, kernels.average, throw, miss, simulate]
