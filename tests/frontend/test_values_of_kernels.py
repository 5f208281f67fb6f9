# ruff: noqa: B007
"""Kernels that mean the same in Python: the interpreter must agree with Python itself."""

import numpy as np
import pytest

from qdrun.compiler.frontend.library import functions as qd
from qdrun.compiler.frontend.markers import (
    atomic_add,
    atomic_max,
    grouped,
    loop_config,
    ndrange,
    static,
    static_assert,
    template,
)
from qdrun.compiler.ir.types import f32, f64, i32

from .kernels import Field, check, func, run


def floats(*shape):
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 3) / 2


def test_a_parallel_loop_stores_what_python_stores():
    def kernel(x, y, n):
        for i in range(n):
            y[i] = x[i] * 2 + i

    check(kernel, x=floats(8), y=floats(8), n=5)


def test_statements_between_loops_run_in_order_and_variables_cross_tasks():
    def kernel(x, y, n):
        total = 0.0
        m = n - 1
        for i in range(m):
            total += x[i]
        mean = total / m
        for i in range(n):
            y[i] = x[i] - mean
        total = total * 2
        total = total + 1
        return total

    check(kernel, x=floats(8), y=floats(8), n=6)


def test_a_variable_changed_by_two_serial_tasks_gets_two_places():
    def kernel(x):
        s = 1.0
        for i in range(3):
            x[i] += s
        s = s + 2.0
        for i in range(3):
            x[i] += s

    check(kernel, x=floats(3))


def test_a_variable_read_in_a_while_loop_of_a_later_task_is_a_variable_there():
    def kernel(x):
        s = 0.0
        for i in range(4):
            s += x[i]
        t = 0.0
        while s < 10.0:
            t = s
            s = s + 1.5
        return t

    check(kernel, x=floats(4))


def test_inner_loops_with_break_and_continue():
    def kernel(x, y, n):
        for i in range(n):
            s = 0.0
            for j in range(1, n, 2):
                if j == i:
                    continue
                if x[j] > 1.0:
                    break
                s += x[j]
            k = 0
            while True:
                k += 1
                if k * k > i:
                    break
            y[i] = s + k

    check(kernel, x=floats(9), y=floats(9), n=9)


def test_continue_of_the_parallel_loop_skips_the_rest_of_the_iteration():
    def kernel(x, n):
        for i in range(n):
            if x[i] < 0:
                continue
            x[i] = x[i] + 10

    check(kernel, x=floats(9), n=9)


def test_a_loop_may_count_down():
    def kernel(x, n):
        for i in range(n):
            s = 0.0
            for j in range(n - 1, i, -2):
                s = s * 0.5 + x[j]
            for j in range(5, -1, -1):
                s = s * 0.5 + j
            x[i] = s

    def ordered(x, n):
        out = x.copy()
        for i in range(n):
            out[i] = x[i]
        kernel(out, n)
        x[...] = out

    array = floats(6)
    expected = array.copy()
    kernel(expected, 6)
    run(kernel, x=array, n=6)
    np.testing.assert_allclose(array, expected, rtol=1e-5)


def test_a_parallel_range_may_have_a_step():
    def kernel(x, n):
        for i in range(1, n, 3):
            x[i] = i
        for i in range(n - 1, 0, -4):
            x[i] += 100

    check(kernel, x=floats(11), n=11)


def test_short_circuit_protects_the_right_side():
    def kernel(x, y, n):
        for i in range(n):
            if i + 1 < n and x[i + 1] > 0:
                y[i] = 1.0
            if i == 0 or x[i - 1] < 0 or i == 5:
                y[i] += 2.0
            y[i] += x[i + 1] if i + 1 < n else -1.0

    check(kernel, x=floats(7), y=floats(7), n=7)


def test_chained_comparisons_and_boolean_arithmetic():
    def kernel(x, n):
        for i in range(n):
            if 1 < i <= 4 and not (i == 3):
                x[i] = 1.0 if 0.0 <= x[i] < 1.0 else 7.0

    check(kernel, x=floats(8), n=8)


def test_tuples_swap_and_unpack():
    def kernel(x, n):
        for i in range(n):
            p, q = 0, 1
            for _ in range(i):
                p, q = q, p + q
            a = b = p
            (c, d), e = (a, b), q
            x[i] = c + d * 10 + e * 100

    check(kernel, x=floats(8), n=8)


def test_augmented_assignments_of_every_operator():
    def kernel(x, k, n):
        for i in range(n):
            x[i] += 2
            x[i] -= i
            x[i] *= 1.5
            x[i] /= 2
            x[i] **= 2
            k[i] &= 6
            k[i] |= 8
            k[i] ^= 3
            k[i] <<= 2
            k[i] >>= 1
            k[i] //= 2
            k[i] %= 7
            v = 3
            v *= i
            v -= 1
            v //= 2
            k[i] += v

    check(kernel, x=floats(6), k=np.arange(6, dtype=np.int32), n=6)


def test_an_augmented_global_is_atomic():
    def kernel(x):
        for i in range(4):
            x[0] += i
            x[1] *= 2.0

    check(kernel, x=floats(2))


def test_a_variable_keeps_its_type():
    def kernel(x):
        for i in range(1):
            n = 3
            n = 2.7
            x[i] = n

    array = floats(1)
    run(kernel, x=array)
    assert array[0] == 2


def test_annotations_cast():
    def kernel(x):
        for i in range(1):
            a: i32 = 2.9
            b: float = 3
            x[i] = a + b / 2

    array = floats(1)
    run(kernel, x=array)
    assert array[0] == 3.5


def test_atomics_return_the_old_content():
    def kernel(x):
        loop_config(serialize=True)
        for i in range(4):
            old = atomic_add(x[0], 1.0)
            x[i + 1] = old
            m = 2
            before = atomic_max(m, 5)
            x[i + 1] += m * 10 + before * 100

    array = np.zeros(5, np.float32)
    run(kernel, x=array)
    assert array.tolist() == [4, 250, 251, 252, 253]


def test_a_serialized_loop_may_break():
    def kernel(x, n):
        s = 0.0
        loop_config(serialize=True)
        for i in range(n):
            if i == 3:
                break
            s += x[i]
        return s

    array = floats(8)
    assert run(kernel, x=array, n=8).returns == [float(array[:3].sum())]


def test_functions_are_inlined_and_take_their_parameters_by_value():
    @func
    def square(a):
        a = a * a
        return a

    @func
    def norm(a, b: f32 = 1.0):
        return qd.sqrt(square(a) + square(b))

    def kernel(x, n):
        for i in range(n):
            v = x[i]
            x[i] = norm(v, 2.0) + v + norm(a=v)

    array = floats(6)
    expected = np.sqrt(array**2 + 4) + array + np.sqrt(array**2 + 1)
    run(kernel, x=array, n=6)
    np.testing.assert_allclose(array, expected, rtol=1e-5)


def test_template_parameters_are_references():
    @func
    def bump(a: template(), by):
        a += by

    @func
    def store(field: template(), i, value):
        field[i] = value

    def kernel(x, n):
        for i in range(n):
            v = 1.0
            bump(v, 2.0)
            bump(x[i], v)
            store(x, i, x[i] * 2)

    array = floats(4)
    expected = (array + 3) * 2
    run(kernel, x=array, n=4)
    np.testing.assert_allclose(array, expected)


def test_a_function_may_return_inside_ifs_and_loops():
    @func
    def first_above(x, n, limit):
        for i in range(n):
            for j in range(2):
                if x[i] + j > limit:
                    return i * 10 + j
            if i == 5:
                return 99
        return -1

    @func
    def sign(v):
        if v > 0:
            return 1.0
        elif v < 0:
            return -1.0
        else:
            return 0.0

    def kernel(x, y, n):
        for i in range(n):
            s = 0.0
            for k in range(3):
                if k == 2:
                    break
                s += first_above(x, n, i - 2.0) + sign(x[i])
            y[i] = s

    check(kernel, x=floats(8), y=floats(8), n=8)


def test_a_function_may_return_a_tuple_or_a_vector_early():
    @func
    def pair(v):
        if v > 0:
            return v, qd_vector(v)
        return -v, qd_vector(0.0)

    @func
    def qd_vector(a):
        return [a, a + 1]

    def kernel(x, n):
        for i in range(n):
            a, (b, c) = pair(x[i])
            x[i] = a + b * 10 + c * 100

    check(kernel, x=floats(8), n=8)


def test_loops_of_a_function_called_at_the_top_level_are_parallel_tasks():
    @func
    def scale(x, n, by):
        by = by * 2
        for i in range(n):
            x[i] *= by

    def kernel(x, n):
        c = x[0]
        scale(x, n, c)
        scale(x, n, 3.0)

    check(kernel, x=floats(5), n=5)


def test_static_loops_unroll_and_static_ifs_choose():
    def kernel(x, flag, names):
        for i in range(4):
            for k in static(range(3)):
                if static(k == 1):
                    continue
                x[i] += k
            for name, weight in static(zip(names, (1, 10))):
                x[i] += weight * name
            for k, name in static(enumerate(names)):
                x[i] += k * name
            if static(flag is not None and flag):
                x[i] += 1000
            else:
                x[i] += undefined_thing  # noqa: F821
        static_assert(flag, "flag")

    array = np.zeros(4, np.float32)
    run(kernel, x=array, flag=True, names=(2, 3))
    assert array.tolist() == [2 + 32 + 3 + 1000] * 4


def test_an_inline_conditional_chooses_between_a_loop_and_an_unrolled_loop():
    def kernel(x, unroll, n):
        for i in range(3):
            for k in range(n) if static(not unroll) else static(range(4)):
                x[i] += k

    for unroll in (True, False):
        array = np.zeros(3, np.float32)
        run(kernel, x=array, unroll=unroll, n=4)
        assert array.tolist() == [6, 6, 6]


def test_a_static_loop_at_the_top_level_makes_one_task_each():
    def kernel(x):
        for k in static(range(3)):
            for i in range(2):
                x[i] = x[i] * 2 + k

    check(kernel, x=floats(2))


def test_ndrange_runs_over_all_axes():
    def kernel(x, n):
        for i, j in ndrange(n, (1, 3)):
            x[i, j] = i * 10 + j
        for idx in grouped(ndrange(2, 2)):
            x[idx] += 100
            x[idx[0], idx[1]] += 1000
        for i in range(1):
            for j, k in ndrange(2, n):
                x[k, j] += 0.5

    array = np.zeros((4, 4), np.float32)
    expected = array.copy()
    for i in range(3):
        for j in range(1, 3):
            expected[i, j] = i * 10 + j
    expected[:2, :2] += 1100
    expected[:3, :2] += 0.5
    run(kernel, x=array, n=3)
    np.testing.assert_array_equal(array, expected)


def test_struct_for_runs_over_fields_and_arrays():
    def kernel(f, x):
        for i, j in f:
            f[i, j] = i - j
        for idx in grouped(f):
            f[idx] += idx[0] + idx.y
        for i in x:
            x[i] += 1

    field, array = Field(np.zeros((2, 3), np.float32)), floats(4)
    expected = array + 1
    run(kernel, f=field, x=array)
    np.testing.assert_array_equal(field.array, [[0, 0, 0], [2, 2, 2]])
    np.testing.assert_array_equal(array, expected)


def test_scalar_fields_are_indexed_with_none():
    loss = Field(np.zeros((), np.float32), name="loss")

    def kernel(x, loss):
        for i in range(4):
            loss[None] += x[i]
        loss[()] = loss[None] * 2

    array = floats(4)
    run(kernel, x=array, loss=loss)
    assert loss.array == array.sum() * 2


def test_fields_of_vectors():
    def kernel(v, w):
        for i in v:
            v[i][0] += 1
            v[i].y = 5
            v[i].xz = v[i].zx
            for k in range(3):
                v[i][k] *= 2
            m = v[i]
            m[1] = m[0] + m[2]
            m.z = -1
            m += w
            v[i] = m

    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    field = Field(data.copy(), (3,))
    from qdrun.compiler.frontend.values.values import MatrixValue
    from qdrun.compiler.ir.nodes import Const

    class Host:
        def __qd_value__(self):
            return MatrixValue((3,), tuple(Const(float(k), f32) for k in range(3)))

    run(kernel, v=field, w=Host())
    expected = data.copy()
    expected[:, 0] += 1
    expected[:, 1] = 5
    expected[:, [0, 2]] = expected[:, [2, 0]]
    expected *= 2
    expected[:, 1] = expected[:, 0] + expected[:, 2]
    expected[:, 2] = -1
    expected += np.arange(3)
    np.testing.assert_array_equal(field.array, expected)


def test_methods_see_their_object_at_compile_time():
    class Model:
        def __init__(self):
            self.scale, self.data = 3.0, Field(floats(4))

        @func
        def twice(self, v):
            return v * 2 + self.scale

        def kernel(self):
            for i in self.data:
                self.data[i] = self.twice(self.data[i])

    model = Model()
    expected = model.data.array * 2 + 3

    from qdrun.compiler.frontend.signature import TemplateArg
    from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

    from .kernels import build

    kernel, _ = build(Model.kernel, self=TemplateArg(model))
    memory = Memory()
    memory.bind(model.data.buffer, model.data.array)
    run_kernel(kernel, memory)
    np.testing.assert_array_equal(model.data.array, expected)


def test_prints_and_comprehensions():
    def kernel(x, n):
        v = [x[k] for k in static(range(3)) if k != 1]
        total = sum([x[k] * 2 for k in range(2)])
        print("x", x[1], f"n={n}", v, sep="|", end=".\n")
        return total

    array = floats(4)
    result = run(kernel, x=array, n=7)
    assert result.returns == [float(array[0] * 2 + array[1] * 2)]
    assert "".join(map(str, result.prints)).count("|") == 3


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_literal_keeps_its_precision_until_it_is_stored(dtype):
    def kernel(x):
        for i in range(1):
            x[i] = 0.1

    array = np.zeros(1, dtype)
    run(kernel, x=array)
    assert array[0] == dtype(0.1)


def test_the_annotation_of_the_kernel_fixes_the_type_of_its_result():
    from qdrun.compiler.frontend.signature import LowerOptions

    def kernel(n):
        return n, n / 2

    result = run(kernel, LowerOptions(returns=(f64, i32)), n=5)
    assert result.returns == [5.0, 2]
