"""Arrays for values in between, which a program keeps for the next call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...ir.types import DType
from ...program.program import current_program
from ..data.ndarray import Ndarray, make_ndarray


class ArrayForm(NamedTuple):
    """The form of an ndarray: its type, its shape, the shape of an element, and whether it has a gradient."""

    dtype: DType
    shape: tuple[int, ...]
    element_shape: tuple[int, ...] = ()
    grad: bool = False


@contextmanager
def borrowed(what: str, form: ArrayForm, count: int) -> Iterator[list[Ndarray]]:
    """Arrays with any content. The program keeps them for later calls; a call inside of the block gets others.

    Args:
        what: whose they are.
        form: what they are.
        count: how many.
    """
    pool: list[Ndarray] = current_program().scratch.setdefault((what, form), [])
    made = [pool.pop(0) if pool else make_ndarray(*form, layout=None) for _ in range(count)]
    try:
        yield made
    finally:
        pool[:0] = made


def scratch(what: str, length: int, dtype: DType, like: Any = None, lasting: bool = False) -> Ndarray:
    """An ndarray for values in between. The program keeps it, and gives the same one to the next call.

    Args:
        what: whose it is; no two arrays of one call have the same.
        length: elements, at least 1.
        dtype: of the numbers.
        like: an array whose elements have the same shape, and which has a gradient or a dual if this one needs it.
        lasting: the gradient reads the values again: an open tape gets a new array at each call.
    """
    program = current_program()
    element = () if like is None else like.element_shape
    grad, dual = (False, False) if like is None else (like.has_grad(), like.has_dual())
    key = (what, length, dtype, element, grad, dual)
    if lasting and program.recorders.tape is not None:
        return make_ndarray(dtype, (length,), element, grad, needs_dual=dual)
    if key not in program.scratch:
        program.scratch[key] = make_ndarray(dtype, (length,), element, grad, needs_dual=dual)
    return program.scratch[key]
