"""Small forms of the language: ``x.fill`` in kernels, numbers of numpy from around a kernel, types as wide as the default, many axes."""

import numpy as np
import pytest

import qdrun as qd


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
