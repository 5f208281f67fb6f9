"""Subgroups: shuffles, votes, sums and scans of lanes, on every emulated device and on the processor.

``--arch cuda`` runs them on a GPU.
"""

import os

import numpy as np
import pytest

import qdrun as qd

sg, warp = qd.simt.subgroup, qd.simt.warp
ARCH = os.environ.get("QDRUN_TEST_ARCH", "cpu")
ON_GPU = ARCH == "cuda"
DEVICES = {
    "emulated": {"arch": qd.cuda, "device": "emulated"},
    "amdgpu": {"arch": qd.amdgpu, "device": "emulated:gfx942"},
    "amdgpu without shuffles": {"arch": qd.amdgpu, "device": "emulated:gfx1100"},
    "vulkan": {"arch": qd.vulkan, "device": "llvmpipe"},
    "metal": {"arch": qd.metal, "device": "emulated:f64"},
    "cpu": {"arch": qd.cpu},
    "python": {"arch": qd.python},
}
NAMES = ["cuda"] if ON_GPU else list(DEVICES)
WARPS = ["cuda"] if ON_GPU else ["emulated", "vulkan", "metal"]
BLOCK = 128


def opened(name, **options):
    """A program on a device."""
    how = {"arch": qd.cuda} if ON_GPU else DEVICES[name]
    try:
        return qd.init(default_fp=qd.f64, offline_cache=False, **how, **options)
    except qd.QdrunError as e:
        pytest.skip(str(e).splitlines()[0])


@pytest.fixture(params=NAMES)
def size(request):
    """Threads of a subgroup of an open program."""
    with opened(request.param):
        yield sg.group_size()


@pytest.fixture(params=WARPS)
def warps(request):
    with opened(request.param):
        assert sg.group_size() == 32 and sg.log2_group_size() == 5
        yield


@pytest.fixture
def amd():
    with opened("amdgpu"):
        yield


def groups(values, size):
    """The values of each subgroup."""
    return np.split(values, range(size, len(values), size))


def each(f, values, size):
    """What ``f`` makes of each subgroup, one after the other."""
    return np.concatenate([np.broadcast_to(f(v), v.shape) for v in groups(values, size)]).astype(values.dtype)


def run(body, data, n=None, dtype=None, outs=1):
    """The columns that ``body(value)`` gives in a thread for each number. ``n``: of iterations, if that is not known before a launch."""
    kind = dtype or qd.f64
    x, y = qd.field(kind, shape=len(data)), qd.field(kind, shape=(len(data), outs))
    x.from_numpy(data)

    @qd.func
    def store(i):
        found = body(x[i])
        for k in qd.static(range(outs)):
            y[i, k] = found[k]

    @qd.kernel
    def known():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            store(i)

    @qd.kernel
    def unknown(count: qd.i32):
        qd.loop_config(block_dim=BLOCK)
        for i in range(count):
            store(i)

    if n is None:
        known()
    else:
        unknown(n)
    return y.to_numpy().T


def reals(n):
    return np.random.default_rng().integers(-6, 7, n).astype(float)


def integers(n, kind=np.int32):
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return np.random.default_rng().integers(low, high, n, kind)


SUMS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
SUMS |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
NEUTRAL = {"add": 0, "mul": 1, "min": 2**31 - 1, "max": -(2**31), "and": -1, "or": 0, "xor": 0}
SOME = [None, 2 * BLOCK - 45]


def four(code, log2=None):
    """The func of the sums and scans of an operation, of subgroups or of tiles."""
    names = (f"reduce_{code}", f"reduce_all_{code}", f"inclusive_{code}", f"exclusive_{code}")
    a, b, c, d = (getattr(sg, name + ("" if log2 is None else "_tiled")) for name in names)

    @qd.func
    def whole(v):
        return qd.Vector([a(v), b(v), c(v), d(v)])

    @qd.func
    def tiles(v):
        return qd.Vector([a(v, log2), b(v, log2), c(v, log2), d(v, log2)])

    return whole if log2 is None else tiles


def check_four(found, f, end, there, size):
    """Compare with numpy; what has no iteration is left as it was."""
    n = len(there)
    with np.errstate(over="ignore"):
        suffix = each(lambda v: f.accumulate(v[::-1])[::-1], there, size)
        np.testing.assert_array_equal(found[0][:n], suffix)
        np.testing.assert_array_equal(found[1][:n], each(f.reduce, there, size))
        np.testing.assert_array_equal(found[2][:n], each(f.accumulate, there, size))
        before = each(lambda v: np.r_[np.asarray(end, v.dtype), f.accumulate(v)[:-1]], there, size)
        np.testing.assert_array_equal(found[3][:n], before)
    assert not found[:, n:].any()


@pytest.mark.parametrize("n", SOME)
@pytest.mark.parametrize("code", ["add", "min", pytest.param("max", marks=pytest.mark.slow)])
def test_sums_and_scans_of_reals(size, code, n):
    data = reals(2 * BLOCK)
    found = run(four(code), data, n, outs=4)
    check_four(found, SUMS[code], {"add": 0.0, "min": np.inf, "max": -np.inf}[code], data[:n], size)


@pytest.mark.parametrize("code", ["mul", "and", "or", "xor", "min"])
def test_sums_and_scans_of_integers(size, code):
    data = integers(BLOCK) | (code == "mul")
    check_four(run(four(code), data, dtype=qd.i32, outs=4), SUMS[code], NEUTRAL[code], data, size)


@pytest.mark.parametrize("log2", [0, 2, 4])
def test_tiles(size, log2):
    if 1 << log2 > size:
        with pytest.raises(
            qd.QdrunTypeError, match="a tile of 2\\*\\*log2_size lanes is larger than a subgroup of this backend"
        ):
            run(four("add", log2), reals(BLOCK), outs=4)
        return
    n = BLOCK - 37
    data = reals(BLOCK)
    check_four(run(four("add", log2), data, n, outs=4), np.add, 0.0, data[:n], 1 << log2)


@pytest.mark.parametrize("block", [16, 48])
def test_the_last_subgroup_of_a_block_may_be_smaller(size, block):
    n = 3 * block - 5
    x, out, sets = qd.field(qd.f64, shape=n), qd.field(qd.f64, shape=(n, 3)), qd.field(qd.u64, shape=n)
    data = reals(n)
    x.from_numpy(data)

    @qd.kernel
    def parts():
        qd.loop_config(block_dim=block)
        for i in x:
            out[i, 0], out[i, 1] = sg.reduce_all_add(x[i]), sg.exclusive_add(x[i])
            out[i, 2], sets[i] = sg.shuffle_up(x[i], sg.invocation_id() // 2), sg.ballot(1)

    parts()
    for first in range(0, n, block):
        for k in range(first, min(first + block, n), size):
            here = slice(k, min(k + size, first + block, n))
            v, lane = data[here], np.arange(here.stop - k)
            np.testing.assert_array_equal(out.to_numpy()[here].T, [0 * v + v.sum(), np.cumsum(v) - v, v[lane - lane // 2]])
            assert (sets.to_numpy()[here] == (1 << len(v)) - 1).all()


@qd.func
def after(a, b):
    """Associative, and not commutative: the last of two values that is not 0."""
    return a if b == 0 else b


@pytest.mark.parametrize("n", SOME)
def test_blocks_combine_what_their_subgroups_have(n, request):
    request.getfixturevalue("gpu" if ON_GPU else "amd")
    block = qd.simt.block
    x, out, pairs = (
        qd.field(qd.f64, shape=2 * BLOCK),
        qd.field(qd.f64, shape=(2 * BLOCK, 7)),
        qd.Vector.field(2, qd.f64, shape=2 * BLOCK),
    )
    data = reals(2 * BLOCK)
    x.from_numpy(data)

    @qd.kernel
    def parts(count: qd.i32):
        qd.loop_config(block_dim=BLOCK)
        for i in range(2 * BLOCK if qd.static(n is None) else count):
            for _ in range(2):  # twice: the memory of the first round is used again
                v = x[i]
                out[i, 0], out[i, 1] = block.reduce_add(v, BLOCK, qd.f64), block.reduce_all_min(v, BLOCK, qd.f64)
                out[i, 2], out[i, 3] = block.reduce(v, BLOCK, after, qd.f64), block.inclusive_add(v, BLOCK, qd.f64)
                out[i, 4], out[i, 5] = block.exclusive_add(v, BLOCK, qd.f64), block.inclusive_scan(v, BLOCK, after, qd.f64)
                out[i, 6] = block.sync_count_nonzero(v > 2)
                if block.sync_any_nonzero(v > 100):  # the same for all threads: they may meet in it
                    block.sync()
                pairs[i] = block.inclusive_add(qd.Vector([v, 1.0]), BLOCK, qd.types.vector(2, qd.f64))

    parts(n or 2 * BLOCK)
    for v, found, two in zip(*(groups(a[:n], BLOCK) for a in (data, out.to_numpy(), pairs.to_numpy()))):
        last = [next((w for w in v[: k + 1][::-1] if w), 0.0) for k in range(len(v))]
        columns = [
            0 * v + v.sum(),
            0 * v + v.min(),
            0 * v + last[-1],
            np.cumsum(v),
            np.cumsum(v) - v,
            last,
            0 * v + (v > 2).sum(),
        ]
        np.testing.assert_array_equal(found.T, columns)
        np.testing.assert_array_equal(two.T, [np.cumsum(v), 1.0 + np.arange(len(v))])


@pytest.mark.parametrize("name", ["cuda"] if ON_GPU else ["amdgpu", "emulated"])
@pytest.mark.parametrize(("block", "begin", "bits"), [(BLOCK, 5, 7), (BLOCK, 30, 2), (32, 0, 5)])
def test_ranks_of_digits(name, block, begin, bits):
    with opened(name):
        check_ranks(block, begin, bits)


def check_ranks(block, begin, bits):
    n = 2 * block
    keys, rank, bins, firsts = (qd.field(t, shape=n) for t in (qd.u32, qd.i32, qd.i32, qd.i32))
    data = integers(n, np.uint32) & np.uint32(0xFFFFFFFF if bits > 2 else 0xE0000000)
    keys.from_numpy(data)
    radix = block.bit_length() - 1

    @qd.kernel
    def ranks():
        qd.loop_config(block_dim=block)
        for i in keys:
            count, first = qd.simt.block.SharedArray(block, qd.i32), qd.simt.block.SharedArray(block, qd.i32)
            for _ in range(2):  # twice: the memory of the first round is used again
                rank[i] = qd.simt.block.radix_rank_match_atomic_or(keys[i], block, radix, begin, bits, count, first)
            t = qd.simt.block.thread_idx()
            bins[i], firsts[i] = count[t], first[t]

    ranks()
    for k in range(0, n, block):
        digits = data[k : k + block] >> np.uint32(begin) & np.uint32((1 << bits) - 1)
        counts = np.bincount(digits.astype(int), minlength=block)
        np.testing.assert_array_equal(bins.to_numpy()[k : k + block], counts)
        np.testing.assert_array_equal(firsts.to_numpy()[k : k + block], np.cumsum(counts) - counts)
        np.testing.assert_array_equal(rank.to_numpy()[k : k + block][np.argsort(digits, kind="stable")], np.arange(block))


def segments(v, heads, size):
    """The sums since the last head, or since the first lane of the subgroup."""
    out = np.zeros_like(v)
    for k in range(len(v)):
        out[k] = v[k] if k % size == 0 or heads[k] else out[k - 1] + v[k]
    return out


@pytest.mark.parametrize("n", SOME)
def test_sums_of_segments(size, n):
    @qd.func
    def parts(v):
        tile = sg.segmented_reduce_add_tiled(v, v > 3, 0 if sg.group_size() == 1 else 3)
        return qd.Vector([sg.segmented_reduce_add(v, v > 3), tile, sg.segmented_reduce_max(v, v == 0)])

    data = reals(2 * BLOCK)
    found = run(parts, data, n, outs=3)
    there = data[:n]
    np.testing.assert_array_equal(found[0][: len(there)], segments(there, there > 3, size))
    np.testing.assert_array_equal(found[1][: len(there)], segments(there, there > 3, min(8, size)))
    top = there.copy()
    for k in range(1, len(there)):
        if k % size and there[k] != 0:
            top[k] = max(top[k - 1], there[k])
    np.testing.assert_array_equal(found[2][: len(there)], top)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u32", "i64", "u64", "i8", "u16", "f16"])
def test_values_of_other_lanes(size, dtype, request):
    if dtype in ("i8", "u16", "f16", "i64") and "without" in request.node.name:
        pytest.skip("as on the other chip")
    kind = getattr(qd, dtype)
    data = (100 * np.random.default_rng().random(BLOCK)).astype(qd.field(kind, shape=1).to_numpy().dtype)
    big = np.iinfo(data.dtype).max if data.dtype.kind in "iu" else 0.1
    data[::5] = big

    @qd.func
    def five(v):
        lane = sg.invocation_id()
        a, b = sg.shuffle(v, 3 * lane if qd.static(sg.group_size() > 1) else lane), sg.shuffle_xor(v, lane // 2)
        c, d = sg.shuffle_up(v, lane % 7), sg.shuffle_down(v, qd.u32(lane % 7))
        return qd.Vector([a, b, c, d, sg.broadcast_first(v), sg.broadcast(v, sg.group_size() - 1)], dt=kind)

    found = run(five, data, dtype=kind, outs=6)
    lane = np.arange(size)
    sources = [
        3 * lane % size,
        lane ^ lane // 2,
        lane - lane % 7,
        np.where(lane + lane % 7 < size, lane + lane % 7, lane),
    ]
    sources += [0 * lane, 0 * lane + size - 1]
    for column, source in zip(found, sources):
        np.testing.assert_array_equal(column, each(lambda v: v[source], data, size))  # noqa: B023


def test_vectors_go_to_other_lanes(size):
    x, y = (qd.Vector.field(2, qd.f64, shape=BLOCK) for _ in range(2))
    x.from_numpy(np.random.default_rng().random((BLOCK, 2)))

    @qd.kernel
    def turned():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            y[i] = sg.shuffle(x[i], sg.group_size() - 1 - sg.invocation_id()) + sg.exclusive_add(x[i])

    turned()
    parts = groups(x.to_numpy(), size)
    expected = [v[::-1] + np.r_[np.zeros((1, 2)), np.cumsum(v, 0)[:-1]] for v in parts]
    np.testing.assert_allclose(y.to_numpy(), np.concatenate(expected), rtol=1e-12)


@pytest.mark.parametrize("n", SOME)
def test_votes(size, n):
    x, sets, said = (qd.field(t, shape=s) for t, s in ((qd.i32, 256), (qd.u64, (256, 2)), (qd.i32, (256, 7))))
    data = np.random.default_rng().integers(0, 3, 256).astype(np.int32)
    data[64:128] = 2
    x.from_numpy(data)

    @qd.kernel
    def votes(count: qd.i32):
        qd.loop_config(block_dim=BLOCK)
        for i in range(256 if qd.static(n is None) else count):
            sets[i, 0], sets[i, 1] = sg.ballot(x[i]), sg.ballot_first_n(x[i] == 1, 7)
            tile = 0 if qd.static(sg.group_size() == 1) else 2
            said[i, 0], said[i, 1], said[i, 2] = sg.all_true(x[i] > 0), sg.any_true(x[i] == 0), sg.all_equal(x[i])
            said[i, 3], said[i, 4] = sg.all_true_tiled(x[i], tile), sg.any_true_tiled(x[i] == 0, tile)
            said[i, 5], said[i, 6] = sg.all_equal_tiled(x[i], tile), sg.elect()

    votes(n or 256)
    there, tile = data[:n], min(4, size)

    def bits(v):
        return sum(1 << k for k in np.flatnonzero(v).tolist())

    expected = [[bits(v) for v in groups(there, size)], [bits((v == 1)[:7]) for v in groups(there, size)]]
    for k in range(2):
        np.testing.assert_array_equal(sets.to_numpy()[: len(there) : size, k], np.array(expected[k], np.uint64))
    assert (
        sets.to_numpy()[:, 0].reshape(-1, size)[: len(there) // size].T
        == sets.to_numpy()[: len(there) // size * size : size, 0]
    ).all()
    columns = [(lambda v: v.all(), size), (lambda v: (v == 0).any(), size), (lambda v: (v == v[0]).all(), size)]
    columns += [(f, tile) for f, _ in columns]
    for k, (f, width) in enumerate(columns):
        np.testing.assert_array_equal(said.to_numpy()[: len(there), k], each(lambda v: int(f(v)), there, width))  # noqa: B023
    np.testing.assert_array_equal(said.to_numpy()[: len(there), 6], np.arange(len(there)) % size == 0)


def test_pairs_are_sorted(size):
    tile = min(3, sg.log2_group_size())
    keys, values, out = (qd.field(t, shape=s) for t, s in ((qd.f64, BLOCK), (qd.i32, BLOCK), (qd.f64, (BLOCK, 4))))
    k, v = np.random.default_rng().integers(0, 9, BLOCK).astype(float), np.random.default_rng().permutation(BLOCK)
    keys.from_numpy(k)
    values.from_numpy(v.astype(np.int32))

    @qd.kernel
    def sort():
        qd.loop_config(block_dim=BLOCK)
        for i in keys:
            out[i, 0], out[i, 1] = sg.bitonic_sort_kv(keys[i], values[i])
            out[i, 2], out[i, 3] = sg.bitonic_sort_kv_tiled(keys[i], values[i], tile)

    sort()
    for column, width in ((0, size), (2, 1 << tile)):
        order = np.concatenate(
            [first + np.lexsort((v[first : first + width], k[first : first + width])) for first in range(0, BLOCK, width)]
        )
        np.testing.assert_array_equal(out.to_numpy()[:, column : column + 2].T, [k[order], v[order]])


def test_sets_of_lanes(size):
    out = qd.field(qd.u32, shape=(32, 5))

    @qd.kernel
    def masks():
        for k in range(32):
            out[k, 0], out[k, 1], out[k, 2] = sg.lanemask_lt(k), sg.lanemask_le(k), sg.lanemask_eq(k)
            out[k, 3], out[k, 4] = sg.lanemask_gt(k), sg.lanemask_ge(k)

    masks()
    one, all_of = 1 << np.arange(32, dtype=np.uint64), 2**32 - 1
    expected = [one - 1, 2 * one - 1, one, all_of - (2 * one - 1), all_of - (one - 1)]
    np.testing.assert_array_equal(out.to_numpy().T, np.array(expected, np.uint64))


def test_barriers_and_fences_of_subgroups(size):
    """What a lane has written before them, others read."""
    x, y = qd.field(qd.i32, shape=BLOCK), qd.field(qd.i32, shape=BLOCK)

    @qd.kernel
    def meet():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            x[i] = i
            sg.mem_fence()
            qd.simt.block.mem_fence()
            sg.sync()
            y[i] = x[i ^ sg.group_size() - 1]
            sg.barrier()
            sg.memory_barrier()

    meet()
    np.testing.assert_array_equal(y.to_numpy(), np.arange(BLOCK) ^ (size - 1))


def test_the_last_thread_of_a_grid_sees_all(size):
    """A fence between a value and the count of those who have written theirs."""
    n = 4 * BLOCK
    x, count, total = qd.field(qd.i32, shape=n), qd.field(qd.i32, shape=()), qd.field(qd.i32, shape=())

    @qd.kernel
    def last():
        for i in range(n):
            qd.atomic_exchange(x[i], i)
            qd.simt.grid.mem_fence()
            if qd.atomic_add(count[None], 1) == n - 1:
                qd.simt.grid.memfence()
                found = 0
                for k in range(n):
                    found += qd.volatile_load(x[k])
                total[None] = found

    last()
    assert total[None] == n * (n - 1) // 2


def test_warps(warps):
    n = 96 + 13
    x, y, sets, said = (
        qd.field(t, shape=s) for t, s in ((qd.i32, 128), (qd.f32, (128, 3)), (qd.u32, (128, 4)), (qd.i32, (128, 7)))
    )
    data = np.random.default_rng().integers(0, 3, 128).astype(np.int32)
    data[32:64] = 2
    x.from_numpy(data)

    @qd.kernel
    def k(count: qd.i32):
        qd.loop_config(block_dim=64)
        for i in range(count):
            full = qd.u32(0xFFFFFFFF)
            said[i, 0], said[i, 1] = warp.all_nonzero(full, x[i]), warp.any_nonzero(qd.u32(0xFF), x[i] == 0)
            said[i, 2], said[i, 3] = warp.unique(full, x[i]), warp.shfl_sync_i32(full, x[i], 3)
            said[i, 4], said[i, 5] = warp.shfl_up_i32(full, x[i], 2), warp.shfl_down_i32(full, x[i], 5)
            said[i, 6] = warp.shfl_xor_i32(full, x[i], 1)
            sets[i, 0], sets[i, 1] = warp.ballot(x[i] == 1), warp.active_mask()
            sets[i, 2], sets[i, 3] = warp.match_any(full, x[i]), warp.match_all(full, x[i])
            y[i, 0], y[i, 1] = warp.shfl_sync_f32(full, x[i], 31), warp.shfl_up_f32(full, x[i], 1)
            y[i, 2] = warp.shfl_down_f32(full, x[i], 1)
            warp.sync(full)

    k(n)
    for first in range(0, n, 32):
        v = data[first : min(n, first + 32)]
        here, lane, there = slice(first, first + len(v)), np.arange(len(v)), len(v)

        def bits(flags):
            return sum(1 << j for j in np.flatnonzero(flags).tolist())

        found, masks = said.to_numpy()[here].T, sets.to_numpy()[here].T
        assert (found[0] == (v != 0).all()).all() and (found[1] == (v[:8] == 0).any()).all()
        assert (found[2] == (len(set((v != 0).tolist())) == 1)).all() and (found[3] == v[3]).all()
        assert (found[4] == np.where(lane >= 2, v[lane - 2], v)).all()
        inside = lane + 5 < there
        assert (found[5][inside] == v[5:]).all()
        paired = (lane ^ 1) < there
        assert (found[6][paired] == v[(lane ^ 1)[paired]]).all()
        assert (masks[0] == bits(v == 1)).all() and (masks[1] == 2**there - 1).all()
        assert masks[2].tolist() == [bits(v == w) for w in v]
        assert (masks[3] == (2**there - 1 if len(set(v.tolist())) == 1 else 0)).all()
        real = y.to_numpy()[here].T
        if there == 32:
            assert (real[0] == v[31]).all() and (real[2] == np.r_[v[1:], v[31]]).all()
        assert (real[1] == np.r_[v[0], v[:-1]]).all()


def looping(body, n=256):
    x = qd.field(qd.f64, shape=n, needs_grad=True)
    y = qd.field(qd.f64, shape=n, needs_grad=True)

    @qd.kernel
    def k():
        qd.loop_config(block_dim=BLOCK)
        for i in x:
            y[i] = body(i, x[i])

    return k, x, y


@qd.func
def one_by_one(i, v):
    return sg.reduce_add(v) if i % 2 == 0 else v


@qd.func
def far_lane(i, v):
    return sg.shuffle(v, 64)


@qd.func
def real_lane(i, v):
    return sg.shuffle(v, v)


@qd.func
def summed(i, v):
    return 2.0 * sg.reduce_all_add(v * v)


@pytest.fixture
def gpu():
    with opened("cuda" if ON_GPU else "emulated"):
        yield


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            one_by_one,
            "an operation of qd.simt.subgroup stands in a condition that may differ between the threads of a block",
        ),
        (far_lane, "there is no lane 64: on this backend, a subgroup has 32 lanes"),
        (real_lane, "the lane of another thread is an integer, not f64"),
    ],
)
def test_what_cannot_be_is_refused(gpu, body, message):
    kernel, _, _ = looping(body)
    with pytest.raises(qd.QdrunCompilationError) as e:
        kernel()
    assert message in str(e.value)


@pytest.mark.skipif(ARCH != "cpu", reason="of the processor")
def test_a_subgroup_of_one_iteration_has_a_gradient():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False):
        kernel, x, y = looping(summed)
        start = np.random.default_rng().random(256)
        x.from_numpy(start)
        y.grad.fill(1.0)
        kernel()
        kernel.grad()
        np.testing.assert_allclose(x.grad.to_numpy(), 4 * start, rtol=1e-14)


@pytest.mark.skipif(ARCH != "cpu", reason="of other devices")
@pytest.mark.parametrize(("name", "lanes"), [("cpu", 1), ("amdgpu", 64)])
def test_warps_are_refused_where_they_are_not(name, lanes):
    with opened(name):

        @qd.func
        def votes(i, v):
            return warp.ballot(v)

        kernel, _, _ = looping(votes)
        with pytest.raises(
            qd.QdrunTypeError, match=f"`simt.warp.ballot` needs warps of 32 threads; on this backend, a subgroup has {lanes}"
        ):
            kernel()


def test_lanes_are_asked_for_in_kernels():
    for name in ("invocation_id", "sync"):
        with pytest.raises(qd.QdrunRuntimeError, match=rf"simt\.subgroup\.{name}\(\) was called outside of a kernel"):
            getattr(sg, name)()
