"""Scalars with Python's operators, for the algorithms of the linear algebra: every operator emits one operation.

All numbers of one algorithm have one real type, so nothing is promoted and Python numbers become literals of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import QdrunTypeError
from ...ir.nodes import Const, Local, Operand
from ...ir.types import DType
from . import ops
from .values import MatrixValue

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder


def _operator(code: str) -> Callable[[Real, Real | float], Real]:
    return lambda self, other: self._two(code, other)


def _reflected(code: str) -> Callable[[Real, float], Real]:
    return lambda self, other: self.like(other)._two(code, self)


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

    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_reflected, ("add", "sub", "mul", "div"))
    __lt__, __le__, __gt__, __ge__, __and__ = map(_operator, ("lt", "le", "gt", "ge", "and"))

    def __neg__(self) -> Real:
        return Real(self.b, ops.emit(self.b, "neg", self.x))

    def __abs__(self) -> Real:
        return Real(self.b, ops.emit(self.b, "abs", self.x))

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
