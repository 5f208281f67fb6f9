"""Faults that the fuzzer found, each in the few lines that it left of a program."""

import numpy as np
import pytest

import qdrun as qd

INTEGERS = [qd.i8, qd.i16, qd.i32, qd.i64, qd.u8, qd.u16, qd.u32, qd.u64]


@pytest.mark.parametrize("value", [-1.0, -3.7, 300.7, 1e30, float("inf"), float("-inf"), float("nan")])
def test_a_real_literal_becomes_an_integer_as_a_real_value_does(value):
    qd.init(default_fp=qd.f64)
    out = tuple(qd.field(t, shape=3) for t in INTEGERS)

    @qd.kernel
    def k(v: qd.f64):
        for n in qd.static(range(8)):
            out[n][0] = v
            out[n][1] = qd.cast(v, INTEGERS[n])
            out[n][2] = qd.cast(value, INTEGERS[n])

    k(value)
    for x in out:
        assert x[0] == x[1] == x[2], x.dtype


@pytest.mark.parametrize("value", [-1.0, -3.7, 300.7, 1e30, float("inf"), float("-inf"), float("nan")])
def test_a_real_literal_that_an_integer_cannot_hold_is_refused_where_it_is_stored(value):
    qd.init(default_fp=qd.f64)
    out = qd.field(qd.u8, shape=3)

    @qd.kernel
    def k():
        out[1] = value

    with pytest.raises(qd.QdrunFitError, match="does not fit u8"):
        k()


@pytest.mark.parametrize("narrow", [qd.u8, qd.u16, qd.u32])
def test_a_subtraction_from_an_element_takes_a_narrower_unsigned_value_as_it_is(narrow):
    qd.init()
    x, y = qd.field(qd.i64, shape=2), qd.field(qd.f64, shape=2)

    @qd.kernel
    def k(n: narrow):
        for i in range(2):
            x[i] -= n
            qd.atomic_sub(y[i], n)

    k(5)
    assert x.to_numpy().tolist() == [-5, -5]
    assert y.to_numpy().tolist() == [-5.0, -5.0]


def test_the_index_of_a_range_has_the_type_of_a_literal_end_of_64_bits():
    qd.init()
    x = qd.field(qd.i64, shape=6)

    @qd.kernel
    def k(n: qd.i64):
        for i in range(qd.i64(2)):
            x[i] = i * 3_000_000_000 + qd.clz(i)
        for i in range(n):
            x[2 + i] = i * 3_000_000_000 + qd.clz(i)
        for i, _ in qd.ndrange(qd.i64(2), (0, 1)):
            x[4 + i] = i * 3_000_000_000 + qd.clz(i)

    k(2)
    assert x.to_numpy().tolist() == [64, 3_000_000_063] * 3


def test_a_literal_u32_that_no_index_of_i32_holds_is_refused_as_a_bound():
    qd.init()
    x = qd.field(qd.i32, shape=())

    @qd.kernel
    def folded():
        for _ in range(-2, -2 + qd.u32(1.953) % 1):
            x[None] += 1

    @qd.kernel
    def sequential():
        for _ in range(1):
            for _i in range(qd.u32(3_000_000_000)):
                x[None] += 1

    @qd.kernel
    def nest():
        for _i, _j in qd.ndrange(2, qd.u32(3_000_000_000)):
            x[None] += 1

    for kernel, bound in (folded, 4294967294), (sequential, 3000000000), (nest, 3000000000):
        with pytest.raises(
            qd.QdrunTypeError, match=rf"has type i32: the bound {bound} does not fit(.|\n)*do: .*`i64\({bound}\)`"
        ):
            kernel()
    assert x[None] == 0


@pytest.mark.parametrize("options", [{}, {"arch": qd.python}, {"arch": qd.cuda, "device": "emulated"}])
def test_debug_checks_an_index_in_the_end_of_a_parallel_loop(options):
    with qd.init(debug=True, **options):
        y = qd.field(qd.i32, shape=4)

        @qd.kernel
        def k(n: qd.i32, ends: qd.types.ndarray(dtype=qd.i32, ndim=1)):
            for i in range(0, ends[n] if n >= 0 else 1):
                y[i] += 1

        ends = np.array([1, 3], np.int32)
        k(1, ends)
        k(-7, ends)
        assert y.to_numpy().tolist() == [2, 1, 1, 0]
        with pytest.raises(qd.QdrunAssertionError, match="axis 0 of `ends` has index 2 but extent 2"):
            k(2, ends)
        assert y.to_numpy().tolist() == [2, 1, 1, 0]


def test_values_of_a_type_keep_it_where_they_are_known_while_compiling():
    qd.init()
    x, y = qd.field(qd.f64, shape=3), qd.field(qd.f64, shape=3)

    @qd.kernel
    def known():
        a = 0.1
        x[0] = a * 3.0 + 0.7
        x[1] = qd.f32(1.0) - 0.32
        x[2] = qd.f16(0.1) * 3 // 0.01

    @qd.kernel
    def computed(a: qd.f32, b: qd.f32, c: qd.f16):
        y[0] = a * 3.0 + 0.7
        y[1] = b - 0.32
        y[2] = c * 3 // 0.01

    known()
    computed(0.1, 1.0, 0.1)
    assert x.to_numpy().tolist() == y.to_numpy().tolist()


def test_a_literal_keeps_its_full_precision_until_it_meets_a_value():
    qd.init()
    x = qd.field(qd.f64, shape=3)

    @qd.kernel
    def k(one: qd.f64):
        x[0] = 0.1
        x[1] = one * 0.1
        x[2] = (qd.Vector([0.1, 0.2]) * one)[0]

    k(1.0)
    assert x.to_numpy().tolist() == [0.1, 0.1, 0.1]


@pytest.mark.parametrize("options", [{}, {"arch": qd.cuda, "device": "emulated"}])
def test_a_gradient_keeps_the_check_of_an_index_in_the_end_of_a_parallel_loop(options):
    with qd.init(debug=True, default_fp=qd.f64, **options):
        x, y = (qd.field(qd.f64, shape=4, needs_grad=True) for _ in range(2))

        @qd.kernel
        def k(n: qd.i32, ends: qd.types.ndarray(dtype=qd.i32, ndim=1)):
            for i in range(ends[n]):
                y[i] = x[i] * 3.0

        ends = np.array([1, 3], np.int32)
        y.grad.fill(1.0)
        k.grad(1, ends)
        assert x.grad.to_numpy().tolist() == [3.0, 3.0, 3.0, 0.0]
        with pytest.raises(qd.QdrunAssertionError, match="axis 0 of `ends` has index 2 but extent 2"):
            k.grad(2, ends)
            qd.sync()


NARROWED = [(qd.i32, qd.i8), (qd.u32, qd.u16), (qd.i64, qd.i16), (qd.i64, qd.i32)]


@pytest.mark.parametrize("wide, narrow", NARROWED)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_a_narrower_value_of_one_lane_leaves_the_elements_behind_it_as_they_are(lanes, wide, narrow):
    values = np.random.default_rng().integers(2**31, size=33).astype(wide.numpy)
    with qd.init(cpu_lanes=lanes, cpu_max_num_threads=1):
        one, some, last, y = (qd.field(t, shape=48) for t in (narrow, narrow, narrow, wide))
        before = np.arange(48).astype(narrow.numpy)
        for x in (one, some, last):
            x.from_numpy(before)
        y.from_numpy(np.concatenate([values, values[:15]]))

        @qd.kernel
        def k():
            for i in range(32):
                if (i == 5) | (i == 17):
                    some[i] = y[i]
            for i in range(1):
                one[i] = y[i]
            for i in range(33):
                last[i] = y[i]

        k()
        cast = values.astype(narrow.numpy)
        expected = before.copy()
        expected[[5, 17]] = cast[[5, 17]]
        assert some.to_numpy().tolist() == expected.tolist()
        assert one.to_numpy().tolist() == [cast[0], *before[1:]]
        assert last.to_numpy().tolist() == [*cast, *before[33:]]


def divisions(a, b, dtype, options):
    with qd.init(**options):
        x, y, out = qd.field(dtype, shape=9), qd.field(dtype, shape=9), qd.field(dtype, shape=(9, 4))
        x.from_numpy(a)
        y.from_numpy(b)

        @qd.kernel
        def k():
            for i in range(9):
                out[i, 0] = qd.raw_div(x[i], y[i])
                out[i, 1] = qd.raw_mod(x[i], y[i])
                out[i, 2] = x[i] // y[i]
                out[i, 3] = x[i] % y[i]

        k()
        return out.to_numpy()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_divisions_by_zero_and_by_minus_one_agree_in_the_interpreter_in_lanes_and_on_a_device(dtype):
    low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    a = np.array([low, low, low, high, high, 7, 7, 0, 0], dtype.numpy)
    b = np.array([0, -1 if low else 1, 1, 0, low or 3, 0, high, 0, high], dtype.numpy)
    expected = divisions(a, b, dtype, {"arch": qd.python})
    assert not expected[b == 0].any()
    assert expected[1].tolist() == [low, 0, low, 0]
    for options in ({"cpu_lanes": 1}, {"cpu_lanes": 4}, {"arch": qd.cuda, "device": "emulated"}):
        assert divisions(a, b, dtype, options).tolist() == expected.tolist()


def test_the_least_and_the_largest_of_three_see_the_sign_of_a_negated_operand():
    """NVIDIA's assembler dropped the negation in its instruction for three operands (found on an H200)."""
    qd.init()
    x = qd.Vector.field(3, qd.i32, shape=64)
    low, high = qd.field(qd.i32, shape=64), qd.field(qd.i32, shape=64)

    @qd.kernel
    def ends():
        for i in x:
            v = qd.Vector([-x[i][0], x[i][1], 7 - x[i][2]])
            low[i], high[i] = v.min(), v.max()

    given = np.random.default_rng().integers(-50, 50, (64, 3)).astype(np.int32)
    x.from_numpy(given)
    ends()
    wanted = np.stack([-given[:, 0], given[:, 1], 7 - given[:, 2]], 1)
    assert (low.to_numpy() == wanted.min(1)).all() and (high.to_numpy() == wanted.max(1)).all()


def test_a_choice_by_a_typed_condition_is_a_value_of_its_type():
    qd.init()
    x, y = qd.field(qd.f64, shape=()), qd.field(qd.f32, shape=())

    @qd.kernel
    def known():
        x[None] = qd.cast(1.0 if qd.i32(2) > 7 else 1.659, qd.f64)
        y[None] = (2.0 if qd.i32(2) > 1 else 1.0) - 2.28

    @qd.kernel
    def unknown(n: qd.i32):
        x[None] = qd.cast(1.0 if n > 7 else 1.659, qd.f64)
        y[None] = (2.0 if n > 1 else 1.0) - 2.28

    known()
    told = x[None], y[None]
    unknown(2)
    assert told == (x[None], y[None]) == (float(np.float32(1.659)), float(np.float32(2.0) - np.float32(2.28)))


@pytest.mark.parametrize("dtype", [qd.i8, qd.u8, qd.i32, qd.i64, qd.u64])
def test_an_element_is_the_same_whatever_type_its_index_has(dtype):
    """A value was forwarded over a store to the same element, whose literal index had another type."""
    qd.init()
    x, y = (qd.field(qd.f32, shape=3) for _ in range(2))

    @qd.kernel
    def run(n: dtype, a: qd.f32):
        x[0] = 1
        x[n % 1] = a
        x[0] /= 1
        for _ in range(4):
            y[2] += 1.0
            y[dtype(2)] += 1.0

    a = float(np.float32(np.random.default_rng().normal()))
    run(5, a)
    assert x.to_numpy().tolist() == [a, 0.0, 0.0] and y.to_numpy().tolist() == [0.0, 0.0, 8.0]


def test_the_truth_of_a_literal_is_that_of_all_its_digits():
    qd.init()
    x, y = qd.field(qd.u1, shape=4), qd.field(qd.f32, shape=2)

    @qd.kernel
    def run():
        x[0] = 5e-324
        x[1] = 0.0
        x[2] = qd.f32(5e-324)
        x[3] = -1e-50
        y[0] = 1.0 if 1e-60 else 2.0
        y[1] = 1.0 if not 1e-60 else 2.0

    run()
    assert x.to_numpy().tolist() == [True, False, False, True] and y.to_numpy().tolist() == [1.0, 2.0]
