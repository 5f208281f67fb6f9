"""Jacobi iterations inside kernels: the singular values of a 3 x 3 matrix and the eigenvalues of a symmetric one.

They run on detached numbers, in a loop that ends when nothing is left to rotate, so reverse mode keeps nothing of them: what uses their
results attaches the derivative to them (``attached``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ir.nodes import Const, Exit, Local
from ...ir.types import DType, f64, i32, u1
from ..values.real import Grid, Real, dot, read, total

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

Columns = list[list[Real]]

SWEEPS = 16
"""Maximum sweeps, more than any matrix needs (quadratic convergence: 4 to 8); a NaN ends the loop at once."""


def epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number of a type that linear algebra computes in."""
    return 2.0**-52 if dtype is f64 else 2.0**-23 if dtype.bits == 32 else 2.0**-10


def detached(rows: Grid) -> Grid:
    """The same numbers, detached from gradients."""
    return [[Real(r.b, r.b.op("detach", r.x)) for r in row] for row in rows]


def attached(value: Real, slope: Real) -> Real:
    """``value``, with the gradient of ``slope``."""
    return Real(value.b, value.b.op("attach", value.x, slope.x))


def attach_inverse(x: Grid, slope: Grid) -> Grid:
    """``X``, the inverse of a matrix with this slope, with the gradient of its own: ``-X slope X``.

    Where nothing but another slope reads it, second derivatives do.
    """
    n = range(len(x))
    half = [[total(x[i][k] * slope[k][j] for k in n) for j in n] for i in n]
    return [[attached(x[i][j], -total(half[i][k] * x[k][j] for k in n)) for j in n] for i in n]


def reciprocal(x: Real, least: Real) -> Real:
    """``1 / x``, or 0 where x counts as zero."""
    usual = abs(x) > least
    return usual.where(1.0, x.like(0.0)) / usual.where(x, 1.0)


def variables(b: FrontBuilder, values: Sequence[Real], name: str) -> list[Local]:
    """A variable for each number."""
    return [b.local(v.x, name) for v in values]


def assign(b: FrontBuilder, targets: Sequence[Local], values: Sequence[Real]) -> None:
    """Store each number to its variable."""
    for local, v in zip(targets, values, strict=True):
        b.store(local, v.x)


def angle(gap: Real, twice: Real, needed: Real) -> tuple[Real, Real, Real]:
    """Cosine, sine and tangent of the rotation that makes the product of two columns zero.

    Args:
        gap: the difference of their squares, second minus first.
        twice: two times their product.
        needed: whether to rotate at all.
    """
    root = (gap * gap + twice * twice).sqrt()
    t = needed.where(twice, 0.0) / needed.where(gap + (gap < 0.0).where(-root, root), 1.0)
    cosine = (t * t + 1.0).rsqrt()
    return cosine, t * cosine, t


def turned(x: Real, y: Real, cosine: Real, sine: Real) -> tuple[Real, Real]:
    """The pair rotated."""
    return cosine * x - sine * y, sine * x + cosine * y


def orthogonal_columns(b: FrontBuilder, m: Grid) -> tuple[Columns, Columns]:
    """Columns of ``m V``, orthogonal to each other, and of the rotation V, by one-sided Jacobi on a scaled 3 x 3 matrix."""
    one, zero = m[0][0].like(1.0), m[0][0].like(0.0)
    work = [variables(b, [m[i][j] for i in range(3)], "column") for j in range(3)]
    basis = [variables(b, [one if i == j else zero for i in range(3)], "basis") for j in range(3)]
    least = epsilon(one.dtype) ** 2
    with b.loop(Const(0, i32), Const(SWEEPS, i32)):
        busy = b.local(Const(False, u1), "busy")
        for p, q in ((0, 1), (0, 2), (1, 2)):
            x, y = ([read(b, v) for v in work[k]] for k in (p, q))
            a, c, product = dot(x, x), dot(y, y), dot(x, y)
            needed = product * product > a * c * least
            b.store(busy, b.op("or", b.load(busy), needed.x))
            cosine, sine, _ = angle(c - a, product * 2.0, needed)
            for columns in (work, basis):
                pairs = [turned(read(b, s), read(b, t), cosine, sine) for s, t in zip(columns[p], columns[q])]
                assign(b, columns[p], [u for u, _ in pairs])
                assign(b, columns[q], [u for _, u in pairs])
        with b.if_(b.op("not", b.load(busy))):
            b.put(Exit("break"))
    return [[read(b, v) for v in c] for c in work], [[read(b, v) for v in c] for c in basis]
