from types import SimpleNamespace

import numpy as np
import pytest

from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.compiler.ir.types import f32, f64, i8, i32
from qdrun.compiler.lang.data.make_field import make_field
from qdrun.compiler.program.layout import tree as snode
from qdrun.compiler.program.layout.materialize import materialize
from qdrun.compiler.program.layout.tree import Root, axes
from qdrun.compiler.program.services.batch import SingleTrial
from qdrun.compiler.runtime.base import Allocation


class Memory:
    """A program-like owner of memory that counts what it gives."""

    closed, batch, variants, state = False, SingleTrial(), {}, SimpleNamespace(tangents=False)

    def __init__(self):
        self.root, self.recorders = Root(self), self
        self.given = []

    def allocate(self, nbytes, category):
        raw = np.zeros(nbytes, np.uint8)
        self.given.append((category, nbytes))
        return Allocation(raw.ctypes.data, nbytes, category, raw)

    def wrote(self, *what):
        """Nothing records here."""

    def saw(self, *what):
        pass

    def looked_at(self, *what):
        """Nothing is rehearsed here."""

    def materialize(self):
        materialize(self.root, self.allocate, lambda allocation: None)


@pytest.fixture
def program():
    return Memory()


def make(program, dtype=f32, shape=None, element=(), **kw):
    return make_field(dtype, shape, element, root=program.root, **kw)


def layout_of(field):
    place = field.__qd_value__().places[0]
    return place.shape, place.strides, place.offset


def test_a_field_with_a_shape_is_row_major(program):
    x = make(program, f32, (2, 3))
    assert layout_of(x) == ((2, 3), (12, 4), 0)


def test_fields_in_one_dense_are_interleaved_and_fields_in_their_own_are_not(program):
    x, y, z = (make(program, t) for t in (f32, f64, f32))
    program.root.dense(snode.i, 5).place(x, y)
    program.root.dense(snode.i, 5).place(z)
    assert layout_of(x) == ((5,), (16,), 0)
    assert layout_of(y) == ((5,), (16,), 8)
    assert layout_of(z) == ((5,), (4,), 128)
    assert program.given == [("fields", 152)]


def test_the_components_of_a_vector_lie_side_by_side(program):
    v = make(program, f32, (4,), (3,))
    places = v.__qd_value__().places
    assert [p.offset for p in places] == [0, 4, 8] and places[0].strides == (12,)


def test_gradients_have_a_buffer_of_their_own(program):
    x = make(program, f32)
    program.root.dense(snode.ij, (2, 3)).place(x, x.grad)
    place = x.__qd_value__().places[0]
    assert place.grad is x.grad.__qd_value__().places[0] and place.grad.is_grad
    assert place.grad.buffer is not place.buffer and place.strides == (12, 4)
    assert program.given == [("fields", 24), ("gradients", 24)]


def test_indices_follow_the_letters_of_the_axes_not_their_nesting(program):
    x, y = make(program), make(program)
    program.root.dense(snode.j, 4).dense(snode.i, 3).place(x)
    program.root.dense(snode.ji, (4, 3)).place(y)
    assert layout_of(x)[:2] == layout_of(y)[:2] == ((3, 4), (4, 12))
    assert layout_of(make(program, f32, (3, 4), order="ji"))[:2] == ((3, 4), (4, 12))


def test_chained_levels_of_different_axes_nest(program):
    x, y = make(program), make(program)
    level = program.root.dense(snode.i, 3)
    level.place(y)
    level.dense(snode.jk, (2, 5)).place(x)
    assert layout_of(x) == ((3, 2, 5), (44, 20, 4), 4)
    assert layout_of(y) == ((3,), (44,), 0)


def test_adjacent_levels_of_one_axis_merge(program):
    x = make(program)
    program.root.dense(snode.i, 4).dense(snode.i, 8).place(x)
    assert layout_of(x) == ((32,), (4,), 0)


def test_axes_that_are_split_into_blocks_lie_as_one_array(program):
    x, y = make(program, name="grid"), make(program)
    top = program.root.dense(snode.ij, (2, 3))
    top.place(y)
    top.dense(snode.ij, (4, 5)).place(x)
    assert layout_of(x)[:2] == ((8, 15), (60, 4)) and layout_of(y)[:2] == ((2, 3), (12, 4))
    assert program.given == [("fields", 64 + 480)]


def test_every_element_has_its_own_bytes(program):
    fields = [make(program, t) for t in (f32, i8, f64, i32)]
    level = program.root.dense(snode.i, 3)
    level.place(fields[0], fields[1])
    level.dense(snode.j, 2).place(fields[2], fields[3])
    for number, f in enumerate(fields):
        f.from_numpy(np.arange(f.to_numpy().size).reshape(f.shape) + 10 * number)
    for number, f in enumerate(fields):
        assert f.to_numpy().ravel().tolist() == [10 * number + k for k in range(f.to_numpy().size)]
        assert all(p.offset % p.dtype.size == 0 and s % p.dtype.size == 0 for p in f.__qd_value__().places for s in p.strides)


def test_fields_that_come_late_get_a_buffer_of_their_own(program):
    x = make(program, f32, 4)
    x[0] = 1.5
    y = make(program, f32, 4, needs_grad=True)
    y[1] = 2.5
    assert x[0] == 1.5 and y[1] == 2.5
    assert x.__qd_value__().places[0].buffer is not y.__qd_value__().places[0].buffer
    assert [c for c, _ in program.given] == ["fields", "fields", "gradients"]
    program.materialize()
    assert len(program.given) == 3


def test_a_level_that_has_memory_takes_nothing_more_but_an_empty_one_waits(program):
    level, empty = program.root.dense(snode.i, 2), program.root.dense(snode.i, 2)
    x = make(program)
    level.place(x)
    x.fill(1)
    with pytest.raises(QdrunRuntimeError, match="memory already"):
        level.place(make(program))
    y = make(program)
    empty.place(y)
    y[1] = 3
    assert y[1] == 3


def test_a_gradient_may_be_placed_after_its_field_has_memory(program):
    x = make(program, f32, 3)
    assert x.__qd_value__().grad is None
    program.root.dense(snode.i, 3).place(x.grad)
    x.grad.fill(2)
    assert x.__qd_value__().grad.places == x.grad.__qd_value__().places
    y = make(program, f32, 4)
    with pytest.raises(QdrunRuntimeError, match="needs the shape"):
        program.root.dense(snode.i, 3).place(y.grad)


def test_lazy_gradients_are_placed_beside_every_real_field(program):
    x, n, done = make(program, f32, 3), make(program, i32, 3), make(program, f64, (), needs_grad=True)
    scalar = make(program, f32, ())
    program.root.lazy_grad()
    assert x.grad.placed and scalar.grad.placed and x.grad.shape == (3,) and not n._relatives
    assert done.grad.placed
    program.root.lazy_grad()
    x.grad.fill(1)
    assert len(program.root.fields()) == 7


def test_a_deferred_field_takes_its_gradient_along(program):
    x = make(program, f32, None, needs_grad=True)
    program.root.dense(snode.i, 4).place(x)
    assert x.grad.placed
    y = make(program, f32, None, needs_grad=True)
    program.root.dense(snode.i, 4).place(y)
    program.root.dense(snode.i, 4).place(y.grad)
    z = make(program, f32, None, needs_grad=True)
    program.root.place(z)
    for f in (x, y, z):
        f.grad.fill(2)
        f.fill(1)
        assert f.grad.to_numpy().max() == 2 and f.__qd_value__().grad is not None


def test_axes_have_every_order():
    assert snode.NAMED_AXES["kij"] == (2, 0, 1) == axes(2, 0, 1) and repr(snode.ij) == "qd.ij"


@pytest.mark.parametrize("over,extents", [(snode.ij, 0), (snode.ij, (1, 2, 3)), (snode.i, -1), (axes(0, 0), 2)])
def test_wrong_extents_are_refused(program, over, extents):
    with pytest.raises(QdrunRuntimeError):
        program.root.dense(over, extents)


def test_a_field_is_placed_once_and_in_its_own_program(program):
    x = make(program, f32, 3)
    with pytest.raises(QdrunRuntimeError, match="placed already"):
        program.root.dense(snode.i, 3).place(x)
    with pytest.raises(QdrunRuntimeError, match="another program"):
        Memory().root.place(make(program))
    with pytest.raises(QdrunRuntimeError, match="takes fields"):
        program.root.place(3)
