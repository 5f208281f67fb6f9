"""Scalars with Python's operators, for the algorithms of the linear algebra: every operator emits one operation.

All numbers of one algorithm have one real type, so nothing is promoted and Python numbers become literals of that type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import QdrunTypeError
from ...ir.nodes import Const, Local, Operand
from ...ir.types import DType
from . import ops
from .values import MatrixValue

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


@dataclass(frozen=True, slots=True, eq=False)
class Real:
    """A real scalar (or the truth value of a comparison) with the builder that emits operations on it."""

    b: FrontBuilder
    x: Operand

    @property
    def dtype(self) -> DType:
        """Its type."""
        return self.x.dtype

    def like(self, value: float) -> Real:
        """A literal of the same type."""
        return Real(self.b, Const(float(value), self.dtype))

    def _two(self, code: str, other: Real | float) -> Real:
        y = other if isinstance(other, Real) else self.like(other)
        return Real(self.b, ops.emit(self.b, code, self.x, y.x))

    def __add__(self, other: Real | float) -> Real:
        return self._two("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self._two("sub", other)

    def __mul__(self, other: Real | float) -> Real:
        return self._two("mul", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self._two("div", other)

    def __radd__(self, other: float) -> Real:
        return self.like(other)._two("add", self)

    def __rsub__(self, other: float) -> Real:
        return self.like(other)._two("sub", self)

    def __rmul__(self, other: float) -> Real:
        return self.like(other)._two("mul", self)

    def __rtruediv__(self, other: float) -> Real:
        return self.like(other)._two("div", self)

    def __neg__(self) -> Real:
        return Real(self.b, ops.emit(self.b, "neg", self.x))

    def __abs__(self) -> Real:
        return Real(self.b, ops.emit(self.b, "abs", self.x))

    def __lt__(self, other: Real | float) -> Real:
        return self._two("lt", other)

    def __le__(self, other: Real | float) -> Real:
        return self._two("le", other)

    def __gt__(self, other: Real | float) -> Real:
        return self._two("gt", other)

    def __ge__(self, other: Real | float) -> Real:
        return self._two("ge", other)

    def __and__(self, other: Real) -> Real:
        return self._two("and", other)

    def max(self, other: Real | float) -> Real:
        """The larger of two."""
        return self._two("max", other)

    def sqrt(self) -> Real:
        """The square root."""
        return Real(self.b, ops.emit(self.b, "sqrt", self.x))

    def rsqrt(self) -> Real:
        """The reciprocal of the square root."""
        return Real(self.b, ops.emit(self.b, "rsqrt", self.x))

    def where(self, yes: Real | float, no: Real | float) -> Real:
        """``yes`` where this truth value holds, else ``no``; one of them is not a Python number."""
        like = yes if isinstance(yes, Real) else no
        assert isinstance(like, Real)
        p, q = (v if isinstance(v, Real) else like.like(v) for v in (yes, no))
        if isinstance(self.x, Const):
            return p if self.x.value else q
        return Real(self.b, self.b.op("select", self.x, p.x, q.x))


Grid = list[list[Real]]
"""The rows of a matrix."""


def total(terms: Iterable[Real]) -> Real:
    """The sum of at least one scalar, left to right."""
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


def dot(x: Iterable[Real], y: Iterable[Real]) -> Real:
    """The sum of the products."""
    return total(p * q for p, q in zip(x, y, strict=True))


def read(b: FrontBuilder, local: Local) -> Real:
    """The content of a variable."""
    return Real(b, b.load(local))


def grid_of(b: FrontBuilder, a: Any, dt: Any, what: str, most: int) -> Grid:
    """A square matrix as rows of scalars of type ``dt`` (default: its own real type, else ``default_fp``).

    Raises:
        QdrunTypeError: it is not square, smaller than 2 x 2 or larger than ``most``; ``dt`` is not real.
    """
    m = ops.as_matrix(b, a, what)
    if len(m.shape) != 2 or m.n != m.m or not 2 <= m.n <= most:
        sizes = "2 x 2" if most == 2 else f"2 x 2 to {most} x {most}"
        raise QdrunTypeError(f"{what} takes a square matrix of {sizes}, not {ops.describe_value(m)}")
    dtype = real_dtype(b, m, dt, what)
    return rows_of(b, m, dtype)


def real_dtype(b: FrontBuilder, m: MatrixValue, dt: Any, what: str) -> DType:
    """The type to compute in: ``dt``, or the matrix's own.

    Raises:
        QdrunTypeError: ``dt`` is not real.
    """
    dtype = ops.real_type(b, m.items[0]) if dt is None else ops.as_dtype(b, dt)
    if not dtype.is_real:
        raise QdrunTypeError(f"{what} computes with reals, not {dtype}", hint="give dt=qd.f32 or dt=qd.f64")
    return dtype


def rows_of(b: FrontBuilder, m: MatrixValue, dtype: DType) -> Grid:
    """The rows of a matrix, cast."""
    return [[Real(b, ops.cast_scalar(b, m.at(i, j), dtype)) for j in range(m.m)] for i in range(m.n)]


def matrix_of(rows: Grid) -> MatrixValue:
    """Rows of scalars as a matrix."""
    return MatrixValue((len(rows), len(rows[0])), tuple(r.x for row in rows for r in row))
