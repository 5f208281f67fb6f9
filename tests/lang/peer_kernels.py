"""Kernels written once, for quadrants and for this package: scalars and loops."""

import numpy as np

N = 16
CASES = {}


def case(fn):
    """A kernel written for either library: ``fn(lib, rng)`` gives the arrays to compare."""
    CASES[fn.__name__] = fn
    return fn


def array(lib, values, dtype=None, needs_grad=False):
    """An ndarray of these values; f32 or i32 unless ``dtype`` says otherwise."""
    values = np.asarray(values)
    dtype = dtype or (lib.f32 if values.dtype.kind == "f" else lib.i32)
    out = lib.ndarray(dtype, values.shape, needs_grad=needs_grad) if needs_grad else lib.ndarray(dtype, values.shape)
    out.from_numpy(values.astype({lib.f16: "f2", lib.f64: "f8", lib.f32: "f4", lib.i64: "i8", lib.i8: "i1"}.get(dtype, "i4")))
    return out


def field(lib, values, dtype=None, needs_grad=True):
    """A field of these values."""
    values = np.asarray(values, np.float64)
    out = lib.field(dtype or lib.f64, shape=values.shape, needs_grad=needs_grad)
    out.from_numpy(values)
    return out


# ---- integers


@case
def division_and_modulo_of_negative_integers(lib, rng):
    x, y = array(lib, rng.integers(-30, 30, N)), array(lib, rng.choice([-7, -3, -1, 2, 5, 11], N))
    out = array(lib, np.zeros((5, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] // y[i]
            out[1, i] = x[i] % y[i]
            out[2, i] = lib.raw_div(x[i], y[i])
            out[3, i] = lib.raw_mod(x[i], y[i])
            out[4, i] = int(x[i] / y[i])

    k(x, y, out)
    return [out.to_numpy()]


@case
def augmented_integer_operators(lib, rng):
    x = array(lib, rng.integers(-99, 99, N))
    out = array(lib, np.zeros((7, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            a = x[i]
            a //= 4
            out[0, i] = a
            a *= -3
            out[1, i] = a
            a %= 7
            out[2, i] = a
            a <<= 3
            out[3, i] = a
            a |= 5
            out[4, i] = a
            a ^= 9
            out[5, i] = a
            a >>= 1
            out[6, i] = a

    k(x, out)
    return [out.to_numpy()]


@case
def shifts_of_negative_integers(lib, rng):
    x, out = array(lib, rng.integers(-(2**31), 2**31 - 1, N)), array(lib, np.zeros((3, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] >> 3
            out[1, i] = x[i] << 2
            out[2, i] = lib.cast(lib.cast(x[i], lib.u32) >> 5, lib.i32)

    k(x, out)
    return [out.to_numpy()]


@case
def integers_wrap_around(lib, rng):
    x, out = array(lib, rng.integers(2**30, 2**31 - 1, N)), array(lib, np.zeros((4, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] + x[i]
            out[1, i] = x[i] * x[i]
            out[2, i] = lib.cast(lib.cast(x[i], lib.u8) + lib.cast(200, lib.u8), lib.i32)
            out[3, i] = lib.cast(-lib.cast(x[i], lib.u16), lib.i32)

    k(x, out)
    return [out.to_numpy()]


@case
def casts_between_widths(lib, rng):
    x, out = array(lib, rng.integers(-70000, 70000, N)), lib.ndarray(lib.i64, (6, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = lib.cast(x[i], lib.i8)
            out[1, i] = lib.cast(x[i], lib.u8)
            out[2, i] = lib.cast(x[i], lib.i16)
            out[3, i] = lib.cast(x[i], lib.u16)
            out[4, i] = lib.cast(x[i], lib.u32)
            out[5, i] = lib.cast(x[i], lib.i64) * 100000

    k(x, out)
    return [out.to_numpy()]


@case
def types_meet(lib, rng):
    x, y, out = array(lib, rng.integers(-100, 100, N)), array(lib, rng.uniform(-9, 9, N)), lib.ndarray(lib.f64, (5, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] + y[i]
            out[1, i] = x[i] / 3
            out[2, i] = lib.cast(x[i], lib.u32) + x[i]
            out[3, i] = lib.cast(x[i], lib.i64) * x[i]
            out[4, i] = x[i] * 0.1

    k(x, y, out)
    return [out.to_numpy()]


@case
def floats_become_integers_towards_zero(lib, rng):
    y, out = array(lib, rng.uniform(-9, 9, N)), array(lib, np.zeros((4, N), np.int32))

    @lib.kernel
    def k(y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = int(y[i])
            out[1, i] = lib.cast(y[i], lib.i32)
            a = 0
            a = y[i]
            out[2, i] = a
            out[3, i] = lib.cast(lib.floor(y[i]), lib.i32)

    k(y, out)
    return [out.to_numpy()]


@case
def augmented_assignment_keeps_the_type_of_a_variable(lib, rng):
    y, out = array(lib, rng.uniform(-9, 9, N)), lib.ndarray(lib.f64, (3, N))

    @lib.kernel
    def k(y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            a = 1
            a += y[i]
            out[0, i] = a
            b = 10
            b *= y[i]
            out[1, i] = b
            c = y[i]
            c += 1
            out[2, i] = c

    k(y, out)
    return [out.to_numpy()]


@case
def and_and_or_give_one_of_their_sides(lib, rng):
    x, y, out = array(lib, rng.integers(-1, 2, N)), array(lib, rng.integers(-3, 3, N)), array(lib, np.zeros((4, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] and y[i]
            out[1, i] = x[i] or y[i]
            out[2, i] = x[i] > 0 and y[i] > 0
            out[3, i] = (x[i] > 0 or y[i] > 0) and not x[i] == y[i]

    k(x, y, out)
    return [out.to_numpy()]


@case
def bits(lib, rng):
    x, out = array(lib, rng.integers(1, 2**31 - 1, N)), array(lib, np.zeros((5, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = ~x[i]
            out[1, i] = x[i] & 255
            out[2, i] = lib.bit_cast(lib.bit_cast(x[i], lib.f32), lib.i32)
            out[3, i] = x[i] ^ -1
            out[4, i] = -x[i]

    k(x, out)
    return [out.to_numpy()]


# ---- reals


@case
def modulo_and_floor_division_of_reals(lib, rng):
    x, y, out = array(lib, rng.uniform(-9, 9, N)), array(lib, rng.uniform(0.5, 3, N)), lib.ndarray(lib.f32, (4, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] % y[i]
            out[1, i] = x[i] // y[i]
            out[2, i] = x[i] % -y[i]
            out[3, i] = x[i] // -y[i]

    k(x, y, out)
    return [out.to_numpy()]


@case
def rounding(lib, rng):
    x = array(lib, np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.0, 1.2, 1.7, -1.2, -1.7, 7.0, -7.0, 0.49, -0.49]))
    out = lib.ndarray(lib.f32, (4, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = lib.round(x[i])
            out[1, i] = lib.floor(x[i])
            out[2, i] = lib.ceil(x[i])
            out[3, i] = lib.cast(x[i], lib.i32)

    k(x, out)
    return [out.to_numpy()]


@case
def powers(lib, rng):
    x, y, out = array(lib, rng.uniform(0.2, 3, N)), array(lib, rng.uniform(-2, 2, N)), lib.ndarray(lib.f64, (7, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] ** y[i]
            out[1, i] = (-x[i]) ** 3
            out[2, i] = x[i] ** -2
            out[3, i] = x[i] ** 0.5
            out[4, i] = 2 ** y[i]
            out[5, i] = i**3
            out[6, i] = lib.pow(x[i], i)

    k(x, y, out)
    return [out.to_numpy()]


@case
def elementary_functions(lib, rng):
    x, y, out = array(lib, rng.uniform(0.05, 0.95, N)), array(lib, rng.uniform(-3, 3, N)), lib.ndarray(lib.f32, (16, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = lib.sin(y[i])
            out[1, i] = lib.cos(y[i])
            out[2, i] = lib.tan(x[i])
            out[3, i] = lib.asin(x[i])
            out[4, i] = lib.acos(x[i])
            out[5, i] = lib.atan2(y[i], x[i])
            out[6, i] = lib.tanh(y[i])
            out[7, i] = lib.exp(y[i])
            out[8, i] = lib.log(x[i])
            out[9, i] = lib.sqrt(x[i])
            out[10, i] = lib.rsqrt(x[i])
            out[11, i] = abs(y[i])
            out[12, i] = max(x[i], y[i], 0.5)
            out[13, i] = min(x[i], y[i], 0.5)
            out[14, i] = lib.select(y[i] > 0, x[i], y[i])
            out[15, i] = x[i] if y[i] > 0 else -1.0

    k(x, y, out)
    return [out.to_numpy()]


@case
def minimum_and_maximum_of_mixed_types(lib, rng):
    x, y, out = array(lib, rng.integers(-9, 9, N)), array(lib, rng.uniform(-9, 9, N)), lib.ndarray(lib.f64, (4, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = max(x[i], y[i])
            out[1, i] = min(x[i], 3.5)
            out[2, i] = max(x[i], -2, y[i])
            out[3, i] = lib.max(lib.cast(x[i], lib.i64), x[i])

    k(x, y, out)
    return [out.to_numpy()]


@case
def half_precision(lib, rng):
    x, out = array(lib, rng.uniform(-4, 4, N), lib.f16), lib.ndarray(lib.f16, (4, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = x[i] * x[i]
            out[1, i] = x[i] + 0.1
            out[2, i] = x[i] / 3
            a = x[i]
            for _j in range(5):
                a = a * lib.cast(0.5, lib.f16) + x[i]
            out[3, i] = a

    k(x, out)
    return [out.to_numpy().astype(np.float32)]


@case
def literals_keep_their_precision_until_they_are_stored(lib, rng):
    x, out = array(lib, rng.uniform(-4, 4, N), lib.f64), lib.ndarray(lib.f64, (3, N))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            a = 0.1
            out[0, i] = a
            out[1, i] = lib.cast(0.25, lib.f64) * x[i]
            out[2, i] = x[i] * 3

    k(x, out)
    return [out.to_numpy()]


# ---- loops


@case
def ranges_that_are_empty_or_negative(lib, rng):
    lo, hi, out = array(lib, rng.integers(-5, 5, N)), array(lib, rng.integers(-5, 5, N)), array(lib, np.zeros((3, N), np.int32))

    @lib.kernel
    def k(lo: lib.types.ndarray(), hi: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            for j in range(lo[i], hi[i]):
                out[0, i] += j * j + 1
            for _j in range(hi[i]):
                out[1, i] += 1
            out[2, i] = -1
            for j in range(lo[i]):
                out[2, i] = j

    k(lo, hi, out)
    return [out.to_numpy()]


@case
def while_with_break_and_continue(lib, rng):
    x, out = array(lib, rng.integers(1, 60, N)), array(lib, np.zeros((2, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            a = x[i]
            steps = 0
            while a != 1:
                if a % 2 == 0:
                    a //= 2
                else:
                    a = 3 * a + 1
                steps += 1
                if steps > 90:
                    break
            out[0, i] = steps
            total = 0
            for j in range(x[i]):
                if j % 3 == 0:
                    continue
                if total > 100:
                    break
                total += j
            out[1, i] = total

    k(x, out)
    return [out.to_numpy()]


@case
def ndrange_with_pairs(lib, rng):
    out = array(lib, np.zeros((6, 7), np.int32))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i, j in lib.ndrange((1, 5), (2, 7)):
            out[i, j] += 10 * i + j
        for i, j in lib.ndrange(6, 2):
            out[i, j] += 100

    k(out)
    return [out.to_numpy()]


@case
def ndrange_inside_a_loop(lib, rng):
    out = array(lib, np.zeros((N, 2), np.int32))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N):
            order = 0
            for a, b in lib.ndrange(3, (1, 4)):
                order = order * 3 + a * b
                out[i, 0] += a * 10 + b
            out[i, 1] = order

    k(out)
    return [out.to_numpy()]


@case
def grouped_indices(lib, rng):
    x, out = lib.field(lib.i32, shape=(4, 5)), lib.field(lib.i32, shape=(4, 5))

    @lib.kernel
    def k():
        for I in lib.grouped(x):
            x[I] = I[0] * 10 + I[1]
        for I in lib.grouped(lib.ndrange((1, 4), (0, 4))):
            out[I] = x[I - lib.Vector([1, 0])] + x[I + lib.Vector([0, 1])]

    k()
    return [x.to_numpy(), out.to_numpy()]


@case
def struct_for_over_fields(lib, rng):
    x, y = field(lib, rng.uniform(-1, 1, (5, 3))), lib.field(lib.i32, shape=7)

    @lib.kernel
    def k():
        for i, j in x:
            x[i, j] += i * 10 + j
        for i in y:
            y[i] = i * i

    k()
    return [x.to_numpy(), y.to_numpy()]


@case
def loops_over_arrays(lib, rng):
    x = array(lib, rng.uniform(-1, 1, (5, 3)))

    @lib.kernel
    def k(x: lib.types.ndarray(dtype=lib.f32, ndim=2)):
        for i, j in x:
            x[i, j] += i * 10 + j
        for I in lib.grouped(x):
            x[I] *= 2

    k(x)
    return [x.to_numpy()]


@case
def a_variable_that_a_loop_changes(lib, rng):
    out = array(lib, np.zeros((3, N), np.int32))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N):
            last = -1
            a, b = 0, 1
            for j in range(i):
                last = j
                a, b = b, a + b
            out[0, i] = last
            out[1, i] = a
            out[2, i] = b

    k(out)
    return [out.to_numpy()]


@case
def a_bound_is_evaluated_once(lib, rng):
    out = array(lib, np.zeros(N, np.int32))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N):
            n = 3
            for _j in range(n):
                n += 1
                out[i] += 1
            out[i] += 100 * n

    k(out)
    return [out.to_numpy()]


@case
def static_loops_and_conditions(lib, rng):
    out = array(lib, np.zeros((4, N), np.int32))
    flag = 3

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N):
            for j in lib.static(range(4)):
                if lib.static(j % 2 == 0):
                    out[j, i] = i + j
                else:
                    out[j, i] = i - j
            if lib.static(flag > 2):
                out[0, i] += 1000

    k(out)
    return [out.to_numpy()]


@case
def several_tasks_with_statements_between(lib, rng):
    x, total = lib.field(lib.i32, shape=N), lib.field(lib.i32, shape=())

    @lib.kernel
    def k():
        for i in range(N):
            x[i] = i
        total[None] = 5
        for i in range(N):
            total[None] += x[i]
        x[0] = total[None]
        for i in range(1, N):
            x[i] += x[0]

    k()
    return [x.to_numpy()]
