"""``qd.ad.FwdMode``: what it takes, what it clears, and what happens inside of it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True, params=["cpu", "python"])
def program(request):
    with qd.init(arch=request.param, default_fp=qd.f64, offline_cache=False) as program:
        yield program


def vector_of(values, **how):
    out = qd.field(qd.f64, shape=len(values), **how)
    out.from_numpy(np.array(values, float))
    return out


def squares():
    """Fields x, y and the kernel y[i] = x[i] ** 2."""
    x, y = vector_of([1, 2, 3], needs_dual=True), vector_of([0, 0, 0], needs_dual=True)

    @qd.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    return x, y, square


# ---- seeds
@pytest.mark.parametrize("seed", [[1, 0, 2], (1.0, 0.0, 2.0), np.array([1, 0, 2], np.float32), qd.Vector([1, 0, 2])])
def test_the_dual_of_the_loss_is_the_jacobian_times_the_seed(seed):
    x, y, square = squares()
    with qd.ad.FwdMode(loss=y, param=x, seed=seed):
        square()
    assert list(y.to_numpy()) == [1, 4, 9]
    assert list(y.dual.to_numpy()) == [2, 0, 12]


def test_a_parameter_of_one_number_has_the_seed_one():
    x, y = (qd.field(qd.f64, shape=(), needs_dual=True) for _ in range(2))
    x[None] = 3.0

    @qd.kernel
    def cube():
        y[None] = x[None] ** 3

    with qd.ad.FwdMode(loss=y, param=x):
        assert x.dual[None] == 1
        cube()
    assert y.dual[None] == 27 and x.dual[None] == 0


def test_a_longer_parameter_needs_a_seed():
    x, y, _ = squares()
    with pytest.raises(qd.QdrunRuntimeError) as caught:
        qd.ad.FwdMode(loss=y, param=x).__enter__()
    assert str(caught.value) == (
        "FwdMode needs a `seed`: param holds 3 numbers\n  do: seed=[..] with one number for each of them, the direction"
        " in which to differentiate; [1, 0, 0, ..] gives the derivative with respect to the first"
    )


@pytest.mark.parametrize(
    "seed, message",
    [
        ([1, 2], r"the seed of FwdMode has shape \(2,\), param has shape \(3,\); do: give 3 numbers, flat or in that shape"),
        ([], r"the seed of FwdMode has shape \(0,\)"),
        (np.ones((3, 1)), r"the seed of FwdMode has shape \(3, 1\)"),
        ("one", "the seed of FwdMode is a list or an array of numbers, not 'one'"),
        ([[1], [1, 2]], "the seed of FwdMode is a list or an array of numbers"),
    ],
)
def test_a_seed_that_does_not_fit_is_refused(seed, message, program):
    x, y, _ = squares()
    x.dual.fill(5.0)
    with pytest.raises(qd.QdrunRuntimeError, match=message), qd.ad.FwdMode(loss=y, param=x, seed=seed):
        pass
    assert program.recorders.forward is None and list(x.dual.to_numpy()) == [5, 5, 5]


# ---- parameters and losses
def test_the_parameter_may_be_made_of_matrices():
    a = qd.Matrix.field(2, 2, qd.f64, shape=2, needs_dual=True)
    v = qd.Vector.field(2, qd.f64, shape=2, needs_dual=True)
    a.from_numpy(np.arange(8.0).reshape(2, 2, 2))

    @qd.kernel
    def first():
        for i in v:
            v[i] = a[i] @ qd.Vector([a[i][0, 0], 2.0])

    def plain(m):
        return np.stack([m[i] @ np.array([m[i, 0, 0], 2.0]) for i in range(2)])

    at, seed, h = a.to_numpy(), np.random.default_rng(1).uniform(-1, 1, (2, 2, 2)), 1e-6
    with qd.ad.FwdMode(loss=v, param=a, seed=seed):
        first()
    np.testing.assert_allclose(v.dual.to_numpy(), (plain(at + h * seed) - plain(at - h * seed)) / (2 * h), rtol=1e-8, atol=1e-8)
    with qd.ad.FwdMode(loss=v, param=a, seed=seed.reshape(-1)):
        first()
    np.testing.assert_allclose(v.dual.to_numpy(), (plain(at + h * seed) - plain(at - h * seed)) / (2 * h), rtol=1e-8, atol=1e-8)


def test_ndarrays_have_duals():
    x = qd.ndarray(qd.f64, 3, needs_dual=True, needs_grad=True)
    y = qd.Vector.ndarray(2, qd.f64, 3, needs_dual=True)
    z = qd.ndarray(qd.f64, 3)
    x.from_numpy(np.array([1.0, 2.0, 3.0]))

    @qd.kernel
    def k(a: qd.types.ndarray(), b: qd.types.ndarray(), c: qd.types.ndarray()):
        for i in range(a.shape[0]):
            b[i] = qd.Vector([a[i] ** 2, c[i] * a[i]])

    z.fill(4.0)
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 0]):
        k(x, y, z)
    assert y.dual.to_numpy().tolist() == [[2, 4], [4, 4], [0, 0]]
    assert x.needs_dual and not z.needs_dual and x.dual.to_numpy().tolist() == [0, 0, 0]
    y.grad = None
    k(x, y, z)  # an ordinary launch leaves duals alone
    assert y.dual.to_numpy().tolist() == [[2, 4], [4, 4], [0, 0]]


def test_kernels_see_duals():
    x = qd.ndarray(qd.f64, 2, needs_dual=True)
    f = qd.field(qd.f64, shape=2, needs_dual=True)
    x.dual.from_numpy(np.array([5.0, 6.0]))

    @qd.kernel
    def move(a: qd.types.ndarray()):
        for i in f:
            f.dual[i] = a.dual[i] + 1.0

    move(x)
    assert list(f.dual.to_numpy()) == [6, 7]


def test_several_losses():
    x, y, square = squares()
    z = vector_of([0, 0, 0], needs_dual=True)

    @qd.kernel
    def double():
        for i in x:
            z[i] = 2 * x[i]

    with qd.ad.FwdMode(loss=[y, z], param=x, seed=[1, 1, 1]):
        square()
        double()
    assert list(y.dual.to_numpy()) == [2, 4, 6] and list(z.dual.to_numpy()) == [2, 2, 2]


def test_a_parameter_that_is_a_loss_keeps_its_result():
    x, _, _ = squares()

    @qd.kernel
    def in_place():
        for i in x:
            x[i] = x[i] * x[i]

    with qd.ad.FwdMode(loss=x, param=x, seed=[1, 1, 1]):
        in_place()
        in_place()
    assert list(x.to_numpy()) == [1, 16, 81] and list(x.dual.to_numpy()) == [4, 32, 108]


@pytest.mark.parametrize("place", ["lazy", "by hand", "late"])
def test_duals_are_placed_beside_their_fields(place):
    x, y = qd.field(qd.f64), qd.field(qd.f64)
    n = qd.field(qd.i32)
    node = qd.root.dense(qd.i, 3)
    if place == "by hand":
        node.place(x, y, n, x.dual, y.dual)
    else:
        node.place(x, y, n)
        if place == "late":
            x.fill(0.0)  # the fields have memory; nothing was compiled
            qd.root.dense(qd.i, 3).place(x.dual, y.dual)
        else:
            qd.root.lazy_dual()

    @qd.kernel
    def k():
        for i in x:
            y[i] = qd.sin(x[i])

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 2, 3]):
        k()
    assert list(y.dual.to_numpy()) == [1, 2, 3]


@pytest.mark.parametrize(
    "loss, param, message",
    [
        (lambda y: 3.0, lambda x: x, "the loss of FwdMode is a field or an ndarray, not float"),
        (lambda y: [y, None], lambda x: x, "the loss of FwdMode is a field or an ndarray, not NoneType"),
        (lambda y: y, lambda x: [x], "the param of FwdMode is a field or an ndarray, not list"),
        (
            lambda y: qd.field(qd.f64, shape=3, name="p"),
            lambda x: x,
            "the loss `p` of FwdMode has no dual; do: make it with needs_dual=True",
        ),
        (lambda y: y, lambda x: qd.field(qd.i32, shape=3, name="q"), "the param `q` of FwdMode has no dual"),
        (lambda y: y, lambda x: qd.ndarray(qd.f64, 3), "the param of FwdMode has no dual"),
        (lambda y: y, lambda x: x.dual, "the param `x.dual` of FwdMode has no dual"),
    ],
)
def test_what_has_no_dual_is_refused(loss, param, message, program):
    x, y, square = squares()
    square()
    with pytest.raises(qd.QdrunRuntimeError, match=message):
        qd.ad.FwdMode(loss=loss(y), param=param(x), seed=[1, 1, 1]).__enter__()
    assert program.recorders.forward is None


# ---- clearing
def test_duals_are_cleared_on_entry_unless_they_are_kept():
    x, y, _ = squares()
    z = qd.ndarray(qd.f64, 2, needs_dual=True)
    for t in (y, z):
        t.dual.fill(5.0)
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1], clear_gradients=False):
        pass
    assert list(y.dual.to_numpy()) == [5, 5, 5] and list(z.dual.to_numpy()) == [5, 5]
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        pass
    assert not y.dual.to_numpy().any() and not z.dual.to_numpy().any()


def test_gradients_are_left_alone():
    x = vector_of([1, 2, 3], needs_dual=True, needs_grad=True)
    y = vector_of([0, 0, 0], needs_dual=True, needs_grad=True)

    @qd.kernel
    def k():
        for i in x:
            y[i] = x[i] ** 3

    y.grad.fill(1.0)
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 0, 0]):
        k()
    assert not x.grad.to_numpy().any()
    k.grad()
    assert list(x.grad.to_numpy()) == [3, 12, 27] and list(y.dual.to_numpy()) == [3, 0, 0]


# ---- stores
def test_a_second_store_replaces_the_tangent_of_the_first():
    x, y, square = squares()

    @qd.kernel
    def twice():
        for i in x:
            y[i] = 2.0 * x[i]
            y[i] = 3.0 * x[i]

    @qd.kernel
    def constant():
        y[1] = 7.0

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        twice()
        twice()
        constant()
        assert list(y.dual.to_numpy()) == [3, 0, 3]
        square()
        square()
    assert list(y.dual.to_numpy()) == [2, 4, 6]


def test_what_python_assigns_has_no_tangent():
    x, y, square = squares()
    v = qd.Vector.field(2, qd.f64, shape=2, needs_dual=True)
    a = qd.ndarray(qd.f64, 3, needs_dual=True)
    with qd.ad.FwdMode(loss=[y, v], param=x, seed=[1, 1, 1]):
        square()
        y[1] = 4.0
        assert list(y.dual.to_numpy()) == [2, 0, 6]
        y.fill(0.0)
        assert not y.dual.to_numpy().any()
        square()
        y.from_numpy(np.ones(3))
        assert not y.dual.to_numpy().any()
        for t in (v, a):
            t.dual.fill(1.0)
        v[1] = [0, 0]
        v[0][1] = 2.0
        a[2] = 1.0
        assert v.dual.to_numpy().tolist() == [[1, 0], [0, 0]] and a.dual.to_numpy().tolist() == [1, 1, 0]
        x[0] = 5.0
        square()
        assert list(y.to_numpy()) == [25, 4, 9] and list(y.dual.to_numpy()) == [0, 4, 6]
    y.dual.fill(1.0)
    y.fill(0.0)  # outside of a block Python writes what it says
    assert y.dual.to_numpy().all()


def test_a_component_of_a_matrix_that_python_assigns():
    m = qd.Matrix.field(2, 2, qd.f64, shape=(), needs_dual=True)
    x, y, _ = squares()
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        m.dual.fill(1.0)
        m[None][0, 1] = 3.0
        assert m.dual.to_numpy().tolist() == [[1, 0], [1, 1]]
        m[None].fill(0.0)
        assert not m.dual.to_numpy().any()


def test_a_copy_takes_the_tangents_along():
    x, y, square = squares()
    z, plain = vector_of([0, 0, 0], needs_dual=True), vector_of([1, 1, 1])
    with qd.ad.FwdMode(loss=[y, z], param=x, seed=[1, 1, 1]):
        square()
        z.copy_from(y)
        assert list(z.to_numpy()) == [1, 4, 9] and list(z.dual.to_numpy()) == [2, 4, 6]
        z.copy_from(plain)
        assert not z.dual.to_numpy().any()


# ---- lost tangents
def test_a_tangent_that_is_lost_on_the_way_is_named():
    x, y, _ = squares()
    middle = qd.field(qd.f64, shape=3, name="middle")

    @qd.kernel
    def first():
        for i in x:
            middle[i] = 2.0 * x[i]

    @qd.kernel
    def second():
        for i in x:
            y[i] = middle[i] ** 2

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]), pytest.warns(qd.GradientWarning) as caught:
        for _ in range(3):
            first()
            second()
    assert len(caught) == 1
    text = str(caught[0].message).splitlines()
    assert text[0].startswith("forward mode loses the tangent in `middle`, which has no dual: `first` line ")
    assert text[0].endswith(
        "(`middle[i] = 2.0 * x[i]`) stores a value that may depend on the parameter, and it is read here on the way to a dual"
    )
    assert text[2].strip() == "y[i] = middle[i] ** 2" and "in kernel `second`" in text[1]
    assert text[4] == "  do: make `middle` with needs_dual=True, or ignore this if its derivative does not matter"


def test_a_tangent_that_is_lost_in_one_kernel_is_named():
    x, y, _ = squares()
    middle = qd.ndarray(qd.f64, 3)

    @qd.kernel
    def both(m: qd.types.ndarray()):
        for i in x:
            m[i] = 2.0 * x[i]
        for i in x:
            y[i] = m[i] ** 2

    with (
        qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]),
        pytest.warns(qd.GradientWarning, match="loses the tangent in `m`, which has no dual"),
    ):
        both(middle)


def test_a_copy_by_python_loses_a_tangent_too():
    x, y, square = squares()
    middle = qd.field(qd.f64, shape=3)

    @qd.kernel
    def back():
        for i in x:
            y[i] = middle[i]

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        square()
        middle.copy_from(y)
        with pytest.warns(qd.GradientWarning, match="which has no dual: `copy_from` stores"):
            back()
        middle.fill(1.0)


def test_nothing_is_said_where_nothing_is_lost():
    x, y, square = squares()
    log, table = qd.field(qd.f64, shape=3), vector_of([1, 2, 3])

    @qd.kernel
    def k():
        for i in x:
            log[i] = x[i]  # never read
            y[i] = table[i] * x[i]

    @qd.kernel
    def early() -> qd.f64:
        return log[0]

    with warnings.catch_warnings(), qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        warnings.simplefilter("error")
        k()
        square()
        k()
        assert early() == 1
        log.fill(0.0)
    assert list(y.dual.to_numpy()) == [1, 2, 3]


# ---- other containers
@pytest.mark.parametrize("backend", [0, 1])
@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_tensors_in_any_layout(backend, layout):
    x, y = (qd.tensor(qd.f64, (2, 3), backend=backend, layout=layout, needs_dual=True) for _ in range(2))
    at, seed = np.arange(6.0).reshape(2, 3), np.array([[1, 2, 3], [4, 5, 6.0]])
    x.from_numpy(at)

    @qd.kernel
    def square(a: qd.Tensor, b: qd.Tensor):
        for i, j in qd.ndrange(2, 3):
            b[i, j] = a[i, j] ** 2

    with qd.ad.FwdMode(loss=y, param=x, seed=seed):
        square(x, y)
        np.testing.assert_array_equal(y.dual.to_numpy(), 2 * at * seed)
        y[0, 2] = 1.0
    np.testing.assert_array_equal(y.dual.to_numpy(), 2 * at * seed * (at != 2))


def test_structs():
    pair = qd.types.struct(a=qd.f64, b=qd.types.vector(2, qd.f64), n=qd.i32)
    s = pair.field(shape=3, needs_dual=True)
    x, y, _ = squares()

    @qd.kernel
    def k():
        for i in x:
            s[i].a = x[i] * x[i]
            s[i].b = qd.Vector([x[i], s[i].a])
            s[i].b[0] += 1.0
            y[i] = s[i].b.dot(s[i].b)

    with qd.ad.FwdMode(loss=[y, s.a], param=x, seed=[1, 1, 1]):
        k()
    a = x.to_numpy()
    np.testing.assert_allclose(y.dual.to_numpy(), 2 * (a + 1) + 4 * a**3)
    np.testing.assert_allclose(s.a.dual.to_numpy(), 2 * a)


def test_a_stopped_gradient_stops_the_tangent_too():
    x, y, _ = squares()

    @qd.kernel
    def k():
        for i in x:
            y[i] = qd.stop_grad(x[i]) * x[i]

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        k()
    assert list(y.dual.to_numpy()) == [1, 2, 3]
