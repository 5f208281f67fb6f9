"""A func with a gradient that the user wrote: beside the compiler's own gradient of the same function, in every mode."""

from __future__ import annotations

import numpy as np
import pytest

import qdrun as qd

N = 5


@qd.func
def plain(x, v):
    return qd.Vector([qd.sin(x) * v[0], x * v[1] * v[1]])


@qd.func
def written(x, v):
    return qd.Vector([qd.sin(x) * v[0], x * v[1] * v[1]])


@written.vjp
def written_vjp(x, v, g):
    total = 0.0
    for k in range(2):  # a sum that a loop makes is linear, too
        total += g[k] * (qd.cos(x) * v[0] if k == 0 else v[1] * v[1])
    return total, qd.Vector([g[0] * qd.sin(x), 2.0 * g[1] * x * v[1]])


@qd.func
def outer(x, y):
    return written(x * y, qd.Vector([y, x]))[0] + y


@outer.vjp
def outer_vjp(x, y, g):
    a, b = written_vjp(x * y, qd.Vector([y, x]), qd.Vector([g, 0.0]))
    return a * y + b[1], a * x + b[0] + g


def losses(f, values, **where):
    """The loss of a kernel with loops and branches around a function, its gradient, its tangent and a Hessian product."""
    program = qd.init(default_fp=qd.f64, **where)
    x, loss = qd.field(qd.f64, shape=N, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    if not program.trials:
        qd.root.lazy_hessian()
    trials = where.get("batch")
    x.from_numpy(np.tile(values, (trials, 1)) if trials else values)

    @qd.kernel
    def run():
        for i in x:
            a = x[i]
            for k in range(3):
                w = f(a, qd.Vector([x[i], 0.5 * k]))
                a = w[0] + 0.3 * w[1]
                if a > 0.2:
                    a = f(a, w)[1] + a
            loss[None] += a

    with qd.ad.Tape(loss=loss):
        run()
    found = [loss.to_numpy(), x.grad.to_numpy()]
    if not program.trials:
        with qd.ad.FwdMode(loss=loss, param=x, seed=[1.0] * N):
            run()
        found += [loss.dual[None], np.asarray(qd.ad.hvp(run, loss, x, np.ones(N)).product)]
    return found


@pytest.mark.parametrize("where", [{}, {"batch": 3}, {"arch": qd.python}], ids=["cpu", "batch", "interpreter"])
def test_a_written_gradient_is_used_as_the_compilers_own_in_every_mode(where):
    values = np.random.default_rng().normal(size=N)
    for got, want in zip(losses(written, values, **where), losses(plain, values, **where), strict=True):
        assert np.allclose(got, want, rtol=1e-11, atol=1e-12)


def test_a_written_gradient_replaces_the_true_one():
    qd.init(default_fp=qd.f64)
    x, y = (qd.field(qd.f64, shape=3, needs_grad=True) for _ in range(2))

    @qd.func
    def rounded(v):
        return qd.round(v)

    @rounded.vjp
    def straight_through(v, g):
        return g

    @qd.kernel
    def run():
        for i in x:
            y[i] = rounded(x[i]) ** 2

    x.from_numpy(np.array([0.2, 1.7, -2.6]))
    run()
    y.grad.fill(1.0)
    run.grad()
    assert np.array_equal(y.to_numpy(), [0.0, 4.0, 9.0]) and np.array_equal(x.grad.to_numpy(), [0.0, 4.0, -6.0])


def test_written_gradients_of_functions_that_call_such_functions():
    qd.init(default_fp=qd.f64)
    x, y, z = (qd.field(qd.f64, shape=4, needs_grad=True) for _ in range(3))

    @qd.kernel
    def run():
        for i in x:
            z[i] = outer(x[i], y[i])

    a, b = np.random.default_rng().normal(size=(2, 4))
    x.from_numpy(a)
    y.from_numpy(b)
    run()
    z.grad.fill(1.0)
    run.grad()
    assert np.allclose(z.to_numpy(), np.sin(a * b) * b + b)
    assert np.allclose(x.grad.to_numpy(), np.cos(a * b) * b * b)
    assert np.allclose(y.grad.to_numpy(), np.cos(a * b) * a * b + np.sin(a * b) + 1)


@qd.func
def clipped(x):
    return x * x


@clipped.vjp
def clipped_vjp(x, g):
    return qd.max(-1.0, qd.min(1.0, g * 2.0 * x))


@qd.func
def constant(x):
    return x * x


@constant.vjp
def constant_vjp(x, g):
    return 2.0 * x


@qd.func
def wrong_count(x, y):
    return x * y


@wrong_count.vjp
def wrong_count_vjp(x, y, g):
    return g * y


weights = None


@qd.func
def reads(x):
    return x * weights[0]


@reads.vjp
def reads_vjp(x, g):
    return g * weights[0]


@pytest.mark.parametrize(
    "f, count, said",
    [
        (clipped, 1, "the vjp of `clipped` is not linear"),
        (constant, 1, "the vjp of `constant` is not linear"),
        (wrong_count, 2, "returns 1 values, and the function has 2 arguments"),
        (reads, 1, "reads `weights`, whose gradient would be lost"),
    ],
)
def test_what_would_give_a_wrong_gradient_is_refused_by_name(f, count, said):
    global weights
    qd.init(default_fp=qd.f64)
    weights = qd.field(qd.f64, shape=1, needs_grad=True)
    x, y = (qd.field(qd.f64, shape=3, needs_grad=True) for _ in range(2))

    @qd.kernel
    def run():
        for i in x:
            if qd.static(count == 1):
                y[i] = f(x[i])
            else:
                y[i] = f(x[i], 2.0 * x[i])

    with pytest.raises(qd.QdrunCompilationError, match=said):
        run()


def test_a_gradient_that_is_given_twice_or_too_late_is_refused():
    with pytest.raises(qd.QdrunRuntimeError, match="has a gradient of its own already"):
        clipped.vjp(lambda x, g: g)
    qd.init(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=3)

    @qd.func
    def late(v):
        return v

    @qd.kernel
    def run():
        for i in x:
            x[i] = late(x[i])

    run()
    with pytest.raises(qd.QdrunRuntimeError, match="was compiled before its gradient was given"):
        late.vjp(lambda v, g: g)
