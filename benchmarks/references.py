"""The programs of ``benchmarks.cases`` in numpy and f64: what both packages must agree with.

Gradients are central differences: they share no code with anything that they check.
"""

from collections.abc import Callable

import numpy as np


def mass_spring(masses: int, steps: int, stiffness: float = 200.0) -> float:
    """The loss of ``cases.mass_spring``."""
    ends = np.array([(i, i + 1) for i in range(masses - 1)] + [(i, i + 2) for i in range(masses - 2)])
    a, b = ends.T
    x = np.stack([0.1 * np.arange(masses), 0.1 + 0.05 * (np.arange(masses) % 2)], axis=1)
    v = np.zeros_like(x)
    rest = np.linalg.norm(x[a] - x[b], axis=1).astype(np.float32) * np.float32(1.05)
    dt, drag = 0.002, 0.99
    for _ in range(steps):
        span = x[a] - x[b]
        length = np.linalg.norm(span, axis=1) + 1e-4
        f = (stiffness * (length - rest) / length)[:, None] * span
        force = np.zeros_like(x)
        np.add.at(force, a, -f)
        np.add.at(force, b, f)
        new_v = drag * v + dt * (force + np.array([0.0, -4.8]))
        new_x = x + dt * new_v
        stopped = (new_x[:, 1] < 0.0) & (new_v[:, 1] < 0.0)
        v = np.where(stopped[:, None], 0.0, new_v)
        x = np.where(stopped[:, None], x, new_x)
    return float(x[:, 0].mean())


def mpm88(particles: int, steps: int, grid: int, push: np.ndarray) -> float:
    """The loss of ``cases.mpm88``."""
    dx, inv_dx, dt = 1.0 / grid, float(grid), 2e-4
    volume, stiffness, gravity = (dx * 0.5) ** 2, 400.0, 9.8
    x = np.random.default_rng(2).uniform(0.2, 0.6, (particles, 2)).astype(np.float32).astype(float)
    v, C, J = np.tile(push, (particles, 1)), np.zeros((particles, 2, 2)), np.ones(particles)
    column, row = np.meshgrid(np.arange(grid), np.arange(grid), indexing="ij")
    for _ in range(steps):
        base = (x * inv_dx - 0.5).astype(int)
        fx = x * inv_dx - base
        w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
        stress = -dt * 4.0 * stiffness * volume * (J - 1.0) * inv_dx * inv_dx
        affine = stress[:, None, None] * np.eye(2) + volume * C
        gv, gm = np.zeros((grid, grid, 2)), np.zeros((grid, grid))
        for i in range(3):
            for j in range(3):
                dpos = (np.array([i, j]) - fx) * dx
                weight = w[i][:, 0] * w[j][:, 1]
                at = base[:, 0] + i, base[:, 1] + j
                np.add.at(gv, at, weight[:, None] * (volume * v + np.einsum("pij,pj->pi", affine, dpos)))
                np.add.at(gm, at, weight * volume)
        u = np.where(gm[..., None] > 0.0, gv / np.maximum(gm, 1e-300)[..., None], 0.0)
        u[..., 1] -= dt * gravity
        u[..., 0][(column < 3) & (u[..., 0] < 0.0) | (column > grid - 3) & (u[..., 0] > 0.0)] = 0.0
        u[..., 1][(row < 3) & (u[..., 1] < 0.0) | (row > grid - 3) & (u[..., 1] > 0.0)] = 0.0
        v, C = np.zeros_like(x), np.zeros_like(C)
        for i in range(3):
            for j in range(3):
                g, weight = u[base[:, 0] + i, base[:, 1] + j], w[i][:, 0] * w[j][:, 1]
                v += weight[:, None] * g
                C += 4.0 * inv_dx * weight[:, None, None] * g[:, :, None] * (np.array([i, j]) - fx)[:, None, :]
        x = x + dt * v
        J = J * (1.0 + dt * np.trace(C, axis1=1, axis2=2))
    return float(np.mean(((x - np.array([0.7, 0.3])) ** 2).sum(axis=1)))


def slopes(f: Callable[[np.ndarray], float], at: np.ndarray, step: float) -> np.ndarray:
    """The gradient of ``f`` by central differences."""
    ways = step * np.eye(len(at))
    return np.array([(f(at + way) - f(at - way)) / (2.0 * step) for way in ways])
