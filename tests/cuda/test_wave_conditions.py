"""Operations of a subgroup under conditions that its lanes have in common. ``--arch cuda`` runs them on a GPU."""

import os

import numpy as np
import pytest

import qdrun as qd

ON_GPU = os.environ.get("QDRUN_TEST_ARCH") == "cuda"
sg, block = qd.simt.subgroup, qd.simt.block
BLOCK, N = 256, 512
COUNTS = [N, N - 3 * 64 - 5, 70]


@pytest.fixture(params=["cuda"] if ON_GPU else ["gfx942", pytest.param("gfx1100", marks=pytest.mark.slow)])
def lanes(request):
    """Threads of a subgroup of an open program."""
    how = {"arch": qd.cuda} if ON_GPU else {"arch": qd.amdgpu, "device": f"emulated:{request.param}"}
    with qd.init(default_fp=qd.f64, offline_cache=False, **how):
        yield sg.group_size()


def fields(*types):
    return [qd.field(t, shape=N, needs_grad=t is qd.f64) for t in types]


def groups(values, lanes):
    return np.split(values, range(lanes, len(values), lanes))


def run(body, data, n):
    """What a loop over ``n`` iterations leaves: ``body(i, v)`` gives a number, or -1."""
    x, y = fields(qd.f64, qd.f64)
    x.from_numpy(data)
    y.fill(-7.0)

    @qd.kernel
    def k(count: qd.i32):
        qd.loop_config(block_dim=BLOCK)
        for i in range(count):
            y[i] = body(i, x[i])

    k(n)
    return y.to_numpy()


def expected(data, n, lanes, of):
    """``of(number of the subgroup, its values)`` in each subgroup."""
    out = np.full(N, -7.0)
    for k, part in enumerate(groups(data[:n], lanes)):
        out[k * lanes : k * lanes + len(part)] = of(k, part)
    return out


@pytest.mark.parametrize("n", COUNTS)
def test_the_number_of_the_subgroup_decides(lanes, n):
    @qd.func
    def body(i, v):
        out = -1.0
        if i // sg.group_size() % 2 == 1:
            out = sg.reduce_all_add(v)
            if block.thread_idx() // sg.group_size() > 1:
                out += sg.reduce_all_max(v)
        elif i < 2 * sg.group_size():
            out = sg.inclusive_add(v)
        some = 0
        if i // sg.group_size() == 1:
            some = 3
        if some == 3:
            out += sg.broadcast_first(v)
        return out

    def of(k, v):
        if k % 2 == 1:
            return v.sum() + (v.max() if k % (BLOCK // lanes) > 1 else 0.0) + (k == 1) * v[0]
        return np.cumsum(v) if k < 2 else -1.0

    data = np.random.default_rng().integers(1, 9, N).astype(float)
    np.testing.assert_array_equal(run(body, data, n), expected(data, n, lanes, of))


@pytest.mark.parametrize("n", COUNTS)
def test_votes_and_sums_decide(lanes, n):
    """Each subgroup halves its numbers until they are small: as many rounds as it needs."""

    @qd.func
    def body(i, v):
        if sg.any_true(v > 7):
            v = sg.reduce_all_min(v)
        rounds = 0
        while sg.reduce_all_add(v) > 3.0 * (1 + i - i):
            v *= 0.5
            rounds += 1
        return v + 100.0 * rounds

    @qd.func
    def counted(i, v):
        if sg.any_true(v > 7):
            v = sg.reduce_all_min(v)
        rounds = 0
        while sg.reduce_all_add(v) > 3.0:
            v *= 0.5
            rounds += 1
        while sg.reduce_all_add(v) < 40.0:  # a subgroup without numbers would not come to an end
            v *= 3
        return v + 1000.0 * rounds

    def of(k, v):
        v, rounds = np.full_like(v, v.min()) if (v > 7).any() else v.copy(), 0
        while v.sum() > 3.0:
            v, rounds = v * 0.5, rounds + 1
        while v.sum() < 40:
            v = v * 3
        return v + 1000.0 * rounds

    data = np.where(np.random.default_rng().random(N) < 0.01, 8.0, np.random.default_rng().integers(1, 8, N)).astype(float)
    np.testing.assert_array_equal(run(counted, data, n), expected(data, n, lanes, of))
    with pytest.raises(qd.QdrunSyntaxError, match="stands in a loop that may differ"):
        run(body, data, n)


def test_gradients_under_conditions_of_a_subgroup(lanes):
    x, y = fields(qd.f64, qd.f64)

    @qd.kernel
    def k():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            out = x[i]
            if i // sg.group_size() % 2 == 0:
                out *= sg.reduce_all_add(x[i] * x[i])
            y[i] = out

    start, weights = np.random.default_rng().random((2, N))
    x.from_numpy(start)
    k()
    y.grad.from_numpy(weights)
    k.grad()
    for j, (v, w, g) in enumerate(zip(*(groups(a, lanes) for a in (start, weights, x.grad.to_numpy())))):
        np.testing.assert_allclose(g, w if j % 2 else w * (v @ v) + 2 * v * (w @ v), rtol=1e-12)


@qd.func
def of_a_lane(i, v):
    return sg.reduce_all_add(v) if i % 3 == 0 else 0.0


@qd.func
def of_a_value(i, v):
    return sg.shuffle_xor(v, 1) if v > 0.5 else 0.0


@qd.func
def of_half_a_subgroup(i, v):
    return sg.shuffle_xor(v, 1) if i // (sg.group_size() // 2) % 2 == 0 else 0.0


@qd.func
def of_a_barrier(i, v):
    if i // sg.group_size() % 2 == 0:
        block.sync()
    return v


REFUSED = [of_a_lane, of_a_value, of_half_a_subgroup, of_a_barrier]


@pytest.mark.parametrize("body", REFUSED, ids=lambda f: f.__name__)
def test_other_conditions_are_refused(lanes, body):
    with pytest.raises(qd.QdrunSyntaxError, match="in a condition that may differ between the threads of a block"):
        run(body, np.ones(N), N)


def test_through_memory_the_whole_block_meets():
    if ON_GPU:
        pytest.skip("of other devices")
    with qd.init(arch=qd.cuda, device="emulated", default_fp=qd.f64, offline_cache=False):

        @qd.func
        def body(i, v):
            return sg.reduce_all_add(v) if i // sg.group_size() % 2 == 0 else 0.0

        with pytest.raises(qd.QdrunSyntaxError, match="in a condition that may differ between the threads of a block"):
            run(body, np.ones(N), N)
