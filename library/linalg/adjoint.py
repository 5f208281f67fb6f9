"""The gradient of the solution of ``A x = b``, whatever found it.

With ``g`` as the gradient of ``x``, that of ``b`` is ``l`` where ``A^T l = g``, and that of A is ``-l x^T`` (the adjoint method; Giles, An
extended collection of matrix derivative results, 2008). A tape gets three launches: the solver, which cuts the gradient of what ``x`` was
before; the residual ``r = b - A x`` as ordinary kernels; and the adjoint solve, which sets the gradient of ``r`` to ``l``. So the gradient
of the residual brings ``l`` to all that A and ``b`` are made of, and nothing of the solver is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ...compiler.extend import ONLY_REVERSE, Replaced, recorded_by, refuse_in_forward_mode
from ...compiler.face import QdrunError, QdrunRuntimeError, Tensor, TrialsFailed, current_program, grouped, kernel
from .krylov import Iterated


@kernel
def residual(b: Tensor, product: Tensor, r: Tensor) -> None:
    """``r = b - product``."""
    for i in grouped(r):
        r[i] = b[i] - product[i]


def recorded(what: str, gradients: bool) -> bool:
    """Whether a solution is to have a gradient.

    Args:
        what: the solver, for messages.
        gradients: whether the solution can have one.

    Raises:
        QdrunRuntimeError: in forward mode, or in ``qd.capture``.
    """
    program = current_program()
    refuse_in_forward_mode(program, what, ONLY_REVERSE)
    if program.recorders.recording is not None:
        raise QdrunRuntimeError(f"{what} inside of qd.capture: the number of launches is not known before; do: call it outside")
    if program.recorders.rehearsal is not None:
        return gradients and program.recorders.rehearsal.differentiates
    tape = program.recorders.tape
    return gradients and tape is not None and not tape.inside


def solve(
    what: str,
    run: Callable[[], Any],
    product: Callable[[Any, Any], Any],
    adjoint: Callable[[Any, Any], None],
    arrays: tuple[Any, ...],
) -> Any:
    """Solve, and have the tape record the gradient.

    Args:
        what: the solver, for messages.
        run: finds ``x``.
        product: ``product(x, out)`` computes ``out = A x`` by kernels that have gradients.
        adjoint: ``adjoint(g, l)`` solves ``A^T l = g``.
        arrays: ``x``, ``b`` and two of their form with gradients, for the product and the residual.

    Returns:
        What ``run`` returns.
    """
    x, b, out, r = arrays

    rehearsal = current_program().recorders.rehearsal
    if rehearsal is not None:
        with rehearsal.unseen():
            result = run()
            adjoint(x.grad, r.grad)
        product(x, out)
        residual(b, out, r)
        return result

    def hidden() -> Any:
        with unrecorded():  # what it reads, the residual reads, too
            result = run()
        if (tape := current_program().recorders.tape) is not None:
            tape.wrote(x, None)
        return result

    result = _step(what, hidden, lambda: x.grad.fill(0))
    product(x, out)
    residual(b, out, r)
    _step(what, lambda: None, lambda: adjoint(x.grad, r.grad), rehearses=getattr(adjoint, "rehearses", False))
    return result


def _step(what: str, run: Callable[[], Any], backward: Callable[[], Any], rehearses: bool = False) -> Any:
    """Run a function that a tape records as one step with this gradient. ``rehearses``: the gradient launches the same in a rehearsal."""
    step = Replaced(run)
    step.rehearsal = backward if rehearses else None
    step.fn.__qualname__, step.backward = what, backward
    return step()


def refuse_rehearsal(what: str) -> None:
    """Refuse what makes arrays, whose bytes a plan could not know.

    Raises:
        QdrunRuntimeError: launches are planned, and do not run.
    """
    rehearsal = current_program().recorders.rehearsal
    if rehearsal is not None:
        raise QdrunRuntimeError(
            f"{what} in {rehearsal.name}: it makes arrays, and no plan would count their bytes\n"
            "  do: qd.linalg.MatrixFreeCG on arrays of build(), or override launches() and allocates()"
        )


def unrecorded() -> AbstractContextManager[None]:
    """A block whose launches no tape records."""
    return recorded_by(current_program(), None)


def constant(what: str, run: Callable[[], Any]) -> Any:
    """Run a solver whose solution has no gradient; a tape knows that it writes."""
    rehearsal = current_program().recorders.rehearsal
    if rehearsal is not None:
        with rehearsal.unseen():
            return run()
    return _step(what, run, lambda: None)


def refuse_unconverged(what: str, outcome: Iterated, hint: str) -> None:
    """Refuse a solution that is none.

    Raises:
        QdrunRuntimeError: it did not converge; in a batched program ``TrialsFailed``, with the trials.
    """
    if outcome.all:
        return
    worst = float(outcome.residual.max())
    error = QdrunRuntimeError(
        f"{what} did not converge in {outcome.iterations.max()} iterations: the residual is {worst:.3g}\n  do: {hint}"
    )
    if len(outcome.converged) == 1:
        raise error
    failed: dict[int, QdrunError] = {int(k): error for k in (~outcome.converged).nonzero()[0]}
    raise TrialsFailed(len(outcome.converged), failed)
