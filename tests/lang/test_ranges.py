"""Numbers of the source, and numbers that Python writes, which their type cannot hold: refused as such arguments are."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest

import qdrun as qd

INTEGERS = [qd.i8, qd.u8, qd.i16, qd.u16, qd.i32, qd.u32, qd.i64, qd.u64]
WIDE = [t for t in INTEGERS if t.bits < 64]
numbers = itertools.count()


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu) as p:
        yield p


def limits(t):
    info = np.iinfo(t.numpy)
    return int(info.min), int(info.max)


@pytest.fixture
def kernel(tmp_path):
    def make(body, returns="qd.i64", **names):
        """A kernel from its text, with these global names."""
        path = tmp_path / f"ranges_{next(numbers)}.py"
        lines = "".join(f"    {line}\n" for line in body.split("\n"))
        path.write_text(f"import qdrun as qd\n\n@qd.kernel\ndef k() -> {returns}:\n{lines}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        vars(module).update(names)
        return module.k

    return make


# with {v} a number and {t} its type; each gives the number
FORMS = {
    "call": "return qd.u64({t}({v})) if {unsigned} else qd.i64({t}({v}))",
    "annotation": "a: {t} = {v}\nreturn a",
    "annotation of a real": "a: {t} = {v}.0\nreturn a",
    "second assignment": "a = {t}(1)\na = {v}\nreturn a",
    "element": "x[0] = {v}\nreturn x[0]",
    "component": "y[0][1] = {v}\nreturn y[0][1]",
    "member": "s = S(a={v})\nreturn s.a",
    "vector": "v = qd.Vector([{v}, 1], {t})\nreturn v[0]",
    "vector type": "v = qd.types.vector(2, {t})({v})\nreturn v[1]",
    "global name": "return {t}(V)",
    "exchange": "qd.atomic_exchange(x[0], {v})\nreturn x[0]",
    "maximum": "x[0] = {low}\nqd.atomic_max(x[0], {v})\nreturn x[0]",
    "selection": "a = {t}(1)\nreturn {t}({v}) if a > 5 else {t}({v})",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_literal_fits_its_type_or_is_refused(kernel, form):
    for t in INTEGERS if form == "call" else (qd.i8, qd.u16, qd.i32, qd.u32):
        low, high = limits(t)
        x, y = qd.field(t, shape=1), qd.Vector.field(2, t, shape=1)
        form_of_struct = qd.types.struct(a=t)
        for value in (low, high, low - 1, high + 1):
            if abs(value) >> 63 and (form == "annotation of a real" or value < 0):
                continue
            text = FORMS[form].format(v=value, t=f"qd.{t}", low=low, unsigned=t.kind == "u")
            returns = "qd.u64" if t.kind == "u" else "qd.i64"
            k = kernel(text, returns, x=x, y=y, S=form_of_struct, V=value)
            if low <= value <= high:
                assert k() == value, (t, value)
            elif abs(value) >> 64:
                with pytest.raises(qd.QdrunTypeError, match="more than 64 bits"):
                    k()
            else:
                with pytest.raises(
                    qd.QdrunFitError, match=rf"the literal {value}(\.0)? does not fit {t} \({low} to {high}\)"
                ) as e:
                    k()
                assert (
                    f"do: write a number that fits, or give it a wider type; to have it wrap or saturate, write qd.cast({value}"
                    in str(e.value)
                )
                assert isinstance(e.value, (ValueError, TypeError)) and "in kernel `k`" in str(e.value)


def test_an_explicit_cast_wraps_and_saturates_as_values_do(kernel):
    assert kernel("return qd.cast(300, qd.i8)")() == 44
    assert kernel("return qd.cast(-1, qd.u8)")() == 255
    assert kernel("return qd.cast(1e10, qd.i32)")() == 2**31 - 1
    assert kernel("return qd.Vector([300, 1]).cast(qd.u8)[0]")() == 44


def test_a_literal_beyond_the_default_type_is_wider():
    @qd.kernel
    def k() -> qd.i64:
        a = 3000000000
        return a * 2 + (2000000000 * 2)

    assert k() == 10_000_000_000


@pytest.mark.parametrize(
    "text", ["u > -1", "u == -1", "-1 < u", "qd.max(u, -1)", "u // -1", "u % -1", "qd.select(u > 5, u, -1)"]
)
def test_a_negative_number_beside_an_unsigned_one_is_refused_where_it_would_wrap(kernel, text):
    with pytest.raises(qd.QdrunFitError, match="the literal -1 does not fit u32"):
        kernel(f"u = qd.u32(3)\nreturn {text}")()


@pytest.mark.parametrize("text", ["u + -1", "-1 + u", "u * -1", "u & -1", "u | -1", "u ^ -1", "u - -1"])
def test_a_negative_number_is_taken_modulo_the_size_where_that_is_the_same(kernel, text):
    u = int(np.random.default_rng().integers(1 << 32))
    assert kernel(f"u = qd.cast({u}, qd.u32)\nreturn {text}", "qd.u32")() == eval(text) % 2**32


def test_atomic_sums_take_negative_numbers_for_unsigned_elements():
    x = qd.field(qd.u32, shape=2)
    x.fill(7)

    @qd.kernel
    def k():
        for i in x:
            x[i] += -2
            x[i] -= 1

    k()
    assert x.to_numpy().tolist() == [4, 4]


@pytest.mark.parametrize("t", [*WIDE, qd.i64])
def test_shifts_by_literals_stay_within_the_type(kernel, t):
    for op, count in itertools.product(("<<", ">>"), (-1, t.bits, 200)):
        with pytest.raises(
            qd.QdrunFitError, match=rf"a shift by {count} leaves the {t.bits} bits of {t}\n(.|\n)*do: shift by 0 to"
        ):
            kernel(f"a = qd.{t}(1)\nreturn a {op} {count}")()
    assert kernel(f"a = qd.{t}(1)\nreturn (a << {t.bits - 2}) >> {t.bits - 2}")() == 1
    assert kernel("return 1 << 40")() == 1 << 40  # Python evaluates expressions of literals


def test_real_literals_are_rounded_as_arguments_are(kernel):
    @qd.kernel
    def argument(a: qd.f32) -> qd.f32:
        return a

    assert kernel("return qd.f32(1e300)", "qd.f32")() == argument(1e300) == float("inf")
    assert kernel("return qd.f16(70000.0)", "qd.f16")() == float("inf")


# ---- from Python
def made(t, kind):
    return qd.field(t, shape=3) if kind == "field" else qd.ndarray(t, 3)


WRITES = {
    "element": lambda x, v: x.__setitem__(1, v),
    "numpy element": lambda x, v: x.__setitem__(1, np.int64(v) if v < 2**63 else np.uint64(v)),
    "fill": lambda x, v: x.fill(v),
    "array": lambda x, v: x.from_numpy(np.array([1, v, 2])),
    "list": lambda x, v: x.from_numpy([1, v, 2]),
    "objects": lambda x, v: x.from_numpy(np.array([1, v, 2], object)),
}


@pytest.mark.parametrize("kind", ["field", "ndarray"])
@pytest.mark.parametrize("write", WRITES)
def test_python_writes_numbers_that_fit_or_is_refused(write, kind):
    for t in INTEGERS:
        low, high = limits(t)
        x = made(t, kind)
        for value in (low, high, low - 1, high + 1):
            if write == "numpy element" and not -(2**63) <= value < 2**64:
                continue
            if write == "array" and value >= 2**63:
                continue  # numpy makes reals of it
            x.fill(5)
            if low <= value <= high:
                WRITES[write](x, value)
                assert x.to_numpy()[1] == value
            else:
                with pytest.raises(qd.QdrunFitError, match=rf"{value}( at index \(1,\))? does not fit {t} \({low} to {high}\)"):
                    WRITES[write](x, value)
                assert x.to_numpy().tolist() == [5, 5, 5]


def test_reals_lose_their_fraction_and_must_be_in_range():
    x = qd.field(qd.i8, shape=3)
    x.from_numpy(np.array([1.7, -1.7, 127.9]))
    assert x.to_numpy().tolist() == [1, -1, 127]
    for bad in (128.0, -129.0, float("nan"), float("inf"), 1e30):
        with pytest.raises(qd.QdrunFitError, match="does not fit i8"):
            x.from_numpy(np.array([0.0, bad, 0.0]))
        with pytest.raises(qd.QdrunFitError, match="does not fit i8"):
            x[0] = bad


def test_vectors_structs_and_their_components():
    v, s = qd.Vector.field(2, qd.i8, shape=2), qd.types.struct(a=qd.i8, b=qd.f32).field(shape=2)
    for write in (
        lambda: v.__setitem__(0, [300, 1]),
        lambda: v[0].__setitem__(0, 300),
        lambda: setattr(v[0], "x", 300),
        lambda: v[0].fill(300),
        lambda: v.fill(300),
        lambda: setattr(s[0], "a", 300),
        lambda: s.a.fill(-129),
        lambda: qd.Vector([300, 1], dt=qd.i8),
        lambda: qd.Matrix([[-1]], dt=qd.u8),
        lambda: qd.types.vector(2, qd.u8)(256, 1),
    ):
        with pytest.raises(qd.QdrunFitError, match=r"does not fit [iu]8"):
            write()
    big = qd.Vector.field(2, qd.u64, shape=1)
    big[0] = [2**64 - 1, 5]
    assert big.to_numpy().tolist() == [[2**64 - 1, 5]]


def test_shapes_that_do_not_fit_are_value_errors_and_type_errors():
    x, v = qd.field(qd.f32, shape=8), qd.Vector.field(2, qd.f32, shape=2)
    for call in (
        lambda: x.from_numpy(np.zeros((2, 3), np.float32)),
        lambda: v.fill([1, 2, 3]),
        lambda: v.__setitem__(0, [1, 2, 3]),
        lambda: qd.Vector([[1, 2], [3]]),
        lambda: x.copy_from(qd.field(qd.f32, shape=7)),
        lambda: qd.ndarray(qd.f32, 3).from_numpy(np.zeros(4)),
        lambda: qd.ndarray(qd.f32, 3).copy_from(qd.ndarray(qd.f32, 4)),
    ):
        for kind in (ValueError, TypeError, qd.QdrunValueError, qd.QdrunTypeError):
            with pytest.raises(kind):
                call()
