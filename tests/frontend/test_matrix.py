import numpy as np
import pytest
from emit_harness import emit

from qdrun.compiler.errors import QdrunIndexError, QdrunNameError, QdrunTypeError
from qdrun.compiler.frontend.library import elimination, methods
from qdrun.compiler.frontend.state.builder import FrontBuilder
from qdrun.compiler.frontend.values import matrix, ops
from qdrun.compiler.frontend.values.values import MatrixValue
from qdrun.compiler.ir.nodes import Const
from qdrun.compiler.ir.types import f64, i32

RNG = np.random.default_rng(7)


def call(name, *args, **kw):
    return emit(lambda b, m, *rest: methods.attribute(b, m, name)(b, *rest, **kw), *args, fp=f64)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_determinant_and_inverse_agree_with_numpy(n):
    for _ in range(5):
        m = RNG.normal(size=(n, n))
        assert call("determinant", m) == pytest.approx(np.linalg.det(m))
        assert call("inverse", m) == pytest.approx(np.linalg.inv(m))


def test_the_inverse_of_an_integer_matrix_is_real():
    m = np.array([[2, 1], [1, 1]], np.int32)
    assert call("inverse", m) == pytest.approx(np.linalg.inv(m))


def test_products_agree_with_numpy():
    a, b, v, w = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 4)), RNG.normal(size=3), RNG.normal(size=3)
    for x, y in [(a, b), (a, v), (v, b), (v, w)]:
        assert emit(ops.matmul, x, y) == pytest.approx(x @ y)
    assert call("dot", v, w) == pytest.approx(v @ w)
    assert call("cross", v, w) == pytest.approx(np.cross(v, w))
    assert call("cross", v[:2], w[:2]) == pytest.approx(v[0] * w[1] - v[1] * w[0])
    assert call("outer_product", v, a[0][:2]) == pytest.approx(np.outer(v, a[0][:2]))
    with pytest.raises(QdrunTypeError, match="cannot multiply"):
        emit(ops.matmul, a, a)


def test_norms_and_reductions_agree_with_numpy():
    v, m = RNG.normal(size=4), RNG.normal(size=(3, 3))
    assert call("norm", v) == pytest.approx(np.linalg.norm(v))
    assert call("norm", v, eps=0.5) == pytest.approx(np.sqrt(v @ v + 0.5))
    assert call("norm_sqr", m) == pytest.approx((m * m).sum())
    assert call("norm_inv", v) == pytest.approx(1 / np.linalg.norm(v))
    assert call("normalized", v, eps=1.0) == pytest.approx(v / (np.linalg.norm(v) + 1))
    assert call("trace", m) == pytest.approx(np.trace(m)) and call("sum", m) == pytest.approx(m.sum())
    assert call("max", m) == m.max() and call("min", m) == m.min()
    assert np.array_equal(call("transpose", m), m.T) and call("transpose", v).shape == (1, 4)
    assert call("any", np.array([0.0, 0.0])) == False  # noqa: E712
    assert call("all", np.array([1.0, 2.0])) == True  # noqa: E712


def test_the_norm_of_integers_is_real():
    assert call("norm", np.array([3, 4], np.int32)) == 5.0


def test_static_and_dynamic_items():
    m = RNG.normal(size=(2, 3))
    for i in range(2):
        for j in range(3):
            assert emit(matrix.get_item, m, (i, j)) == m[i, j]
            assert emit(lambda b, x, p, q: matrix.get_item(b, x, (p, q)), m, np.int32(i), np.int32(j)) == m[i, j]
        assert np.array_equal(emit(matrix.get_item, m, i), m[i])
    assert emit(matrix.get_item, m[0], np.int64(2)) == m[0, 2]


def test_a_wrong_constant_index_is_an_index_error():
    b = FrontBuilder([])
    v = MatrixValue((2,), (Const(1, i32), Const(2, i32)))
    for index in (2, -1, (0, 0)):
        with pytest.raises(QdrunIndexError):
            matrix.get_item(b, v, index)


def test_variables_keep_type_and_shape():
    def body(b, m, k):
        var = matrix.new_local(b, m)
        matrix.set_item(b, var, (0, 1), 5)
        matrix.set_item(b, var, (1, k), 7.0)
        return matrix.load_matrix(b, var)

    m = np.zeros((2, 3))
    m[0, 1], m[1, 2] = 5, 7
    assert np.array_equal(emit(body, np.zeros((2, 3)), np.int32(2)), m)
    with pytest.raises(QdrunTypeError, match="cannot become"):
        emit(lambda b, v: matrix.store_matrix(b, matrix.new_local(b, v), matrix.build(b, [1, 2])), np.zeros(3))


@pytest.mark.parametrize("name,expect", [("x", 1), ("zyx", [3, 2, 1]), ("rg", [1, 2]), ("stp", [1, 2, 3]), ("xx", [1, 1])])
def test_swizzles_pick_components(name, expect):
    assert emit(lambda b, v: methods.attribute(b, v, name), np.array([1.0, 2.0, 3.0])).tolist() == expect


def test_unknown_attributes_are_named():
    b = FrontBuilder([])
    v = MatrixValue((2,), (Const(1, i32), Const(2, i32)))
    for name in ("z", "xr", "nothing"):
        with pytest.raises(QdrunNameError, match=name):
            methods.attribute(b, v, name)
    assert (methods.attribute(b, v, "n"), methods.attribute(b, v, "m"), methods.attribute(b, v, "shape")) == (2, 1, (2,))


def test_matrices_are_built_from_rows_columns_and_vectors():
    b = FrontBuilder([])
    assert matrix.build(b, [1, 2.0]).dtype.name == "f32"
    assert matrix.build(b, [[1, 2], [3, 4]], float).shape == (2, 2)
    v = matrix.build(b, [1, 2])
    assert [x.value for x in matrix.columns_of(b, [v, [3, 4]]).items] == [1, 3, 2, 4]
    assert [x.value for x in matrix.identity(b, float, 2).items] == [1, 0, 0, 1]
    with pytest.raises(QdrunTypeError, match="same number"):
        matrix.build(b, [[1, 2], [3]])
    with pytest.raises(QdrunTypeError, match="at most 12 x 12"):
        elimination.inverse(b, ops.as_value(b, matrix.identity(b, float, 13)))
