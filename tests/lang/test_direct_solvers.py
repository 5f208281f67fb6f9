"""Factors of large and odd matrices: the order of the unknowns, fill, and the program that makes them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import qdrun as qd
from qdrun.library.linalg.ordering import nested_dissection


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


def grid(m: int, dims: int = 2) -> tuple[int, np.ndarray, np.ndarray]:
    """The neighbours of the cells of a grid, and each cell itself."""
    index = np.arange(m**dims).reshape((m,) * dims)
    rows, columns = [index.ravel()], [index.ravel()]
    for axis in range(dims):
        one, other = (np.moveaxis(index, axis, 0)[s].ravel() for s in (slice(1, None), slice(None, -1)))
        rows += [one, other]
        columns += [other, one]
    return m**dims, np.concatenate(rows), np.concatenate(columns)


def lines(n: int, *edges: tuple[Any, Any]) -> tuple[int, np.ndarray, np.ndarray]:
    own = np.arange(n)
    ends = [np.broadcast_arrays(np.asarray(a), np.asarray(b)) for a, b in edges]
    rows = np.concatenate([own, *(a.ravel() for a, _ in ends), *(b.ravel() for _, b in ends)])
    columns = np.concatenate([own, *(b.ravel() for _, b in ends), *(a.ravel() for a, _ in ends)])
    return n, rows, columns


def shapes() -> dict[str, tuple[int, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    return {
        "one": lines(1),
        "no edges": lines(7),
        "path": lines(400, (np.arange(399), np.arange(1, 400))),
        "ring": lines(300, (np.arange(300), (np.arange(300) + 1) % 300)),
        "star": lines(500, (0, np.arange(1, 500))),
        "dense": lines(30, (np.repeat(np.arange(30), 30), np.tile(np.arange(30), 30))),
        "two grids and an arrow": lines(
            530, (np.arange(255), np.arange(1, 256)), (np.arange(240), np.arange(16, 256)), (np.arange(300, 528), 529)
        ),
        "random": lines(200, (rng.integers(0, 200, 500), rng.integers(0, 200, 500))),
        "grid": grid(16),
        "cube": grid(7, 3),
    }


def built(n: int, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, dtype: Any = qd.f64) -> Any:
    arrays = []
    for numbers, kind in ((rows, qd.i32), (columns, qd.i32), (values, dtype)):
        arrays.append(qd.ndarray(kind, len(numbers)))
        arrays[-1].from_numpy(numbers.astype(kind.numpy))
    return qd.linalg.SparseMatrix.from_triplets(n, n, *arrays)


def weighted(n: int, rows: np.ndarray, columns: np.ndarray, rng: Any, sign: Any = 1.0) -> np.ndarray:
    """Values of a symmetric matrix whose diagonal is larger than the rest of its row; ``sign`` of the diagonal."""
    pairs = np.unique(np.minimum(rows, columns) * n + np.maximum(rows, columns), return_inverse=True)[1]
    values = rng.normal(size=pairs.max() + 1)[pairs]
    values[rows == columns] = 0.0
    total = np.zeros(n)
    np.add.at(total, rows, np.abs(values))
    own = np.flatnonzero(rows == columns)
    own = own[np.unique(rows[own], return_index=True)[1]]
    values[own] = (total + 1) * sign
    return values


@pytest.mark.parametrize("name", shapes())
@pytest.mark.parametrize("kind", ["LLT", "LDLT"])
def test_factors_in_the_order_of_nested_dissection_solve(name, kind):
    n, rows, columns = shapes()[name]
    rng = np.random.default_rng(len(name))
    qd.init(default_fp=qd.f64)
    old = nested_dissection(n, rows, columns)
    assert sorted(old.tolist()) == list(range(n))
    values = weighted(n, rows, columns, rng, np.where(np.arange(n) % 3, 1.0, -1.0) if kind == "LDLT" else 1.0)
    b, product = rng.normal(size=n), np.zeros(n)
    solver = qd.linalg.SparseSolver(qd.f64, kind)
    solver.compute(built(n, rows, columns, values))
    x = solver.solve(b)
    np.add.at(product, rows, values * x[columns])
    np.testing.assert_allclose(product, b, atol=1e-11 * (1 + np.abs(values).max()))


def test_nested_dissection_keeps_the_factors_of_grids_paths_and_stars_sparse():
    qd.init(default_fp=qd.f64)
    for n, rows, columns, most in ((*grid(64), 75_000), (*grid(128), 350_000), (*grid(14, 3), 150_000)):
        solver = qd.linalg.SparseSolver(qd.f64)
        solver.analyze_pattern(built(n, rows, columns, np.ones(len(rows))))
        assert solver._analysis is not None and solver._analysis.size < most  # a band has n sqrt(n), and n^(5/3) in 3-D
    for name, most in (("path", 1200), ("star", 499), ("no edges", 0)):
        n, rows, columns = shapes()[name]
        solver.analyze_pattern(built(n, rows, columns, np.ones(len(rows))))
        assert solver._analysis.size <= most


@pytest.mark.parametrize("kind", ["LLT", "LU"])
def test_other_values_of_a_pattern_need_no_other_analysis(kind):
    qd.init(default_fp=qd.f64)
    n, rows, columns = grid(12)
    rng = np.random.default_rng(2)
    solver = qd.linalg.SparseSolver(qd.f64, kind)
    b = rng.normal(size=n)
    for _ in range(3):
        values = weighted(n, rows, columns, rng)
        A = built(n, rows, columns, values)
        before = solver._analysis
        solver.compute(A)
        assert before in (None, solver._analysis)
        np.testing.assert_allclose(A.to_numpy() @ solver.solve(b), b, atol=1e-11)


def test_scipy_agrees_with_single_and_double_precision():
    scipy = pytest.importorskip("scipy.sparse.linalg")
    sparse = pytest.importorskip("scipy.sparse")
    qd.init(default_fp=qd.f64)
    n, rows, columns = grid(40)
    rng = np.random.default_rng(4)
    values, b = weighted(n, rows, columns, rng), rng.normal(size=n)
    expected = scipy.spsolve(sparse.csc_matrix((values, (rows, columns)), shape=(n, n)), b)
    for dtype, tolerance in ((qd.f64, 1e-13), (qd.f32, 1e-5)):
        for kind in ("LLT", "LDLT", "LU"):
            solver = qd.linalg.SparseSolver(dtype, kind)
            solver.compute(built(n, rows, columns, values, dtype))
            found = solver.solve(b.astype(dtype.numpy))
            np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max() * 10)


def test_on_a_gpu_a_program_of_the_cpu_has_the_factors():
    program = qd.init(default_fp=qd.f64)
    n, rows, columns = grid(6)
    solver = qd.linalg.SparseSolver(qd.f64)
    solver.compute(built(n, rows, columns, weighted(n, rows, columns, np.random.default_rng(0))))
    solver.solve(np.ones(n))
    host = program.on_host
    assert (host is program) == program.device.on_host and qd.current_program() is program
    if host is not program:
        assert host.device.on_host and host.usage()["ndarrays"] > 8 * solver._analysis.size
    program.close()
    assert host.closed


def saddle_point(rng: Any) -> np.ndarray:
    """A random symmetric indefinite matrix: a stiffness that may be singular, multipliers with a small regularisation or none, and
    unknowns of very different sizes.
    """
    n, m = int(rng.integers(2, 20)), int(rng.integers(1, 6))
    B = np.where(rng.random((n, n)) < 0.4, rng.normal(size=(n, n)), 0.0)
    K = B @ B.T * rng.choice([1e-3, 1.0, 1e4]) if rng.random() < 0.7 else B + B.T
    C = np.where(rng.random((m, n)) < 0.5, rng.normal(size=(m, n)), 0.0)
    A = np.block([[K, C.T], [C, np.diag(rng.normal(size=m) * rng.choice([0.0, 1e-12, 1e-8]))]])
    order = rng.permutation(n + m)
    return A[np.ix_(order, order)]


def test_indefinite_systems_are_solved_as_lapack_solves_them_or_refused_with_the_residual():
    rng, solved = np.random.default_rng(), 0
    qd.init(arch=qd.cpu, default_fp=qd.f64)
    while solved < 60:
        A = saddle_point(rng)
        condition = np.linalg.cond(A)
        if 1e5 < condition < 1e18:
            continue
        rows, columns = np.nonzero(A)
        solver = qd.linalg.SparseSolver(qd.f64, solver_type="LDLT")
        solver.compute(built(len(A), rows, columns, A[rows, columns]))
        b = rng.normal(size=len(A))
        if condition < 1e5:
            assert solver.info()
            want = np.linalg.solve(A, b)
            assert np.abs(solver.solve(b) - want).max() <= 1e-10 * np.abs(want).max()
            solved += 1
        else:
            assert not solver.info()
            with pytest.raises(qd.QdrunRuntimeError, match="singular"):
                solver.solve(b)


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64], ids=str)
def test_a_small_number_on_the_diagonal_that_comes_first_is_no_pivot(dtype):
    """Of a regularised multiplier: its row has a large number, in a column that is eliminated later."""
    qd.init(arch=qd.cpu, default_fp=dtype)
    A = np.array([[1e-18, 1.0, 2.0], [1.0, 3.0, 0.5], [2.0, 0.5, -1.0]])
    for order in itertools.permutations(range(3)):
        B = A[np.ix_(order, order)].astype(dtype.numpy)
        rows, columns = np.nonzero(B)
        solver = qd.linalg.SparseSolver(dtype, solver_type="LDLT")
        solver.compute(built(3, rows, columns, B[rows, columns], dtype))
        b = np.array([1.0, -2.0, 0.5], dtype.numpy)
        np.testing.assert_allclose(solver.solve(b), np.linalg.solve(B, b), rtol=1e-5 if dtype is qd.f32 else 1e-13)


@pytest.mark.parametrize("kind", ["LLT", "LDLT", "LU"])
def test_a_matrix_that_is_singular_up_to_rounding_is_refused(kind):
    qd.init(arch=qd.cpu, default_fp=qd.f64)
    n, rows, columns = lines(30, (np.arange(29), np.arange(1, 30)))
    values = np.where(rows == columns, 2.0, -1.0) * 0.1
    values[rows == columns] -= np.where(np.isin(np.arange(n), (0, n - 1)), 0.1, 0.0)  # free springs: nothing holds them
    solver = qd.linalg.SparseSolver(qd.f64, solver_type=kind)
    solver.compute(built(n, rows, columns, values))
    assert not solver.info()
    with pytest.raises(qd.QdrunRuntimeError, match=r"singular|positive definite|residual"):
        solver.solve(np.random.default_rng(1).normal(size=n))


def test_the_gradient_of_an_indefinite_solve_is_that_of_the_dense_one():
    qd.init(arch=qd.cpu, default_fp=qd.f64)
    rng = np.random.default_rng()
    A = np.array([[0.0, 1.0, 0.0], [1.0, 1e-14, 2.0], [0.0, 2.0, 3.0]])
    rows, columns = np.nonzero(A)
    solver = qd.linalg.SparseSolver(qd.f64, solver_type="LDLT")
    solver.compute(built(3, rows, columns, A[rows, columns]))
    b, loss = qd.ndarray(qd.f64, 3, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    b.from_numpy(rng.normal(size=3))

    @qd.kernel
    def total(x: qd.types.ndarray()):
        for i in x:
            loss[None] += (i + 1.0) * x[i]

    with qd.ad.Tape(loss=loss):
        total(solver.solve(b))
    assert np.allclose(b.grad.to_numpy(), np.linalg.solve(A, [1.0, 2.0, 3.0]), rtol=1e-12)
