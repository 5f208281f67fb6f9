"""``checkpointed_steps`` whose steps solve systems and fixed points: gradients beside full storage, differences and numpy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qdrun as qd

RING = qd.types.ndarray(qd.f64, 1)


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


def heat(n: int, window: int, method: str, **options: Any) -> SimpleNamespace:
    """Backward Euler of a ring whose conductivity ``k`` varies: ``(1 + k) u - 0.05 (neighbours) = 1.4 x + 0.3 sin x``."""
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1, **options)
    x = qd.field(qd.f64, (window + 1, n), needs_grad=True, name="x")
    k, loss = qd.field(qd.f64, n, needs_grad=True, name="k"), qd.field(qd.f64, (), needs_grad=True, name="loss")
    b, u = (qd.ndarray(qd.f64, n, needs_grad=True) for _ in range(2))
    places = [qd.ndarray(qd.i32, 3 * n) for _ in range(2)]
    for array, values in zip(
        places, (np.repeat(np.arange(n), 3), np.add.outer(np.arange(n), [-1, 0, 1]).ravel() % n), strict=True
    ):
        array.from_numpy(values.astype(np.int32))
    start = qd.ndarray(qd.f64, 3 * n, needs_grad=True)
    matrix = qd.linalg.SparseMatrix.from_triplets(n, n, *places, start) if qd.current_program().trials is None else None
    solver = qd.linalg.SparseSolver(qd.f64, "LU" if method == "LU" else "LDLT")

    @qd.kernel
    def product(v: RING, out: RING):
        for i in v:
            out[i] = (1 + k[i]) * v[i] - 0.05 * (v[(i + 1) % n] + v[(i + n - 1) % n])

    @qd.kernel
    def assemble(A: qd.types.sparse_matrix_builder()):
        for i in range(n):
            A[i, i] += 1 + k[i]
            A[i, (i + 1) % n] -= 0.05
            A[(i + 1) % n, i] -= 0.05

    @qd.kernel
    def take(s: int, b: RING):
        for i in b:
            b[i] = 1.4 * x[s, i] + 0.3 * qd.sin(x[s, i])

    @qd.kernel
    def give(s: int, u: RING):
        for i in u:
            x[s + 1, i] = u[i]

    @qd.kernel
    def total(s: int):
        for i in range(n):
            loss[None] += (i + 1) * x[s, i] ** 2

    def step(t: int, s: int) -> None:
        take(s, b)
        if method == "CG":
            assert np.all(qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(product), b, u, tol=1e-13))
            give(s, u)
            return
        assemble(matrix)
        if method == "SparseCG":
            give(s, qd.linalg.SparseCG(matrix, b, max_iter=100, atol=1e-13).solve()[0])
            return
        solver.compute(matrix)
        give(s, solver.solve(b))

    temporaries = [b, u] if method == "CG" else [b, matrix]
    return SimpleNamespace(x=x, k=k, loss=loss, step=step, total=total, temporaries=temporaries, window=window, n=n)


def solved(p: SimpleNamespace, steps: int, k: np.ndarray, x0: np.ndarray, **how: Any) -> Any:
    p.k.from_numpy(k)
    p.x.from_numpy(np.concatenate([x0[..., None, :], np.zeros((*x0.shape[:-1], p.window, p.n))], axis=-2))
    with qd.ad.Tape(loss=p.loss):
        plan = qd.ad.checkpointed_steps(p.step, steps, p.x, temporaries=p.temporaries, **how)
        p.total(min(steps, p.window))
    return plan


def ring(k: np.ndarray, x: np.ndarray, steps: int) -> float:
    n = len(k)
    near = np.roll(np.eye(n), 1, 0)
    inverse = np.linalg.inv(np.diag(1 + k) - 0.05 * (near + near.T))
    for _ in range(steps):
        x = inverse @ (1.4 * x + 0.3 * np.sin(x))
    return float((np.arange(1, n + 1) * x**2).sum())


def test_a_thousand_implicit_steps_with_checkpoints_have_the_gradient_of_full_storage_and_of_differences():
    n, steps, rng = 6, 1000, np.random.default_rng(1)
    k, x0 = rng.uniform(0.65, 0.75, n), rng.normal(size=n)
    found = {}
    for window, levels in ((1000, None), (40, None), (10, 3)):
        p = heat(n, window, "CG")
        plan = solved(p, steps, k, x0, levels=levels)
        found[window] = p.loss[None], *p.k.grad.to_numpy(), *p.x.grad.to_numpy()[0]
        program = qd.current_program()
        held = program.peaks()
        assert plan.made_bytes == 0  # of a solve, nothing is kept
        assert plan.snapshot_bytes + window * 2 * 8 * n == held["snapshots"] - 0
        assert plan.fixed_bytes + window * plan.slot_bytes == 2 * 8 * n * (window + 1 + 2) + 2 * 8 * n * window
    assert len(set(found.values())) == 1  # the same bits
    gradient = np.array(found[10][1:])
    np.testing.assert_allclose(found[10][0], ring(k, x0, steps), rtol=1e-9)
    h = 1e-6 * np.eye(2 * n)
    differences = [(ring(k + d[:n], x0 + d[n:], steps) - ring(k - d[:n], x0 - d[n:], steps)) / 2e-6 for d in h]
    np.testing.assert_allclose(gradient, differences, rtol=2e-6, atol=1e-7 * np.abs(gradient).max())


@pytest.mark.parametrize("method", ["LDLT", "LU", "SparseCG"])
@pytest.mark.parametrize("window", [7, 3, 1])
def test_a_matrix_that_is_assembled_in_each_step_is_a_temporary(method, window):
    n, steps, rng = 5, 7, np.random.default_rng(window)
    k, x0 = rng.uniform(0.3, 0.9, n), rng.normal(size=n)
    p = heat(n, window, method)
    plan = solved(p, steps, k, x0)
    np.testing.assert_allclose(p.loss[None], ring(k, x0, steps), rtol=1e-10)
    h = 1e-6 * np.eye(n)
    for got, way in (
        (p.k.grad.to_numpy(), lambda d: ring(k + d, x0, steps)),
        (p.x.grad.to_numpy()[0], lambda d: ring(k, x0 + d, steps)),
    ):
        np.testing.assert_allclose(got, [(way(d) - way(-d)) / 2e-6 for d in h], rtol=1e-6, atol=1e-8)
    assert plan.made_bytes >= window * 2 * 8 * n  # a solution with its gradient for each step
    before = qd.current_program().usage()
    solved(p, steps, k, x0)
    after = qd.current_program().usage()
    assert after["ndarrays"] == before["ndarrays"] and "snapshots" not in after  # nothing is left of the steps


def test_trials_of_a_batch_take_implicit_steps_together():
    n, steps, rng = 4, 9, np.random.default_rng(3)
    k, x0 = rng.uniform(0.3, 0.9, (3, n)), rng.normal(size=(3, n))
    p = heat(n, 2, "CG", batch=3)
    solved(p, steps, k, x0)
    for trial in range(3):
        np.testing.assert_allclose(p.loss.to_numpy()[trial], ring(k[trial], x0[trial], steps), rtol=1e-10)
        h = 1e-6 * np.eye(n)
        differences = [(ring(k[trial] + d, x0[trial], steps) - ring(k[trial] - d, x0[trial], steps)) / 2e-6 for d in h]
        np.testing.assert_allclose(p.k.grad.to_numpy()[trial], differences, rtol=1e-6, atol=1e-8)


def euler(window: int, **options: Any) -> SimpleNamespace:
    """Backward Euler of ``v' = -k v^3 + 1``, each step a fixed point through an array of intermediate results."""
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1, **options)
    k, loss, v, new, mid = (qd.field(qd.f64, (), needs_grad=True, name=name) for name in ("k", "loss", "v", "new", "mid"))
    x = qd.field(qd.f64, window + 1, needs_grad=True, name="x")

    @qd.kernel
    def cube():
        mid[None] = k[None] * v[None] ** 3

    @qd.kernel
    def relax(s: int):
        new[None] = 0.6 * v[None] + 0.4 * (x[s] + 0.2 - 0.2 * mid[None])

    @qd.kernel
    def give(s: int):
        x[s + 1] = v[None]

    @qd.kernel
    def total(s: int):
        loss[None] += x[s] ** 2

    def step(t: int, s: int) -> None:
        def iterate() -> None:
            cube()
            relax(s)

        qd.ad.fixed_point(iterate, v, new, rtol=1e-14)
        give(s)

    return SimpleNamespace(k=k, x=x, loss=loss, step=step, total=total, every=[v, new, mid])


@pytest.mark.parametrize("window", [8, 3, 1])
def test_fixed_points_in_steps_have_the_gradient_of_all_steps(window):
    steps, start, k = 8, 1.7, 0.8

    def at(k: float, x: float) -> float:
        for _ in range(steps):  # v + 0.2 k v^3 = x + 0.2
            v = x
            for _ in range(50):
                v -= (v + 0.2 * k * v**3 - x - 0.2) / (1 + 0.6 * k * v * v)
            x = v
        return x * x

    p = euler(window)
    p.k[None], p.x[0] = k, start
    with qd.ad.Tape(loss=p.loss):
        plan = qd.ad.checkpointed_steps(p.step, steps, p.x, temporaries=p.every)
        p.total(min(steps, window))
    np.testing.assert_allclose(p.loss[None], at(k, start), rtol=1e-11)
    np.testing.assert_allclose(p.k.grad[None], (at(k + 1e-6, start) - at(k - 1e-6, start)) / 2e-6, rtol=1e-7)
    np.testing.assert_allclose(p.x.grad[0], (at(k, start + 1e-6) - at(k, start - 1e-6)) / 2e-6, rtol=1e-7)
    assert plan.made_bytes == window * 8  # the state of each fixed point
    assert "snapshots" not in qd.current_program().usage()


@pytest.mark.parametrize("window", [6, 2, 1])
def test_what_follows_a_fixed_point_may_read_its_state_in_a_product(window):
    """The gradient reads the state of each step again. It was refused: the next step's fixed point seemed to overwrite it."""
    steps, rng = 6, np.random.default_rng()
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, (window + 1, 3), needs_grad=True)
    u, new, v, later, p = (qd.field(qd.f64, 3, needs_grad=True) for _ in range(5))
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def first(k: int):
        for i in u:
            new[i] = 0.3 * qd.sin(u[i]) + x[k, i] * p[i]

    @qd.kernel
    def second():
        for i in v:
            later[i] = 0.2 * qd.cos(v[i] * u[i]) + u[(i + 1) % 3] * p[i]

    @qd.kernel
    def give(k: int):
        for i in u:
            x[k + 1, i] = u[i] * qd.cos(x[k, (i + 1) % 3]) + 0.2 * v[i] * u[i]

    @qd.kernel
    def total(k: int):
        for i in u:
            loss[None] += (i + 1) * x[k, i] ** 2

    def step(t: int, k: int) -> None:
        qd.ad.fixed_point(lambda: first(k), u, new)
        qd.ad.fixed_point(second, v, later)
        give(k)

    def at(q: np.ndarray, y: np.ndarray) -> float:
        for _ in range(steps):
            u, v = np.zeros(3), np.zeros(3)
            for _ in range(80):
                u = 0.3 * np.sin(u) + y * q
            for _ in range(80):
                v = 0.2 * np.cos(v * u) + np.roll(u, -1) * q
            y = u * np.cos(np.roll(y, -1)) + 0.2 * v * u
        return ((1 + np.arange(3)) * y**2).sum()

    q, start, by = rng.uniform(0.3, 0.7, 3), rng.uniform(-1, 1, 3), rng.normal(size=(2, 3))
    p.from_numpy(q)
    for i in range(3):
        x[0, i] = start[i]
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, steps, x, temporaries=[u, new, v, later])
        total(min(steps, window))
    slope = (at(q + 1e-5 * by[0], start + 1e-5 * by[1]) - at(q - 1e-5 * by[0], start - 1e-5 * by[1])) / 2e-5
    found = p.grad.to_numpy() @ by[0] + x.grad.to_numpy()[0] @ by[1]
    np.testing.assert_allclose(loss[None], at(q, start), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found, slope, rtol=1e-6, atol=1e-8)


def test_a_fixed_point_in_a_step_names_all_that_it_writes():
    p = euler(2)
    p.k[None], p.x[0] = 0.8, 1.0
    with (
        pytest.raises(qd.DataAccessError, match=r"fixed_point.* in a step of .* writes .*`mid` in `cube`(.|\n)*temporaries"),
        qd.ad.Tape(loss=p.loss),
    ):
        qd.ad.checkpointed_steps(p.step, 4, p.x, temporaries=p.every[:2])
    assert "snapshots" not in qd.current_program().usage()


@pytest.mark.parametrize("window", [6, 4, 1])
@pytest.mark.parametrize("seed", range(3))
def test_what_python_assigns_to_a_temporary_has_its_gradient(window, seed):
    """A parameter is copied to a temporary at the start of each step, a number at its end; a kernel multiplies in between."""
    steps, n, rng = 6, 3, np.random.default_rng(seed)
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, (window + 1, n), needs_grad=True, name="x")
    p, a, c = (qd.field(qd.f64, n, needs_grad=True, name=name) for name in "pac")
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def scale():
        for i in a:
            c[i] = a[i] * a[(i + 1) % n]

    @qd.kernel
    def move(s: int):
        for i in a:
            x[s + 1, i] = qd.sin(x[s, i] * a[i]) + c[i]

    @qd.kernel
    def total(s: int):
        for i in range(n):
            loss[None] += (1 + i) * x[s, i] ** 2

    def step(t: int, s: int) -> None:
        a.copy_from(p)
        if t % 2:
            a[1] = 0.7
        scale()
        move(s)
        if t % 3 == 0:
            c.fill(5.0)

    def at(p: np.ndarray, x: np.ndarray) -> float:
        for t in range(steps):
            a = p.copy()
            if t % 2:
                a[1] = 0.7
            c = a * np.roll(a, -1)
            x = np.sin(x * a) + c
        return float(((1 + np.arange(n)) * x**2).sum())

    values, x0 = rng.normal(size=(2, n))
    p.from_numpy(values)
    x.from_numpy(np.concatenate([x0[None], np.zeros((window, n))]))
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, steps, x, temporaries=[a, c])
        total(min(steps, window))
    np.testing.assert_allclose(loss[None], at(values, x0), rtol=1e-12)
    for got, way in ((p.grad.to_numpy(), lambda d: at(values + d, x0)), (x.grad.to_numpy()[0], lambda d: at(values, x0 + d))):
        np.testing.assert_allclose(got, [(way(d) - way(-d)) / 2e-6 for d in 1e-6 * np.eye(n)], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("window", [5, 2, 1])
def test_a_temporary_is_zero_when_a_step_begins_and_its_last_gradient_counts(window):
    """A sum within a step begins at 0; a loss after the steps may read what the last step left."""
    steps = 5
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, window + 1, needs_grad=True, name="x")
    total, p, loss = (qd.field(qd.f64, (), needs_grad=True) for _ in range(3))

    @qd.kernel
    def add(s: int):
        for _ in range(3):
            total[None] += p[None] * x[s]

    @qd.kernel
    def move(s: int):
        x[s + 1] = x[s] + 0.1 * total[None] ** 2

    @qd.kernel
    def last():
        loss[None] += total[None] ** 2

    def step(t: int, s: int) -> None:
        add(s)
        move(s)

    def at(p: float, x: float) -> float:
        s = 0.0
        for _ in range(steps):
            s = 3 * p * x
            x += 0.1 * s * s
        return s * s

    p[None], x[0] = 0.4, 0.9
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, steps, x, temporaries=[total])
        last()
    np.testing.assert_allclose(loss[None], at(0.4, 0.9), rtol=1e-12)
    np.testing.assert_allclose(p.grad[None], (at(0.4 + 1e-6, 0.9) - at(0.4 - 1e-6, 0.9)) / 2e-6, rtol=1e-7)
    np.testing.assert_allclose(x.grad[0], (at(0.4, 0.9 + 1e-6) - at(0.4, 0.9 - 1e-6)) / 2e-6, rtol=1e-7)


def test_what_would_be_wrong_in_a_step_that_is_run_again_is_refused():
    p = heat(4, 2, "CG")
    b, u = p.temporaries

    def run(error: type, match: str, step: Any = p.step, **how: Any) -> None:
        with pytest.raises(error, match=match), qd.ad.Tape(loss=p.loss):
            qd.ad.checkpointed_steps(step, 6, p.x, **how)

    undeclared = (
        r"writes `\w+` in a step of checkpointed_steps and `\w+` reads it here(.|\n)*or name it in temporaries, without slots"
    )
    run(qd.DataAccessError, undeclared, temporaries=[u])
    run(
        qd.DataAccessError,
        "`MatrixFreeCG` writes `v` in a step of checkpointed_steps and `product` reads it here",
        temporaries=[b],
    )
    run(qd.QdrunRuntimeError, "an array is given twice", temporaries=[b, b])
    run(qd.QdrunRuntimeError, "temporaries holds fields and ndarrays, not int", temporaries=[3])
    kept: list[Any] = []

    @qd.kernel
    def use(s: int, a: RING):
        for i in a:
            a[i] += 1.0
            p.x[s + 1, i] = p.x[s, i] * a[i]

    def hands_on(t: int, s: int) -> None:
        if not kept:
            kept.append(qd.ndarray(qd.f64, 4, needs_grad=True))
        use(s, kept[0])

    run(qd.DataAccessError, r"reads or writes `a` in `use`, which another step made(.|\n)*make it before the steps", hands_on)


@pytest.mark.parametrize("method", ["CG", "LDLT", "fixed point"])
@pytest.mark.parametrize("how", ["validation", "debug", "grad_check"])
def test_checks_of_versions_and_of_gradients_follow_temporaries(method, how):
    steps, n, k, x0 = 5, 4, np.linspace(0.3, 0.6, 4), np.linspace(-1, 1, 4)
    for window in (5, 2, 1):
        options = {"debug": True} if how == "debug" else {}
        p = euler(window, **options) if method == "fixed point" else heat(n, window, method, **options)
        tape = {"validation": True} if how == "validation" else {"grad_check": [p.k]} if how == "grad_check" else {}
        if method == "fixed point":
            p.k[None], p.x[0], p.temporaries = 0.8, 1.0, p.every
        else:
            p.k.from_numpy(k)
            p.x.from_numpy(np.concatenate([x0[None], np.zeros((window, n))]))
        with qd.ad.Tape(loss=p.loss, **tape):
            qd.ad.checkpointed_steps(p.step, steps, p.x, temporaries=p.temporaries)
            p.total(window)
        if method != "fixed point":
            differences = [(ring(k + d, x0, steps) - ring(k - d, x0, steps)) / 2e-6 for d in 1e-6 * np.eye(n)]
            np.testing.assert_allclose(p.k.grad.to_numpy(), differences, rtol=1e-6, atol=1e-8)
