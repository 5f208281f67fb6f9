"""The adjoint solve of an iterative solver, and whether the product that it uses is the transposed one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...compiler.extend import ArrayForm, borrowed, recorded_by
from ...compiler.face import (
    QdrunError,
    QdrunRuntimeError,
    Template,
    Tensor,
    TrialsFailed,
    current_program,
    floor,
    grouped,
    kernel,
    select,
    sin,
    static,
)
from . import adjoint
from .krylov import Iterated, Product, dot, vectors

Method = Callable[..., Iterated]
RESIDUAL = {4: 1e-6, 8: 1e-10}
"""Bytes of a number -> the residual of the adjoint solve, beside the right-hand side."""
SLACK = 100
"""What rounding may leave of it at a matrix that is badly conditioned, in multiples."""
UNLIKE = {4: 1e-5, 8: 1e-12}
"""Bytes of a number -> the difference of ``u . A v`` and ``v . A^T u``, beside the norms, that rounding explains at random u and v."""
SUMS = 3


@kernel
def _scatter(u: Tensor, v: Tensor, components: Template, columns: Template) -> None:
    """Numbers without a pattern, the same each time; ``columns``: of a matrix, 1 of a vector, 0 of a number."""
    for i in grouped(u):
        for k in static(range(2 * components)):  # pyright: ignore[reportOperatorIssue]
            place = 0.7 * k + 1.0
            for axis in static(range(len(u.shape))):
                place = place * 1.37 + 12.9898 * i[axis]
            number = sin(place) * 43758.5453
            number = number - floor(number) - 0.5
            of = v if static(k % 2) else u
            if static(columns == 0):
                of[i] = number
            elif static(columns == 1):
                of[i][k // 2] = number
            else:
                of[i][k // 2 // columns, k // 2 % columns] = number


@kernel
def _leave_out(u: Tensor, v: Tensor, product: Tensor) -> None:
    """Clear the components that a product leaves at 0: a solver never gives them another number."""
    for i in grouped(u):
        u[i] = select(product[i] == 0.0, 0.0 * u[i], u[i])
        v[i] = select(product[i] == 0.0, 0.0 * v[i], v[i])


@kernel
def _multiplied(a: Tensor, product: Tensor, s: Tensor, scalar: Template) -> None:
    """``a . product``, and the squares of both."""
    for k in s:
        s[k] = 0.0
    for i in grouped(a):
        s[0] += dot(a[i], product[i], scalar)
        s[1] += dot(a[i], a[i], scalar)
        s[2] += dot(product[i], product[i], scalar)


class AdjointSolve:
    """Solves ``A^T l = g`` to a residual of 1e-10 of ``g`` (f32: 1e-6), in at most twice as many iterations as there are unknowns.

    Args:
        what: the solver, for messages.
        method: its iteration.
        products: with A, and with its transpose.
        most: iterations, at least.
    """

    rehearses = True
    """It launches the same in a rehearsal."""

    def __init__(self, what: str, method: Method, products: tuple[Product, Product], most: int) -> None:
        self._what, self._method, self._most = what, method, most
        self._product, self._transposed = products

    def __call__(self, g: Any, out: Any) -> None:
        """``out`` = ``l``.

        Raises:
            QdrunRuntimeError: it does not converge, or the second product is not that with the transposed matrix.
        """
        program, size = current_program(), g.dtype.numpy.itemsize
        if program.recorders.rehearsal is None:
            out.fill(0)
        with recorded_by(program, None):
            most = max(self._most, 2 * g._form.size + 100)
            outcome = self._method(self._transposed, g, out, (0.0, RESIDUAL[size]), most)
            outcome = replace(outcome, converged=np.isfinite(outcome.residual) & (outcome.residual <= SLACK * outcome.limit))
            adjoint.refuse_unconverged(
                f"the adjoint solve of {self._what}", outcome, "a matrix that is better conditioned, or qd.f64"
            )
            self._check_transposed(g)

    def _check_transposed(self, like: Any) -> None:
        """``u . A v`` is ``v . A^T u``, whatever u and v are."""
        found, shape = [], like.element_shape
        with vectors(like, 3) as (u, v, out), borrowed("linalg", ArrayForm(like.dtype, (SUMS,)), 1) as (s,):
            _scatter(u, v, math.prod(shape), [0, 1, *shape[1:]][len(shape)])
            self._product(v, out)
            _leave_out(u, v, out)
            for product, of, other in ((self._product, v, u), (self._transposed, u, v)):
                product(of, out)
                _multiplied(other, out, s, not shape)
                if current_program().recorders.rehearsal is None:
                    found.append(s.to_numpy().reshape(-1, SUMS).astype(float))
        if not found:
            return
        (a, *norms), (b, *others) = (sums.T for sums in found)
        scale = np.sqrt(norms[0] * norms[1]) + np.sqrt(others[0] * others[1])
        unlike = np.abs(a - b) > UNLIKE[like.dtype.numpy.itemsize] * scale
        if not unlike.any():
            return
        error = QdrunRuntimeError(
            f"{self._what}: the product is not that of a symmetric matrix, or transpose= is not that of the transposed one, so that the"
            f" gradient would be wrong: for two vectors, u . A v is {a[unlike][0]:.9g}, and v . A^T u is {b[unlike][0]:.9g}\n"
            "  do: check the kernels; MatrixFreeBICGSTAB with LinearOperator(matvec, transpose=kernel) takes any matrix"
        )
        if len(unlike) == 1:
            raise error
        failed: dict[int, QdrunError] = {int(k): error for k in np.flatnonzero(unlike)}
        raise TrialsFailed(len(unlike), failed)
