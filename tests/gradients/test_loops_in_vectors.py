"""Serial loops and rows whose sums wait: what they leave has the bits of one iteration after another."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.passes.parallel.rows import loop_orders, row_order

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import start


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


@pytest.fixture
def rng():
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def task_of(kernel, *args):
    return kernel.variant(args, {})[0].compiled_kernel.ir.tasks[0]


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("m", [1, 9, 40, 1500])
def test_sums_in_variables_and_memory(m, step, serial, rng):
    """Elements that move, that stay, that data choose; and an element of the outer loop that some of them meet."""
    start(cpu_max_num_threads=1, cpu_lanes=1)
    n = 5
    x, out = qd.field(qd.f64, shape=(n, m)), qd.field(qd.f64, shape=(n, 3))
    to, at = qd.field(qd.f64, shape=m + 8), qd.field(qd.i32, shape=m)
    values, indices = rng.normal(size=(n, m)), rng.integers(0, m, m).astype(np.int32)
    first = int(rng.integers(0, 2))
    begin, end = (first, m) if step > 0 else (m - 1, first - 1)

    @qd.kernel
    def loop():
        qd.loop_config(serialize=serial)
        for i in range(n):
            a, b, c = 0.25, 1.0, -3.0
            for j in range(begin, end, step):
                v = x[i, j] * 0.5
                w = qd.sqrt(v * v + 1.0) / (v * v + 2.0)
                a += w * v
                b -= w
                b += v / (w + 3.0)
                c = max(c, v)
                to[i] += w
                to[j + 1] += v
                to[at[j]] -= w * 0.3
                to[i + 1] -= v
            out[i, 0] = a
            out[i, 1] = b
            out[i, 2] = c

    x.from_numpy(values)
    at.from_numpy(indices)
    loop()
    want, sums = np.zeros(m + 8), np.zeros((n, 3))
    for i in range(n):
        a, b, c = np.float64(0.25), np.float64(1.0), np.float64(-3.0)
        for j in range(begin, end, step):
            v = values[i, j] * 0.5
            w = np.sqrt(v * v + 1.0) / (v * v + 2.0)
            a += w * v
            b -= w
            b += v / (w + 3.0)
            c = max(c, v)
            want[i] += w
            want[j + 1] += v
            want[indices[j]] -= w * 0.3
            want[i + 1] -= v
        sums[i] = a, b, c
    np.testing.assert_array_equal(out.to_numpy(), sums)
    np.testing.assert_array_equal(to.to_numpy(), want)
    if m >= 40:
        (found,) = loop_orders(task_of(loop)).values()
        assert [len(s.updates) for s in found.sums] == [1, 2, 1] and len(found.adds) == 4


def orders(body):
    """The orders of the serial loops in a loop over 40 numbers, and the last index of the outer loop."""
    start(cpu_max_num_threads=1, cpu_lanes=1)
    x, y = qd.field(qd.f64, shape=(8, 40)), qd.field(qd.f64, shape=64)
    return loop_orders(task_of(body(x, y)))


def test_loops_that_pass_something_on_are_not_in_vectors():
    def carried(x, y):
        @qd.kernel
        def k():
            for i in range(8):
                a, last = 0.0, 1.0
                for j in range(40):
                    v = qd.exp(x[i, j]) / (1.0 + last)
                    a += v
                    last = x[i, j] * a
                y[i] = a + last

        return k

    def read(x, y):
        @qd.kernel
        def k():
            for i in range(8):
                a = 0.0
                for j in range(40):
                    a += qd.exp(x[i, j]) / 3.0
                    x[i, j] = a
                y[i] = a

        return k

    def neighbours(x, y):
        @qd.kernel
        def k():
            for i in range(8):
                a = 0.0
                for j in range(39):
                    v = qd.exp(x[i, j]) / 3.0
                    a += v
                    x[i, j + 1] = v
                y[i] = a

        return k

    def read_back(x, y):
        @qd.kernel
        def k():
            qd.loop_config(serialize=True)
            for _ in range(8):
                for j in range(39):
                    y[j + 1] += qd.exp(y[j] / 3.0)

        return k

    for body in (carried, read, neighbours, read_back):
        assert not orders(body), body.__name__


@pytest.mark.parametrize("n", [3, 50, 3000])
def test_rows_add_where_data_say(n, rng):
    start(cpu_max_num_threads=2, cpu_lanes=1)
    x, to = qd.field(qd.f64, shape=n), qd.Vector.field(2, qd.f64, shape=7)
    at = qd.Vector.field(2, qd.i32, shape=n)
    values, indices = rng.normal(size=n), rng.integers(0, 7, (n, 2)).astype(np.int32)

    @qd.kernel
    def push():
        for i in range(n):
            f = qd.Vector([x[i], 1.0]) / qd.sqrt(1.0 + x[i] * x[i])
            to[at[i][0]] += f
            to[at[i][1]] -= f

    x.from_numpy(values)
    at.from_numpy(indices)
    push()
    want = np.zeros((7, 2))
    for i in range(n):
        f = np.array([values[i], 1.0]) / np.sqrt(1.0 + values[i] * values[i])
        want[indices[i, 0]] += f
        want[indices[i, 1]] -= f
    np.testing.assert_array_equal(to.to_numpy(), want)
    found = row_order(task_of(push))
    assert found is not None and len(found.adds) == 4


def test_gradients_through_such_loops(rng):
    """A network and pairs of bodies: the gradient of random weights agrees with differences, and with forward mode's."""

    def made(weights, places, dual):
        start(cpu_max_num_threads=1)
        w = qd.field(qd.f64, shape=(24, 3), needs_grad=True, needs_dual=dual)
        p = qd.field(qd.f64, shape=24, needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True, needs_dual=dual)
        w.from_numpy(weights)
        p.from_numpy(places)

        @qd.kernel
        def play():
            for _ in range(1):
                state = 0.3
                for _t in range(6):
                    push = 0.0
                    for h in range(24):
                        push += w[h, 2] * qd.tanh(w[h, 0] * state + w[h, 1])
                    state += 0.1 * push
                loss[None] += state

        @qd.kernel
        def pairs():
            for i in range(24):
                pull = 0.0
                for j in range(24):
                    d = p[j] - p[i]
                    pull += d / qd.sqrt(d * d + 0.5) * qd.exp(-d * d)
                loss[None] += pull * pull * p[i]

        return w, p, loss, play, pairs

    def reverse(weights, places):
        w, p, loss, play, pairs = made(weights, places, False)
        with qd.ad.Tape(loss):
            play()
            pairs()
        return float(loss[None]), w.grad.to_numpy(), p.grad.to_numpy()

    def forward(weights, places, direction):
        w, _, loss, play, _ = made(weights, places, True)
        with qd.ad.FwdMode(loss=loss, param=w, seed=direction.ravel()):
            play()
        return float(loss.dual[None])

    weights, places = rng.normal(size=(24, 3)), rng.normal(size=24)
    _, dw, dp = reverse(weights, places)
    aw, ap = rng.normal(size=(24, 3)), rng.normal(size=24)
    up, low = (reverse(weights + s * 1e-6 * aw, places + s * 1e-6 * ap)[0] for s in (1, -1))
    assert (dw * aw).sum() + (dp * ap).sum() == pytest.approx((up - low) / 2e-6, rel=1e-6, abs=1e-7)
    assert forward(weights, places, aw) == pytest.approx((dw * aw).sum(), rel=1e-10)


def test_loads_under_a_condition_touch_no_memory_where_it_does_not_hold(rng):
    """Vectors of such a loop load under a mask: the element may lie far outside of all memory."""
    start(cpu_max_num_threads=1, cpu_lanes=1)
    n = 64
    x, y, far = qd.field(qd.f64, shape=n), qd.field(qd.f64, shape=n), qd.field(qd.i32, shape=n)
    values = rng.normal(size=n)

    @qd.kernel
    def choose():
        for i in range(n):
            if far[i] == 0:
                y[i] += x[i + far[i] * 30_000_000]

    x.from_numpy(values)
    far.from_numpy(np.arange(n, dtype=np.int32) % 3)
    choose()
    np.testing.assert_array_equal(y.to_numpy(), np.where(np.arange(n) % 3 == 0, values, 0.0))
    assert row_order(task_of(choose)) is not None
