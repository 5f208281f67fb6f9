"""``MatrixFreeCG``, ``MatrixFreeBICGSTAB``: solutions of ``A x = b`` where a kernel computes ``A x``."""

from __future__ import annotations

from typing import Any

from ...compiler.extend import refuse_in_a_trial, unwrap
from ...compiler.face import Field, Ndarray, QdrunRuntimeError, QdrunTypeError, QdrunValueError, current_program, f32, f64
from . import adjoint
from .adjoint_solve import AdjointSolve, Method
from .krylov import Iterated, conjugate_gradients, stabilized_biconjugate_gradients, vectors


class LinearOperator:
    """A matrix that a kernel, or a Python function that launches kernels, multiplies with.

    Args:
        matvec_kernel: ``matvec(x, Ax)`` overwrites ``Ax``; both have the shape and the type of the unknowns, and are templates or ndarrays.
        transpose: the same for the transposed matrix; needed for the gradient of ``MatrixFreeBICGSTAB``.
    """

    def __init__(self, matvec_kernel: Any, transpose: Any = None) -> None:
        self._matvec, self._transposed = matvec_kernel, transpose

    def matvec(self, x: Any, Ax: Any) -> None:
        """``Ax`` = the matrix times ``x``.

        Raises:
            QdrunValueError: the shapes differ.
        """
        if x.shape != Ax.shape:
            raise QdrunValueError(f"LinearOperator.matvec: x has the shape {x.shape}, and Ax has {Ax.shape}")
        self._matvec(x, Ax)


def MatrixFreeCG(A: LinearOperator, b: Any, x: Any, tol: float = 1e-6, maxiter: int = 5000, quiet: bool = True) -> Any:
    """Conjugate gradients, for a symmetric positive definite operator. In a tape, ``x`` gets the gradient of the adjoint solve.

    The gradient goes to ``b`` and to what the operator's kernels read besides. In a batched program each trial stops by itself.

    Args:
        A: the operator.
        b: the right-hand side: a field or an ndarray of any shape, of numbers, vectors or matrices, f32 or f64.
        x: the first guess, of the same form; it becomes the solution.
        tol: the norm of the residual at which it has converged.
        maxiter: iterations.
        quiet: False to print how it ended.

    Returns:
        Whether it converged; of a batched program an array with one truth value for each trial.

    Raises:
        QdrunTypeError, QdrunValueError: ``b`` and ``x`` do not fit each other.
        QdrunRuntimeError: in a tape, it did not converge, or ``b`` has a gradient and ``x`` has none; in forward mode, ``qd.capture``, or
            the block of one trial.
    """
    transpose = A._matvec if isinstance(A, LinearOperator) else None
    return _solved("MatrixFreeCG", conjugate_gradients, A, transpose, b, x, (tol, maxiter, quiet))


def MatrixFreeBICGSTAB(A: LinearOperator, b: Any, x: Any, tol: float = 1e-6, maxiter: int = 5000, quiet: bool = True) -> Any:
    """BiCGSTAB, for any operator; arguments, result and errors are those of ``MatrixFreeCG``.

    Raises:
        QdrunTypeError: besides, in a tape, ``LinearOperator`` was made without ``transpose=``.
    """
    transpose = A._transposed if isinstance(A, LinearOperator) else None
    return _solved("MatrixFreeBICGSTAB", stabilized_biconjugate_gradients, A, transpose, b, x, (tol, maxiter, quiet))


def _solved(what: str, method: Method, A: Any, transpose: Any, b: Any, x: Any, how: tuple[float, int, bool]) -> Any:
    if not isinstance(A, LinearOperator):
        raise QdrunTypeError(f"{what} takes a LinearOperator, not {type(A).__name__}", hint="qd.linalg.LinearOperator(kernel)")
    tol, most, quiet = how
    b, x = _pair(what, b, x)
    program = current_program()
    refuse_in_a_trial(program, f"{what} runs the launches of all trials")

    def run() -> Iterated:
        return method(A._matvec, b, x, (tol, 0.0), most)

    if adjoint.recorded(what, x.has_grad()):
        if transpose is None:
            raise QdrunTypeError(
                f"{what} in a tape: the gradient needs the product with the transposed matrix",
                hint="LinearOperator(matvec, transpose=kernel); transpose=matvec if it is symmetric",
            )
        with vectors(x, 2, grad=True) as work:
            outcome = adjoint.solve(
                what, run, A._matvec, AdjointSolve(what, method, (A._matvec, transpose), most), (x, b, *work)
            )
        adjoint.refuse_unconverged(what, outcome, "maxiter= or tol=")
    else:
        if program.recorders.tape is not None and not program.recorders.tape.inside and b.has_grad():
            raise QdrunRuntimeError(
                f"{what}: `{b.name}` has a gradient, and `{x.name}` has none\n  do: make it with needs_grad=True"
            )
        outcome = adjoint.constant(what, run)
    if not quiet:
        print(f"{what}: {outcome.iterations.max()} iterations, residual {outcome.residual.max():e}")
    return outcome.converged if program.batch.layout.batched else outcome.all


def _pair(what: str, b: Any, x: Any) -> tuple[Any, Any]:
    b, x = unwrap(b), unwrap(x)
    for name, array in (("b", b), ("x", x)):
        if not isinstance(array, (Field, Ndarray)):
            raise QdrunTypeError(f"{what}: `{name}` is {type(array).__name__}, not a field or an ndarray")
        array.refuse_sparse(what)
        if array.dtype not in (f32, f64):
            raise QdrunTypeError(f"{what}: `{name}` has the type {array.dtype}, not f32 or f64")
        if isinstance(array, Field) and any(array.offset):
            raise QdrunValueError(f"{what}: the indices of `{name}` begin at {array.offset}, not at 0; do: leave out offset=")
    if (b.shape, b.element_shape, b.dtype) != (x.shape, x.element_shape, x.dtype) or b is x:
        raise QdrunValueError(
            f"{what}: b is {b.dtype} of the shape {b.shape + b.element_shape}, and x is {x.dtype} of {x.shape + x.element_shape}"
            "\n  do: two arrays of one form"
        )
    return b, x
