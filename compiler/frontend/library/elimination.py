"""Linear systems inside kernels: Gauss-Jordan elimination with row pivoting on detached numbers, with exact derivatives attached.

``x = inv(A) b`` has ``dx = inv(A) (db - dA x)``, and ``X = inv(A)`` has ``dX = -X dA X``:
linear in what varies, whatever the elimination did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import QdrunTypeError
from ...ir.nodes import Assert
from ..values import ops
from ..values.real import Grid, Real, dot, matrix_of, real_dtype, rows_of, total
from ..values.values import MatrixValue
from . import linalg
from .host_linalg import WORST
from .jacobi import attach_inverse, attached, detached

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

MOST = 12
"""The elimination is written out: about 2 n ** 3 operations."""

TWICE = 6
"""The largest system with second derivatives, which take as many operations again."""


def _square(b: FrontBuilder, A: Any, what: str) -> MatrixValue:
    m = ops.as_matrix(b, A, what)
    if len(m.shape) != 2 or m.n != m.m or m.n > MOST:
        raise QdrunTypeError(f"{what} takes a square matrix of at most {MOST} x {MOST}, not {ops.describe_value(m)}")
    return m


def solve(b: FrontBuilder, A: Any, rhs: Any, dt: Any = None) -> MatrixValue:
    """The vector ``x`` with ``A x = rhs``. With ``debug=True`` a singular matrix, exactly or nearly, stops the launch; without, it
    gives inf, NaN or whatever rounding leaves.

    Raises:
        QdrunTypeError: A is not square, or larger than 12 x 12; rhs is no vector of as many components.
    """
    m, right = _square(b, A, "solve"), ops.as_matrix(b, rhs, "solve")
    if right.shape != (m.n,):
        raise QdrunTypeError(f"solve needs a vector of {m.n} at the right side, not {ops.describe_value(right)}")
    dtype = real_dtype(b, MatrixValue((2,), (m.items[0], ops.cast_scalar(b, right.items[0], m.dtype))), dt, "solve")
    a, y = rows_of(b, m, dtype), [Real(b, ops.cast_scalar(b, v, dtype)) for v in right.items]
    n = range(len(a))
    at, (fixed,) = detached(a), detached([y])
    done = _eliminated([[*at[i], fixed[i], *_unit_row(at[0][0], i, len(a))] for i in n])
    x, inverse = [row[0] for row in done], [row[1:] for row in done]
    _check(b, "solve()", at, [[v] for v in x], [[v] for v in fixed])
    rest = [y[i] - dot(a[i], x) for i in n]
    if len(a) <= TWICE:
        attach_inverse(inverse, a)
    return MatrixValue((len(a),), tuple(attached(x[i], dot(inverse[i], rest)).x for i in n))


def inverse(b: FrontBuilder, m: Any) -> MatrixValue:
    """The inverse of a square matrix: by cofactors up to 4 x 4, else by elimination. Singular matrices are as for ``solve``.

    Raises:
        QdrunTypeError: the matrix is not square, or larger than 12 x 12.
    """
    x = _square(b, m, "inverse")
    dtype = real_dtype(b, x, None, "inverse")
    a = rows_of(b, x, dtype)
    at = detached(a)
    one = [_unit_row(at[0][0], i, x.n) for i in range(x.n)]
    if x.n <= 2:
        found = rows_of(b, linalg.cofactor_inverse(b, matrix_of(a)), dtype)
    elif x.n <= 4:
        found = attach_inverse(rows_of(b, linalg.cofactor_inverse(b, matrix_of(at)), dtype), a)
    else:
        found = attach_inverse(_eliminated([[*row, *unit] for row, unit in zip(at, one)]), a)
    if b.debug:
        _check(b, "inverse()", at, detached(found), one)
    return matrix_of(found)


def _check(b: FrontBuilder, what: str, a: Grid, x: Grid, right: Grid) -> None:
    """With ``debug=True``: stop where ``a x`` is not ``right``. Of numbers that are not finite nothing is said."""
    if not b.debug:
        return
    columns = range(len(right[0]))
    rest = total(abs(dot(row, [v[k] for v in x]) - want[k]) for row, want in zip(a, right) for k in columns)
    size = total(abs(v) for row in right for v in row)
    given = total(abs(v) for row in a for v in row) + size
    finite = given - given <= 0.0
    solved = finite.where(rest <= size * WORST[size.dtype.size], rest.like(0.0) <= 0.0)
    message = f"{what} of a singular matrix, or nearly so: the residual is {{}} where the right side is {{}}"
    b.put(Assert(solved.x, message, (rest.x, size.x), b.loc))


def _unit_row(like: Real, i: int, n: int) -> list[Real]:
    return [like.like(float(i == j)) for j in range(n)]


def _eliminated(rows: Grid) -> Grid:
    """Reduce the square part to the identity. Returns the columns to the right of it."""
    n = len(rows)
    for k in range(n):
        for other in range(k + 1, n):
            swap = abs(rows[other][k]) > abs(rows[k][k])
            pairs = list(zip(rows[k][k:], rows[other][k:]))
            rows[k][k:] = [swap.where(y, x) for x, y in pairs]
            rows[other][k:] = [swap.where(x, y) for x, y in pairs]
        scale = 1.0 / rows[k][k]
        rows[k][k + 1 :] = [x * scale for x in rows[k][k + 1 :]]
        for other in range(n):
            if other != k:
                factor = rows[other][k]
                rows[other][k + 1 :] = [x - factor * y for x, y in zip(rows[other][k + 1 :], rows[k][k + 1 :])]
    return [row[n:] for row in rows]
