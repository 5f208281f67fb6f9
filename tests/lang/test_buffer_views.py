"""``qd.BufferView``: parts of ndarrays as arguments, views within kernels, their gradients, and what is refused."""

import dataclasses
import operator

import numpy as np
import pytest

import qdrun as qd

F1 = qd.types.ndarray(qd.f64, ndim=1)


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


def array(n=10, grad=True):
    x = qd.ndarray(qd.f64, shape=n, needs_grad=grad)
    x.from_numpy(np.random.default_rng().uniform(0.5, 1.5, n))
    return x


@qd.kernel
def squares(v: qd.BufferView[qd.f64], w: qd.BufferView):
    for i in range(v.size):
        w[i] += v[i] ** 2


def test_slices_in_python():
    x = array()
    for part, offset, size in ((x[2:5], 2, 3), (x[:4], 0, 4), (x[-3:], 7, 3), (x[:], 0, 10), (x[6:2], 6, 0)):
        assert (part.offset, part.size, part.shape, len(part)) == (offset, size, (size,), size)
        assert part.arr is x and part.get_ndarray() is x and part.dtype is qd.f64 and part.grad.arr is x.grad
        np.testing.assert_array_equal(part.to_numpy(), x.to_numpy()[offset : offset + size])
    inner = x[2:8].subview(1, 3)
    assert (inner.offset, inner.size) == (3, 3) and repr(inner) == "<<ndarray f64, (10,)>[3:6]>"
    assert (x[2:8][2:].offset, x[2:8][2:].size) == (4, 4)
    made = qd.BufferView(x, offset=1, size=2)
    assert (made.offset, made.size) == (1, 2)
    tensor = qd.tensor(qd.f64, shape=6, backend=qd.Backend.NDARRAY)
    assert qd.BufferView(tensor, 1, 5).size == 5


def test_parts_of_arrays_are_arguments_and_have_gradients():
    x, y = array(), array()
    was, wanted = y.to_numpy(), y.to_numpy()
    squares(x[2:7], y[4:9])
    wanted[4:9] += x.to_numpy()[2:7] ** 2
    np.testing.assert_allclose(y.to_numpy(), wanted, rtol=1e-14)
    weights = np.random.default_rng().uniform(0.5, 1.5, 10)
    y.grad.from_numpy(weights)
    squares.grad(x[2:7], y[4:9])
    slope = np.zeros(10)
    slope[2:7] = 2 * x.to_numpy()[2:7] * weights[4:9]
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-14)
    squares(x, y[0:10])
    assert (y.to_numpy() > was).all()


def test_an_array_parameter_takes_a_part_and_members_of_dataclasses_do():
    @dataclasses.dataclass
    class Pair:
        a: qd.BufferView[qd.f64]
        b: qd.types.ndarray(qd.f64, ndim=1)

    @qd.kernel
    def swap(pair: Pair):
        for i in pair.a:
            pair.a[i], pair.b[i] = pair.b[i], pair.a[i]

    x = array()
    was = x.to_numpy()
    swap(Pair(x[0:3], x[5:8]))
    np.testing.assert_array_equal(x.to_numpy(), was[[5, 6, 7, 3, 4, 0, 1, 2, 8, 9]])


def test_parts_of_arrays_of_vectors():
    v = qd.Vector.ndarray(2, qd.f64, shape=6, needs_grad=True)
    data = np.random.default_rng().uniform(0.5, 1.5, (6, 2))
    v.from_numpy(data)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def total(p: qd.types.ndarray(qd.types.vector(2, qd.f64), ndim=1)):
        for i in range(p.size):
            loss[None] += p[i].dot(p[i]) * (i + 1)

    with qd.ad.Tape(loss=loss):
        total(v[1:4])
    weight = np.array([0, 1, 2, 3, 0, 0])[:, None]
    np.testing.assert_allclose(loss[None], (weight * data**2).sum(), rtol=1e-14)
    np.testing.assert_allclose(v.grad.to_numpy(), 2 * weight * data, rtol=1e-14)


@qd.func
def add_up(v: qd.BufferView[qd.f64], w: qd.BufferView):
    for i in range(v.shape[0]):
        w[i] = 3.0 * v[i]


def test_views_in_kernels_with_ends_of_the_run_and_their_gradients():
    @qd.kernel
    def parts(x: F1, out: F1, n: qd.i32):
        first = x[:n]
        rest = x[n:]
        add_up(first, out[:n])
        for i in range(rest.size):
            out[n + i] = rest[i] * rest[i]
        for _ in range(1):
            inner = rest[1:3].subview(1, 1)
            out[0] += inner[0] * qd.BufferView(first, offset=1, size=2)[1]

    x, out = array(), array()
    for n in (4, 6):
        x.grad.fill(0.0)
        parts(x, out, n)
        a = x.to_numpy()
        wanted = np.concatenate([3 * a[:n], a[n:] ** 2])
        wanted[0] += a[n + 2] * a[2]
        np.testing.assert_allclose(out.to_numpy(), wanted, rtol=1e-14)
        w = np.random.default_rng().uniform(0.5, 1.5, 10)
        out.grad.from_numpy(w)
        parts.grad(x, out, n)
        slope = np.concatenate([3 * w[:n], 2 * a[n:] * w[n:]])
        slope[n + 2] += w[0] * a[2]
        slope[2] += w[0] * a[n + 2]
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-14)


def test_a_view_of_a_field_and_ends_that_are_read_from_memory():
    x = qd.field(qd.f64, shape=8)
    ends = qd.field(qd.i32, shape=2)
    x.from_numpy(np.arange(8.0))
    ends.from_numpy(np.array([2, 6], np.int32))

    @qd.kernel
    def double():
        part = x[ends[0] : ends[1]]
        ends[0] = 0
        for i in part:
            part[i] *= 2.0
        part[0] += 100.0

    double()
    assert x.to_numpy().tolist() == [0, 1, 104, 6, 8, 10, 6, 7]


def test_a_tape_compares_parts():
    x, loss = array(), qd.field(qd.f64, shape=(), needs_grad=True)
    data = x.to_numpy()

    @qd.kernel
    def measure(v: qd.BufferView):
        for i in range(v.size):
            loss[None] += v[i] ** 2

    with qd.ad.Tape(loss=loss):
        squares(x[0:3], x[5:8])  # other elements of the same array
        measure(x[5:8])
    value = data[5:8] + data[:3] ** 2
    np.testing.assert_allclose(x.grad.to_numpy()[:8], [*(4 * value * data[:3]), 0, 0, *(2 * value)], rtol=1e-13)
    data = x.to_numpy()
    with qd.ad.Tape(loss=loss):
        squares(x[0:3], x[5:8])
        squares(x[5:8], x[1:4])  # overwrites what the first gradient reads
        measure(x[1:4])
    value, want = data[5:8] + data[:3] ** 2, np.zeros(data.size)
    last = 2 * (data[1:4] + value**2)
    want[1:4] += last
    want[5:8] += 2 * value * last
    want[:3] += 2 * data[:3] * 2 * value * last
    np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-13)


def test_versions_know_parts():
    with qd.init(default_fp=qd.f64, debug=True, offline_cache=False):
        x, y = array(), array()
        squares(x[0:3], y[0:3])
        squares(x[3:6], x[7:10])
        x[0] = x[0]
        with pytest.raises(qd.DataAccessError, match=r"Python at .*test_buffer_views.py"):
            squares.grad(x[0:3], y[0:3])
        squares(x[0:3], y[0:3])
        squares(x[5:8], x[2:5])
        with pytest.raises(qd.DataAccessError, match="the gradient of `squares` needs the value of `v`"):
            squares.grad(x[0:3], y[0:3])
        squares(x[0:3], y[0:3])
        squares(x[0:3], x[5:8])
        squares.grad(x[0:3], y[0:3])
        with pytest.raises(qd.DataAccessError, match="got one array as `w` and `v`"):
            squares.grad(x[0:3], x[2:5])


def test_an_index_outside_of_a_part_is_an_error_with_debug():
    with qd.init(default_fp=qd.f64, debug=True, offline_cache=False):
        x = array()

        @qd.kernel
        def read(v: qd.BufferView, k: qd.i32) -> qd.f64:
            return v[k]

        @qd.kernel
        def part(v: F1, begin: qd.i32, end: qd.i32, k: qd.i32) -> qd.f64:
            w = v[begin:end]
            return w[k]

        assert read(x[2:5], 2) == x[4] and part(x, 2, 5, 2) == x[4]
        for call, said in (
            (lambda: read(x[2:5], 3), "axis 0 of `v` has index 3 but extent 3"),
            (lambda: part(x, 2, 5, 3), "axis 0 of `v` has index 3 but extent 3"),
            (lambda: part(x, 2, 11, 0), "a view of `v` from 2 to below 11 does not lie in its extent 10"),
            (lambda: part(x, 5, 4, 0), "a view of `v` from 5 to below 4 does not lie in its extent 10"),
        ):
            with pytest.raises(qd.QdrunAssertionError, match=said):
                call()
                qd.sync()


def test_recorded_launches_take_parts(program):
    if not program.device.native:
        pytest.skip("no graphs")
    x, y = array(), array()
    squares(x[1:4], y[5:8])
    graph = qd.capture(lambda: squares(x[1:4], y[5:8]))
    y.fill(0.0)
    graph()
    graph()
    np.testing.assert_allclose(y.to_numpy()[5:8], 2 * x.to_numpy()[1:4] ** 2, rtol=1e-14)


def test_the_parts_of_a_batch():
    with qd.init(default_fp=qd.f64, batch=3):
        own, shared = qd.ndarray(qd.f64, shape=4), qd.ndarray(qd.f64, shape=4, per_trial=False)
        out = qd.field(qd.f64, shape=())
        shared.from_numpy(np.arange(4.0))

        @qd.kernel
        def total(v: qd.BufferView):
            for i in range(v.size):
                out[None] += v[i]

        total(shared[1:3])
        assert out.to_numpy().tolist() == [3.0] * 3
        with pytest.raises(qd.QdrunTypeError, match=r"each trial has its own array, which has no views(.|\n)*per_trial=False"):
            total(own[1:3])


def test_what_is_no_part_is_refused():
    x, wide = array(), qd.ndarray(qd.f64, shape=(2, 3))
    for make, error, said in (
        (lambda: x[::2], qd.QdrunValueError, "a view has no step, and the slice has 2\n  do: copy with numpy"),
        (
            lambda: qd.BufferView(x, 8, 3),
            qd.QdrunValueError,
            "the elements 8 to 11 are not in the ndarray .*, which has 10\n  do: ",
        ),
        (lambda: x[2:5].subview(1, 3), qd.QdrunValueError, "the elements 1 to 4 are not in the view"),
        (lambda: qd.BufferView(x, 0.5, 3), qd.QdrunTypeError, "the offset of a view is an integer, not 0.5\n  do: "),
        (lambda: qd.BufferView(x[1:3], 0, 1), qd.QdrunTypeError, "a view of a view is made by its method\n  do: "),
        (
            lambda: qd.BufferView(wide, 0, 1),
            qd.QdrunTypeError,
            r"a view is of an ndarray with one axis, not of shape \(2, 3\)\n  do: ",
        ),
        (lambda: qd.BufferView(np.zeros(3), 0, 1), qd.QdrunTypeError, "a view is of an ndarray, not of a ndarray\n  do: "),
        (lambda: x[2:5][0], qd.QdrunTypeError, r"a view has slices in Python, and no elements: \[0\]\n  do: "),
        (lambda: setattr(x[2:5], "size", 9), qd.QdrunTypeError, "a view does not change: `size` cannot be set\n  do: "),
        (
            lambda: operator.setitem(x[2:5], 0, 1.0),
            qd.QdrunTypeError,
            "Python does not write to a view\n  do: write to the ndarray",
        ),
        (lambda: x[2:5].fill(1.0), AttributeError, "a view has no `fill`\n  do: use that of the ndarray, view.arr.fill"),
        (lambda: wide[0:1], qd.QdrunIndexError, "takes 2 indices, not 1"),
        (lambda: qd.types.BufferViewType(qd.f32, "clamp"), qd.QdrunTypeError, r"`ndarray\(boundary=..\)` is not available"),
    ):
        with pytest.raises(error, match=said):
            make()

    @qd.kernel
    def strided(v: F1):
        w = v[0:4:2]
        w[0] = 1.0

    @qd.kernel
    def square(v: qd.types.ndarray(qd.f64, ndim=2)):
        w = v[0:1]
        w[0] = 1.0

    @qd.kernel
    def negative(v: F1):
        w = v[-2:3]
        w[0] = 1.0

    view = x[1:3]

    @qd.kernel
    def by_name():
        for i in range(2):
            view[i] = 1.0

    for call, said in (
        (lambda: strided(x), "a view of `v` has no step"),
        (lambda: square(wide), "a view has one axis, and `v` has 2 axes"),
        (lambda: negative(x), "a view of `v` does not lie in it"),
        (by_name, "BufferView"),
    ):
        with pytest.raises(qd.QdrunCompilationError, match=rf"(?s){said}.*test_buffer_views.py:\d+"):
            call()
    with pytest.raises(qd.QdrunTypeError, match="argument `v`: expected dtype f64, got f32"):
        squares(qd.ndarray(qd.f32, shape=4)[0:2], x[0:2])


def test_unpacked_vectors_of_a_dataclass_are_vectors_with_gradients():
    @qd.dataclass
    class Row:
        r: qd.types.vector(3, qd.f64, unpacked=True)
        m: qd.f64

    x, y = array(6), array(6)

    @qd.kernel
    def rows(v: F1, w: F1):
        for i in range(2):
            row = Row(r=qd.Vector([0.0, 0.0, 0.0]), m=2.0)
            for k in qd.static(range(3)):
                row.r[k] = v[3 * i + k] * row.m
            for k in range(3):
                w[3 * i + k] = row.r[k] * row.r[0]

    rows(x, y)
    a = x.to_numpy().reshape(2, 3)
    np.testing.assert_allclose(y.to_numpy(), (4 * a * a[:, :1]).ravel(), rtol=1e-14)
    w = np.random.default_rng().uniform(0.5, 1.5, (2, 3))
    y.grad.from_numpy(w.ravel())
    rows.grad(x, y)
    slope = 4 * w * a[:, :1]
    slope[:, 0] += 4 * (w * a).sum(axis=1)
    np.testing.assert_allclose(x.grad.to_numpy(), slope.ravel(), rtol=1e-14)


def test_native_launches_take_parts(program):
    """The same numbers when no call comes to Python: another part of the array, another array, the gradient, a batch's own arrays."""
    x, y = array(), array(grad=True)
    y.fill(0.0)
    squares(x, y)
    squares.grad(x, y)
    calls = [0]

    def counted(*args, **kwargs):
        calls[0] += 1
        raise AssertionError("a call came to Python")

    x.grad.fill(0.0)
    y.grad.fill(1.0)
    if program.device.native and program.native_launches.get(squares.token):
        slow, type(squares).slow_call = type(squares).slow_call, counted
        try:
            squares(x[2:5], y[0:3])
            squares(x[5:9], y[3:7])
        finally:
            type(squares).slow_call = slow
    else:
        squares(x[2:5], y[0:3])
        squares(x[5:9], y[3:7])
    a = x.to_numpy()
    wanted = a**2
    wanted[0:3] += a[2:5] ** 2
    wanted[3:7] += a[5:9] ** 2
    np.testing.assert_allclose(y.to_numpy(), wanted, rtol=1e-14)
    squares.grad(x[2:5], y[0:3])
    squares.grad(x[5:9], y[3:7])
    np.testing.assert_allclose(x.grad.to_numpy()[2:9], 2 * a[2:9], rtol=1e-14)
    assert calls == [0]


def test_objects_hold_parts_that_may_be_replaced():
    @qd.data_oriented
    class Holder:
        def __init__(self, x):
            self.x, self.v = x, x[0:3]
            self.both = [x[0:2], x[2:4]]

        @qd.kernel
        def double(self):
            for i in self.v:
                self.v[i] *= 2.0
            for k in qd.static(range(2)):
                for i in range(self.both[k].size):
                    self.both[k][i] += 10.0 * (k + 1)

        @qd.kernel
        def fill(self, value: qd.f64):
            for i in range(self.x.shape[0]):
                self.x[i] = value

    x, y = array(6), array(6)
    holder = Holder(x)
    holder.fill(1.0)
    holder.x = y
    holder.fill(1.0)
    for begin in range(4):  # an array becomes a part, and a part another one
        holder.x = None
        holder.x = y[begin : begin + 1]
        holder.fill(float(begin))
    assert y.to_numpy().tolist() == [0, 1, 2, 3, 1, 1]
    y.fill(1.0)
    holder.double()
    assert x.to_numpy().tolist() == [12, 12, 22, 21, 1, 1]
    for begin in (1, 2, 3):
        holder.v = y[begin : begin + 2]
        holder.both = [y[0:1], y[5:6]]
        holder.double()
    assert y.to_numpy().tolist() == [31, 2, 4, 4, 2, 61]
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def total(h: qd.template()):
        for i in h.v:
            loss[None] += h.v[i] ** 2

    with qd.ad.Tape(loss=loss):
        total(holder)
        holder.v = x[4:6]
        total(holder)
    np.testing.assert_allclose(y.grad.to_numpy(), [0, 0, 0, 8, 4, 0])
    np.testing.assert_allclose(x.grad.to_numpy(), [0, 0, 0, 0, 2, 2])
