"""Conjugate gradients and BiCGSTAB as kernels. In a batched program each trial has its own numbers, and stops by itself.

Hestenes and Stiefel, Methods of conjugate gradients, 1952; van der Vorst, Bi-CGSTAB, 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...frontend.library.functions import cast, max, sqrt
from ...frontend.markers import grouped, static
from ...program.program import current_program
from ..algorithms.arrays import Form, borrowed
from ..autograd.steps import recorded_by
from ..data.ndarray import Ndarray
from ..data.tensor import Tensor
from ..data.types import Template
from ..function import func
from ..kernel import kernel

Product = Callable[[Any, Any], Any]
"""``product(x, out)``: ``out = A x``."""

DONE, COUNT, SIZE, LIMIT, RHO, ALPHA, BETA, OMEGA, SUM, OTHER, NUMBERS = range(11)
"""The numbers of a solver: DONE is 0 while it goes on, 1 when it has converged, 2 when it cannot go on; COUNT are iterations; SIZE is the
norm of the residual, and LIMIT that at which it has converged; the others are those of the recurrences."""
EVERY = 4
"""Iterations between two looks at whether it has converged."""


@func
def _dot(a: Any, b: Any, scalar: Template) -> Any:
    product = a * b
    return product if static(scalar) else product.sum()


@func
def _judge(s: Any, squares: Any) -> None:
    """Whether the residual is small enough, or no number."""
    s[SIZE] = sqrt(squares)
    if s[SIZE] <= s[LIMIT]:
        s[DONE] = 1.0
    elif not s[SIZE] >= 0.0:
        s[DONE] = 2.0


@kernel
def _begin(b: Tensor, out: Tensor, r: Tensor, p: Tensor, s: Tensor, atol: float, rtol: float, scalar: Template) -> None:
    for k in s:
        s[k] = 0.0
    for i in grouped(r):
        v = b[i] - out[i]
        r[i] = v
        p[i] = v
        s[SUM] += _dot(v, v, scalar)
    for _ in range(1):
        s[RHO] = s[SUM]
        s[LIMIT] = max(cast(atol, s.dtype), cast(rtol, s.dtype) * sqrt(s[SUM]))
        _judge(s, s[SUM])


@kernel
def _cg_step(x: Tensor, r: Tensor, p: Tensor, out: Tensor, s: Tensor, scalar: Template) -> None:
    for _ in range(1):
        s[SUM] = 0.0
        s[OTHER] = 0.0
    for i in grouped(p):
        s[SUM] += _dot(p[i], out[i], scalar)
    for _ in range(1):
        if s[DONE] == 0.0:
            if s[SUM] > 0.0:
                s[ALPHA] = s[RHO] / s[SUM]
            else:
                s[DONE] = 2.0
    for i in grouped(p):
        if s[DONE] == 0.0:
            x[i] = x[i] + s[ALPHA] * p[i]
            r[i] = r[i] - s[ALPHA] * out[i]
        s[OTHER] += _dot(r[i], r[i], scalar)
    for _ in range(1):
        if s[DONE] == 0.0:
            s[COUNT] = s[COUNT] + 1.0
            s[BETA] = s[OTHER] / s[RHO]
            s[RHO] = s[OTHER]
            _judge(s, s[OTHER])
    for i in grouped(p):
        if s[DONE] == 0.0:
            p[i] = r[i] + s[BETA] * p[i]


@kernel
def _bicg_begin(r: Tensor, shadow: Tensor, p: Tensor, v: Tensor, s: Tensor) -> None:
    for i in grouped(r):
        shadow[i] = r[i]
        p[i] = 0.0 * r[i]
        v[i] = 0.0 * r[i]
    for _ in range(1):
        s[RHO] = 1.0
        s[ALPHA] = 1.0
        s[OMEGA] = 1.0


@kernel
def _bicg_direction(r: Tensor, shadow: Tensor, p: Tensor, v: Tensor, s: Tensor, scalar: Template) -> None:
    for _ in range(1):
        s[SUM] = 0.0
    for i in grouped(r):
        s[SUM] += _dot(shadow[i], r[i], scalar)
    for _ in range(1):
        if s[DONE] == 0.0:
            if s[SUM] != 0.0 and s[OMEGA] != 0.0:
                s[BETA] = s[SUM] / s[RHO] * (s[ALPHA] / s[OMEGA])
                s[RHO] = s[SUM]
            else:
                s[DONE] = 2.0
    for i in grouped(p):
        if s[DONE] == 0.0:
            p[i] = r[i] + s[BETA] * (p[i] - s[OMEGA] * v[i])


@kernel
def _bicg_half(r: Tensor, shadow: Tensor, v: Tensor, s: Tensor, scalar: Template) -> None:
    for _ in range(1):
        s[SUM] = 0.0
    for i in grouped(r):
        s[SUM] += _dot(shadow[i], v[i], scalar)
    for _ in range(1):
        if s[DONE] == 0.0:
            if s[SUM] != 0.0:
                s[ALPHA] = s[RHO] / s[SUM]
            else:
                s[DONE] = 2.0
    for i in grouped(r):
        if s[DONE] == 0.0:
            r[i] = r[i] - s[ALPHA] * v[i]


@kernel
def _bicg_step(x: Tensor, r: Tensor, p: Tensor, t: Tensor, s: Tensor, scalar: Template) -> None:
    for _ in range(1):
        s[SUM] = 0.0
        s[OTHER] = 0.0
    for i in grouped(r):
        s[SUM] += _dot(t[i], r[i], scalar)
        s[OTHER] += _dot(t[i], t[i], scalar)
    for _ in range(1):
        s[OMEGA] = 0.0
        if s[OTHER] > 0.0:
            s[OMEGA] = s[SUM] / s[OTHER]
        s[OTHER] = 0.0
    for i in grouped(r):
        if s[DONE] == 0.0:
            x[i] = x[i] + s[ALPHA] * p[i] + s[OMEGA] * r[i]
            r[i] = r[i] - s[OMEGA] * t[i]
        s[OTHER] += _dot(r[i], r[i], scalar)
    for _ in range(1):
        if s[DONE] == 0.0:
            s[COUNT] = s[COUNT] + 1.0
            _judge(s, s[OTHER])


@dataclass(frozen=True)
class Iterated:
    """How an iteration ended; arrays have one element for each trial of a batched program, or one.

    Attributes:
        converged: whether the residual is small enough.
        iterations: how many there were.
        residual: its norm.
    """

    converged: np.ndarray
    iterations: np.ndarray
    residual: np.ndarray

    @property
    def all(self) -> bool:
        """Whether all trials converged."""
        return bool(self.converged.all())


@contextmanager
def vectors(like: Any, count: int, grad: bool = False) -> Iterator[list[Ndarray]]:
    """Arrays of zeros of the form of another one. The program keeps them for later calls; a call inside of the block gets others."""
    program = current_program()
    with borrowed("linalg", Form(like.dtype, like.shape, like.element_shape, grad), count) as made:
        if program.rehearsal is None:
            with recorded_by(program, None):
                for array in made:
                    array.fill(0)  # a product may leave elements out
        yield made


def conjugate_gradients(product: Product, b: Any, x: Any, limits: tuple[float, float], most: int) -> Iterated:
    """Solve ``A x = b`` for a symmetric positive definite A.

    Args:
        product: ``A x``.
        b: the right-hand side.
        x: the first guess; it becomes the solution.
        limits: the norm of the residual at the end, and what it may be relative to the first one: the larger of both counts.
        most: iterations.
    """
    scalar = not x.element_shape
    with vectors(x, 3) as (r, p, out), borrowed("linalg", Form(x.dtype, (NUMBERS,)), 1) as (s,):
        product(x, out)
        _begin(b, out, r, p, s, *limits, scalar)

        def iterate() -> None:
            product(p, out)
            _cg_step(x, r, p, out, s, scalar)

        return _until(iterate, s, most)


def stabilized_biconjugate_gradients(product: Product, b: Any, x: Any, limits: tuple[float, float], most: int) -> Iterated:
    """Solve ``A x = b`` for any A; the arguments are those of ``conjugate_gradients``."""
    scalar = not x.element_shape
    with vectors(x, 5) as (r, shadow, p, v, t), borrowed("linalg", Form(x.dtype, (NUMBERS,)), 1) as (s,):
        product(x, t)
        _begin(b, t, r, p, s, *limits, scalar)
        _bicg_begin(r, shadow, p, v, s)

        def iterate() -> None:
            _bicg_direction(r, shadow, p, v, s, scalar)
            product(p, v)
            _bicg_half(r, shadow, v, s, scalar)
            product(r, t)
            _bicg_step(x, r, p, t, s, scalar)

        return _until(iterate, s, most)


def _until(iterate: Callable[[], None], s: Ndarray, most: int) -> Iterated:
    """Iterate until all trials have ended. What has ended changes no more, so that it is enough to look now and then.

    A rehearsal, which runs nothing, has one iteration, and it converges.
    """
    program = current_program()
    if program.rehearsal is not None:
        program.rehearsal.repeats = True
        iterate()
        one = np.ones(1 if program.trials is None else program.trials.count, int)
        return Iterated(one == 1, one, 0.0 * one)
    found = s.to_numpy().reshape(-1, NUMBERS)
    for number in range(1, most + 1):
        if (found[:, DONE] != 0).all():
            break
        iterate()
        if number % EVERY == 0 or number == most:
            found = s.to_numpy().reshape(-1, NUMBERS)
    return Iterated(found[:, DONE] == 1, found[:, COUNT].astype(int), found[:, SIZE].astype(float))
