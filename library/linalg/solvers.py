"""``SparseSolver``, ``SparseCG``: solutions of ``A x = b`` for a sparse matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...compiler.extend import unwrap
from ...compiler.face import Program, QdrunRuntimeError, QdrunTypeError, QdrunValueError, current_program, f32, f64
from . import adjoint
from .adjoint_solve import AdjointSolve
from .factors import Factor, GeneralAnalysis, GeneralFactor, SymmetricAnalysis, SymmetricFactor
from .krylov import conjugate_gradients, vectors
from .matrix import SparseMatrix, as_vector, real_type
from .pattern import vector_like
from .refinement import CheckedFactor, balance, make_like

KINDS = ("LLT", "LDLT", "LU")
ORDERINGS = ("AMD", "COLAMD")


class SparseSolver:
    """Solves ``A x = b`` by factors of A, made and applied by one thread. In a tape, the solution has the gradient of the adjoint solve.

    LLT and LDLT keep a sparse L D L^T in the order of nested dissection. LDLT puts unknowns off whose pivots are small, and pivots among
    them. LU keeps L U with pivoting in a band of three times the bandwidth
    in the order of reverse Cuthill and McKee. In a program of a GPU, a program of the CPU beside it does that, and arrays are copied.

    Args:
        dtype: of the matrices, f32 or f64.
        solver_type: "LLT" for a symmetric positive definite matrix, "LDLT" for a symmetric one, "LU" for others.
        ordering: "AMD" or "COLAMD", Quadrants' names; both stand for the orders above: they decide memory and time, not the solution.

    Raises:
        QdrunTypeError: another type.
        QdrunValueError: another solver or ordering.
    """

    def __init__(self, dtype: Any = f32, solver_type: str = "LLT", ordering: str = "AMD") -> None:
        for name, given, known in (("solver_type", solver_type, KINDS), ("ordering", ordering, ORDERINGS)):
            if given not in known:
                raise QdrunValueError(f"SparseSolver: {name}={given!r} is not one of {', '.join(map(repr, known))}")
        self.dtype, self._kind = real_type(dtype, "SparseSolver"), solver_type
        self.matrix: SparseMatrix | None = None
        self._analysis: SymmetricAnalysis | GeneralAnalysis | None = None
        self._factor: CheckedFactor | None = None

    def compute(self, sparse_matrix: SparseMatrix) -> None:
        """``analyze_pattern`` and ``factorize``."""
        self.analyze_pattern(sparse_matrix)
        self.factorize(sparse_matrix)

    def analyze_pattern(self, sparse_matrix: SparseMatrix) -> None:
        """Find the order of the unknowns for the entries of a matrix.

        Raises:
            QdrunTypeError: it is no sparse matrix of the solver's type.
            QdrunValueError: it is not square.
        """
        self._check(sparse_matrix)
        if self._analysis is None or not self._analysis.pattern.same(sparse_matrix.pattern):
            kind = GeneralAnalysis if self._kind == "LU" else SymmetricAnalysis
            with adjoint.unrecorded(), sparse_matrix.values._owner.on_host:
                self._analysis = kind(sparse_matrix.pattern)
        self.matrix, self._factor = sparse_matrix, None

    def factorize(self, sparse_matrix: SparseMatrix) -> None:
        """Make the factors. A matrix that has none is told by ``info`` and ``solve``.

        Raises:
            QdrunTypeError: it is no sparse matrix of the solver's type.
            QdrunValueError: its entries are not those that were analysed, or LLT or LDLT got a matrix that is not symmetric.
            QdrunRuntimeError: ``analyze_pattern`` was not called, or the factors are too large to be indexed.
        """
        adjoint.refuse_rehearsal("SparseSolver.factorize")
        self._check(sparse_matrix)
        if self._analysis is None:
            raise QdrunRuntimeError(
                "SparseSolver.factorize before analyze_pattern\n  do: compute(A), or analyze_pattern(A) first"
            )
        if not self._analysis.pattern.same(sparse_matrix.pattern):
            raise QdrunValueError(
                "SparseSolver.factorize: the matrix has other entries than the analysed one\n  do: analyze_pattern(A)"
            )
        sparse_matrix.check()
        self.matrix = sparse_matrix
        if self._kind != "LU":
            _refuse_unsymmetric(sparse_matrix, self._kind)
        host = sparse_matrix.values._owner.on_host
        with adjoint.unrecorded(), host:
            values = on_host(host, sparse_matrix.values)
            self._factor = self._checked(sparse_matrix, values)

    def _checked(self, matrix: SparseMatrix, values: Any) -> CheckedFactor:
        """The factors of a matrix; ``values``: its entries where factors are made."""
        numbers, scale = values.to_numpy(), None
        if isinstance(self._analysis, GeneralAnalysis):
            factor: Factor = GeneralFactor(self._analysis, values)
        else:
            assert self._analysis is not None
            if self._kind == "LDLT":
                scale = balance(matrix.pattern, numbers)
                rows, columns = matrix.pattern.entries()
                scaled = numbers.copy()
                scaled[: len(rows)] *= (scale[rows] * scale[columns]).astype(numbers.dtype)
                values = make_like(numbers, scaled)
            factor = SymmetricFactor(self._analysis, values, self._kind == "LLT")
        return CheckedFactor(factor, matrix.pattern, numbers, scale)

    def _check(self, matrix: Any) -> None:
        if not isinstance(matrix, SparseMatrix):
            raise QdrunTypeError(f"SparseSolver takes a SparseMatrix, not {type(matrix).__name__}")
        if matrix.dtype != self.dtype:
            raise QdrunTypeError(
                f"SparseSolver of {self.dtype} got a matrix of {matrix.dtype}", hint=f"SparseSolver(qd.{matrix.dtype}, ..)"
            )
        if matrix.n != matrix.m:
            raise QdrunValueError(f"SparseSolver: a matrix of {matrix.n} x {matrix.m} is not square")

    def info(self) -> bool:
        """Whether there are factors, and a test solution by them fulfils the equations."""
        return self._factor is not None and not self._factor.state

    def solve(self, b: Any) -> Any:
        """The solution.

        Args:
            b: an ndarray of one axis, and the result is one; or a field or a numpy array, and the result is a numpy array.

        Raises:
            QdrunRuntimeError: there are no factors, for a reason that is named; the solution does not fulfil the equations; in a tape,
                the matrix changed since ``factorize``; in
                forward mode or ``qd.capture``.
            QdrunTypeError, QdrunValueError: ``b`` is no vector of this length; in a tape, the result could have no gradient.
        """
        adjoint.refuse_rehearsal("SparseSolver.solve")
        matrix, factor = self.matrix, self._factor
        if matrix is None or factor is None:
            raise QdrunRuntimeError("SparseSolver.solve before factorize\n  do: compute(A)")
        if factor.state:
            raise QdrunRuntimeError(
                f"SparseSolver({self._kind!r}).solve: {factor.state}\n  do: ask info(), or take another solver_type"
            )
        b, result = as_vector(matrix.n, self.dtype, b, "SparseSolver.solve", matrix.values)
        if not adjoint.recorded("SparseSolver.solve", b.has_grad() or matrix.values.has_grad()):
            x = vector_like(matrix.n, self.dtype)
            with adjoint.unrecorded():
                _apply(factor, b, x)
            return result(x)
        if not np.array_equal(factor.values, matrix.values.to_numpy()):
            raise QdrunRuntimeError(
                "SparseSolver.solve in a tape: the values of the matrix changed since factorize, so that the gradient would be that of"
                " another matrix\n  do: factorize(A) again"
            )
        x = vector_like(matrix.n, self.dtype, b, matrix.values)
        with vectors(x, 2, grad=True) as work:
            adjoint.solve(
                *("SparseSolver.solve", lambda: _apply(factor, b, x), matrix.apply),
                lambda g, out: _apply(factor, g, out, transposed=True),
                (x, b, *work),
            )
        return x


def _apply(factor: CheckedFactor, b: Any, x: Any, transposed: bool = False) -> None:
    """Solve where the factors are: on a GPU, ``b`` and ``x`` are copied."""
    host = current_program().on_host
    with host:
        right = on_host(host, b)
        found = x if right is b else vector_like(b.shape[0], b.dtype)
        factor.solve(right, found, transposed)
    if found is not x:
        x.from_numpy(found.to_numpy())


def on_host(host: Program, array: Any) -> Any:
    """An array of one axis in the program of the host: a copy, if it belongs to another one. ``host`` is the current program."""
    if array._owner is host:
        return array
    made = vector_like(array.shape[0], array.dtype)
    made.from_numpy(array.to_numpy())
    return made


def _refuse_unsymmetric(matrix: SparseMatrix, kind: str) -> None:
    rows, columns = matrix.pattern.entries()
    values = matrix.values.to_numpy()[: len(rows)]
    across = np.lexsort((rows, columns))  # the entries of the transposed matrix in the order of those of this one
    if not (np.array_equal(rows[across], columns) and np.array_equal(columns[across], rows)):
        raise QdrunValueError(f"SparseSolver({kind!r}): the entries of the matrix are not symmetric\n  do: solver_type='LU'")
    allowed = (1e-12 if matrix.dtype is f64 else 1e-5) * float(np.max(np.abs(values), initial=0))
    worst = float(np.max(np.abs(values - values[across]), initial=0))
    if worst > allowed:
        raise QdrunValueError(
            f"SparseSolver({kind!r}): the matrix is not symmetric: two values differ by {worst:.3g}\n  do: solver_type='LU'"
        )


class SparseCG:
    """Conjugate gradients for a symmetric positive definite sparse matrix. In a tape, the solution has the gradient of the adjoint solve.

    Args:
        A: the matrix.
        b: an ndarray, and the solution is one; or a field or a numpy array, and it is a numpy array.
        x0: the first guess; None: 0.
        max_iter: iterations.
        atol: the norm of the residual at which it has converged.

    Raises:
        QdrunTypeError, QdrunValueError: other types or lengths.
    """

    def __init__(self, A: SparseMatrix, b: Any, x0: Any = None, max_iter: int = 50, atol: float = 1e-6) -> None:
        if not isinstance(A, SparseMatrix):
            raise QdrunTypeError(f"SparseCG takes a SparseMatrix, not {type(A).__name__}")
        if A.n != A.m:
            raise QdrunValueError(f"SparseCG: a matrix of {A.n} x {A.m} is not square")
        self.matrix, self.dtype, self.b, self._x0 = A, A.dtype, b, unwrap(x0)
        self._most, self._atol = max_iter, atol

    def solve(self) -> tuple[Any, bool]:
        """The solution, and whether it has converged: whether the norm of ``b - A x`` is at most ``atol``.

        Raises:
            QdrunRuntimeError: in a tape, it did not converge; in forward mode or ``qd.capture``.
        """
        adjoint.refuse_rehearsal("SparseCG.solve")
        matrix = self.matrix
        matrix.check()
        b, result = as_vector(matrix.n, self.dtype, self.b, "SparseCG", matrix.values)
        gradient = adjoint.recorded("SparseCG.solve", b.has_grad() or matrix.values.has_grad())
        x = vector_like(matrix.n, self.dtype, *([b, matrix.values] if gradient else []))
        with adjoint.unrecorded():
            if self._x0 is not None:
                x.from_numpy(self._x0 if isinstance(self._x0, np.ndarray) else self._x0.to_numpy())

        def run() -> Any:
            return conjugate_gradients(matrix.apply, b, x, (self._atol, 0.0), self._most)

        if not gradient:
            with adjoint.unrecorded():
                converged = run().all
            return result(x), converged
        back = AdjointSolve("SparseCG.solve", conjugate_gradients, (matrix.apply, matrix.apply), self._most)
        with vectors(x, 2, grad=True) as work:
            outcome = adjoint.solve("SparseCG.solve", run, matrix.apply, back, (x, b, *work))
        adjoint.refuse_unconverged("SparseCG.solve", outcome, "max_iter= or atol=")
        return x, True
