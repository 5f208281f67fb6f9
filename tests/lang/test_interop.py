"""Numpy arrays as arguments, and our memory as numpy arrays and DLPack capsules."""

import mmap

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir.types import ALL

BACKENDS = [qd.Backend.FIELD, qd.Backend.NDARRAY]
NAMES = sorted(ALL)


@pytest.fixture(autouse=True)
def program():
    with qd.init(offline_cache=False, cpu_max_num_threads=1) as program:
        yield program


@qd.kernel
def increase(x: qd.types.ndarray(ndim=2)):
    for i, j in x:
        x[i, j] += 10 * i + j + 1


@qd.kernel
def read(x: qd.types.ndarray(), y: qd.types.ndarray()):
    for I in qd.grouped(x):
        y[I] = x[I]


def increased(shape=(3, 4)):
    i, j = np.indices(shape)
    return 10 * i + j + 1


# ---- arguments
def test_contiguous_arrays_are_passed_by_pointer():
    """A kernel that stops half-way leaves what it had written: there is no copy in between."""

    @qd.kernel
    def stop(x: qd.types.ndarray()):
        for _ in range(1):
            x[0] = 5
            assert x[0] == 0, "stopped"

    with qd.init(offline_cache=False, debug=True):
        x = np.zeros(3, np.float32)
        for _ in range(2):
            x[0] = 0
            with pytest.raises(qd.QdrunAssertionError, match="stopped"):
                stop(x)
            assert x[0] == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((3, 4), np.float32),
        lambda: np.zeros((3, 4), np.float32, order="F"),
        lambda: np.zeros((4, 3), np.float32).T,
        lambda: np.zeros((6, 8), np.float32)[::2, ::2],
        lambda: np.zeros((3, 4), np.float32)[::-1, ::-1],
        lambda: np.zeros((3, 4), ">f4"),
        lambda: np.zeros((3, 5), ">i8")[:, 1:],
        lambda: np.frombuffer(bytearray(3 * 4 * 4 + 1), np.uint8)[1:].view(np.float32).reshape(3, 4),
        lambda: np.zeros(3 * 4, [("a", "i1"), ("b", "<f4")])["b"].reshape(3, 4),
        lambda: np.ndarray((3, 4), np.float32, mmap.mmap(-1, 4096)),
    ],
    ids=[
        "C",
        "Fortran",
        "transposed",
        "strided",
        "reversed",
        "big-endian",
        "big-endian slice",
        "unaligned",
        "record",
        "mapped",
    ],
)
def test_every_form_of_memory_works_and_is_written(make):
    for _ in range(2):
        x = make()
        increase(x)
        assert (x == increased()).all()
        x = make()
        x[...] = increased()
        y = np.zeros((3, 4), x.dtype)
        read(x, y)
        assert (y == increased()).all()


def test_nothing_around_a_slice_is_touched():
    whole = np.full((6, 8), -1.0, np.float32)
    increase(whole[1:4, 2:6])
    assert (whole[1:4, 2:6] == increased() - 1).all()
    whole[1:4, 2:6] = -1
    assert (whole == -1).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_type(name):
    dtype = ALL[name]
    x, y = np.array([0, 1, 1, 0], dtype.numpy), np.zeros(4, dtype.numpy)
    read(x, y)
    assert (x == y).all()
    strided = np.zeros(8, dtype.numpy)
    read(x, strided[::2])
    assert (strided[::2] == x).all() and not strided[1::2].any()


@pytest.mark.parametrize("dtype", [complex, object, "datetime64[s]", "U3", np.longdouble, [("a", "i4")]])
def test_types_that_kernels_do_not_have_are_refused(dtype):
    with pytest.raises(qd.QdrunTypeError, match=r"`increase`, argument `x`: numpy dtype .* has no kernel type"):
        increase(np.zeros((2, 2), dtype))


def test_empty_and_0d_arrays():
    increase(np.zeros((0, 4), np.float32))
    increase(np.zeros((3, 0), np.float32)[::2])

    @qd.kernel
    def put(x: qd.types.ndarray(ndim=0), v: float):
        x[None] = v

    for x in (np.zeros((), np.float32), np.zeros((), ">f4"), np.zeros(3, np.float32)[1:2].reshape(()), qd.ndarray(qd.f32, ())):
        put(x, 2.5)
        assert x[()] == 2.5


def test_read_only_arrays_are_read_and_not_written():
    x, y = np.arange(4.0, dtype=np.float32), np.zeros(4, np.float32)
    x.flags.writeable = False
    for each in (x, np.broadcast_to(np.float32(3), (4,)), x[::-1]):
        for _ in range(2):
            read(each, y)
            assert (y == each).all()
            with pytest.raises(qd.QdrunRuntimeError, match="`read` writes to `y`, and the array given for it is read-only"):
                read(y, each)
    assert x.tolist() == [0, 1, 2, 3]


def test_a_masked_array_is_refused():
    with pytest.raises(qd.QdrunTypeError, match="no place for its mask"):
        increase(np.ma.zeros((3, 4), np.float32))


def test_subclasses_of_arrays_are_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 4))
    increase(mapped)
    increase(mapped[:, ::2])
    wanted = increased().astype(float)
    wanted[:, ::2] += increased((3, 2))
    assert (mapped == wanted).all()


def test_slices_of_one_array():
    """Columns of one array do not overlap, the same slice given twice is one array, and parts that overlap are refused."""
    whole = np.zeros((4, 3), np.float32)
    whole[:, 0] = [1, 2, 3, 4]
    for _ in range(2):
        read(whole[:, 0], whole[:, 2])
        assert whole[:, 2].tolist() == [1, 2, 3, 4]

    @qd.kernel
    def shift(x: qd.types.ndarray(), y: qd.types.ndarray()):
        for _ in range(1):
            for i in range(1, 3):
                x[i] = y[i - 1] + 1

    column = np.zeros((3, 2), np.float32)
    shift(column[:, 0], column[:, 0])
    assert column[:, 0].tolist() == [0, 1, 2]  # as through one pointer
    line = np.zeros(8, np.float32)
    with pytest.raises(qd.QdrunRuntimeError, match="parts of one array for `x` and `y` that overlap, and writes to them"):
        shift(line[::2], line[:4])
    with pytest.raises(qd.QdrunRuntimeError, match="that overlap"):
        shift(line[:3], line[2::-1])


def test_a_view_of_a_field_is_not_given_to_a_kernel_that_writes_the_field():
    f, g = qd.field(qd.f32, 4), qd.field(qd.f32, 4)

    @qd.kernel
    def add(x: qd.types.ndarray()):
        for i in f:
            f[i] += x[i]

    add(g.to_numpy(copy=False))
    with pytest.raises(qd.QdrunRuntimeError, match="`add` uses `f`, and the array given for `x` is a part of its memory"):
        add(f.to_numpy(copy=False)[::-1])


def test_a_field_is_no_array():
    with pytest.raises(
        qd.QdrunTypeError, match=r"(?s)got the field `.*annotate the parameter with qd.template\(\) or qd.Tensor"
    ):
        increase(qd.field(qd.f32, (2, 2)))


def test_vectors_in_numpy_arrays():
    @qd.kernel
    def turn(v: qd.types.ndarray(dtype=qd.types.vector(2, qd.f32), ndim=1)):
        for i in v:
            v[i] = qd.Vector([-v[i][1], v[i][0]])

    for x in (np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 3], [2, 4]], np.float32).T):
        turn(x)
        assert x.tolist() == [[-2, 1], [-4, 3]]
    with pytest.raises(qd.QdrunTypeError, match=r"elements of shape \(2,\)"):
        turn(np.zeros((2, 3), np.float32))


# ---- conversions
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_numpy_both_ways(backend, name, layout):
    x = qd.tensor(ALL[name], (2, 3), backend=backend, layout=layout)
    data = np.array([[0, 1, 1], [1, 0, 1]])
    for source in (data, data.astype(ALL[name].numpy), np.asfortranarray(data), data[::1], data.tolist()):
        x.fill(0)
        x.from_numpy(source)
        assert (x.to_numpy() == data).all() and x.to_numpy().dtype == ALL[name].numpy
    assert x.to_numpy(np.float64).dtype == np.float64 and (np.asarray(x) == data).all()
    with pytest.raises(TypeError, match=r"has shape \(2, 3\), the array has shape \(3, 2\)"):
        x.from_numpy(data.T)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_memory_is_shared_without_copies(backend, layout):
    x = qd.tensor(qd.f32, (2, 3), backend=backend, layout=layout)
    view, again = x.to_numpy(copy=False), x.to_numpy(copy=None)
    through = np.from_dlpack(x)
    view[1, 2] = 4
    assert x[1, 2] == 4 == again[1, 2] == through[1, 2] and np.shares_memory(view, through)
    x[0, 1] = 3
    assert view[0, 1] == 3 == through[0, 1] and x.to_numpy().flags.owndata
    with pytest.raises(ValueError, match=r"copy=False cannot change the type .* from float32 to float64"):
        x.to_numpy(np.float64, copy=False)
    assert x.to_numpy(np.float64, copy=None)[1, 2] == 4 and not np.shares_memory(x.to_numpy(), view)


def test_a_view_outlives_its_program():
    with qd.init(offline_cache=False):
        x = qd.ndarray(qd.f32, 1000)
        x.fill(7)
        view = x.to_numpy(copy=False)
    assert (view == 7).all()
    with pytest.raises(qd.QdrunRuntimeError, match="closed"):
        x.to_numpy()


def test_records_share_memory_where_dlpack_can_say_it():
    a, b = qd.field(qd.f32), qd.field(qd.f64)
    qd.root.dense(qd.i, 3).place(a, b)
    a.from_numpy(np.arange(3))
    assert a.to_numpy(copy=False).tolist() == [0, 1, 2] == np.from_dlpack(a).tolist()
    c, d = qd.field(qd.i32), qd.field(qd.i8)
    qd.root.dense(qd.i, 3).place(c, d)
    d.from_numpy(np.arange(3))
    assert np.from_dlpack(d).tolist() == [0, 1, 2] and d.to_dlpack() is not None


def test_matrices_of_one_column_are_vectors_for_numpy():
    x, v = qd.Matrix.field(3, 1, qd.f32, 2), qd.Vector.field(3, qd.f32, 2)
    assert x.to_numpy().shape == (2, 3) == v.to_numpy().shape
    assert x.to_numpy(keep_dims=True).shape == (2, 3, 1) == v.to_numpy(True).shape == v.to_numpy(keep_dims=True).shape
    x.from_numpy(np.arange(6).reshape(2, 3))
    v.from_numpy(np.arange(6).reshape(2, 3, 1))
    assert (x.to_numpy() == v.to_numpy()).all() and x[1].to_list() == [[3], [4], [5]]


def test_an_ndarray_on_the_memory_of_a_numpy_array():
    for data in (np.zeros((3, 4), np.float32), np.zeros((4, 3), np.float32).T, np.zeros((2, 3, 4), np.float32)[1]):
        x = qd.from_dlpack(data)
        increase(x)
        assert (data == increased()).all() and (x.to_numpy() == data).all() and x.address == data.ctypes.data
        x[0, 0] = 9
        assert data[0, 0] == 9
        increase(data)
        assert x[0, 0] == 10
    assert qd.from_dlpack(data, copy=True).address != data.ctypes.data


def test_what_cannot_be_shared_is_copied_or_refused():
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    for data in (frozen, np.zeros(6, np.float32)[::2], np.zeros(6, np.float32)[::-1], np.zeros((0,), np.float32)):
        x = qd.from_dlpack(data)
        x.fill(1)
        assert not data.any() and x.shape == data.shape
        with pytest.raises(qd.QdrunValueError, match="copy=False"):
            qd.from_dlpack(data, copy=False)
    with pytest.raises(qd.QdrunTypeError, match="got list"):
        qd.from_dlpack([1.0])


def test_a_shared_ndarray_serves_a_kernel_by_name_and_keeps_the_memory():
    x = qd.from_dlpack(np.arange(1000, dtype=np.float64))

    @qd.kernel
    def total() -> qd.f64:
        s = qd.cast(0.0, qd.f64)
        for i in range(1000):
            s += x[i]
        return s

    assert total() == 499500


class Capsule:
    """An array of some other library."""

    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **kw):
        return self.data.__dlpack__(**kw)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


def test_arrays_of_other_libraries_are_arguments():
    data = np.zeros((3, 4), np.float32)
    increase(Capsule(data))
    assert (data == increased()).all()
    assert qd.from_dlpack(Capsule(data)).address == data.ctypes.data

    class Elsewhere(Capsule):
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **kw):
            raise BufferError("on a GPU")

    with pytest.raises(qd.QdrunTypeError, match="cannot be shown to the CPU"):
        increase(Elsewhere(data))


def test_dlpack_options():
    x = qd.ndarray(qd.f32, 3)
    assert x.__dlpack_device__() == (1, 0) and "dltensor" in repr(x.to_dlpack())
    assert "dltensor_versioned" in repr(x.to_dlpack(versioned=True))
    copied = np.from_dlpack(x, copy=True)
    copied[0] = 5
    assert x[0] == 0
    with pytest.raises(qd.QdrunValueError, match="not on DLPack device"):
        x.__dlpack__(dl_device=(2, 0))


class Copies:
    """An array whose library exports a copy each time."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.copy().__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@qd.kernel
def put(x: qd.types.ndarray(), value: qd.f64):
    for i in range(x.shape[0]):
        x[i] = value


@qd.kernel
def total(x: qd.types.ndarray()) -> qd.f64:
    out = 0.0
    for i in range(x.shape[0]):
        out += x[i]
    return out


def test_a_write_to_a_copy_that_a_library_makes_is_refused():
    qd.init(arch=qd.cpu)
    made = Copies(np.arange(4.0))
    assert total(made) == 6
    for _ in range(2):
        with pytest.raises(
            qd.QdrunRuntimeError, match="`put` writes to `x`, and the array given for it is read-only, or a copy that"
        ):
            put(made, 1.0)


def test_a_write_to_an_array_that_shows_one_element_in_many_places_is_refused():
    qd.init(arch=qd.cpu)
    one = np.lib.stride_tricks.as_strided(np.array([2.0]), (4,), (0,))
    assert total(one) == 8
    with pytest.raises(qd.QdrunRuntimeError, match="and the array given for it shows one element in many places"):
        put(one, 1.0)


@pytest.mark.parametrize("cls", [np.matrix, np.memmap, type("Own", (np.ndarray,), {"copy": None, "__setitem__": None})])
@pytest.mark.parametrize("part", [slice(None), slice(None, None, 2), slice(None, None, -1)])
def test_subclasses_and_views_of_numpy_arrays_are_written(cls, part, tmp_path):
    qd.init(arch=qd.cpu)
    base = np.memmap(tmp_path / "x", np.float64, "w+", shape=(6,)) if cls is np.memmap else np.zeros(6)

    @qd.kernel
    def rows(x: qd.types.ndarray(), value: qd.f64):
        for i, j in qd.ndrange(x.shape[0], x.shape[1]):
            x[i, j] = value

    if cls is np.matrix:
        rows(base.view(np.matrix)[:, part], 3.0)
    else:
        put(base.view(cls)[part], 3.0)
    assert np.array_equal(np.asarray(base)[part], np.full(len(base[part]), 3.0)) and base.sum() == 3.0 * len(base[part])
