"""Eigenvalues inside kernels: symmetric matrices up to 6 x 6 by Jacobi's method, general 2 x 2 matrices in closed form.

With ``P = Q' dA Q`` the derivatives of the symmetric problem are ``dl = diag(P)`` and ``dQ = Q X`` with
``X[i, j] = P[i, j] / (l[j] - l[i])``.
Eigenvectors of equal eigenvalues have no derivative: the division gives inf or NaN there, unless nothing depends on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ir.nodes import Const, Exit
from ...ir.types import i32, u1
from ..values.real import Grid, Real, dot, grid_of, matrix_of, read, total
from ..values.values import MatrixValue
from .jacobi import SWEEPS, Columns, angle, assign, attached, detached, epsilon, reciprocal, turned, variables

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

MOST = 6


def sym_eig(b: FrontBuilder, A: Any, dt: Any = None) -> tuple[MatrixValue, MatrixValue]:
    """The eigenvalues in ascending order as a vector, and the eigenvectors as the columns of a matrix.

    Raises:
        QdrunTypeError: the matrix is not square, or larger than 6 x 6.
    """
    m = _symmetric_part(grid_of(b, A, dt, "sym_eig", MOST))
    n = range(len(m))
    values, q = eigen(b, detached(m))
    p = _in_basis(m, q)
    slopes = [[p[i][j] / (values[j] - values[i]) if i != j else p[i][j] for j in n] for i in n]
    out, vectors = _attach(values, q, p, slopes)
    return MatrixValue((len(m),), tuple(x.x for x in out)), matrix_of(vectors)


def _attach(values: list[Real], q: Columns, p: Grid, slopes: Grid) -> tuple[list[Real], Grid]:
    """The eigenvalues with the gradient of ``diag(P)`` and the rows of ``Q`` with that of ``Q X``; X has a zero diagonal."""
    n = range(len(values))
    vectors = [[attached(q[j][i], total(q[k][i] * slopes[k][j] for k in n if k != j)) for j in n] for i in n]
    return [attached(values[i], p[i][i]) for i in n], vectors


def make_spd(b: FrontBuilder, A: Any, dt: Any = None) -> MatrixValue:
    """The nearest symmetric matrix without negative eigenvalues. It has a derivative wherever no eigenvalue is zero.

    Raises:
        QdrunTypeError: the matrix is not square, or larger than 6 x 6.
    """
    a = _symmetric_part(grid_of(b, A, dt, "make_spd", MOST))
    n = range(len(a))
    values, q = eigen(b, detached(a))
    kept = [(x < 0.0).where(0.0, x) for x in values]
    p = _in_basis(a, q)
    least = total(abs(x) for x in values) * epsilon(values[0].dtype)
    weighted: Grid = [[p[i][j] * _quotient(values, kept, i, j, least) for j in n] for i in n]
    half = {}
    for i in n:
        for j in n[i:]:
            value = total(q[k][i] * kept[k] * q[k][j] for k in n)
            row = [total(q[k][i] * weighted[k][m] for k in n) for m in n]
            half[i, j] = attached(value, dot(row, [column[j] for column in q]))
    _attach(
        values, q, p, [[p[i][j] * reciprocal(values[j] - values[i], least) for j in n] for i in n]
    )  # for second derivatives
    return matrix_of([[half[min(i, j), max(i, j)] for j in n] for i in n])


def _quotient(values: list[Real], kept: list[Real], i: int, j: int, least: Real) -> Real:
    """The divided difference of ``max(l, 0)`` between two eigenvalues."""
    positive = (values[i] > 0.0).where(values[i].like(1.0), 0.0)
    if i == j:
        return positive
    gap = values[i] - values[j]
    usual = abs(gap) > least
    return usual.where((kept[i] - kept[j]) / usual.where(gap, 1.0), positive)


def _symmetric_part(m: Grid) -> Grid:
    """``(A + A') / 2``: what the functions of this file work on, so that their gradients are symmetric."""
    n = range(len(m))
    upper = {(i, j): m[i][i] if i == j else (m[i][j] + m[j][i]) * 0.5 for i in n for j in n[i:]}
    return [[upper[min(i, j), max(i, j)] for j in n] for i in n]


def _in_basis(m: Grid, q: Columns) -> Grid:
    """``Q' A Q`` of a live symmetric matrix."""
    n = range(len(m))
    half = [[dot(row, column) for column in q] for row in m]
    upper = {(i, j): dot(q[i], [row[j] for row in half]) for i in n for j in n[i:]}
    return [[upper[min(i, j), max(i, j)] for j in n] for i in n]


def eigen(b: FrontBuilder, m: Grid) -> tuple[list[Real], Columns]:
    """Eigenvalues in ascending order and eigenvectors of a detached symmetric matrix, of which the upper triangle is read."""
    n = range(len(m))
    one, zero = m[0][0].like(1.0), m[0][0].like(0.0)
    size = zero
    for entry in (m[i][j] for i in n for j in n[i:]):
        size = abs(entry).max(size)
    scale = (size > 0.0).where(size, 1.0)
    work = {(i, j): b.local((m[i][j] / scale).x, "entry") for i in n for j in n[i:]}
    basis = [variables(b, [one if i == j else zero for i in n], "basis") for j in n]
    with b.loop(Const(0, i32), Const(SWEEPS, i32)):
        busy = b.local(Const(False, u1), "busy")
        for p in n:
            for q in n[p + 1 :]:
                product = read(b, work[p, q])
                needed = abs(product) > epsilon(one.dtype) / 8.0
                b.store(busy, b.op("or", b.load(busy), needed.x))
                _rotate(b, work, basis, p, q, needed)
        with b.if_(b.op("not", b.load(busy))):
            b.put(Exit("break"))
    values = [read(b, work[k, k]) * scale for k in n]
    columns = [[read(b, v) for v in c] for c in basis]
    for p in n:
        for q in n[p + 1 :]:
            swap = values[q] < values[p]
            values[p], values[q] = swap.where(values[q], values[p]), swap.where(values[p], values[q])
            first = [swap.where(y, x) for x, y in zip(columns[p], columns[q])]
            columns[q] = [swap.where(x, y) for x, y in zip(columns[p], columns[q])]
            columns[p] = first
    return values, columns


def _rotate(b: FrontBuilder, work: dict[tuple[int, int], Any], basis: list[Any], p: int, q: int, needed: Real) -> None:
    """One Jacobi rotation: the entry (p, q) becomes zero."""
    n = range(len(basis))
    x, y, product = read(b, work[p, p]), read(b, work[q, q]), read(b, work[p, q])
    cosine, sine, t = angle(y - x, product * 2.0, needed)
    change = t * product
    assign(b, [work[p, p], work[q, q], work[p, q]], [x - change, y + change, needed.where(0.0, product)])
    for k in n:
        if k not in (p, q):
            places = [work[min(k, p), max(k, p)], work[min(k, q), max(k, q)]]
            assign(b, places, turned(read(b, places[0]), read(b, places[1]), cosine, sine))
        assign(b, [basis[p][k], basis[q][k]], turned(read(b, basis[p][k]), read(b, basis[q][k]), cosine, sine))


def eig(b: FrontBuilder, A: Any, dt: Any = None) -> tuple[MatrixValue, MatrixValue]:
    """Eigenvalues and eigenvectors of a 2 x 2 matrix, as complex numbers.

    Returns:
        Eigenvalues, one a row (real part, imaginary part); the larger one, or the one with the positive imaginary part, first.
        Eigenvectors of length 1, one a column, each (re, im, re, im).

    Raises:
        QdrunTypeError: the matrix is not 2 x 2.
    """
    (a, c), (d, e) = grid_of(b, A, dt, "eig", 2)
    half, mean = (a - e) * 0.5, (a + e) * 0.5
    square = half * half + c * d
    zero = a.like(0.0)
    is_real = square >= 0.0
    root = abs(square).sqrt()
    re, im = is_real.where(root, zero), is_real.where(zero, root)
    first, second = mean + re, mean - re
    vectors = [_eigenvector((a, c, d, e), (half, re * sign, im * sign), is_real, axis) for sign, axis in ((1.0, 2), (-1.0, 0))]
    return matrix_of([[first, im], [second, -im]]), matrix_of([[v[k] for v in vectors] for k in range(4)])


def _eigenvector(entries: tuple[Real, ...], eigenvalue: tuple[Real, Real, Real], is_real: Real, axis: int) -> list[Real]:
    """The first column of ``A - other eigenvalue`` at length 1, computed from the second when that is longer; an axis for ``A = c I``."""
    _, c, d, _ = entries
    half, re, im = eigenvalue
    one = [half + re, im, d, d.like(0.0)]  # A[0, 0] minus the other eigenvalue, A[1, 0]
    two = [c, c.like(0.0), re - half, im]
    turn = (dot(one, two) < 0.0).where(c.like(-1.0), 1.0)
    other = is_real & (dot(one, one) < dot(two, two))
    v = [other.where(y * turn, x) for x, y in zip(one, two)]
    square = dot(v, v)
    usual = square > 0.0
    scale = usual.where(square, 1.0).rsqrt()
    return [usual.where(x * scale, float(k == axis)) for k, x in enumerate(v)]
