"""Gradients of the linear algebra against central differences in f64, at usual matrices and where eigenvalues meet or vanish."""

import numpy as np
import pytest

import qdrun as qd

rng = np.random.default_rng(5)
T = lambda x: np.swapaxes(x, -1, -2)


class Case:
    """A kernel that computes ``function`` of each matrix, and the loss ``sum(weights * results)`` of each."""

    def __init__(self, function, n, shapes, a, **options):
        self.a, self.n = a, n
        self.program = qd.init(default_fp=qd.f64, offline_cache=False, **options)
        make = lambda s: (qd.Matrix if len(s) == 2 else qd.Vector).field(*s, qd.f64, shape=len(a), needs_grad=True)
        self.x, self.outs = make((n, n)), [make(s) for s in shapes]
        x, outs = self.x, self.outs

        @qd.kernel
        def k():
            for i in x:
                found = function(x[i])
                for m in qd.static(range(len(outs))):
                    outs[m][i] = found[m] if qd.static(len(outs) > 1) else found

        self.k = k
        self.weights = [rng.normal(size=(len(a), *s)) for s in shapes]

    def loss(self, a):
        self.x.from_numpy(a)
        self.k()
        parts = [(o.to_numpy().reshape(w.shape) * w).reshape(len(a), -1).sum(1) for o, w in zip(self.outs, self.weights)]
        return sum(parts)

    def gradient(self):
        self.loss(self.a)
        for o, w in zip(self.outs, self.weights):
            o.grad.from_numpy(w.reshape(o.grad.to_numpy().shape))
        self.x.grad.fill(0)
        self.k.grad()
        return self.x.grad.to_numpy().reshape(self.a.shape)

    def differences(self, h=1e-5):
        out = np.zeros_like(self.a)
        for i, j in np.ndindex(self.n, self.n):
            e = np.zeros((self.n, self.n))
            e[i, j] = h
            near = self.loss(self.a + e) - self.loss(self.a - e)
            out[:, i, j] = (8 * near - (self.loss(self.a + 2 * e) - self.loss(self.a - 2 * e))) / (12 * h)
        return out

    def check(self, tolerance=2e-7, where=slice(None)):
        g, d = self.gradient(), self.differences()
        size = np.maximum(1, np.abs(d).max((1, 2)))[:, None, None]
        assert np.isfinite(g).all()
        assert (np.abs(g - d) / size)[where].max() < tolerance
        self.program.close()


def rotation(n):
    q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    q[:, 0] *= np.sign(np.linalg.det(q))
    return q


def regular(n, count=20):
    """Matrices at which the polar decomposition has a derivative, the hard ones first."""
    r = rotation(n)
    hard = [np.eye(n), 2 * np.eye(n), r, 3 * r, np.eye(n) + 1e-9 * rng.normal(size=(n, n))]
    if n == 2:
        hard += [np.diag([1.0, -2.0]), np.array([[1.0, 2.0], [2.0, 1.0]]), r @ np.diag([1.0, -0.5])]
    else:
        hard += [np.diag([1.0, 1.0, 0.0]), r @ np.diag([2.0, 1.0, 0.0]) @ rotation(3), np.diag([1.0, 2.0, -0.5])]
        hard += [r @ np.diag([3.0, 3.0, 1e-6]), r @ np.diag([1.0, 1.0, -0.3])]
    return np.stack([*hard, *rng.normal(size=(count, n, n))])


@pytest.mark.parametrize("n", [2, 3])
def test_polar_decompose_at_the_identity_at_rotations_at_reflections_and_at_rank_two(n):
    Case(qd.polar_decompose, n, [(n, n)] * 2, regular(n)).check()


@pytest.mark.parametrize("n", [2, 3])
def test_polar_decompose_is_finite_where_no_derivative_exists(n):
    a = np.stack([np.zeros((n, n)), np.diag([1.0, 0.0, 0.0][:n]), np.diag([1.0, -1.0, 1.0][:n]), np.ones((n, n))])
    case = Case(qd.polar_decompose, n, [(n, n)] * 2, a)
    assert np.isfinite(case.gradient()).all()
    case.program.close()


@pytest.mark.parametrize("n", [2, 3])
def test_svd_where_the_singular_values_differ(n):
    Case(qd.svd, n, [(n, n)] * 3, rng.normal(size=(30, n, n))).check(2e-6)


@pytest.mark.parametrize("n", [2, 3])
def test_the_rotation_and_the_matrix_from_svd_are_right_at_equal_singular_values(n):
    @qd.func
    def f(x):
        u, s, v = qd.svd(x)
        return u @ v.transpose(), u @ s @ v.transpose()

    a = regular(n)
    if n == 3:
        a = np.concatenate([a, [r @ np.diag([1.0, 1.0, 1.0]) @ rotation(3) for r in (rotation(3), np.eye(3))]])
    Case(f, n, [(n, n)] * 2, a).check()


@pytest.mark.parametrize("n", [2, 3])
def test_sums_over_singular_values_are_right_when_they_are_equal(n):
    @qd.func
    def f(x):
        _u, s, _v = qd.svd(x)
        logs, squares = 0.0, 0.0
        for d in qd.static(range(n)):
            logs += qd.log(s[d, d] * s[d, d])
            squares += s[d, d] ** 2
        return qd.Vector([logs, squares])

    Case(f, n, [(2,)], np.stack([np.eye(n), rotation(n), 2 * rotation(n), *rng.normal(size=(9, n, n))])).check()


@pytest.mark.parametrize("n", [2, 3, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_sym_eig_of_matrices_that_need_not_be_symmetric(n):
    a = rng.normal(size=(12, n, n))
    a[0] = np.diag(np.arange(n))
    Case(qd.sym_eig, n, [(n,), (n, n)], a).check(2e-6)


def test_eigenvalues_alone_have_a_gradient_when_they_are_equal():
    @qd.func
    def f(x):
        w, _q = qd.sym_eig(x)
        return qd.Vector([w.sum(), w[0] * w[1] * w[2]])

    Case(f, 3, [(2,)], np.stack([np.eye(3), np.zeros((3, 3)), np.diag([1.0, 2.0, 2.0]), *rng.normal(size=(5, 3, 3))])).check()


def test_eigenvectors_of_equal_eigenvalues_give_nan_not_a_wrong_number():
    case = Case(qd.sym_eig, 3, [(3,), (3, 3)], np.eye(3)[None])
    assert not np.isfinite(case.gradient()).all()
    case.program.close()


@pytest.mark.parametrize("n", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_make_spd_also_at_equal_eigenvalues(n):
    q = rotation(n)
    hard = [np.eye(n), -np.eye(n), q @ np.diag([1.0, 1.0, *[-1.0] * (n - 2)]) @ q.T, np.diag([2.0, -1.0, *[-1.0] * (n - 2)])]
    Case(qd.make_spd, n, [(n, n)], np.stack([*hard, *rng.normal(size=(8, n, n))])).check()


def test_eig_of_real_and_of_complex_eigenvalues():
    a = rng.normal(size=(40, 2, 2))
    a[0], a[1] = [[2, 1], [1e-3, 1]], [[0, 1], [-1, 0]]
    Case(qd.eig, 2, [(2, 2), (4, 2)], a).check(1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_inverse(n):
    @qd.func
    def f(x):
        return x.inverse()

    a = rng.normal(size=(8, n, n)) + 2 * np.eye(n)
    a[0] = np.roll(np.eye(n), 1, 0)
    Case(f, n, [(n, n)], a).check()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_determinant_at_singular_matrices(n):
    @qd.func
    def f(x):
        return qd.Vector([x.determinant()])

    a = rng.normal(size=(9, n, n))
    a[0], a[1], a[2] = 0, 1, np.eye(n)
    a[3, :, 0] = 0
    a[4, -1] = a[4, 0]
    a[5] = np.diag([0.0, *[1.0] * (n - 1)])
    Case(f, n, [(1,)], a).check()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_solve_through_matrix_and_right_side(n):
    @qd.func
    def f(x):
        return qd.solve(x, x[:, 0] * x[0, :] + 1.0)

    a = rng.normal(size=(8, n, n)) + 2 * np.eye(n)
    a[0] = np.roll(np.eye(n), 1, 0)
    Case(f, n, [(n,)], a).check()


def test_frexp_scales_its_gradient():
    @qd.func
    def f(x):
        m, _e = qd.frexp(x)
        return m * m

    Case(f, 2, [(2, 2)], rng.normal(size=(9, 2, 2)) * np.exp(rng.normal(size=(9, 1, 1)))).check()


@pytest.mark.parametrize("name", ["cmul", "cdiv", "csqrt", "cpow", "cexp", "clog", "cinv", "cconj"])
def test_complex_functions(name):
    function = getattr(qd.math, name)

    @qd.func
    def f(x):
        return function(x[0, :], x[1, :]) if qd.static(name in ("cmul", "cdiv")) else function(x[0, :])

    @qd.func
    def power(x):
        return function(x[0, :], x[1, 0])

    Case(power if name == "cpow" else f, 2, [(2,)], rng.normal(size=(20, 2, 2))).check()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ad_checkpoint_levels": 2},
        *(pytest.param(o, marks=pytest.mark.slow) for o in ({"cpu_lanes": 8}, {"arch": qd.python})),
    ],
    ids=str,
)
def test_polar_decompose_in_a_loop_over_time(options):
    """The matrix is carried from step to step, as the deformation gradient of a particle is."""

    @qd.func
    def f(x):
        state = x
        for _step in range(3):
            r, s = qd.polar_decompose(state)
            u, _d, v = qd.svd(state + 0.1 * s)
            state = 0.7 * state + 0.2 * r @ s.transpose() + 0.1 * u @ v.transpose()
        return state

    few = regular(3)[:6] if options.get("arch") is qd.python else regular(3)
    Case(f, 3, [(3, 3)], few[:2] if options.get("arch") is qd.python else few, **options).check()


def test_forward_mode_and_reverse_mode_agree():
    """``u . (J v) == (J' u) . v`` for the attached derivatives."""
    a, v = rng.normal(size=(4, 3, 3)), rng.normal(size=(4, 3, 3))
    with qd.init(default_fp=qd.f64, offline_cache=False):
        x = qd.Matrix.field(3, 3, qd.f64, shape=4, needs_grad=True, needs_dual=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True, needs_dual=True)

        @qd.kernel
        def k():
            for i in x:
                r, s = qd.polar_decompose(x[i])
                w, q = qd.sym_eig(x[i] + x[i].transpose())
                loss[None] += r[0, 1] * s[1, 2] + q[0, 1] * w[2] + x[i].inverse()[0, 2]

        x.from_numpy(a)
        with qd.ad.Tape(loss):
            k()
        reverse = (x.grad.to_numpy() * v).sum()
        x.dual.from_numpy(v)
        loss[None] = 0
        with qd.ad.FwdMode(loss=loss, param=x, seed=v.reshape(-1).tolist()):
            k()
        assert np.isclose(loss.dual[None], reverse, rtol=1e-10)
