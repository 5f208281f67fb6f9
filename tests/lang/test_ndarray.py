import copy
import gc
import struct
import sys
import weakref

import numpy as np
import pytest

from qdrun.compiler.errors import QdrunIndexError, QdrunRuntimeTypeError, QdrunTypeError
from qdrun.compiler.frontend.state.builder import FrontBuilder
from qdrun.compiler.frontend.values.tensor import from_ndarray_arg
from qdrun.compiler.ir.nodes import ArgDecl, Assert, Const, Kernel, Task
from qdrun.compiler.ir.types import f32, f64, i32, i64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.lang.data.matrix import Matrix, Vector
from qdrun.compiler.lang.data.ndarray import Ndarray, ndarray
from qdrun.compiler.lang.data.types import NDArray, matrix, vector
from qdrun.compiler.lang.data.types import ndarray as annotation
from qdrun.compiler.lang.init import init
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel


@pytest.fixture(autouse=True)
def program():
    program = init()
    yield program
    program.close()


def test_elements_are_read_and_written_from_python():
    x = ndarray(f32, (2, 3))
    x[1, 2] = 4
    assert x[1, 2] == 4.0 and x.shape == (2, 3) and x.dtype is f32 and len(x) == 2
    with pytest.raises(QdrunIndexError):
        x[2, 0]
    v = ndarray(vector(3, f32), 2)
    v[1] = [1, 2, 3]
    v[1].x = 7
    assert v[1].to_list() == [7, 2, 3] and v.element_shape == (3,)
    assert Matrix.ndarray(2, 2, f64, 3).to_numpy().shape == (3, 2, 2)
    assert ndarray(float, ())[None] == 0.0


def test_the_launcher_reads_the_first_two_slots():
    assert Ndarray.__slots__[:2] == ("_key", "_packed")


def test_equal_types_share_one_key():
    a, b = ndarray(f32, 3), ndarray(f32, 5)
    assert a._key is b._key == (f32, 1, (), False, False, None, False)
    assert ndarray(f32, 3, needs_grad=True)._key is not a._key
    assert Vector.ndarray(3, f32, 2)._key is ndarray(vector(3, f32), 9)._key == (f32, 1, (3,), False, False, None, False)


def test_the_packed_words_are_address_extents_and_gradient():
    x = ndarray(f32, (2, 3), needs_grad=True)
    assert struct.unpack("<4Q", x._packed) == (x.address, 2, 3, x.grad.address)
    assert struct.unpack("<1Q", ndarray(f32, ())._packed)[0] != 0


def test_memory_is_counted_and_given_back(program):
    x = ndarray(f64, 100, needs_grad=True)
    assert program.usage() == {"ndarrays": 800, "gradients": 800}
    del x
    assert program.usage() == {}


def test_an_array_outlives_its_program_quietly(program, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    x = ndarray(f64, 4)
    gone = weakref.ref(x)
    program.close()
    del x
    gc.collect()
    assert gone() is None and not said


def test_whole_arrays_are_filled_and_copied():
    x = ndarray(i64, 3)
    x.from_numpy(np.array([1, 2, 3]))
    y = copy.deepcopy(x)
    x.fill(0)
    assert y.to_numpy().tolist() == [1, 2, 3] and x.to_numpy().tolist() == [0, 0, 0]
    assert ndarray(f32, 0).to_numpy().size == 0


def test_gradients_of_integers_and_wrong_shapes_are_refused():
    with pytest.raises(QdrunRuntimeTypeError, match="i32 is not supported"):
        ndarray(i32, 3, needs_grad=True)
    with pytest.raises(QdrunRuntimeTypeError, match="shape"):
        ndarray(f32, (2, -1))


def test_annotations_say_type_axes_and_element():
    a = annotation(dtype=f32, ndim=2)
    assert (a.dtype, a.ndim, a.element) == (f32, 2, ()) and a == NDArray[f32, 2] and hash(a) == hash(NDArray[f32, 2])
    v = NDArray[vector(3, f64), 1]
    assert (v.dtype, v.ndim, v.element) == (f64, 1, (3,))
    assert annotation().dtype is None and annotation().element is None and annotation(dtype=float).dtype is f32
    assert matrix(2, 3, f32) == matrix(2, 3, f32) != matrix(3, 2, f32)


def _run(body, decl, arrays, check=False):
    task = Task("t", [])
    b = FrontBuilder(task.body, check_bounds=check)
    ref = from_ndarray_arg(decl)
    body(b, ref)
    kernel = Kernel("k", [decl], [task])
    verify_kernel(kernel)
    memory = Memory({decl: arrays[0].shape})
    for buffer, array in zip((ref.places[0].buffer, ref.grad and ref.grad.places[0].buffer), arrays):
        memory.bind(buffer, array)
    run_kernel(kernel, memory)
    return task


def test_the_components_of_an_argument_are_interleaved():
    decl = ArgDecl("x", "ndarray", f32, 1, (2,), needs_grad=True)
    data, grad = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((3, 2), np.float32)

    def body(b, x):
        x.store(b, (0,), x.load(b, (Const(2, i32),)))
        x.component((1,)).store(b, (1,), 9.0)
        x.atomic(b, "sub", (1,), x.load(b, (0,)))
        x.grad.store(b, (2,), 1)

    _run(body, decl, (data, grad))
    assert data.tolist() == [[4, 5], [-2, 4], [4, 5]] and grad[2].tolist() == [1, 1]


def test_bounds_checks_name_tensor_axis_index_and_extent():
    decl = ArgDecl("x", "ndarray", f32, 1)

    def body(b, x):
        x.load(b, (b.load(b.local(Const(7, i32))),))

    with pytest.raises(Exception, match="axis 0 of `x` has index 7 but extent 3"):
        _run(body, decl, (np.zeros(3, np.float32),), check=True)
    task = _run(lambda b, x: x.load(b, (1,)), decl, (np.zeros(3, np.float32),), check=True)
    assert sum(isinstance(s, Assert) for s in task.body) == 1


@pytest.mark.parametrize("index", [(), (0, 0), (-1,)])
def test_wrong_indices_are_refused_when_the_kernel_is_compiled(index):
    ref = from_ndarray_arg(ArgDecl("x", "ndarray", f32, 1))
    with pytest.raises(QdrunIndexError, match="`x`"):
        ref.load(FrontBuilder([]), index)
    with pytest.raises(QdrunTypeError, match="not f32"):
        ref.load(FrontBuilder([]), (1.5,))
