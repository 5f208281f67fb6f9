"""``checkpointed_steps`` with temporaries: Newton's method, forward mode, and algorithms of the library in a step."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd

RING = qd.types.ndarray(qd.f64, 1)


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


@pytest.mark.parametrize("window", [5, 2, 1])
def test_newtons_method_with_a_solver_in_each_step(window):
    """Backward Euler of ``x' = -k x^3 + (neighbours - 2 x)``: a fixed point whose step solves a linear system."""
    n, steps, rng = 5, 5, np.random.default_rng(7)
    k, x0, h = rng.uniform(0.5, 1.5, n), rng.normal(size=n), 0.3
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, (window + 1, n), needs_grad=True)
    v, new, f, d, stiff = (qd.field(qd.f64, n, needs_grad=True) for _ in range(5))
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def equation(s: int):
        for i in v:
            f[i] = v[i] - x[s, i] + h * (stiff[i] * v[i] ** 3 + 2 * v[i] - v[(i + 1) % n] - v[(i + n - 1) % n])

    @qd.kernel
    def tangent(a: qd.template(), out: qd.template()):
        for i in a:
            out[i] = (1 + h * (3 * stiff[i] * v[i] ** 2 + 2)) * a[i] - h * (a[(i + 1) % n] + a[(i + n - 1) % n])

    @qd.kernel
    def move():
        for i in v:
            new[i] = v[i] - d[i]

    @qd.kernel
    def give(s: int):
        for i in v:
            x[s + 1, i] = v[i]

    @qd.kernel
    def total(s: int):
        for i in v:
            loss[None] += (i + 1) * x[s, i] ** 2

    def step(t: int, s: int) -> None:
        def newton() -> None:
            equation(s)
            qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(tangent), f, d, tol=1e-14)
            move()

        qd.ad.fixed_point(newton, v, new, atol=1e-13)
        give(s)

    def at(k: np.ndarray, x: np.ndarray) -> float:
        ring = np.roll(np.eye(n), 1, 0)
        laplace = 2 * np.eye(n) - ring - ring.T
        for _ in range(steps):
            u = x.copy()
            for _ in range(40):
                u -= np.linalg.solve(np.eye(n) + h * (np.diag(3 * k * u**2) + laplace), u - x + h * (k * u**3 + laplace @ u))
            x = u
        return float((np.arange(1, n + 1) * x**2).sum())

    stiff.from_numpy(k)
    x.from_numpy(np.concatenate([x0[None], np.zeros((window, n))]))
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, steps, x, temporaries=[v, new, f, d])
        total(window)
    np.testing.assert_allclose(loss[None], at(k, x0), rtol=1e-10)
    for got, way in ((stiff.grad.to_numpy(), lambda e: at(k + e, x0)), (x.grad.to_numpy()[0], lambda e: at(k, x0 + e))):
        np.testing.assert_allclose(got, [(way(e) - way(-e)) / 2e-6 for e in 1e-6 * np.eye(n)], rtol=1e-6, atol=1e-9)


def test_forward_mode_goes_through_steps_with_temporaries():
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, 3, needs_dual=True)
    total, p, loss = (qd.field(qd.f64, (), needs_dual=True) for _ in range(3))

    @qd.kernel
    def add(s: int):
        for _ in range(2):
            total[None] += p[None] * x[s]

    @qd.kernel
    def move(s: int):
        x[s + 1] = x[s] + 0.1 * total[None] ** 2

    @qd.kernel
    def last():
        loss[None] += x[2] ** 2

    def step(t: int, s: int) -> None:
        add(s)
        move(s)

    def at(p: float) -> float:
        x = 0.9
        for _ in range(6):
            x += 0.1 * (2 * p * x) ** 2
        return x * x

    p[None], x[0] = 0.4, 0.9
    with qd.ad.FwdMode(loss=loss, param=p, seed=[1.0]):
        qd.ad.checkpointed_steps(step, 6, x, temporaries=[total])
        last()
    np.testing.assert_allclose(loss.dual[None], (at(0.4 + 1e-6) - at(0.4 - 1e-6)) / 2e-6, rtol=1e-8)


@pytest.mark.parametrize("window", [6, 2, 1])
def test_algorithms_in_steps_use_arrays_that_the_program_keeps(window):
    n, steps, x0 = 8, 6, np.linspace(-1, 1, 8)
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, (window + 1, n), needs_grad=True)
    a, b = (qd.ndarray(qd.f64, n, needs_grad=True) for _ in range(2))
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def take(s: int, a: RING):
        for i in a:
            a[i] = 0.3 * x[s, i] + 0.1

    @qd.kernel
    def give(s: int, b: RING):
        for i in b:
            x[s + 1, i] = qd.sin(b[i])

    @qd.kernel
    def total():
        for i in range(n):
            loss[None] += x[window, i] ** 2

    def step(t: int, s: int) -> None:
        take(s, a)
        qd.algorithms.inclusive_scan(a, b)
        give(s, b)

    def at(x: np.ndarray) -> float:
        for _ in range(steps):
            x = np.sin(np.cumsum(0.3 * x + 0.1))
        return float((x**2).sum())

    x.from_numpy(np.concatenate([x0[None], np.zeros((window, n))]))
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, steps, x, temporaries=[a, b])
        total()
    differences = [(at(x0 + d) - at(x0 - d)) / 2e-6 for d in 1e-6 * np.eye(n)]
    np.testing.assert_allclose(x.grad.to_numpy()[0], differences, rtol=1e-6, atol=1e-8)
