"""``qd.ad.checkpointed_steps``: the gradient of a window of time steps is, to the bit, that of arrays that hold all steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qdrun as qd

from .steps_chain import Chain, M, plainly


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


def test_one_window_is_the_plain_tape():
    chain = Chain(9, 9)
    plan = chain.run()
    assert chain.results() == plainly(9)
    assert (plan.windows, plan.snapshots, plan.replays, plan.snapshot_bytes) == (1, 0, 0, 0)


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_few_steps(n, window):
    chain = Chain(n, window)
    chain.run()
    assert chain.results() == plainly(n)


def check_windows(n, window, snapshots, seed):
    expected = plainly(n, seed)
    chain = Chain(n, window, seed)
    state = (2 * 8 + 0) * M + 4
    plan = chain.run(budget=(snapshots + 1) * state)
    assert chain.results() == expected
    if plan.windows > 1:
        assert plan.snapshots == min(snapshots, plan.windows - 1)
        peaks = qd.current_program().peaks()
        assert peaks["snapshots"] == plan.snapshot_bytes + 8 * (n + 1) + 8  # and copies of log and loss
    assert "snapshots" not in qd.current_program().usage()


@settings(max_examples=6, deadline=None)
@given(st.integers(2, 30), st.integers(1, 8), st.integers(1, 6), st.integers(0, 99))
def test_windows_and_snapshots_change_no_bit(n, window, snapshots, seed):
    check_windows(n, window, snapshots, seed)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(2, 60), st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_windows_and_snapshots_change_no_bit_in_many_cases(n, window, snapshots, seed):
    check_windows(n, window, snapshots, seed)


@pytest.mark.parametrize("levels", [2, 3, 4])
def test_levels_bound_how_often_a_step_is_run(levels):
    chain = Chain(23, 2)
    runs = dict.fromkeys(range(23), 0)
    step = chain.step

    def counted(t, k):
        runs[t] += 1
        step(t, k)

    chain.step = counted
    plan = chain.run(levels=levels)
    assert chain.results() == plainly(23)
    assert max(runs.values()) == levels == plan.levels
    assert sum(runs.values()) == 23 + plan.replays


def test_gradient_against_differences():
    def loss_of(stiff):
        chain = Chain(12, 3)
        chain.stiff.from_numpy(stiff)
        chain.run(levels=3)
        return chain.loss[None], chain.stiff.grad.to_numpy()

    point = np.random.default_rng(3).uniform(0.5, 1.5, M)
    gradient = loss_of(point)[1]
    for i in range(M):
        up, low = (loss_of(point + sign * 1e-6 * np.eye(M)[i])[0] for sign in (1, -1))
        assert gradient[i] == pytest.approx((up - low) / 2e-6, rel=1e-6, abs=1e-9)


def test_outside_of_a_tape_the_steps_run_forward_on_the_window():
    expected = plainly(11)
    chain = Chain(11, 3)
    qd.ad.checkpointed_steps(chain.step, 11, [chain.x, chain.v, chain.c], [chain.f])
    assert [chain.x.to_numpy()[3].tobytes(), chain.v.to_numpy()[3].tobytes()] == expected[:2]
    assert "snapshots" not in qd.current_program().peaks()


def test_gradients_of_several_tapes_add_up():
    def twice(window):
        chain = Chain(7, window)
        first = np.zeros((window + 1, M))
        first[0] = np.linspace(-1, 1, M)
        for clear in (True, False):
            chain.x.from_numpy(first)
            chain.v.fill(0.0)
            chain.c.fill(0)
            chain.run(clear_gradients=clear)
        return chain.results()

    assert twice(2) == twice(3) == twice(7)


def test_two_threads_agree_to_rounding():
    results = []
    for window in (20, 3):
        chain = Chain(20, window, cpu_max_num_threads=2)
        chain.run(validation=True)
        results.append(chain.stiff.grad.to_numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-10)


def test_grad_check_and_debug_go_through_windows():
    chain = Chain(8, 3)
    chain.kick = lambda k: None
    chain.run(grad_check=[chain.stiff])
    expected = chain.results()
    chain = Chain(8, 3, debug=True)
    chain.kick = lambda k: None
    chain.run()
    assert chain.results() == expected


# ---- arrays of every kind
def spiral(make, window, n, step_of):
    """Runs n steps of z -> z + h g(z) on arrays that ``make(slots)`` gives."""
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    z = make(window + 1)
    step, end = step_of(z, loss)
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, n, z)
        end(min(n, window))
    return z, loss


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("kind", ["row-major", "layout", "tensor"])
def test_ndarrays(kind, window):
    def make(slots):
        if kind == "tensor":
            z = qd.tensor(qd.f64, (slots, 3), needs_grad=True, backend=qd.Backend.NDARRAY)
        else:
            z = qd.ndarray(qd.f64, (slots, 3), needs_grad=True, layout=(1, 0) if kind == "layout" else None)
        z.fill(0.0)
        for i in range(3):
            z[0, i] = 0.3 + i
        return z

    def step_of(z, loss):
        @qd.kernel
        def move(a: qd.types.ndarray(dtype=qd.f64, ndim=2), k: qd.i32):
            for i in range(3):
                a[k + 1, i] = a[k, i] + 0.1 * qd.sin(a[k, (i + 1) % 3])

        @qd.kernel
        def end(a: qd.types.ndarray(dtype=qd.f64, ndim=2), k: qd.i32):
            for i in range(3):
                loss[None] += a[k, i] ** 2

        return lambda t, k: move(z, k), lambda k: end(z, k)

    found = []
    for w in (window, 7):
        qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
        z, loss = spiral(make, w, 7, step_of)
        found.append((loss[None], z.grad.to_numpy()[0].tolist(), z.to_numpy()[min(w, 7)].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("form", ["vector", "soa", "order", "struct"])
def test_fields_of_every_form(form, window):
    def make(slots):
        if form == "struct":
            z = qd.Struct.field({"p": qd.f64, "q": qd.math.vec2}, shape=(slots, 3), needs_grad=True)
            z.p[0, 1] = 0.5
            return z
        if form == "order":
            z = qd.Vector.field(2, qd.f64, shape=(slots, 3), needs_grad=True, order="ji")
        else:
            z = qd.Vector.field(
                2, qd.f64, shape=(slots, 3), needs_grad=True, layout=qd.Layout.SOA if form == "soa" else qd.Layout.AOS
            )
        z[0, 1] = [0.5, 0.25]
        return z

    def step_of(z, loss):
        p, q = (z.p, z.q) if form == "struct" else (z, z)

        @qd.kernel
        def move(k: qd.i32):
            for i in range(3):
                q[k + 1, i] = q[k, i] + 0.1 * qd.sin(q[k, i] + p[k, i])
                if qd.static(form == "struct"):
                    p[k + 1, i] = p[k, i] + 0.1 * q[k, i][0] * p[k, i]

        @qd.kernel
        def end(k: qd.i32):
            for i in range(3):
                loss[None] += q[k, i].norm_sqr()

        return lambda t, k: move(k), end

    found = []
    for w in (window, 8):
        qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
        z, loss = spiral(make, w, 8, step_of)
        gradient = (z.q if form == "struct" else z).grad.to_numpy()[0]
        found.append((loss[None], gradient.tolist()))
    assert found[0] == found[1]
    assert np.abs(found[0][1]).max() > 0


# ---- what Python does in a step
def scalar_chain(window, n, body, **init):
    """x[k + 1] = sin(x[k]) * a, with ``body(t, k, x)`` between the launches; loss = x[end] ** 2."""
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1, **init)
    x = qd.field(qd.f64, shape=(window + 1, 2), needs_grad=True, name="x")
    a = qd.field(qd.f64, shape=(), needs_grad=True, name="a")
    loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
    x[0, 0], x[0, 1], a[None] = 0.7, 0.4, 1.1

    @qd.kernel
    def move(k: qd.i32):
        for i in range(2):
            x[k + 1, i] = qd.sin(x[k, 0] + x[k, i]) * a[None]

    @qd.kernel
    def end(k: qd.i32):
        loss[None] += x[k, 0] ** 2 + x[k, 1]

    def step(t, k):
        body("before", t, k, x)
        move(k)
        body("after", t, k, x)

    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, n, [x])
        end(min(n, window))
    return loss[None], a.grad[None], x.grad.to_numpy()[0].tolist(), x.to_numpy()[min(n, window)].tolist()


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_assignments_from_python_stop_gradients_as_with_all_steps(window, place):
    def body(where, t, k, x):
        if where == place and t % 2 == 1:
            x[k if place == "before" else k + 1, 1] = 0.05 * t

    if place == "before":  # the state that the step before it left: with all steps, its gradient reads it no more
        assert scalar_chain(window, 7, body)[:2] == pytest.approx(scalar_chain(7, 7, body)[:2], rel=1e-14)
    else:
        assert scalar_chain(window, 7, body) == scalar_chain(7, 7, body)


def test_functions_with_gradients_of_their_own_in_a_step():
    def run(window):
        qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
        x = qd.field(qd.f64, shape=window + 1, needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)
        seen = qd.field(qd.f64, shape=())
        x[0] = 1.4

        @qd.kernel
        def move(k: qd.i32):
            x[k + 1] = qd.floor(8.0 * qd.sin(x[k])) / 8.0

        @qd.kernel
        def through(k: qd.i32):
            x.grad[k] += x.grad[k + 1] * qd.cos(x[k])
            x.grad[k + 1] = 0.0

        @qd.kernel
        def note(k: qd.i32):
            seen[None] += x[k]

        @qd.kernel
        def end(k: qd.i32):
            loss[None] += x[k] ** 2

        @qd.ad.grad_replaced
        def smooth(k):
            move(k)

        @qd.ad.grad_for(smooth)
        def smooth_grad(k):
            through(k)

        @qd.ad.no_grad
        def look(k):
            note(k)

        def step(t, k):
            smooth(k)
            look(k)

        with qd.ad.Tape(loss=loss):
            qd.ad.checkpointed_steps(step, 6, x)
            end(min(6, window))
        return loss[None], x.grad[0], seen[None]

    assert run(1) == run(2) == run(4) == run(6)
    assert run(1)[1] != 0


def test_a_function_with_a_gradient_of_its_own_around_the_steps():
    chain = Chain(7, 3)

    @qd.ad.grad_replaced
    def all_steps():
        qd.ad.checkpointed_steps(chain.step, 7, [chain.x, chain.v, chain.c], [chain.f])

    @qd.ad.grad_for(all_steps)
    def gradient():
        chain.stiff.grad[0] = 12.0

    with qd.ad.Tape(loss=chain.loss):
        all_steps()
        chain.end(3)
    assert chain.stiff.grad[0] == 12.0


def test_launches_around_the_steps():
    """Two simulations in one tape, the second one begun by the first; a loss of the initial state before."""

    def run(window):
        qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
        a, b = (qd.field(qd.f64, shape=window + 1, needs_grad=True) for _ in range(2))
        loss, p = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
        p[None] = 0.6

        @qd.kernel
        def begin():
            a[0] = p[None] ** 2

        @qd.kernel
        def first():
            loss[None] += a[0] ** 3

        @qd.kernel
        def move(s: qd.template(), k: qd.i32):
            s[k + 1] = s[k] + 0.1 * qd.sin(3 * s[k] + p[None])

        @qd.kernel
        def hand(k: qd.i32):
            b[0] = a[k] ** 2

        @qd.kernel
        def end(k: qd.i32):
            loss[None] += b[k] ** 2 * a[k]

        with qd.ad.Tape(loss=loss):
            begin()
            first()
            qd.ad.checkpointed_steps(lambda t, k: move(a, k), 7, [a])
            hand(min(7, window))
            qd.ad.checkpointed_steps(lambda t, k: move(b, k), 7, [b])
            end(min(7, window))
        return loss[None], p.grad[None]

    assert run(1) == run(2) == run(3) == run(7)


def test_forward_mode_goes_through_windows():
    def run(window):
        qd.init(default_fp=qd.f64)
        x = qd.field(qd.f64, shape=window + 1, needs_dual=True)
        p = qd.field(qd.f64, shape=(), needs_dual=True)
        x[0], p[None] = 0.3, 1.2

        @qd.kernel
        def move(k: qd.i32):
            x[k + 1] = qd.sin(p[None] * x[k]) + x[k]

        with qd.ad.FwdMode(loss=x, param=p):
            qd.ad.checkpointed_steps(lambda t, k: move(k), 5, [x])
        return x[window], x.dual[window]

    assert run(1) == run(2) == run(5)
    assert run(1)[1] != 0


def test_a_step_that_launches_nothing():
    chain = Chain(5, 2)
    with qd.ad.Tape(loss=chain.loss):
        qd.ad.checkpointed_steps(lambda t, k: None, 5, [chain.x])
        chain.end(2)
    assert not chain.x.grad.to_numpy().any() and not chain.x.to_numpy()[2].any()


def test_memory_budget_of_the_program_leaves_room_for_the_heap():
    plan = Chain(240, 2).run()
    assert plan.snapshots == 119
    used = sum(qd.current_program().usage().values())
    chain = Chain(240, 2, memory_budget=used + 8000)
    assert 10 < chain.run().snapshots < 80
    assert qd.current_program().peak_bytes <= used + 8000
    assert chain.results() == plainly(240)
