"""What a solver calls a solution fulfils the equations: flags and errors beside residuals that numpy computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import qdrun as qd

SOLVERS = ["SparseCG", "MatrixFreeCG", "MatrixFreeBICGSTAB"]


def array(values: Any, dtype: Any = qd.f64, needs_grad: bool = False) -> Any:
    out = qd.ndarray(dtype, np.shape(values), needs_grad=needs_grad)
    out.from_numpy(np.asarray(values, dtype.numpy))
    return out


def sparse(dense: np.ndarray, values: Any) -> Any:
    rows, columns = np.nonzero(np.ones_like(dense))
    return qd.linalg.SparseMatrix.from_triplets(*dense.shape, array(rows, qd.i32), array(columns, qd.i32), values)


def solved(solver: str, dense: np.ndarray, b: Any, tol: float = 1e-9, most: int = 400, dtype: Any = qd.f64) -> tuple[Any, Any]:
    matrix = sparse(dense, array(dense.ravel(), dtype))
    if solver == "SparseCG":
        x, done = qd.linalg.SparseCG(matrix, array(b, dtype), max_iter=most, atol=tol).solve()
    else:
        x = qd.ndarray(dtype, len(b))
        done = getattr(qd.linalg, solver)(qd.linalg.LinearOperator(matrix.apply), array(b, dtype), x, tol=tol, maxiter=most)
    return x.to_numpy(), done


def symmetric(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    q = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
    return (q * values) @ q.T


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_has_converged_fulfils_the_equations(solver):
    rng = np.random.default_rng(SOLVERS.index(solver))
    found = []
    with qd.init(default_fp=qd.f64):
        for k in range(12):
            values = np.exp(rng.uniform(-25.0, 0.0, 20))
            values[0] *= [1.0, -1.0, 0.0][k % 3]  # definite, indefinite, singular: of a random right side no residual is 0
            dense, b = symmetric(rng, values), rng.normal(size=20) * 10.0 ** rng.integers(-3, 6)
            x, done = solved(solver, dense, b)
            found.append((done, np.linalg.norm(b - dense @ x) <= 1.01e-9))
        assert all(right for done, right in found if done) and not all(done for done, _ in found)
        for _ in range(3):  # what rounding lets converge converges, although the recurrences drift by more than the tolerance
            dense, b = symmetric(rng, np.exp(rng.uniform(-7.0, 0.0, 20))), 1e3 * rng.normal(size=20)
            x, done = solved(solver, dense, b, tol=1e-9)
            assert done and np.linalg.norm(b - dense @ x) <= 1.01e-9


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_no_number_or_too_small_to_be_squared_has_not_converged(solver):
    dense = np.diag([1.0, 2.0, 4.0]) + 0.1
    with qd.init():
        for dtype, b in ((qd.f64, [1.0, np.nan, 0.0]), (qd.f64, [1.0, np.inf, 0.0]), (qd.f32, [1.0, 3e30, 0.0])):
            assert not solved(solver, dense, b, dtype=dtype)[1]
        assert not solved(solver, dense, [1e-24, 0.0, 1e-24], tol=0.0, dtype=qd.f32)[1]
        assert not solved(solver, dense, [1.0, 2.0, 3.0], tol=1e-12, most=1)[1]
        assert not solved(solver, dense, [1.0, 2.0, 3.0], tol=float("nan"))[1]
        assert solved(solver, dense, [0.0, 0.0, 0.0], most=1)[1]


@qd.kernel
def scaled(v: qd.types.ndarray(), out: qd.types.ndarray()):
    for i in v:
        out[i] = (i + 2.0) * v[i]


@qd.kernel
def shifted(v: qd.types.ndarray(), out: qd.types.ndarray()):
    for i in v:
        out[i] = (i + 2.0) * v[i] + 1.0


def test_a_product_that_is_not_linear_and_a_trial_without_a_solution_have_not_converged():
    with qd.init(default_fp=qd.f64):
        b, x = array(2 * np.ones(5)), array(np.zeros(5))
        assert not qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(shifted), b, x, tol=1e-8)
    with qd.init(default_fp=qd.f64, batch=3) as program:
        b, x = qd.ndarray(qd.f64, 5), qd.ndarray(qd.f64, 5)
        for k, value in enumerate((1.0, np.nan, 2.0)):
            with program.trial(k):
                b.fill(value)
        assert list(qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(scaled), b, x, tol=1e-8)) == [True, False, True]


@qd.kernel
def squares(x: qd.types.ndarray(), loss: qd.types.ndarray()):
    for i in x:
        loss[0] += x[i] ** 2


@qd.kernel
def upwind(v: qd.types.ndarray(), out: qd.types.ndarray()):
    for i in v:
        out[i] = 4.0 * v[i] - v[(i + 7) % 8]


@qd.kernel
def downwind(v: qd.types.ndarray(), out: qd.types.ndarray()):
    for i in v:
        out[i] = 4.0 * v[i] - v[(i + 1) % 8]


def test_a_gradient_of_another_matrix_is_refused():
    rng = np.random.default_rng(8)
    given, dtype, tol = rng.normal(size=8), qd.f32, 1e-5
    with qd.init(default_fp=dtype):

        def gradient(solve: Any) -> Any:
            b, x = array(given, dtype, True), array(np.zeros(8), dtype, True)
            loss = qd.ndarray(dtype, 1, needs_grad=True)
            with qd.ad.Tape(loss=loss):
                squares(solve(b, x) or x, loss)
            return b.grad.to_numpy()

        def free(name: str, *kernels: Any) -> Any:
            def solve(b: Any, x: Any) -> None:
                assert getattr(qd.linalg, name)(qd.linalg.LinearOperator(*kernels), b, x, tol=tol)

            return solve

        def assembled(b: Any, _: Any) -> Any:
            matrix = sparse(dense, array(dense.ravel(), dtype))
            return qd.linalg.SparseCG(matrix, b, max_iter=200, atol=tol).solve()[0]

        dense = 4 * np.eye(8) - np.roll(np.eye(8), -1, 1)
        found = gradient(free("MatrixFreeBICGSTAB", upwind, downwind))
        np.testing.assert_allclose(found, np.linalg.solve(dense.T, 2 * np.linalg.solve(dense, given)), rtol=1e3 * tol, atol=tol)
        dense = np.diag([4.0, 5.0, 6.0, 5.0, 4.0, 6.0, 5.0, 4.0]) + np.triu(0.3 * rng.random((8, 8)))
        for solve in (free("MatrixFreeBICGSTAB", upwind, upwind), assembled):
            with pytest.raises(
                qd.QdrunRuntimeError, match=r"not that of a symmetric matrix, or transpose= is not.*u \. A v is "
            ):
                gradient(solve)


@pytest.mark.parametrize("other", [0.5, 0.25])
def test_components_of_unknowns_that_are_matrices_are_transposed_too(other):
    with qd.init(default_fp=qd.f64):
        b, x = (qd.Matrix.field(2, 2, qd.f64, 3, needs_grad=True) for _ in range(2))
        loss = qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def coupled(v: qd.template(), out: qd.template()):
            for i in v:
                out[i] = qd.Matrix([[3.0, 0.5], [other, 2.0]]) @ v[i]

        @qd.kernel
        def total():
            for i in x:
                loss[None] += x[i].norm_sqr()

        right = np.random.default_rng(1).normal(size=(3, 2, 2))
        b.from_numpy(right)

        def gradient() -> None:
            with qd.ad.Tape(loss=loss):
                qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(coupled), b, x, tol=1e-9)
                total()

        if other != 0.5:
            with pytest.raises(qd.QdrunRuntimeError, match="not that of a symmetric matrix"):
                gradient()
        else:
            gradient()
            once = np.linalg.inv([[3.0, 0.5], [0.5, 2.0]])
            np.testing.assert_allclose(b.grad.to_numpy(), 2 * once @ once @ right, atol=1e-8)


def test_a_gradient_that_is_no_number_is_an_error():
    with qd.init(default_fp=qd.f64):
        b, x = array(np.ones(4), needs_grad=True), array(np.zeros(4), needs_grad=True)
        loss = qd.ndarray(qd.f64, 1, needs_grad=True)

        @qd.kernel
        def reciprocals():
            for i in x:
                loss[0] += 1.0 / x[i]

        b.from_numpy(np.array([0.0, 1.0, 1.0, 1.0]))  # the gradient of 1 / 0 is infinite
        with pytest.raises(qd.QdrunRuntimeError, match="the adjoint solve of MatrixFreeCG did not converge"):
            with qd.ad.Tape(loss=loss):
                qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(scaled), b, x, tol=1e-9)
                reciprocals()


NEARLY = 1.0 - 1e-15


@pytest.mark.parametrize("rows", [[[1.0, 2.0], [2.0, 4.0]], [[1.0, NEARLY / 3, 0.5], [3.0, 1.0, 1.5], [1.0, 2.0, 0.1]]])
def test_python_refuses_a_matrix_that_is_singular_or_nearly_so(rows):
    rows = np.array(rows)
    with qd.init(default_fp=qd.f64):
        with pytest.raises(qd.QdrunRuntimeError, match=r"inverse\(\) of a matrix of . x . that is singular or nearly so"):
            qd.Matrix(rows, qd.f64).inverse()
        with pytest.raises(qd.QdrunRuntimeError, match=r"solve\(\) of a matrix of . x . that is singular or nearly so"):
            qd.solve(rows, np.arange(1.0, len(rows) + 1))
        with pytest.raises(ValueError, match="a square matrix"):
            qd.Matrix(rows[:, :1]).inverse()
        assert np.isnan(qd.solve(np.eye(2), np.array([np.nan, 1.0]))).any()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_with_debug_a_kernel_stops_where_a_solution_is_none(n):
    rng = np.random.default_rng(n)
    regular = rng.normal(size=(n, n)) + 3 * np.eye(n)
    singular = 0.1 * rng.integers(-9, 9, (n, n)) if n > 2 else np.ones((n, n))
    singular[-1] = singular[: n - 1].sum(0)  # up to rounding
    with qd.init(default_fp=qd.f64, debug=True):
        a, x, y = qd.Matrix.field(n, n, qd.f64, ()), qd.Matrix.field(n, n, qd.f64, ()), qd.Vector.field(n, qd.f64, ())

        @qd.kernel
        def invert():
            x[None] = a[None].inverse()

        @qd.kernel
        def solve(right: qd.f64):
            y[None] = qd.solve(a[None], qd.Vector([1.0 + right * i * i for i in qd.static(range(n))]))

        a.from_numpy(regular.reshape(a.to_numpy().shape))
        invert()
        solve(1.0)
        np.testing.assert_allclose(x.to_numpy().reshape(n, n) @ regular, np.eye(n), atol=1e-12)
        np.testing.assert_allclose(regular @ y.to_numpy(), 1.0 + np.arange(n) ** 2, atol=1e-12)
        solve(np.nan)  # is seen in the result
        a.from_numpy(singular.reshape(a.to_numpy().shape))
        for call, what in ((invert, "inverse"), (lambda: solve(1.0), "solve")):
            with pytest.raises(
                qd.QdrunAssertionError, match=rf"{what}\(\) of a singular matrix, or nearly so: the residual is "
            ):
                call()
