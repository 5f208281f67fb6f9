"""Loops whose ends are those of their type: as many iterations as Python's ``range`` has, run by one thread and in parallel."""

import functools

import numpy as np
import pytest

import qdrun as qd

MOST = 40
MIXED = [(3, 11), (11, 3), (7, 7), (0, 1), (1, 0)]


@pytest.fixture(autouse=True)
def program():
    with qd.init(cpu_max_num_threads=1) as program:
        yield program


@functools.cache
def loops(dtype, step):
    """Of a range: the indices in one thread, then those of a parallel loop, and how many there were of each."""

    @qd.kernel
    def run(begin: dtype, end: dtype, out: qd.types.ndarray(dtype, 2), counts: qd.types.ndarray(qd.i32, 1)):
        for _ in range(1):
            for i in range(begin, end, step):
                if counts[0] < MOST:
                    out[0, counts[0]] = i
                counts[0] += 1
                if counts[0] > MOST:  # far too many: it need not go on
                    break
        for i in range(begin, end, step):
            k = qd.atomic_add(counts[1], 1)
            if k < MOST:
                out[1, k] = i

    return run


def check(dtype, step, ends):
    for begin, end in ends:
        want = list(range(begin, end, step))
        assert len(want) <= MOST, "the test is to end"
        out, counts = np.zeros((2, MOST), dtype.numpy), np.zeros(2, np.int32)
        loops(dtype, step)(begin, end, out, counts)
        assert counts.tolist() == [len(want)] * 2, (begin, end)
        assert all(sorted(row.tolist()) == sorted(want) for row in out[:, : len(want)]), (begin, end)


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2, -3])
@pytest.mark.parametrize("dtype", [qd.i32, qd.i64], ids=str)
def test_a_range_at_the_ends_of_its_type_runs_as_in_python(dtype, step):
    low, high = int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)
    up = [(low, low + 7), (high - 7, high), (high - 1, high), (low, low), (high, high)]
    empty = [(high, low), (5, low), (high, -5), (high - 1, low + 1), (0, low)]
    ends = MIXED + up + empty
    check(dtype, step, ends if step > 0 else [(end, begin) for begin, end in ends])


@pytest.mark.parametrize("step", [1, 3, -1, -3])
def test_ends_of_u64_are_compared_without_a_sign(step):
    half, high = 1 << 63, (1 << 64) - 1
    near = [(half - 8, half - 1), (half, half + 7), (high - 7, high)]
    empty = [(high, 0), (high, half - 1), (half, half - 1), (half + 3, 2)]
    ends = MIXED + near + empty
    check(qd.u64, step, ends if step > 0 else [(end, begin) for begin, end in ends])


def test_ends_that_are_literals_are_looked_at_while_compiling():
    out = np.zeros(4, np.int32)

    @qd.kernel
    def run(out: qd.types.ndarray(qd.i32, 1)):
        for _ in range(-(2**31), 5, -1):
            out[0] += 1
        for _ in range(1):
            for _ in range(-(2**31), 5, -1):
                out[1] += 1
            for _ in range(2**31 - 3, 2**31 - 1):
                out[2] += 1
            for _ in range(-(2**31) + 2, -(2**31), -1):
                out[3] += 1

    run(out)
    assert out.tolist() == [0, 0, 2, 2]

    @qd.kernel
    def beyond(out: qd.types.ndarray(qd.i32, 1)):
        for _ in range(2**63 + 1, 2**63 + 4):
            out[0] += 1

    with pytest.raises(qd.QdrunTypeError, match="the index of a loop has type i64: the bound 9223372036854775809 does not fit"):
        beyond(out)


def test_a_loop_over_a_field_has_one_type_of_index_whatever_a_literal_has():
    with qd.init(default_ip=qd.i64):
        line, plane = qd.field(qd.i32, shape=5), qd.field(qd.i32, shape=(3, 4))

        @qd.kernel
        def run():
            for i in line:
                line[i] = i * 3
            for i, j in plane:
                plane[i, j] = 10 * i + j
            for I in qd.grouped(plane):
                plane[I] += I[1]
            for _ in range(1):
                for i in line:
                    line[i] += 1

        run()
        assert line.to_numpy().tolist() == [1, 4, 7, 10, 13]
        assert plane.to_numpy().tolist() == [[10 * i + 2 * j for j in range(4)] for i in range(3)]


@pytest.mark.parametrize("step", [-1, -2])
def test_the_gradient_goes_back_through_a_loop_that_counts_down(step):
    x, loss = (qd.field(qd.f64, shape=n, needs_grad=True) for n in (8, ()))

    @qd.kernel
    def run(begin: qd.i32, end: qd.i32):
        for _ in range(1):
            product = 1.0
            for i in range(begin, end, step):
                product *= x[i] + i
            loss[None] += product

    values = np.linspace(0.5, 2.0, 8)
    for begin, end in ((7, -1), (5, 2), (2, 5), (-(2**31), 5)):
        x.from_numpy(values)
        taken = list(range(begin, end, step))
        with qd.ad.Tape(loss):
            run(begin, end)
        factors = [values[i] + i for i in taken]
        want = [np.prod([f for k, f in zip(taken, factors) if k != i]) if i in taken else 0.0 for i in range(8)]
        assert loss[None] == pytest.approx(np.prod(factors)) and np.allclose(x.grad.to_numpy(), want)
