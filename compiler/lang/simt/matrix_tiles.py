"""``qd.simt.Tile16x16`` and ``Tile32x32``: small square matrices that the lanes of a subgroup hold together, a row each.

Lane k has row k; lanes that a tile has no row for come along and hold nothing. ``frontend.source.tiles`` makes calls of ``_load``,
``_store``, ``_subtract`` and the like of what kernels write with slices.

The factorisation is the outer-product form of Cholesky's: G. H. Golub, C. F. Van Loan, "Matrix Computations", section 4.2.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import QdrunRuntimeError, QdrunTypeError
from ...frontend.library.functions import max, min, select, sqrt
from ...frontend.markers import Template, static, static_assert
from ...frontend.state.builder import FrontBuilder
from ...frontend.syntax.lanes import from_lane, group_size, invocation_id
from ...frontend.values.values import StructValue
from ...ir.types import DType, f32, f64
from ..data.element_types import MatrixType
from ..data.struct import METHODS, StructType
from ..function import func

if TYPE_CHECKING:
    ByReference = Any
else:
    ByReference = Template


class TileType(StructType):
    """The type of the tiles of ``n`` rows and columns with numbers of a type."""

    is_tile = True

    def __init__(self, n: int, dtype: DType) -> None:
        super().__init__(r=MatrixType((n,), dtype), **{METHODS: _methods(n)})
        self.name = f"Tile{n}x{n}"


def _methods(n: int) -> dict[str, Any]:
    return _loads(n) | _stores(n) | _columns(n) | _algebra(n)


@func
def _inside(row: Any, first: Any, stop: Any, extent: Any, n: Any) -> Any:
    """Whether this lane has a row of a tile that lies in the array and in the slice."""
    return row - first < static(n) and row < min(stop, extent)


@func
def _moved(j: Any, k: Any) -> Any:
    """``j + k``, as a variable: a literal index out of range is an error even where it is never used."""
    out = j
    out += k
    return out


@cache
def _loads(n: int) -> dict[str, Any]:
    """What reads a part of an array; what lies outside of the array or of the slice is left as it is."""

    @func
    def _load(self: Any, x: Any, i: Any, i_end: Any, j: Any, j_end: Any) -> None:
        row, end = i + invocation_id(), min(j_end, x.shape[1])
        if _inside(row, i, i_end, x.shape[0], n):
            for k in static(range(n)):
                if j + k < end:
                    self.r[k] = x[row, _moved(j, k)]

    @func
    def _load_of(self: Any, x: Any, batch: Any, i: Any, i_end: Any, j: Any, j_end: Any) -> None:
        row, end = i + invocation_id(), min(j_end, x.shape[2])
        if _inside(row, i, i_end, x.shape[1], n):
            for k in static(range(n)):
                if j + k < end:
                    self.r[k] = x[batch, row, _moved(j, k)]

    return {"_load": _load, "_load_of": _load_of}


@cache
def _stores(n: int) -> dict[str, Any]:
    """What writes to a part of an array, as far as the array and the slice reach."""

    @func
    def _store(self: Any, x: Any, i: Any, i_end: Any, j: Any, j_end: Any) -> None:
        row, end = i + invocation_id(), min(j_end, x.shape[1])
        if _inside(row, i, i_end, x.shape[0], n):
            for k in static(range(n)):
                if j + k < end:
                    x[row, _moved(j, k)] = self.r[k]

    @func
    def _store_of(self: Any, x: Any, batch: Any, i: Any, i_end: Any, j: Any, j_end: Any) -> None:
        row, end = i + invocation_id(), min(j_end, x.shape[2])
        if _inside(row, i, i_end, x.shape[1], n):
            for k in static(range(n)):
                if j + k < end:
                    x[batch, row, _moved(j, k)] = self.r[k]

    return {"_store": _store, "_store_of": _store_of}


@cache
def _columns(n: int) -> dict[str, Any]:
    """The element of a column that belongs to this lane; 0 outside of the array or of the slice."""

    @func
    def _column(self: Any, x: Any, i: Any, i_end: Any, j: Any) -> Any:
        row, found = i + invocation_id(), 0 * self.r[0]
        if _inside(row, i, i_end, x.shape[0], n):
            found = x[row, j]
        return found

    @func
    def _column_of(self: Any, x: Any, batch: Any, i: Any, i_end: Any, j: Any) -> Any:
        row, found = i + invocation_id(), 0 * self.r[0]
        if _inside(row, i, i_end, x.shape[1], n):
            found = x[batch, row, j]
        return found

    return {"_column": _column, "_column_of": _column_of}


@cache
def _algebra(n: int) -> dict[str, Any]:
    """What the rows compute together."""

    @func
    def eye_(self: Any) -> None:
        """Make this the identity."""
        for k in static(range(n)):
            self.r[k] = select(invocation_id() == k, 1, 0)

    @func
    def _subtract(self: Any, a: Any, b: Any) -> None:
        """``self -= outer(a, b)``: each lane gives its element of both vectors."""
        for k in static(range(n)):
            self.r[k] -= a * from_lane(b, k)

    @func
    def cholesky_(self: Any, eps: Any) -> None:
        """Make the lower triangle the factor L with L L^T = this tile. A square of the diagonal is at least ``eps``, which lanes give."""
        lane = invocation_id()
        for k in static(range(n)):
            pivot = from_lane(sqrt(max(self.r[k], eps)), k)
            if lane == k:
                self.r[k] = pivot
            elif lane > k:
                self.r[k] /= pivot
            for j in static(range(k + 1, n)):
                other = from_lane(self.r[k], j)
                if lane >= j:
                    self.r[j] -= self.r[k] * other

    @func
    def _divide(self: Any, factor: ByReference) -> None:
        """Make this the X with X L^T = this tile, row by row, ``factor``'s lower triangle being L."""
        for k in static(range(n)):
            rest = self.r[k]
            for j in static(range(k)):
                rest -= self.r[j] * from_lane(factor.r[j], k)
            self.r[k] = rest / from_lane(factor.r[k], k)

    @func
    def solve_triangular_(self: Any, B: ByReference, lower: Any = True) -> None:
        """Make B the X with X L^T = B, L being the lower triangle of this tile."""
        static_assert(lower, "solve_triangular_ has lower=True only")
        B._divide(self)

    found = {"eye_": eye_, "_subtract": _subtract, "cholesky_": cholesky_}
    return {**found, "_divide": _divide, "solve_triangular_": solve_triangular_}


@cache
def tile_type(n: int, dtype: DType) -> TileType:
    """The type of tiles of ``n`` rows."""
    return TileType(n, dtype)


class _Blank:
    """Makes a tile of zeros inside a kernel."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __qd_key__(self) -> tuple[Any, ...]:
        """The token for kernels that use it."""
        return ("tile", self.n)

    def __call__(self, dtype: Any = None) -> NoReturn:
        """A tile is of a kernel's threads.

        Raises:
            QdrunRuntimeError: always.
        """
        raise QdrunRuntimeError("a tile was made outside of a kernel; do: call zeros() or eye() inside a loop of a kernel")

    def __qd_lower__(self, b: FrontBuilder, dtype: Any = None) -> StructValue:
        """A tile of zeros.

        Raises:
            QdrunTypeError: tiles have no numbers of that type.
        """
        dtype = b.default_fp if dtype is None else dtype
        if dtype not in (f32, f64):
            raise QdrunTypeError(f"a tile holds numbers of f32 or f64, not {dtype}", hint="give dtype=qd.f32 or qd.f64")
        return tile_type(self.n, dtype).__qd_lower__(b)


class Tile:
    """Tiles of one size.

    Attributes:
        SIZE: rows and columns.
    """

    def __init__(self, n: int) -> None:
        self.SIZE = n
        blank, message = _Blank(n), f"Tile{n}x{n} needs subgroups of at least {n} threads, which this backend does not have"

        @func
        def zeros(dtype: Any = None) -> Any:
            """A tile of zeros. ``dtype``: f32 or f64; else the default of reals."""
            static_assert(group_size() >= n, message)
            return blank(dtype)

        @func
        def eye(dtype: Any = None) -> Any:
            """The identity. ``dtype``: as for ``zeros``."""
            made = zeros(dtype)
            made.eye_()
            return made

        self.zeros, self.eye = zeros, eye

    def __qd_key__(self) -> tuple[Any, ...]:
        """The token for kernels that use it."""
        return ("tiles", self.SIZE)


Tile16x16, Tile32x32 = Tile(16), Tile(32)

__all__ = ["Tile16x16", "Tile32x32"]
