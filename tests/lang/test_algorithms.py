"""``qd.algorithms`` beside numpy, and its gradients beside closed forms."""

import os

import numpy as np
import pytest

import qdrun as qd
from qdrun.library.algorithms import in_blocks, look_back

ON_DEVICE = os.environ.get("QDRUN_TEST_ARCH", "cpu") != "cpu"
ON_CARD = os.environ.get("QDRUN_TEST_ARCH") == "cuda"
SIZES = [1, 255, 256, 257, 70_001, *([3_000_003] if ON_CARD else [])]


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64) as program:
        yield program


def array(values, dtype, needs_grad=False):
    out = qd.ndarray(dtype, len(values), needs_grad=needs_grad)
    out.from_numpy(values)
    return out


def like(x, needs_grad=False):
    return qd.ndarray(x.dtype, x.shape, needs_grad=needs_grad)


@pytest.mark.parametrize("n", SIZES)
def test_reductions_and_prefix_sums_are_those_of_numpy(n):
    values = np.random.default_rng(n).integers(-1000, 1000, n).astype(np.int32)
    x, out, one = array(values, qd.i32), qd.ndarray(qd.i32, n), qd.field(qd.i32, shape=())
    for op, whole in (("add", np.add), ("min", np.minimum), ("max", np.maximum)):
        qd.algorithms.reduce(x, one, op)
        assert one[None] == whole.reduce(values)
        qd.algorithms.inclusive_scan(x, out, op)
        assert np.array_equal(out.to_numpy(), whole.accumulate(values))
        qd.algorithms.exclusive_scan(x, out, op)
        assert np.array_equal(out.to_numpy()[1:], whole.accumulate(values)[:-1])
    assert out[0] == -(2**31)
    qd.algorithms.PrefixSumExecutor(n).run(x)
    assert np.array_equal(x.to_numpy(), np.cumsum(values))


@pytest.mark.parametrize("dtype", [qd.i8, qd.u32, qd.i64, qd.f32, qd.f64])
def test_sorting_is_stable_and_that_of_numpy(dtype):
    random = np.random.default_rng(int(dtype.size))
    n = 5000
    keys = random.integers(0, 60, n) - (0 if dtype is qd.u32 else 30)
    keys = (keys / 7 if dtype.is_real else keys).astype(dtype.numpy)
    if dtype.is_real:
        keys[:5] = [np.nan, -np.inf, np.inf, -0.0, 0.0]
    x, order, values = array(keys, dtype), qd.ndarray(qd.i32, n), qd.ndarray(qd.i32, n)
    values.from_numpy(np.arange(n, dtype=np.int32))
    qd.algorithms.argsort(x, order)
    want = np.argsort(keys, kind="stable")
    assert np.array_equal(order.to_numpy(), want)
    qd.algorithms.parallel_sort(x, values)
    assert np.array_equal(x.to_numpy(), keys[want], equal_nan=dtype.is_real) and np.array_equal(values.to_numpy(), want)


def test_sums_of_reals_have_the_same_bits_in_each_run_and_for_every_number_of_threads():
    values = np.random.default_rng().normal(size=4_000_001 if ON_CARD else 5000 if ON_DEVICE else 200_001).astype(np.float32)
    found = []
    for threads in (1, 2, 2):
        with qd.init(**({} if ON_DEVICE else {"cpu_max_num_threads": threads})):
            x, out, one = array(values, qd.f32), qd.ndarray(qd.f32, len(values)), qd.ndarray(qd.f32, 1)
            for _ in range(2):
                qd.algorithms.reduce(x, one)
                qd.algorithms.inclusive_scan(x, out)
                found.append(out.to_numpy().tobytes() + one.to_numpy().tobytes())
    assert len(set(found)) == 1


def drawn(random, n: int, dtype) -> np.ndarray:
    """Values of any size, with many that are equal; of reals also infinities, both zeros, the smallest, and NaN."""
    if dtype.is_real:
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.finfo(dtype.numpy).smallest_subnormal, 1.5, -1.5])
        values = np.where(
            random.random(n) < 0.3, random.choice(special, n), random.normal(size=n) * 10.0 ** random.integers(-9, 9, n)
        )
        return np.where(random.random(n) < 0.01, np.nan, values).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    few = random.integers(0, 9, n).astype(dtype.numpy)
    return np.where(random.random(n) < 0.5, few, random.integers(info.min, info.max, n, dtype.numpy, endpoint=True))


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64, qd.i8, qd.u8, qd.i16, qd.i32, qd.u32, qd.i64, qd.u64])
def test_random_arrays_of_any_length_are_those_of_numpy(dtype):
    for _ in range(1 if ON_DEVICE else 3):
        random = np.random.default_rng()
        n = int(random.choice([random.integers(1, 600), random.integers(4000, 5000)]))
        values = drawn(random, n, dtype)
        x, out, order, count = array(values, dtype), qd.ndarray(dtype, n), qd.ndarray(qd.i32, n), qd.field(qd.i32, shape=())
        qd.algorithms.argsort(x, order)
        assert np.array_equal(order.to_numpy(), np.argsort(values, kind="stable")), (n, values)
        qd.algorithms.unique(x, out, count)
        distinct = np.unique(values)
        assert np.array_equal(out.to_numpy()[: count[None]], distinct, equal_nan=dtype.is_real), (n, values)
        flags = random.choice([0, 1, -7], n).astype(np.int32)
        qd.algorithms.compact(x, array(flags, qd.i32), out, count)
        assert np.array_equal(out.to_numpy()[: count[None]], values[flags != 0], equal_nan=dtype.is_real), (n, values)
        if dtype.is_real:
            values = np.round(random.normal(size=n) * 64).astype(dtype.numpy) / 8  # sums of these are exact in every order
            x.from_numpy(values)
        for op, whole in (("add", np.add), ("min", np.minimum), ("max", np.maximum)):
            want = whole.accumulate(values, dtype=dtype.numpy)
            qd.algorithms.inclusive_scan(x, out, op)
            assert np.array_equal(out.to_numpy(), want), (n, op, values)
            one = qd.ndarray(dtype, 1)
            qd.algorithms.reduce(x, one, op)
            assert one[0] == want[-1], (n, op, values)


def test_compaction_distinct_values_and_sums_of_runs_are_those_of_numpy():
    random = np.random.default_rng()
    n = 3001
    keys, flags = random.integers(0, 200, n).astype(np.int32), random.integers(0, 2, n).astype(np.int32)
    x, f, out, count = array(keys, qd.i32), array(flags, qd.i32), qd.ndarray(qd.i32, n), qd.field(qd.i32, shape=())
    qd.algorithms.compact(x, f, out, count)
    assert np.array_equal(out.to_numpy()[: count[None]], keys[flags != 0])
    qd.algorithms.unique(x, out, count)
    assert np.array_equal(out.to_numpy()[: count[None]], np.unique(keys))
    qd.algorithms.parallel_sort(x)
    sums, ones = qd.ndarray(qd.i32, n), array(np.ones(n, np.int32), qd.i32)
    qd.algorithms.reduce_by_key(x, ones, out, sums, count)
    distinct, counts = np.unique(keys, return_counts=True)
    assert np.array_equal(out.to_numpy()[: count[None]], distinct)
    assert np.array_equal(sums.to_numpy()[: count[None]], counts) and not sums.to_numpy()[count[None] :].any()


@qd.kernel
def weigh(y: qd.Tensor, w: qd.Tensor, loss: qd.Tensor):
    for i in y:
        loss[None] += w[i] * y[i] ** 2


def test_gradients_of_all_that_moves_or_adds_real_numbers():
    random = np.random.default_rng()
    n = 700
    values, weights = random.normal(size=n), random.normal(size=n)
    flags, keys = random.integers(0, 2, n).astype(np.int32), np.sort(random.integers(0, 50, n)).astype(np.int32)
    x, w, out = array(values, qd.f64, True), array(weights, qd.f64), qd.ndarray(qd.f64, n, needs_grad=True)
    loss, one = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
    f, k, out_keys, count = array(flags, qd.i32), array(keys, qd.i32), qd.ndarray(qd.i32, n), qd.field(qd.i32, shape=())
    order = np.argsort(values)

    def gradient(run):
        out.fill(0.0)
        with qd.ad.Tape(loss):
            run()
            weigh(out, w, loss)
        return x.grad.to_numpy()

    y = np.cumsum(values)
    back = 2 * weights * y
    got = gradient(lambda: qd.algorithms.inclusive_scan(x, out))
    assert np.allclose(got, np.cumsum(back[::-1])[::-1], rtol=1e-10, atol=1e-10)
    got = gradient(lambda: qd.algorithms.exclusive_scan(x, out))
    back = 2 * weights * (y - values)
    assert np.allclose(got, np.cumsum(back[::-1])[::-1] - back, rtol=1e-10, atol=1e-10)
    run_of = np.searchsorted(np.unique(keys), keys)
    sums = np.bincount(run_of, values)
    got = gradient(lambda: qd.algorithms.reduce_by_key(k, x, out_keys, out, count))
    assert np.allclose(got, (2 * weights[: len(sums)] * sums)[run_of])
    picked = np.flatnonzero(flags)
    want = np.zeros(n)
    want[picked] = 2 * weights[: len(picked)] * values[picked]
    assert np.allclose(gradient(lambda: qd.algorithms.compact(x, f, out, count)), want)
    index = qd.ndarray(qd.i32, n)

    def sort():
        qd.algorithms.argsort(x, index)
        qd.algorithms.gather(x, index, out)

    want[order] = 2 * weights * values[order]
    assert np.allclose(gradient(sort), want)
    with qd.ad.Tape(one):
        qd.algorithms.reduce(x, one, "max")
    assert np.array_equal(x.grad.to_numpy(), values == values.max())


@pytest.mark.parametrize("dtype", [qd.i8, qd.u64, qd.f32, qd.f64])
def test_long_arrays_are_reduced_in_every_type(dtype):
    n, random = 3 * 4096 + 77, np.random.default_rng()
    values = (random.normal(size=n) if dtype.is_real else random.integers(0, 120, n)).astype(dtype.numpy)
    x, one = array(values, dtype), qd.ndarray(dtype, 1)
    found = {}
    for op in ("add", "min", "max"):
        qd.algorithms.reduce(x, one, op)
        found[op] = one.to_numpy()[0]
    assert found["min"] == values.min() and found["max"] == values.max()
    if dtype.is_real:
        assert np.isclose(found["add"], values.sum(dtype=float), rtol=0, atol=1e-2 if dtype is qd.f32 else 1e-9)
    else:
        assert found["add"] == values.sum(dtype=dtype.numpy)


@pytest.mark.skipif(ON_DEVICE, reason="the other tests run there, in blocks where the device has them")
def test_blocks_of_threads_scan_and_sort_as_one_does():
    """On a GPU whose waves exchange values; a tape takes the kernels that have a gradient."""
    random = np.random.default_rng()
    with qd.init(arch=qd.amdgpu, device="emulated:gfx942", default_fp=qd.f64):
        n = 4100
        values, real = random.integers(-1000, 1000, n).astype(np.int32), random.normal(size=n)
        x, y = array(values, qd.i32), array(real, qd.f64, True)
        out, sums = qd.ndarray(qd.i32, n), qd.ndarray(qd.f64, n, needs_grad=True)
        for op, whole in (("add", np.add), ("max", np.maximum)):
            qd.algorithms.inclusive_scan(x, out, op)
            assert np.array_equal(out.to_numpy(), whole.accumulate(values))
            qd.algorithms.exclusive_scan(x, out, op)
            assert np.array_equal(out.to_numpy()[1:], whole.accumulate(values)[:-1])
        qd.algorithms.argsort(y, out)
        assert np.array_equal(out.to_numpy(), np.argsort(real))
        qd.algorithms.argsort(x, out)
        assert np.array_equal(out.to_numpy(), np.argsort(values, kind="stable"))
        loss, factors = qd.field(qd.f64, shape=(), needs_grad=True), array(random.normal(size=n), qd.f64)
        with qd.ad.Tape(loss):
            qd.algorithms.inclusive_scan(y, sums)
            weigh(sums, factors, loss)
        back = 2 * factors.to_numpy() * np.cumsum(real)
        assert np.allclose(y.grad.to_numpy(), np.cumsum(back[::-1])[::-1])


@pytest.mark.skipif(ON_DEVICE, reason="the other tests run there, in blocks where the device has them")
@pytest.mark.parametrize("dtype", [qd.f32, qd.u64])
def test_blocks_of_threads_reduce_pick_and_find_distinct_values(dtype):
    """Twice, as the messages of blocks are those of a launch."""
    random, n = np.random.default_rng(), 4100
    with qd.init(arch=qd.amdgpu, device="emulated:gfx942", default_fp=qd.f64):
        out, one, count = qd.ndarray(dtype, n), qd.ndarray(dtype, 1), qd.field(qd.i32, shape=())
        for _ in range(2):
            values = (random.integers(0, 120, n) / (4 if dtype.is_real else 1)).astype(dtype.numpy)
            x, flags = array(values, dtype), random.integers(0, 3, n).astype(np.int32)
            qd.algorithms.reduce(x, one)
            assert one[0] == values.sum(dtype=dtype.numpy)
            qd.algorithms.reduce(x, one, "min")
            assert one[0] == values.min()
            out.fill(3)
            qd.algorithms.compact(x, array(flags, qd.i32), out, count)
            assert np.array_equal(out.to_numpy(), [*values[flags != 0], *[3] * (n - count[None])])
            qd.algorithms.unique(x, out, count)
            assert np.array_equal(out.to_numpy()[: count[None]], np.unique(values))
            qd.algorithms.inclusive_scan(x, x)
            assert np.array_equal(x.to_numpy(), np.cumsum(values, dtype=dtype.numpy))


@pytest.mark.slow
@pytest.mark.skipif(ON_DEVICE, reason="longer arrays are scanned there")
def test_groups_of_tiles_follow_each_other(monkeypatch):
    """Tiles of a row for each wave, so that there are more than 256 of them."""
    monkeypatch.setattr(in_blocks, "ROWS", 1)
    monkeypatch.setattr(in_blocks, "TILE", in_blocks.THREADS)
    n, random = 256 * 256 * 2 + 300, np.random.default_rng()
    with qd.init(arch=qd.amdgpu, device="emulated:gfx942", offline_cache=False):
        values, flags = random.integers(-99, 99, n).astype(np.int32), random.integers(0, 3, n).astype(np.int32)
        x, out, count = array(values, qd.i32), qd.ndarray(qd.i32, n), qd.field(qd.i32, shape=())
        qd.algorithms.inclusive_scan(x, out)
        assert np.array_equal(out.to_numpy(), np.cumsum(values))
        qd.algorithms.compact(x, array(flags, qd.i32), out, count)
        assert np.array_equal(out.to_numpy()[: count[None]], values[flags != 0])


def test_checks_and_tapes_take_kernels_whose_blocks_do_not_wait(monkeypatch):
    """An iteration that a check ends would be waited for, and the kernels of blocks have no gradient."""
    with qd.init(default_fp=qd.f64) as program:
        monkeypatch.setattr(program.device, "lanes", 32)
        x = qd.ndarray(qd.f64, 1000, needs_grad=True)
        assert look_back.usable(1000, x) and not look_back.usable(256, x) and not look_back.usable(1 << 30, x)
        with qd.ad.Tape(qd.field(qd.f64, shape=(), needs_grad=True)):
            assert not look_back.usable(1000, x)
    for check in ("debug", "overflow_check", "check_out_of_bound"):
        with qd.init(**{check: True}) as program:
            monkeypatch.setattr(program.device, "lanes", 32)
            assert not look_back.usable(1000)


EMULATED = {"arch": qd.cuda, "device": "emulated"}


@pytest.mark.parametrize(
    "where",
    [{}, EMULATED, {"batch": 2}, EMULATED | {"batch": 2}, EMULATED | {"debug": True}],
    ids=["here", "in blocks", "a batch", "a batch in blocks", "debug in blocks"],
)
@pytest.mark.parametrize("bins", [16, 300, 9000])
def test_histograms_count_what_lies_in_each_bin(where, bins):
    if where and ON_DEVICE:
        pytest.skip("a device is there")
    n, random = 9001, np.random.default_rng()
    whole, real = random.integers(-3, bins + 9, n).astype(np.int32), random.normal(size=n)
    real[:5] = [np.nan, np.inf, -np.inf, -1.0, 1.5]
    with qd.init(default_fp=qd.f64, **where):
        counts = qd.ndarray(qd.i32, bins)
        qd.algorithms.histogram(array(whole, qd.i32), counts, low=2)
        inside = whole[(whole >= 2) & (whole < bins + 2)] - 2
        assert (counts.to_numpy() == np.bincount(inside, minlength=bins)).all()
        qd.algorithms.histogram(array(real, qd.f64), counts, -1.0, 1.5)
        inside = real[(real >= -1.0) & (real <= 1.5)]
        place = np.minimum(((inside + 1.0) * (bins / 2.5)).astype(int), bins - 1)
        assert (counts.to_numpy() == np.bincount(place, minlength=bins)).all()
        qd.algorithms.histogram(array(real, qd.f64), counts, -1)
        inside = np.floor(real[(real >= -1.0) & (real < bins - 1)] + 1)
        assert (counts.to_numpy() == np.bincount(inside.astype(int), minlength=bins)).all()


def test_the_gradient_of_a_weighted_histogram_is_that_of_each_bin():
    n, bins, random = 400, 7, np.random.default_rng()
    values, weights, back = random.random(n), random.normal(size=n), random.normal(size=bins)
    x, w, factors = array(values, qd.f64), array(weights, qd.f64, True), array(back, qd.f64)
    sums, loss = qd.ndarray(qd.f64, bins, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
    with qd.ad.Tape(loss):
        qd.algorithms.histogram(x, sums, 0.0, 1.0, w)
        weigh(sums, factors, loss)
    place = (values * bins).astype(int)
    found = np.bincount(place, weights, bins)
    assert np.allclose(sums.to_numpy(), found) and np.allclose(w.grad.to_numpy(), (2 * back * found)[place])
    with (
        pytest.raises(qd.QdrunTypeError, match=r"algorithms.histogram has no derivative: a bin does not change"),
        qd.ad.Tape(loss),
    ):
        qd.algorithms.histogram(w, qd.ndarray(qd.i32, bins), 0.0, 1.0)
    with pytest.raises(qd.QdrunTypeError, match=r"bins of i32 have the width 1, and high=3 gives another(.|\n)*leave out high"):
        qd.algorithms.histogram(qd.ndarray(qd.i32, 3), qd.ndarray(qd.i32, 3), 0, 3)
    with pytest.raises(qd.QdrunValueError, match=r"high=0.0 is not above low=0"):
        qd.algorithms.histogram(x, qd.ndarray(qd.i32, bins), 0, 0.0)
    with pytest.raises(qd.QdrunValueError, match=r"bins of i32 begin at an integer, not at low=0.5"):
        qd.algorithms.histogram(qd.ndarray(qd.i32, 3), qd.ndarray(qd.i32, 3), 0.5)


@pytest.mark.parametrize(
    "where",
    [{}, *(pytest.param(o, marks=pytest.mark.slow) for o in ({"batch": 2}, {"arch": qd.cuda, "device": "emulated"}))],
    ids=["here", "a batch", "in blocks"],
)
def test_fields_with_an_offset_are_those_without(where):
    rng, n = np.random.default_rng(), 300
    keys, reals, flags = rng.integers(0, 40, n), rng.normal(size=n), rng.integers(0, 2, n)
    a = qd.algorithms

    def run(*offsets):
        qd.init(default_fp=qd.f64, **where)
        begins = iter(offsets * 12)
        k, order, f, out_k = (qd.field(qd.i32, shape=n, offset=next(begins)) for _ in range(4))
        x, y, z, sums = (qd.field(qd.f64, shape=n, offset=next(begins), needs_grad=True) for _ in range(4))
        v = qd.Vector.field(2, qd.f64, shape=n, offset=next(begins), needs_grad=True)
        w = qd.Vector.field(2, qd.f64, shape=n, offset=next(begins), needs_grad=True)
        counts = qd.field(qd.i32, shape=40, offset=next(begins))
        count, total = qd.field(qd.i32, shape=()), qd.field(qd.f64, shape=1, offset=next(begins), needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)
        for tensor, values in ((k, keys), (f, flags), (x, reals), (v, np.stack([reals, -reals], 1))):
            tensor.from_numpy(values.astype(tensor.dtype.numpy))

        @qd.kernel
        def weigh():
            for i in y:
                j = i - y.offset[0]
                at = j + w.offset[0]
                loss[None] += y[i] * (j + 1) + w[at][0] * j + w[at][1]
            loss[None] += 3.0 * total[total.offset[0]]

        @qd.kernel
        def in_order():
            for i in order:
                z[i - order.offset[0] + z.offset[0]] = x[order[i]]

        with qd.ad.Tape(loss):
            a.argsort(k, order)
            a.gather(x, order, y)
            a.gather(v, order, w)
            a.reduce(x, total)
            weigh()
        a.histogram(k, counts)
        in_order()
        assert np.array_equal(z.to_numpy(), y.to_numpy())  # the order has the indices of the keys
        found = [y, w, total, counts, loss, x.grad, v.grad]
        found = [t.to_numpy() for t in found]
        a.inclusive_scan(x, y)
        a.exclusive_scan(x, z)
        found += [y.to_numpy(), z.to_numpy()]
        a.compact(x, f, y, count)
        found += [y.to_numpy()[..., : flags.sum()], count.to_numpy()]
        with qd.ad.Tape(loss):
            a.parallel_sort(k, x)
            a.inclusive_scan(x, y)
            weigh()
        found += [k.to_numpy(), x.to_numpy(), x.grad.to_numpy()]
        a.reduce_by_key(k, x, out_k, sums, count)
        runs = len(set(keys.tolist()))
        found += [out_k.to_numpy()[..., :runs], sums.to_numpy()[..., :runs], count.to_numpy()]
        a.unique(k, out_k, count)
        found += [out_k.to_numpy()[..., :runs]]
        a.PrefixSumExecutor(n).run(k)
        return [*found, k.to_numpy()]

    shared = rng.integers(-50, 50, 4).tolist()
    for got, wanted in zip(run(*(o or 7 for o in shared)), run(None), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_bad_arguments_are_refused_by_name():
    x, y = qd.ndarray(qd.f64, 4, needs_grad=True), qd.ndarray(qd.f32, 4)
    loss, count = qd.field(qd.f64, shape=(), needs_grad=True), qd.field(qd.i32, shape=())
    with pytest.raises(qd.QdrunTypeError, match=r"algorithms.inclusive_scan: `out` has the type f32, not f64"):
        qd.algorithms.inclusive_scan(x, y)
    with pytest.raises(qd.QdrunTypeError, match=r"algorithms.reduce: `x` is ndarray, not a field(.|\n)*make a qd.ndarray"):
        qd.algorithms.reduce(np.zeros(3), loss)
    with pytest.raises(qd.QdrunValueError, match="op='mul' is not one of 'add', 'min', 'max'"):
        qd.algorithms.reduce(x, loss, "mul")
    with pytest.raises(qd.QdrunValueError, match=r"`x` has the shape \(2, 2\), not one axis"):
        qd.algorithms.reduce(qd.ndarray(qd.f64, (2, 2)), loss)
    with pytest.raises(qd.QdrunValueError, match="`order` has 5 elements, and 4 are needed"):
        qd.algorithms.argsort(x, qd.ndarray(qd.i32, 5))
    with pytest.raises(qd.QdrunValueError, match=r"algorithms.gather: an array is given twice"):
        qd.algorithms.gather(x, qd.ndarray(qd.i32, 4), x)
    with (
        pytest.raises(qd.QdrunTypeError, match=r"algorithms.unique has no derivative(.|\n)*argsort and gather"),
        qd.ad.Tape(loss),
    ):
        qd.algorithms.unique(x, like(x), count)
