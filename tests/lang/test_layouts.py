"""Memory layouts: transposed storage and planes of components, under indices that keep the order of the axes."""

import itertools

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


def in_memory(t: qd.Tensor) -> np.ndarray:
    """The numbers in the order of their addresses."""
    view = t._unwrap().view
    order = sorted(range(view.ndim), key=lambda k: -view.strides[k])
    dense = view.transpose(order)
    assert dense.flags.c_contiguous
    return dense.reshape(-1)


@pytest.mark.parametrize("layout", list(itertools.permutations(range(3))))
def test_indices_are_canonical_and_the_memory_is_nested_as_asked(backend, layout):
    @qd.kernel
    def write(x: qd.Tensor, shape: qd.types.ndarray()):
        for I in qd.grouped(x):
            x[I] = 100 * I[0] + 10 * I[1] + I[2]
        for a in qd.static(range(3)):
            shape[a] = x.shape[a]

    @qd.kernel
    def read(x: qd.Tensor, y: qd.types.ndarray()):
        for i, j, k in y:
            y[i, j, k] = x[i, j, k]

    shape = np.zeros(3, np.int32)
    x = qd.tensor(qd.i32, (2, 3, 4), backend=backend, layout=layout)
    write(x, shape)
    i, j, k = np.indices((2, 3, 4))
    wanted = 100 * i + 10 * j + k
    assert (x.to_numpy() == wanted).all() and x.to_numpy().flags.c_contiguous and shape.tolist() == [2, 3, 4]
    assert (in_memory(x) == wanted.transpose(layout).reshape(-1)).all()
    assert x.shape == (2, 3, 4) and x.layout == (None if layout == (0, 1, 2) else layout) and x[1, 2, 3] == 123
    x[1, 0, 2] = -5
    wanted[1, 0, 2] = -5
    out = np.zeros((2, 3, 4), np.int32)
    read(x, out)
    assert (out == wanted).all()
    x.from_numpy(-wanted)
    read(x, out)
    assert (out == -wanted).all()


def test_one_kernel_serves_every_layout_and_numpy_one_after_the_other():
    @qd.kernel
    def write(x: qd.types.ndarray(ndim=2)):
        for i, j in x:
            x[i, j] = 10 * i + j

    wanted = [[0, 1, 2], [10, 11, 12]]
    for _ in range(2):
        for make in (
            lambda: qd.ndarray(qd.f32, (2, 3)),
            lambda: qd.ndarray(qd.f32, (2, 3), layout=(1, 0)),
            lambda: np.zeros((2, 3), np.float32),
            lambda: np.zeros((3, 2), np.float32).T,
            lambda: np.zeros((2, 3), np.float32, order="F"),
        ):
            for _ in range(2):
                x = make()
                write(x)
                assert np.asarray(x).tolist() == wanted


def test_bounds_are_those_of_the_axes(backend):
    with qd.init(offline_cache=False, debug=True):

        @qd.kernel
        def touch(x: qd.Tensor, i: int, j: int):
            x[i, j] = 1

        x = qd.tensor(qd.f32, (2, 5), backend=backend, layout=(1, 0))
        touch(x, 1, 4)
        with pytest.raises(qd.QdrunAssertionError, match=r"axis 0 of `.*` has index 4 but extent 2"):
            touch(x, 4, 1)
        with pytest.raises(qd.QdrunAssertionError, match=r"axis 1 of `.*` has index 5 but extent 5"):
            touch(x, 1, 5)
        with pytest.raises(qd.QdrunIndexError):
            x[4, 1]


def test_vectors_with_a_layout(backend):
    v = qd.Vector.tensor(2, qd.f32, (2, 3), backend=backend, layout=(1, 0), needs_grad=True)

    @qd.kernel
    def write(x: qd.Tensor):
        for i, j in x:
            x[i, j] = qd.Vector([i, j])
            x.grad[i, j][1] = 10 * i + j

    write(v)
    i, j = np.indices((2, 3))
    assert (v.to_numpy() == np.stack([i, j], -1)).all() and (v.grad.to_numpy()[..., 1] == 10 * i + j).all()
    assert in_memory(v).tolist() == np.stack([i, j], -1).transpose(1, 0, 2).reshape(-1).tolist()
    assert v.grad.layout == (1, 0) and v[1, 2].to_list() == [1, 2]


@pytest.mark.parametrize("element", [(3,), (2, 2)])
@pytest.mark.parametrize("shape, order", [(4, None), ((2, 3), None), ((2, 3), "ji")])
def test_planes_of_components(element, shape, order):
    make = qd.Vector.field if len(element) == 1 else qd.Matrix.field
    x = make(*element, qd.f32, shape, needs_grad=True, order=order, layout=qd.Layout.SOA)
    y = make(*element, qd.f32, shape, order=order, layout=qd.Layout.AOS)

    @qd.kernel
    def copy():
        for I in qd.grouped(y):
            x[I] = 2.0 * y[I]
            x.grad[I] = y[I]

    rng = np.random.default_rng(3)
    y.from_numpy(rng.random(y.view.shape))
    copy()
    assert (x.to_numpy() == 2 * y.to_numpy()).all() and (x.grad.to_numpy() == y.to_numpy()).all()
    count = int(np.prod(np.array(x.shape, int)))
    strides = x.view.strides[len(x.shape) :]
    assert strides[-1] == 4 * count and strides[0] == 4 * count * (1 if len(element) == 1 else element[1])
    assert x.shape == y.shape and x.layout == ((1, 0) if order else None)


def test_planes_of_one_element():
    x = qd.Vector.field(3, qd.f32, (), layout=qd.Layout.SOA)

    @qd.kernel
    def write():
        x[None] = qd.Vector([1.0, 2.0, 3.0])

    write()
    assert x[None].to_list() == [1, 2, 3] and x.shape == ()


def test_planes_beside_other_fields_and_with_lazy_gradients():
    a = qd.Vector.field(3, qd.f64, 5, layout=qd.Layout.SOA)
    b = qd.field(qd.i8, 5)
    qd.root.lazy_grad()
    views = [a.view[:, k] for k in range(3)] + [b.view] + [a.grad.view[:, k] for k in range(3)]
    for k, view in enumerate(views):
        view[...] = k
    assert [int(v[0]) for v in views] == list(range(7)) and all((v == v[0]).all() for v in views)
    assert views[0].strides == (8,) == views[4].strides


def test_a_loss_over_planes_has_the_right_gradient():
    x = qd.Vector.field(2, qd.f64, 6, needs_grad=True, layout=qd.Layout.SOA)
    loss = qd.field(qd.f64, (), needs_grad=True)

    @qd.kernel
    def run():
        for i in x:
            loss[None] += qd.sin(x[i][0]) * x[i][1]

    start = np.random.default_rng(5).random((6, 2))
    x.from_numpy(start)
    with qd.ad.Tape(loss=loss):
        run()
    wanted = np.stack([np.cos(start[:, 0]) * start[:, 1], np.sin(start[:, 0])], -1)
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-12)


def test_wrong_layouts_of_fields_and_ndarrays():
    for make in (qd.field, qd.ndarray):
        with pytest.raises(qd.QdrunValueError, match=r"layout=\(0, 2\) is not a permutation of range\(2\)"):
            make(qd.f32, (2, 3), layout=(0, 2))
        assert make(qd.f32, (2, 3), layout=[1, 0]).layout == (1, 0) and make(qd.f32, (2, 3), layout=(0, 1)).layout is None
    with pytest.raises(qd.QdrunRuntimeError, match="an order or a layout, but no shape"):
        qd.field(qd.f32, layout=(1, 0))
    assert qd.field(qd.f32, (2, 3), order="ji").layout == (1, 0)


def test_a_place_in_the_tree_is_no_layout():
    x = qd.field(qd.f32)
    qd.root.dense(qd.j, 3).dense(qd.i, 2).place(x)
    assert x.layout is None and x.shape == (2, 3) and x.view.strides == (4, 8)
