# ruff: noqa: B007, B020, F841, PLR1704
"""Small forms of the language: ``x.fill`` in kernels, numbers of numpy from around a kernel, types as wide as the default, many axes."""

import importlib
import sys

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir import process


@pytest.fixture(params=[qd.i32, qd.i64], ids=str)
def program(request):
    with qd.init(default_fp=qd.f64, default_ip=request.param, offline_cache=False) as program:
        yield program


def test_fill_in_a_kernel_writes_every_element(program):
    x, n = qd.field(qd.f64, shape=(3, 2), offset=(-1, 4)), qd.field(qd.i32, shape=())
    v, m = qd.Vector.field(2, qd.f64, shape=3), qd.Matrix.field(2, 2, qd.f64, shape=())
    array = qd.ndarray(qd.f64, (2, 3))
    s = qd.types.struct(a=qd.f64, b=qd.i32).field(shape=2)

    @qd.kernel
    def k(a: qd.types.ndarray(), t: qd.template(), value: qd.f64):
        x.fill(value)
        n.fill(7)
        v.fill(qd.Vector([value, 2.0]))
        m.fill(val=value * 2)
        a.fill(value + 1)
        s.a.fill(value)
        for i in range(2):
            if i == 1:
                t.fill(value - 1)

    t = qd.field(qd.f64, shape=5)
    k(array, t, 3.5)
    assert (x.to_numpy() == 3.5).all() and n[None] == 7 and (v.to_numpy() == [3.5, 2.0]).all() and (m.to_numpy() == 7.0).all()
    assert (array.to_numpy() == 4.5).all() and s.to_numpy()["a"].tolist() == [3.5, 3.5] and (t.to_numpy() == 2.5).all()

    @qd.kernel
    def record():
        s.fill(1.0)

    with pytest.raises(qd.QdrunNameError, match=r"(?s)no member `fill`.*fill them one by one: s\.a\.fill"):
        record()


def test_the_gradient_of_a_filled_field_is_the_sum_over_its_elements():
    with qd.init(default_fp=qd.f64, offline_cache=False):
        x, y = qd.field(qd.f64, shape=4, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k():
            x.fill(y[None] ** 2)

        y[None] = 1.5
        k()
        x.grad.from_numpy(np.array([1.0, 2.0, 3.0, 4.0]))
        k.grad()
        assert x.to_numpy().tolist() == [2.25] * 4 and y.grad[None] == 10 * 2 * 1.5


@pytest.mark.parametrize("seed", range(2))
def test_arrays_of_numpy_without_axes_are_numbers(program, seed):
    rng = np.random.default_rng(seed)
    real, whole, yes = np.array(rng.uniform(1, 2)), np.array(int(rng.integers(1, 4))), np.array(True)
    listed, three = [real, whole], np.int64(3)
    x = qd.field(qd.f64, shape=4)
    given = rng.uniform(0, 1, 4)
    x.from_numpy(given)

    @qd.func
    def twice(v):
        return v * 2

    @qd.kernel
    def k(t: qd.template(), p: qd.f64) -> qd.f64:
        v = qd.Vector([real, whole])
        y = real
        for i in range(whole):
            y += i
        for _ in qd.static(range(whole)):
            y += 10.0
        for _ in qd.static(range(three)):
            y += 100.0
        for _, _ in qd.ndrange(whole, three):
            y += 1000.0
        if yes and real > 0.5:
            y += 0.25
        return y + real * x[whole] + v[0] * v[1] + qd.sin(real) + twice(real) + listed[1] + t + p + qd.f64(whole) + (-real) ** 2

    r, w = real.item(), whole.item()
    want = r + sum(range(w)) + 10 * w + 300 + 3000 * w + 0.25 + r * given[w] + r * w + np.sin(r) + 2 * r + w + r + r + w + r * r
    assert k(real, real) == pytest.approx(want, rel=1e-14)


def test_unsigned_vectors_are_as_wide_as_the_default_integer(program):
    wide = program.options.default_ip is qd.i64
    most = 2**64 - 1 if wide else 2**32 - 1
    assert qd.math.uvec2(most).dtype is (qd.u64 if wide else qd.u32) and qd.math.uvec2(most).x == most
    field = qd.math.uvec3.field(shape=1)

    @qd.kernel
    def k(p: qd.math.uvec2, big: qd.u64) -> qd.u64:
        v = qd.math.uvec2(big)
        field[0] = qd.math.uvec3(p, 1)
        return qd.u64(v.x)

    assert k(qd.math.uvec2(most, 5), 2**63 - 1) == (2**63 - 1) & most
    assert field[0].to_list() == [most, 5, 1] and field.dtype is (qd.u64 if wide else qd.u32)


def test_more_than_eight_axes_can_have_an_order(program):
    n = 10
    shape, reverse = (2,) * n, tuple(reversed(range(n)))
    made = {
        "field": qd.field(qd.f64, shape, order="ijklmnopqr"[::-1]),
        "tensor": qd.tensor(qd.f64, shape, layout=reverse, backend=qd.Backend.FIELD),
        "array": qd.tensor(qd.f64, shape, layout=reverse),
    }
    data = np.random.default_rng(0).uniform(size=shape)
    for name, x in made.items():
        x.from_numpy(data)
        assert x.layout == reverse and x[(1, 0) * 5] == data[(1, 0) * 5] and np.array_equal(x.to_numpy(), data), name
    level = qd.root
    for axis in range(20):
        level = level.dense(qd.axes(axis), 1)
    x = qd.field(qd.f64)
    level.place(x)
    x[(0,) * 20] = 4.0
    assert (
        x.shape == (1,) * 20 and x[(0,) * 20] == 4.0 and repr(qd.axes(19)) == "qd.axes(19,)" and repr(qd.axes(8, 9)) == "qd.qr"
    )


@pytest.mark.parametrize(
    ("shape", "order", "do"),
    [((2, 3), True, "order='ij'"), ((2, 3), 3, "order='ij'"), ((2, 3), "ii", "order='ij'"), ((1,) * 20, "ij", "layout=")],
)
def test_an_order_that_does_not_name_the_axes_is_refused(program, shape, order, do):
    with pytest.raises(qd.QdrunRuntimeError, match=f"order={order!r} does not name the axes of shape (.|\n)*do: {do}"):
        qd.field(qd.f64, shape, order)


def test_items_of_a_list_of_numbers_can_be_assigned_and_an_array_of_numpy_is_spread(program):
    extents = np.array([2, 3])
    out = qd.field(qd.i32, shape=6)

    @qd.kernel
    def k():
        for i, j in qd.ndrange(*(extents - 0)):
            items = [(i + 1) * (n + 1) for n in range(3)]
            if j > 0:
                kept = items[0]
                items[0] = items[2]
                items[2] = kept
            out[i * 3 + j] = 100 * items[0] + items[2]

    k()
    assert out.to_numpy().tolist() == [103, 301, 301, 206, 602, 602]


i = 10


def index_of_a_loop(program):
    @qd.func
    def last(n):
        for i in range(n):
            pass
        return i

    @qd.kernel
    def k() -> qd.i32:
        return last(3)

    k()


def variable_before(program):
    @qd.kernel
    def k() -> qd.i32:
        i = 10
        for i in range(3):
            pass
        i += 1
        return i

    k()


def argument(program):
    @qd.kernel
    def k(i: qd.i32) -> qd.i32:
        for i in qd.static(range(3)):
            pass
        return i

    k(10)


def read_in_the_next_round(program):
    @qd.kernel
    def k() -> qd.i32:
        i, s = 0, 0
        for t in range(2):
            s += i
            for i in range(3):
                s += 1
        return s

    k()


def assigned_in_a_branch(program):
    @qd.kernel
    def k(a: qd.i32) -> qd.i32:
        i = 0
        for i in range(3):
            pass
        if a > 0:
            i = 5
        return i

    k(1)


@pytest.mark.parametrize(
    "read", [index_of_a_loop, variable_before, argument, read_in_the_next_round, assigned_in_a_branch], ids=lambda f: f.__name__
)
def test_an_index_is_not_read_after_its_loop_as_a_variable_or_a_global(program, read):
    with pytest.raises(qd.QdrunNameError, match="the index ends with its loop: keep the last one in a variable") as e:
        read(program)
    assert e.value.loc is not None and "`i`" in e.value.what


def test_names_of_indices_can_be_used_again(program):
    @qd.kernel
    def k(n: qd.i32) -> qd.i32:
        i, s = 0, 0
        for _ in range(2):
            for _ in range(3):
                s += 1
        while i < 4:
            i += 1
        for i in range(3):
            s += i
        i = 100
        for n in range(n):
            s += n
        return s + i

    assert k(3) == 6 + 3 + 100 + 3


def nested(tmp_path, monkeypatch, name, body):
    """The kernel ``k(a)`` of a file with this body."""
    (tmp_path / f"{name}.py").write_text(f"import qdrun as qd\n@qd.kernel\ndef k(a: qd.i32) -> qd.i32:\n{body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(name).k


def test_long_sums_and_long_chains_of_elif(program, tmp_path, monkeypatch):
    limit = sys.getrecursionlimit()
    chain = "    if a == 0:\n        return 0\n" + "".join(
        f"    elif a == {n}:\n        return {n * n}\n" for n in range(1, 250)
    )
    k = nested(tmp_path, monkeypatch, "chain", chain + "    return -1")
    assert k(7) == 49 and k(249) == 249**2 and k(1000) == -1
    assert nested(tmp_path, monkeypatch, "long_sum", "    return a" + " + 1" * 900)(3) == 903
    assert sys.getrecursionlimit() == limit


def test_a_kernel_that_nests_too_deeply_is_named(program, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "RECURSION_LIMIT", 0)
    k = nested(tmp_path, monkeypatch, "too_deep", "    return a" + " + 1" * 900)
    with pytest.raises(qd.QdrunSyntaxError, match="kernel `k` nests expressions, branches or calls too deeply") as e:
        k(3)
    assert "too_deep.py:3" in str(e.value) and "split long sums" in e.value.hint


def test_a_star_in_an_assignment_is_refused_by_name(program):
    @qd.kernel
    def k() -> qd.i32:
        a, *b = 1, 2, 3
        return a

    with pytest.raises(qd.QdrunSyntaxError, match=r"`\*` cannot stand for the rest of the names"):
        k()
