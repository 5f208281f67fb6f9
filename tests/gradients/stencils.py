"""Time steps on grids whose gradients are gathered: the kernels of ``test_gather.py``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import qdrun as qd

STEPS = 3


def heat_inner(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange((1, n - 1), (1, m - 1)):
            v = u[t, i, j]
            u[t + 1, i, j] = v + c[None] * (u[t, i + 1, j] + u[t, i - 1, j] + u[t, i, j + 1] + u[t, i, j - 1] - 4.0 * v)

    return step


def heat_periodic(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, m):
            v, k, l = u[t, i, j], (i + n - 1) % n, (j - 1) % m
            u[t + 1, i, j] = v + c[None] * (u[t, (i + 1) % n, j] + u[t, k, j] + u[t, i, (j + 1) % m] + u[t, i, l] - 4.0 * v)

    return step


def heat_clamped(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, m):
            v, k, l = u[t, i, j], qd.max(i - 1, 0), qd.max(j - 2, 0)
            right, down = u[t, qd.min(i + 1, n - 1), j], u[t, i, qd.min(j + 2, m - 1)]
            u[t + 1, i, j] = v + c[None] * (right + u[t, k, j] + down + u[t, i, l] - 4.0 * v)

    return step


def heat_guarded(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, m):
            if 0 < i < n - 1 and 0 < j < m - 1:
                v = u[t, i, j]
                u[t + 1, i, j] = v + c[None] * (u[t, i + 1, j] + u[t, i - 1, j] + u[t, i, j + 1] + u[t, i, j - 1] - 4.0 * v)
            else:
                u[t + 1, i, j] = u[t, i, j]

    return step


def upwind(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, m):
            v = u[t, i, j]
            a, b = qd.max(v, 0.0), qd.min(v, 0.0)
            left = v - u[t, (i - 1) % n, j] if i > 0 else v
            right = u[t, (i + 1) % n, j] - v
            u[t + 1, i, j] = v - c[None] * (a * left + b * right)

    return step


def flux(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, m):
            right, down = (i + 1) % n, (j + 1) % m
            f = 0.5 * (u[t, i, j] ** 2 - u[t, right, j] * u[t, i, down])
            if f > 0.1:
                f = 0.1 + 0.3 * f * f
            u[t + 1, i, j] = u[t, i, j] - c[None] * f

    return step


def corners(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange((2, n - 3), (0, m - 1)):
            u[t + 1, i, j] = u[t, i, j] * u[t, i + 3, j + 1] + c[None] * u[t, i - 2, j + 1] * u[t, i + 1, j]

    return step


def by_hand(u, c, shape):
    n, m = shape

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, m):
            u[t + 1, i, j] += (1.0 - c[None]) * u[t, i, j]
            if i < n - 1:
                u[t + 1, i + 1, j] += c[None] * u[t, i, j] * u[t, i, j]
            if j > 0:
                u[t + 1, i, j - 1] -= 0.1 * c[None] * u[t, i, j]

    return step


STEP_KERNELS: list[Callable[..., Callable[[int], None]]] = [
    heat_inner, heat_periodic, heat_clamped, heat_guarded, upwind, flux, corners, by_hand,
]  # fmt: skip


def run(
    make: Callable[..., Callable[[int], None]], shape: tuple[int, int], seed: int, record: bool = False, **options
) -> list[np.ndarray]:
    """The loss of some steps, and its gradients by the first state and the coefficient. ``record``: by recorded launches."""
    with qd.init(**{"arch": qd.cpu, "default_fp": qd.f64, "offline_cache": False, **options}):
        u = qd.field(qd.f64, shape=(STEPS + 1, *shape), needs_grad=True)
        c, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
        step = make(u, c, shape)

        @qd.kernel
        def total():
            for i, j in qd.ndrange(*shape):
                loss[None] += u[STEPS, i, j] * (1.0 + 0.1 * i - 0.2 * j) + 0.5 * u[STEPS, i, j] ** 2

        first = np.zeros((STEPS + 1, *shape))
        first[0] = np.random.default_rng(seed).normal(size=shape)
        u.from_numpy(first)
        c.fill(0.15)

        def sweep():
            with qd.ad.Tape(loss):
                for t in range(STEPS):
                    step(t)
                total()

        sweep()
        if record:
            graph = qd.capture(sweep)
            u.from_numpy(first)
            graph()
        return [loss.to_numpy(), u.grad.to_numpy(), c.grad.to_numpy()]


def loss_of(make: Callable[..., Callable[[int], None]], first: np.ndarray, c: float) -> float:
    """The loss alone, of a given state."""
    shape = first.shape
    with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False, cpu_max_num_threads=1):
        u = qd.field(qd.f64, shape=(STEPS + 1, *shape))
        given = qd.field(qd.f64, shape=())
        step = make(u, given, shape)
        content = np.zeros((STEPS + 1, *shape))
        content[0] = first
        u.from_numpy(content)
        given[None] = c
        for t in range(STEPS):
            step(t)
        last = u.to_numpy()[STEPS]
    i, j = np.indices(shape)
    return float((last * (1.0 + 0.1 * i - 0.2 * j) + 0.5 * last**2).sum())
