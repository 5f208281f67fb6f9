"""Kernels written once, for quadrants and for this package: functions, vectors, atomics, gradients."""

import numpy as np
from peer_kernels import N, array, case, field


def gradients(lib, kernel, loss, *inputs):
    """What the kernel leaves in the gradients of the inputs for a gradient of one of the loss."""
    loss.grad.fill(1)
    kernel.grad()
    return [x.grad.to_numpy() for x in inputs]


# ---- functions, arguments, results


@case
def functions_with_early_returns_and_templates(lib, rng):
    x, out = array(lib, rng.uniform(-2, 2, N)), lib.ndarray(lib.f32, (3, N))

    @lib.func
    def clipped(v: lib.f32, lo: lib.f32, hi: lib.f32) -> lib.f32:
        result = v
        if v < lo:
            result = lo
        elif v > hi:
            result = hi
        return result

    @lib.func
    def bump(v: lib.template(), by):
        v += by

    @lib.func
    def both(a, b):
        return a + b, a - b

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = clipped(x[i], -1.0, 1.0)
            a = x[i]
            bump(a, 2.0)
            out[1, i] = a
            p, q = both(x[i], 1)
            out[2, i] = p * q

    k(x, out)
    return [out.to_numpy()]


@case
def arguments_of_a_func_are_copies(lib, rng):
    out = array(lib, np.zeros((2, N), np.int32))

    @lib.func
    def change(a: lib.i32) -> lib.i32:
        b = a
        b += 5
        return b

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N):
            a = i
            out[0, i] = change(a)
            out[1, i] = a

    k(out)
    return [out.to_numpy()]


@case
def returned_values(lib, rng):
    x = array(lib, rng.uniform(-2, 2, N))

    @lib.kernel
    def total(x: lib.types.ndarray()) -> lib.f32:
        s = 0.0
        for i in range(N):
            s += x[i]
        return s

    @lib.kernel
    def whole(a: lib.i32, b: lib.f32) -> lib.i32:
        return a * b

    @lib.kernel
    def three(a: lib.f32) -> lib.types.vector(3, lib.f32):
        return lib.Vector([a, a * 2, a * 3])

    return [total(x), whole(7, 1.9), whole(-7, 1.9), np.array([three(1.5)[k] for k in range(3)])]


@case
def scalar_arguments(lib, rng):
    out = lib.ndarray(lib.f64, (6,))

    @lib.kernel
    def k(a: lib.i8, b: lib.u16, c: lib.i64, d: lib.f64, e: lib.f32, f: float, out: lib.types.ndarray()):
        out[0] = a
        out[1] = b
        out[2] = c
        out[3] = d
        out[4] = e
        out[5] = f

    k(-5, 65535, 2**40, 0.1, 0.1, 2, out)
    return [out.to_numpy()]


@case
def vector_arguments(lib, rng):
    out = lib.ndarray(lib.f32, (4,))

    @lib.kernel
    def k(v: lib.types.vector(3, lib.f32), m: lib.types.matrix(2, 2, lib.f32), out: lib.types.ndarray()):
        out[0] = v.dot(v)
        out[1] = v[0] + 2 * v.y
        out[2] = m.determinant()
        out[3] = (m @ lib.Vector([v[0], v[1]])).sum()

    k(lib.Vector([1.0, 2.0, 3.0]), lib.Matrix([[1.0, 2.0], [3.0, 5.0]]), out)
    return [out.to_numpy()]


@case
def a_class_with_kernels(lib, rng):
    @lib.data_oriented
    class Adder:
        def __init__(self, by):
            self.by = by
            self.x = lib.field(lib.f32, shape=N)

        @lib.func
        def twice(self, a):
            return a * 2 + self.by

        @lib.kernel
        def run(self, a: lib.f32):
            for i in self.x:
                self.x[i] += self.twice(a) * i

    one, two = Adder(1), Adder(10)
    one.run(1.5)
    two.run(2.5)
    one.run(0.5)
    return [one.x.to_numpy(), two.x.to_numpy()]


# ---- atomics


@case
def atomics_give_the_old_value(lib, rng):
    x, out = array(lib, rng.integers(-50, 50, N)), array(lib, np.zeros((6, N), np.int32))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            out[0, i] = lib.atomic_add(x[i], 5)
            out[1, i] = lib.atomic_sub(x[i], 2)
            out[2, i] = lib.atomic_max(x[i], 10)
            out[3, i] = lib.atomic_min(x[i], 30)
            out[4, i] = lib.atomic_or(x[i], 64)
            out[5, i] = lib.atomic_xor(x[i], 3)

    k(x, out)
    return [out.to_numpy(), x.to_numpy()]


@case
def sums_and_extrema_over_a_loop(lib, rng):
    values = rng.uniform(-1, 1, 1000)
    x = array(lib, values)
    total, most, least, count = (lib.field(t, shape=()) for t in (lib.f32, lib.f32, lib.f32, lib.i32))

    @lib.kernel
    def k(x: lib.types.ndarray()):
        for i in range(1000):
            total[None] += x[i]
            lib.atomic_max(most[None], x[i])
            lib.atomic_min(least[None], x[i])
            if x[i] > 0.25:
                count[None] += 1

    k(x)
    return [total[None], most[None], least[None], count[None]]


@case
def atomics_on_variables(lib, rng):
    out = array(lib, np.zeros((2, N), np.int32))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N):
            a = 3
            out[0, i] = lib.atomic_add(a, i)
            out[1, i] = a

    k(out)
    return [out.to_numpy()]


# ---- vectors and matrices


@case
def vector_arithmetic_broadcasts(lib, rng):
    x, out = array(lib, rng.uniform(-2, 2, (N, 3))), lib.ndarray(lib.f32, (N, 12))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            v = lib.Vector([x[i, 0], x[i, 1], x[i, 2]])
            w = 2 * v + 1 - v / 4
            u = lib.max(v, w)
            for c in lib.static(range(3)):
                out[i, c] = w[c]
                out[i, 3 + c] = u[c]
                out[i, 6 + c] = (-v * w)[c]
                out[i, 9 + c] = lib.abs(v)[c]

    k(x, out)
    return [out.to_numpy()]


@case
def vector_functions(lib, rng):
    x, out = array(lib, rng.uniform(-2, 2, (N, 6))), lib.ndarray(lib.f32, (N, 12))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            v = lib.Vector([x[i, 0], x[i, 1], x[i, 2]])
            w = lib.Vector([x[i, 3], x[i, 4], x[i, 5]])
            cross, unit = v.cross(w), v.normalized()
            out[i, 0] = v.norm()
            out[i, 1] = v.norm_sqr()
            out[i, 2] = v.dot(w)
            out[i, 3] = v.sum() + v.max() - v.min()
            for c in lib.static(range(3)):
                out[i, 4 + c] = cross[c]
                out[i, 7 + c] = unit[c]
            out[i, 10] = v.xy.norm()
            out[i, 11] = v.zyx.x - v.outer_product(w)[1, 2]

    k(x, out)
    return [out.to_numpy()]


@case
def matrix_functions(lib, rng):
    x, out = array(lib, rng.uniform(-2, 2, (N, 9))), lib.ndarray(lib.f32, (N, 4, 9))

    @lib.kernel
    def k(x: lib.types.ndarray(), out: lib.types.ndarray()):
        for i in range(N):
            m = lib.Matrix([[x[i, 0] + 4, x[i, 1], x[i, 2]], [x[i, 3], x[i, 4] - 5, x[i, 5]], [x[i, 6], x[i, 7], x[i, 8] + 6]])
            product, inverse, turned = m @ m, m.inverse(), m.transpose()
            for r, c in lib.static(lib.ndrange(3, 3)):
                out[i, 0, r * 3 + c] = product[r, c]
                out[i, 1, r * 3 + c] = inverse[r, c]
                out[i, 2, r * 3 + c] = turned[r, c] * m[r, c]
            out[i, 3, 0] = m.determinant()
            out[i, 3, 1] = m.trace()
            out[i, 3, 2] = (m @ lib.Vector([1.0, 2.0, 3.0])).norm()

    k(x, out)
    return [out.to_numpy()]


@case
def vector_fields_and_dynamic_components(lib, rng):
    v, out = lib.Vector.field(3, lib.f32, shape=N), lib.ndarray(lib.f32, (N, 3))
    v.from_numpy(rng.uniform(-1, 1, (N, 3)).astype(np.float32))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in v:
            v[i] += lib.Vector([1.0, 2.0, 3.0])
            v[i].x *= 2
            v[i][1] -= 1
            w = v[i]
            for c in range(3):
                out[i, c] = w[c] + v[i][2 - c]

    k(out)
    return [v.to_numpy(), out.to_numpy()]


@case
def integer_vectors(lib, rng):
    out = lib.ndarray(lib.i32, (N, 4))

    @lib.kernel
    def k(out: lib.types.ndarray()):
        for i in range(N):
            v = lib.Vector([i - 5, 3])
            w = v // 2
            u = v % 4
            out[i, 0] = w[0]
            out[i, 1] = u[0]
            out[i, 2] = (v == w)[1]
            out[i, 3] = lib.cast(v * 0.5, lib.i32)[0]

    k(out)
    return [out.to_numpy()]


# ---- gradients


@case
def gradient_of_elementary_functions(lib, rng):
    x, y, loss = field(lib, rng.uniform(0.2, 0.8, N)), field(lib, rng.uniform(0.5, 2, N)), field(lib, 0.0)

    @lib.kernel
    def k():
        for i in x:
            a = lib.sin(x[i]) * lib.exp(y[i]) + lib.log(x[i]) / y[i]
            b = lib.tanh(x[i] * y[i]) + lib.sqrt(y[i]) + lib.atan2(x[i], y[i])
            loss[None] += a * b + x[i] ** y[i] + max(x[i], y[i]) * abs(x[i] - y[i])

    k()
    return [loss[None], *gradients(lib, k, loss, x, y)]


@case
def gradient_through_loops(lib, rng):
    x, c, loss = field(lib, rng.uniform(0.2, 0.8, N)), lib.field(lib.i32, shape=N), field(lib, 0.0)
    c.from_numpy(rng.integers(0, 9, N).astype(np.int32))

    @lib.kernel
    def k():
        for i in x:
            a = x[i]
            for j in range(c[i]):
                a = lib.sin(a) * x[i] + 0.1 * j
                for _p in range(3):
                    a = a * a + x[i]
                    a = lib.cos(a)
            loss[None] += a

    k()
    return [loss[None], *gradients(lib, k, loss, x)]


@case
def gradient_through_branches(lib, rng):
    x, y, loss = field(lib, rng.uniform(-1, 1, N)), field(lib, rng.uniform(-1, 1, N)), field(lib, 0.0)

    @lib.kernel
    def k():
        for i in x:
            a = x[i]
            if x[i] > 0:
                a = x[i] * y[i]
                if y[i] > 0:
                    a = a * a * y[i]
            else:
                a = y[i] * 3 - x[i]
            loss[None] += a * a if a > 0.1 else lib.sin(a)

    k()
    return [loss[None], *gradients(lib, k, loss, x, y)]


@case
def gradient_of_vectors(lib, rng):
    v, m, loss = (
        lib.Vector.field(3, lib.f64, shape=N, needs_grad=True),
        lib.Matrix.field(3, 3, lib.f64, shape=N, needs_grad=True),
        field(lib, 0.0),
    )
    v.from_numpy(rng.uniform(-1, 1, (N, 3)))
    m.from_numpy(rng.uniform(-1, 1, (N, 3, 3)) + 4 * np.eye(3))

    @lib.kernel
    def k():
        for i in v:
            w = m[i].inverse() @ v[i]
            loss[None] += w.norm() * v[i].dot(w) + m[i].determinant() + w.cross(v[i]).sum()

    k()
    return [loss[None], *gradients(lib, k, loss, v, m)]


@case
def gradient_by_tape_over_several_kernels(lib, rng):
    x, y, loss = field(lib, rng.uniform(-1, 1, N)), field(lib, np.zeros(N)), field(lib, 0.0)

    @lib.kernel
    def square():
        for i in x:
            y[i] = x[i] * x[i] + lib.sin(x[i])

    @lib.kernel
    def total(w: lib.f64):
        for i in y:
            loss[None] += w * y[i] * y[(i + 1) % N]

    with lib.ad.Tape(loss=loss):
        square()
        total(2.0)
        total(0.5)
    return [loss[None], x.grad.to_numpy(), y.grad.to_numpy()]


@case
def gradient_with_respect_to_arrays(lib, rng):
    x = array(lib, rng.uniform(-1, 1, N), lib.f64, needs_grad=True)
    y = array(lib, np.zeros(N), lib.f64, needs_grad=True)

    @lib.kernel
    def k(x: lib.types.ndarray(), y: lib.types.ndarray()):
        for i in range(N):
            a = x[i]
            for _j in range(4):
                a = a * x[i] + lib.sin(a)
            y[i] += a

    k(x, y)
    y.grad.fill(1.0)
    k.grad(x, y)
    return [y.to_numpy(), x.grad.to_numpy()]


@case
def gradient_of_minimum_and_maximum_at_a_tie(lib, rng):
    x, y, loss = field(lib, np.ones(N)), field(lib, np.ones(N)), field(lib, 0.0)

    @lib.kernel
    def k():
        for i in x:
            loss[None] += max(x[i], y[i]) * 2 + min(x[i], y[i]) * 3

    k()
    return [loss[None], gradients(lib, k, loss, x)[0] + y.grad.to_numpy()]
