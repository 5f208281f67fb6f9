"""Blocks of threads: shared arrays, barriers, thread numbers. On the emulated device a block is as many threads of the processor.

``--arch cuda`` runs the same on a GPU.
"""

import os

import numpy as np
import pytest

import qdrun as qd
from qdrun.tests.devices.processor.blocks import _END, Team

DEVICE = {} if os.environ.get("QDRUN_TEST_ARCH") == "cuda" else {"device": "emulated"}
block = qd.simt.block


@pytest.fixture
def program():
    with qd.init(arch=qd.cuda, default_fp=qd.f64, offline_cache=False, **DEVICE) as program:
        yield program


def values(rng, dtype, n):
    """Random numbers of a type, small enough to be added."""
    return (100 * rng.random(n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
@pytest.mark.parametrize("n", [64, 77, 5])
def test_threads_read_what_others_have_left(program, dtype, n):
    kind = getattr(qd, dtype)
    x, y = qd.field(kind, shape=n), qd.field(kind, shape=n)

    @qd.kernel
    def rotate():
        qd.loop_config(block_dim=32)
        for i in x:
            tile = block.SharedArray(32, kind)
            t = block.thread_idx()
            tile[t] = x[i]
            block.sync()
            last = qd.min(32, n - (i - t))  # threads of this block that have an iteration
            y[i] = tile[(t + 1) % last]

    data = values(np.random.default_rng(n), x.to_numpy().dtype, n)
    x.from_numpy(data)
    rotate()
    expect = np.concatenate([np.roll(part, -1) for part in np.split(data, range(32, n, 32))])
    np.testing.assert_array_equal(y.to_numpy(), expect)


def test_tiles_of_bodies(program):
    n, size = 96, 32

    @qd.kernel
    def forces(p: qd.types.ndarray(dtype=qd.math.vec3, ndim=1), f: qd.types.ndarray(dtype=qd.math.vec3, ndim=1)):
        qd.loop_config(block_dim=size)
        for i in p:
            tile = block.SharedArray(size, qd.math.vec3)
            t = block.thread_idx()
            total = qd.Vector([0.0, 0.0, 0.0])
            for k in range(p.shape[0] // size):
                tile[t] = p[k * size + t]
                block.sync()
                for j in range(size):
                    d = tile[j] - p[i]
                    total += d / (d.norm_sqr() + 0.01) ** 1.5
                block.sync()
            f[i] = total

    data = np.random.default_rng(1).random((n, 3))
    f = np.zeros((n, 3))
    forces(data, f)
    d = data[None] - data[:, None]
    np.testing.assert_allclose(f, (d / ((d**2).sum(-1) + 0.01)[..., None] ** 1.5).sum(1), rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("n", [64, 100])
def test_a_sum_over_those_before(program, n):
    size = 64
    x, y, sums = qd.field(qd.i64, shape=n), qd.field(qd.i64, shape=n), qd.field(qd.i64, shape=2)

    @qd.func
    def scan(tile, t, value):
        tile[t] = value
        block.sync()
        reach = 1
        while reach < size:
            before = qd.i64(0)
            if t >= reach:
                before = tile[t - reach]
            block.sync()
            tile[t] += before
            block.sync()
            reach *= 2
        return tile[t]

    @qd.kernel
    def prefix():
        qd.loop_config(block_dim=size)
        for i in x:
            tile = block.SharedArray(size, qd.i64)
            t = block.thread_idx()
            y[i] = scan(tile, t, x[i])
            if t == size - 1 or i == n - 1:
                sums[i // size] = y[i]

    data = np.random.default_rng(n).integers(-50, 50, n)
    x.from_numpy(data)
    prefix()
    parts = [np.cumsum(part) for part in np.split(data, range(size, n, size))]
    np.testing.assert_array_equal(y.to_numpy(), np.concatenate(parts))
    np.testing.assert_array_equal(sums.to_numpy()[: len(parts)], [p[-1] for p in parts])


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64", "f32", "f64"])
def test_a_histogram_in_shared_memory(program, dtype):
    kind, n, bins, size = getattr(qd, dtype), 640, 16, 64
    x, counts = qd.field(qd.i32, shape=n), qd.field(kind, shape=bins)

    @qd.kernel
    def histogram():
        qd.loop_config(block_dim=size)
        for i in range(n):
            part = block.SharedArray(bins, kind)
            t = block.thread_idx()
            if t < bins:
                part[t] = 0
            block.sync()
            part[x[i]] += 1
            block.sync()
            if t < bins:
                counts[t] += part[t]

    data = np.random.default_rng(3).integers(0, bins, n)
    x.from_numpy(data.astype(np.int32))
    histogram()
    np.testing.assert_array_equal(counts.to_numpy(), np.bincount(data, minlength=bins))


def test_every_atomic_of_a_shared_array(program):
    out = qd.field(qd.i32, shape=(2, 8))
    old = qd.field(qd.i32, shape=64)

    @qd.kernel
    def update():
        qd.loop_config(block_dim=32)
        for i in range(64):
            a = block.SharedArray(8, qd.i32)
            t = block.thread_idx()
            if t < 8:
                a[t] = 0 if t != 3 else 1 << 30
            block.sync()
            qd.atomic_max(a[2], i)
            qd.atomic_min(a[3], i)
            qd.atomic_or(a[4], 1 << t % 16)
            qd.atomic_xor(a[5], i)
            qd.atomic_sub(a[6], i)
            old[i] = qd.atomic_add(a[0], 1)
            if qd.atomic_cas(a[1], 0, t + 1) == 0:
                qd.atomic_add(a[7], 1)
            block.sync()
            if t < 8:
                out[i // 32, t] = a[t]

    update()
    for k, row in enumerate(out.to_numpy()):
        i = np.arange(32) + 32 * k
        assert 1 <= row[1] <= 32
        expect = [32, row[1], i.max(), i.min(), 0xFFFF, np.bitwise_xor.reduce(i), -i.sum(), 1]
        np.testing.assert_array_equal(row, expect)
        assert sorted(old.to_numpy()[i]) == list(range(32))


def test_tiles_of_two_axes(program):
    n, m, size = 24, 16, 8
    a, b, c = (qd.field(qd.f64, shape=s) for s in ((n, m), (m, n), (n, n)))

    @qd.kernel
    def product():
        qd.loop_config(block_dim=size * size)
        for by, bx, ty, tx in qd.ndrange(n // size, n // size, size, size):
            left = block.SharedArray((size, size + 1), qd.f64)
            right = block.SharedArray((size, size + 1), qd.f64)
            i, j = by * size + ty, bx * size + tx
            total = 0.0
            for k in range(m // size):
                left[ty, tx] = a[i, k * size + tx]
                right[ty, tx] = b[k * size + ty, j]
                block.sync()
                for q in qd.static(range(size)):
                    total += left[ty, q] * right[q, tx]
                block.sync()
            c[i, j] = total

    rng = np.random.default_rng(5)
    x, y = rng.random((n, m)), rng.random((m, n))
    a.from_numpy(x)
    b.from_numpy(y)
    product()
    np.testing.assert_allclose(c.to_numpy(), x @ y, rtol=1e-13)


@pytest.mark.parametrize("n", [0, 3, 64, 300])
def test_as_many_iterations_as_memory_says(program, n):
    """The host does not know the number of blocks: blocks take several rounds, and the threads past the end wait with the others."""
    size = 16
    count, x, y = qd.field(qd.i32, shape=()), qd.field(qd.f64, shape=300), qd.field(qd.f64, shape=300)

    @qd.kernel
    def means():
        qd.loop_config(block_dim=size)
        for i in range(count[None]):
            total = block.SharedArray(1, qd.f64)
            t = block.thread_idx()
            if t == 0:
                total[0] = 0.0
            block.sync()
            total[0] += x[i]
            block.sync()
            y[i] = total[0] / size

    data = np.random.default_rng(n).random(300)
    x.from_numpy(data)
    count[None] = n
    means()
    padded = np.zeros(304)
    padded[:n] = data[:n]
    expect = np.repeat(padded.reshape(-1, size).sum(1) / size, size)[:300] * (np.arange(300) < n)
    np.testing.assert_allclose(y.to_numpy(), expect, rtol=1e-13)


def test_memory_of_all_is_exchanged_at_a_barrier_too(program):
    """What a thread has stored is not what it reads after a barrier: nothing is kept in registers over one."""
    x, y = qd.field(qd.f64, shape=64), qd.field(qd.f64, shape=64)

    @qd.kernel
    def exchange():
        qd.loop_config(block_dim=32)
        for i in range(64):
            x[i] = i
            before = x[i]
            block.sync()
            if i % 32 == 0:
                for k in range(32):
                    x[i + k] *= 2.0
            block.sync()
            y[i] = x[i] + before

    exchange()
    np.testing.assert_array_equal(y.to_numpy(), 3.0 * np.arange(64))


def test_a_loop_that_all_threads_leave_together(program):
    """The condition of a `while` is read at an index that all threads have in common."""
    steps = qd.field(qd.i32, shape=2)

    @qd.kernel
    def settle():
        qd.loop_config(block_dim=16)
        for i in range(20):  # the last block has 4 iterations
            left = block.SharedArray(2, qd.i32)
            t = block.thread_idx()
            if t == 0:
                left[0] = 5 + i
            block.sync()
            while left[0] > 0:
                block.sync()
                if t == 0:
                    left[0] -= 1
                    steps[i // 16] += 1
                block.sync()

    settle()
    np.testing.assert_array_equal(steps.to_numpy(), [5, 21])


def test_block_numbers_are_the_same_for_a_block(program):
    y = qd.field(qd.i32, shape=128)

    @qd.kernel
    def several():
        qd.loop_config(block_dim=32)
        for i in range(128):
            s = block.SharedArray(32, qd.i32)
            t = block.thread_idx()
            for k in range(i // 32):  # another number of rounds in each block
                s[t] = k
                block.sync()
                y[i] += s[31 - t]
                block.sync()

    several()
    np.testing.assert_array_equal(y.to_numpy(), np.repeat([0, 0, 1, 3], 32))


def test_the_numbers_of_threads(program):
    a, b = qd.field(qd.i32, shape=300), qd.field(qd.i32, shape=300)

    @qd.kernel
    def number(size: qd.template()):
        qd.loop_config(block_dim=size)
        for i in range(10, 310):
            a[i - 10], b[i - 10] = block.thread_idx(), qd.global_thread_idx()

    for size in (32, 96):
        number(size)
        np.testing.assert_array_equal(a.to_numpy(), np.arange(300) % size)
        np.testing.assert_array_equal(b.to_numpy(), np.arange(300))


def test_an_iteration_that_fails_does_not_hold_up_the_others():
    with qd.init(arch=qd.cuda, debug=True, offline_cache=False, **DEVICE):
        y, ran = qd.field(qd.i32, shape=64), qd.field(qd.i32, shape=64)

        @qd.kernel
        def careful(bad: qd.i32):
            qd.loop_config(block_dim=32)
            for i in y:
                s = block.SharedArray(32, qd.i32)
                t = block.thread_idx()
                s[t] = i
                for _ in range(2):
                    if t % 2 == 1:
                        for k in range(3):
                            if k == 1:
                                for m in range(i, i + 2):
                                    assert m != bad, "the bad one"
                                    ran[i] += 1
                            ran[i] += 10
                        ran[i] += 100
                    block.sync()
                y[i] = s[31 - t]

        careful(-1)
        np.testing.assert_array_equal(y.to_numpy(), np.arange(64).reshape(2, 32)[:, ::-1].ravel())
        ran.fill(0)
        with pytest.raises(qd.QdrunAssertionError, match="the bad one"):
            careful(33)
            qd.sync()
        expect = np.arange(64) % 2 * 264
        expect[33] = 10  # nothing behind the assertion, in whatever loop or condition
        np.testing.assert_array_equal(ran.to_numpy(), expect)


def test_an_index_out_of_a_shared_array():
    with qd.init(arch=qd.cuda, check_out_of_bound=True, offline_cache=False, **DEVICE):
        y = qd.field(qd.i32, shape=32)

        @qd.kernel
        def reads(k: qd.i32):
            qd.loop_config(block_dim=32)
            for i in y:
                s = block.SharedArray(32, qd.i32)
                s[block.thread_idx()] = i
                block.sync()
                y[i] = s[i + k]
                y[i] += s[k]

        reads(0)
        with pytest.raises(qd.QdrunAssertionError, match=r"axis 0 of `shared array 1` has index 3[23] but extent 32"):
            reads(1)
            qd.sync()
        with pytest.raises(qd.QdrunAssertionError, match=r"`shared array 1` has index (4|5|6|7)\d but extent 32"):
            reads(40)
            qd.sync()


def test_other_loops_keep_to_the_size_of_blocks(program):
    x, total = qd.field(qd.f64, shape=1000), qd.field(qd.f64, shape=(), needs_grad=False)

    @qd.kernel
    def add(size: qd.template()):
        qd.loop_config(block_dim=size)
        for i in x:
            x[i] += 1.0
        qd.loop_config(block_dim=size)
        for i in x:
            total[None] += x[i]

    for k, size in enumerate((1, 32, 100, 1024), 1):
        add(size)
        assert total[None] == 1000 * k * (k + 1) / 2


def loop_of(body):
    """A kernel whose loop has ``body(i, t)``."""

    @qd.kernel
    def meets():
        qd.loop_config(block_dim=32)
        for i in range(64):
            body(i, block.thread_idx())

    return meets


@qd.func
def half(i, t):
    if t < 16:
        block.sync()


@qd.func
def own_length(i, t):
    for _ in range(t):
        block.sync()


@qd.func
def after_an_exit(i, t):
    for k in range(4):
        if i == k:
            break
        block.sync()


@qd.func
def own_variable(i, t):
    n = 0
    if i > 3:
        n = 1
    if n == 1:
        block.sync()


@pytest.mark.parametrize(("body", "where"), [(half, "a condition"), (own_length, "a loop"), (own_variable, "a condition")])
def test_a_barrier_that_some_threads_pass_by_is_refused(program, body, where):
    with pytest.raises(qd.QdrunSyntaxError) as e:
        loop_of(body)()
    assert f"simt.block.sync() stands in {where} that may differ between the threads of a block" in str(e.value)
    assert "block.sync()\n    ^" in str(e.value) and "do: put it where all threads reach it" in str(e.value)


def test_a_barrier_behind_an_exit_is_refused(program):
    with pytest.raises(qd.QdrunSyntaxError, match="may differ between the threads of a block"):
        loop_of(after_an_exit)()


def shared(shape, dtype=qd.f32):
    @qd.kernel
    def k():
        for _ in range(64):
            tile = block.SharedArray(shape, dtype)
            tile[0] = 1.0

    return k


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda: shared(12289), "the shared arrays of this loop take 49,168 bytes; a block has 49,152"),
        (lambda: shared(0), "known at compile time: an int or a tuple of ints above 0, not 0"),
        (lambda: shared(2.5), "above 0, not 2.5"),
        (lambda: shared(4, "f32"), "a shared array holds numbers, vectors or matrices, not 'f32'"),
    ],
)
def test_shared_arrays_that_cannot_be(program, kernel, message):
    with pytest.raises(qd.QdrunTypeError) as e:
        kernel()()
    assert message in str(e.value)


def test_a_block_may_share_48_kib(program):
    shared(12288)()
    qd.sync()


def test_there_must_be_a_parallel_loop(program):
    @qd.kernel
    def outside():
        block.sync()

    @qd.kernel
    def in_order():
        qd.loop_config(serialize=True)
        for _ in range(4):
            block.sync()

    for kernel, why in ((outside, "there is no parallel loop around it"), (in_order, "the loop around it runs in order")):
        with pytest.raises(qd.QdrunTypeError) as e:
            kernel()
        assert f"`simt.block.sync` stands where there are no blocks of threads: {why}" in str(e.value)
    with pytest.raises(qd.QdrunRuntimeError, match=r"simt\.block\.sync\(\) was called outside of a kernel"):
        block.sync()


@pytest.mark.parametrize("size", [0, 1025, 2.0])
def test_block_dim_is_a_number_of_threads(program, size):
    @qd.kernel
    def k():
        qd.loop_config(block_dim=size)
        for _ in range(4):
            pass

    with pytest.raises(qd.QdrunTypeError, match="block_dim is a number from 1 to 1,024"):
        k()


def blocked(x, y):
    @qd.kernel
    def smooth():
        qd.loop_config(block_dim=32)
        for i in x:
            tile = block.SharedArray(32, qd.f64)
            t = block.thread_idx()
            tile[t] = x[i]
            block.sync()
            y[i] = tile[t] * tile[31 - t]

    return smooth


def test_a_gradient_is_refused_by_name(program):
    x, y = (qd.field(qd.f64, shape=64, needs_grad=True, needs_dual=True) for _ in range(2))
    smooth = blocked(x, y)
    smooth()
    message = "the threads of this loop meet in blocks, and there is no gradient of that yet"
    with pytest.raises(qd.DifferentiationError, match=message) as e:
        smooth.grad()
    assert "in kernel `smooth`" in str(e.value) and "qd.ad.grad_replaced" in str(e.value)
    with pytest.raises(qd.DifferentiationError, match=message.replace("gradient", "tangent")):
        with qd.ad.FwdMode(loss=y, param=x, seed=[1.0] * 64):
            smooth()


def test_a_gradient_of_your_own(program):
    x, y, loss = (qd.field(qd.f64, shape=s, needs_grad=True) for s in (64, 64, ()))
    smooth = blocked(x, y)

    @qd.kernel
    def back():
        for i in x:
            x.grad[i] += (y.grad[i] + y.grad[i - i % 32 + 31 - i % 32]) * x[i - i % 32 + 31 - i % 32]

    @qd.kernel
    def add():
        for i in y:
            loss[None] += y[i] * y[i]

    @qd.ad.grad_replaced
    def run():
        smooth()

    @qd.ad.grad_for(run)
    def run_grad():
        back()

    data = np.random.default_rng(8).random(64)
    x.from_numpy(data)
    with qd.ad.Tape(loss=loss):
        run()
        add()
    other = data.reshape(-1, 32)[:, ::-1].ravel()
    np.testing.assert_allclose(x.grad.to_numpy(), 4 * data * other**2, rtol=1e-13)


def test_kernels_without_a_gradient_do_not_mind(program):
    x, y = qd.field(qd.f64, shape=64), qd.field(qd.f64, shape=64)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    smooth = blocked(x, y)
    with qd.ad.Tape(loss=loss):
        smooth()


def test_blocks_in_a_recorded_function(program):
    x, y = qd.field(qd.f64, shape=64), qd.field(qd.f64, shape=64)
    smooth = blocked(x, y)
    x.from_numpy(np.arange(64.0))
    smooth()
    graph = qd.capture(smooth)
    y.fill(0.0)
    graph()
    expect = np.arange(64.0) * np.arange(64).reshape(2, 32)[:, ::-1].ravel()
    np.testing.assert_array_equal(y.to_numpy(), expect)


@pytest.mark.parametrize("arch", ["cpu", "python"])
@pytest.mark.skipif(os.environ.get("QDRUN_TEST_ARCH", "cpu") != "cpu", reason="tests of the processor itself")
def test_backends_without_blocks_refuse_them_by_name(arch):
    with qd.init(arch=getattr(qd, arch), offline_cache=False):
        a = qd.field(qd.i32, shape=40)

        @qd.kernel
        def number():
            qd.loop_config(block_dim=16)
            for i in a:
                a[i] = 100 * block.global_thread_idx() + block.thread_idx()

        number()
        np.testing.assert_array_equal(a.to_numpy(), 100 * np.arange(40) + np.arange(40) % 16)
        for name, kernel in (("sync", loop_of(half)), ("SharedArray", shared(4))):
            with pytest.raises(qd.QdrunTypeError, match=f"`simt.block.{name}` needs a GPU"):
                kernel()


def test_the_emulated_device_sees_threads_that_miss_a_barrier():
    """A race about who meets would hold up a GPU for ever."""
    import threading

    for last, diverged in ((2, True), (_END, True), (1, False)):
        team = Team(3, np.zeros(4, np.uint8))
        threads = [threading.Thread(target=team.meet, args=(site,)) for site in (1, 1, last)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert team.diverged is diverged and not any(t.is_alive() for t in threads)


@qd.func
def after(a, b):
    """Associative, and not commutative: the last of two values that is not 0."""
    return a if b == 0 else b


@pytest.mark.parametrize(
    ("n", "size"),
    [pytest.param(64, 32, marks=pytest.mark.slow), (50, 32), (1, 16), pytest.param(90, 24, marks=pytest.mark.slow)],
)
def test_what_a_block_makes_of_its_values(program, n, size):
    x = qd.field(qd.f64, shape=n)
    out = qd.field(qd.f64, shape=(n, 14))

    @qd.kernel
    def reduced():
        qd.loop_config(block_dim=size)
        for i in x:
            for _ in range(2):  # twice: the memory of the first round is used again
                v = x[i]
                out[i, 0] = block.reduce_add(v, size, qd.f64)
                out[i, 1] = block.reduce_all_min(v, size, qd.f64)
                out[i, 2] = block.reduce_all_max(v, size, qd.f64)
                out[i, 3] = block.reduce(v, size, after, qd.f64)
                out[i, 4] = block.inclusive_add(v, size, qd.f64)
                out[i, 5] = block.exclusive_add(v, size, qd.f64)
                out[i, 6] = block.inclusive_max(v, size, qd.f64)
                out[i, 7] = block.sync_count_nonzero(v > 0)
                out[i, 8] = block.sync_any_nonzero(v > 5)
                out[i, 9] = block.sync_all_nonzero(v < 5)
                out[i, 10] = block.inclusive_min(v, size, qd.f64)
                out[i, 11] = block.inclusive_scan(v, size, after, qd.f64)
                out[i, 12] = block.exclusive_max(v, block_dim=size, dtype=qd.f64)
                out[i, 13] = block.exclusive_min(qd.i32(v), size, qd.i32)

    data = np.random.default_rng(n).integers(-6, 7, n).astype(float)
    x.from_numpy(data)
    reduced()
    rows = []
    for v in np.split(data, range(size, n, size)):
        last = [next((w for w in v[: k + 1][::-1] if w), 0.0) for k in range(len(v))]
        columns = [v.sum(), v.min(), v.max(), last[-1], np.cumsum(v), np.cumsum(v) - v, np.maximum.accumulate(v)]
        columns += [(v > 0).sum(), (v > 5).any(), (v < 5).all(), np.minimum.accumulate(v), np.array(last)]
        columns += [np.r_[-np.inf, np.maximum.accumulate(v)[:-1]], np.r_[2.0**31 - 1, np.minimum.accumulate(v)[:-1]]]
        rows.append(np.stack([np.broadcast_to(c, len(v)) for c in columns], 1))
    np.testing.assert_array_equal(out.to_numpy(), np.concatenate(rows))


def test_a_sum_of_blocks_of_another_size_is_refused(program):
    @qd.kernel
    def k():
        qd.loop_config(block_dim=32)
        for _ in range(32):
            block.reduce_add(1, 64, qd.i32)

    with pytest.raises(qd.QdrunTypeError, match="block_dim is not that of the loop around"):
        k()
