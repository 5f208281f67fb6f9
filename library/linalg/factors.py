"""Factors of sparse matrices, made and applied by kernels of one thread.

``SymmetricFactor`` is L D L^T, row after row (up-looking; Davis, Direct methods for sparse linear systems, 2006), in the order of nested
dissection. Unknowns whose pivot is small beside its row are moved to the end, and their Schur complement is a dense ``GeneralFactor`` with
pivoting: then indefinite matrices, as of systems with multipliers, are solved as well as definite ones.

``GeneralFactor`` is L U with the pivoting of rows, in a band (as LAPACK's gbtrf keeps it), in the order of reverse
Cuthill-McKee. The memory of both is known before they start.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...compiler.extend import ArrayForm, borrowed, make_ndarray
from ...compiler.face import Ndarray, QdrunRuntimeError, Tensor, abs, cast, i32, kernel, max, min, ndrange
from .ordering import nested_dissection, reverse_cuthill_mckee
from .pattern import Pattern


class Factor(Protocol):
    """A factorised matrix."""

    values: np.ndarray
    """The values of the entries that it was made of."""
    state: str
    """"" if it can solve, or what is wrong with the matrix."""

    def solve(self, b: Any, x: Any, transposed: bool = False) -> None:
        """``x`` = the solution for ``b``, or that of the transposed matrix."""
        ...


@kernel
def _place(values: Tensor, places: Tensor, a: Tensor) -> None:
    for k in a:
        a[k] = cast(0, a.dtype)
    for entry in places:
        if places[entry] >= 0:
            a[places[entry]] = values[entry]


@kernel
def _symbolic(begins: Tensor, rows: Tensor, parent: Tensor, counts: Tensor, mark: Tensor) -> None:
    """The elimination tree, and the entries below the diagonal in each column of L (Liu, The role of elimination trees, 1990)."""
    for _ in range(1):
        for j in range(parent.shape[0]):
            parent[j] = -1
            counts[j] = 0
            mark[j] = j
            for p in range(begins[j], begins[j + 1]):
                i = rows[p]
                while mark[i] != j:
                    if parent[i] < 0:
                        parent[i] = j
                    counts[i] = counts[i] + 1
                    mark[i] = j
                    i = parent[i]


@kernel
def _ldlt(
    a: Tensor,
    begins: Tensor,
    rows: Tensor,
    parent: Tensor,
    starts: Tensor,
    below: Tensor,
    values: Tensor,
    d: Tensor,
    y: Tensor,
    work: Tensor,
    state: Tensor,
    weak: Tensor,
    schur: Tensor,
    last: int,
    floor: float,
) -> None:
    """Row after row of L: the columns that row k meets are found by the tree, in an order in which each comes before its parent.

    A pivot below ``floor`` times the largest number that it is made of, or 1, is ``weak``: its column is left out, as if the matrix were
    without it. Columns from ``last`` on are not eliminated: ``schur`` gets what is left of them.
    """
    for _ in range(1):
        n = parent.shape[0]
        state[0] = 0
        for k in weak:
            weak[k] = 0
        for k in range(n):
            y[k] = cast(0, y.dtype)
            work[k] = -1  # the last row that met this column
            work[n + k] = starts[k]  # where the next entry of this column goes
        for k in range(n):
            top = n
            work[k] = k
            for p in range(begins[k], begins[k + 1]):
                i, depth = rows[p], 0
                y[i] = a[n + p]
                while work[i] != k:
                    work[2 * n + depth] = i
                    depth += 1
                    work[i] = k
                    i = parent[i]
                while depth > 0:
                    depth -= 1
                    top -= 1
                    work[3 * n + top] = work[2 * n + depth]
            pivot, size = a[k], max(abs(a[k]), cast(1, a.dtype))  # the row's other numbers are about 1, also those to come
            for t in range(top, n):
                column = work[3 * n + t]
                u, end = y[column], work[n + column]
                y[column] = cast(0, y.dtype)
                if column >= last:
                    schur[(k - last) * (n - last) + column - last] = u
                    schur[(column - last) * (n - last) + k - last] = u
                    continue
                if weak[column] != 0:
                    continue
                for p in range(starts[column], end):
                    y[below[p]] = y[below[p]] - values[p] * u
                scaled = u / d[column]
                pivot -= scaled * u
                size = max(size, abs(scaled * u))
                below[end] = k
                values[end] = scaled
                work[n + column] = end + 1
            d[k] = pivot
            if k >= last:
                schur[(k - last) * (n - last) + k - last] = pivot
                continue
            if floor > 0:
                if not abs(pivot) > floor * size:
                    weak[k] = 1
                    continue
            elif not abs(pivot) > 0:
                state[0] = 2
                break
            if pivot < 0:
                state[0] = 1


@kernel
def _ldlt_forward(
    starts: Tensor, below: Tensor, values: Tensor, d: Tensor, old: Tensor, b: Tensor, y: Tensor, last: int
) -> None:
    for _ in range(1):
        for i in range(d.shape[0]):
            y[i] = b[old[i]]
        for j in range(last):
            u = y[j]
            for p in range(starts[j], starts[j + 1]):
                y[below[p]] = y[below[p]] - values[p] * u


@kernel
def _ldlt_backward(
    starts: Tensor, below: Tensor, values: Tensor, d: Tensor, old: Tensor, y: Tensor, x: Tensor, last: int
) -> None:
    for _ in range(1):
        for i in range(last, d.shape[0]):
            x[old[i]] = y[i]
        for back in range(last):
            j = last - 1 - back
            s = y[j] / d[j]
            for p in range(starts[j], starts[j + 1]):
                s -= values[p] * y[below[p]]
            y[j] = s
            x[old[j]] = s


@kernel
def _part(source: Tensor, target: Tensor, source_begin: int, target_begin: int, count: int) -> None:
    for i in range(count):
        target[target_begin + i] = source[source_begin + i]


@kernel
def _square(schur: Tensor, a: Tensor, m: int) -> None:
    """A dense matrix in the form of a band that has all of its diagonals, and room for the exchange of rows."""
    for k in a:
        a[k] = cast(0, a.dtype)
    for i, j in ndrange(m, m):
        a[i * (3 * m - 2) + j - i + m - 1] = schur[i * m + j]


@kernel
def _lu(a: Tensor, pivots: Tensor, below: int, above: int, state: Tensor, floor: float) -> None:
    for _ in range(1):
        state[0] = 0
        n, width = pivots.shape[0], below + above + 1
        for i in range(n):
            pivot, largest = i, abs(a[i * width + below])
            for r in range(i + 1, min(n, i + below + 1)):
                size = abs(a[r * width + i - r + below])
                if size > largest:
                    pivot, largest = r, size
            pivots[i] = pivot
            if not largest > floor:
                state[0] = 2
                break
            end = min(n, i + above + 1)
            if pivot != i:
                for j in range(i, end):
                    here, there = i * width + j - i + below, pivot * width + j - pivot + below
                    value = a[here]
                    a[here] = a[there]
                    a[there] = value
            for r in range(i + 1, min(n, i + below + 1)):
                f = a[r * width + i - r + below] / a[i * width + below]
                a[r * width + i - r + below] = f
                for j in range(i + 1, end):
                    a[r * width + j - r + below] = a[r * width + j - r + below] - f * a[i * width + j - i + below]


@kernel
def _lu_solve(a: Tensor, pivots: Tensor, below: int, above: int, old: Tensor, b: Tensor, y: Tensor, x: Tensor) -> None:
    for _ in range(1):
        n, width = pivots.shape[0], below + above + 1
        for i in range(n):
            y[i] = b[old[i]]
        for i in range(n):
            value = y[pivots[i]]
            y[pivots[i]] = y[i]
            y[i] = value
            for r in range(i + 1, min(n, i + below + 1)):
                y[r] = y[r] - a[r * width + i - r + below] * value
        for back in range(n):
            i = n - 1 - back
            s = y[i]
            for j in range(i + 1, min(n, i + above + 1)):
                s -= a[i * width + j - i + below] * y[j]
            y[i] = s / a[i * width + below]
            x[old[i]] = y[i]


@kernel
def _lu_solve_transposed(
    a: Tensor, pivots: Tensor, below: int, above: int, old: Tensor, b: Tensor, y: Tensor, x: Tensor
) -> None:
    for _ in range(1):
        n, width = pivots.shape[0], below + above + 1
        for i in range(n):
            s = b[old[i]]
            for j in range(max(0, i - above), i):
                s -= a[j * width + i - j + below] * y[j]
            y[i] = s / a[i * width + below]
        for back in range(n):
            i = n - 1 - back
            s = y[i]
            for r in range(i + 1, min(n, i + below + 1)):
                s -= a[r * width + i - r + below] * y[r]
            y[i] = y[pivots[i]]
            y[pivots[i]] = s
        for i in range(n):
            x[old[i]] = y[i]


def _array(numbers: np.ndarray) -> Ndarray:
    made = make_ndarray(i32, len(numbers), ())
    made.from_numpy(numbers.astype(np.int32))
    return made


def _refuse_size(size: int, where: str) -> None:
    if size >= 1 << 31:
        raise QdrunRuntimeError(
            f"SparseSolver: the factors of this matrix have {size:,} numbers {where}, more than an i32 can count\n"
            "  do: qd.linalg.SparseCG or MatrixFreeCG, which need a few vectors"
        )


class SymmetricAnalysis:
    """What the factors L D L^T of one pattern have in common: the order of the unknowns, the elimination tree, and the columns of L.

    Args:
        pattern: of a square matrix with symmetric entries. What lies below its diagonal is not looked at.
        order: of the unknowns, if it is not to be that of nested dissection.
    """

    def __init__(self, pattern: Pattern, order: np.ndarray | None = None) -> None:
        self.pattern = pattern
        rows, columns = pattern.entries()
        n = pattern.shape[0]
        old = nested_dissection(n, rows, columns) if order is None else order
        new = np.empty(n, int)
        new[old] = np.arange(n)
        i, j = new[rows], new[columns]
        upper = np.flatnonzero(i < j)
        upper = upper[np.lexsort((i[upper], j[upper]))]
        places = np.full(len(i), -1)
        places[i == j] = i[i == j]
        places[upper] = n + np.arange(len(upper))
        self.old, self.places, self.rows = _array(old), _array(places), _array(np.append(i[upper], 0))
        self.begins = _array(np.searchsorted(j[upper], np.arange(n + 1)))
        self.parent, counts, mark = (make_ndarray(i32, n, ()) for _ in range(3))
        _symbolic(self.begins, self.rows, self.parent, counts, mark)
        starts = np.concatenate([[0], np.cumsum(counts.to_numpy().astype(int))])
        self.size = int(starts[-1])
        _refuse_size(self.size, "below the diagonal")
        self.starts = _array(starts)


class DenseFactor:
    """L U of a dense matrix, with the pivoting of rows.

    Args:
        schur: m times m numbers, row by row; they are not kept.
        m: its rows.
    """

    def __init__(self, schur: Any, m: int) -> None:
        dtype = schur.dtype
        _refuse_size(m * (3 * m - 2), "of pivots that were put off")
        self._m, self._order = m, _array(np.arange(m))
        self._factor, self._pivots = make_ndarray(dtype, m * (3 * m - 2), ()), make_ndarray(i32, m, ())
        state = make_ndarray(i32, 1, ())
        _square(schur, self._factor, m)
        floor = 4 * m * float(np.finfo(dtype.numpy).eps)  # of numbers about 1: what is smaller is a rounding error
        _lu(self._factor, self._pivots, m - 1, 2 * (m - 1), state, floor)
        self.singular = bool(state[0])

    def solve(self, y: Any, begin: int) -> None:
        """Replace the numbers of ``y`` from ``begin`` on by the solution."""
        m = self._m
        with borrowed("linalg", ArrayForm(y.dtype, (m,)), 3) as (b, work, x):
            _part(y, b, begin, 0, m)
            _lu_solve(self._factor, self._pivots, m - 1, 2 * (m - 1), self._order, b, work, x)
            _part(x, y, 0, begin, m)


FLOOR = {4: 1e-2, 8: 1e-5}
"""Bytes of a number -> how small a pivot may be beside its row. What it multiplies rounding errors by, refinement makes good."""


class SymmetricFactor:
    """L D L^T; see the module.

    Args:
        analysis: of the pattern.
        values: of the entries, an ndarray. Unless ``positive``, the greatest of each row is about 1.
        positive: whether D must be positive, as for a Cholesky factor.
    """

    def __init__(self, analysis: SymmetricAnalysis, values: Any, positive: bool) -> None:
        n, self.values, self.state = analysis.old.shape[0], values.to_numpy(), ""
        weak = self._factorize(analysis, values, positive, n)
        if weak.any():
            old, last = analysis.old.to_numpy(), int(n - weak.sum())
            order = np.concatenate([old[~weak], old[weak]]).astype(int)
            self._factorize(SymmetricAnalysis(analysis.pattern, order), values, positive, last)

    def _factorize(self, a: SymmetricAnalysis, values: Any, positive: bool, last: int) -> np.ndarray:
        """Eliminate the unknowns before ``last``, and say whose pivots are weak."""
        n, dtype = a.old.shape[0], values.dtype
        self._analysis, self._last, m = a, last, n - last
        _refuse_size(m * m, "of pivots that were put off")
        upper, schur = make_ndarray(dtype, n + a.rows.shape[0], ()), make_ndarray(dtype, m * m or 1, ())
        self._below, self._values = make_ndarray(i32, a.size + 1, ()), make_ndarray(dtype, a.size + 1, ())
        self._d, state, work = make_ndarray(dtype, n, ()), make_ndarray(i32, 1, ()), make_ndarray(i32, 4 * n, ())
        weak = make_ndarray(i32, n, ())
        _place(values, a.places, upper)
        floor = 0.0 if positive or m else FLOOR[dtype.size]
        with borrowed("linalg", ArrayForm(dtype, (n,)), 1) as (y,):
            arrays = (
                upper,
                a.begins,
                a.rows,
                a.parent,
                a.starts,
                self._below,
                self._values,
                self._d,
                y,
                work,
                state,
                weak,
                schur,
            )
            _ldlt(*arrays, last, floor)
        self._dense = DenseFactor(schur, m) if m else None
        found = int(state[0])
        if found == 2 or (self._dense is not None and self._dense.singular):
            self.state = "the matrix is singular"
        elif found == 1 and positive:
            self.state = "the matrix is not positive definite"
        return weak.to_numpy() != 0

    def solve(self, b: Any, x: Any, transposed: bool = False) -> None:
        """See ``Factor``."""
        del transposed  # it is symmetric
        a = self._analysis
        with borrowed("linalg", ArrayForm(b.dtype, b.shape), 1) as (y,):
            _ldlt_forward(a.starts, self._below, self._values, self._d, a.old, b, y, self._last)
            if self._dense is not None:
                self._dense.solve(y, self._last)
            _ldlt_backward(a.starts, self._below, self._values, self._d, a.old, y, x, self._last)


class GeneralAnalysis:
    """What the factors L U of one pattern have in common: the order of the unknowns, and where each entry goes.

    Args:
        pattern: of a square matrix.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        old, i, j = reverse_cuthill_mckee(pattern)
        self.below = int(np.max(i - j, initial=0))
        self.above = int(np.max(j - i, initial=0)) + self.below
        width = self.below + self.above + 1
        self.size = len(old) * width
        _refuse_size(self.size, "in a band")
        self.old, self.places = _array(old), _array(i * width + j - i + self.below)


class GeneralFactor:
    """L U; see the module.

    Args:
        analysis: of the pattern.
        values: of the entries, an ndarray.
    """

    def __init__(self, analysis: GeneralAnalysis, values: Any) -> None:
        self._analysis, self.values = analysis, values.to_numpy()
        n = analysis.old.shape[0]
        self._factor, state = make_ndarray(values.dtype, analysis.size, ()), make_ndarray(i32, 1, ())
        self._pivots = make_ndarray(i32, n, ())
        _place(values, analysis.places, self._factor)
        _lu(self._factor, self._pivots, analysis.below, analysis.above, state, 0.0)
        self.state = "the matrix is singular" if int(state[0]) else ""

    def solve(self, b: Any, x: Any, transposed: bool = False) -> None:
        """See ``Factor``."""
        a = self._analysis
        run = _lu_solve_transposed if transposed else _lu_solve
        with borrowed("linalg", ArrayForm(b.dtype, b.shape), 1) as (y,):
            run(self._factor, self._pivots, a.below, a.above, a.old, b, y, x)
