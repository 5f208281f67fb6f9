"""Conjugate gradients and BiCGSTAB as kernels. In a batched program each trial has its own numbers, and stops by itself.

The residual of the recurrences drifts from ``b - A x`` by rounding. So an iteration that ended is compared with ``b - A x``, which alone
decides whether it has converged, and begins anew there as long as that halves it.

Hestenes and Stiefel, Methods of conjugate gradients, 1952; van der Vorst, Bi-CGSTAB, 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compiler.extend import ArrayForm, borrowed, recorded_by
from ...compiler.face import (
    Ndarray,
    Template,
    Tensor,
    cast,
    current_program,
    func,
    grouped,
    isinf,
    isnan,
    kernel,
    max,
    sqrt,
    static,
)

Product = Callable[[Any, Any], Any]
"""``product(x, out)``: ``out = A x``."""

DONE, COUNT, MOST, SEEN, SIZE, LIMIT, BEFORE, RHO, ALPHA, BETA, OMEGA, SUM, OTHER, NUMBERS = range(14)
"""The numbers of a solver: DONE is 0 while it goes on, 1 when it has converged, 2 when it cannot go on; COUNT are iterations, of at most
MOST, and SEEN of them were there when it last began; SIZE is the norm of the residual, LIMIT that at which it has converged, and BEFORE
that of ``b - A x`` when it last began; the others are those of the recurrences."""
COUNTABLE = 2**24
"""The iterations that an f32 can count."""
EVERY = 4
"""Iterations between two looks at whether it has converged."""


@func
def dot(a: Any, b: Any, scalar: Template) -> Any:
    """The sum of the products of the components."""
    product = a * b
    return product if static(scalar) else product.sum()


@func
def _size(v: Any, scalar: Template) -> Any:
    return abs(v) if static(scalar) else abs(v).sum()


@func
def _judge(s: Any, squares: Any) -> None:
    """Whether the residual of the recurrences is small enough, or no number, or there were iterations enough."""
    s[SIZE] = sqrt(squares)
    if s[SIZE] <= s[LIMIT]:
        s[DONE] = 1.0
    elif not s[SIZE] >= 0.0 or s[COUNT] >= s[MOST]:
        s[DONE] = 2.0


@kernel
def _begin(b: Tensor, out: Tensor, r: Tensor, p: Tensor, s: Tensor, scalar: Template) -> None:
    for _ in range(1):
        s[SUM] = 0.0
        s[OTHER] = 0.0
    for i in grouped(r):
        v = b[i] - out[i]
        r[i] = v
        p[i] = v
        s[SUM] += dot(v, v, scalar)
        s[OTHER] += _size(v, scalar)


@kernel
def _compare(s: Tensor, atol: float, rtol: float, most: float, first: Template) -> None:
    """Compare ``b - A x`` with the limit: the iteration ends, or begins (anew)."""
    for _ in range(1):
        if static(first):
            s[COUNT] = 0.0
            s[MOST] = most
            s[LIMIT] = max(cast(atol, s.dtype), cast(rtol, s.dtype) * sqrt(s[SUM]))
        if static(first) or s[COUNT] > s[SEEN]:
            size = sqrt(s[SUM])
            vanished = s[SUM] == 0.0 and s[OTHER] > s[LIMIT]  # the squares underflow
            s[DONE] = 2.0
            if not (isnan(size) or isinf(size) or vanished):
                if size <= s[LIMIT]:
                    s[DONE] = 1.0
                elif (static(first) or size < 0.5 * s[BEFORE]) and s[COUNT] < s[MOST]:
                    s[DONE] = 0.0
            s[SIZE] = s[OTHER] if vanished else size
            s[BEFORE] = size
            s[RHO] = s[SUM]
            s[SEEN] = s[COUNT]


@kernel
def _cg_step(x: Tensor, r: Tensor, p: Tensor, out: Tensor, s: Tensor, scalar: Template) -> None:
    for _ in range(1):
        s[SUM] = 0.0
        s[OTHER] = 0.0
    for i in grouped(p):
        s[SUM] += dot(p[i], out[i], scalar)
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
        s[OTHER] += dot(r[i], r[i], scalar)
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
        s[SUM] += dot(shadow[i], r[i], scalar)
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
        s[SUM] += dot(shadow[i], v[i], scalar)
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
        s[SUM] += dot(t[i], r[i], scalar)
        s[OTHER] += dot(t[i], t[i], scalar)
    for _ in range(1):
        s[OMEGA] = 0.0
        if s[OTHER] > 0.0:
            s[OMEGA] = s[SUM] / s[OTHER]
        s[OTHER] = 0.0
    for i in grouped(r):
        if s[DONE] == 0.0:
            x[i] = x[i] + s[ALPHA] * p[i] + s[OMEGA] * r[i]
            r[i] = r[i] - s[OMEGA] * t[i]
        s[OTHER] += dot(r[i], r[i], scalar)
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
        residual: the norm of ``b - A x``.
        limit: that at which it is small enough.
    """

    converged: np.ndarray
    iterations: np.ndarray
    residual: np.ndarray
    limit: np.ndarray

    @property
    def all(self) -> bool:
        """Whether all trials converged."""
        return bool(self.converged.all())


@contextmanager
def vectors(like: Any, count: int, grad: bool = False) -> Iterator[list[Ndarray]]:
    """Arrays of zeros of the form of another one. The program keeps them for later calls; a call inside of the block gets others."""
    program = current_program()
    with borrowed("linalg", ArrayForm(like.dtype, like.shape, like.element_shape, grad), count) as made:
        if program.recorders.rehearsal is None:
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
    with vectors(x, 3) as (r, p, out), borrowed("linalg", ArrayForm(x.dtype, (NUMBERS,)), 1) as (s,):

        def begin() -> None:
            product(x, out)
            _begin(b, out, r, p, s, scalar)

        def iterate() -> None:
            product(p, out)
            _cg_step(x, r, p, out, s, scalar)

        return _until_still(begin, iterate, s, limits, most)


def stabilized_biconjugate_gradients(product: Product, b: Any, x: Any, limits: tuple[float, float], most: int) -> Iterated:
    """Solve ``A x = b`` for any A; the arguments are those of ``conjugate_gradients``."""
    scalar = not x.element_shape
    with vectors(x, 5) as (r, shadow, p, v, t), borrowed("linalg", ArrayForm(x.dtype, (NUMBERS,)), 1) as (s,):

        def begin() -> None:
            product(x, t)
            _begin(b, t, r, p, s, scalar)
            _bicg_begin(r, shadow, p, v, s)

        def iterate() -> None:
            _bicg_direction(r, shadow, p, v, s, scalar)
            product(p, v)
            _bicg_half(r, shadow, v, s, scalar)
            product(r, t)
            _bicg_step(x, r, p, t, s, scalar)

        return _until_still(begin, iterate, s, limits, most)


def _until_still(
    begin: Callable[[], None], iterate: Callable[[], None], s: Ndarray, limits: tuple[float, float], most: int
) -> Iterated:
    """Iterate until all trials have ended at a residual that is computed from the solution. What has ended changes no more, so that it is
    enough to look now and then.

    A rehearsal, which runs nothing, has one iteration, and it converges.
    """
    program = current_program()
    if program.recorders.rehearsal is not None:
        program.recorders.rehearsal.repeats = True
        begin()
        for first in (True, False):
            _compare(s, *limits, most, first)
        iterate()
        one = np.ones(program.batch.layout.count, int)
        return Iterated(one == 1, one, 0.0 * one, 0.0 * one)
    first, found = True, np.zeros((0, NUMBERS))
    while True:
        begin()
        _compare(s, *limits, float(min(most, COUNTABLE)), first)
        found = s.to_numpy().reshape(-1, NUMBERS)
        if (found[:, DONE] != 0).all():
            found = found.astype(float)
            return Iterated(found[:, DONE] == 1, found[:, COUNT].astype(int), found[:, SIZE], found[:, LIMIT])
        while (found[:, DONE] == 0).any():
            for _ in range(EVERY):
                iterate()
            found = s.to_numpy().reshape(-1, NUMBERS)
        first = False
