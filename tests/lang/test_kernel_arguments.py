"""Arguments of kernels: what each kind accepts, how it is passed, and what is refused with which words."""

import re
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu, offline_cache=False) as program:
        yield program


@qd.kernel
def double_all(x: qd.types.ndarray()):
    for I in qd.grouped(x):
        x[I] *= 2


@qd.kernel
def double_rows(x: qd.types.ndarray(dtype=qd.f32, ndim=2)):
    for i, j in x:
        x[i, j] = x[i, j] * 2 + i


@qd.kernel
def put(out: qd.types.ndarray(dtype=qd.f64, ndim=1), a: qd.i32, b: qd.f64 = 2.5, flag: bool = False):
    out[0] = a
    out[1] = b
    if flag:
        out[2] = 1.0


def refused(error, text, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert text in str(caught.value), str(caught.value)


# ---- arrays


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_numpy_arrays_of_every_type_are_written_in_place(dtype):
    x = np.arange(12).astype(dtype).reshape(3, 4)
    double_all(x)
    double_all(x)
    np.testing.assert_array_equal(x, (np.arange(12) * 4).reshape(3, 4).astype(dtype))


def test_a_truth_array_is_written_in_place():
    @qd.kernel
    def flip(x: qd.types.ndarray(dtype=qd.u1, ndim=1)):
        for i in x:
            x[i] = not x[i]

    x = np.array([True, False, True])
    flip(x)
    assert x.tolist() == [False, True, False]


@pytest.mark.parametrize(
    "view",
    [lambda a: a.T, lambda a: a[::2], lambda a: a[:, ::-1], lambda a: a[1:, 1:3], np.asfortranarray, lambda a: a[::-2, ::2].T],
    ids=["transposed", "steps", "backwards", "window", "fortran", "all of it"],
)
def test_arrays_that_are_not_contiguous_are_copied_back(view):
    whole = np.arange(30, dtype=np.float32).reshape(5, 6)
    x = view(whole)
    expected = x * 2 + np.arange(x.shape[0], dtype=np.float32)[:, None]
    outside = np.ones(whole.shape, bool)
    view(outside)[...] = False
    before = whole.copy()
    double_rows(x)
    np.testing.assert_array_equal(x, expected)
    if x.base is whole or np.shares_memory(x, whole):
        np.testing.assert_array_equal(whole[outside], before[outside])
    double_rows(x)
    np.testing.assert_array_equal(x, expected * 2 + np.arange(x.shape[0], dtype=np.float32)[:, None])


def test_an_array_that_is_not_aligned_is_copied_back():
    raw = np.zeros(4 * 6 + 1, np.uint8)
    x = raw[1:].view(np.float32).reshape(2, 3)
    x[...] = 1
    double_rows(x)
    assert x.tolist() == [[2, 2, 2], [3, 3, 3]]


def test_a_read_only_array_can_be_read():
    @qd.kernel
    def total(x: qd.types.ndarray(dtype=qd.f32, ndim=1)) -> qd.f32:
        s = 0.0
        for i in x:
            s += x[i]
        return s

    x = np.arange(5, dtype=np.float32)
    x.flags.writeable = False
    assert total(x) == 10
    assert x.tolist() == [0, 1, 2, 3, 4]


def test_an_empty_array_runs_nothing():
    x = np.zeros((0, 3), np.float32)
    double_rows(x)
    double_all(np.zeros(0, np.int32))


def test_one_kernel_takes_arrays_of_all_shapes_and_kinds_in_turn():
    """The native launcher and the slow path give the same; types that the launcher does not know come in between."""
    for round_ in range(3):
        for make in (
            lambda: np.arange(6, dtype=np.float32),
            lambda: np.arange(6).reshape(2, 3),
            lambda: np.arange(8.0).reshape(2, 2, 2),
            lambda: np.arange(20, dtype=np.float32)[::2],
        ):
            x = make()
            expected = x * 2
            double_all(x)
            np.testing.assert_array_equal(x, expected, err_msg=str(round_))
        y = qd.ndarray(qd.f32, (3, 3))
        y.fill(1.5)
        double_all(y)
        assert y.to_numpy().tolist() == [[3.0] * 3] * 3


def test_an_ndarray_with_a_gradient_and_one_without_are_two_types():
    x, y = qd.ndarray(qd.f32, 4, needs_grad=True), qd.ndarray(qd.f32, 4)
    for z in (x, y, x, y):
        z.fill(1)
        double_all(z)
        assert z.to_numpy().tolist() == [2.0] * 4


def test_arrays_of_vectors_come_as_ndarrays_and_as_numpy_arrays():
    @qd.kernel
    def turn(x: qd.types.ndarray(dtype=qd.types.vector(2, qd.f32), ndim=1)):
        for i in x:
            x[i] = qd.Vector([-x[i].y, x[i].x])

    a = qd.Vector.ndarray(2, qd.f32, 3)
    a.from_numpy(np.arange(6, dtype=np.float32).reshape(3, 2))
    b = a.to_numpy()
    turn(a)
    turn(b)
    assert a.to_numpy().tolist() == b.tolist() == [[-1, 0], [-3, 2], [-5, 4]]
    refused(TypeError, "expected elements of shape (2,)", turn, np.zeros((3, 3), np.float32))


@pytest.mark.parametrize(
    "value, text",
    [
        (np.zeros((2, 2)), "kernel `double_rows`, argument `x`: expected dtype f32, got f64"),
        (np.zeros(2, np.float32), "kernel `double_rows`, argument `x`: expected number of axes 2, got 1"),
        (np.zeros((2, 2), complex), "kernel `double_rows`, argument `x`: numpy dtype complex128 has no kernel type"),
        ([[1.0]], "kernel `double_rows`, argument `x`: expected an ndarray, a numpy array or a torch tensor, got list"),
        (3, "kernel `double_rows`, argument `x`: expected an ndarray, a numpy array or a torch tensor, got int"),
        (None, "kernel `double_rows`, argument `x`: expected an ndarray, a numpy array or a torch tensor, got NoneType"),
    ],
    ids=["dtype", "ndim", "complex", "list", "int", "None"],
)
def test_a_wrong_array_is_refused_by_name_and_right_ones_still_work(value, text):
    for _ in range(2):
        refused(qd.QdrunTypeError, text, double_rows, value)
        x = np.ones((1, 2), np.float32)
        double_rows(x)
        assert x.tolist() == [[2, 2]]


def test_an_array_of_a_closed_program_is_refused():
    with qd.init(offline_cache=False):
        old = qd.ndarray(qd.f32, (2, 2))
    with qd.init(offline_cache=False):
        double_rows(np.ones((2, 2), np.float32))
        refused(qd.QdrunRuntimeError, "closed", double_rows, old)


# ---- scalars


def test_keywords_and_defaults():
    for args, kwargs, expected in [
        ((1,), {}, [1, 2.5, 0]),
        ((1, 3), {}, [1, 3, 0]),
        ((1,), {"flag": True}, [1, 2.5, 1]),
        ((), {"b": 1, "a": 7, "flag": 1}, [7, 1, 1]),
        ((4, 5.5, True), {}, [4, 5.5, 1]),
    ]:
        out = np.zeros(3)
        put(out, *args, **kwargs)
        assert out.tolist() == expected


@pytest.mark.parametrize(
    "args, kwargs, text",
    [
        ((), {}, "kernel `put` is missing `a`"),
        ((1, 2, 3, 4), {}, "kernel `put` takes 4 arguments, 5 were given"),
        ((1,), {"c": 2}, "kernel `put`: `c` is not a parameter; parameters: out, a, b, flag"),
        ((1,), {"a": 2}, "kernel `put`: `a` was given twice"),
        ((1.5,), {}, "kernel `put`, argument `a`: expected i32, got 1.5 of type float"),
        ((np.float64(1.5),), {}, "argument `a`: expected i32, got 1.5 of type float"),
        ((2**31,), {}, "argument `a`: 2147483648 does not fit i32 (-2147483648 to 2147483647)"),
        ((np.int64(-(2**31) - 1),), {}, "argument `a`: -2147483649 does not fit i32"),
        (("1",), {}, "argument `a`: expected i32, got '1' of type str"),
        ((1, "x"), {}, "argument `b`: expected f64, got 'x' of type str"),
        ((1, None), {}, "argument `b`: expected f64, got None of type NoneType"),
        ((1, 1j), {}, "argument `b`: expected f64, got 1j of type complex"),
        ((np.zeros(2),), {}, "argument `a`: expected i32, got "),
    ],
)
def test_wrong_scalars_and_counts_are_refused_before_and_after_the_native_launch(args, kwargs, text):
    out = np.zeros(3)
    for _ in range(2):
        refused(qd.QdrunTypeError, text, put, out, *args, **kwargs)
        put(out, 1, 1.0, False)
    assert out.tolist() == [1, 1, 0]


@pytest.mark.parametrize("name", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
def test_integers_of_every_width_are_exact_at_their_ends(name):
    dtype = getattr(qd, name)
    info = np.iinfo(dtype.numpy)

    @qd.kernel
    def keep(a: dtype, out: qd.types.ndarray(ndim=1)):
        out[0] = a

    for value in (info.min, info.max, 1, np.int8(5), np.uint64(7), dtype.numpy.type(9)):
        out = np.zeros(1, dtype.numpy)
        keep(value, out)
        assert int(out[0]) == int(value)
    refused(qd.QdrunTypeError, f"does not fit {name}", keep, info.max + 1, np.zeros(1, dtype.numpy))
    refused(qd.QdrunTypeError, f"does not fit {name}", keep, info.min - 1, np.zeros(1, dtype.numpy))


@pytest.mark.parametrize(
    "name, given", [("f16", 0.1), ("f32", 0.1), ("f64", 0.1), ("f64", 3), ("f32", np.float16(0.5)), ("f32", True)]
)
def test_reals_are_rounded_to_their_type(name, given):
    dtype = getattr(qd, name)

    @qd.kernel
    def keep(a: dtype, out: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        out[0] = a

    for _ in range(2):
        out = np.zeros(1)
        keep(given, out)
        assert out[0] == float(dtype.numpy.type(given))


def test_infinities_and_big_numbers_pass():
    @qd.kernel
    def keep(a: qd.f32, out: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        out[0] = a

    out = np.zeros(1, np.float32)
    for value, expected in [(np.inf, np.inf), (-np.inf, -np.inf), (1e30, np.float32(1e30)), (1e-50, 0)]:
        keep(value, out)
        assert out[0] == expected
    keep(np.nan, out)
    assert np.isnan(out[0])


def test_a_real_too_big_for_its_type_becomes_infinite_in_both_launchers():
    @qd.kernel
    def keep(a: qd.f32, out: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        out[0] = a

    @qd.kernel
    def keep_half(a: qd.f16, out: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        out[0] = a

    for k in (keep, keep_half):
        for _ in range(2):
            out = np.zeros(1, np.float32)
            k(1e300, out)
            assert np.isinf(out[0])


def test_int_and_float_annotations_are_the_default_types():
    @qd.kernel
    def keep(a: int, b: float, out: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        out[0] = a
        out[1] = b

    out = np.zeros(2)
    keep(3, 0.1, out)
    assert out.tolist() == [3, float(np.float32(0.1))]
    refused(qd.QdrunTypeError, "does not fit i32", keep, 2**31, 0.1, out)
    with qd.init(default_fp=qd.f64, default_ip=qd.i64, offline_cache=False):
        keep(2**40, 0.1, out)
    assert out.tolist() == [2**40, 0.1]
    keep(3, 0.1, out)
    assert out[1] == float(np.float32(0.1))


# ---- vectors, templates


def test_vectors_and_matrices_are_passed_by_value():
    @qd.kernel
    def k(v: qd.types.vector(3, qd.f32), m: qd.types.matrix(2, 2, qd.i32), out: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        out[0] = v.dot(v)
        out[1] = m[0, 1] - m[1, 0]

    for v in (qd.Vector([1.0, 2.0, 3.0]), [1, 2, 3], np.array([1.0, 2.0, 3.0], np.float32), (1, 2.0, 3)):
        out = np.zeros(2, np.float32)
        k(v, [[1, 5], [2, 4]], out)
        assert out.tolist() == [14, 3]
    refused(qd.QdrunTypeError, "kernel `k`, argument `v`: expected vector(3, f32), got a value of shape (2,)", k, [1, 2], 0, 0)
    refused(qd.QdrunTypeError, "argument `m`: expected i32, got 1.5", k, [1, 2, 3], [[1.5, 1], [1, 1]], out)


def test_templates_of_every_kind():
    field, other = qd.field(qd.f32, shape=3), qd.field(qd.i32, shape=(2, 2))

    @qd.func
    def square(a):
        return a * a

    @qd.kernel
    def fill(x: qd.template(), n: qd.template(), fn: qd.Template, dtype: qd.template(), pair: qd.template()):
        for I in qd.grouped(x):
            for k in qd.static(range(n)):
                x[I] += fn(qd.cast(k + pair[1] + 0.9, dtype))

    fill(field, 3, square, qd.i32, (1, 2))
    assert field.to_numpy().tolist() == [4 + 9 + 16] * 3
    fill(other, 2, square, qd.i32, (0, 0))
    assert other.to_numpy().tolist() == [[1, 1]] * 2
    fill(field, 0, square, qd.i32, (1, 2))
    assert field.to_numpy().tolist() == [29] * 3


def test_a_template_number_of_another_type_is_another_specialisation():
    out = np.zeros(1)

    @qd.kernel
    def half(n: qd.template(), out: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        out[0] = qd.static(str(n) == "True") + n * 2

    for n, expected in [(1, 2), (True, 3), (1.0, 2), (1, 2)]:
        half(n, out)
        assert out[0] == expected


def test_mutable_templates_are_read_when_they_are_compiled():
    out = np.zeros(1)
    parts = [1, 2]

    @qd.kernel
    def total(p: qd.template(), out: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        out[0] = p[0] + p[1]

    total(parts, out)
    assert out[0] == 3


@qd.data_oriented
class Counter:
    def __init__(self, n, by):
        self.n, self.by = n, by
        self.x = qd.field(qd.f32, shape=n, needs_grad=True)
        self.total = qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.func
    def step(self, a):
        return a * self.by

    @qd.kernel
    def run(self, times: qd.i32):
        for i in range(self.n):
            for _ in range(times):
                self.x[i] += self.step(i)

    @qd.kernel
    def sum(self):
        for i in self.x:
            self.total[None] += self.x[i] * self.by


def test_methods_belong_to_their_object():
    one, two = Counter(3, 1), Counter(4, 10)
    for _ in range(2):
        one.run(2)
        two.run(1)
    assert one.x.to_numpy().tolist() == [0, 4, 8] and two.x.to_numpy().tolist() == [0, 20, 40, 60]
    with qd.ad.Tape(loss=two.total):
        two.sum()
    assert two.x.grad.to_numpy().tolist() == [10] * 4 and two.total[None] == 1200
    assert one.x.grad.to_numpy().tolist() == [0] * 3
    assert "run" in repr(Counter.run)


def test_many_objects_that_come_and_go_keep_their_own_kernels():
    """Identities of dead objects are used again: a specialisation must keep its object alive."""
    for k in range(12):
        c = Counter(2, k)
        c.run(1)
        assert c.x.to_numpy().tolist() == [0, k]
        del c


# ---- annotations


def _bare(a):
    pass


def _odd(a: "qd.field"):
    pass


def _starred(*a: qd.f32):
    pass


@pytest.mark.parametrize(
    "fn, text",
    [
        (_bare, "parameter `a` of kernel `_bare` has no annotation"),
        (_odd, "parameter `a` of kernel `_odd` has the annotation"),
        (_starred, "kernel `_starred` has a `*` parameter"),
    ],
)
def test_parameters_need_annotations_that_kernels_take(fn, text):
    with pytest.raises(qd.QdrunSyntaxError) as caught:
        qd.kernel(fn)(1)
    message = str(caught.value)
    assert message.startswith(text) and re.search(rf"{re.escape(Path(__file__).name)}:\d+", message) and "do: " in message


def test_arguments_are_read_only():
    @qd.kernel
    def k(a: qd.i32):
        a = 3  # noqa: F841

    with pytest.raises(qd.QdrunTypeError) as caught:
        k(1)
    assert "`a`" in str(caught.value) and "^" in str(caught.value)
