"""Models on grids whose gradients are gathered: vectors, lattices, arrays of a length that launches give, three axes, adds by hand."""

from __future__ import annotations

import numpy as np

import qdrun as qd

GRID = qd.types.ndarray(dtype=qd.f64, ndim=2)
LATTICE = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))


def lattice() -> list[np.ndarray]:
    """The streaming step of a lattice Boltzmann method: each element gets one value."""
    n, m = 24, 18
    f = qd.field(qd.f64, shape=(4, n, m, 9), needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def stream(t: qd.i32):
        for i, j in qd.ndrange(n, m):
            for q in qd.static(range(9)):
                f[t + 1, i, j, q] = f[t, (i - LATTICE[q][0]) % n, (j - LATTICE[q][1]) % m, q] * (1.0 + 0.1 * q)

    @qd.kernel
    def total():
        for i, j, q in qd.ndrange(n, m, 9):
            loss[None] += f[3, i, j, q] ** 2 * (1.0 + 0.01 * i)

    f.from_numpy(np.random.default_rng(1).normal(size=(4, n, m, 9)))
    with qd.ad.Tape(loss):
        for t in range(3):
            stream(t)
        total()
    return [f.grad.to_numpy()]


def vectors() -> list[np.ndarray]:
    """A field of vectors, and a coefficient for each cell."""
    n, m = 24, 18
    f = qd.Vector.field(3, qd.f64, shape=(4, n, m), needs_grad=True)
    a, loss = qd.field(qd.f64, shape=(n, m), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32):
        for i, j in a:
            d = f[t, qd.min(i + 1, n - 1), j] - f[t, qd.max(i - 1, 0), j]
            f[t + 1, i, j] = f[t, i, j] + a[i, j] * (d * f[t, i, j][0] - f[t, i, qd.min(j + 1, m - 1)])

    @qd.kernel
    def total():
        for i, j in a:
            loss[None] += f[3, i, j].norm_sqr() * (1.0 + 0.01 * i)

    f.from_numpy(0.3 * np.random.default_rng(1).normal(size=(4, n, m, 3)))
    a.from_numpy(0.3 * np.random.default_rng(2).normal(size=(n, m)))
    with qd.ad.Tape(loss):
        for t in range(3):
            step(t)
        total()
    return [f.grad.to_numpy(), a.grad.to_numpy()]


def arrays() -> list[np.ndarray]:
    """Arrays of any shape as arguments."""
    u = [qd.ndarray(qd.f64, (21, 17), needs_grad=True) for _ in range(4)]
    k, loss = qd.ndarray(qd.f64, (21, 17), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(a: GRID, b: GRID, k: GRID):
        for i, j in qd.ndrange(a.shape[0], a.shape[1]):
            n, m = a.shape[0], a.shape[1]
            sides = a[i, qd.min(j + 1, m - 1)] * a[i, qd.max(j - 1, 0)]
            b[i, j] = a[i, j] + k[i, j] * (a[(i + 1) % n, j] + a[(i - 1) % n, j] + sides)

    @qd.kernel
    def total(a: GRID):
        for i, j in qd.ndrange(a.shape[0], a.shape[1]):
            loss[None] += a[i, j] ** 2 * (1.0 + 0.01 * i)

    u[0].from_numpy(np.random.default_rng(1).normal(size=(21, 17)))
    k.from_numpy(0.2 * np.random.default_rng(2).normal(size=(21, 17)))
    with qd.ad.Tape(loss):
        for t in range(3):
            step(u[t], u[t + 1], k)
        total(u[3])
    return [u[0].grad.to_numpy(), k.grad.to_numpy()]


def wave() -> list[np.ndarray]:
    """The wave equation in three axes, with a velocity for each cell."""
    n = 9
    u, c = (qd.field(qd.f64, shape=shape, needs_grad=True) for shape in ((4, n, n, n), (n, n, n)))
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32):
        for i, j, k in qd.ndrange((1, n - 1), (1, n - 1), (1, n - 1)):
            rows = u[t, i + 1, j, k] + u[t, i - 1, j, k] + u[t, i, j + 1, k] + u[t, i, j - 1, k]
            lap = rows + u[t, i, j, k + 1] + u[t, i, j, k - 1] - 6.0 * u[t, i, j, k]
            u[t + 1, i, j, k] = 2.0 * u[t, i, j, k] - u[t - 1, i, j, k] + c[i, j, k] * lap

    @qd.kernel
    def total():
        for i, j, k in qd.ndrange(n, n, n):
            loss[None] += u[3, i, j, k] ** 2

    u.from_numpy(np.random.default_rng(1).normal(size=(4, n, n, n)))
    c.from_numpy(0.2 * np.random.default_rng(3).normal(size=(n, n, n)))
    with qd.ad.Tape(loss):
        for t in range(1, 3):
            step(t)
        total()
    return [u.grad.to_numpy(), c.grad.to_numpy()]


def line() -> list[np.ndarray]:
    """One axis, adds by hand, a function of the cell."""
    n = 40
    u, v = (qd.field(qd.f64, shape=n, needs_grad=True) for _ in range(2))
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step():
        for i in range(n):
            d = 0.5 * qd.sin(u[i])
            v[i] += d
            if i + 3 < n:
                v[i + 3] -= d * u[i + 1]

    @qd.kernel
    def total():
        for i in range(n):
            loss[None] += v[i] ** 3

    u.from_numpy(np.random.default_rng(1).normal(size=n))
    with qd.ad.Tape(loss):
        step()
        total()
    return [v.to_numpy(), u.grad.to_numpy()]


MODELS = [lattice, vectors, arrays, wave, line]
