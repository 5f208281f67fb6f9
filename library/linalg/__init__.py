"""``qd.linalg``: sparse matrices and solvers of linear systems, whose gradient is an adjoint solve."""

from __future__ import annotations

from .builder import SparseMatrixBuilder
from .matrix import SparseMatrix
from .matrix_free import LinearOperator, MatrixFreeBICGSTAB, MatrixFreeCG
from .solvers import SparseCG, SparseSolver

__all__ = [
    "LinearOperator",
    "MatrixFreeBICGSTAB",
    "MatrixFreeCG",
    "SparseCG",
    "SparseMatrix",
    "SparseMatrixBuilder",
    "SparseSolver",
]
