"""Solutions by factors that are checked: each is put into the equations, refined if that helps, and refused if it is none."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...compiler.extend import WORST, ArrayForm, borrowed, make_ndarray
from ...compiler.face import Ndarray, QdrunRuntimeError, f32, f64
from .factors import Factor
from .pattern import Pattern

STEPS = 5
"""Corrections of one solution."""
GOOD = {4: 1e-6, 8: 1e-15}
"""Bytes of a number -> the residual, beside the sizes of the matrix, the solution and the right-hand side, that needs no correction."""


class CheckedFactor:
    """A factorised matrix that knows the matrix.

    Args:
        factor: of the matrix, or of ``scale * A * scale``.
        pattern: of the matrix.
        values: of its entries.
        scale: of each unknown; None: 1.
    """

    def __init__(self, factor: Factor, pattern: Pattern, values: np.ndarray, scale: np.ndarray | None) -> None:
        self._factor, self.values = factor, values
        self._rows, self._columns = pattern.entries()
        self._n, self._entries = pattern.shape[0], values[: len(self._rows)].astype(np.float64)
        self._scale = np.ones(self._n) if scale is None else scale
        self._norm = float(np.max(np.bincount(self._rows, np.abs(self._entries), self._n), initial=0))
        self.state = factor.state or self._probe()

    def _probe(self) -> str:
        """What is wrong with the solution of a system with random numbers on its right."""
        b = np.random.default_rng(0).normal(size=self._n)
        _, left = self._refined(b, False)
        return self._fault(left)

    def _fault(self, left: float) -> str:
        if left <= WORST[self.values.dtype.itemsize]:
            return ""
        return f"the residual of a solution is {left:.2g} of the right-hand side: the matrix is singular or nearly so"

    def solve(self, b: Any, x: Any, transposed: bool = False) -> None:
        """``x`` = the solution for ``b``, or that of the transposed matrix.

        Raises:
            QdrunRuntimeError: the residual says that it is none.
        """
        right = b.to_numpy().astype(np.float64)
        found, left = self._refined(right, transposed)
        if np.isfinite(right).all() and (fault := self._fault(left)):
            raise QdrunRuntimeError(
                f"SparseSolver.solve: {fault}\n  do: check the matrix; qd.f64 instead of qd.f32 keeps more digits"
            )
        x.from_numpy(found.astype(x.dtype.numpy))

    def _refined(self, b: np.ndarray, transposed: bool) -> tuple[np.ndarray, float]:
        """A solution, and its residual beside the right-hand side."""
        dtype = self.values.dtype
        x = self._direct(b, transposed)
        r = b - self._product(x, transposed)
        for _ in range(STEPS):
            size = float(np.abs(r).max(initial=0))
            if not size > GOOD[dtype.itemsize] * (self._norm * np.abs(x).max(initial=0) + np.abs(b).max(initial=0)):
                break
            better = (x + self._direct(r, transposed)).astype(dtype).astype(np.float64)
            rest = b - self._product(better, transposed)
            if not np.abs(rest).max(initial=0) < 0.5 * size:
                break
            x, r = better, rest
        whole = float(np.abs(b).max(initial=0))
        return x, float(np.abs(r).max(initial=0)) / whole if whole else 0.0

    def _direct(self, b: np.ndarray, transposed: bool) -> np.ndarray:
        right = make_like(self.values, b * self._scale)
        with borrowed("linalg", ArrayForm(right.dtype, right.shape), 1) as (x,):
            self._factor.solve(right, x, transposed)
            return x.to_numpy().astype(np.float64) * self._scale

    def _product(self, x: np.ndarray, transposed: bool) -> np.ndarray:
        to, of = (self._columns, self._rows) if transposed else (self._rows, self._columns)
        return np.bincount(to, self._entries * x[of], self._n)


def make_like(values: np.ndarray, numbers: np.ndarray) -> Ndarray:
    """An ndarray of the type of other numbers."""
    made = make_ndarray(f64 if values.dtype.itemsize == 8 else f32, len(numbers), ())
    made.from_numpy(numbers.astype(values.dtype))
    return made


def balance(pattern: Pattern, values: np.ndarray) -> np.ndarray:
    """Powers of two for the unknowns that bring the greatest entry of each row of a symmetric matrix near to 1 (Ruiz, 2001)."""
    rows, columns = pattern.entries()
    sizes = np.abs(values[: len(rows)].astype(np.float64))
    scale = np.ones(pattern.shape[0])
    for _ in range(STEPS):
        most = np.zeros(len(scale))
        np.maximum.at(most, rows, sizes * scale[rows] * scale[columns])
        usable = (most > 0) & np.isfinite(most)
        scale[usable] /= np.sqrt(most[usable])
    return np.exp2(np.clip(np.round(np.log2(scale)), -60, 60))
