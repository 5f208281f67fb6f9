"""Sums that wait until a row has run, and rows in vectors: what a loop leaves has the bits of its iterations one after another."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.passes.parallel.rows import row_order

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


def waiting(kernel, *args):
    """The groups of sums that wait in a kernel's one task; None: its rows have no order that is known."""
    found = row_order(kernel.variant(args, {})[0].compiled_kernel.ir.tasks[0])
    return None if found is None else [[r.lag for r in group] for group in found.sums]


@pytest.mark.parametrize("dtype", [qd.i64, qd.i32, qd.f64, qd.f32])
@pytest.mark.parametrize("size", [8, 50])
def test_an_element_that_an_iteration_writes_twice_has_both_writes(dtype, size, rng):
    """LLVM may move an access before an earlier write of its own iteration, if it is told that no iterations meet."""
    start(cpu_max_num_threads=1)
    x, y, z = qd.Vector.field(3, dtype, shape=size), qd.field(dtype, shape=3 * size), qd.Vector.field(3, dtype, shape=size)

    @qd.kernel
    def update(n: qd.i32):
        for i in range(size):
            b = qd.cast(n, dtype)
            x[i] += b
            y[i] *= b
            x[i] += y[i + size] + 1
            z[i] = 2 * x[i]
            y[i + 2 * size] = b
            z[i] += x[i]

    first, second = rng.integers(1, 9, (size, 3)), rng.integers(1, 9, 3 * size)
    x.from_numpy(first)
    y.from_numpy(second)
    update(3)
    expected = first + 3 + second[size : 2 * size, None] + 1
    np.testing.assert_array_equal(x.to_numpy(), expected)
    np.testing.assert_array_equal(y.to_numpy(), [*(3 * second[:size]), *second[size : 2 * size], *[3] * size])
    np.testing.assert_array_equal(z.to_numpy(), 3 * expected)


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("dtype", [qd.f64, qd.f32])
@pytest.mark.parametrize("trial", range(4))
def test_random_scatters_have_the_bits_of_one_iteration_after_another(ndim, dtype, trial, rng):
    """Sums at random offsets, among them some of one row, and stores and loads that touch other elements or the own one."""
    start(cpu_max_num_threads=2, cpu_lanes=1, default_fp=dtype)
    last = int(rng.choice([1, 3, 17, 40, 700, 3000 if ndim == 1 else 90]))
    shape = (*map(int, rng.integers(1, 7, ndim - 1)), last)
    offsets = [tuple(map(int, rng.integers(-2, 3, ndim))) for _ in range(int(rng.integers(1, 7)))]
    flat = int(rng.integers(0, 2))
    padded = tuple(n + 4 for n in shape)
    x, own = (qd.field(dtype, shape=shape) for _ in range(2))
    to = qd.field(dtype, shape=(2, *padded))
    line = qd.field(dtype, shape=int(np.prod(padded)))
    signs = [bool(rng.integers(0, 2)) for _ in offsets]
    serial, before, twice = (bool(rng.integers(0, 2)) for _ in range(3))

    @qd.kernel
    def scatter(t: qd.i32):
        qd.loop_config(serialize=serial)
        for i in qd.grouped(qd.ndrange(*shape)):
            a = x[i] * 1.1
            if qd.static(before):
                a = a + own[i]
            own[i] = a * 0.3
            for k in qd.static(range(len(offsets))):
                at = i + qd.Vector([2 + offsets[k][d] for d in qd.static(range(ndim))])
                if qd.static(signs[k]):
                    to[t, at] -= a * (1.0 + k % 3)
                else:
                    to[t, at] += a * (1.0 + k % 3)
            if qd.static(flat == 1):
                n = i[0]
                for d in qd.static(range(1, ndim)):
                    n = n * padded[d] + i[d]
                line[n] += a
            if qd.static(twice):  # an access after a write of its own iteration keeps the order
                own[i] += 0.25 * to[1 - t, i + 1]

    real = np.float32 if dtype is qd.f32 else np.float64
    given = {f: rng.normal(size=f.shape).astype(real) for f in (x, own, to, line)}
    for field, values in given.items():
        field.from_numpy(values)
    scatter(1)
    a_x, a_own, a_to, a_line = (given[f] for f in (x, own, to, line))
    for i in np.ndindex(*shape):
        a = a_x[i] * real(1.1)
        if before:
            a = a + a_own[i]
        a_own[i] = a * real(0.3)
        for k, off in enumerate(offsets):
            at = (1, *(int(p) + 2 + o for p, o in zip(i, off)))
            a_to[at] += -(a * real(1.0 + k % 3)) if signs[k] else a * real(1.0 + k % 3)
        if flat:
            n = i[0]
            for d in range(1, ndim):
                n = n * padded[d] + i[d]
            a_line[n] += a
        if twice:
            a_own[i] += real(0.25) * a_to[(0, *(p + 1 for p in i))]
    for field, want in zip((own, to, line), (a_own, a_to, a_line)):
        np.testing.assert_array_equal(field.to_numpy(), want)
    assert (waiting(scatter, 1) is None) == twice


def scatters(body, shape=(5, 40), serialize=True):
    """A loop over the cells of a grid with a frame of two cells around it, and what its rows' order is."""
    start(cpu_max_num_threads=1, cpu_lanes=1)
    x, to = qd.field(qd.f64, shape=shape), qd.field(qd.f64, shape=tuple(n + 4 for n in shape))
    made = body(x, to, shape, serialize)
    x.from_numpy(np.random.default_rng(1).normal(size=shape))
    made()
    return waiting(made), x.to_numpy(), to.to_numpy()


def test_sums_of_one_row_wait_and_are_made_by_iteration():
    def body(x, to, shape, serialize):
        @qd.kernel
        def k():
            qd.loop_config(serialize=serialize)
            for i, j in qd.ndrange(*shape):
                to[i, j] += x[i, j]
                to[i, j + 2] += x[i, j]
                to[i, j + 1] -= x[i, j]
                to[i + 1, j] += x[i, j]

        return k

    groups, x, to = scatters(body)
    assert groups == [[-2, -1, 0]]
    want = np.zeros_like(to)
    for i, j in np.ndindex(5, 40):
        for at, sign in (((i, j), 1), ((i, j + 2), 1), ((i, j + 1), -1), ((i + 1, j), 1)):
            want[at] += sign * x[i, j]
    np.testing.assert_array_equal(to, want)


def test_what_reads_or_stores_such_an_element_meanwhile_keeps_the_order():
    def read(x, to, shape, serialize):
        @qd.kernel
        def k():
            qd.loop_config(serialize=serialize)
            for i, j in qd.ndrange(*shape):
                to[i, j + 1] += x[i, j]
                x[i, j] = 0.5 * to[i, j]

        return k

    def stored(x, to, shape, serialize):
        @qd.kernel
        def k():
            qd.loop_config(serialize=serialize)
            for i, j in qd.ndrange(*shape):
                to[i, j + 1] += x[i, j]
                to[i, j] += x[i, j]
                to[i, j] = 2.0

        return k

    def one_element(x, to, shape, serialize):
        @qd.kernel
        def k():
            qd.loop_config(serialize=serialize)
            for i, j in qd.ndrange(*shape):
                to[i, 3] += x[i, j]
                to[i, 4] += x[i, j]

        return k

    def multiples(x, to, shape, serialize):
        @qd.kernel
        def k():
            qd.loop_config(serialize=serialize)
            for i, j in qd.ndrange(*shape):
                to[i, j // 2] += x[i, j]

        return k

    def conditional(x, to, shape, serialize):
        @qd.kernel
        def k():
            qd.loop_config(serialize=serialize)
            for i, j in qd.ndrange(*shape):
                if x[i, j] > 0.0:
                    to[i, j + 1] += x[i, j]
                to[i, j] += x[i, j]

        return k

    for body in (read, stored, one_element, multiples, conditional):
        assert scatters(body)[0] is None, body.__name__


def test_sums_at_multiples_of_the_last_axis():
    def body(x, to, shape, serialize):
        @qd.kernel
        def k():
            qd.loop_config(serialize=serialize)
            for i, j in qd.ndrange(shape[0], 20):
                to[i, 2 * j] += x[i, j]
                to[i, 2 * j + 2] += x[i, j]
                to[i, 2 * j + 1] += x[i, j]

        return k

    groups, x, to = scatters(body)
    assert groups == [[-1, 0]]
    want = np.zeros_like(to)
    for i, j in np.ndindex(5, 20):
        for d in (0, 2, 1):
            want[i, 2 * j + d] += x[i, j]
    np.testing.assert_array_equal(to, want)
