"""Factors of sparse matrices, made and applied by kernels of one thread.

``SymmetricFactor`` is L D L^T within the envelope of the matrix: each row of L from its first entry to the diagonal, where D lies.
``GeneralFactor`` is L U with the pivoting of rows, in a band (as LAPACK's gbtrf keeps it). Both work on the unknowns in the order of
``ordering``, and take memory that is known before they start.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ...errors import QdrunRuntimeError
from ...frontend.library.functions import abs, cast, max, min
from ...ir.types import DType, i32
from ..data.ndarray import Ndarray, make_ndarray
from ..data.tensor import Tensor
from ..kernel import kernel
from .ordering import reverse_cuthill_mckee
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
def _place(values: Tensor, places: Tensor, factor: Tensor) -> None:
    for k in factor:
        factor[k] = cast(0, factor.dtype)
    for entry in places:
        if places[entry] >= 0:
            factor[places[entry]] = values[entry]


@kernel
def _ldlt(a: Tensor, first: Tensor, at: Tensor, state: Tensor) -> None:
    for _ in range(1):
        state[0] = 0
        for i in range(first.shape[0]):
            row = at[i] - first[i]
            for j in range(first[i], i):
                other = at[j] - first[j]
                s = a[row + j]
                for k in range(max(first[i], first[j]), j):
                    s -= a[row + k] * a[other + k]
                a[row + j] = s
            d = a[row + i]
            for j in range(first[i], i):
                u = a[row + j]
                scaled = u / a[at[j] + j - first[j]]
                d -= u * scaled
                a[row + j] = scaled
            a[row + i] = d
            if not abs(d) > 0:
                state[0] = 2
                break
            if d < 0:
                state[0] = 1


@kernel
def _ldlt_solve(a: Tensor, first: Tensor, at: Tensor, old: Tensor, b: Tensor, y: Tensor, x: Tensor) -> None:
    for _ in range(1):
        n = first.shape[0]
        for i in range(n):
            s = b[old[i]]
            for j in range(first[i], i):
                s -= a[at[i] + j - first[i]] * y[j]
            y[i] = s
        for i in range(n):
            y[i] = y[i] / a[at[i] + i - first[i]]
        for back in range(n):
            i = n - 1 - back
            value = y[i]
            for j in range(first[i], i):
                y[j] = y[j] - a[at[i] + j - first[i]] * value
            x[old[i]] = value


@kernel
def _lu(a: Tensor, pivots: Tensor, below: int, above: int, state: Tensor) -> None:
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
            if not largest > 0:
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


def _memory(size: int, dtype: DType, kind: str) -> Ndarray:
    if size >= 1 << 31:
        raise QdrunRuntimeError(
            f"SparseSolver: the factors of this matrix ({kind}) have {size:,} numbers, more than an i32 can count\n"
            "  do: qd.linalg.SparseCG or MatrixFreeCG, which need a few vectors"
        )
    return make_ndarray(dtype, size, ())


class Analysis:
    """What the factors of one pattern have in common: the order of the unknowns, and where each entry goes.

    Args:
        pattern: of a square matrix.
        symmetric: for ``SymmetricFactor``; else for ``GeneralFactor``.
    """

    def __init__(self, pattern: Pattern, symmetric: bool) -> None:
        self.pattern, self.symmetric = pattern, symmetric
        old, i, j = reverse_cuthill_mckee(pattern)
        n = len(old)
        self.old = _array(old)
        if symmetric:
            first = np.arange(n)
            np.minimum.at(first, np.maximum(i, j), np.minimum(i, j))
            at = np.concatenate([[0], np.cumsum(np.arange(n) - first + 1)])
            self.size = int(at[-1])
            places = np.where(i >= j, at[i] + j - first[i], -1)
            self.first, self.at = _array(first), _array(at[:-1] if self.size < 1 << 31 else first)
        else:
            self.below = int(max_of(i - j))
            self.above = int(max_of(j - i)) + self.below
            width = self.below + self.above + 1
            self.size = n * width
            places = i * width + j - i + self.below
        self.places = _array(places)


def max_of(numbers: np.ndarray) -> int:
    """The largest of numbers that are not below 0; 0 if there are none."""
    return int(np.max(numbers, initial=0))


class SymmetricFactor:
    """L D L^T; see the module.

    Args:
        analysis: of the pattern.
        values: of the entries, an ndarray.
        positive: whether D must be positive, as for a Cholesky factor.
    """

    def __init__(self, analysis: Analysis, values: Any, positive: bool) -> None:
        self._analysis, self.values = analysis, values.to_numpy()
        self._factor, state = _memory(analysis.size, values.dtype, "an envelope"), make_ndarray(i32, 1, ())
        self._scratch = make_ndarray(values.dtype, analysis.old.shape[0], ())
        _place(values, analysis.places, self._factor)
        _ldlt(self._factor, analysis.first, analysis.at, state)
        found = int(state[0])
        self.state = ""
        if found == 2:
            self.state = "the matrix is singular, or needs pivoting"
        elif found == 1 and positive:
            self.state = "the matrix is not positive definite"

    def solve(self, b: Any, x: Any, transposed: bool = False) -> None:
        """See ``Factor``."""
        del transposed  # it is symmetric
        a = self._analysis
        _ldlt_solve(self._factor, a.first, a.at, a.old, b, self._scratch, x)


class GeneralFactor:
    """L U; see the module.

    Args:
        analysis: of the pattern.
        values: of the entries, an ndarray.
    """

    def __init__(self, analysis: Analysis, values: Any) -> None:
        self._analysis, self.values = analysis, values.to_numpy()
        n = analysis.old.shape[0]
        self._factor, state = _memory(analysis.size, values.dtype, "a band"), make_ndarray(i32, 1, ())
        self._pivots, self._scratch = make_ndarray(i32, n, ()), make_ndarray(values.dtype, n, ())
        _place(values, analysis.places, self._factor)
        _lu(self._factor, self._pivots, analysis.below, analysis.above, state)
        self.state = "the matrix is singular" if int(state[0]) else ""

    def solve(self, b: Any, x: Any, transposed: bool = False) -> None:
        """See ``Factor``."""
        a = self._analysis
        run = _lu_solve_transposed if transposed else _lu_solve
        run(self._factor, self._pivots, a.below, a.above, a.old, b, self._scratch, x)
