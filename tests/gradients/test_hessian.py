"""Products of Hessians and vectors: against central differences of gradients in f64, closed forms, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from kernels import compile_source, kernel_sources

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


class Case:
    """One random kernel ``k(n, c)`` from the fields x and v to y, and a loss of y that is not linear."""

    def __init__(self, source: str, seed: int, **options) -> None:
        self.program = qd.init(default_fp=qd.f64, offline_cache=False, **options)
        self.x = qd.field(qd.f64, shape=8)
        self.v = qd.Vector.field(2, dtype=qd.f64, shape=4)
        self.y = qd.field(qd.f64, shape=3)
        self.loss = qd.field(qd.f64, shape=())
        qd.root.lazy_hessian()
        cnt = qd.field(qd.i32, shape=6)
        self.c = qd.ndarray(qd.f64, 5)
        r = np.random.default_rng(seed)
        for t in (self.x, self.v, self.c):
            t.from_numpy(r.uniform(-1.2, 1.2, t.to_numpy().shape))
        cnt.from_numpy(r.integers(0, 5, 6))
        self.n = int(r.integers(0, 6))
        self.directions = [r.uniform(-1, 1, t.to_numpy().shape) for t in (self.x, self.v)]
        self.k = compile_source(source, {"x": self.x, "v": self.v, "y": self.y, "cnt": cnt})["k"]
        loss, y = self.loss, self.y

        @qd.kernel
        def total():
            for i in y:
                loss[None] += (i + 1) * y[i] + 0.5 * y[i] * y[(i + 1) % 3]

        self.total = total

    def run(self) -> None:
        self.y.fill(0.0)
        self.k(self.n, self.c)
        self.total()

    def gradient(self, step: float = 0.0) -> np.ndarray:
        """The gradient at the point, moved by ``step`` in the direction, flat."""
        at = [t.to_numpy() for t in (self.x, self.v)]
        for t, value, d in zip((self.x, self.v), at, self.directions):
            t.from_numpy(value + step * d)
        with qd.ad.Tape(loss=self.loss):
            self.run()
        found = np.concatenate([t.grad.to_numpy().ravel() for t in (self.x, self.v)])
        for t, value in zip((self.x, self.v), at):
            t.from_numpy(value)
        return found

    def differences(self, h: float) -> np.ndarray:
        return (self.gradient(h) - self.gradient(-h)) / (2 * h)


def check(source: str, seed: int, **options) -> None:
    case = Case(source, seed, **options)
    with case.program, np.errstate(all="ignore"):
        try:
            found = qd.ad.hvp(case.run, case.loss, [case.x, case.v], case.directions)
            gradient = case.gradient()
        except (qd.DifferentiationError, qd.DataAccessError):
            assume(False)
        got = np.concatenate([p.ravel() for p in found.product])
        assume(np.isfinite(got).all() and np.abs(gradient).max() < 1e5)
        scale = max(1.0, np.abs(got).max())
        first = np.concatenate([p.ravel() for p in found.gradient])
        np.testing.assert_allclose(first, gradient, rtol=0, atol=1e-9 * max(1.0, np.abs(gradient).max()))
        coarse, fine = case.differences(1e-5), case.differences(1e-6)
        # no branch flips between the points, and the differences are no noise
        if scale < 1e6 and np.abs(coarse - fine).max() <= 1e-6 * scale:
            np.testing.assert_allclose(got, coarse, rtol=0, atol=1e-5 * scale)


@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_random_kernels(source, seed):
    check(source, seed, arch=qd.cpu)


@settings(max_examples=3, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_random_kernels_on_the_interpreter(source, seed):
    check(source, seed, arch=qd.python)


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_more_random_kernels(source, seed):
    check(source, seed, arch=qd.cpu)


def declared(n: int = 6):
    x, loss = qd.field(qd.f64, shape=n, name="x"), qd.field(qd.f64, shape=(), name="loss")
    qd.root.lazy_hessian()
    x.from_numpy(np.random.default_rng().normal(size=n))
    return x, loss


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f64) as program:
        yield program


def test_the_product_of_a_quadratic_form_is_its_matrix_times_the_vector_also_at_zero(program):
    n, r = 5, np.random.default_rng()
    a = r.normal(size=(n, n))
    x, loss = declared(n)
    m = qd.field(qd.f64, shape=(n, n))
    m.from_numpy(a)

    @qd.kernel
    def form():
        for i, j in m:
            loss[None] += 0.5 * x[i] * m[i, j] * x[j]

    for start in (r.normal(size=n), np.zeros(n)):  # the tangent of a product with a zero factor has a derivative
        x.from_numpy(start)
        v = r.normal(size=n)
        v[0] = 0.0
        found = qd.ad.hvp(form, loss, x, v)
        np.testing.assert_allclose(found.product, 0.5 * (a + a.T) @ v, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(found.gradient, 0.5 * (a + a.T) @ start, rtol=1e-13, atol=1e-13)
        assert found.loss == pytest.approx(0.5 * start @ a @ start, rel=1e-13, abs=1e-15)


def test_the_hessian_is_symmetric_through_kernels_fields_and_a_loop_with_state(program):
    x, loss = qd.field(qd.f64, shape=4), qd.field(qd.f64, shape=())
    y = qd.field(qd.f64, shape=4)
    count = qd.field(qd.i32, shape=4)
    qd.root.lazy_hessian()
    count.from_numpy(np.array([3, 0, 5, 2]))
    x.from_numpy(np.random.default_rng().uniform(0.3, 1.5, 4))

    @qd.kernel
    def march(dt: qd.f64):
        for i in x:
            a, b = x[i], 1.0
            for _ in range(count[i]):
                a, b = a + dt * b * qd.sin(a), b - dt * a * x[(i + 1) % 4]
            y[i] = a * b

    @qd.kernel
    def add():
        for i in y:
            loss[None] += qd.exp(-y[i] * y[(i + 1) % 4])

    def run():
        march(0.3)
        add()

    hessian = np.array([qd.ad.hvp(run, loss, x, row).product for row in np.eye(4)])
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-12, atol=1e-14)
    base, differences = x.to_numpy(), []
    for k in range(4):
        pair = []
        for h in (1e-5, -1e-5):
            x.from_numpy(base + h * np.eye(4)[k])
            with qd.ad.Tape(loss=loss):
                run()
            pair.append(x.grad.to_numpy())
        differences.append((pair[0] - pair[1]) / 2e-5)
    assert np.abs(hessian).max() > 0.05
    np.testing.assert_allclose(hessian, differences, rtol=0, atol=1e-8 * np.abs(hessian).max())


def test_the_heap_of_a_product_is_planned_to_the_byte_and_a_first_order_gradient_keeps_its_own(program):
    x, loss = declared(1000)

    @qd.kernel
    def chain(m: qd.i32):
        for i in x:
            a = x[i]
            for _ in range(m):
                a = qd.sin(a) * a + 0.1
            loss[None] += a

    first, second = chain.grad.plan(50), qd.ad.hvp_plan(chain, 50)
    assert 0 < first.bytes < second.bytes <= 2 * first.bytes + 4096
    qd.ad.hvp(lambda: chain(50), loss, x, np.ones(1000))
    assert program.usage()["adstack"] == second.bytes
    assert chain.grad.plan(50).bytes == first.bytes
    small = qd.ad.hvp_plan(chain, 50, budget=second.bytes // 4)
    assert small.bytes <= second.bytes // 4


def test_each_trial_of_a_batch_has_its_own_product():
    starts = np.random.default_rng().uniform(0.5, 2.0, (3, 4))
    with qd.init(default_fp=qd.f64, batch=3):
        x, loss = declared(4)
        x.from_numpy(starts)

        @qd.kernel
        def cubes():
            for i in x:
                loss[None] += x[i] ** 3 * x[(i + 1) % 4]

        v = np.random.default_rng().normal(size=(3, 4))
        found = qd.ad.hvp(cubes, loss, x, v)
    ahead, behind = np.roll(starts, -1, 1), np.roll(starts, 1, 1)
    expected = 6 * starts * ahead * v + 3 * starts**2 * np.roll(v, -1, 1) + 3 * behind**2 * np.roll(v, 1, 1)
    np.testing.assert_allclose(found.product, expected, rtol=1e-12)
    np.testing.assert_allclose(found.loss, (starts**3 * ahead).sum(1), rtol=1e-13)


def test_what_python_assigns_between_the_launches_is_a_constant(program):
    x, loss = qd.field(qd.f64, shape=3), qd.field(qd.f64, shape=())
    y = qd.field(qd.f64, shape=3)
    qd.root.lazy_hessian()
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @qd.kernel
    def square():
        for i in x:
            y[i] = x[i] * x[i]

    @qd.kernel
    def add():
        for i in y:
            loss[None] += y[i] * y[i]

    def run():
        square()
        y[1] = 7.0
        add()

    found = qd.ad.hvp(run, loss, x, [1.0, 1.0, 1.0])
    np.testing.assert_allclose(found.product, [12.0, 0.0, 108.0])
    assert found.loss == 1.0 + 49.0 + 81.0


def refused(kind, start, call):
    with pytest.raises(kind) as error:
        call()
    assert str(error.value).startswith(start), str(error.value)


def test_what_has_no_product_is_refused(program):
    x, loss = declared(3)
    late = qd.field(qd.f64, shape=3, needs_grad=True, name="late")
    v = np.ones(3)

    @qd.kernel
    def add():
        for i in x:
            loss[None] += x[i] * x[i]

    refused(
        qd.QdrunRuntimeError,
        "field `late` has no gradient of its dual, which qd.ad.hvp needs\n  do: call qd.root.lazy_hessian()",
        lambda: qd.ad.hvp(add, loss, x, v),
    )
    qd.root.lazy_hessian()
    assert late.dual.grad.placed
    refused(
        qd.QdrunRuntimeError,
        "the vector of qd.ad.hvp has shape (2,), `x` has shape (3,)",
        lambda: qd.ad.hvp(add, loss, x, v[:2]),
    )
    refused(qd.QdrunRuntimeError, "qd.ad.hvp has 2 parameters", lambda: qd.ad.hvp(add, loss, [x, late], v))
    refused(qd.QdrunTypeError, "the param of qd.ad.hvp is a field, not ndarray", lambda: qd.ad.hvp(add, loss, v, v))

    def writes():
        x[0] = 1.0
        add()

    refused(
        qd.QdrunRuntimeError,
        "the function that qd.ad.hvp runs writes to its parameter `x`: what it writes does not depend on it",
        lambda: qd.ad.hvp(writes, loss, x, v),
    )

    @qd.ad.grad_replaced
    def own():
        add()

    @qd.ad.grad_for(own)
    def own_grad():
        add.grad()

    refused(qd.QdrunRuntimeError, repr(own), lambda: qd.ad.hvp(own, loss, x, v))
    with qd.ad.Tape(loss=loss):
        refused(qd.QdrunRuntimeError, "qd.ad.hvp opens a tape of its own", lambda: qd.ad.hvp(add, loss, x, v))
    found = qd.ad.hvp(add, loss, x, v)
    np.testing.assert_allclose(found.product, 2 * v)  # the refused calls have left nothing behind


def test_an_array_with_a_gradient_is_refused_with_its_name(program):
    x, loss = declared(3)
    c = qd.ndarray(qd.f64, 3, needs_grad=True)

    @qd.kernel
    def add(c: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in x:
            loss[None] += x[i] * x[i] * c[i]

    with pytest.raises(qd.DifferentiationError) as error:
        qd.ad.hvp(lambda: add(c), loss, x, np.ones(3))
    assert str(error.value).startswith("`c` is an array with a gradient or a dual, which has no second derivatives")


OF_MATRICES = {
    "svd": "U, S, V = qd.svd(A)\n        loss[None] += S[0, 0] ** 3 * U[0, 1] + S[1, 1] * V[1, 0]",
    "values": "U, S, V = qd.svd(A)\n        loss[None] += S[0, 0] ** 3 + S[1, 1] * S[0, 0]",
    "polar": "R, S = qd.polar_decompose(A)\n        loss[None] += R[0, 1] * S[0, 0] + S[0, 1] ** 2",
    "eigen": "w, Q = qd.sym_eig(A)\n        loss[None] += w[0] ** 3 + w[1] * Q[0, 0] ** 2 * Q[1, 1] ** 2",
    "inverse": "B = A.inverse()\n        loss[None] += B[0, 0] * B[0, 1] + B[1, 1] ** 3",
    "solve": "b = qd.solve(A, A[:, 0] * A[0, 1] + A[:, 1])\n        loss[None] += b[0] ** 2 * b[1]",
    "spd": "B = qd.make_spd(A - 1.5 * qd.Matrix.identity(qd.f64, A.n))\n        loss[None] += B[0, 0] * B[0, 1] + B[1, 1] ** 3",
    "nested": "B = A.inverse()\n        R, S = qd.polar_decompose(B @ A.transpose() + B)\n"
    "        loss[None] += R[0, 1] ** 2 * S[1, 1] * B[1, 1]",
    "loop": "B = A\n        for _ in range(3):\n            R, S = qd.polar_decompose(B)\n            B = 0.5 * B + 0.2 * R @ A\n"
    "        loss[None] += B[0, 1] * B[1, 0] + B[0, 0] ** 3",
    "arms": "B = A\n        if A[0, 0] > 1.5:\n            B = A.inverse() + B\n        else:\n            B = B.inverse() @ B.inverse()\n"
    "        loss[None] += B[0, 1] * B[1, 0] + B[0, 0] ** 3",
}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", OF_MATRICES)
def test_functions_of_matrices(program, name, n):
    """Their attached derivatives are functions of the matrix: as constants they gave wrong products."""
    r = np.random.default_rng()
    m, loss = qd.Matrix.field(n, n, qd.f64, shape=1), qd.field(qd.f64, shape=())
    qd.root.lazy_hessian()
    source = f"@qd.kernel\ndef k():\n    for i in m:\n        A = m[i]\n        {OF_MATRICES[name]}\n"
    k = compile_source(source, {"m": m, "loss": loss})["k"]
    start, v = r.normal(size=(1, n, n)) * 0.4 + np.diag([2.0, 1.0, 3.0][:n]), r.normal(size=(1, n, n))

    def gradient(at):
        m.from_numpy(at)
        with qd.ad.Tape(loss=loss):
            k()
        return m.grad.to_numpy()

    m.from_numpy(start)
    found = qd.ad.hvp(k, loss, m, v)
    np.testing.assert_allclose(found.gradient, gradient(start), rtol=1e-10, atol=1e-12)
    want = [(gradient(start + h * v) - gradient(start - h * v)) / (2 * h) for h in (1e-5, 1e-6)]
    scale = max(1.0, np.abs(want[0]).max())
    if np.abs(want[0] - want[1]).max() < 1e-5 * scale:  # no branch flips between the points
        np.testing.assert_allclose(found.product, want[0], rtol=0, atol=1e-4 * scale)


def test_a_system_with_more_than_6_unknowns_has_no_second_derivative(program):
    m, loss = qd.Matrix.field(7, 7, qd.f64, shape=()), qd.field(qd.f64, shape=())
    qd.root.lazy_hessian()

    @qd.kernel
    def solved():
        loss[None] += qd.solve(m[None], m[None][:, 0]).norm_sqr()

    m.from_numpy(np.eye(7))
    with pytest.raises(qd.DifferentiationError) as error:
        qd.ad.hvp(solved, loss, m, np.ones(49))
    assert str(error.value).startswith("this function of a matrix has no second derivative here\n  at ")
