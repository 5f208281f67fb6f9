"""Aliases, hints and small helpers of ``qd``; which names there are is in ``test_signatures.py``."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime.vulkan.probe import COUNT


@pytest.fixture
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


def test_a_refused_name_in_a_kernel_carries_the_line(program):
    @qd.kernel
    def barrier():
        for _ in range(4):
            qd.simt.block.sync()

    if program.device.on_host:
        with pytest.raises(qd.QdrunTypeError, match=r"(?s)`simt\.block\.sync` needs a GPU.*qd\.simt\.block\.sync\(\)"):
            barrier()

    x = qd.field(qd.i32, shape=4)

    @qd.kernel
    def sparse():
        for i in range(4):
            if qd.get_addr(x, i):
                x[i] = 1

    with pytest.raises(
        qd.QdrunTypeError, match=r"(?s)`get_addr` is not available: kernels have no addresses.*qd\.get_addr\(x, i\)"
    ):
        sparse()


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = qd.no_such_name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = qd.types.no_such_name


def test_aliases_are_the_types_themselves():
    for long, short in [("float16", "f16"), ("float32", "f32"), ("float64", "f64"), ("uint1", "u1")]:
        assert getattr(qd, long) is getattr(qd, short) is getattr(qd.types, long) is getattr(qd.types, short)
    for kind in "iu":
        for bits in (8, 16, 32, 64):
            long = f"{'u' if kind == 'u' else ''}int{bits}"
            assert getattr(qd, long) is getattr(qd, f"{kind}{bits}") is getattr(qd.types, long)
    assert qd.x64 == qd.x86_64 == qd.arm64 == qd.cpu


def test_predicates_of_types():
    assert qd.types.is_real(qd.f16) and not qd.types.is_real(qd.i32)
    assert qd.types.is_integral(qd.u8) and not qd.types.is_integral(qd.f32)
    assert qd.types.is_signed(qd.i8) and qd.types.is_signed(qd.f32) and not qd.types.is_signed(qd.u64)
    assert qd.types.is_tensor(qd.types.vector(3, qd.f32)) and not qd.types.is_tensor(qd.f32)


def test_axes(program):
    assert qd.axes(0, 1) == qd.ij and qd.axes(2) == qd.k and qd.axes(0, 3) == qd.il and qd.axes(1, 2, 3) == qd.jkl
    x = qd.field(qd.f64)
    qd.root.dense(qd.axes(0, 1), (2, 3)).place(x)
    assert x.shape == (2, 3)


def test_zeros_and_ones_have_the_type_of_their_argument(program):
    out = qd.Vector.field(2, qd.i32, shape=2)

    @qd.kernel
    def k() -> qd.f64:
        v = qd.Vector([5, 7])
        out[0], out[1] = qd.zero(v), qd.one(v)
        qd.static_assert(qd.zero(v).dtype == qd.i32)
        return qd.one(2.5) + qd.zero(3)

    assert k() == 1.0
    assert out.to_numpy().tolist() == [[0, 0], [1, 1]]
    assert qd.zero(qd.Vector([1.0, 2.0])).to_list() == [0.0, 0.0] and qd.one(3) == 1


def test_bit_shr_shifts_zeros_in(program):
    @qd.kernel
    def k(a: qd.i32, b: qd.i64, c: qd.u8, n: qd.i32) -> qd.types.vector(3, qd.i64):
        return qd.Vector([qd.i64(qd.bit_shr(a, n)), qd.bit_shr(b, n), qd.i64(qd.bit_shr(c, n))])

    for n in (0, 1, 7):
        want = [(-8 & 0xFFFFFFFF) >> n, (-9 & (1 << 64) - 1) >> n, 200 >> n]
        assert [x & (1 << 64) - 1 if k_ == 1 else x & 0xFFFFFFFF for k_, x in enumerate(k(-8, -9, 200, n).to_list())] == want
    assert qd.bit_shr(-8, 1) == 2147483644

    @qd.kernel
    def wrong() -> qd.f64:
        return qd.bit_shr(1.0, 2)

    with pytest.raises(qd.QdrunTypeError, match="bit_shr takes integers"):
        wrong()


def check_frexp(dtype, values):
    n = len(values)
    x, m, e = qd.field(dtype, shape=n), qd.field(dtype, shape=n), qd.field(qd.i32, shape=n)
    x.from_numpy(values)

    @qd.kernel
    def k():
        for i in x:
            m[i], e[i] = qd.frexp(x[i])

    k()
    want_m, want_e = np.frexp(values)
    finite = np.isfinite(values)
    assert np.array_equal(m.to_numpy(), want_m, equal_nan=True)
    assert np.array_equal(e.to_numpy()[finite], want_e[finite])


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_frexp_is_that_of_numpy(program, dtype):
    kind = dtype.numpy.type
    rng = np.random.default_rng(0)
    least, huge = np.finfo(kind).tiny, np.finfo(kind).max
    values = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, least, -least * 5, huge, np.inf, -np.inf, np.nan], kind)
    check_frexp(dtype, np.concatenate([values, (rng.normal(size=300) * 10.0 ** rng.uniform(-30, 30, 300)).astype(kind)]))
    assert qd.frexp(3.0) == (0.75, 2)


@pytest.mark.parametrize("dtype", [qd.f32, qd.f64])
def test_frexp_of_subnormal_numbers_where_the_device_keeps_them(program, dtype):
    kind = dtype.numpy.type
    if program.device.arch == "vulkan":
        here = program.device.driver._here
        found = here.probed.float32 if dtype is qd.f32 else here.probed.float64
        if dtype.bits not in here.features.denorm_preserve and found.subnormal < COUNT:
            pytest.skip("the device lacks shaderDenormPreserve and takes subnormal numbers for zero")
    least = np.finfo(kind).smallest_subnormal
    check_frexp(dtype, np.array([least, -least * 5, np.finfo(kind).tiny / kind(2), np.finfo(kind).tiny - least], kind))


def test_fns_finds_the_nth_bit(program):
    @qd.kernel
    def k(mask: qd.u32, base: qd.u32, offset: qd.i32) -> qd.u32:
        return qd.math.fns(mask, base, offset)

    rng = np.random.default_rng(2)
    for _ in range(60):
        mask, base, offset = int(rng.integers(0, 2**32)), int(rng.integers(0, 32)), int(rng.integers(-9, 10))
        where = range(base, 32) if offset > 0 else range(base, -1, -1) if offset < 0 else [base]
        bits = [p for p in where if mask >> p & 1]
        want = bits[max(1, abs(offset)) - 1] if len(bits) >= max(1, abs(offset)) else 0xFFFFFFFF
        assert k(mask, base, offset) == want == qd.math.fns(mask, base, offset)


def test_hints_change_nothing(program):
    x = qd.field(qd.f64, shape=8)

    @qd.kernel(pure=True, fastcache=True)
    def k():
        qd.block_local(x)
        qd.cache_read_only(x)
        qd.no_activate(x.shape)
        qd.loop_config(block_dim=32, name="fill", bit_vectorize=False)
        for i in x:
            x[i] = qd.assume_in_range(i, 0, 0, 8) * 2.0

    k()
    assert x.to_numpy().tolist() == [2.0 * i for i in range(8)]


def test_parallelize_one_runs_a_loop_in_order(program):
    out = qd.field(qd.i32, shape=())

    @qd.kernel
    def k():
        qd.loop_config(parallelize=1)
        for i in range(100):
            out[None] = out[None] * 3 % 1000003 + i

    k()
    want = 0
    for i in range(100):
        want = want * 3 % 1000003 + i
    assert out[None] == want


def test_pyfunc_and_real_func(program):
    @qd.pyfunc
    def twice(a):
        return a * 2

    @qd.real_func
    def half(a: qd.f64) -> qd.f64:
        return a / 2

    class Thing:
        offset = 0.0

        @qd.pyfunc
        def plus(self, a):
            return a + self.offset

    thing = Thing()
    thing.offset = 3.0

    @qd.kernel
    def k(a: qd.f64) -> qd.f64:
        return twice(a) + half(a) + thing.plus(a)

    assert k(4.0) == 8.0 + 2.0 + 7.0
    assert twice(4) == 8 and thing.plus(4) == 7.0
    assert qd.pure(twice) is twice


def test_logging_levels_extensions_and_the_configuration(program, capsys):
    qd.set_logging_level(qd.WARN)
    assert qd.is_logging_effective(qd.ERROR) and not qd.is_logging_effective("info")
    qd.set_logging_level(qd.TRACE)
    assert qd.is_logging_effective(qd.DEBUG)
    assert qd.is_extension_enabled(qd.extension.adstack) and not qd.is_extension_enabled(qd.extension.mesh)
    qd.dump_compile_config()
    assert "default_fp=f64\n" in capsys.readouterr().out


def test_exchange_gives_the_old_content(program):
    x, old = qd.field(qd.f64, shape=()), qd.field(qd.f64, shape=1001)

    @qd.kernel
    def k():
        for i in range(1, 1001):
            old[i] = qd.atomic_exchange(x[None], 1.0 * i)

    k()
    assert sorted([*old.to_numpy()[1:], x[None]]) == [float(i) for i in range(1001)]  # every number left once


def test_compare_and_swap_lets_one_thread_win(program):
    slot, won, sums = qd.field(qd.i32, shape=64), qd.field(qd.i32, shape=64), qd.field(qd.i64, shape=())
    v = qd.Vector.field(2, qd.u64, shape=1)

    @qd.kernel
    def k() -> qd.i32:
        for i in range(10000):
            if qd.atomic_cas(slot[i % 64], 0, i + 1) == 0:
                won[i % 64] += 1
        for i in range(1000):
            done = False
            while not done:
                was = sums[None]
                done = qd.atomic_cas(sums[None], was, was + i) == was
        for _ in range(1):
            before = qd.atomic_cas(v[0].y, 0, 9)
            before += qd.atomic_cas(v[0].y, 1, 10)
            v[0].x = before
        mine = 5
        first = qd.atomic_cas(mine, 5, 6)
        return first * 10 + mine

    assert k() == 56
    assert won.to_numpy().tolist() == [1] * 64 and (slot.to_numpy() > 0).all()
    assert sums[None] == 499500 and v[0].to_list() == [9, 9]


def test_compare_and_swap_is_for_integers_and_exchange_has_no_gradient(program):
    x = qd.field(qd.f64, shape=3, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def cas():
        for i in x:
            qd.atomic_cas(x[i], 0.0, 1.0)

    @qd.kernel
    def few():
        for i in x:
            qd.atomic_exchange(x[i])

    @qd.kernel
    def exchange():
        for i in x:
            old = qd.atomic_exchange(loss[None], x[i])
            loss[None] += old

    with pytest.raises(qd.QdrunTypeError, match="atomic_cas takes integers; `x` holds f64"):
        cas()
    with pytest.raises(qd.QdrunTypeError, match=r"atomic_exchange\(\): missing a required argument: 'y'"):
        few()
    exchange()
    with pytest.raises(qd.DifferentiationError, match="loss"):
        exchange.grad()


def test_host_matrices_compute_as_in_kernels(program):
    a, v = qd.Matrix([[1, 2], [3, 4]]), qd.Vector([1.0, -2.0, 3.0])
    assert (a @ a).to_list() == [[7, 10], [15, 22]] and (2 - a).to_list() == [[1, 0], [-1, -2]]
    assert (a // 2).to_list() == [[0, 1], [1, 2]] and (a**2 % 5).to_list() == [[1, 4], [4, 1]]
    assert (a == a.transpose().transpose()).all() and (a > 2).to_list() == [[False, False], [True, True]] and (-a).min() == -4
    assert abs(v).to_list() == [1.0, 2.0, 3.0] and v.cross(v).to_list() == [0.0, 0.0, 0.0]
    assert a.transpose()[0, 1] == 3 and a.trace() == 5 and a.determinant() == pytest.approx(-2)
    assert a.frobenius_inner(a) == 30 and a.get_shape() == (2, 2) and np.allclose(a.inverse() @ a, np.eye(2))
    with pytest.raises(qd.QdrunTypeError, match="one shape"):
        a.frobenius_inner(v)

    @qd.kernel
    def k() -> qd.f64:
        m = qd.Matrix([[1.0, 2.0], [3.0, 4.0]])
        return m.frobenius_inner(m) + m.get_shape()[0]

    assert k() == 32.0
