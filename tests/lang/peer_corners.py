"""Kernels written once, for quadrants and for this package: the corners of the language."""

from peer_kernels import case


def zeros(lib):
    """24 reals."""
    out = lib.ndarray(lib.f64, (24,))
    out.fill(0)
    return out


@case
def declared_types_of_variables(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray(), n: lib.f32):
        for _ in range(1):
            a: lib.i32 = n
            out[0] = a
            b: lib.f64 = 0.1
            out[1] = b
            c: lib.u8 = 200
            out[2] = c

    k(out, 3.7)
    return [out.to_numpy()]


@case
def values_are_exchanged(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(24):
            out[i] = i
        for i in range(4):
            out[2 * i], out[2 * i + 1] = out[2 * i + 1], out[2 * i]
        for _ in range(1):
            a, b, _c = 1, 2.5, 3
            a, b = b, a
            out[20] = a
            out[21] = b

    k(out)
    return [out.to_numpy()]


@case
def a_func_changes_its_own_copy(lib, rng):
    out = zeros(lib)

    @lib.func
    def f(a):
        a = a * 2
        a += 1
        return a

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(4):
            b = i
            out[i] = f(b)
            out[i + 4] = b
            out[i + 8] = f(i + 0.5)

    k(out)
    return [out.to_numpy()]


@case
def choices_of_mixed_types(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(4):
            out[i] = (1 if i > 1 else 2.5) / 2
            out[i + 4] = lib.select(i > 1, 1, 2.5) / 2
            out[i + 8] = 7 if i > 2 else i

    k(out)
    return [out.to_numpy()]


@case
def powers_of_negative_bases(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(4):
            out[i] = 2.0 ** (-i)
            out[i + 4] = (i - 2) ** 2
            out[i + 8] = (i - 2.5) ** i
            out[i + 12] = (-2) ** i
            out[i + 16] = (i + 1) ** 0.5

    k(out)
    return [out.to_numpy()]


@case
def vectors_are_copied_and_keep_their_type(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for _ in range(1):
            v = lib.Vector([1, 2])
            v = v * 1.7
            out[0] = v[0]
            out[1] = v[1]
            a = lib.Vector([1.0, 2.0])
            b = a
            b[0] = 5
            out[2] = a[0]

    k(out)
    return [out.to_numpy()]


@case
def augmented_products_and_quotients_of_elements(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        out[0] = 1
        for _ in range(10):
            out[0] *= 2
        for i in range(10):
            out[1] -= i
        out[2] = 5
        out[2] /= 2
        out[3] = 7
        out[3] //= 2

    k(out)
    return [out.to_numpy()]


@case
def unsigned_differences(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray(), u: lib.u32):
        for i in range(4):
            a = lib.cast(i, lib.u32)
            out[i] = a - u
            out[i + 4] = lib.cast(a - u, lib.i32)
            out[i + 8] = lib.cast(-1.5, lib.i8)
            out[i + 12] = a // (u + 1)
            out[i + 16] = (lib.cast(0, lib.u32) - 1) >> i

    k(out, 3)
    return [out.to_numpy()]


@case
def ranges_of_unsigned_bounds(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray(), n: lib.u32):
        for _i in range(1):
            for j in range(n):
                out[0] += j

    k(out, 5)
    return [out.to_numpy()]


@case
def variables_of_one_name_in_two_loops(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(3):
            a = i
            for j in range(2):
                a = a + j * 1.5
            out[i] = a
        for i in range(3):
            a = 0.5
            out[i + 3] = a

    k(out)
    return [out.to_numpy()]


@case
def grouped_ranges_that_begin_below_zero(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for I in lib.grouped(lib.ndrange((-2, 2), (1, 3))):
            out[(I[0] + 2) * 2 + I[1] - 1] = I[0] * 10 + I[1]
        for i in lib.ndrange(3):
            out[10 + i] = i
        for _i, _j in lib.ndrange((0, 0), 5):
            out[20] += 1

    k(out)
    return [out.to_numpy()]


@case
def rounding_to_integers(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(4):
            out[i] = lib.round(i + 0.5, lib.i32)
            out[i + 4] = lib.floor(-i - 0.5, lib.i32)
            out[i + 8] = lib.ceil(i + 0.2, lib.i32)

    k(out)
    return [out.to_numpy()]


@case
def continue_in_parallel_loops(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(10):
            if i % 2:
                continue
            out[i] = 1
        for i in range(10):
            for j in range(3):
                if j == 1:
                    continue
                out[i + 10] += j + 1

    k(out)
    return [out.to_numpy()]


@case
def endless_loops_with_a_break(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(5):
            n = 0
            while True:
                n += 1
                if n >= i:
                    break
            out[i] = n

    k(out)
    return [out.to_numpy()]


@case
def casts_by_the_names_of_types(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray(), x: lib.f32):
        for i in range(3):
            out[i] = int(x * i)
            out[i + 3] = float(i) / 2
            out[i + 6] = bool(i)
            out[i + 9] = lib.cast(i, lib.u1)
            out[i + 12] = int(-x * i)
            out[i + 15] = lib.i32(x)
            out[i + 18] = lib.f32(0.1)

    k(out, 1.7)
    return [out.to_numpy()]


@case
def atomics_on_reals_give_the_old_value(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for _ in range(1):
            out[1] = lib.atomic_add(out[0], 2.5)
            out[2] = lib.atomic_max(out[0], 9.0)
            out[3] = lib.atomic_mul(out[0], 2.0)
            x = out[0]
            out[0] += 1
            out[4] = x

    k(out)
    return [out.to_numpy()]


@case
def variables_are_copies_of_elements(lib, rng):
    out = zeros(lib)

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for _ in range(1):
            out[0] = 3
            a = out[0]
            out[0] = 4
            out[1] = a
            b = a
            a += 1
            out[2] = b

    k(out)
    return [out.to_numpy()]
