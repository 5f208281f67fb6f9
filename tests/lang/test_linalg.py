"""Linear algebra in kernels: the numbers, for f32 and f64, at usual and at degenerate matrices; and what is refused."""

import numpy as np
import pytest

import qdrun as qd

rng = np.random.default_rng(11)
T = lambda x: np.swapaxes(x, -1, -2)
PRECISIONS = [pytest.param(qd.f32, np.float32, id="f32"), pytest.param(qd.f64, np.float64, id="f64")]


def run(function, arguments, shapes, dtype=qd.f64):
    """The results of ``function`` of each matrix (and vector), as f64 arrays."""
    count = len(arguments[0])
    with qd.init(default_fp=dtype, offline_cache=False):
        make = lambda s: qd.Matrix.field(*s, dtype, shape=count) if len(s) == 2 else qd.Vector.field(*s, dtype, shape=count)
        ins = [make(a.shape[1:]) for a in arguments]
        outs = [make(s) for s in shapes]

        @qd.func
        def call(i):
            return function(ins[0][i]) if qd.static(len(ins) == 1) else function(ins[0][i], ins[1][i])

        @qd.kernel
        def k():
            for i in range(count):
                found = call(i)
                for n in qd.static(range(len(outs))):
                    outs[n][i] = found[n] if qd.static(len(outs) > 1) else found

        for field, a in zip(ins, arguments):
            field.from_numpy(a.astype(dtype.numpy))
        k()
        return [o.to_numpy().reshape(count, *s).astype(np.float64) for o, s in zip(outs, shapes)]


def matrices(n, npf, count=300):
    """Random, ill-conditioned, near the identity, with ties, of lower rank, reflected."""
    eps = np.finfo(npf).eps
    values = [
        rng.normal(size=(count, n)),
        np.exp(rng.uniform(np.log(eps), 0, (count, n))),
        1 + 1e-4 * rng.normal(size=(count, n)),
        np.ones((count, n)),
        np.repeat([[1.0, 0.5, 0.0][-n:]], count, 0),
        np.repeat([[1.0, 0.0, 0.0][:n]], count, 0),
        np.zeros((count, n)),
    ]
    s = np.concatenate(values)
    u, v = (np.linalg.qr(rng.normal(size=(len(s), n, n)))[0] for _ in range(2))
    a = (u * s[:, None, :]) @ T(v)
    special = np.stack([np.eye(n), -np.eye(n), np.eye(n)[::-1], np.diag([1.0, -1.0, 2.0][:n]), np.ones((n, n))])
    return np.concatenate([a, special]).astype(npf).astype(np.float64)


@pytest.mark.parametrize(("dtype", "npf"), PRECISIONS)
@pytest.mark.parametrize("n", [2, 3])
def test_svd_reproduces_the_matrix_with_sorted_values_and_orthogonal_factors(n, dtype, npf):
    a = matrices(n, npf)
    u, s, v = run(qd.svd, [a], [(n, n)] * 3, dtype)
    near = 60 * np.finfo(npf).eps
    size = np.maximum(np.abs(a).max((1, 2)), 1e-30)[:, None, None]
    assert (np.abs(u @ s @ T(v) - a) / size).max() < near
    for q in (u, v):
        assert np.abs(q @ T(q) - np.eye(n)).max() < near
    assert (np.linalg.det(v) > 0).all()
    values = np.diagonal(s, axis1=1, axis2=2)
    assert np.abs(s - values[:, :, None] * np.eye(n)).max() == 0
    want = np.linalg.svd(a)[1]
    assert (np.abs(np.abs(values) - want) / np.maximum(want[:, :1], 1e-30)).max() < near
    if n == 2:
        assert (values >= 0).all()
    else:
        assert (np.linalg.det(u) > 0).all() and (values[:, :2] >= 0).all()
        sure = np.abs(np.linalg.det(a)) > 1e-3
        assert (np.sign(values[sure, 2]) == np.sign(np.linalg.det(a[sure]))).all()


@pytest.mark.parametrize(("dtype", "npf"), PRECISIONS)
@pytest.mark.parametrize("n", [2, 3])
def test_the_polar_decomposition_is_orthogonal_times_symmetric(n, dtype, npf):
    a = matrices(n, npf)
    r, s = run(qd.polar_decompose, [a], [(n, n)] * 2, dtype)
    near = 80 * np.finfo(npf).eps
    size = np.maximum(np.abs(a).max((1, 2)), 1e-30)[:, None, None]
    assert (np.abs(r @ s - a) / size).max() < near
    assert np.abs(r @ T(r) - np.eye(n)).max() < near
    assert np.array_equal(s, T(s))
    det = np.linalg.det(a)
    if n == 3:
        assert (np.linalg.det(r) > 0).all()
    else:
        sure = np.abs(det) > 1e-3
        assert (np.sign(np.linalg.det(r[sure])) == np.sign(det[sure])).all()
        assert (np.linalg.eigvalsh(s) >= -near * size[:, :, 0]).all()


def test_the_polar_decomposition_of_the_identity_and_of_zero_has_the_rotation_identity():
    for n in (2, 3):
        r, s = run(qd.polar_decompose, [np.stack([np.eye(n), np.zeros((n, n)), 3 * np.eye(n)])], [(n, n)] * 2)
        assert np.array_equal(r, np.stack([np.eye(n)] * 3))
        assert np.allclose(s, np.stack([np.eye(n), np.zeros((n, n)), 3 * np.eye(n)]), atol=1e-15)


def test_svd_of_3_x_3_matrices_whose_squares_overflow():
    a = rng.normal(size=(20, 3, 3))
    for scale in (1e25, 1e-25):
        u, s, v = run(qd.svd, [a * scale], [(3, 3)] * 3, qd.f32)
        assert np.abs(u @ s @ T(v) / scale - a).max() < 1e-5


@pytest.mark.parametrize(("dtype", "npf"), PRECISIONS)
@pytest.mark.parametrize("n", [2, 3, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_sym_eig_gives_ascending_eigenvalues_and_orthonormal_columns(n, dtype, npf):
    a = rng.normal(size=(100, n, n))
    a = (a + T(a)) / 2
    a[0], a[1], a[2], a[3] = 0, np.eye(n), np.diag(np.arange(n)), np.ones((n, n))
    a[4] *= 1e20
    a = a.astype(npf).astype(np.float64)
    w, q = run(qd.sym_eig, [a], [(n,), (n, n)], dtype)
    size = np.maximum(np.abs(a).max((1, 2)), 1e-30)
    near = 60 * np.finfo(npf).eps
    assert (np.abs(w - np.linalg.eigvalsh(a)).max(1) / size).max() < near
    assert (np.diff(w, axis=1) >= 0).all()
    assert (np.abs(q @ (w[:, :, None] * T(q)) - a).max((1, 2)) / size).max() < near
    assert np.abs(q @ T(q) - np.eye(n)).max() < near


@pytest.mark.parametrize("n", [2, 3, 5])
def test_make_spd_cuts_negative_eigenvalues(n):
    a = rng.normal(size=(50, n, n))
    a = (a + T(a)) / 2
    w, q = np.linalg.eigh(a)
    (out,) = run(qd.make_spd, [a], [(n, n)])
    assert np.abs(out - q @ (np.maximum(w, 0)[:, :, None] * T(q))).max() < 1e-13
    assert np.array_equal(out, T(out))


def test_eig_solves_the_eigenvalue_problem_in_complex_numbers():
    a = rng.normal(size=(200, 2, 2))
    a[:6] = [[[1, 1], [0, 2]], [[2, 1], [0, 1]], [[1, 0], [0, 2]], [[3, 0], [0, 3]], [[0, 1], [-1, 0]], [[2, 0], [5, 1]]]
    values, vectors = run(qd.eig, [a], [(2, 2), (4, 2)])
    w, v = values[:, :, 0] + 1j * values[:, :, 1], vectors[:, ::2] + 1j * vectors[:, 1::2]
    assert np.abs(a @ v - v * w[:, None, :]).max() < 1e-12
    assert np.abs((np.abs(v) ** 2).sum(1) - 1).max() < 1e-14
    assert ((w[:, 0].real > w[:, 1].real) | (w[:, 0].imag >= w[:, 1].imag)).all()
    assert np.abs(np.linalg.det(v[3])) > 0.5  # a multiple of the identity has two independent eigenvectors, too


@pytest.mark.parametrize("n", [2, 3, 5, pytest.param(12, marks=pytest.mark.slow)])
def test_solve_pivots(n):
    a, b = rng.normal(size=(20, n, n)), rng.normal(size=(20, n))
    a[0], a[1] = np.eye(n)[::-1], np.roll(np.eye(n), 1, 0)
    a[2, 0, 0] = 1e-30
    (x,) = run(qd.solve, [a, b], [(n,)])
    assert np.allclose(x, np.linalg.solve(a, b[:, :, None])[:, :, 0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, pytest.param(9, marks=pytest.mark.slow)])
def test_the_inverse_of_any_small_size(n):
    a = rng.normal(size=(20, n, n))
    if n > 4:
        a[0] = np.roll(np.eye(n), 1, 0)

    @qd.func
    def f(x):
        return x.inverse()

    (x,) = run(f, [a], [(n, n)])
    assert np.allclose(x @ a, np.eye(n), atol=1e-8)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_the_determinant_of_any_small_size(n):
    a = rng.normal(size=(20, n, n))
    a[0] = 1.0

    @qd.func
    def f(x):
        return qd.Vector([x.determinant()])

    (x,) = run(f, [a], [(1,)])
    assert np.allclose(x[:, 0], np.linalg.det(a), rtol=1e-10, atol=1e-12)


def test_f64_matrices_are_computed_in_f64_and_dt_casts():
    with qd.init(default_fp=qd.f32, offline_cache=False):
        a = qd.Matrix.field(2, 2, qd.f64, shape=())
        out = qd.field(qd.f64, shape=3)
        a[None] = [[1.0, 1e-12], [0.0, 1.0]]

        @qd.kernel
        def k():
            own, _s = qd.polar_decompose(a[None])
            short, _t = qd.polar_decompose(a[None], qd.f32)
            out[0], out[1] = own[0, 1], short[0, 1]
            out[2] = qd.static(own.dtype == qd.f64 and short.dtype == qd.f32)

        k()
        assert out[0] == 5e-13 and out[1] == np.float32(5e-13) and out[2] == 1


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("qd.svd(m4)", "svd takes a square matrix of 2 x 2 to 3 x 3, not a matrix of shape (4, 4)"),
        ("qd.polar_decompose(v)", "polar_decompose takes a square matrix of 2 x 2 to 3 x 3, not a vector of 2"),
        ("qd.eig(m3)", "eig takes a square matrix of 2 x 2, not a matrix of shape (3, 3)"),
        ("qd.sym_eig(m7)", "sym_eig takes a square matrix of 2 x 2 to 6 x 6, not a matrix of shape (7, 7)"),
        ("qd.make_spd(m3, qd.i32)", "make_spd computes with reals, not i32"),
        ("qd.solve(m3, v)", "solve needs a vector of 3 at the right side, not a vector of 2"),
        ("m13.inverse()", "inverse takes a square matrix of at most 12 x 12, not a matrix of shape (13, 13)"),
        ("m7.determinant()", "determinant is written out for matrices up to 6 x 6, not 7 x 7"),
        ("m23.inverse()", "inverse takes a square matrix of at most 12 x 12, not a matrix of shape (2, 3)"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_shape(what, message, tmp_path):
    source = tmp_path / "refused_kernel.py"
    source.write_text(
        "import qdrun as qd\n\n@qd.kernel\ndef k():\n    v = qd.Vector([1.0, 2.0])\n"
        + "".join(f"    m{n} = qd.Matrix.identity(qd.f32, {n})\n" for n in (3, 4, 7, 13))
        + f"    m23 = qd.Matrix.zero(qd.f32, 2, 3)\n    x = {what}\n"
    )
    space: dict = {}
    exec(compile(source.read_text(), str(source), "exec"), space)
    with qd.init(offline_cache=False), pytest.raises(qd.QdrunTypeError) as e:
        space["k"]()
    assert e.value.what == message
    assert what in str(e.value)


def test_solving_a_singular_system_stops_with_debug():
    with qd.init(offline_cache=False, debug=True):

        @qd.kernel
        def k() -> qd.f32:
            x = qd.solve(qd.Matrix([[1.0, 2.0], [2.0, 4.0]]), qd.Vector([1.0, 1.0]))
            return x[0]

        with pytest.raises(qd.QdrunAssertionError, match="solve\\(\\) of a singular matrix"):
            k()


def test_python_computes_under_the_same_conventions():
    a = qd.Matrix([[1.0, 2.0, 0.5], [3.0, -4.0, 1.0], [0.0, 1.0, 2.0]], qd.f64)
    u, s, v = qd.svd(a)
    assert type(u) is qd.Matrix and np.allclose((u @ s @ v.transpose()).to_numpy(), a.to_numpy())
    assert np.linalg.det(u.to_numpy()) > 0 and np.linalg.det(v.to_numpy()) > 0 and s[2, 2] < 0
    r, p = qd.polar_decompose(a)
    assert np.allclose((r @ p).to_numpy(), a.to_numpy()) and np.linalg.det(r.to_numpy()) > 0
    assert np.allclose((a @ qd.solve(a, qd.Vector([1.0, 2.0, 3.0]))).to_numpy(), [1, 2, 3])
    w, _ = qd.sym_eig(a @ a.transpose())
    assert type(w) is qd.Vector and list(w) == sorted(w)
    with qd.init(default_fp=qd.f64, offline_cache=False):
        m = np.array([[[1.0, 2.0], [-3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]])
        inside = run(qd.eig, [m], [(2, 2), (4, 2)])
    for k in range(2):
        values, vectors = qd.eig(m[k])
        assert np.allclose(values, inside[0][k]) and np.shape(vectors) == (4, 2)
    assert np.allclose(qd.make_spd(np.diag([1.0, -2.0])), np.diag([1.0, 0.0]))
    assert a.frobenius_inner(a) == a.norm_sqr()


def test_complex_numbers_in_kernels_and_in_python():
    z = rng.normal(size=(40, 2))
    z[0], z[1] = [-1, 0], [0, 0]
    y = rng.normal(size=(40, 2))
    c, d = z[:, 0] + 1j * z[:, 1], y[:, 0] + 1j * y[:, 1]
    m = qd.math
    with np.errstate(all="ignore"):
        one = {m.cconj: c.conj(), m.csqrt: np.sqrt(c), m.cinv: 1 / c, m.cexp: np.exp(c), m.clog: np.log(c)}
        two = {m.cmul: c * d, m.cdiv: c / d}
    for f, want in {**one, **two}.items():
        args = [z] if f in one else [z, y]
        (out,) = run(f, args, [(2,)])
        fine = np.isfinite(want)
        assert np.allclose((out[:, 0] + 1j * out[:, 1])[fine], want[fine], atol=1e-14), f
        with qd.init(default_fp=qd.f64, offline_cache=False):
            assert np.allclose(np.array(f(*(qd.Vector(x[5]) for x in args))), out[5], atol=1e-14)

    @qd.func
    def cube(x):
        return m.cpow(x, 3.0)

    (out,) = run(cube, [z], [(2,)])
    assert np.allclose(out[:, 0] + 1j * out[:, 1], c**3, atol=1e-13)
