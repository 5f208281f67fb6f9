"""``qd.linalg``: sparse matrices, builders and direct solvers beside numpy."""

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64) as program:
        yield program


def sparse(rng, n, m, density=0.4):
    return rng.normal(size=(n, m)) * (rng.random((n, m)) < density)


def array(values, dtype=qd.f64, needs_grad=False):
    out = qd.ndarray(dtype, len(values), needs_grad=needs_grad)
    out.from_numpy(np.asarray(values, dtype.numpy))
    return out


def built(dense, dtype=qd.f64):
    """The matrix of what is not 0, from triplets in any order."""
    rows, columns = np.nonzero(dense)
    mixed = np.random.default_rng(1).permutation(len(rows))
    rows, columns = rows[mixed], columns[mixed]
    return qd.linalg.SparseMatrix.from_triplets(
        *dense.shape, array(rows, qd.i32), array(columns, qd.i32), array(dense[rows, columns], dtype)
    )


@qd.kernel
def fill(A: qd.types.sparse_matrix_builder(), dense: qd.types.ndarray(), factor: float):
    for i, j in dense:
        if dense[i, j] != 0:
            A[i, j] += factor * dense[i, j]
            A[i, j] -= (factor - 1) * dense[i, j]


def as_ndarray(dense):
    out = qd.ndarray(qd.f64, dense.shape)
    out.from_numpy(dense)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_a_builder_adds_up_triplets_and_is_empty_afterwards(seed):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(1, 20, 2)
    builder = qd.linalg.SparseMatrixBuilder(int(n), int(m), max_num_triplets=2 * int(n * m), dtype=qd.f64)
    for _ in range(2):
        dense = sparse(rng, n, m)
        fill(builder, as_ndarray(dense), 3.0)
        a = builder.build()
        np.testing.assert_allclose(a.to_numpy(), dense, atol=1e-14)
        assert a.shape == (n, m) and a.pattern.nnz == np.count_nonzero(dense)
        other = sparse(rng, n, m) * (dense != 0)
        a.fill(0.0)
        fill(a, as_ndarray(other), -2.0)
        np.testing.assert_allclose(a.to_numpy(), other, atol=1e-14)
    assert not builder.build().to_numpy().any()


@pytest.mark.parametrize("seed", range(4))
def test_the_arithmetic_is_that_of_dense_matrices(seed):
    rng = np.random.default_rng(seed)
    n, m, k = (int(s) for s in rng.integers(1, 15, 3))
    a, b, c = sparse(rng, n, m), sparse(rng, n, m), sparse(rng, m, k)
    A, B, C = built(a), built(b), built(c)
    for found, want in [
        (A + B, a + b),
        (A - B, a - b),
        (A + A, 2 * a),
        (2 * A, 2 * a),
        (A * 0.5, a / 2),
        (-A, -a),
        (A * B, a * b),
        (A.transpose(), a.T),
        (A @ C, a @ c),
    ]:
        np.testing.assert_allclose(found.to_numpy(), want, atol=1e-13)
    x = rng.normal(size=m)
    field = qd.field(qd.f64, m)
    field.from_numpy(x)
    for given in (x, field):
        found = A @ given
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, a @ x, atol=1e-13)
    np.testing.assert_allclose((A @ array(x)).to_numpy(), a @ x, atol=1e-13)


def test_entries_are_read_and_written_from_python(tmp_path, capsys):
    a = np.array([[0.0, 2.0], [3.0, 0.0]])
    A = built(a)
    assert A[0, 1] == 2.0 and A[0, 0] == 0.0 and str(A) == "[0, 2]\n[3, 0]"
    A[1, 0] = 4.0
    assert A[1, 0] == 4.0
    A.mmwrite(tmp_path / "a.mtx")
    lines = (tmp_path / "a.mtx").read_text().splitlines()
    assert lines == ["%%MatrixMarket matrix coordinate real general", "2 2 2", "1 2 2.0", "2 1 4.0"]
    builder = qd.linalg.SparseMatrixBuilder(2, 2, max_num_triplets=4, dtype=qd.f64)
    fill(builder, as_ndarray(np.array([[0.0, 2.0]])), 1.0)
    builder.print_triplets()
    assert capsys.readouterr().out == "n=2, m=2, num_triplets=2 (max=4)\n(0, 1) val=2.0\n(0, 1) val=0.0\n"
    for triplets in (qd.Vector.ndarray(3, qd.f64, 2), qd.ndarray(qd.f64, 6)):
        triplets.from_numpy(np.array([[0, 1, 5.0], [1, 1, 7.0]]).reshape(triplets.to_numpy().shape))
        B = qd.linalg.SparseMatrix(2, 2, dtype=qd.f64)
        B.build_from_ndarray(triplets)
        assert B.to_numpy().tolist() == [[0.0, 5.0], [0.0, 7.0]]


@pytest.mark.parametrize("seed", range(6))
def test_direct_solvers_are_those_of_numpy(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    general = sparse(rng, n, n, 0.2) + np.diag(rng.normal(size=n))
    general = general[rng.permutation(n)] + 1e-3 * np.eye(n)  # pivots are not on the diagonal
    positive = general @ general.T + np.eye(n)
    indefinite = np.diag(np.where(np.arange(n) % 2, -1.0, 1.0) * n) + (general + general.T) / 10
    b = rng.normal(size=n)
    for kind, dense in (("LLT", positive), ("LDLT", positive), ("LDLT", indefinite), ("LU", general), ("LU", positive)):
        solver = qd.linalg.SparseSolver(qd.f64, solver_type=kind, ordering="COLAMD")
        A = built(dense)
        solver.analyze_pattern(A)
        assert not solver.info()
        solver.factorize(A)
        assert solver.info()
        size = np.linalg.cond(dense)
        for given in (b, array(b)):
            x = solver.solve(given)
            found = x if isinstance(x, np.ndarray) else x.to_numpy()
            np.testing.assert_allclose(found, np.linalg.solve(dense, b), rtol=1e-13 * size, atol=1e-13 * size)


def test_a_matrix_without_factors_is_told():
    for kind, dense, said in (
        ("LLT", np.diag([1.0, -1.0]), "not positive definite"),
        ("LDLT", np.array([[1.0, 2.0], [2.0, 4.0]]), "singular"),
        ("LU", np.array([[1.0, 2.0], [2.0, 4.0]]), "singular"),
    ):
        solver = qd.linalg.SparseSolver(qd.f64, kind)
        solver.compute(built(dense))
        assert not solver.info()
        with pytest.raises(qd.QdrunRuntimeError, match=rf"SparseSolver\('{kind}'\).solve: the matrix is {said}"):
            solver.solve(np.zeros(2))
    with pytest.raises(qd.QdrunValueError, match="two values differ by 1\n  do: solver_type='LU'"):
        qd.linalg.SparseSolver(qd.f64, "LLT").compute(built(np.array([[4.0, 1.0], [2.0, 4.0]])))
    with pytest.raises(qd.QdrunValueError, match="the entries of the matrix are not symmetric"):
        qd.linalg.SparseSolver(qd.f64, "LLT").compute(built(np.array([[4.0, 1.0], [0.0, 4.0]])))


def test_single_precision_and_long_rows():
    rng = np.random.default_rng(3)
    n = 300
    dense = np.diag(4 + rng.random(n)) + np.diag(rng.random(n - 40), 40) + np.diag(rng.random(n - 40), -40)
    dense = (dense + dense.T) / 2
    A = built(dense, qd.f32)
    b = rng.normal(size=n).astype(np.float32)
    want = np.linalg.solve(dense, b)
    solver = qd.linalg.SparseSolver(qd.f32, "LLT")
    solver.compute(A)
    np.testing.assert_allclose(solver.solve(b), want, atol=1e-5)
    x, converged = qd.linalg.SparseCG(A, b, x0=np.ones(n, np.float32), max_iter=200, atol=1e-5).solve()
    assert converged and isinstance(x, np.ndarray)
    np.testing.assert_allclose(x, want, atol=1e-4)
    assert not qd.linalg.SparseCG(A, b, max_iter=1).solve()[1]


@qd.kernel
def times(A: qd.types.sparse_matrix_builder()):
    for i in range(2):
        A[i, i] *= 2.0


@qd.kernel
def one_index(A: qd.types.sparse_matrix_builder()):
    for i in range(2):
        A[i] += 2.0


@pytest.mark.parametrize("kind", ["field", "field with an offset", "ndarray"])
@pytest.mark.parametrize(
    ("of_matrix", "of_vector"), [(qd.f32, qd.f64), (qd.f64, qd.f32), (qd.f64, qd.i32), (qd.f32, qd.f16), (qd.f64, qd.f64)]
)
def test_vectors_of_another_type_are_converted(of_matrix, of_vector, kind):
    rng, n = np.random.default_rng(), 7
    dense = sparse(rng, n, n) + 3 * n * np.eye(n)
    dense = dense + dense.T
    A = built(dense, of_matrix)
    offset = -3 if kind == "field with an offset" else None
    x = qd.ndarray(of_vector, n) if kind == "ndarray" else qd.field(of_vector, shape=n, offset=offset)
    values = np.round(4 * rng.normal(size=n))
    x.from_numpy(values.astype(x.dtype.numpy))
    found = A @ x
    got = found.to_numpy() if kind == "ndarray" else found
    assert got.dtype == of_matrix.numpy and (kind != "ndarray" or found.dtype == of_matrix)
    np.testing.assert_allclose(got, dense @ values, rtol=1e-13, atol=1e-3 if of_matrix is qd.f32 else 1e-11)
    solver = qd.linalg.SparseSolver(of_matrix)
    solver.compute(A)
    for solution in (solver.solve(x), qd.linalg.SparseCG(A, x).solve()[0]):
        solution = solution.to_numpy() if kind == "ndarray" else solution
        np.testing.assert_allclose(dense @ solution, values, atol=1e-3)


def test_the_gradient_passes_a_conversion():
    rng, n = np.random.default_rng(), 5
    dense = sparse(rng, n, n) + n * np.eye(n)
    A, x, loss = built(dense), array(rng.normal(size=n), qd.f32, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    weights = array(rng.normal(size=n))

    @qd.kernel
    def weigh(y: qd.types.ndarray(), w: qd.types.ndarray()):
        for i in y:
            loss[None] += y[i] * w[i]

    with qd.ad.Tape(loss):
        weigh(A @ x, weights)
    assert x.grad.to_numpy().dtype == np.float32
    np.testing.assert_allclose(x.grad.to_numpy(), dense.T @ weights.to_numpy(), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_is_refused_by_name():
    builder = qd.linalg.SparseMatrixBuilder(2, 2, max_num_triplets=2, dtype=qd.f64)
    for kernel in (times, one_index):
        with pytest.raises(
            qd.QdrunTypeError, match=r"entries of a sparse matrix are added to in a kernel(.|\n)*A\[i, j\] \+= v"
        ):
            kernel(builder)
    fill(builder, as_ndarray(np.ones((1, 2))), 1.0)
    with pytest.raises(qd.QdrunRuntimeError, match="4 triplets were added, and 2 fit\n  do: max_num_triplets=4"):
        builder.build()
    fill(builder, as_ndarray(np.array([[0.0], [0.0], [1.0]])), 1.0)
    with pytest.raises(qd.QdrunValueError, match="2 of 2 triplets lie outside of the 2 x 2 matrix\n  do: rows 0 to 1"):
        builder.build()
    A = built(np.eye(2))
    fill(A, as_ndarray(np.array([[0.0, 1.0]])), 1.0)
    with pytest.raises(qd.QdrunRuntimeError, match="a kernel added 2 values to a 2 x 2 SparseMatrix where it has no entry"):
        A @ np.ones(2)
    A = built(np.eye(2))
    with pytest.raises(qd.QdrunValueError, match=r"SparseMatrix\[0, 1\] has no entry"):
        A[0, 1] = 1.0
    with pytest.raises(qd.QdrunValueError, match=r"2 x 2 @ 3 x 3: the shapes"):
        A @ built(np.eye(3))
    with pytest.raises(qd.QdrunTypeError, match=r"a SparseMatrix of f64 \+ one of f32"):
        A + built(np.eye(2), qd.f32)
    with pytest.raises(qd.QdrunValueError, match=r"SparseSolver: solver_type='QR' is not one of 'LLT', 'LDLT', 'LU'"):
        qd.linalg.SparseSolver(solver_type="QR")
    with pytest.raises(qd.QdrunTypeError, match="SparseSolver of f32 got a matrix of f64"):
        qd.linalg.SparseSolver().compute(A)
    with pytest.raises(qd.QdrunRuntimeError, match=r"SparseSolver\.solve before factorize"):
        qd.linalg.SparseSolver(qd.f64).solve(np.ones(2))
    solver = qd.linalg.SparseSolver(qd.f64)
    with pytest.raises(qd.QdrunRuntimeError, match=r"SparseSolver\.factorize before analyze_pattern"):
        solver.factorize(A)
    solver.analyze_pattern(A)
    with pytest.raises(qd.QdrunValueError, match="the matrix has other entries than the analysed one"):
        solver.factorize(built(np.array([[1.0, 1.0], [1.0, 3.0]])))


def test_a_batched_program_is_refused():
    with qd.init(batch=2), pytest.raises(qd.QdrunRuntimeError, match="SparseMatrixBuilder in a batched program"):
        qd.linalg.SparseMatrixBuilder(2, 2, max_num_triplets=4)


def test_a_matrix_whose_places_need_64_bits():
    n = 50_000
    builder = qd.linalg.SparseMatrixBuilder(n, n, max_num_triplets=3 * n, dtype=qd.f64)

    @qd.kernel
    def chain(A: qd.types.sparse_matrix_builder()):
        for i in range(n):
            A[i, i] += 3.0
            if i > 0:
                A[i, i - 1] -= 1.0
                A[i - 1, i] -= 1.0

    chain(builder)
    A = builder.build()
    assert A.pattern.nnz == 3 * n - 2 and A[n - 1, n - 2] == -1.0 and A[0, n - 1] == 0.0
    want = np.random.default_rng(0).normal(size=n)
    b = A @ want
    np.testing.assert_allclose(b[1:-1], 3 * want[1:-1] - want[:-2] - want[2:], atol=1e-12)
    solver = qd.linalg.SparseSolver(qd.f64, "LLT")
    solver.compute(A)
    np.testing.assert_allclose(solver.solve(b), want, atol=1e-12)
