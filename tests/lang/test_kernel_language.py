"""What kernels compute: operators on every type against numpy, loops, functions, vectors, atomics, returned values."""

import itertools

import numpy as np
import pytest

import qdrun as qd

TYPES = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64"]


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu, offline_cache=False) as program:
        yield program


def samples(name, seed, n=40):
    """Numbers of a type, with its ends; none is zero."""
    rng, dtype = np.random.default_rng(seed), getattr(qd, name).numpy
    if name[0] == "f":
        return rng.uniform(-4, 4, n).astype(dtype)
    info = np.iinfo(dtype)
    low = rng.integers(-9 if name[0] == "i" else 1, 9, n // 2).astype(dtype)
    values = np.concatenate([rng.integers(info.min, info.max, n - n // 2, dtype=dtype), low])
    values[:2] = info.max, info.min
    values[values == 0] = 3
    return values


# ---- operators on every type


@pytest.mark.parametrize("name", TYPES)
def test_arithmetic_on_every_type_is_that_of_numpy(name):
    dtype = getattr(qd, name)

    @qd.kernel
    def k(x: qd.types.ndarray(dtype=dtype, ndim=1), y: qd.types.ndarray(dtype=dtype, ndim=1), o: qd.types.ndarray(ndim=2)):
        for i in x:
            o[0, i] = x[i] + y[i]
            o[1, i] = x[i] - y[i]
            o[2, i] = x[i] * y[i]
            o[3, i] = x[i] // y[i]
            o[4, i] = x[i] % y[i]
            o[5, i] = -x[i]
            o[6, i] = max(x[i], y[i])
            o[7, i] = min(x[i], y[i])
            o[8, i] = x[i] if x[i] < y[i] else y[i] - x[i]

    x, y = samples(name, 1), samples(name, 2)
    out = np.zeros((9, x.size), dtype.numpy)
    k(x, y, out)
    with np.errstate(all="ignore"):
        floor = np.floor(x / y).astype(x.dtype) if name == "f16" else x // y
        expected = [x + y, x - y, x * y, floor, x % y, -x, np.maximum(x, y), np.minimum(x, y), np.where(x < y, x, y - x)]
    for row, (got, want) in enumerate(zip(out, expected)):
        if name[0] == "f":
            np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype.numpy).eps, atol=0.01 if name == "f16" else 1e-6)
        else:
            np.testing.assert_array_equal(got, want, err_msg=str(row))


@pytest.mark.parametrize("name", ["i8", "i32", "i64", "u16", "u64"])
def test_bits_of_every_integer_type_are_those_of_numpy(name):
    dtype = getattr(qd, name)

    @qd.kernel
    def k(x: qd.types.ndarray(dtype=dtype, ndim=1), y: qd.types.ndarray(dtype=dtype, ndim=1), o: qd.types.ndarray(ndim=2)):
        for i in x:
            shift = y[i] & qd.cast(7, dtype)
            o[0, i] = x[i] & y[i]
            o[1, i] = x[i] | y[i]
            o[2, i] = x[i] ^ y[i]
            o[3, i] = ~x[i]
            o[4, i] = x[i] << shift
            o[5, i] = x[i] >> shift

    x, y = samples(name, 3), samples(name, 4)
    out = np.zeros((6, x.size), dtype.numpy)
    k(x, y, out)
    s = (y & 7).astype(x.dtype)
    np.testing.assert_array_equal(out, [x & y, x | y, x ^ y, ~x, x << s, x >> s])


@pytest.mark.parametrize("name", ["i8", "i64", "u16", "u64", "f16", "f32", "f64"])
def test_comparisons_of_every_type(name):
    dtype = getattr(qd, name)

    @qd.kernel
    def k(x: qd.types.ndarray(dtype=dtype, ndim=1), y: qd.types.ndarray(dtype=dtype, ndim=1), o: qd.types.ndarray(ndim=2)):
        for i in x:
            o[0, i] = x[i] < y[i]
            o[1, i] = x[i] <= y[i]
            o[2, i] = x[i] > y[i]
            o[3, i] = x[i] >= y[i]
            o[4, i] = x[i] == y[i]
            o[5, i] = x[i] != y[i]
            o[6, i] = not x[i]
            o[7, i] = x[i] < y[i] < x[i]

    x, y = samples(name, 5), samples(name, 6)
    y[:8] = x[:8]
    out = np.zeros((8, x.size), bool)
    k(x, y, out)
    np.testing.assert_array_equal(out, [x < y, x <= y, x > y, x >= y, x == y, x != y, x == 0, (x < y) & (y < x)])


@pytest.mark.parametrize("one, other", list(itertools.permutations(["u8", "i32", "u32", "i64", "f16", "f64"], 2)))
def test_two_types_meet_in_the_wider_one(one, other):
    @qd.kernel
    def k(x: qd.types.ndarray(), y: qd.types.ndarray(), o: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in x:
            o[i] = x[i] + y[i]

    x, y = samples(one, 7, 12), samples(other, 8, 12)
    out = np.zeros(12)
    k(x, y, out)
    reals = [t for t in (one, other) if t[0] == "f"]
    wider = max(reals or (one, other), key=lambda t: (int(t[1:]), t[0] == "u"))
    dtype = getattr(qd, wider).numpy
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, (x.astype(dtype) + y.astype(dtype)).astype(float))


@pytest.mark.parametrize("name", [t if t in ("i32", "u8", "f16") else pytest.param(t, marks=pytest.mark.slow) for t in TYPES])
def test_casts_to_every_type_are_those_of_numpy(name):
    dtype = getattr(qd, name)

    @qd.kernel
    def k(x: qd.types.ndarray(ndim=1), o: qd.types.ndarray(dtype=dtype, ndim=1)):
        for i in x:
            o[i] = qd.cast(x[i], dtype)

    for source in TYPES:
        x = samples(source, 9)
        if source[0] == "f" and name[0] == "u":
            x = abs(x)
        out = np.zeros(x.size, dtype.numpy)
        k(x, out)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(out, x.astype(dtype.numpy), err_msg=source)


def test_reals_out_of_range_saturate_and_division_by_zero_gives_zero():
    @qd.kernel
    def k(x: qd.types.ndarray(dtype=qd.f64, ndim=1), o: qd.types.ndarray(dtype=qd.i64, ndim=2)):
        for i in x:
            o[0, i] = qd.cast(x[i], qd.i32)
            o[1, i] = i // (i - i)
            o[2, i] = i % (i - i)
            o[3, i] = (-2147483647 - 1) // (i - i - 1)

    x = np.array([1e30, -1e30, np.nan, 3.9])
    out = np.zeros((4, 4), np.int64)
    k(x, out)
    assert out[0, 3] == 3 and out[1].tolist() == [0] * 4
    first = out.copy()
    k(x, out)
    np.testing.assert_array_equal(first, out)


def test_and_and_or_give_the_side_that_decides():
    @qd.kernel
    def k(x: qd.types.ndarray(dtype=qd.i32, ndim=1), y: qd.types.ndarray(dtype=qd.f32, ndim=1), o: qd.types.ndarray(ndim=2)):
        for i in x:
            o[0, i] = x[i] and y[i]
            o[1, i] = x[i] or y[i]
            o[2, i] = x[i] > 0 and y[i] > 0
            o[3, i] = x[i] and 10 // x[i]
            o[4, i] = not x[i] or y[i] or 7
            o[5, i] = True and x[i]

    x, y = np.array([0, 0, 2, 3], np.int32), np.array([0, 1.5, 0, 2.5], np.float32)
    out = np.zeros((6, 4), np.float64)
    k(x, y, out)
    both = [(int(a), float(b)) for a, b in zip(x, y)]
    assert out[0].tolist() == [a and b for a, b in both] and out[1].tolist() == [a or b for a, b in both]
    assert out[2].tolist() == [a > 0 and b > 0 for a, b in both] and out[3].tolist() == [a and 10 // a for a, _ in both]
    assert out[4].tolist() == [not a or b or 7 for a, b in both] and out[5].tolist() == x.tolist()


# ---- returned values


def test_returned_scalars_have_their_type():
    @qd.kernel
    def whole(a: qd.f32) -> qd.i32:
        return a

    @qd.kernel
    def truth(a: qd.i32) -> qd.u1:
        return a > 3

    @qd.kernel
    def wide() -> qd.u64:
        return qd.cast(-1, qd.u64)

    @qd.kernel
    def half(a: qd.f64) -> qd.f16:
        return a

    assert [whole(2.9), whole(-2.9), truth(4), truth(3), wide()] == [2, -2, True, False, 2**64 - 1]
    assert half(0.1) == float(np.float16(0.1)) and type(truth(4)) is bool and type(whole(1)) is int


def test_vectors_matrices_and_tuples_are_returned():
    @qd.kernel
    def vector(a: qd.f32) -> qd.types.vector(3, qd.f32):
        v = qd.Vector([a, 2 * a, 3 * a])
        return v

    @qd.kernel
    def matrix() -> qd.types.matrix(2, 3, qd.i32):
        return qd.Matrix([[1, 2, 3], [4, 5, 6]])

    @qd.kernel
    def pair(a: qd.i32) -> tuple[qd.i32, qd.f64]:
        return a, a / 4

    for _ in range(2):
        assert vector(1.5).to_list() == [1.5, 3, 4.5]
        assert matrix().to_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
        assert pair(3) == (3, 0.75)


def test_a_value_is_returned_after_parallel_loops():
    x = qd.field(qd.f64, shape=100)

    @qd.kernel
    def run(n: qd.i32) -> qd.f64:
        total = 0.0
        for i in x:
            x[i] = i * n
        for i in x:
            total += x[i]
        return total

    assert [run(1), run(2), run(1)] == [4950, 9900, 4950]


# ---- loops and tasks


def test_tasks_run_in_order_and_see_each_other():
    x, total = qd.field(qd.i64, shape=50), qd.field(qd.i64, shape=())

    @qd.kernel
    def k():
        for i in x:
            x[i] = i
        total[None] = 1000
        for i in x:
            total[None] += x[i]
        a = total[None] + 1
        for i in range(1, 50):
            x[i] = x[i] * 2 + a
        if a > 5:
            for i in range(3):
                x[i] = -1

    k()
    expected = np.arange(50) * 2 + 1000 + 1225 + 1
    expected[:3] = -1
    np.testing.assert_array_equal(x.to_numpy(), expected)


def test_ndrange_grouped_and_struct_for_visit_every_element_once():
    x, v = qd.field(qd.i32, shape=(3, 4, 5)), qd.Vector.field(2, qd.i32, shape=(3, 4))

    @qd.kernel
    def k(a: qd.types.ndarray(dtype=qd.i32, ndim=2)):
        for i, j, m in x:
            x[i, j, m] += 1
        for I in qd.grouped(x):
            x[I] += I[0] * 100 + I[1] * 10 + I[2]
        for i, j in qd.ndrange((1, 3), 4):
            v[i, j] += qd.Vector([i, j])
        for I in qd.grouped(qd.ndrange(3, (2, 4))):
            v[I] += I
        for i, j in a:
            a[i, j] = i * 10 + j
        for I in qd.grouped(a):
            a[I] += 1

    a = np.zeros((4, 6), np.int32)
    k(a)
    i, j, m = np.indices((3, 4, 5))
    np.testing.assert_array_equal(x.to_numpy(), 1 + i * 100 + j * 10 + m)
    i, j = np.indices((3, 4))
    np.testing.assert_array_equal(v.to_numpy()[..., 0], i * ((i >= 1) * 1 + (j >= 2)))
    np.testing.assert_array_equal(v.to_numpy()[..., 1], j * ((i >= 1) * 1 + (j >= 2)))
    i, j = np.indices((4, 6))
    np.testing.assert_array_equal(a, i * 10 + j + 1)


@pytest.mark.parametrize(
    "begin, end, step", [(0, 10, 1), (3, 11, 3), (10, 0, -1), (10, -5, -4), (5, 5, 1), (7, 2, 1), (-6, 3, 2)]
)
def test_ranges_are_those_of_python(begin, end, step):
    @qd.kernel
    def serial(a: qd.i32, b: qd.i32) -> qd.i64:
        total = qd.cast(0, qd.i64)
        qd.loop_config(serialize=True)
        for _ in range(1):
            for i in range(a, b, step):
                total = total * 7 + i
        return total

    @qd.kernel
    def parallel(a: qd.i32, b: qd.i32, out: qd.types.ndarray(dtype=qd.i32, ndim=1)):
        for i in range(a, b, step):
            out[i + 20] += 1

    expected, hits = 0, np.zeros(40, np.int32)
    for i in range(begin, end, step):
        expected = expected * 7 + i
        hits[i + 20] += 1
    assert serial(begin, end) == expected
    out = np.zeros(40, np.int32)
    parallel(begin, end, out)
    np.testing.assert_array_equal(out, hits)


def test_nested_loops_with_while_break_and_continue():
    def primes(n, out):
        for i in range(n):
            found, d = 1 if i > 1 else 0, 2
            while d * d <= i:
                if i % d == 0:
                    found = 0
                    break
                d += 1
            out[i] = found
            for j in range(i):
                if j % 2 == 0:
                    continue
                for m in range(j):
                    if m > 3:
                        break
                    out[i] += m
                if j > 9:
                    break
                out[i] += 100

    @qd.kernel
    def k(n: qd.i32, out: qd.types.ndarray(dtype=qd.i32, ndim=1)):
        for i in range(n):
            found, d = 1 if i > 1 else 0, 2
            while d * d <= i:
                if i % d == 0:
                    found = 0
                    break
                d += 1
            out[i] = found
            for j in range(i):
                if j % 2 == 0:
                    continue
                for m in range(j):
                    if m > 3:
                        break
                    out[i] += m
                if j > 9:
                    break
                out[i] += 100

    out, expected = np.zeros(60, np.int32), np.zeros(60, np.int32)
    k(60, out)
    primes(60, expected)
    np.testing.assert_array_equal(out, expected)


def test_a_serial_outermost_loop_keeps_its_order():
    @qd.kernel
    def k(out: qd.types.ndarray(dtype=qd.i32, ndim=1)):
        qd.loop_config(serialize=True)
        for i in range(1, 100):
            if i > 90:
                break
            out[i] = out[i - 1] + i

    out = np.zeros(100, np.int32)
    k(out)
    assert out[90] == 90 * 91 // 2 and out[91] == 0


def test_static_loops_and_conditions():
    weights, fast = (1.0, -2.0, 0.5), True

    @qd.kernel
    def k(out: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in out:
            for n, w in qd.static(enumerate(weights)):
                if qd.static(n == 1 and fast):
                    out[i] += 100
                else:
                    out[i] += w * i
            for a, b in qd.static(qd.ndrange(2, 2)):
                out[i] += a * b
            for n in qd.static(range(5)):
                if qd.static(n == 3):
                    break
                out[i] += n

    out = np.zeros(4, np.float32)
    k(out)
    assert out.tolist() == [104 + 1.5 * i for i in range(4)]


# ---- functions


def test_functions_with_types_templates_and_early_returns():
    @qd.func
    def clamped(v: qd.f32, lo: qd.f32 = -1.0, hi: qd.f32 = 1.0) -> qd.f32:
        if v < lo:
            return lo
        if v > hi:
            return hi
        return v

    @qd.func
    def first_above(x: qd.template(), limit):
        for i in range(x.shape[0]):
            if x[i] > limit:
                return i
        return -1

    @qd.func
    def add_to(target: qd.template(), by):
        target += by

    @qd.func
    def whole(v: qd.i32):
        return v * 2

    x = qd.field(qd.f32, shape=8)

    @qd.kernel
    def k(out: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for _ in range(1):
            out[0] = clamped(5.0) + clamped(-7, hi=3.0) * 10
            out[1] = first_above(x, 4.5)
            out[2] = first_above(x, 100.0)
            a = 1.5
            add_to(a, 2)
            add_to(x[7], 100)
            out[3] = a
            out[4] = whole(2.9)

    x.from_numpy(np.arange(8, dtype=np.float32))
    out = np.zeros(5, np.float32)
    k(out)
    assert out.tolist() == [-9, 5, -1, 3.5, 4] and x[7] == 107


def test_loops_of_a_function_called_at_the_top_are_parallel_tasks():
    x = qd.field(qd.f32, shape=10)

    @qd.func
    def fill(v):
        for i in x:
            x[i] += v

    @qd.kernel
    def k():
        fill(1.0)
        fill(2.0)

    k()
    assert x.to_numpy().tolist() == [3.0] * 10


def test_kernels_at_module_level_and_nested_ones_with_constants():
    out = []
    for factor in (2, 5):

        @qd.kernel
        def times(a: qd.i32) -> qd.i32:
            return a * factor  # noqa: B023

        out.append(times(10))
    assert out == [20, 50] and at_module_level(3) == 10


@qd.kernel
def at_module_level(a: qd.i32) -> qd.i32:
    return a * 3 + 1


# ---- vectors and matrices


def test_vectors_and_matrices_against_numpy():
    rng = np.random.default_rng(0)
    a, b, m = rng.uniform(-2, 2, (20, 3)), rng.uniform(-2, 2, (20, 3)), rng.uniform(-1, 1, (20, 3, 3)) + 3 * np.eye(3)
    vec, mat = qd.types.vector(3, qd.f64), qd.types.matrix(3, 3, qd.f64)

    @qd.kernel
    def k(
        a: qd.types.ndarray(dtype=vec, ndim=1),
        b: qd.types.ndarray(dtype=vec, ndim=1),
        m: qd.types.ndarray(dtype=mat, ndim=1),
        s: qd.types.ndarray(dtype=qd.f64, ndim=2),
        v: qd.types.ndarray(dtype=vec, ndim=2),
        w: qd.types.ndarray(dtype=mat, ndim=2),
    ):
        for i in a:
            s[i, 0] = a[i].dot(b[i])
            s[i, 1] = a[i].norm()
            s[i, 2] = m[i].determinant()
            s[i, 3] = m[i].trace() + a[i].max() - b[i].min()
            v[i, 0] = a[i].cross(b[i])
            v[i, 1] = m[i] @ a[i]
            v[i, 2] = 2 * a[i] - b[i] / 4 + 1
            v[i, 3] = a[i].zyx * b[i].normalized()
            w[i, 0] = m[i] @ m[i].transpose()
            w[i, 1] = m[i].inverse()
            w[i, 2] = a[i].outer_product(b[i])

    s, v, w = np.zeros((20, 4)), np.zeros((20, 4, 3)), np.zeros((20, 3, 3, 3))
    k(a, b, m, s, v, w)
    norm = np.linalg.norm
    trace = m.trace(axis1=1, axis2=2) + a.max(1) - b.min(1)
    np.testing.assert_allclose(s, np.stack([(a * b).sum(1), norm(a, axis=1), np.linalg.det(m), trace], 1), rtol=1e-12)
    expected = [np.cross(a, b), np.einsum("nij,nj->ni", m, a), 2 * a - b / 4 + 1, a[:, ::-1] * b / norm(b, axis=1)[:, None]]
    np.testing.assert_allclose(v, np.stack(expected, 1), rtol=1e-12)
    expected = [m @ m.transpose(0, 2, 1), np.linalg.inv(m), a[:, :, None] * b[:, None, :]]
    np.testing.assert_allclose(w, np.stack(expected, 1), rtol=1e-11, atol=1e-13)


def test_swizzles_components_and_dynamic_indices_are_written():
    @qd.kernel
    def k(out: qd.types.ndarray(dtype=qd.i32, ndim=2)):
        for i in range(4):
            v = qd.Vector([i, 10, 20, 30])
            v.xy = v.yx
            v.w += 1
            v[i] *= 2
            u = qd.Matrix([[1, 2], [3, 4]])
            u[i // 2, i % 2] = 9
            for c in range(4):
                out[i, c] = v[c]
            out[i, 4] = u[0, 0] * 1000 + u[0, 1] * 100 + u[1, 0] * 10 + u[1, 1]

    out = np.zeros((4, 5), np.int32)
    k(out)
    expected = []
    for i in range(4):
        v, u = [10, i, 20, 31], [1, 2, 3, 4]
        v[i] *= 2
        u[i] = 9
        expected.append([*v, int("".join(map(str, u)))])
    assert out.tolist() == expected


# ---- atomics


def test_atomics_give_the_value_before():
    @qd.kernel
    def k(x: qd.types.ndarray(dtype=qd.i32, ndim=1), out: qd.types.ndarray(dtype=qd.i32, ndim=1)):
        for _ in range(1):
            out[0] = qd.atomic_add(x[0], 5)
            out[1] = qd.atomic_sub(x[0], 2)
            out[2] = qd.atomic_mul(x[0], 3)
            out[3] = qd.atomic_max(x[0], 50)
            out[4] = qd.atomic_min(x[0], 7)
            out[5] = qd.atomic_or(x[0], 8)
            out[6] = qd.atomic_xor(x[0], 5)
            out[7] = qd.atomic_and(x[0], 3)

    x, out = np.array([10], np.int32), np.zeros(8, np.int32)
    k(x, out)
    assert out.tolist() == [10, 15, 13, 39, 50, 7, 15, 10] and x[0] == 2


@pytest.mark.parametrize("name", TYPES)
def test_atomics_of_every_type_lose_nothing_in_parallel(name):
    dtype = getattr(qd, name)
    total, most, slots = qd.field(dtype, shape=()), qd.field(dtype, shape=()), qd.field(dtype, shape=4)
    tickets = qd.field(qd.i32, shape=())

    @qd.kernel
    def k(seen: qd.types.ndarray(dtype=qd.i32, ndim=1)):
        for i in range(100):
            total[None] += qd.cast(1, dtype)
            qd.atomic_max(most[None], qd.cast(i, dtype))
            slots[i % 4] += qd.cast(i % 3, dtype)
            seen[qd.atomic_add(tickets[None], 1)] += 1

    seen = np.zeros(100, np.int32)
    k(seen)
    assert total[None] == 100 and most[None] == 99 and seen.tolist() == [1] * 100
    assert slots.to_numpy().tolist() == [sum(i % 3 for i in range(100) if i % 4 == c) for c in range(4)]


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64"])
def test_the_least_integer_is_its_own_negative(dtype):
    """NVIDIA's assembler gets this wrong for 16 bits (see ``runtime.cuda.ptx.mended``)."""
    qd.init(arch=qd.cpu)
    d = getattr(qd, dtype)
    x, y, z = qd.field(d, shape=3), qd.field(qd.i32, shape=(3, 3)), qd.field(qd.i64, shape=3)

    @qd.kernel
    def k():
        for i in x:
            n, m = -x[i], abs(x[i])
            y[i, 0], y[i, 1], y[i, 2] = n < 0, m < 0, n >= m
            z[i] = n

    least = int(np.iinfo(dtype.replace("i", "int")).min)
    x.from_numpy(np.array([least, 5, -5], dtype.replace("i", "int")))
    k()
    assert y.to_numpy().tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 1]]
    assert z.to_numpy().tolist() == [least, -5, 5]


@pytest.mark.parametrize("dtype", ["i8", "u16", "i32"])
def test_the_low_bits_of_a_float_are_stored_as_bits(dtype):
    """NVIDIA's assembler would convert the number (see ``runtime.cuda.ptx.mended``)."""
    qd.init(arch=qd.cpu)
    d = getattr(qd, dtype)
    x, y, single, double = qd.field(qd.f32, shape=4), qd.field(qd.f64, shape=4), qd.field(d, shape=4), qd.field(d, shape=4)

    @qd.kernel
    def k():
        for i in x:
            single[i] = qd.bit_cast(x[i] * x[i], qd.i32)
            double[i] = qd.bit_cast(y[i] * y[i], qd.i64)

    a = np.random.default_rng().uniform(1.0, 9.0, 4)
    x.from_numpy(a.astype(np.float32))
    y.from_numpy(a)
    k()
    kind, b = single.to_numpy().dtype, a.astype(np.float32)
    assert single.to_numpy().tolist() == (b * b).view(np.int32).astype(kind).tolist()
    assert double.to_numpy().tolist() == (a * a).view(np.int64).astype(kind).tolist()


def test_print_is_the_kernel_s_whatever_stands_for_python_s(monkeypatch, capfd):
    """Ray replaces ``builtins.print`` in a process that shows the logs of its workers."""
    plain = print
    monkeypatch.setattr("builtins.print", lambda *args, **kwargs: plain("not this", *args, **kwargs))
    qd.init(arch=qd.cpu, offline_cache=False)

    @qd.kernel
    def k(n: qd.i32):
        print("item", n)

    k(3)
    qd.sync()
    assert capfd.readouterr().out == "item 3\n"


HELPERS = "print record launch memset launch_together parallel_for parallel_for_up_to sin_f64 array_0 shared_128"


@pytest.mark.parametrize("where", [{}, {"batch": 2}, {"arch": qd.cuda, "device": "emulated"}], ids=["cpu", "batch", "emulated"])
def test_a_kernel_may_have_the_name_of_a_function_that_its_code_calls(where, tmp_path):
    file = tmp_path / "named.py"
    lines = ["import qdrun as qd", "def make(x, y):", "    made = []"]
    for name in HELPERS.split():
        lines += ["    @qd.kernel", f"    def {name}():", "        for i in x:", "            v = qd.sin(x[i])"]
        lines += ["            assert v == v", "            y[i] += v", f"    made.append({name})"]
    file.write_text("\n".join([*lines, "    return made"]))
    space: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with qd.init(default_fp=qd.f64, debug=True, offline_cache=False, **{"arch": qd.cpu, **where}):
        x, y = (qd.field(qd.f64, 3, needs_grad=True) for _ in range(2))
        x.fill(0.3)
        for kernel in space["make"](x, y):
            y.fill(0.0)
            x.grad.fill(0.0)
            kernel()
            np.testing.assert_allclose(y.to_numpy(), np.sin(0.3), rtol=1e-13)
            y.grad.fill(1.0)
            kernel.grad()
            np.testing.assert_allclose(x.grad.to_numpy(), np.cos(0.3), rtol=1e-13)
