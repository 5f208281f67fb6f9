"""Singular values inside kernels: ``A = U S V'`` of 2 x 2 and 3 x 3 matrices.

The singular values stand in descending order. V is a rotation. 2 x 2: no singular value is negative, and det U has the sign of det A.
3 x 3: U is a rotation, too, and the last singular value has the sign of det A.

With ``P = U' dA V`` the derivatives are ``dS = diag(P)``, ``dU = U X``, ``dV = V Y`` with antisymmetric X and Y, whose sum has the
divisor ``s[j] - s[i]`` and whose difference has ``s[j] + s[i]``. Where a divisor is zero, that part of U and V has no derivative. It is
left out of them, and the off-diagonal entries of S carry it, so that ``U S V'`` has its derivative at every A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..values.real import Grid, Real, dot, grid_of, matrix_of, total
from ..values.values import MatrixValue
from .jacobi import Columns, attach_inverse, attached, detached, epsilon, orthogonal_columns, reciprocal

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

TIES = 16.0
"""Singular values that differ by this many roundings of the largest one count as equal."""


@dataclass(frozen=True)
class Singular:
    """Numbers without gradients: the columns of U and V, the singular values."""

    u: Columns
    s: list[Real]
    v: Columns

    def rotation(self) -> Grid:
        """The rows of ``U V'``."""
        n = range(len(self.s))
        return [[dot([c[i] for c in self.u], [c[j] for c in self.v]) for j in n] for i in n]

    def stretch(self) -> Grid:
        """The rows of ``V S V'``."""
        return symmetric(self.v, self.s)


def symmetric(columns: Columns, values: list[Real]) -> Grid:
    """The rows of ``Q diag(values) Q'``."""
    n = range(len(values))
    half = {(i, j): total(c[i] * x * c[j] for c, x in zip(columns, values)) for i in n for j in n if i <= j}
    return [[half[min(i, j), max(i, j)] for j in n] for i in n]


def decompose3(b: FrontBuilder, m: Grid) -> Singular:
    """The singular values of a detached 3 x 3 matrix."""
    largest = m[0][0].like(0.0)
    for entry in (x for row in m for x in row):
        largest = abs(entry).max(largest)
    scale = (largest > 0.0).where(largest, 1.0)
    work, v = orthogonal_columns(b, [[x / scale for x in row] for row in m])
    squares = [dot(c, c) for c in work]
    for p, q in ((0, 1), (0, 2), (1, 2)):
        _order(squares, (work, v), p, q)
    u0 = _unit(work[0], squares[0], [work[0][0].like(float(k == 0)) for k in range(3)])
    u1_ = _beside(u0, work[1], v)
    u = [u0, u1_, cross(u0, u1_)]
    return Singular(u, [dot(u[k], work[k]) * scale for k in range(3)], v)


def _order(squares: list[Real], columns: tuple[Columns, Columns], p: int, q: int) -> None:
    """Swap two columns when the second one is longer; one of them changes its sign, so that V stays a rotation."""
    swap = squares[q] > squares[p]
    squares[p], squares[q] = swap.where(squares[q], squares[p]), swap.where(squares[p], squares[q])
    for c in columns:
        first = [swap.where(y, x) for x, y in zip(c[p], c[q])]
        c[q] = [swap.where(-x, y) for x, y in zip(c[p], c[q])]
        c[p] = first


def _unit(x: list[Real], square: Real, instead: list[Real]) -> list[Real]:
    """``x`` at length 1; ``instead`` when it is zero."""
    usual = square > 0.0
    scale = usual.where(square, 1.0).rsqrt()
    return [usual.where(e * scale, f) for e, f in zip(x, instead)]


def _beside(u: list[Real], x: list[Real], v: Columns) -> list[Real]:
    """The unit vector along the part of ``x`` that is orthogonal to ``u``; of a column of V when there is none."""
    others = [_orthogonal(u, v[k]) for k in (1, 2)]
    wide = dot(others[0], others[0]) > 0.25
    other = [wide.where(p, q) for p, q in zip(*others)]
    other = _unit(other, dot(other, other), v[1])
    rest = _orthogonal(u, x)
    return _unit(rest, dot(rest, rest), other)


def _orthogonal(u: list[Real], x: list[Real]) -> list[Real]:
    along = dot(u, x)
    return [e - along * f for e, f in zip(x, u)]


def cross(x: list[Real], y: list[Real]) -> list[Real]:
    """The cross product."""
    return [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]


def decompose2(m: Grid) -> Singular:
    """The singular values of a detached 2 x 2 matrix: the polar decomposition, then one rotation."""
    r, ((x, y), (_, z)) = polar2(m)
    half = (x - z) * 0.5
    root = (half * half + y * y).sqrt()
    below = half + (half > 0.0).where(root, -root)
    usual = abs(below) > 0.0
    t = usual.where(y, 0.0) / usual.where(below, 1.0)
    c = (t * t + 1.0).rsqrt()
    s = -(t * c)
    first, second = (x + t * y).max(0.0), (z - t * y).max(0.0)
    swap = first < second
    v = [[swap.where(-s, c), swap.where(-c, -s)], [swap.where(c, s), swap.where(-s, c)]]
    u = [[dot(row, column) for row in r] for column in v]
    return Singular(u, [swap.where(second, first), swap.where(first, second)], v)


def polar2(m: Grid) -> tuple[Grid, Grid]:
    """``R`` and ``S`` of a 2 x 2 matrix in closed form, with gradients: R turns by the angle of (a + d, b - c), or mirrors.

    The zero matrix has R = I.
    """
    (a, c), (d, e) = m
    mirrored = a * e - c * d < 0.0
    p, q = a + mirrored.where(-e, e), c - mirrored.where(-d, d)
    square = p * p + q * q
    usual = square > 0.0  # both are zero for the zero matrix only
    scale = usual.where(square, 1.0).rsqrt()
    p, q = usual.where(p, 1.0) * scale, usual.where(q, 0.0) * scale
    third, fourth = mirrored.where(q, -q), mirrored.where(-p, p)
    s01 = p * c + third * e
    return [[p, q], [third, fourth]], [[p * a + third * d, s01], [s01, q * c + fourth * e]]


def svd(b: FrontBuilder, A: Any, dt: Any = None) -> tuple[MatrixValue, MatrixValue, MatrixValue]:
    """``U, S, V`` with ``A = U S V'``; S is a diagonal matrix.

    Raises:
        QdrunTypeError: the matrix is neither 2 x 2 nor 3 x 3.
    """
    m = grid_of(b, A, dt, "svd", 3)
    n, at = range(len(m)), detached(m)
    found = decompose3(b, at) if len(m) == 3 else decompose2(at)
    u, s, v = found.u, found.s, found.v
    half = [[total(column[i] * m[i][j] for i in n) for j in n] for column in u]
    p = [[dot(row, column) for column in v] for row in half]
    least = total(abs(x) for x in s) * (TIES * epsilon(s[0].dtype))
    zero = s[0].like(0.0)
    x, y, stretch = ([[zero] * len(m) for _ in n] for _ in range(3))
    for i in n:
        stretch[i][i] = attached(s[i], p[i][i])
        for j in range(i + 1, len(m)):
            both, difference = p[i][j] + p[j][i], p[i][j] - p[j][i]
            (one, rest), (other, turn) = _parts(both, s[j] - s[i], least), _parts(difference, s[j] + s[i], least)
            x[i][j], y[i][j] = one + other, one - other
            x[j][i], y[j][i] = -x[i][j], -y[i][j]
            stretch[i][j], stretch[j][i] = attached(zero, rest + turn), attached(zero, rest - turn)
    return _turned(u, x), matrix_of(stretch), _turned(v, y)


def _parts(slope: Real, divisor: Real, least: Real) -> tuple[Real, Real]:
    """Half of ``slope / divisor`` and 0, or 0 and half of ``slope`` where the divisor counts as zero."""
    usual = abs(divisor) > least
    return slope * (usual.where(0.5, divisor.like(0.0)) / usual.where(divisor, 1.0)), slope * usual.where(
        divisor.like(0.0), 0.5
    )


def _turned(columns: Columns, generator: Grid) -> MatrixValue:
    """``Q`` with the gradient of ``Q X``."""
    n = range(len(columns))
    return matrix_of(
        [[attached(columns[j][i], total(columns[k][i] * generator[k][j] for k in n if k != j)) for j in n] for i in n]
    )


def polar_decompose(b: FrontBuilder, A: Any, dt: Any = None) -> tuple[MatrixValue, MatrixValue]:
    """``R, S`` with ``A = R S``: R orthogonal, S symmetric.

    2 x 2: R has the sign of det A and S no negative eigenvalue. 3 x 3: R is the rotation nearest to A; where det A is negative, so is
    one eigenvalue of S. The derivatives are ``dR = R [w]`` and ``dS = R' dA - [w] S``, where ``(tr(S) I - S) w`` is the axial vector
    of ``R' dA - dA' R``. They exist where no two eigenvalues of S cancel: at A = I, and at singular matrices of rank 2.

    Raises:
        QdrunTypeError: the matrix is neither 2 x 2 nor 3 x 3.
    """
    m = grid_of(b, A, dt, "polar_decompose", 3)
    if len(m) == 2:
        r, s = polar2(m)
        return matrix_of(r), matrix_of(s)
    found = decompose3(b, detached(m))
    r, s, n = found.rotation(), found.stretch(), range(3)
    rotated = [[total(r[k][i] * m[k][j] for k in n) for j in n] for i in n]
    axial = [rotated[i][j] - rotated[j][i] for i, j in ((2, 1), (0, 2), (1, 0))]
    values = found.s
    least = total(abs(x) for x in values) * (TIES * epsilon(values[0].dtype))
    inverse = symmetric(
        found.v, [reciprocal(x, least) for x in (values[1] + values[2], values[0] + values[2], values[0] + values[1])]
    )
    w = [dot(row, axial) for row in inverse]
    slopes = [cross(row, w) for row in r]
    turned = [cross(w, column) for column in s]  # the columns of [w] S
    slope = [[rotated[min(i, j)][max(i, j)] - turned[max(i, j)][min(i, j)] for j in n] for i in n]
    stretch = [[attached(s[i][j], slope[i][j]) for j in n] for i in n]
    trace = slope[0][0] + slope[1][1] + slope[2][2]
    attach_inverse(inverse, [[trace - slope[i][j] if i == j else -slope[i][j] for j in n] for i in n])
    return matrix_of([[attached(r[i][j], slopes[i][j]) for j in n] for i in n]), matrix_of(stretch)
