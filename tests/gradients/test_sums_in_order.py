"""Sums of reals that iterations of a parallel loop add to one element: the same bits on every run and for any number of threads."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import start

N, M = 3001, 37
THREADS = (1, 2, 5)


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


@pytest.fixture
def rng():
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


Loop = Callable[[Any, Any, Any, Any], Any]


def plain(x, at, to, total):
    @qd.kernel
    def loop():
        for i in range(N):
            to[at[i]] += x[i] * x[i]

    return loop


def computed(x, at, to, total):
    @qd.kernel
    def loop():
        for i in range(N):
            a = x[i]
            for _ in range(6):
                a = qd.sin(a) + qd.exp(-a * a)
            to[at[i]] -= a
            to[(at[i] + 1) % M] += a * x[i]

    return loop


def computed_and_reduced(x, at, to, total):
    @qd.kernel
    def loop():
        for i in range(N):
            a = qd.sin(qd.exp(qd.cos(qd.tanh(x[i]) + 0.5) * 0.7))
            to[at[i]] += a
            total[None] += a * a

    return loop


def many_of_one_iteration(x, at, to, total):
    """More additions in a chunk than a log holds."""

    @qd.kernel
    def loop():
        for i in range(60):
            for j in range(500):
                to[at[(i * 500 + j) % N]] += qd.exp(qd.sin(qd.tanh(qd.cos(x[(i + j) % N]) * 0.3 + 0.1)))

    return loop


def shared_weights(x, at, to, total):
    """The index of the element is the same in every lane."""

    @qd.kernel
    def loop():
        for i in range(N):
            for k in range(M):
                if at[i] > k:
                    to[k] += qd.tanh(x[i] * k)

    return loop


def of_two_types(x, at, to, total):
    """Additions that cannot share a log, one of them of a type that has none."""
    count, halves = qd.field(qd.f32, shape=M), qd.field(qd.f16, shape=M)

    @qd.kernel
    def loop():
        for i in range(N):
            a = qd.sin(qd.exp(qd.cos(qd.tanh(x[i]))))
            to[at[i]] += a
            count[at[i]] += qd.cast(1, qd.f32)
            halves[at[i]] += qd.cast(a, qd.f16)

    return loop


def multiplied(x, at, to, total):
    @qd.kernel
    def loop():
        for i in range(N):
            qd.atomic_mul(to[at[i]], 1.0 + 0.01 * qd.sin(qd.exp(qd.cos(qd.tanh(x[i])))))

    return loop


def branches(x, at, to, total):
    @qd.kernel
    def loop():
        for i in range(N):
            a = abs(x[i]) + 0.1
            while a < 4.0:
                a = a * 1.3 + 0.2
                if a > 2.0:
                    to[at[i]] += qd.exp(-a) * qd.sin(a) * qd.cos(a * a)

    return loop


LOOPS = [plain, computed, computed_and_reduced, many_of_one_iteration, shared_weights, of_two_types, multiplied, branches]


def results(make: Loop, dtype: Any, values: np.ndarray, indices: np.ndarray, threads: int, **options: Any) -> list[np.ndarray]:
    """What the loop leaves, and the gradient of a sum over it."""
    start(cpu_max_num_threads=threads, **options)
    x, to = (qd.field(dtype, shape=n, needs_grad=True) for n in (N, M))
    total, loss = (qd.field(dtype, shape=(), needs_grad=True) for _ in range(2))
    at = qd.field(qd.i32, shape=N)
    x.from_numpy(values.astype(np.float32 if dtype is qd.f32 else np.float64))
    at.from_numpy(indices)
    to.fill(0.5)
    loop = make(x, at, to, total)

    @qd.kernel
    def weigh():
        for k in range(M):
            loss[None] += to[k] * to[k] * (k + 1)
        loss[None] += total[None]

    with qd.ad.Tape(loss):
        loop()
        weigh()
    return [to.to_numpy(), x.grad.to_numpy(), total.to_numpy(), loss.to_numpy()]


CASES = [(make, qd.f64, 1) for make in LOOPS]
CASES += [(make, qd.f64, 8) for make in (computed, computed_and_reduced, shared_weights)]
CASES += [(make, qd.f32, 1) for make in (plain, computed)]


@pytest.mark.parametrize(("make", "dtype", "lanes"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_bits_are_the_same_for_any_number_of_threads(make, dtype, lanes, rng):
    values, indices = rng.uniform(-1, 1, N), rng.integers(0, M, N).astype(np.int32)
    first, *others = [results(make, dtype, values, indices, n, cpu_lanes=lanes) for n in THREADS]
    for other in others:
        assert [a.tobytes() for a in first] == [b.tobytes() for b in other]


@pytest.mark.parametrize(
    "make", LOOPS[:-1], ids=lambda f: f.__name__
)  # the jumps of the last one may lie between two differences
def test_gradients_are_those_of_differences(make, rng):
    values, indices = rng.uniform(-1, 1, N), rng.integers(0, M, N).astype(np.int32)
    gradient = results(make, qd.f64, values, indices, 2)[1]
    by = rng.uniform(-1, 1, N)
    up, low = (results(make, qd.f64, values + s * 1e-6 * by, indices, 1)[3] for s in (1, -1))
    assert gradient @ by == pytest.approx(float(up - low) / 2e-6, rel=1e-4, abs=1e-4)


def test_sums_are_those_of_numpy_in_the_order_of_the_iterations(rng):
    values, indices = rng.uniform(-1, 1, N), rng.integers(0, M, N).astype(np.int32)
    want = np.full(M, 0.5)
    np.add.at(want, indices, values * values)
    found = results(plain, qd.f64, values, indices, 5, cpu_lanes=1)[0]
    np.testing.assert_array_equal(found, want)


def test_additions_of_f16_and_f32_share_no_log(rng):
    start(cpu_max_num_threads=2)
    values = rng.uniform(-1, 1, N).astype(np.float32)
    x, single, half = qd.field(qd.f32, shape=N), qd.field(qd.f32, shape=M), qd.field(qd.f16, shape=M)
    x.from_numpy(values)

    @qd.kernel
    def loop(rounds: qd.i32):
        for i in range(N):
            a = x[i]
            for _ in range(rounds):
                a = qd.sin(qd.exp(qd.cos(a)))
            single[(i * 7) % M] += a
            half[(i * 7) % M] += qd.cast(1, qd.f16)

    loop(0)
    want = np.zeros(M)
    np.add.at(want, np.arange(N) * 7 % M, values)
    np.testing.assert_allclose(single.to_numpy(), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(half.to_numpy(), np.bincount(np.arange(N) * 7 % M, minlength=M))


@pytest.mark.parametrize("heavy", [False, True], ids=["on one thread", "by logs"])
def test_launches_of_two_python_threads_lose_no_addition(heavy):
    n = 100_000  # long enough for the interpreter's lock to be released
    start(cpu_max_num_threads=2)
    to = qd.field(qd.f64, shape=M)

    @qd.kernel
    def add(k: qd.i32):
        for i in range(n):
            a = 1.0 + i
            if qd.static(heavy):
                for _ in range(8):
                    a = qd.exp(qd.sin(a))
            to[i % M] += qd.select(a > -1.0, 1.0, a)

    add(0)
    assert (b"qd_add_in_order_f64" in add.variant((0,), {})[0].executable.compiled.object_bytes) == heavy
    to.fill(0.0)
    both = [threading.Thread(target=copy_context().run, args=(lambda: [add(k) for k in range(12)],)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    np.testing.assert_array_equal(to.to_numpy(), 24.0 * np.bincount(np.arange(n) % M, minlength=M))


def test_an_iteration_that_fails_ends_the_loop_with_its_error(rng):
    start(cpu_max_num_threads=5, debug=True)
    x, to = qd.field(qd.f64, shape=N), qd.field(qd.f64, shape=M)
    x.from_numpy(rng.uniform(-1, 1, N))

    @qd.kernel
    def add(bad: qd.i32):
        for i in range(N):
            a = x[i]
            for _ in range(8):
                a = qd.exp(qd.sin(a))
            assert i != bad
            to[i % M] += a

    for bad in (0, 1500, N - 1):
        with pytest.raises(qd.QdrunAssertionError, match="assert"):
            add(bad)
    to.fill(0.0)
    add(-1)
    assert np.isfinite(to.to_numpy()).all() and to.to_numpy().all()


def test_a_loop_over_active_elements_adds_in_their_order(rng):
    values, active = rng.uniform(-1, 1, 512), rng.permutation(512)[:300]

    def left(threads: int) -> np.ndarray:
        start(cpu_max_num_threads=threads)
        x, to = qd.field(qd.f64), qd.field(qd.f64, shape=M)
        qd.root.pointer(qd.i, 64).dense(qd.i, 8).place(x)

        @qd.kernel
        def fill(at: qd.types.ndarray(dtype=qd.i32, ndim=1), v: qd.types.ndarray(dtype=qd.f64, ndim=1)):
            for k in range(300):
                x[at[k]] = v[at[k]]

        @qd.kernel
        def add():
            for i in x:
                to[(i * 7) % M] += x[i]

        fill(active.astype(np.int32), values)
        add()
        return to.to_numpy()

    found = [left(threads) for threads in THREADS]
    assert len({f.tobytes() for f in found}) == 1
    np.testing.assert_allclose(found[0].sum(), values[active].sum())


def test_integers_and_minima_of_such_loops_are_right(rng):
    start(cpu_max_num_threads=5)
    values, indices = rng.uniform(-1, 1, N), rng.integers(0, M, N).astype(np.int32)
    x, to, least = qd.field(qd.f64, shape=N), qd.field(qd.f64, shape=M), qd.field(qd.f64, shape=M)
    at, count = qd.field(qd.i32, shape=N), qd.field(qd.i32, shape=M)
    x.from_numpy(values)
    at.from_numpy(indices)

    @qd.kernel
    def loop(rounds: qd.i32):
        for i in range(N):
            a = x[i]
            for _ in range(rounds):
                a = qd.sin(qd.exp(qd.cos(a)))
            to[at[i]] += a
            count[at[i]] += 1
            qd.atomic_min(least[at[i]], x[i])

    loop(0)
    want = np.zeros(M)
    np.minimum.at(want, indices, values)
    np.testing.assert_array_equal(least.to_numpy(), want)
    np.testing.assert_array_equal(count.to_numpy(), np.bincount(indices, minlength=M))


@pytest.mark.parametrize("dtype", [qd.f64, qd.f32, qd.f16])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 900, 5001])
def test_a_sum_of_one_chunk_has_one_partial_sum_for_every_sixteenth_iteration(n, dtype, rng):
    values = rng.uniform(-1, 1, n).astype({"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype.name])
    partial = np.zeros(16, values.dtype)
    for k, v in enumerate(values):
        partial[k % 16] += v
    while len(partial) > 1:
        partial = partial[: len(partial) // 2] + partial[len(partial) // 2 :]
    want = values.dtype.type(0.5) + partial[0]

    def found(**options):
        start(**options)
        x, total = qd.field(dtype, shape=n), qd.field(dtype, shape=())
        x.from_numpy(values)
        total.fill(0.5)

        @qd.kernel
        def add():
            for i in range(n):
                total[None] += x[i]

        add()
        return total.to_numpy()

    for options in ({"cpu_lanes": 1}, {"cpu_lanes": 8}, {"cpu_lanes": 16}, {"debug": True}, {"arch": "python"}):
        assert found(**options) == want, options


def test_sums_and_extremes_of_one_element_have_the_same_bits_in_lanes_rows_and_under_checks(rng):
    values = rng.uniform(-1, 1, (61, 37))

    def found(**options):
        start(**options)
        x = qd.field(qd.f64, shape=values.shape, needs_grad=True)
        weight, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
        most = qd.field(qd.f64, shape=())
        x.from_numpy(values)
        weight[None] = 0.7

        @qd.kernel
        def add():
            for i, j in qd.ndrange(*values.shape):
                for k in range(3):
                    loss[None] += qd.sin(weight[None] * x[i, j]) * k
                if x[i, j] > 0.2:
                    loss[None] -= x[i, j]

        @qd.kernel
        def highest():
            for i, j in qd.ndrange(*values.shape):
                qd.atomic_max(most[None], x[i, j])

        with qd.ad.Tape(loss):
            add()
        highest()
        return [a.to_numpy().tobytes() for a in (loss, x.grad, weight.grad, most)]

    first = found(cpu_lanes=1)
    for options in (
        {"cpu_lanes": 8},
        {"cpu_lanes": 1, "debug": True},
        {"cpu_lanes": 1, "cpu_max_num_threads": 1},
        {"nan_check": True},
    ):
        assert found(**options) == first, options
