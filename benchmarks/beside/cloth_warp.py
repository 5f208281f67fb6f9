"""``jobs/gallery/cloth.py`` in Warp, in f32, with its tape."""

# annotations of kernels are read as they are: no "from __future__ import annotations"
from typing import Any

import numpy as np
import warp as wp

from qdrun.jobs.gallery.cloth import sheet

from . import ours
from .measure import Run


@wp.kernel
def throw(
    start: wp.array(dtype=wp.vec3), points: wp.array(dtype=wp.vec3), x: wp.array(dtype=wp.vec3), v: wp.array(dtype=wp.vec3)
):
    i = wp.tid()
    x[i] = points[i]
    v[i] = start[0]


@wp.kernel
def pull(
    stiffness: float,
    damping: float,
    points: wp.array(dtype=wp.vec3),
    springs: wp.array2d(dtype=int),
    x: wp.array(dtype=wp.vec3),
    v: wp.array(dtype=wp.vec3),
    force: wp.array(dtype=wp.vec3),
):
    s = wp.tid()
    a, b = springs[s, 0], springs[s, 1]
    length = wp.length(x[a] - x[b])
    along = (x[a] - x[b]) / length
    f = (stiffness * (length - wp.length(points[a] - points[b])) + damping * wp.dot(along, v[a] - v[b])) * along
    wp.atomic_sub(force, a, f)
    wp.atomic_add(force, b, f)


@wp.kernel
def blow(
    drag: float,
    wind: wp.vec3,
    triangles: wp.array2d(dtype=int),
    x: wp.array(dtype=wp.vec3),
    v: wp.array(dtype=wp.vec3),
    force: wp.array(dtype=wp.vec3),
):
    s = wp.tid()
    a, b, c = triangles[s, 0], triangles[s, 1], triangles[s, 2]
    normal = wp.cross(x[b] - x[a], x[c] - x[a])
    air = (v[a] + v[b] + v[c]) / 3.0 - wind
    f = drag * 0.5 * wp.dot(normal, air) / wp.length(normal) * normal
    wp.atomic_sub(force, a, f / 3.0)
    wp.atomic_sub(force, b, f / 3.0)
    wp.atomic_sub(force, c, f / 3.0)


@wp.kernel
def advance(
    dt: float,
    masses: float,
    gravity: float,
    x: wp.array(dtype=wp.vec3),
    v: wp.array(dtype=wp.vec3),
    force: wp.array(dtype=wp.vec3),
    new_x: wp.array(dtype=wp.vec3),
    new_v: wp.array(dtype=wp.vec3),
):
    i = wp.tid()
    u = v[i] + dt * (masses * force[i] - wp.vec3(0.0, gravity, 0.0))
    new_v[i] = u
    new_x[i] = x[i] + dt * u


@wp.kernel
def find_centre(masses: float, x: wp.array(dtype=wp.vec3), centre: wp.array(dtype=wp.vec3)):
    wp.atomic_add(centre, 0, x[wp.tid()] / masses)


@wp.kernel
def miss(target: wp.vec3, centre: wp.array(dtype=wp.vec3), loss: wp.array(dtype=float)):
    loss[0] = wp.length_sq(centre[0] - target)


def simulate(p: Any) -> Run:
    masses, (points, springs, triangles) = p.side**2, sheet(p.side)
    points, springs, triangles = wp.array(points, dtype=wp.vec3), wp.array(springs), wp.array(triangles)

    def new(n: int, count: int) -> Any:
        return [wp.zeros(count, dtype=wp.vec3, requires_grad=True) for _ in range(n)]

    x, v, force = new(p.steps + 1, masses), new(p.steps + 1, masses), new(p.steps, masses)
    (centre,), loss = new(1, 1), wp.zeros(1, dtype=float, requires_grad=True)
    start = wp.array([p.velocity], dtype=wp.vec3, requires_grad=True)

    def run() -> tuple[Any, Any]:
        tape = wp.Tape()
        for one in (*force, centre):
            one.zero_()
        with tape:
            wp.launch(throw, masses, inputs=[start, points], outputs=[x[0], v[0]])
            for k in range(p.steps):
                wp.launch(pull, len(springs), inputs=[p.stiffness, p.damping, points, springs, x[k], v[k]], outputs=[force[k]])
                wp.launch(blow, len(triangles), inputs=[p.drag, wp.vec3(*p.wind), triangles, x[k], v[k]], outputs=[force[k]])
                inputs = [p.dt, float(masses), p.gravity, x[k], v[k], force[k]]
                wp.launch(advance, masses, inputs=inputs, outputs=[x[k + 1], v[k + 1]])
            wp.launch(find_centre, masses, inputs=[float(masses), x[p.steps]], outputs=[centre])
            wp.launch(miss, 1, inputs=[wp.vec3(*p.target), centre], outputs=[loss])
        tape.backward(loss)
        found = loss.numpy()[0], np.array(start.grad.numpy()[0])
        tape.zero()
        return found

    return run


def make() -> Run:
    """The loss and its gradient with respect to the initial velocity."""
    wp.config.quiet = True
    wp.set_device("cpu")
    return simulate(ours.cloth())


SOURCE = [throw, pull, blow, advance, find_centre, miss, simulate]
