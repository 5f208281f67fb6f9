# ruff: noqa: F841, F821, F823, B007
"""Mistakes of a first day. Each message says what is wrong, in which kernel and line, and what to do."""

import random

import numpy as np
import pytest

import qdrun as qd

AT_LAUNCH = (
    "wrong_dtype_arg too_few_args python_list_for_ndarray wrong_ndim wrong_array_dtype redefine_field_size place_twice unplaced"
).split()
"""Found when Python calls: the traceback has the line."""
EXPECTED = {
    "undefined_name": (qd.QdrunNameError, "`y_not_there` is not defined"),
    "wrong_dtype_arg": (qd.QdrunTypeError, "expected i32, got 1.5 of type float"),
    "return_in_loop": (qd.QdrunSyntaxError, "`return` of a kernel cannot stand inside a parallel loop"),
    "python_object_captured": (qd.QdrunTypeError, "unsupported operand type(s) for +: 'A' and 'int'"),
    "mutable_global": (qd.QdrunSyntaxError, "`global` cannot be used"),
    "assign_captured": (qd.QdrunNameError, "keep it in a field, TOTAL[None] += .."),
    "assign_field": (qd.QdrunNameError, "the field of this name is written as `FORCE[i, j] = ..`"),
    "list_append": (qd.QdrunTypeError, "a kernel cannot change a Python object: write to a field"),
    "local_list_append": (qd.QdrunTypeError, "a list in a kernel has a fixed length"),
    "string_variable": (qd.QdrunTypeError, "can only concatenate str"),
    "string_arg": (qd.QdrunSyntaxError, "has the annotation <class 'str'>, which kernels do not take"),
    "numpy_in_kernel": (qd.QdrunTypeError, "use a function of qd or qd.math"),
    "numpy_random": (qd.QdrunSyntaxError, "rand() draws a number once, while the kernel is compiled"),
    "python_random": (qd.QdrunSyntaxError, "random() draws a number once, while the kernel is compiled"),
    "numpy_array_captured": (qd.QdrunTypeError, "a Python ndarray cannot be indexed by a value that is only known at run time"),
    "vector_type_change": (qd.QdrunTypeError, "`x` holds a number, and is assigned a vector of 2"),
    "var_only_in_branch": (qd.QdrunNameError, "`y` has no value here"),
    "wrong_index_count": (qd.QdrunIndexError, "its shape is (3, 4): write f[i, j]"),
    "float_index": (qd.QdrunTypeError, "an index is an integer, not f32"),
    "negative_index": (qd.QdrunIndexError, "negative indices do not count from the end"),
    "slice_field": (qd.QdrunTypeError, "has no slices in a kernel"),
    "call_kernel_in_kernel": (qd.QdrunSyntaxError, "cannot be called inside a kernel"),
    "too_few_args": (qd.QdrunTypeError, "call k(a, b)"),
    "python_list_for_ndarray": (qd.QdrunTypeError, "pass numpy.array(..) of it"),
    "wrong_ndim": (qd.QdrunTypeError, "expected number of axes 2, got 1"),
    "wrong_array_dtype": (qd.QdrunTypeError, "expected dtype f32, got f64"),
    "field_as_scalar": (qd.QdrunTypeError, "the field or array `f` is not a number"),
    "matmul_mismatch": (qd.QdrunTypeError, "transpose() one of them"),
    "for_over_captured_list": (qd.QdrunTypeError, "a loop cannot run over a Python list at run time"),
    "enumerate_loop": (qd.QdrunTypeError, "loop over its indices, `for i in x:`"),
    "chained_assign_tuple_mismatch": (qd.QdrunTypeError, "cannot unpack 3 values into 2 names"),
    "none_value": (qd.QdrunTypeError, "'NoneType' and 'int'"),
    "dict_in_kernel": (qd.QdrunIndexError, "its keys are 'a'"),
    "bool_ops_on_vector": (qd.QdrunTypeError, "the truth of a vector of 2 is ambiguous"),
    "input_call": (qd.QdrunSyntaxError, "input() reads once"),
    "torch_like_call": (qd.QdrunNameError, "a field or an array is read by element"),
    "unknown_qd_name": (qd.QdrunTypeError, "did you mean `sin`?"),
    "unknown_method_vector": (qd.QdrunNameError, "did you mean `normalized`?"),
    "list_comp_runtime": (qd.QdrunTypeError, "a range whose ends are only known at run time"),
    "static_runtime": (qd.QdrunTypeError, "this value is not known at compile time"),
    "field_in_kernel": (qd.QdrunSyntaxError, "make the field before the kernel"),
    "redefine_field_size": (qd.QdrunTypeError, "is an integer or a tuple of integers, not 4.5"),
    "place_twice": (qd.QdrunRuntimeError, "is placed already"),
    "unplaced": (qd.QdrunRuntimeError, "`f` has no memory: it is not placed"),
}


def undefined_name():
    @qd.kernel
    def k():
        x = y_not_there + 1

    k()


def wrong_dtype_arg():
    @qd.kernel
    def k(n: qd.i32):
        pass

    k(1.5)


def return_in_loop():
    @qd.kernel
    def k(n: qd.i32) -> qd.i32:
        for i in range(4):
            if i > n:
                return i
        return 2

    k(1)


def python_object_captured():
    class A:
        pass

    a = A()

    @qd.kernel
    def k():
        x = a + 1

    k()


def mutable_global():
    total = 0

    @qd.kernel
    def k():
        global G
        G = 3

    k()


TOTAL = 0.0


def assign_captured():
    @qd.kernel
    def k():
        for i in range(10):
            TOTAL += i

    k()


def list_append():
    xs = []

    @qd.kernel
    def k():
        for i in range(10):
            xs.append(i)

    k()


def local_list_append():
    @qd.kernel
    def k():
        xs = []
        for i in range(10):
            xs.append(i)

    k()


def string_variable():
    @qd.kernel
    def k():
        s = "hello"
        t = s + 1

    k()


def string_arg():
    @qd.kernel
    def k(s: str):
        print(s)

    k("hello")


def numpy_in_kernel():
    @qd.kernel
    def k(n: qd.i32):
        x = np.sin(n * 1.0)
        y = np.zeros(n)

    k(3)


def numpy_random():
    @qd.kernel
    def k():
        for i in range(3):
            x = np.random.rand()

    k()


def python_random():
    f = qd.field(qd.f32, 3)

    @qd.kernel
    def k():
        for i in f:
            f[i] = random.random()

    k()


def numpy_array_captured():
    a = np.arange(4.0)
    f = qd.field(qd.f32, 4)

    @qd.kernel
    def k():
        for i in f:
            f[i] = a[i]

    k()


def vector_type_change():
    @qd.kernel
    def k():
        x = 1.0
        x = qd.Vector([1.0, 2.0])

    k()


def var_only_in_branch():
    @qd.kernel
    def k(n: qd.i32) -> qd.i32:
        if n > 0:
            y = 3
        return y

    k(1)


FORCE = None


def assign_field():
    global FORCE
    FORCE = qd.field(qd.f32, (3, 4))

    @qd.kernel
    def k():
        FORCE += 1.0

    k()


def wrong_index_count():
    f = qd.field(qd.f32, (3, 4))

    @qd.kernel
    def k():
        f[0] = 1.0

    k()


def float_index():
    f = qd.field(qd.f32, 4)

    @qd.kernel
    def k(x: qd.f32):
        f[x] = 1.0

    k(1.0)


def negative_index():
    f = qd.field(qd.f32, 4)

    @qd.kernel
    def k():
        f[-1] = 1.0

    k()


def slice_field():
    f = qd.field(qd.f32, (4, 4))

    @qd.kernel
    def k():
        f[0, :] = 1.0

    k()


def call_kernel_in_kernel():
    @qd.kernel
    def a():
        pass

    @qd.kernel
    def k():
        a()

    k()


def too_few_args():
    @qd.kernel
    def k(a: qd.i32, b: qd.f32):
        pass

    k(1)


def python_list_for_ndarray():
    @qd.kernel
    def k(a: qd.types.ndarray()):
        for i in a:
            a[i] = 1.0

    k([1.0, 2.0])


def wrong_ndim():
    @qd.kernel
    def k(a: qd.types.ndarray(dtype=qd.f32, ndim=2)):
        for i, j in a:
            a[i, j] = 1.0

    k(np.zeros(3, np.float32))


def wrong_array_dtype():
    @qd.kernel
    def k(a: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in a:
            a[i] = 1.0

    k(np.zeros(3))


def field_as_scalar():
    f = qd.field(qd.f32, 4)

    @qd.kernel
    def k() -> qd.f32:
        return f * 2.0

    k()


def matmul_mismatch():
    @qd.kernel
    def k():
        a = qd.Matrix([[1.0, 2.0], [3.0, 4.0]]) @ qd.Vector([1.0, 2.0, 3.0])

    k()


def for_over_captured_list():
    xs = [1, 2, 3]

    @qd.kernel
    def k():
        for v in xs:
            x = v

    k()


def enumerate_loop():
    f = qd.field(qd.f32, 4)

    @qd.kernel
    def k():
        for i, v in enumerate(f):
            x = v

    k()


def chained_assign_tuple_mismatch():
    @qd.kernel
    def k():
        a, b = 1, 2, 3

    k()


def none_value():
    @qd.kernel
    def k():
        x = None
        y = x + 1

    k()


def dict_in_kernel():
    d = {"a": 1.0}

    @qd.kernel
    def k(n: qd.i32) -> qd.f32:
        return d["b"]

    k(1)


def bool_ops_on_vector():
    @qd.kernel
    def k():
        v = qd.Vector([1.0, 2.0])
        if v > 0:
            x = 1

    k()


def input_call():
    @qd.kernel
    def k():
        x = input()

    k()


def torch_like_call():
    f = qd.field(qd.f32, 4)

    @qd.kernel
    def k():
        f.sum()

    k()


def unknown_qd_name():
    @qd.kernel
    def k(x: qd.f32) -> qd.f32:
        return qd.sinn(x)

    k(1.0)


def unknown_method_vector():
    @qd.kernel
    def k():
        v = qd.Vector([1.0, 2.0])
        w = v.normalise()

    k()


def list_comp_runtime():
    @qd.kernel
    def k(n: qd.i32):
        v = [i * 2 for i in range(n)]

    k(3)


def static_runtime():
    @qd.kernel
    def k(n: qd.i32):
        for i in qd.static(range(n)):
            x = i

    k(3)


def field_in_kernel():
    @qd.kernel
    def k():
        f = qd.field(qd.f32, 4)

    k()


def redefine_field_size():
    f = qd.field(qd.f32, 4.5)


def place_twice():
    f = qd.field(qd.f32)
    qd.root.dense(qd.i, 4).place(f)
    qd.root.dense(qd.i, 4).place(f)


def unplaced():
    f = qd.field(qd.f32)

    @qd.kernel
    def k():
        f[0] = 1.0

    k()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_message_says_what_where_and_what_to_do(name):
    error, text = EXPECTED[name]
    qd.init(offline_cache=False)
    with pytest.raises(error) as caught:
        globals()[name]()
    message = str(caught.value)
    assert text in message and "do: " in message, message
    if name not in AT_LAUNCH:
        assert "kernel `k`" in message and f"{__file__}:" in message, message
