"""Closed forms on small matrices inside kernels: products, norms, determinants, inverses, all as scalar arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import QdrunTypeError
from ...ir.nodes import Const, Operand
from ..values import ops
from ..values.matrix import transposed
from ..values.ops import add, as_matrix, inner, mul, sub
from ..values.values import Arg, MatrixValue, Value

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


MOST_DETERMINANT = 6
"""A determinant is expanded: n * 2 ** (n - 1) products."""


def _vector(b: FrontBuilder, x: Any, what: str) -> MatrixValue:
    m = as_matrix(b, x, what)
    if len(m.shape) != 1:
        raise QdrunTypeError(f"{what} takes vectors, not {ops.describe_value(m)}")
    return m


def _square(m: MatrixValue, what: str, limit: int = 0) -> int:
    if len(m.shape) != 2 or m.n != m.m:
        raise QdrunTypeError(f"{what} takes a square matrix, not {ops.describe_value(m)}")
    if limit and m.n > limit:
        raise QdrunTypeError(f"{what} is written out for matrices up to {limit} x {limit}, not {m.n} x {m.m}")
    return m.n


def _pair(b: FrontBuilder, x: Any, y: Any, what: str) -> tuple[MatrixValue, MatrixValue]:
    p, q = as_matrix(b, x, what), as_matrix(b, y, what)
    ops.common_shape(p, q)
    return p, q


def total(b: FrontBuilder, m: Any) -> Operand:
    """The sum of all components."""
    return add(b, *as_matrix(b, m, "sum").items)


def norm_sqr(b: FrontBuilder, m: Any) -> Operand:
    """The sum of the squares of all components."""
    items = as_matrix(b, m, "norm_sqr").items
    return inner(b, items, items)


def norm(b: FrontBuilder, m: Any, eps: Arg = 0.0) -> Operand:
    """``sqrt(norm_sqr + eps)``. At the zero vector the gradient is zero, the subgradient of least norm."""
    square = _squared(b, m, eps)
    root = ops.emit(b, "sqrt", square)
    if isinstance(square, Const) or (ops.is_number(eps) and eps > 0):
        return root
    # the slope of the square itself where it is not positive: the squares make that zero instead of 0 * inf
    return b.op("attach", root, b.op("select", b.op("gt", square, Const(0.0, square.dtype)), root, square))


def norm_inv(b: FrontBuilder, m: Any, eps: Arg = 0.0) -> Operand:
    """``1 / sqrt(norm_sqr + eps)``."""
    return ops.emit(b, "rsqrt", _squared(b, m, eps))


def _squared(b: FrontBuilder, m: Any, eps: Arg) -> Operand:
    square = norm_sqr(b, m)
    square = ops.cast_scalar(b, square, ops.real_type(b, square))
    return square if ops.is_number(eps) and eps == 0 else add(b, square, ops.to_operand(b, eps))


def normalized(b: FrontBuilder, m: Any, eps: Arg = 0.0) -> Value:
    """``m / (norm + eps)``, as a product with the reciprocal."""
    length = norm(b, m)
    if not (ops.is_number(eps) and eps == 0):
        length = add(b, length, ops.to_operand(b, eps))
    return ops.binary(b, "*", ops.binary(b, "/", 1.0, length), as_matrix(b, m, "normalized"))


def dot(b: FrontBuilder, x: Any, other: Any) -> Operand:
    """The inner product of two vectors."""
    p, q = _pair(b, _vector(b, x, "dot"), _vector(b, other, "dot"), "dot")
    return inner(b, p.items, q.items)


def frobenius_inner(b: FrontBuilder, x: Any, other: Any) -> Operand:
    """The sum of the products of the components of two matrices."""
    p, q = _pair(b, x, other, "frobenius_inner")
    return inner(b, p.items, q.items)


def cross(b: FrontBuilder, x: Any, other: Any) -> Value:
    """The cross product: a vector in three dimensions, a scalar in two.

    Raises:
        QdrunTypeError: the vectors have neither two nor three components.
    """
    p, q = _pair(b, _vector(b, x, "cross"), _vector(b, other, "cross"), "cross")

    def minor(i: int, j: int) -> Operand:
        return sub(b, mul(b, p.items[i], q.items[j]), mul(b, p.items[j], q.items[i]))

    if p.n == 2:
        return minor(0, 1)
    if p.n != 3:
        raise QdrunTypeError(f"cross takes vectors of two or three components, not {p.n}")
    return MatrixValue((3,), (minor(1, 2), minor(2, 0), minor(0, 1)))


def outer_product(b: FrontBuilder, x: Any, other: Any) -> MatrixValue:
    """The matrix of all products ``x[i] * other[j]``."""
    p, q = _vector(b, x, "outer_product"), _vector(b, other, "outer_product")
    return MatrixValue((p.n, q.n), tuple(mul(b, a, c) for a in p.items for c in q.items))


def transpose(b: FrontBuilder, m: Any) -> MatrixValue:
    """Rows become columns; a vector becomes a matrix of one row."""
    return transposed(as_matrix(b, m, "transpose"))


def trace(b: FrontBuilder, m: Any) -> Operand:
    """The sum of the diagonal of a square matrix."""
    x = as_matrix(b, m, "trace")
    return add(b, *(x.at(i, i) for i in range(_square(x, "trace"))))


Minors = dict[tuple[tuple[int, ...], tuple[int, ...]], Operand]


def minor_of(b: FrontBuilder, x: MatrixValue, rows: tuple[int, ...], columns: tuple[int, ...], known: Minors) -> Operand:
    """The determinant of a minor, expanded along its first row. ``known`` holds the minors that were emitted before.

    Without divisions: a polynomial of the entries, whose gradient is right at singular matrices, too.
    """
    if len(rows) == 1:
        return x.at(rows[0], columns[0])
    if (rows, columns) in known:
        return known[rows, columns]
    out: Operand | None = None
    for k, column in enumerate(columns):
        term = mul(b, x.at(rows[0], column), minor_of(b, x, rows[1:], columns[:k] + columns[k + 1 :], known))
        if out is None:
            out = term
        else:
            out = sub(b, out, term) if k % 2 else add(b, out, term)
    assert out is not None
    known[rows, columns] = out
    return out


def determinant(b: FrontBuilder, m: Any) -> Operand:
    """The determinant of a matrix of at most 6 x 6.

    Raises:
        QdrunTypeError: the matrix is not square, or larger.
    """
    x = as_matrix(b, m, "determinant")
    every = tuple(range(_square(x, "determinant", MOST_DETERMINANT)))
    return minor_of(b, x, every, every, {})


def cofactor_inverse(b: FrontBuilder, x: MatrixValue) -> MatrixValue:
    """The inverse by cofactors of a real matrix: finite for every regular matrix, inf or NaN for a singular one."""
    if x.n == 1:
        return MatrixValue((1, 1), (ops.to_operand(b, ops.binary(b, "/", 1.0, x.items[0])),))
    every = tuple(range(x.n))
    cofactors: dict[tuple[int, int], Operand] = {}
    known: Minors = {}
    for i in every:
        for j in every:
            minor = minor_of(b, x, every[:i] + every[i + 1 :], every[:j] + every[j + 1 :], known)
            cofactors[i, j] = ops.to_operand(b, ops.unary(b, "-", minor)) if (i + j) % 2 else minor
    det = inner(b, x.items[: x.n], [cofactors[0, j] for j in every])
    scale = ops.to_operand(b, ops.binary(b, "/", 1.0, det))
    return MatrixValue((x.n, x.n), tuple(mul(b, scale, cofactors[j, i]) for i in every for j in every))
