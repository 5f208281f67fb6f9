import copy
import math
import pickle

import numpy as np
import pytest

from qdrun.compiler.errors import QdrunTypeError
from qdrun.compiler.frontend.library import functions
from qdrun.compiler.frontend.values import values
from qdrun.compiler.ir.types import f32, f64, i32
from qdrun.compiler.lang import math as qdmath
from qdrun.compiler.lang.data.matrix import Matrix, Vector
from qdrun.compiler.lang.data.types import matrix, template, vector
from qdrun.compiler.lang.init import init


@pytest.fixture(autouse=True)
def program():
    program = init()
    yield program
    program.close()


def test_arithmetic_is_element_by_element():
    v = Vector([1.0, 2.0])
    assert (v * 2 + [1, 1]).to_list() == [3, 5] and (1 - v).to_list() == [0, -1] and (-v / 2).to_list() == [-0.5, -1]
    assert (v == [1, 3]).to_list() == [True, False] and isinstance(v + 1, Vector)
    assert (np.float64(2) * v).to_list() == [2, 4]
    v += 1
    assert v.to_list() == [2, 3]


def test_products():
    m, v = Matrix([[1, 2], [3, 4]]), Vector([1, 1])
    assert (m @ v).to_list() == [3, 7] and (m @ m).to_list() == [[7, 10], [15, 22]] and v @ v == 2
    assert Vector([1, 2, 3]).dot([4, 5, 6]) == 32
    assert Vector([1.0, 0, 0]).cross([0.0, 1, 0]).to_list() == [0, 0, 1] and Vector([1, 2]).cross([3, 4]) == -2
    assert Vector([1, 2]).outer_product([3, 4]).to_list() == [[3, 4], [6, 8]]


def test_methods_agree_with_numpy():
    a = np.array([[2.0, 1.0], [1.0, 3.0]])
    m = Matrix(a)
    assert m.determinant() == pytest.approx(5) and np.asarray(m.inverse()) == pytest.approx(np.linalg.inv(a))
    assert m.trace() == 5 and m.sum() == 7 and m.max() == 3 and m.min() == 1 and m.transpose().to_list() == a.T.tolist()
    v = Vector([3.0, 4.0])
    assert v.norm() == 5 and v.norm_sqr() == 25 and v.norm_inv() == 0.2 and v.norm(eps=11) == 6
    assert v.normalized().to_list() == pytest.approx([0.6, 0.8])
    assert Vector([0, 1]).any() and not Vector([0, 1]).all()


def test_indexing_and_swizzles():
    v = Vector([1, 2, 3])
    v.zx = [7, 8]
    v[1] = 5
    assert v.to_list() == [8, 5, 7] and v.xz.to_list() == [8, 7] and v.y == 5 and v.rgb.to_list() == v.to_list()
    m = Matrix([[1, 2], [3, 4]])
    m[0, 1] = 9
    assert m[0].to_list() == [1, 9] and (m.n, m.m, m.shape, len(m)) == (2, 2, (2, 2), 2) and list(v[0:2]) == [8, 5]
    with pytest.raises(AttributeError):
        v.w
    with pytest.raises(AttributeError):
        v.anything = 1


def test_types_follow_the_declaration():
    assert Vector([1, 2], f32).to_numpy().dtype == np.float32 and Vector([1, 2], dt=float).dtype is f32
    assert (Vector([1, 2], f32) * 2.5).dtype is f32 and Vector([1.7], f64).cast(i32).to_list() == [1]
    assert Vector([1, 2]).dtype is None


def test_constructors():
    assert Vector.zero(f32, 3).to_list() == [0, 0, 0] and Matrix.one(i32, 1, 2).to_list() == [[1, 1]]
    assert Matrix.identity(f32, 2).to_list() == [[1, 0], [0, 1]] == Matrix.diag(2, 1).to_list()
    assert Matrix.rows([Vector([1, 2]), [3, 4]]).to_list() == [[1, 2], [3, 4]]
    assert Matrix.cols([[1, 2], [3, 4]]).to_list() == [[1, 3], [2, 4]] and Vector.unit(3, 1).to_list() == [0, 1, 0]
    for wrong in ([[1, 2], [3]], 3, ["a"], [[[1]]]):
        with pytest.raises(QdrunTypeError):
            Matrix(wrong)
    with pytest.raises(QdrunTypeError, match="one axis"):
        Vector([[1, 2]])


def test_types_are_constructors():
    vec3 = vector(3, f32)
    assert vec3(1).to_list() == [1, 1, 1] and vec3(Vector([1, 2]), 3).to_list() == [1, 2, 3] and vec3([1, 2, 3]).dtype is f32
    assert matrix(2, 2, f64)([1, 2], [3, 4]).to_list() == [[1, 2], [3, 4]] and qdmath.mat2(1).shape == (2, 2)
    assert qdmath.ivec2(1.5, 2).to_list() == [1, 2] and qdmath.vec2(0).dtype is f32
    with pytest.raises(QdrunTypeError, match="needs 3 components"):
        vec3(1, 2)
    assert template() is template()


def test_a_kernel_sees_a_constant():
    value = Vector([1, 2]).__qd_value__()
    assert isinstance(value, values.MatrixValue) and value.dtype is i32 and [x.value for x in value.items] == [1, 2]
    assert Vector([1.5]).__qd_value__().dtype is f32 and Vector([1.5], f64).__qd_value__().dtype is f64


def test_functions_of_the_language_take_host_vectors():
    v = Vector([0.0, math.pi / 2])
    assert functions.sin(v).to_list() == pytest.approx([0, 1]) and isinstance(functions.sin(v), Vector)
    assert functions.max(v, 1.0).to_list() == pytest.approx([1, math.pi / 2])
    assert qdmath.clamp(Vector([-1.0, 5.0]), 0.0, 1.0).to_list() == [0, 1]
    assert qdmath.step(1.0, v).to_list() == [0, 1] and qdmath.length(Vector([3.0, 4.0])) == 5
    assert isinstance(qdmath.rotation2d(0.3), Matrix) and isinstance(qdmath.vdir(0.0), Vector)


def test_a_matrix_has_no_truth_and_copies_and_pickles():
    v = Vector([1, 2], f32)
    with pytest.raises(QdrunTypeError, match="ambiguous"):
        bool(v)
    for other in (copy.copy(v), copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        assert isinstance(other, Vector) and other.to_list() == [1, 2] and other.dtype is f32
        other[0] = 9
    assert v.to_list() == [1, 2]
