"""Gradients through tensors: both backends, every layout, against central differences in f64."""

import itertools

import numpy as np
import pytest

import qdrun as qd

BACKENDS = [qd.Backend.FIELD, qd.Backend.NDARRAY]


@pytest.fixture(autouse=True)
def program():
    with qd.init(offline_cache=False, default_fp=qd.f64, cpu_max_num_threads=1) as program:
        yield program


@qd.kernel
def smooth(x: qd.Tensor, w: qd.Tensor, y: qd.Tensor):
    for i, j in y:
        s = 0.0
        for k in range(x.shape[1]):
            s += qd.sin(x[i, k]) * w[k, j] * w[k, j]
        y[i, j] = s * s + x[i, j % x.shape[1]]


@qd.kernel
def total(y: qd.Tensor, loss: qd.Tensor):
    for i, j in y:
        loss[None] += y[i, j] * (1.0 + 0.1 * i - 0.2 * j)


def differences(f, at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    out = np.zeros_like(at)
    for index in np.ndindex(*at.shape):
        ends = []
        for sign in (1, -1):
            moved = at.copy()
            moved[index] += sign * step
            ends.append(f(moved))
        out[index] = (ends[0] - ends[1]) / (2 * step)
    return out


# all as they are and all turned here; one or two of them turned with the slow tests
LAYOUTS = [
    x if len(set(x)) == 1 else pytest.param(x, marks=pytest.mark.slow) for x in itertools.product([None, (1, 0)], repeat=3)
]


@pytest.mark.parametrize("backends", list(itertools.product(BACKENDS, repeat=2)), ids=lambda b: "-".join(x.name for x in b))
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
def test_the_gradient_of_a_chain_of_kernels(backends, layouts):
    rng = np.random.default_rng()
    start, weights = rng.random((3, 4)), rng.random((4, 2))
    x = qd.tensor(qd.f64, (3, 4), backend=backends[0], layout=layouts[0], needs_grad=True)
    w = qd.tensor(qd.f64, (4, 2), backend=backends[1], layout=layouts[1], needs_grad=True)
    y = qd.tensor(qd.f64, (3, 2), backend=backends[0], layout=layouts[2], needs_grad=True)
    loss = qd.tensor(qd.f64, (), backend=backends[1], needs_grad=True)

    def run(a, b):
        x.from_numpy(a)
        w.from_numpy(b)
        loss.fill(0)
        smooth(x, w, y)
        total(y, loss)
        return loss[None]

    wanted = [differences(lambda a: run(a, weights), start), differences(lambda b: run(start, b), weights)]
    run(start, weights)
    for t in (x, w, y):
        t.grad.fill(0)
    loss.grad.fill(1)
    total.grad(y, loss)
    smooth.grad(x, w, y)
    for t, g in zip((x, w), wanted):
        np.testing.assert_allclose(t.grad.to_numpy(), g, rtol=1e-6, atol=1e-8)
        assert t.grad.shape == t.shape and t.grad.layout == t.layout


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_a_tape_with_a_tensor_as_loss(backend):
    x = qd.Vector.tensor(2, qd.f64, 5, backend=backend, needs_grad=True)
    loss = qd.tensor(qd.f64, (), backend=backend, needs_grad=True)

    @qd.kernel
    def run(x: qd.Tensor, loss: qd.Tensor):
        for i in x:
            loss[None] += x[i].dot(x[i]) * x[i][1]

    start = np.random.default_rng().random((5, 2))
    x.from_numpy(start)
    x.grad.fill(100)
    with qd.ad.Tape(loss=loss):
        run(x, loss)
    p, q = start.T
    np.testing.assert_allclose(x.grad.to_numpy(), np.stack([2 * p * q, p * p + 3 * q * q], -1), rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_tensors_that_a_kernel_refers_to_by_name(backend):
    x = qd.tensor(qd.f64, 5, backend=backend, needs_grad=True)
    loss = qd.tensor(qd.f64, (), backend=backend, needs_grad=True)

    @qd.kernel
    def run():
        for i in range(5):
            loss[None] += x[i] ** 3

    start = np.random.default_rng().random(5)
    x.from_numpy(start)
    with qd.ad.Tape(loss=loss):
        run()
    np.testing.assert_allclose(x.grad.to_numpy(), 3 * start**2, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_tensors_under_validation_differences_and_forward_mode(backend):
    x = qd.tensor(qd.f64, (2, 3), backend=backend, layout=(1, 0), needs_grad=True)
    loss = qd.tensor(qd.f64, (), backend=backend, needs_grad=True)

    @qd.kernel
    def run(x: qd.Tensor, loss: qd.Tensor):
        for i, j in x:
            loss[None] += x[i, j] ** 3 * (i + 1)

    start = np.random.default_rng().random((2, 3))
    x.from_numpy(start)
    wanted = 3 * start**2 * [[1], [2]]
    for options in ({"validation": True}, {"grad_check": [x]}):
        with qd.ad.Tape(loss=loss, **options):
            run(x, loss)
        np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-12)


def test_forward_and_reverse_mode_agree_on_transposed_arrays_and_planes():
    x = qd.ndarray(qd.f64, (2, 3), needs_grad=True, needs_dual=True, layout=(1, 0))
    v = qd.Vector.field(2, qd.f64, 3, needs_grad=True, needs_dual=True, layout=qd.Layout.SOA)
    y = qd.ndarray(qd.f64, (3,), needs_grad=True, needs_dual=True)

    @qd.kernel
    def run(x: qd.types.ndarray(), y: qd.types.ndarray()):
        for j in y:
            y[j] = qd.sin(x[0, j]) * v[j][1] + x[1, j] * v[j][0] * v[j][0]

    rng = np.random.default_rng()
    p, q = rng.random((2, 3)), rng.random((3, 2))
    x.from_numpy(p)
    v.from_numpy(q)
    seed = rng.random(6)
    a, b = seed.reshape(2, 3), seed.reshape(3, 2)
    with qd.ad.FwdMode(loss=y, param=x, seed=seed.tolist()):
        run(x, y)
    np.testing.assert_allclose(y.dual.to_numpy(), np.cos(p[0]) * a[0] * q[:, 1] + a[1] * q[:, 0] ** 2, rtol=1e-12)
    with qd.ad.FwdMode(loss=y, param=v, seed=seed.tolist()):
        run(x, y)
    np.testing.assert_allclose(y.dual.to_numpy(), np.sin(p[0]) * b[:, 1] + 2 * p[1] * q[:, 0] * b[:, 0], rtol=1e-12)
    y.grad.fill(1)
    run.grad(x, y)
    np.testing.assert_allclose(x.grad.to_numpy(), [np.cos(p[0]) * q[:, 1], q[:, 0] ** 2], rtol=1e-12)
    np.testing.assert_allclose(v.grad.to_numpy().T, [2 * p[1] * q[:, 0], np.sin(p[0])], rtol=1e-12)


def test_a_parameter_without_gradient_takes_an_array_with_one():
    @qd.kernel
    def run(x: qd.types.ndarray(needs_grad=False), y: qd.types.ndarray()):
        for i in y:
            y[i] = x[i] * y.shape[0]

    x, y = (qd.ndarray(qd.f64, 3, needs_grad=True) for _ in range(2))
    x.fill(2)
    run(x, y)
    y.grad.fill(1)
    with pytest.raises(qd.QdrunError):  # nothing that it reads has a gradient, so there is nothing to pass on
        run.grad(x, np.zeros(3))
    assert y.to_numpy().tolist() == [6, 6, 6] and x.grad.to_numpy().tolist() == [0, 0, 0]


def test_an_array_given_twice_is_refused_when_one_of_the_two_has_a_name():
    x = qd.ndarray(qd.f64, 4, needs_grad=True)

    @qd.kernel
    def run(y: qd.types.ndarray()):
        for i in y:
            y[i] = x[i] * x[i]

    for _ in range(2):
        with pytest.raises(qd.QdrunRuntimeError, match=r"`run` uses `.*`, and the array given for `y` is a part of its memory"):
            run(x)
