"""Many iterations on one element: counters whose old value is used, bins that an argument names, sums in branches and loops."""

import numpy as np
import pytest

import qdrun as qd

N = 3000


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu):
        yield


def picked(seed):
    return np.random.default_rng(seed).random(N).astype(np.float32)


def test_a_counter_gives_each_iteration_a_place_of_its_own():
    x, out, rest = qd.field(qd.f32, N), qd.field(qd.i32, N), qd.field(qd.i32, N)
    counts, left = qd.field(qd.i32, 2), qd.field(qd.i64, ())

    @qd.kernel
    def compact(least: qd.f32, step: qd.i64):
        for i in range(N):
            if x[i] > least:
                out[qd.atomic_add(counts[0], 1)] = i
            else:
                rest[qd.atomic_add(counts[1], 1)] = i
            k = 0
            while k < i % 4:
                old = qd.atomic_sub(left[None], step)
                if old % step != 0:
                    counts[0] += 10**6
                k += 1

    for seed, least in enumerate((0.0, 0.3, 0.97, 2.0)):
        values = picked(seed)
        x.from_numpy(values)
        counts.fill(0)
        left.fill(0)
        compact(least, 3)
        many = int((values > np.float32(least)).sum())
        assert counts.to_numpy().tolist() == [many, N - many]
        assert sorted(out.to_numpy()[:many]) == np.flatnonzero(values > np.float32(least)).tolist()
        assert sorted(rest.to_numpy()[: N - many]) == np.flatnonzero(values <= np.float32(least)).tolist()
        assert left[None] == -3 * sum(i % 4 for i in range(N))


@pytest.mark.parametrize("dtype", [qd.i32, qd.i64, qd.f32, qd.f64])
def test_the_bin_that_an_argument_names(dtype):
    x, bins = qd.field(qd.f32, N), qd.field(dtype, 8)

    @qd.kernel
    def add(k: qd.i32, given: qd.types.ndarray(dtype, 1)):
        for i in range(N):
            j = i % 7
            while j > 0:
                if x[i] > 0.5:
                    bins[k] += qd.cast(j, dtype)
                    given[k - 1] -= qd.cast(j, dtype)
                j -= 2

    values, given = picked(9), np.ones(8, dtype.numpy)
    x.from_numpy(values)
    add(5, given)
    want = sum(j for i in range(N) if values[i] > 0.5 for j in range(i % 7, 0, -2))
    assert bins.to_numpy().tolist() == [0, 0, 0, 0, 0, want, 0, 0]
    assert given.tolist() == [1, 1, 1, 1, 1 - want, 1, 1, 1]


def test_a_bin_that_others_read_in_the_same_loop():
    """No sum of each thread's own: the loop looks at what is there."""
    x, bins, seen = qd.field(qd.f32, N), qd.field(qd.f32, 4), qd.field(qd.i32, ())

    @qd.kernel
    def add(k: qd.i32):
        for i in range(N):
            if x[i] > 0.25:
                bins[k] += 1.0
                qd.atomic_max(bins[k + 1], x[i])
                qd.atomic_min(bins[k + 2], x[i])
            if bins[k] > 1e6:
                seen[None] = 1

    values = picked(4)
    x.from_numpy(values)
    bins.from_numpy(np.array([0, 0, 0, 9], np.float32))
    add(1)
    some = values[values > 0.25]
    assert bins.to_numpy().tolist() == [0, len(some), some.max(), some.min()] and seen[None] == 0


def test_an_element_that_does_not_exist_is_not_touched_where_nothing_is_added():
    x = qd.field(qd.f32, 64)

    @qd.kernel
    def add(k: qd.i32, on: qd.i32, given: qd.types.ndarray(qd.f32, 1)):
        for i in range(64):
            if on > i:
                x[k] += 1.0
                given[k] += 2.0

    nothing = np.ones(3, np.float32)
    add(1 << 30, 0, nothing)  # the address is in nobody's memory
    add(-(1 << 30), 0, nothing)
    assert not x.to_numpy().any() and nothing.tolist() == [1, 1, 1]
    add(2, 64, nothing)
    assert x[2] == 64 and nothing.tolist() == [1, 1, 129]


def test_the_gradient_of_a_sum_in_a_branch():
    x, w = qd.field(qd.f64, N, needs_grad=True), qd.field(qd.f64, 6, needs_grad=True)
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def total(k: qd.i32):
        for i in range(N):
            if x[i] > 0.5:
                loss[None] += w[k] * x[i] * x[i]

    values = np.random.default_rng(1).random(N)
    x.from_numpy(values)
    w.from_numpy(np.arange(6.0))
    with qd.ad.Tape(loss=loss):
        total(3)
    some = values > 0.5
    np.testing.assert_allclose(loss[None], 3 * (values[some] ** 2).sum(), rtol=1e-12)
    np.testing.assert_allclose(x.grad.to_numpy(), np.where(some, 6 * values, 0), rtol=1e-12)
    want = np.zeros(6)
    want[3] = (values[some] ** 2).sum()
    np.testing.assert_allclose(w.grad.to_numpy(), want, rtol=1e-12)
