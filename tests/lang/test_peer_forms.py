"""Forms of the peer that programs use now and then: annotations of arrays, arguments that are left out, ``*args``, formats of C."""

import ctypes
import ctypes.util
import sys

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.print_formats import formatted


@pytest.fixture(params=["cpu", "python"])
def program(request):
    with qd.init(arch=request.param, default_fp=qd.f64, offline_cache=False) as program:
        yield program


def test_an_array_can_be_asked_for_by_type_and_axes_or_by_the_axes_of_its_elements(program):
    @qd.kernel
    def k(a: qd.types.ndarray[qd.f64, 1], v: qd.types.ndarray(element_dim=1), m: qd.types.ndarray(qd.f64, 1, element_dim=2)):
        for i in a:
            a[i] = v[i][1] + m[i][1, 0]

    rng = np.random.default_rng()
    a, v, m = qd.ndarray(qd.f64, 4), qd.Vector.ndarray(3, qd.f64, 4), rng.normal(size=(4, 2, 2))
    v.from_numpy(rng.normal(size=(4, 3)))
    k(a, v, m)
    assert (a.to_numpy() == v.to_numpy()[:, 1] + m[:, 1, 0]).all()
    for given, said in (
        ((v, v, m), r"argument `a`: expected element shape \(\), got \(3,\)"),
        ((a, a, m), "argument `v`: expected element_dim 1, got 0"),
        ((a, v, np.zeros(4)), r"argument `m`: expected element_dim 2, got an array of shape \(4,\)"),
        ((a, v, np.zeros((4, 2, 2), np.float32)), "argument `m`: expected dtype f64, got f32"),
    ):
        with pytest.raises(qd.QdrunTypeError, match=f"kernel `k`, {said}"):
            k(*given)


def test_none_for_a_tensor_is_known_at_compile_time(program):
    @qd.kernel
    def k(a: qd.Tensor, b: qd.Tensor):
        for i in a:
            if qd.static(b is not None):
                a[i] = 2 * b[i]
            else:
                a[i] = 3.0

    a, b = qd.tensor(qd.f64, 4), qd.field(qd.f64, 4)
    b.fill(4.0)
    for given, wanted in ((None, 3.0), (b, 8.0), (None, 3.0)):
        k(a, given)
        assert a.to_numpy().tolist() == [wanted] * 4
    with pytest.raises(qd.QdrunTypeError, match=r"argument `a`: expected a tensor, .* got int"):
        k(3, None)


def test_ndrange_without_axes_has_one_empty_index(program):
    x = qd.field(qd.i32, ())

    @qd.kernel
    def k():
        for I in qd.grouped(qd.ndrange()):
            x[I] += 1
        for I in qd.static(qd.grouped(qd.ndrange())):
            x[I] += 10
        for _ in range(3):
            for I in qd.grouped(qd.ndrange()):
                x[I] += 100

    k()
    assert x[None] == 311 and list(qd.ndrange()) == [()]

    @qd.kernel
    def one_name():
        for i in qd.ndrange():
            x[None] = i

    with pytest.raises(qd.QdrunTypeError, match=r"(?s)needs at least one axis.*test_peer_forms.py:\d+.*loop over grouped"):
        one_name()


@qd.func
def total(first, *rest, scale=1.0):
    s = first
    for a in qd.static(rest):
        s += a
    return s * scale + len(rest)


@qd.func
def forward(*args):
    return total(*args, scale=2.0)


@qd.func
def whole(*args: qd.i32):
    return args[0] + args[1]


@qd.func
def difference(a, b):
    return a - b


@qd.func
def add_to(a: qd.template(), b, *args):
    a += b + args[0]


@qd.func
def scaled(*args):
    for i in args[0]:
        args[1][i] = args[0][i] ** 2 * args[2]


def test_a_func_takes_any_number_of_arguments(program):
    @qd.kernel
    def k(a: qd.f64, b: qd.f64) -> qd.types.vector(5, qd.f64):
        v = qd.Vector([a, b])
        q = a
        r = forward(q, b, q * b)
        q = 0.0
        add_to(q, *v)
        return qd.Vector([r, total(b), difference(*v), q, whole(a, b)])

    a, b = np.random.default_rng().uniform(1, 9, 2).tolist()
    wanted = [2 * (a + b + a * b) + 2, b, a - b, a + b, int(a) + int(b)]
    assert k(a, b).to_list() == pytest.approx(wanted, rel=1e-15)


def test_fields_among_any_number_of_arguments_have_gradients(program):
    x, y = (qd.field(qd.f64, 4, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(a: qd.f64):
        scaled(x, y, a)

    given, seed = np.random.default_rng().normal(size=(2, 4))
    x.from_numpy(given)
    k(3.0)
    y.grad.from_numpy(seed)
    k.grad(3.0)
    np.testing.assert_allclose(y.to_numpy(), 3 * given**2, rtol=1e-15)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * given * seed, rtol=1e-15)


@qd.func
def named(**options):
    return 1.0


@qd.func
def assigned(*args):
    args = 3.0
    return args


def test_what_is_wrong_with_any_number_of_arguments_is_said_with_its_line(program):
    def of_a_number() -> qd.f64:
        return total(*3.0)

    def of_options() -> qd.f64:
        return named(a=1)

    def too_many() -> qd.f64:
        return difference(*qd.Vector([1.0, 2.0, 3.0]))

    def to_the_rest() -> qd.f64:
        return assigned(1.0)

    def too_few() -> qd.f64:
        return total()

    for wrong, said in (
        (of_a_number, r"`\*` takes a list, a tuple or a vector, not a Python float"),
        (of_options, r"`named` has a `\*\*` parameter"),
        (too_many, "`difference` takes 2 arguments, not 3"),
        (to_the_rest, "`args` is the rest of the arguments and cannot be assigned"),
        (too_few, "`total` is missing the argument `first`"),
    ):
        with pytest.raises(qd.QdrunCompilationError, match=rf"(?s){said}.*test_peer_forms.py:\d+ in kernel `{wrong.__name__}`"):
            qd.kernel(wrong)()


# ---- functions for the top level of a kernel


@qd.func(requires_top_level=True)
def bump(x: qd.template(), by):
    for i in x:
        x[i] += by


@qd.func
def bump_twice(x: qd.template(), by):
    bump(x, by)
    bump(x, by)


class Bumper:
    @qd.func(requires_top_level=True)
    def bump(self, x: qd.template()):
        for i in x:
            x[i] += 1


def test_a_function_that_requires_the_top_level_is_refused_anywhere_else(program):
    x = qd.field(qd.i32, 4)
    bumper = Bumper()

    @qd.kernel
    def right(n: qd.i32):
        bump(x, n)
        bump_twice(x, 2 * n)
        for _ in qd.static(range(2)):
            bump(x, 100)
        if qd.static(x.shape[0] == 4):
            bumper.bump(x)

    right(3)
    assert x.to_numpy().tolist() == [3 + 12 + 200 + 1] * 4

    def in_a_loop(n: qd.i32):
        for _ in range(n):
            bump(x, n)

    def in_a_branch(n: qd.i32):
        if n > 2:
            bump_twice(x, n)

    def in_a_while(n: qd.i32):
        while n < 0:
            bumper.bump(x)

    def in_an_expression(n: qd.i32):
        _ = bump(x, n)

    for wrong in (in_a_loop, in_a_branch, in_a_while, in_an_expression):
        said = rf"(?s)`bump` has requires_top_level=True and is called inside a loop.*test_peer_forms.py:\d+ in kernel `{wrong.__name__}`"
        with pytest.raises(qd.QdrunSyntaxError, match=said):
            qd.kernel(wrong)(3)


# ---- print

LIBC = ctypes.util.find_library("c")  # which starts a process


def of_libc(spec, value):
    buffer = ctypes.create_string_buffer(500)
    real = isinstance(value, float)
    kind = spec[-1]
    ctypes.CDLL(LIBC).snprintf(
        buffer,
        500,
        f"{spec if real else f'{spec[:-1]}ll{kind}'}".encode(),
        (ctypes.c_double if real else ctypes.c_longlong)(value),
    )
    return buffer.value.decode()


@pytest.mark.skipif(LIBC is None or sys.platform != "linux", reason="compares with glibc")
def test_c_formats_are_those_of_the_c_library():
    rng = np.random.default_rng()
    reals = [
        0.0,
        -0.0,
        1.0,
        2.5,
        1.96875,
        np.inf,
        -np.inf,
        5e-324,
        2.2e-308,
        *(rng.normal(size=20) * 10.0 ** rng.integers(-300, 300, 20)),
    ]
    for _ in range(400):
        flags = "".join(rng.permutation(list("-+ #0"))[: rng.integers(0, 4)])
        width, precision = rng.choice(["", "3", "12", "30"]), rng.choice(["", ".0", ".1", ".5", ".12", ".13", ".16"])
        for kind, value in [(k, float(rng.choice(reals))) for k in "eEfFgGaA"] + [
            (k, int(rng.integers(0, 2**40))) for k in "dxX"
        ]:
            spec = f"%{flags}{width}{precision}{kind}"
            if abs(value) < 2.3e-308 and value and kind in "aA" and precision:
                continue  # glibc normalises subnormal numbers when it rounds them
            assert formatted(value, spec) == of_libc(spec, value), (spec, value)


def test_print_takes_formats_of_c_and_of_python(program, capfd):
    @qd.kernel
    def k(n: qd.i32, x: qd.f64):
        print(f"{n:-6d}|{n:<6d}|{n:6lld}|{n:.4d}|{n:- #06x}|{n:u}|{x:a}|{x:A}|{x:-12.1e}|{x:+10.2f}|{x:.1lf}")
        print("%-6d|%.2a|%5s|%-5s|%x" % (n, x, n, n, n))  # noqa: UP031
        print("{:-6d}|{:a}".format(n, x))  # noqa: UP032, PLE1300
        print(f"{3:-4d}|")

    k(42, 2.5)
    qd.sync()
    assert capfd.readouterr().out.splitlines() == [
        "42    |42    |    42|0042|0x2a  |42|0x1.4p+1|0X1.4P+1|2.5e+00     |     +2.50|2.5",
        "42    |0x1.40p+1|   42|42   |2a",
        "42    |0x1.4p+1",
        "3   |",
    ]

    @qd.kernel
    def of_a_real(x: qd.f64):
        print(f"{x:-5d}")

    with pytest.raises(
        qd.QdrunSyntaxError, match=r"(?s)the format '%-5d' does not fit: .*test_peer_forms.py:\d+ in kernel `of_a_real`"
    ):
        of_a_real(1.0)


def test_an_assert_takes_formats_of_c():
    with qd.init(debug=True, offline_cache=False):

        @qd.kernel
        def k(n: qd.i32):
            assert n < 3, f"n is {n:-4d}| {{so}}"

        with pytest.raises(qd.QdrunAssertionError, match=r"n is 7   \| \{so\}"):
            k(7)
            qd.sync()


# ---- references and reads of memory


@qd.func
def set_to_five(a: qd.ref(qd.i32)):
    a = 5  # noqa: F841


def test_a_reference_has_the_type_of_its_annotation(program):
    n = qd.field(qd.i32, 2)

    @qd.kernel
    def k() -> qd.i32:
        b = 1
        set_to_five(b)
        set_to_five(n[1])
        return b

    assert k() == 5 and n.to_numpy().tolist() == [0, 5]

    @qd.kernel
    def wrong():
        b = 1.0
        set_to_five(b)

    with pytest.raises(
        qd.QdrunTypeError, match=r"(?s)`a` of `set_to_five` is a reference to i32, and a number of type f64.*`wrong`"
    ):
        wrong()


def test_a_volatile_load_reads_every_bit_and_changes_none(program):
    x, n, v = qd.field(qd.f64, 2), qd.field(qd.i32, 2), qd.Vector.field(2, qd.f64, 2)

    @qd.kernel
    def k() -> qd.types.vector(4, qd.f64):
        a, b, c = qd.volatile_load(x[1]), qd.volatile_load(n[0]), qd.volatile_load(v[1])
        return qd.Vector([a, b, c[0], qd.volatile_load(v[1].y)])

    x[1], n[0], v[1] = -0.0, 7, [1.0, 2.0]
    got = k().to_numpy()
    assert got.tolist() == [0.0, 7.0, 1.0, 2.0] and np.signbit(got[0]) and np.signbit(x[1])

    @qd.kernel
    def wrong():
        b = 1
        qd.volatile_load(b)

    with pytest.raises(qd.QdrunTypeError, match=r"volatile_load\(\) needs"):
        wrong()


def test_vectors_are_cast_to_the_type_of_a_number_component_by_component(program):
    @qd.func
    def whole(v: qd.i32) -> qd.f64:
        return v

    @qd.kernel
    def k(x: qd.types.ndarray(), out: qd.types.ndarray()):
        for i in x:
            v: qd.i32 = x[i]
            m: qd.i32 = x[i].outer_product(x[i])
            out[i] = whole(x[i]) + 100 * v + 10000 * m[0, 1]

    x, out = qd.Vector.ndarray(2, qd.f64, 5), qd.Vector.ndarray(2, qd.f64, 5)
    values = np.random.default_rng().uniform(-4, 4, (5, 2))
    x.from_numpy(values)
    k(x, out)
    whole_ = np.trunc(values)
    assert (out.to_numpy() == 101 * whole_ + 10000 * np.trunc(values[:, :1] * values[:, 1:])).all()

    @qd.kernel
    def of_struct():
        s = qd.Struct(a=1.0)
        n: qd.f64 = s
        print(n)

    with pytest.raises(qd.QdrunTypeError, match="is not a number of type f64"):
        of_struct()


def test_element_shape_is_an_attribute_and_a_function_in_kernels(program):
    @qd.func
    def code(x):
        out = 0
        if qd.static(x.element_shape() == []):
            out = 1
        elif qd.static(len(x.element_shape()) == 1):
            out = 10 + x.element_shape()[0]
        else:
            out = 100 + 10 * x.element_shape[0] + x.element_shape()[1]
        return out

    @qd.kernel
    def k(a: qd.types.ndarray(), v: qd.types.ndarray(), m: qd.template()) -> qd.types.vector(3, qd.i32):
        return qd.Vector([code(a), code(v), code(m)])

    made = qd.ndarray(qd.f64, 2), qd.Vector.ndarray(3, qd.f64, 2), qd.Matrix.field(2, 4, qd.f64, 2)
    assert list(k(*made)) == [1, 13, 124]
