"""Forward mode of compiled kernels: against central differences and against reverse mode (u.Jv == v.J'u), in f64."""

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


# ---- random kernels
class Case:
    """One random kernel ``k(n, c)`` in a program of its own: fields x, v, an ndarray c; results in y."""

    def __init__(self, source: str, seed: int, **options) -> None:
        self.program = qd.init(default_fp=qd.f64, offline_cache=False, **options)
        both = {"needs_grad": True, "needs_dual": True}
        self.x = qd.field(qd.f64, shape=8, **both)
        self.v = qd.Vector.field(2, dtype=qd.f64, shape=4, **both)
        self.y = qd.field(qd.f64, shape=3, **both)
        cnt = qd.field(qd.i32, shape=6)
        self.c = qd.ndarray(qd.f64, 5, **both)
        r = np.random.default_rng(seed)
        self.inputs = (self.x, self.v, self.c)
        for t in self.inputs:
            t.from_numpy(r.uniform(-1.2, 1.2, t.to_numpy().shape))
        cnt.from_numpy(r.integers(0, 5, 6))
        self.n = int(r.integers(0, 6))
        self.weights = r.uniform(0.5, 1.5, 3)
        self.directions = [r.uniform(-1, 1, t.to_numpy().shape) for t in self.inputs]
        self.k = compile_source(source, {"x": self.x, "v": self.v, "y": self.y, "cnt": cnt})["k"]

    def value(self, step: float = 0.0) -> float:
        """The weighted results at the point, moved by ``step`` in the direction."""
        before = [t.to_numpy() for t in self.inputs]
        for t, at, d in zip(self.inputs, before, self.directions):
            t.from_numpy(at + step * d)
        self.y.fill(0.0)
        self.k(self.n, self.c)
        for t, at in zip(self.inputs, before):
            t.from_numpy(at)
        return float(self.y.to_numpy() @ self.weights)

    def slope(self, h: float) -> float:
        return (self.value(h) - self.value(-h)) / (2 * h)

    def tangent(self) -> np.ndarray:
        """Jv; one pass for each input: tangents add up."""
        total = np.zeros(3)
        for t, d in zip(self.inputs, self.directions):
            self.y.fill(0.0)
            with qd.ad.FwdMode(loss=self.y, param=t, seed=d):
                self.k(self.n, self.c)
            total += self.y.dual.to_numpy()
        return total

    def gradient(self) -> list[np.ndarray]:
        """J'u."""
        for t in self.inputs:
            t.grad.fill(0.0)
        self.y.grad.from_numpy(self.weights)
        self.k.grad(self.n, self.c)
        return [t.grad.to_numpy() for t in self.inputs]


def check(source: str, seed: int, **options) -> None:
    case = Case(source, seed, **options)
    with case.program, np.errstate(all="ignore"):
        tangent = case.tangent()
        values = case.y.to_numpy()
        assume(np.isfinite(case.value()) and np.isfinite(tangent).all())
        # sums in another order, and scalars call libm where lanes call our own functions
        np.testing.assert_allclose(values, case.y.to_numpy(), rtol=1e-9, atol=1e-9 * (1 + np.abs(values).max()))
        coarse, fine = case.slope(1e-5), case.slope(1e-6)
        got = float(tangent @ case.weights)
        scale = max(1.0, abs(fine))
        # no branch flips between the points, and the differences are no noise of sines of 1e300
        if scale < 1e6 and abs(coarse - fine) <= 1e-7 * scale:
            assert abs(got - coarse) <= 1e-6 * scale
        try:
            gradient = case.gradient()
        except qd.DifferentiationError:
            return
        other = sum(float((g * d).sum()) for g, d in zip(gradient, case.directions))
        largest = max(1.0, *(float(np.abs(g).max()) for g in gradient))
        assume(largest < 1e6)  # beyond that the roundings of the two ways grow into the digits that are compared
        assert abs(got - other) <= 1e-9 * largest


@settings(max_examples=3, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_random_kernels(source, seed):
    check(source, seed, arch=qd.cpu)


@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_random_kernels_on_the_interpreter(source, seed):
    check(source, seed, arch=qd.python)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_more_random_kernels(source, seed):
    check(source, seed, arch=qd.cpu)


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(rows=37), st.integers(0, 10**6), st.sampled_from([1, 4, 16]))
def test_random_kernels_in_lanes(source, seed, lanes):
    check(source, seed, arch=qd.cpu, cpu_lanes=lanes)


# ---- what reverse mode finds hard, and what the peer's forward mode gets wrong or refuses
@pytest.fixture(params=["cpu", "python"])
def program(request):
    # one thread: `compare` wants the same bits from two launches, and atomics of several threads come in any order
    with qd.init(arch=request.param, default_fp=qd.f64, offline_cache=False, cpu_max_num_threads=1) as program:
        yield program


def compare(k, x, y, *args, seed: int = 0, rtol: float = 1e-7, bits: float = 0.0) -> np.ndarray:
    """Jv of ``k(*args)`` from x to y, checked against central differences of runs that start with the same y. ``bits``: how far two
    launches may differ."""
    r = np.random.default_rng(seed)
    start, first = x.to_numpy(), y.to_numpy()
    direction, h = r.uniform(-1, 1, start.shape), 1e-6

    def value(at: np.ndarray) -> np.ndarray:
        x.from_numpy(at)
        y.from_numpy(first)
        k(*args)
        return y.to_numpy()

    expected = (value(start + h * direction) - value(start - h * direction)) / (2 * h)
    plain = value(start)
    x.from_numpy(start)
    y.from_numpy(first)
    with qd.ad.FwdMode(loss=y, param=x, seed=direction):
        k(*args)
    got = y.dual.to_numpy()
    np.testing.assert_allclose(y.to_numpy(), plain, rtol=bits, atol=0)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-7)
    assert np.abs(got).max() > 1e-3
    return got


def pair(n: int, seed: int = 3):
    x, y = (qd.field(qd.f64, shape=n, needs_dual=True) for _ in range(2))
    x.from_numpy(np.random.default_rng(seed).uniform(0.2, 1.8, n))
    return x, y


def test_while_break_and_continue(program):
    x, y = pair(5)

    @qd.kernel
    def k(most: qd.i32):
        for i in x:
            v, count = x[i], 0
            while True:
                count += 1
                if count > most:
                    break
                if count % 2 == 0:
                    continue
                v = v * v + 0.1 * x[(i + 1) % 5]
                if v > 3.0:
                    break
            y[i] = v

    compare(k, x, y, 6)


def test_floor_ceil_round_and_integers(program):
    x, y = pair(6)

    @qd.kernel
    def k():
        for i in x:
            n = int(x[i] * 3.0)
            y[i] = x[i] * qd.floor(x[i] * 2.5) + qd.ceil(x[i]) * x[i] + qd.round(x[i] * 4.0) * x[i] + n * x[i] + x[i] % 0.3

    compare(k, x, y)


def test_a_tangent_passes_through_temporaries_and_several_loops(program):
    x, y = pair(4)

    @qd.kernel
    def k():
        scale = x[0] * x[1]
        total = 0.0
        for i in x:
            total += x[i] * scale
        mean = total / 4.0
        for i in x:
            y[i] = mean * x[i] + scale
        for i in x:
            y[i] += qd.sin(total)

    compare(k, x, y)


def test_repeated_stores_and_updates_of_memory(program):
    x, y = pair(4)

    @qd.kernel
    def k():
        for i in x:
            y[i] = 2.0 * x[i]
            y[i] = 3.0 * x[i] * x[i]
            y[i] += x[(i + 1) % 4]
            y[i] *= x[i]
            y[i] -= 0.5 * x[i]
            for j in range(3):
                y[i] = y[i] * x[(i + j) % 4] + 1.0

    compare(k, x, y)


def test_minimum_maximum_and_product_over_a_loop(program):
    x, y = pair(70)
    x.from_numpy(np.random.default_rng(8).permutation(70) * 0.01 + 0.7)

    @qd.kernel
    def k():
        for i in x:
            qd.atomic_min(y[0], x[i] ** 2)
            qd.atomic_max(y[1], x[i] ** 3)
            y[2] *= x[i]
            y[3] += x[i]

    y.from_numpy(np.array([9.0, -9.0, 1.5] + [0.0] * 67))
    got = compare(k, x, y, bits=1e-14)  # of a device: its threads come in any order
    assert np.count_nonzero(got) == 4


def test_the_old_value_of_an_atomic(program):
    x, y = pair(9)
    total = qd.field(qd.f64, shape=(), needs_dual=True)

    @qd.kernel
    def k():
        total[None] = 0.0
        qd.loop_config(serialize=True)  # else the order of the threads decides
        for i in x:
            y[i] = qd.atomic_add(total[None], x[i]) ** 2

    compare(k, x, y)


def test_an_arm_that_is_not_taken_leaves_no_nan(program):
    x, y = pair(3)
    x.from_numpy(np.array([-1.0, 0.0, 2.0]))

    @qd.kernel
    def k():
        for i in x:
            y[i] = qd.select(x[i] > 0, qd.log(x[i]), x[i]) + qd.max(qd.sqrt(x[i]), 0.5) + (1.0 / x[i] if x[i] != 0 else 2.0)

    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1, 1]):
        k()
    np.testing.assert_allclose(y.dual.to_numpy(), [1 - 1, 1, 0.5 + 0.5 / np.sqrt(2) - 0.25])


def test_vectors_matrices_and_functions(program):
    x, y = pair(4)

    @qd.func
    def turned(a, v):
        r = qd.Matrix([[qd.cos(a), -qd.sin(a)], [qd.sin(a), qd.cos(a)]])
        for _ in qd.static(range(2)):
            v = r @ v + 0.1 * v
        return v

    @qd.kernel
    def k():
        for i in x:
            w = turned(x[i], qd.Vector([x[i] ** 2, x[(i + 1) % 4]]))
            m = w.outer_product(w) + qd.Matrix.identity(qd.f64, 2)
            y[i] = m.determinant() + m.inverse().trace() + w.norm()

    compare(k, x, y)


def test_f32_runs_in_f32(program):
    x, y = (qd.field(qd.f32, shape=4, needs_dual=True) for _ in range(2))
    x.from_numpy(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    wide = qd.field(qd.f64, shape=4, needs_dual=True)

    @qd.kernel
    def k():
        for i in x:
            y[i] = qd.exp(x[i])
            wide[i] = qd.cast(x[i], qd.f64) ** 2

    with qd.ad.FwdMode(loss=[y, wide], param=x, seed=[1, 2, 3, 4]):
        k()
    np.testing.assert_allclose(y.dual.to_numpy(), np.exp(x.to_numpy()) * [1, 2, 3, 4], rtol=1e-6)
    np.testing.assert_array_equal(wide.dual.to_numpy(), 2 * x.to_numpy().astype(float) * [1, 2, 3, 4])


def test_a_simulation_step_by_step(program):
    """A pendulum of 50 launches in place: d(state)/d(start), against differences."""
    x, y = qd.Vector.field(2, qd.f64, shape=(), needs_dual=True), qd.Vector.field(2, qd.f64, shape=(), needs_dual=True)
    x.from_numpy(np.array([1.0, 0.3]))

    @qd.kernel
    def start():
        y[None] = x[None]

    @qd.kernel
    def step(dt: qd.f64):
        speed = y[None][1] - dt * qd.sin(y[None][0])
        y[None] = qd.Vector([y[None][0] + dt * speed, speed])

    def run():
        start()
        for _ in range(50):
            step(0.05)

    compare(run, x, y)


def test_a_jacobian_column_by_column(program):
    x, y = pair(3)

    @qd.kernel
    def k():
        for i in x:
            y[i] = x[i] * x[(i + 1) % 3] ** 2

    columns = []
    for unit in np.eye(3):
        with qd.ad.FwdMode(loss=y, param=x, seed=unit):
            k()
        columns.append(y.dual.to_numpy())
    a = x.to_numpy()
    expected = np.diag(np.roll(a, -1) ** 2)
    for i in range(3):
        expected[i, (i + 1) % 3] = 2 * a[i] * a[(i + 1) % 3]
    np.testing.assert_allclose(np.array(columns).T, expected)


def test_bits_that_become_a_number_again_are_refused(program):
    x, y = pair(2)

    @qd.kernel
    def k():
        for i in x:
            y[i] = qd.bit_cast(qd.bit_cast(x[i], qd.i64) + 1, qd.f64)

    k()
    with qd.ad.FwdMode(loss=y, param=x, seed=[1, 1]), pytest.raises(qd.DifferentiationError, match="bit_cast"):
        k()


def test_many_threads_and_lanes_give_what_one_gives():
    def once(**options) -> np.ndarray:
        n = 20_000
        with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False, **options):
            x, y = pair(n)
            best = qd.field(qd.f64, shape=(), needs_dual=True)
            total = qd.field(qd.f64, shape=7, needs_dual=True)

            @qd.kernel
            def k():
                for i in x:
                    y[i] = qd.sin(x[i]) * x[i]
                    total[i % 7] += y[i]
                for i in x:
                    qd.atomic_max(best[None], x[i])

            with qd.ad.FwdMode(loss=y, param=x, seed=np.random.default_rng(1).uniform(-1, 1, n)):
                k()
            return np.concatenate([y.dual.to_numpy(), total.dual.to_numpy(), [best.dual[None]]])

    one, two = once(cpu_max_num_threads=1, cpu_lanes=1), once(cpu_max_num_threads=2)
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)
