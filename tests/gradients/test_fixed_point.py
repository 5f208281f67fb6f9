"""``qd.ad.fixed_point``: gradients by the implicit function theorem, against differences, unrolled iterations and closed forms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import qdrun as qd

N = 5
ARRAYS = qd.types.ndarray(qd.types.vector(2, qd.f64), 1)


def program(**options: Any) -> SimpleNamespace:
    """A nonlinear contraction of ``x`` with parameters ``a``, through an array of intermediate results, and a loss."""
    qd.init(default_fp=qd.f64, **options)
    a, x, y, mid = (qd.field(qd.f64, N, needs_grad=True, name=name) for name in ("a", "x", "y", "mid"))
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def half():
        for i in x:
            mid[i] = qd.sin(x[i]) * a[i]

    @qd.kernel
    def rest():
        for i in x:
            y[i] = 0.4 * mid[i] * mid[(i + 1) % N] + 0.3 * qd.cos(a[i] * x[(i + 2) % N])

    @qd.kernel
    def total():
        for i in x:
            loss[None] += (i + 1.0) * x[i] ** 2

    def step():
        half()
        rest()

    return SimpleNamespace(a=a, x=x, y=y, loss=loss, step=step, total=total)


def solved(p: SimpleNamespace, values: np.ndarray, guess: float = 0.1, **options: Any) -> Any:
    p.a.from_numpy(values)
    p.x.fill(guess)
    with qd.ad.Tape(loss=p.loss):
        found = qd.ad.fixed_point(p.step, p.x, p.y, **options)
        p.total()
    return found


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.4, shape or N)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_a_fixed_point_is_that_of_differences_and_of_the_unrolled_iteration(seed):
    p, values = program(), numbers(seed)

    def loss_of(a: np.ndarray) -> float:
        p.a.from_numpy(a)
        p.x.fill(0.1)
        qd.ad.fixed_point(p.step, p.x, p.y)
        p.loss[None] = 0.0
        p.total()
        return p.loss[None]

    found = solved(p, values)
    gradient = p.a.grad.to_numpy()
    assert found.kept_bytes == 8 * N and found.steps > 5 and found.adjoint_steps > 5
    assert not p.x.grad.to_numpy().any() and not p.y.grad.to_numpy().any()
    np.testing.assert_allclose(p.x.to_numpy(), p.y.to_numpy(), rtol=1e-11)
    differences = [(loss_of(values + h) - loss_of(values - h)) / 2e-6 for h in 1e-6 * np.eye(N)]
    np.testing.assert_allclose(gradient, differences, atol=1e-8)

    steps = 60
    xs, mids = (qd.field(qd.f64, (steps + 1, N), needs_grad=True) for _ in range(2))

    @qd.kernel
    def unrolled(t: qd.i32):
        for i in range(N):
            mids[t, i] = qd.sin(xs[t, i]) * p.a[i]
        for i in range(N):
            xs[t + 1, i] = 0.4 * mids[t, i] * mids[t, (i + 1) % N] + 0.3 * qd.cos(p.a[i] * xs[t, (i + 2) % N])

    @qd.kernel
    def last():
        for i in range(N):
            p.loss[None] += (i + 1.0) * xs[steps, i] ** 2

    p.a.from_numpy(values)
    with qd.ad.Tape(loss=p.loss):
        for t in range(steps):
            unrolled(t)
        last()
    np.testing.assert_allclose(gradient, p.a.grad.to_numpy(), rtol=1e-9, atol=1e-11)


def test_nothing_of_the_iteration_is_kept_however_long_it_is():
    p = program()
    before = dict(qd.current_program().usage())
    long = solved(p, numbers(0), rtol=1e-13)
    short = solved(p, numbers(0), rtol=1e-3)
    assert long.steps > 2 * short.steps and long.kept_bytes == short.kept_bytes == 8 * N
    assert qd.current_program().usage().get("snapshots", 0) == before.get("snapshots", 0) == 0


def test_every_trial_of_a_batch_stops_by_itself_with_the_bits_that_it_has_alone():
    values = numbers(3, 6, N)
    values[2] = 0.01  # converges faster
    p = program(batch=6)
    found = solved(p, values)
    together = p.x.to_numpy(), p.a.grad.to_numpy()
    assert len(set(found.steps.tolist())) > 1
    for trial in (0, 2, 5):
        one = program(batch=1)
        alone = solved(one, values[trial])
        assert alone.steps[0] == found.steps[trial]
        np.testing.assert_array_equal(one.x.to_numpy()[0], together[0][trial])
        np.testing.assert_array_equal(one.a.grad.to_numpy()[0], together[1][trial])


def test_implicit_time_steps_share_the_arrays_of_their_fixed_points():
    """Backward Euler of v' = -k v^3: each step solves v = v0 - h k v^3, whose derivatives are known."""
    qd.init(default_fp=qd.f64)
    steps, h = 6, 0.3
    k, loss, x, y = (qd.field(qd.f64, (), needs_grad=True) for _ in range(4))
    v = qd.field(qd.f64, steps + 1, needs_grad=True)

    @qd.kernel
    def euler(t: qd.i32):
        y[None] = 0.5 * x[None] + 0.5 * (v[t] - h * k[None] * x[None] ** 3)

    @qd.kernel
    def keep(t: qd.i32):
        v[t + 1] = x[None]

    @qd.kernel
    def take():
        loss[None] += v[steps]

    k[None], v[0] = 0.7, 1.1
    with qd.ad.Tape(loss=loss, validation=True):
        for t in range(steps):
            qd.ad.fixed_point(lambda t=t: euler(t), x, y)
            keep(t)
        take()
    at, by_k, by_v0 = 1.1, 0.0, 1.0
    for _ in range(steps):
        roots = np.roots([h * 0.7, 0, 1, -at])
        at = float(roots[np.argmin(np.abs(roots.imag))].real)
        slope = 1 / (1 + 3 * h * 0.7 * at**2)
        by_k, by_v0 = (by_k - h * at**3) * slope, by_v0 * slope
    assert loss[None] == pytest.approx(at, rel=1e-11)
    assert k.grad[None] == pytest.approx(by_k, rel=1e-10) and v.grad[0] == pytest.approx(by_v0, rel=1e-10)
    assert x[None] == pytest.approx(at, rel=1e-11)


def test_newton_on_ndarrays_of_vectors_and_fields_of_matrices():
    """Square roots of matrices and of vectors' components at once, with damping; d sqrt(c) = 1 / (2 sqrt(c))."""
    qd.init(default_fp=qd.f64)
    c = qd.Vector.ndarray(2, qd.f64, 3, needs_grad=True)
    x, y = (qd.Vector.ndarray(2, qd.f64, 3, needs_grad=True) for _ in range(2))
    m, mx, my = (qd.Matrix.field(2, 2, qd.f64, (), needs_grad=True) for _ in range(3))
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def newton(c: ARRAYS, x: ARRAYS, y: ARRAYS):  # type: ignore[reportInvalidTypeForm]
        for i in x:
            y[i] = 0.5 * (x[i] + c[i] / x[i])
        for _ in range(1):
            my[None] = 0.25 * (m[None] - mx[None] @ mx[None]) + mx[None]

    @qd.kernel
    def total(x: ARRAYS):  # type: ignore[reportInvalidTypeForm]
        for i in x:
            loss[None] += x[i][0] + 2.0 * x[i][1]
        for _ in range(1):
            loss[None] += mx[None].trace()

    given = np.random.default_rng(1).uniform(0.5, 2.0, (3, 2))
    c.from_numpy(given)
    x.fill(1.0)
    m.from_numpy(np.diag([1.2, 0.8]))
    mx.from_numpy(np.eye(2))
    with qd.ad.Tape(loss=loss):
        qd.ad.fixed_point(lambda: newton(c, x, y), [x, mx], [y, my])
        total(x)
    np.testing.assert_allclose(c.grad.to_numpy(), [1.0, 2.0] / (2 * np.sqrt(given)), rtol=1e-11)
    np.testing.assert_allclose(np.diag(m.grad.to_numpy()), 1 / (2 * np.sqrt([1.2, 0.8])), rtol=1e-10)


def test_grad_check_repeats_the_iteration():
    p = program()
    p.a.from_numpy(numbers(4))
    p.x.fill(0.1)
    with qd.ad.Tape(loss=p.loss, grad_check=[p.a]):
        qd.ad.fixed_point(p.step, p.x, p.y)
        p.total()


def test_a_launch_that_overwrites_what_the_step_reads_changes_no_gradient():
    p = program()

    @qd.kernel
    def change():
        for i in p.a:
            p.a[i] = 1.0

    found = []
    for change_it in (False, True):
        p.a.fill(0.7)
        p.x.fill(0.1)
        with qd.ad.Tape(loss=p.loss):
            qd.ad.fixed_point(p.step, p.x, p.y)
            p.total()
            if change_it:
                change()
        found.append(p.a.grad.to_numpy())
    assert np.array_equal(*found) and found[0].any()
    assert (p.a.to_numpy() == 1).all()


def test_a_step_that_hands_on_more_than_its_state_is_refused():
    p = program()
    speed = qd.field(qd.f64, N, needs_grad=True, name="speed")

    @qd.kernel
    def damped():
        for i in p.x:
            speed[i] = 0.5 * speed[i] + 0.1 * p.a[i] - 0.1 * p.x[i]
            p.y[i] = p.x[i] + speed[i]

    p.a.fill(0.7)
    with pytest.raises(
        qd.DifferentiationError, match=r"(?s)fixed_point\(.*reads what the step before left there.*name `speed` in the"
    ):
        with qd.ad.Tape(loss=p.loss):
            qd.ad.fixed_point(damped, p.x, p.y)
            p.total()


def test_an_iteration_that_does_not_converge_is_refused():
    p = program()
    with pytest.raises(
        qd.QdrunRuntimeError, match=r"(?s)did not converge in 3 steps: the last one changed the state by .*max_steps="
    ):
        solved(p, numbers(0), max_steps=3)

    @qd.kernel
    def grow():
        for i in p.x:
            p.y[i] = p.x[i] ** 2 + 2.0

    with pytest.raises(qd.QdrunRuntimeError, match=r"the state is not finite after step \d+"):
        qd.ad.fixed_point(grow, p.x, p.y)


def test_in_a_batch_the_trials_that_do_not_converge_are_named():
    p = program(batch=3)
    values = numbers(0, 3, N)
    values[1] = np.nan
    with pytest.raises(qd.TrialsFailed) as caught:
        solved(p, values)
    assert list(caught.value.failed) == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: qd.ad.fixed_point(p.step, p.x, p.x), "an array is given twice"),
        (lambda p: qd.ad.fixed_point(p.step, [p.x], []), "state has 1 arrays and new has 0"),
        (lambda p: qd.ad.fixed_point(p.step, p.x, p.loss), r"is f64 of shape \(5,\) and .* is f64 of shape \(\)"),
        (lambda p: qd.ad.fixed_point(p.step, 3, p.y), "state holds fields and ndarrays, not int"),
        (lambda p: qd.ad.fixed_point(p.step, p.x, p.y, max_steps=0), "max_steps=0 is not a positive whole number"),
        (lambda p: qd.ad.fixed_point(p.step, p.x, p.y, rtol=-1), "tolerances are not negative"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, message):
    with pytest.raises(qd.QdrunRuntimeError, match=message):
        call(program())


def test_a_loop_to_convergence_within_a_kernel_keeps_nothing_if_its_last_step_is_differentiated():
    qd.init(default_fp=qd.f64)
    a, x, loss = (
        qd.field(qd.f64, N, needs_grad=True),
        qd.field(qd.f64, N, needs_grad=True),
        qd.field(qd.f64, (), needs_grad=True),
    )

    @qd.kernel
    def kepler():
        for i in a:  # x - 0.4 sin(x) = a
            e, change = a[i], 1.0
            while abs(change) > 1e-14:
                change = (e - 0.4 * qd.sin(e) - a[i]) / (1.0 - 0.4 * qd.cos(e))
                e -= change
            e = qd.stop_grad(e)
            x[i] = e - (e - 0.4 * qd.sin(e) - a[i]) / (1.0 - 0.4 * qd.cos(e))
            loss[None] += x[i]

    values = numbers(7)
    a.from_numpy(values)
    with qd.ad.Tape(loss=loss):
        kepler()
    found = x.to_numpy()
    np.testing.assert_allclose(found - 0.4 * np.sin(found), values, rtol=1e-13)
    np.testing.assert_allclose(a.grad.to_numpy(), 1 / (1 - 0.4 * np.cos(found)), rtol=1e-12)
    assert kepler.grad.plan().bytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_sums_that_python_sets_to_zero_in_each_step_have_their_gradient_once(seed):
    """``x = b + tanh(sum of a_i x_i) / 20``, where the sum is filled with 0 before each step adds to it."""
    qd.init(default_fp=qd.f64)
    a, b, x, y = (qd.field(qd.f64, N, needs_grad=True) for _ in range(4))
    total, loss = (qd.field(qd.f64, (), needs_grad=True) for _ in range(2))

    @qd.kernel
    def add():
        for i in x:
            total[None] += a[i] * x[i]

    @qd.kernel
    def move():
        for i in x:
            y[i] = b[i] + 0.05 * qd.tanh(total[None])

    @qd.kernel
    def weigh():
        for i in x:
            loss[None] += (i + 1.0) * x[i] ** 2

    def step():
        total.fill(0.0)
        add()
        move()

    def loss_of(values: np.ndarray) -> float:
        p = np.full(N, 0.1)
        for _ in range(100):
            p = values[N:] + 0.05 * np.tanh(values[:N] @ p)
        return float((np.arange(1, N + 1) * p**2).sum())

    values = np.concatenate([numbers(seed), numbers(seed + 10)])
    a.from_numpy(values[:N])
    b.from_numpy(values[N:])
    with qd.ad.Tape(loss=loss):
        qd.ad.fixed_point(step, x, y)
        weigh()
    differences = [(loss_of(values + h) - loss_of(values - h)) / 2e-6 for h in 1e-6 * np.eye(2 * N)]
    np.testing.assert_allclose(np.concatenate([a.grad.to_numpy(), b.grad.to_numpy()]), differences, atol=1e-8)
