"""Gradients of solutions of linear systems: the adjoint solve beside closed forms and differences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f64) as program:
        yield program


def array(values: Any, dtype: Any = qd.f64, needs_grad: bool = False) -> Any:
    out = qd.ndarray(dtype, len(values), needs_grad=needs_grad)
    out.from_numpy(np.asarray(values, dtype.numpy))
    return out


@qd.kernel
def weighted(x: qd.types.ndarray(), w: qd.types.ndarray(), loss: qd.types.ndarray()):
    for i in x:
        loss[0] += w[i] * x[i] ** 2


def system(seed: int, symmetric: bool) -> SimpleNamespace:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 25))
    dense = rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.3) + np.diag(rng.choice([-1, 1], n) * (2 + rng.random(n)))
    dense = dense @ dense.T + np.eye(n) if symmetric else dense
    rows, columns = np.nonzero(dense)
    b, w = rng.normal(size=n), rng.normal(size=n)
    return SimpleNamespace(n=n, dense=dense, rows=rows, columns=columns, b=b, w=w)


def solution(kind: str, A: Any, b: Any) -> Any:
    if kind == "CG":
        return qd.linalg.SparseCG(A, b, max_iter=500, atol=1e-12).solve()[0]
    solver = qd.linalg.SparseSolver(qd.f64, kind)
    solver.compute(A)
    return solver.solve(b)


@pytest.mark.parametrize("kind", ["LLT", "LDLT", "LU", "CG"])
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_goes_to_the_right_hand_side_and_to_the_values(program, kind, seed):
    s = system(seed, kind != "LU")
    values, b = array(s.dense[s.rows, s.columns], needs_grad=True), array(s.b, needs_grad=True)
    rows, columns, w = array(s.rows, qd.i32), array(s.columns, qd.i32), array(s.w)
    loss = qd.ndarray(qd.f64, 1, needs_grad=True)
    with qd.ad.Tape(loss=loss):
        A = qd.linalg.SparseMatrix.from_triplets(s.n, s.n, rows, columns, values)
        weighted(solution(kind, A, b), w, loss)
    x = np.linalg.solve(s.dense, s.b)
    adjoint = np.linalg.solve(s.dense.T, 2 * s.w * x)
    scale = 1 + np.abs(adjoint).max()
    np.testing.assert_allclose(loss[0], (s.w * x * x).sum(), rtol=1e-9)
    np.testing.assert_allclose(b.grad.to_numpy(), adjoint, atol=1e-8 * scale)
    np.testing.assert_allclose(
        values.grad.to_numpy(), -adjoint[s.rows] * x[s.columns], atol=1e-8 * scale * (1 + np.abs(x).max())
    )


def test_the_arithmetic_of_matrices_has_gradients(program):
    rng = np.random.default_rng(7)
    n, m = 6, 5
    mask, other = rng.random((2, n, m)) < 0.5
    (rows, columns), (rows2, columns2) = np.nonzero(mask), np.nonzero(other)
    given = rng.normal(size=len(rows)), rng.normal(size=len(rows2))
    p, q = (array(v, needs_grad=True) for v in given)
    x, w = array(rng.normal(size=n)), array(rng.normal(size=n))
    loss = qd.ndarray(qd.f64, 1, needs_grad=True)
    places = [array(v, qd.i32) for v in (rows, columns, rows2, columns2)]

    def run() -> None:
        A = qd.linalg.SparseMatrix.from_triplets(n, m, places[0], places[1], p)
        B = qd.linalg.SparseMatrix.from_triplets(n, m, places[2], places[3], q)
        C = (A * B - 0.5 * A + B) @ (A + A * 2.0).transpose()
        weighted(C @ x, w, loss)

    def at(first: np.ndarray, second: np.ndarray) -> float:
        a, b = np.zeros((n, m)), np.zeros((n, m))
        a[rows, columns], b[rows2, columns2] = first, second
        return float((w.to_numpy() * ((a * b - 0.5 * a + b) @ (3 * a).T @ x.to_numpy()) ** 2).sum())

    with qd.ad.Tape(loss=loss):
        run()
    np.testing.assert_allclose(loss[0], at(*given), rtol=1e-12)
    for k, array_ in enumerate((p, q)):
        for entry in range(len(given[k])):
            up, down = ([v.copy() for v in given] for _ in range(2))
            up[k][entry] += 1e-6
            down[k][entry] -= 1e-6
            np.testing.assert_allclose(array_.grad[entry], (at(*up) - at(*down)) / 2e-6, rtol=1e-6, atol=1e-6)


@qd.kernel
def stiffness(A: qd.types.sparse_matrix_builder(), k: qd.types.ndarray()):
    for e in k:
        A[e, e] += k[e] ** 2
        A[e + 1, e + 1] += k[e] ** 2
        A[e, e + 1] -= k[e] ** 2
        A[e + 1, e] -= k[e] ** 2


@qd.kernel
def diagonal(A: qd.types.sparse_matrix_builder(), n: int):
    for i in range(n):
        A[i, i] += 1.0


@pytest.mark.parametrize("kind", ["LDLT", "CG"])
def test_the_gradient_goes_through_kernels_that_add_to_a_matrix(program, kind):
    rng = np.random.default_rng(5)
    n = 9
    k, b, w = rng.uniform(0.5, 2, n - 1), rng.normal(size=n), rng.normal(size=n)
    stiff, force, weights = array(k, needs_grad=True), array(b), array(w)
    builder = qd.linalg.SparseMatrixBuilder(n, n, max_num_triplets=5 * n, dtype=qd.f64, needs_grad=True)
    loss = qd.ndarray(qd.f64, 1, needs_grad=True)
    stiffness(builder, stiff)
    diagonal(builder, n)
    A = builder.build()

    def at(values: np.ndarray) -> float:
        dense = np.eye(n)
        for e, v in enumerate(values):
            dense[e : e + 2, e : e + 2] += v**2 * np.array([[1, -1], [-1, 1]])
        return float((w * np.linalg.solve(dense, b) ** 2).sum())

    with qd.ad.Tape(loss=loss):
        A.fill(0.0)
        stiffness(A, stiff)
        diagonal(A, n)
        weighted(solution(kind, A, force), weights, loss)
    np.testing.assert_allclose(loss[0], at(k), rtol=1e-9)
    differences = [(at(k + h) - at(k - h)) / 2e-6 for h in 1e-6 * np.eye(n - 1)]
    np.testing.assert_allclose(stiff.grad.to_numpy(), differences, atol=1e-8)


def matrix_free(form: Any, n: int = 6) -> SimpleNamespace:
    """``c_i x_i`` and neighbours on a grid, where ``c`` has a gradient; ``upwind`` makes it unsymmetric."""
    make = qd.field if form is qd.f64 else qd.Vector.field
    shape: tuple[Any, ...] = (form,) if form is qd.f64 else (2, qd.f64)
    b, x = (make(*shape, (n, n), needs_grad=True) for _ in range(2))
    c, loss = qd.field(qd.f64, (n, n), needs_grad=True), qd.field(qd.f64, (), needs_grad=True)

    @qd.func
    def row(v: Any, i: Any, j: Any, upwind: Any, side: Any) -> Any:
        total = (4.5 + c[i, j] ** 2) * v[i, j]
        for k in qd.static(range(4)):
            a = i + qd.static((1, -1, 0, 0)[k])
            e = j + qd.static((0, 0, 1, -1)[k])
            if 0 <= a < n and 0 <= e < n:
                total -= (1 + qd.static((upwind, -upwind, 0, 0)[k]) * side) * v[a, e]
        return total

    @qd.kernel
    def symmetric(v: qd.template(), out: qd.template()):
        for i, j in v:
            out[i, j] = row(v, i, j, 0.0, 1)

    @qd.kernel
    def upwind(v: qd.template(), out: qd.template()):
        for i, j in v:
            out[i, j] = row(v, i, j, 0.3, 1)

    @qd.kernel
    def downwind(v: qd.template(), out: qd.template()):
        for i, j in v:
            out[i, j] = row(v, i, j, 0.3, -1)

    @qd.kernel
    def total():
        for i, j in x:
            if qd.static(form is qd.f64):
                loss[None] += (i + 0.5 * j) * x[i, j] ** 2
            else:
                loss[None] += (i + 0.5 * j) * x[i, j].x * x[i, j].y

    return SimpleNamespace(b=b, x=x, c=c, loss=loss, total=total, symmetric=symmetric, upwind=upwind, downwind=downwind)


@pytest.mark.parametrize("form", [qd.f64, "vectors"])
@pytest.mark.parametrize("method", ["MatrixFreeCG", "MatrixFreeBICGSTAB"])
def test_the_gradient_of_a_matrix_free_solution_is_that_of_differences(program, form, method):
    p = matrix_free(form)
    rng = np.random.default_rng(2)
    b, c = rng.normal(size=p.b.to_numpy().shape), rng.uniform(0.2, 1.5, p.c.shape)
    solver = getattr(qd.linalg, method)
    operator = qd.linalg.LinearOperator(p.symmetric)
    if method == "MatrixFreeBICGSTAB":
        operator = qd.linalg.LinearOperator(p.upwind, transpose=p.downwind)

    def run(right: np.ndarray, factors: np.ndarray) -> float:
        p.b.from_numpy(right)
        p.c.from_numpy(factors)
        p.x.fill(0.3)
        p.loss[None] = 0.0
        assert solver(operator, p.b, p.x, tol=1e-13) is True
        p.total()
        return p.loss[None]

    p.b.from_numpy(b)
    p.c.from_numpy(c)
    p.x.fill(0.1)
    with qd.ad.Tape(loss=p.loss):
        assert solver(operator, p.b, p.x, tol=1e-13) is True
        p.total()
    gradients = p.b.grad.to_numpy(), p.c.grad.to_numpy()
    assert not p.x.grad.to_numpy().any()  # the first guess has no influence
    for _ in range(4):
        u, v = rng.normal(size=b.shape), rng.normal(size=c.shape)
        h = 1e-5
        differences = (run(b + h * u, c + h * v) - run(b - h * u, c - h * v)) / (2 * h)
        np.testing.assert_allclose((gradients[0] * u).sum() + (gradients[1] * v).sum(), differences, rtol=1e-6, atol=1e-8)


def test_trials_of_a_batch_are_solved_together_and_have_their_own_gradients():
    rng = np.random.default_rng(4)
    b, c = rng.normal(size=(3, 6, 6)), rng.uniform(0.1, 3, (3, 6, 6))
    alone = []
    for trial in range(3):
        with qd.init(default_fp=qd.f64):
            p = matrix_free(qd.f64)
            p.b.from_numpy(b[trial])
            p.c.from_numpy(c[trial])
            with qd.ad.Tape(loss=p.loss):
                qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(p.symmetric), p.b, p.x, tol=1e-11)
                p.total()
            alone.append((p.x.to_numpy(), p.b.grad.to_numpy(), p.c.grad.to_numpy()))
    with qd.init(default_fp=qd.f64, batch=3):
        p = matrix_free(qd.f64)
        p.b.from_numpy(b)
        p.c.from_numpy(c)
        with qd.ad.Tape(loss=p.loss):
            found = qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(p.symmetric), p.b, p.x, tol=1e-11)
            p.total()
        assert found.tolist() == [True] * 3
        for k, got in enumerate((p.x, p.b.grad, p.c.grad)):
            np.testing.assert_allclose(got.to_numpy(), [a[k] for a in alone], atol=1e-10)


def test_implicit_steps_in_a_window_have_the_gradient_of_all_steps():
    """Backward Euler of a chain: ``(1 + h K) x' = x``, many steps in an array of few."""
    n, steps = 5, 12

    def run(window: int) -> tuple[float, np.ndarray, np.ndarray]:
        with qd.init(default_fp=qd.f64):
            x = qd.field(qd.f64, (window + 1, n), needs_grad=True)
            right, y = (qd.field(qd.f64, (window, n), needs_grad=True) for _ in range(2))
            k = qd.field(qd.f64, n, needs_grad=True)
            loss = qd.field(qd.f64, (), needs_grad=True)
            rows = [qd.field(qd.f64, n, needs_grad=True) for _ in range(2 * window)]
            k.from_numpy(np.linspace(0.5, 2.0, n))
            x.from_numpy(np.concatenate([np.linspace(1.0, -2.0, n)[None], np.zeros((window, n))]))
            del right, y

            @qd.kernel
            def product(v: qd.template(), out: qd.template()):
                for i in v:
                    out[i] = (1 + k[i]) * v[i] - 0.2 * (v[(i + 1) % n] + v[(i + n - 1) % n])

            @qd.kernel
            def take(t: int, b: qd.template()):
                for i in b:
                    b[i] = x[t, i] + 0.1 * qd.sin(x[t, i])

            @qd.kernel
            def give(t: int, v: qd.template()):
                for i in v:
                    x[t + 1, i] = v[i]

            @qd.kernel
            def total(t: int):
                for i in range(n):
                    loss[None] += (i + 1) * x[t, i] ** 2

            def step(t: int, slot: int) -> None:
                b, v = rows[2 * slot : 2 * slot + 2]
                take(slot, b)
                qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(product), b, v, tol=1e-13)
                give(slot, v)

            with qd.ad.Tape(loss=loss):
                for t in range(window):
                    step(t, t)
                total(window)
            return loss[None], x.grad.to_numpy()[0], k.grad.to_numpy()

    loss, start, stiffness_ = run(steps)
    k, x0 = np.linspace(0.5, 2.0, n), np.linspace(1.0, -2.0, n)

    def at(k: np.ndarray, x: np.ndarray) -> float:
        ring = np.roll(np.eye(n), 1, 0)
        for _ in range(steps):
            x = np.linalg.solve(np.diag(1 + k) - 0.2 * (ring + ring.T), x + 0.1 * np.sin(x))
        return float((np.arange(1, n + 1) * x**2).sum())

    np.testing.assert_allclose(loss, at(k, x0), rtol=1e-9)
    for got, way in ((stiffness_, lambda h: at(k + h, x0)), (start, lambda h: at(k, x0 + h))):
        np.testing.assert_allclose(got, [(way(h) - way(-h)) / 2e-6 for h in 1e-6 * np.eye(n)], rtol=1e-5, atol=1e-8)


def test_what_would_have_no_or_a_wrong_gradient_is_refused(program):
    n = 3
    places = array(np.arange(n), qd.i32)
    values, b = (array([2.0, 3.0, 4.0], needs_grad=True) for _ in range(2))
    loss = qd.ndarray(qd.f64, 1, needs_grad=True)
    A = qd.linalg.SparseMatrix.from_triplets(n, n, places, places, values)
    field = qd.field(qd.f64, n, needs_grad=True)
    solver = qd.linalg.SparseSolver(qd.f64, "LU")
    solver.compute(A)

    def refused(kind: Any, said: str, run: Any) -> None:
        with pytest.raises(kind, match=said), qd.ad.Tape(loss=loss):
            run()

    lost = "the result of a (Field|ndarray) is a numpy array, which has no gradient"
    refused(qd.QdrunTypeError, rf"SparseMatrix @ x: {lost}", lambda: A @ field)
    refused(qd.QdrunTypeError, rf"SparseSolver\.solve: {lost}", lambda: solver.solve(np.ones(n)))
    refused(qd.QdrunTypeError, rf"SparseCG: {lost}", qd.linalg.SparseCG(A, field).solve)
    refused(
        qd.QdrunRuntimeError,
        r"SparseCG\.solve did not converge in 1 iterations: the residual is (.|\n)*do: max_iter= or atol=",
        qd.linalg.SparseCG(A, b, max_iter=1).solve,
    )

    A.fill(1.0)
    refused(qd.QdrunRuntimeError, "the values of the matrix changed since factorize", lambda: solver.solve(b))


def test_what_python_overwrites_after_a_solve_changes_no_gradient(program):
    n = 3
    places = array(np.arange(n), qd.i32)
    b, w = (array([2.0, 3.0, 4.0], needs_grad=True) for _ in range(2))
    loss = qd.ndarray(qd.f64, 1, needs_grad=True)
    found = []
    for change in ("nothing", "solution", "matrix"):
        values = array([2.0, 3.0, 4.0], needs_grad=True)
        A = qd.linalg.SparseMatrix.from_triplets(n, n, places, places, values)
        solver = qd.linalg.SparseSolver(qd.f64, "LU")
        with qd.ad.Tape(loss=loss):
            solver.compute(A)
            x = solver.solve(b)
            weighted(x, w, loss)
            if change == "solution":
                x.fill(0.0)
            if change == "matrix":
                values.fill(7.0)
        found.append([t.grad.to_numpy() for t in (values, b, w)])
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13)
    assert found[0][1].any()


def test_what_a_matrix_free_solver_cannot_do_is_refused(program):
    p = matrix_free(qd.f64)
    operator = qd.linalg.LinearOperator(p.upwind)
    p.b.fill(1.0)
    with (
        pytest.raises(qd.QdrunTypeError, match=r"the gradient needs the product with the transposed matrix(.|\n)*transpose="),
        qd.ad.Tape(loss=p.loss),
    ):
        qd.linalg.MatrixFreeBICGSTAB(operator, p.b, p.x)
    x = qd.field(qd.f64, (6, 6), name="bare")
    with pytest.raises(qd.QdrunRuntimeError, match="has a gradient, and `bare` has none"), qd.ad.Tape(loss=p.loss):
        qd.linalg.MatrixFreeCG(operator, p.b, x)
    with pytest.raises(qd.QdrunValueError, match=r"b is f64 of the shape \(6, 6\), and x is f32 of \(6, 6\)"):
        qd.linalg.MatrixFreeCG(operator, p.b, qd.field(qd.f32, (6, 6)))
    with pytest.raises(qd.QdrunTypeError, match="MatrixFreeCG takes a LinearOperator, not KernelFunction"):
        qd.linalg.MatrixFreeCG(p.symmetric, p.b, p.x)
    with pytest.raises(qd.QdrunValueError, match=r"LinearOperator\.matvec: x has the shape \(6, 6\), and Ax has \(3,\)"):
        operator.matvec(p.x, qd.field(qd.f64, 3))

    @qd.kernel
    def negative(v: qd.template(), out: qd.template()):
        for i, j in v:
            out[i, j] = -v[i, j]

    assert qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(negative), p.b, p.x) is False
    assert qd.linalg.MatrixFreeBICGSTAB(qd.linalg.LinearOperator(negative), p.b, p.x) is True


def test_a_solver_in_forward_mode_is_refused(program):
    p = matrix_free(qd.f64)
    tangent = qd.field(qd.f64, 2, needs_dual=True)
    out = qd.field(qd.f64, (), needs_dual=True)
    with (
        pytest.raises(
            qd.QdrunRuntimeError,
            match="MatrixFreeCG inside of FwdMode is not possible: it has a gradient, and no",
        ),
        qd.ad.FwdMode(loss=out, param=tangent, seed=[1.0, 0.0]),
    ):
        qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(p.symmetric), p.b, p.x)


def test_second_derivatives_through_a_solver_are_refused_by_name(program):
    n = 3
    b, x, new = (qd.field(qd.f64, n) for _ in range(3))
    loss = qd.field(qd.f64, ())
    qd.root.lazy_hessian()

    @qd.kernel
    def twice(v: qd.template(), out: qd.template()):
        for i in v:
            out[i] = 2 * v[i]

    @qd.kernel
    def half():
        for i in x:
            new[i] = 0.5 * x[i] + b[i]

    @qd.kernel
    def total():
        for i in x:
            loss[None] += x[i] ** 2

    def solve() -> None:
        qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(twice), b, x)
        total()

    def iterate() -> None:
        qd.ad.fixed_point(half, x, new)
        total()

    for run, name in ((solve, "MatrixFreeCG"), (iterate, "fixed_point")):
        with pytest.raises(qd.QdrunRuntimeError, match=rf"{name}.* inside of qd\.ad\.hvp has no second derivatives"):
            qd.ad.hvp(run, loss, b, np.ones(n))


def test_newtons_method_as_a_fixed_point_has_the_gradient_of_the_root(program):
    """``2 x_i - 0.4 (neighbours) + c_i x_i^3 = p_i`` on a ring, with a linear solve in each step."""
    n, rng = 6, np.random.default_rng(8)
    x, new, f, d, p, c = (qd.field(qd.f64, n, needs_grad=True) for _ in range(6))
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def equation():
        for i in x:
            f[i] = 2 * x[i] - 0.4 * (x[(i + 1) % n] + x[(i + n - 1) % n]) + c[i] * x[i] ** 3 - p[i]

    @qd.kernel
    def tangent(v: qd.template(), out: qd.template()):
        for i in v:
            out[i] = (2 + 3 * c[i] * x[i] ** 2) * v[i] - 0.4 * (v[(i + 1) % n] + v[(i + n - 1) % n])

    @qd.kernel
    def move():
        for i in x:
            new[i] = x[i] - d[i]

    @qd.kernel
    def total():
        for i in x:
            loss[None] += (i + 1) * x[i] ** 2

    def step() -> None:
        equation()
        qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(tangent), f, d, tol=1e-13)
        move()

    def run(right: np.ndarray, cubic: np.ndarray) -> float:
        p.from_numpy(right)
        c.from_numpy(cubic)
        x.fill(0.5)
        qd.ad.fixed_point(step, x, new)
        loss[None] = 0.0
        total()
        return loss[None]

    right, cubic = rng.normal(size=n), rng.uniform(0.5, 2, n)
    p.from_numpy(right)
    c.from_numpy(cubic)
    x.fill(0.5)
    with qd.ad.Tape(loss=loss):
        found = qd.ad.fixed_point(step, x, new)
        total()
    assert found.steps < 10 and found.adjoint_steps <= 3  # the derivative of a step of Newton's method is 0 there
    gradients = p.grad.to_numpy(), c.grad.to_numpy()
    for h in 1e-6 * np.eye(n):
        np.testing.assert_allclose(gradients[0] @ h, (run(right + h, cubic) - run(right - h, cubic)) / 2, atol=1e-13)
        np.testing.assert_allclose(gradients[1] @ h, (run(right, cubic + h) - run(right, cubic - h)) / 2, atol=1e-13)


@pytest.mark.parametrize("method", ["MatrixFreeCG", "MatrixFreeBICGSTAB"])
def test_what_a_product_leaves_out_is_zero_in_each_solve(program, method):
    """The border is 0 in ``b`` and ``x``, and the product does not write it."""
    n, rng = 8, np.random.default_rng(3)
    b, x = (qd.field(qd.f64, n, needs_grad=True) for _ in range(2))
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def full(v: qd.template(), out: qd.template()):
        for i in v:
            out[i] = (3.0 + i) * v[i]

    @qd.kernel
    def inner(v: qd.template(), out: qd.template()):
        for i in range(1, n - 1):
            out[i] = 2.5 * v[i] - v[i - 1] - v[i + 1]

    @qd.kernel
    def total():
        for i in x:
            loss[None] += (i + 1) * x[i] ** 2

    solver = getattr(qd.linalg, method)
    b.from_numpy(rng.normal(size=n))
    with qd.ad.Tape(loss=loss):
        assert solver(qd.linalg.LinearOperator(full, transpose=full), b, x, tol=1e-12)
        total()
    right = np.concatenate([[0.0], rng.normal(size=n - 2), [0.0]])
    b.from_numpy(right)
    x.fill(0.0)
    with qd.ad.Tape(loss=loss):
        assert solver(qd.linalg.LinearOperator(inner, transpose=inner), b, x, tol=1e-12)
        total()
    dense = (2.5 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))[1:-1, 1:-1]
    want = np.linalg.solve(dense, right[1:-1])
    np.testing.assert_allclose(x.to_numpy()[1:-1], want, atol=1e-10)
    adjoint = np.linalg.solve(dense, 2 * np.arange(2, n) * want)
    np.testing.assert_allclose(b.grad.to_numpy()[1:-1], adjoint, atol=1e-9)
