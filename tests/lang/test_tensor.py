"""``qd.tensor``: one class over fields and ndarrays, in Python and as an argument of kernels."""

import copy
import pickle

import numpy as np
import pytest

import qdrun as qd

BACKENDS = [qd.Backend.FIELD, qd.Backend.NDARRAY]


@pytest.fixture(autouse=True)
def program():
    with qd.init(offline_cache=False, cpu_max_num_threads=1) as program:
        yield program


@pytest.fixture(params=BACKENDS, ids=["field", "ndarray"])
def backend(request):
    return request.param


@qd.kernel
def count_up(x: qd.Tensor):
    for i, j in x:
        x[i, j] = 10 * i + j


def test_a_kernel_takes_both_backends_numpy_and_what_they_wrap(backend):
    wanted = [[0, 1, 2], [10, 11, 12]]
    x = qd.tensor(qd.f32, (2, 3), backend=backend)
    bare = [qd.field(qd.f32, (2, 3)), qd.ndarray(qd.f32, (2, 3)), np.zeros((2, 3), np.float32), x._unwrap()]
    for each in [x, *bare, x]:
        count_up(each)
        assert np.asarray(each).tolist() == wanted
    assert isinstance(x, qd.Tensor) and not isinstance(bare[0], qd.Tensor) and isinstance(x.grad, (qd.Tensor, type(None)))


def test_what_is_no_tensor_is_refused_by_name():
    for value, name in ((3, "int"), ([1.0], "list")):
        with pytest.raises(qd.QdrunTypeError, match=f"`count_up`, argument `x`: expected a tensor, .*got {name}"):
            count_up(value)


def test_a_template_takes_both_backends(backend):
    @qd.kernel
    def add(x: qd.template(), y: qd.template()):
        for i in x:
            x[i] += y[i] * x.shape[0]

    x, y = (qd.tensor(qd.i32, 4, backend=backend) for _ in range(2))
    y.from_numpy(np.arange(4))
    add(x, y)
    add(x._unwrap(), y)
    assert x.to_numpy().tolist() == [0, 8, 16, 24]


def test_a_func_takes_a_tensor_by_its_annotation(backend):
    @qd.func
    def put(x: qd.Tensor, i: int, v: float):
        x[i] = v

    @qd.kernel
    def run(x: qd.Tensor):
        for i in range(x.shape[0]):
            put(x, i, i * 0.5)

    x = qd.tensor(float, 3, backend=backend)
    run(x)
    assert x.to_numpy().tolist() == [0, 0.5, 1]


def test_tensors_that_a_kernel_refers_to_by_name_and_as_members(backend):
    x = qd.tensor(qd.f32, (3,), backend=backend, needs_grad=True)

    @qd.data_oriented
    class Holder:
        def __init__(self):
            self.y = qd.tensor(qd.f32, (3,), backend=backend, layout=(0,))

        @qd.kernel
        def run(self):
            for i in x:
                self.y[i] = 2.0 * x[i] + 1.0
                x.grad[i] = 5.0

    holder = Holder()
    x.fill(4)
    holder.run()
    assert holder.y.to_numpy().tolist() == [9, 9, 9] and x.grad.to_numpy().tolist() == [5, 5, 5]
    x[1] = 0.0
    holder.run()
    assert holder.y[1] == 1.0


def test_an_ndarray_that_only_a_kernel_knows_keeps_its_memory():
    import gc

    def make():
        hidden = qd.ndarray(qd.f32, (1000,))
        hidden.fill(3)

        @qd.kernel
        def read(out: qd.types.ndarray()):
            for i in out:
                out[i] = hidden[i]

        read(np.zeros(1000, np.float32))
        return read

    read = make()
    gc.collect()
    rubbish = [qd.ndarray(qd.f32, (1000,)) for _ in range(20)]
    for r in rubbish:
        r.fill(-1)
    out = np.zeros(1000, np.float32)
    read(out)
    assert (out == 3).all()


def test_elements_fill_and_copy(backend):
    x, y = (qd.tensor(qd.f32, (2, 3), backend=backend) for _ in range(2))
    x[1, 2] = 7
    assert x[1, 2] == 7.0 and len(x) == 2 and x.shape == (2, 3) and x.dtype is qd.f32 and x.element_shape == ()
    y.copy_from(x)
    y.copy_from(x._unwrap())
    assert y.to_numpy()[1, 2] == 7
    y.fill(2)
    assert (y.to_numpy() == 2).all() and x.to_numpy(qd.i32).dtype == np.int32
    other = qd.tensor(qd.f32, (2, 3), backend=BACKENDS[1 - backend])
    with pytest.raises(qd.QdrunTypeError, match="copies from"):
        other.copy_from(x)
    with pytest.raises(qd.QdrunIndexError):
        x[2, 0]


def test_vectors_and_matrices(backend):
    @qd.kernel
    def fill(v: qd.Tensor, m: qd.Tensor):
        for i in v:
            v[i] = qd.Vector([i, i + 1.0, i + 2.0])
            m[i][0, 1] = v[i][2]

    v = qd.Vector.tensor(3, qd.f32, 4, backend=backend)
    m = qd.Matrix.tensor(2, 2, qd.f32, (4,), backend=backend, needs_grad=True)
    fill(v, m)
    assert v.to_numpy().tolist()[3] == [3, 4, 5] and m.to_numpy()[2].tolist() == [[0, 4], [0, 0]]
    assert v[1].to_list() == [1, 2, 3] and v.element_shape == (3,) and m.element_shape == (2, 2)
    assert isinstance(v, qd.VectorTensor) and isinstance(m, qd.MatrixTensor) and not isinstance(v, qd.MatrixTensor)
    assert m.has_grad() and m.grad.element_shape == (2, 2) and not v.has_grad()
    assert qd.tensor(qd.types.vector(2, qd.f64), 3, backend=backend).to_numpy().shape == (3, 2)


def test_gradients_are_tensors_and_the_same_ones_each_time(backend):
    x = qd.tensor(qd.f32, (4,), backend=backend, needs_grad=True)
    assert x.has_grad() and not x.has_dual() and x.grad is x.grad and isinstance(x.grad, qd.Tensor)
    plain = qd.tensor(qd.f32, (4,), backend=backend)
    assert not plain.has_grad() and qd.tensor(qd.i32, 4, backend=backend).grad is None
    if backend is qd.Backend.NDARRAY:
        assert plain.grad is None
    else:
        with pytest.raises(qd.QdrunRuntimeError, match="no memory"):
            plain.grad.to_numpy()


def test_wrapping_what_exists():
    a, f = qd.ndarray(qd.f32, (4, 5)), qd.Vector.field(3, qd.f32, 2)
    assert qd.wrap(a)._unwrap() is a and qd.wrap(f).backend is qd.Backend.FIELD and isinstance(qd.wrap(f), qd.VectorTensor)
    with pytest.raises(qd.QdrunTypeError, match="made around a field or an ndarray, not Tensor"):
        qd.Tensor(qd.wrap(a))
    assert repr(qd.wrap(a)) == "Tensor(shape=(4, 5), dtype=f32, backend=NDARRAY)"


@pytest.mark.parametrize(
    "kw, error, text",
    [
        ({"backend": 2}, ValueError, "backend=2 is not one of qd.Backend.FIELD, qd.Backend.NDARRAY"),
        ({"layout": (0, 1, 2)}, ValueError, "layout has 3 entries but shape has 2 dimensions"),
        ({"layout": (0, 0)}, ValueError, r"layout=\(0, 0\) is not a permutation of range\(2\)"),
        ({"layout": 1}, ValueError, "layout=1 is not a tuple of axes"),
        ({"order": "ji"}, TypeError, "does not accept order=.*use layout="),
        ({"offset": 1}, TypeError, "does not accept offset="),
    ],
)
def test_wrong_options_are_refused(kw, error, text):
    for make in (lambda **k: qd.tensor(qd.f32, (4, 5), **k), lambda **k: qd.Vector.tensor(3, qd.f32, (4, 5), **k)):
        with pytest.raises(error, match=f"(?s){text}"):
            make(**kw)


def test_a_tensor_of_a_tensor_is_refused(backend):
    with pytest.raises(TypeError, match=r"use qd.wrap\(x\)"):
        qd.tensor(qd.tensor(qd.f32, 3, backend=backend), 3)
    with pytest.raises(TypeError, match="needs_grad=True"):
        qd.tensor(qd.i32, 3, backend=backend, needs_grad=True)


@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_tensors_and_ndarrays_pickle_and_copy(backend, layout):
    x = qd.tensor(qd.f32, (3, 4), backend=backend, layout=layout, needs_grad=True)
    x.from_numpy(np.arange(12).reshape(3, 4))
    back = pickle.loads(pickle.dumps(x))
    assert back.shape == (3, 4) and back.layout == layout and back.backend is backend and back.has_grad()
    assert (back.to_numpy() == x.to_numpy()).all()
    v = qd.Vector.tensor(2, qd.i64, 3, backend=backend)
    v.fill(5)
    assert (pickle.loads(pickle.dumps(v)).to_numpy() == 5).all()
    a = qd.ndarray(qd.f32, (3, 4), layout=layout)
    a.from_numpy(x.to_numpy())
    for other in (pickle.loads(pickle.dumps(a)), copy.deepcopy(a)):
        assert other.layout == layout and (other.to_numpy() == a.to_numpy()).all() and other.address != a.address


def test_the_classes_of_the_peer():
    s, v, m = qd.field(qd.f32, 2), qd.Vector.field(2, qd.f32, 2), qd.Matrix.field(2, 3, qd.f32, 2)
    a, b, c = qd.ScalarNdarray(qd.f32, (2,)), qd.VectorNdarray(3, qd.f32, (2,)), qd.MatrixNdarray(2, 3, qd.f32, (2, 2))
    kinds = [qd.ScalarField, qd.MatrixField, qd.ScalarNdarray, qd.VectorNdarray, qd.MatrixNdarray, qd.Field, qd.Ndarray]
    found = [[k.__name__ for k in kinds if isinstance(x, k)] for x in (s, v, m, a, b, c, 3)]
    assert found == [
        ["ScalarField", "Field"],
        ["MatrixField", "Field"],
        ["MatrixField", "Field"],
        ["ScalarNdarray", "Ndarray"],
        ["VectorNdarray", "Ndarray"],
        ["MatrixNdarray", "Ndarray"],
        [],
    ]
    assert c.element_type.shape == (2, 3) and c.n == 2 and c.m == 3 and a.element_type is qd.f32 and a.arr is a.view
    assert m.n == 2 and m.m == 3 and v.element_shape == (2,) and m.element_type.shape == (2, 3)
    with pytest.raises(TypeError, match=r"make fields with qd.field"):
        qd.MatrixField(2, 2, qd.f32, 3)


def test_one_component_of_a_field_is_a_field_on_the_same_memory():
    m = qd.Matrix.field(2, 3, qd.f32, 4, needs_grad=True)
    c = m.get_scalar_field(1, 2)

    @qd.kernel
    def write(x: qd.template()):
        for i in x:
            x[i] = i + 1.0
            x.grad[i] = 2.0

    write(c)
    assert m.to_numpy()[:, 1, 2].tolist() == [1, 2, 3, 4] == c.to_numpy().tolist() and m.to_numpy().sum() == 10
    assert m.grad.to_numpy()[:, 1, 2].tolist() == [2] * 4 and c.shape == (4,) and c.parent() is m.parent()
    c[0] = 9.0
    assert m[0][1, 2] == 9 and isinstance(c, qd.ScalarField)
    with pytest.raises(qd.QdrunIndexError, match=r"no component \(2, 0\)"):
        m.get_scalar_field(2, 0)


def test_the_levels_above_a_field():
    x = qd.field(qd.f32)
    with pytest.raises(qd.QdrunRuntimeError, match="not placed"):
        x.parent()
    outer = qd.root.dense(qd.i, 4)
    inner = outer.dense(qd.j, 2)
    inner.place(x)
    assert x.parent() is inner and x.parent(2) is outer and x.parent(4) is None and x.shape == (4, 2)


def test_a_tensor_is_launched_natively(monkeypatch):
    """The native launcher takes a tensor on an ndarray; anything else goes through Python, which counts here."""
    calls = []

    @qd.kernel
    def put(x: qd.Tensor, s: qd.f32):
        x[0] = s

    x, rows = qd.tensor(qd.f32, 3), qd.tensor(qd.f32, 3, needs_grad=True)
    put(x, 1.0)
    slow = type(put)._launch
    monkeypatch.setattr(type(put), "_launch", lambda self, *args: calls.append(args) or slow(self, *args))
    for each in (x, x._unwrap(), np.zeros(3, np.float32)):
        put(each, 2.0)
    assert not calls and x[0] == 2.0
    put(rows, 3.0)
    put(qd.tensor(qd.f32, 3, backend=qd.Backend.FIELD), 3.0)
    assert len(calls) == 2 and rows[0] == 3.0


def test_a_tensor_of_a_closed_program_is_refused():
    @qd.kernel
    def put(x: qd.Tensor):
        x[0] = 1.0

    with qd.init(offline_cache=False):
        old = qd.tensor(qd.f32, 3)
    with qd.init(offline_cache=False):
        put(qd.tensor(qd.f32, 3))
        with pytest.raises(qd.QdrunError, match="closed"):
            put(old)
