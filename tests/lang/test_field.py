import numpy as np
import pytest

from qdrun.compiler.errors import QdrunIndexError, QdrunRuntimeError, QdrunRuntimeTypeError, QdrunTypeError
from qdrun.compiler.frontend.values.tensor import TensorRef
from qdrun.compiler.ir.types import f32, f64, i32
from qdrun.compiler.lang.data.make_field import field
from qdrun.compiler.lang.data.matrix import Matrix, Vector
from qdrun.compiler.lang.data.types import vector
from qdrun.compiler.lang.init import init
from qdrun.compiler.lang.layout_tree import root
from qdrun.compiler.program.layout.tree import i


@pytest.fixture(autouse=True)
def program():
    program = init()
    yield program
    program.close()


def test_elements_are_read_and_written_from_python():
    x = field(f32, (2, 3))
    x[1, 2] = 4
    assert x[1, 2] == 4.0 and isinstance(x[1, 2], float) and x[0, 0] == 0
    n = field(int, 3)
    n[1] = 7
    assert n[1] == 7 and isinstance(n[1], int) and n.dtype is i32


def test_a_field_without_axes_takes_none_or_an_empty_tuple():
    x = field(f64, ())
    x[None] = 1.5
    assert x[()] == 1.5 and x.shape == () and x.to_numpy().shape == ()


@pytest.mark.parametrize("index", [3, -1, (0, 0), None])
def test_a_wrong_index_is_an_index_error(index):
    with pytest.raises(QdrunIndexError):
        field(f32, 3)[index]
    with pytest.raises(QdrunTypeError, match="not an integer"):
        field(f32, 3)[1.5]


def test_vector_elements_write_through():
    v = Vector.field(3, f32, shape=(2,), needs_grad=True)
    v[1] = [1, 2, 3]
    v[1].y = 5
    v[1][2] += 1
    assert isinstance(v[1], Vector) and v[1].to_list() == [1, 5, 4] and v.n == 3
    v[0] = Vector([1, 1, 1]) * 2
    assert v.to_numpy().tolist() == [[2, 2, 2], [1, 5, 4]]
    v.grad.fill([0, 1, 2])
    assert v.grad[1].to_list() == [0, 1, 2]
    with pytest.raises(QdrunTypeError, match="elements of shape"):
        v[0] = [1, 2]


def test_matrix_fields_have_matrix_elements():
    m = Matrix.field(2, 3, f32, shape=())
    m[None] = [[1, 2, 3], [4, 5, 6]]
    assert m[None][1, 2] == 6 and m[None].shape == (2, 3) and (m.n, m.m) == (2, 3)
    assert vector(2, f64).field(shape=4)[3].to_list() == [0, 0]
    assert field(vector(2, f32), 4).element == (2,)


def test_whole_fields_are_filled_and_copied():
    x, y = field(f32, (2, 2)), field(f32, (2, 2))
    x.from_numpy(np.arange(4).reshape(2, 2))
    y.copy_from(x)
    a = y.to_numpy()
    y.fill(9)
    assert a.tolist() == [[0, 1], [2, 3]] and y.to_numpy(i32).dtype == np.int32
    with pytest.raises(QdrunTypeError, match="shape"):
        x.from_numpy(np.zeros(4))


def test_gradients_of_integers_are_refused():
    for kw in ({"needs_grad": True}, {"needs_dual": True}):
        with pytest.raises(QdrunRuntimeTypeError, match="i32 is not supported"):
            field(i32, 3, **kw)
    with pytest.raises(QdrunTypeError, match="not real"):
        field(i32, 3).grad


def test_what_is_not_placed_says_how_to_place_it():
    x = field(f32, name="state")
    with pytest.raises(QdrunRuntimeError, match=r"`state` has no memory.*qd\.root\.dense"):
        x[0]
    y = field(f32, 3, name="y")
    with pytest.raises(QdrunRuntimeError, match=r"`y\.grad` has no memory.*needs_grad=True"):
        y.grad[0]
    root.dense(i, 2).place(x)
    x[1] = 2
    assert x[1] == 2


def test_a_kernel_sees_a_tensor_with_static_extents():
    x = Vector.field(2, f32, shape=(3, 4), needs_grad=True)
    ref = x.__qd_value__()
    assert isinstance(ref, TensorRef) and ref.extents == (3, 4) and len(ref.places) == 2 and ref.element == (2,)
    assert ref.grad is not None and ref.grad.places == x.grad.__qd_value__().places
    assert ref is x.__qd_value__()


def test_memory_is_counted_by_category(program):
    x = field(f64, 100, needs_grad=True)
    x.fill(0)
    assert program.usage() == {"fields": 800, "gradients": 800}


def test_a_dual_has_memory_of_its_own():
    x = field(f32, 3, needs_dual=True)
    x.dual[1] = 2.0
    assert x[1] == 0 and x.__qd_value__().dual.places == x.dual.__qd_value__().places


def test_a_field_of_a_closed_program_is_refused(program):
    x = field(f32, 3)
    x[0] = 1
    program.close()
    with pytest.raises(QdrunRuntimeError, match="closed"):
        x[0]


def test_names_are_the_same_in_every_run(program):
    first = field(f32, 1).name
    program.close()
    with init():
        assert field(f32, 1).name == first


@pytest.mark.parametrize("shape", [(2,), (4097,), (37, 91, 3)])
@pytest.mark.parametrize("dtype", [f32, f64, i32])
def test_fill_repeats_a_vector_or_a_matrix(shape, dtype):
    for element, kind in (((3,), Vector), ((2, 2), Matrix)):
        x = kind.field(*element, dtype, shape)
        value = np.random.default_rng().uniform(-9, 9, element)
        x.fill(kind(value.tolist()))
        wanted = np.empty(shape + element, dtype.numpy)
        wanted[...] = value
        assert (x.to_numpy() == wanted).all()
