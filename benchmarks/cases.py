"""The benchmark programs, written once for both packages: ``lib`` is ``qdrun`` or ``quadrants``.

A case returns its forward step and its gradient step as functions without arguments, and what the result should agree in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Case:
    forward: Callable[[], None]
    gradient: Callable[[], None]
    result: Callable[[], tuple[float, np.ndarray]]
    reverse: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)  # kernels with adstacks, with arguments


def sin_recurrence(lib: Any, n: int = 1 << 18, steps: int = 64) -> Case:
    """(a) v = sin(v) + 0.1 x, a dynamic number of times, in every iteration of a parallel loop."""
    x = lib.field(lib.f32, shape=n, needs_grad=True)
    loss = lib.field(lib.f32, shape=(), needs_grad=True)
    count = lib.field(lib.i32, shape=())
    x.from_numpy(np.random.default_rng(1).uniform(-1, 1, n).astype(np.float32))
    count[None] = steps

    @lib.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[None]):
                v = lib.sin(v) + 0.1 * x[i]
            loss[None] += v

    def forward() -> None:
        loss.fill(0.0)
        run()

    def gradient() -> None:
        x.grad.fill(0.0)
        loss.grad.fill(1.0)
        run.grad()

    return Case(forward, gradient, lambda: (loss[None], x.grad.to_numpy()), [(run, ())])


def mass_spring(lib: Any, masses: int = 20, steps: int = 1000) -> Case:
    """(b) a chain of springs on the ground, one launch per step and kernel: launch-bound."""
    real = lib.f32
    n_springs = 2 * masses - 3
    x = lib.Vector.field(2, dtype=real, shape=(steps + 1, masses), needs_grad=True)
    v = lib.Vector.field(2, dtype=real, shape=(steps + 1, masses), needs_grad=True)
    force = lib.Vector.field(2, dtype=real, shape=(steps, masses), needs_grad=True)
    k = lib.field(real, shape=(), needs_grad=True)
    loss = lib.field(real, shape=(), needs_grad=True)
    a_of, b_of = lib.field(lib.i32, shape=n_springs), lib.field(lib.i32, shape=n_springs)
    rest = lib.field(real, shape=n_springs)
    ends = [(i, i + 1) for i in range(masses - 1)] + [(i, i + 2) for i in range(masses - 2)]
    start = np.stack([0.1 * np.arange(masses), 0.1 + 0.05 * (np.arange(masses) % 2)], axis=1)
    a_of.from_numpy(np.array([a for a, _ in ends], np.int32))
    b_of.from_numpy(np.array([b for _, b in ends], np.int32))
    rest.from_numpy(np.array([np.linalg.norm(start[a] - start[b]) * 1.05 for a, b in ends], np.float32))
    k[None] = 200.0
    dt, drag = 0.002, 0.99

    @lib.kernel
    def springs(t: lib.i32):
        for s in range(n_springs):
            span = x[t, a_of[s]] - x[t, b_of[s]]
            length = span.norm() + 1e-4
            f = k[None] * (length - rest[s]) / length * span
            force[t, a_of[s]] += -f
            force[t, b_of[s]] += f

    @lib.kernel
    def advance(t: lib.i32):
        for i in range(masses):
            new_v = drag * v[t, i] + dt * (force[t, i] + lib.Vector([0.0, -4.8]))
            new_x = x[t, i] + dt * new_v
            if new_x[1] < 0.0 and new_v[1] < 0.0:
                new_v = lib.Vector([0.0, 0.0])
                new_x = x[t, i]
            v[t + 1, i] = new_v
            x[t + 1, i] = new_x

    @lib.kernel
    def measure():
        for i in range(masses):
            loss[None] += x[steps, i][0] / masses

    whole = np.zeros((steps + 1, masses, 2), np.float32)
    whole[0] = start
    x.from_numpy(whole)

    def forward() -> None:
        force.fill(0.0)
        loss.fill(0.0)
        for t in range(steps):
            springs(t)
            advance(t)
        measure()

    def gradient() -> None:
        for f in (x, v, force, k):
            f.grad.fill(0.0)
        loss.grad.fill(1.0)
        measure.grad()
        for t in reversed(range(steps)):
            advance.grad(t)
            springs.grad(t)

    return Case(
        forward, gradient, lambda: (loss[None], np.array([k.grad[None]])), [(springs, (0,)), (advance, (0,)), (measure, ())]
    )


def mpm88(lib: Any, particles: int = 8192, steps: int = 128, grid: int = 64) -> Case:
    """(c) mpm88: a weakly compressible fluid as material points; scatter and gather over 3 x 3 cells."""
    real = lib.f32
    dx, inv_dx, dt = 1.0 / grid, float(grid), 2e-4
    volume, stiffness, gravity = (dx * 0.5) ** 2, 400.0, 9.8
    x = lib.Vector.field(2, dtype=real, shape=(steps + 1, particles), needs_grad=True)
    v = lib.Vector.field(2, dtype=real, shape=(steps + 1, particles), needs_grad=True)
    C = lib.Matrix.field(2, 2, dtype=real, shape=(steps + 1, particles), needs_grad=True)
    J = lib.field(real, shape=(steps + 1, particles), needs_grad=True)
    gv = lib.Vector.field(2, dtype=real, shape=(steps, grid, grid), needs_grad=True)
    gm = lib.field(real, shape=(steps, grid, grid), needs_grad=True)
    gu = lib.Vector.field(2, dtype=real, shape=(steps, grid, grid), needs_grad=True)
    push = lib.Vector.field(2, dtype=real, shape=(), needs_grad=True)
    loss = lib.field(real, shape=(), needs_grad=True)

    @lib.kernel
    def begin():
        for p in range(particles):
            v[0, p] = push[None]

    @lib.kernel
    def p2g(t: lib.i32):
        for p in range(particles):
            base = lib.cast(x[t, p] * inv_dx - 0.5, lib.i32)
            fx = x[t, p] * inv_dx - lib.cast(base, real)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            stress = -dt * 4.0 * stiffness * volume * (J[t, p] - 1.0) * inv_dx * inv_dx
            affine = lib.Matrix([[stress, 0.0], [0.0, stress]]) + volume * C[t, p]
            for i in lib.static(range(3)):
                for j in lib.static(range(3)):
                    offset = lib.Vector([i, j])
                    dpos = (lib.cast(offset, real) - fx) * dx
                    weight = w[i][0] * w[j][1]
                    gv[t, base + offset] += weight * (volume * v[t, p] + affine @ dpos)
                    gm[t, base + offset] += weight * volume

    @lib.kernel
    def grid_op(t: lib.i32):
        for i, j in lib.ndrange(grid, grid):
            if gm[t, i, j] > 0.0:
                u = gv[t, i, j] / gm[t, i, j]
                u[1] -= dt * gravity
                if i < 3 and u[0] < 0.0:
                    u[0] = 0.0
                if i > grid - 3 and u[0] > 0.0:
                    u[0] = 0.0
                if j < 3 and u[1] < 0.0:
                    u[1] = 0.0
                if j > grid - 3 and u[1] > 0.0:
                    u[1] = 0.0
                gu[t, i, j] = u

    @lib.kernel
    def g2p(t: lib.i32):
        for p in range(particles):
            base = lib.cast(x[t, p] * inv_dx - 0.5, lib.i32)
            fx = x[t, p] * inv_dx - lib.cast(base, real)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v = lib.Vector([0.0, 0.0])
            new_C = lib.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i in lib.static(range(3)):
                for j in lib.static(range(3)):
                    offset = lib.Vector([i, j])
                    dpos = lib.cast(offset, real) - fx
                    g = gu[t, base + offset]
                    weight = w[i][0] * w[j][1]
                    new_v += weight * g
                    new_C += 4.0 * inv_dx * weight * g.outer_product(dpos)
            v[t + 1, p] = new_v
            x[t + 1, p] = x[t, p] + dt * new_v
            J[t + 1, p] = J[t, p] * (1.0 + dt * new_C.trace())
            C[t + 1, p] = new_C

    @lib.kernel
    def measure():
        for p in range(particles):
            loss[None] += (x[steps, p] - lib.Vector([0.7, 0.3])).norm_sqr() / particles

    first = np.zeros((steps + 1, particles, 2), np.float32)
    first[0] = np.random.default_rng(2).uniform(0.2, 0.6, (particles, 2))
    ones = np.zeros((steps + 1, particles), np.float32)
    ones[0] = 1.0
    x.from_numpy(first)
    J.from_numpy(ones)
    push[None] = [1.0, -0.5]

    def forward() -> None:
        gv.fill(0.0)
        gm.fill(0.0)
        loss.fill(0.0)
        begin()
        for t in range(steps):
            p2g(t)
            grid_op(t)
            g2p(t)
        measure()

    def gradient() -> None:
        for f in (x, v, C, J, gv, gm, gu, push):
            f.grad.fill(0.0)
        loss.grad.fill(1.0)
        measure.grad()
        for t in reversed(range(steps)):
            g2p.grad(t)
            grid_op.grad(t)
            p2g.grad(t)
        begin.grad()

    return Case(forward, gradient, lambda: (loss[None], push.grad.to_numpy()), [(p2g, (0,)), (grid_op, (0,)), (g2p, (0,))])


def diffmpm(lib: Any, particles: int = 6400, steps: int = 32, grid: int = 120) -> Case:
    """(d) the elastic block of DiffTaichi's benchmark: fixed corotated stress with a polar decomposition in reverse; the grid is not kept
    for each step but computed again on the way back.
    """
    real = lib.f32
    dx, inv_dx, dt = 1.0 / grid, float(grid), 3e-4
    volume, mass, mu, la, gravity = dx * dx, 1.0, 100.0, 100.0, 9.8
    x = lib.Vector.field(2, dtype=real, shape=(steps + 1, particles), needs_grad=True)
    v = lib.Vector.field(2, dtype=real, shape=(steps + 1, particles), needs_grad=True)
    C = lib.Matrix.field(2, 2, dtype=real, shape=(steps + 1, particles), needs_grad=True)
    F = lib.Matrix.field(2, 2, dtype=real, shape=(steps + 1, particles), needs_grad=True)
    gv = lib.Vector.field(2, dtype=real, shape=(grid, grid), needs_grad=True)
    gm = lib.field(real, shape=(grid, grid), needs_grad=True)
    gu = lib.Vector.field(2, dtype=real, shape=(grid, grid), needs_grad=True)
    push = lib.Vector.field(2, dtype=real, shape=(), needs_grad=True)
    mean = lib.Vector.field(2, dtype=real, shape=(), needs_grad=True)
    loss = lib.field(real, shape=(), needs_grad=True)

    @lib.func
    def rotation(m):
        a, b = m[0, 0] + m[1, 1], m[1, 0] - m[0, 1]
        scale = 1.0 / lib.sqrt(a * a + b * b)
        return lib.Matrix([[a * scale, -b * scale], [b * scale, a * scale]])

    @lib.kernel
    def begin():
        for p in range(particles):
            v[0, p] = push[None]

    @lib.kernel
    def p2g(t: lib.i32):
        for p in range(particles):
            base = lib.cast(x[t, p] * inv_dx - 0.5, lib.i32)
            fx = x[t, p] * inv_dx - lib.cast(base, real)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_F = F[t, p] + dt * (C[t, p] @ F[t, p])
            F[t + 1, p] = new_F
            J = new_F.determinant()
            pressure = la * J * (J - 1.0)
            cauchy = 2.0 * mu * ((new_F - rotation(new_F)) @ new_F.transpose()) + lib.Matrix([[pressure, 0.0], [0.0, pressure]])
            affine = -(dt * volume * 4.0 * inv_dx * inv_dx) * cauchy + mass * C[t, p]
            for i in lib.static(range(3)):
                for j in lib.static(range(3)):
                    offset = lib.Vector([i, j])
                    dpos = (lib.cast(offset, real) - fx) * dx
                    weight = w[i][0] * w[j][1]
                    gv[base + offset] += weight * (mass * v[t, p] + affine @ dpos)
                    gm[base + offset] += weight * mass

    @lib.kernel
    def grid_op():
        for i, j in lib.ndrange(grid, grid):
            u = gv[i, j] / (gm[i, j] + 1e-10)
            u[1] -= dt * gravity
            if i < 3 and u[0] < 0.0:
                u[0] = 0.0
            if i > grid - 3 and u[0] > 0.0:
                u[0] = 0.0
            if j < 3 and u[1] < 0.0:
                u[0] = 0.0
                u[1] = 0.0
            if j > grid - 3 and u[1] > 0.0:
                u[1] = 0.0
            gu[i, j] = u

    @lib.kernel
    def g2p(t: lib.i32):
        for p in range(particles):
            base = lib.cast(x[t, p] * inv_dx - 0.5, lib.i32)
            fx = x[t, p] * inv_dx - lib.cast(base, real)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v = lib.Vector([0.0, 0.0])
            new_C = lib.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i in lib.static(range(3)):
                for j in lib.static(range(3)):
                    offset = lib.Vector([i, j])
                    dpos = lib.cast(offset, real) - fx
                    g = gu[base + offset]
                    weight = w[i][0] * w[j][1]
                    new_v += weight * g
                    new_C += 4.0 * inv_dx * weight * g.outer_product(dpos)
            v[t + 1, p] = new_v
            x[t + 1, p] = x[t, p] + dt * new_v
            C[t + 1, p] = new_C

    @lib.kernel
    def average():
        for p in range(particles):
            mean[None] += x[steps, p] / particles

    @lib.kernel
    def measure():
        loss[None] = (mean[None] - lib.Vector([0.6, 0.4])).norm_sqr()

    first = np.zeros((steps + 1, particles, 2), np.float32)
    first[0] = np.random.default_rng(3).uniform(0.2, 0.5, (particles, 2))
    whole = np.zeros((steps + 1, particles, 2, 2), np.float32)
    whole[0] = np.eye(2)
    x.from_numpy(first)
    F.from_numpy(whole)
    push[None] = [1.0, -0.5]

    def scatter(t: int) -> None:
        gv.fill(0.0)
        gm.fill(0.0)
        p2g(t)
        grid_op()

    def forward() -> None:
        mean.fill(0.0)
        begin()
        for t in range(steps):
            scatter(t)
            g2p(t)
        average()
        measure()

    def gradient() -> None:
        for f in (x, v, C, F, push, mean):
            f.grad.fill(0.0)
        loss.grad.fill(1.0)
        measure.grad()
        average.grad()
        for t in reversed(range(steps)):
            scatter(t)
            for f in (gv, gm, gu):
                f.grad.fill(0.0)
            g2p.grad(t)
            grid_op.grad()
            p2g.grad(t)
        begin.grad()

    return Case(forward, gradient, lambda: (loss[None], push.grad.to_numpy()), [(p2g, (0,)), (grid_op, ()), (g2p, (0,))])


CASES = {"sin_recurrence": sin_recurrence, "mass_spring": mass_spring, "mpm88": mpm88, "diffmpm": diffmpm}
