"""The forward pass of ``cases.diffmpm`` in Warp, for ``benchmarks.cuda``: the same arithmetic, launch by launch and as one graph."""

# annotations of kernels are read as they are: no "from __future__ import annotations"
from typing import Any

import numpy as np
import warp as wp

from benchmarks.cuda_clock import Clock

GRAVITY, STEP, MU, LAMBDA = 9.8, 3e-4, 100.0, 100.0


@wp.func
def weight(fx: float, k: int) -> float:
    """The quadratic B-spline, in one direction."""
    if k == 0:
        return 0.5 * (1.5 - fx) * (1.5 - fx)
    if k == 1:
        return 0.75 - (fx - 1.0) * (fx - 1.0)
    return 0.5 * (fx - 0.5) * (fx - 0.5)


@wp.kernel
def p2g(
    t: int,
    n: float,
    x: wp.array2d(dtype=wp.vec2),
    v: wp.array2d(dtype=wp.vec2),
    C: wp.array2d(dtype=wp.mat22),
    F: wp.array2d(dtype=wp.mat22),
    gv: wp.array2d(dtype=wp.vec2),
    gm: wp.array2d(dtype=float),
):
    """Particles to grid."""
    p = wp.tid()
    dx = 1.0 / n
    place = x[t, p] * n
    bi, bj = int(place[0] - 0.5), int(place[1] - 0.5)
    fx = place - wp.vec2(float(bi), float(bj))
    new = F[t, p] + STEP * (C[t, p] * F[t, p])
    F[t + 1, p] = new
    J = wp.determinant(new)
    a, b = new[0, 0] + new[1, 1], new[1, 0] - new[0, 1]
    scale = 1.0 / wp.sqrt(a * a + b * b)
    turn = wp.mat22(a * scale, -b * scale, b * scale, a * scale)
    pressure = LAMBDA * J * (J - 1.0)
    stress = 2.0 * MU * ((new - turn) * wp.transpose(new)) + wp.mat22(pressure, 0.0, 0.0, pressure)
    affine = -(STEP * dx * dx * 4.0 * n * n) * stress + C[t, p]
    for i in range(3):
        for j in range(3):
            w = weight(fx[0], i) * weight(fx[1], j)
            dpos = (wp.vec2(float(i), float(j)) - fx) * dx
            wp.atomic_add(gv, bi + i, bj + j, w * (v[t, p] + affine * dpos))
            wp.atomic_add(gm, bi + i, bj + j, w)


@wp.kernel
def grid_op(grid: int, gv: wp.array2d(dtype=wp.vec2), gm: wp.array2d(dtype=float), gu: wp.array2d(dtype=wp.vec2)):
    """Momenta to velocities, and the walls."""
    i, j = wp.tid()
    u = gv[i, j] / (gm[i, j] + 1e-10)
    ux, uy = u[0], u[1] - STEP * GRAVITY
    if i < 3 and ux < 0.0:
        ux = 0.0
    if i > grid - 3 and ux > 0.0:
        ux = 0.0
    if j < 3 and uy < 0.0:
        ux = 0.0
        uy = 0.0
    if j > grid - 3 and uy > 0.0:
        uy = 0.0
    gu[i, j] = wp.vec2(ux, uy)


@wp.kernel
def g2p(
    t: int,
    n: float,
    x: wp.array2d(dtype=wp.vec2),
    v: wp.array2d(dtype=wp.vec2),
    C: wp.array2d(dtype=wp.mat22),
    gu: wp.array2d(dtype=wp.vec2),
):
    """Grid to particles."""
    p = wp.tid()
    place = x[t, p] * n
    bi, bj = int(place[0] - 0.5), int(place[1] - 0.5)
    fx = place - wp.vec2(float(bi), float(bj))
    new_v, new_C = wp.vec2(0.0, 0.0), wp.mat22(0.0, 0.0, 0.0, 0.0)
    for i in range(3):
        for j in range(3):
            w = weight(fx[0], i) * weight(fx[1], j)
            g = gu[bi + i, bj + j]
            new_v += w * g
            new_C += 4.0 * n * w * wp.outer(g, wp.vec2(float(i), float(j)) - fx)
    v[t + 1, p] = new_v
    x[t + 1, p] = x[t, p] + STEP * new_v
    C[t + 1, p] = new_C


@wp.kernel
def average(t: int, particles: float, x: wp.array2d(dtype=wp.vec2), mean: wp.array(dtype=wp.vec2)):
    """The mean place."""
    wp.atomic_add(mean, 0, x[t, wp.tid()] / particles)


def figures(name: str, small: bool, seconds: float) -> dict[str, Any]:
    """Times of the forward pass; ``values``: the loss.

    Args:
        name: ``diffmpm``; there is no other case.
        small: for a try on the CPU.
        seconds: about how long to measure each function.
    """
    if name != "diffmpm":
        raise SystemExit(f"no case {name} for Warp")
    wp.init()
    particles, steps, grid = (256, 4, 40) if small else (6400, 1024, 120)
    x, v = (wp.zeros((steps + 1, particles), dtype=wp.vec2) for _ in range(2))
    C, F = (wp.zeros((steps + 1, particles), dtype=wp.mat22) for _ in range(2))
    gv, gu, gm = (
        wp.zeros((grid, grid), dtype=wp.vec2),
        wp.zeros((grid, grid), dtype=wp.vec2),
        wp.zeros((grid, grid), dtype=float),
    )
    mean = wp.zeros(1, dtype=wp.vec2)
    first = np.zeros((steps + 1, particles, 2), np.float32)
    first[0] = np.random.default_rng(3).uniform(0.2, 0.5, (particles, 2))
    speed = np.zeros_like(first)
    speed[0] = [1.0, -0.5]
    whole = np.zeros((steps + 1, particles, 2, 2), np.float32)
    whole[0] = np.eye(2)
    x.assign(first)
    v.assign(speed)
    F.assign(whole)

    def forward() -> None:
        mean.zero_()
        for t in range(steps):
            gv.zero_()
            gm.zero_()
            wp.launch(p2g, dim=particles, inputs=[t, float(grid), x, v, C, F, gv, gm])
            wp.launch(grid_op, dim=(grid, grid), inputs=[grid, gv, gm, gu])
            wp.launch(g2p, dim=particles, inputs=[t, float(grid), x, v, C, gu])
        wp.launch(average, dim=particles, inputs=[steps, float(particles), x, mean])

    clock = Clock(wp.synchronize)
    out: dict[str, Any] = {"timed": {"forward": clock.measure(forward, seconds)}, "version": wp.config.version}
    if wp.get_device().is_cuda:
        with wp.ScopedCapture() as capture:
            forward()
        out["timed"]["forward_graph"] = clock.measure(lambda: wp.capture_launch(capture.graph), seconds)
    out["values"] = [float(np.sum((mean.numpy()[0] - np.array([0.6, 0.4])) ** 2))]
    return out
