"""Folding of operations whose operands are all literals, by the meaning that they have in a kernel."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np

from ...ir.meaning import evaluate, scalar
from ...ir.nodes import Const, Operand
from ...ir.ops import COMPARE, DIVISIONS, SHIFTS, TABLE
from ...ir.types import DType, f64, u1

_TYPED = COMPARE | frozenset(
    "neg abs sgn add sub mul div floordiv mod crem min max sqrt floor ceil trunc round isnan isinf".split()
)
"""Operations of reals that are the same on every machine; functions of values are left to the machine that runs the kernel."""
_AT_RUN_TIME = frozenset(("round", "detach", "attach"))
"""Operations of reals that are not folded: the first has another meaning for Python's literals, the others are about gradients."""
_JUMPING = frozenset(("floordiv", "mod", "crem"))
"""Operations of reals whose result jumps: in another precision it could be a different value altogether."""


def rounded_literal(x: Const) -> Const:
    """A literal as a value of its type."""
    return Const(scalar(x.value, x.dtype).item(), x.dtype)


def fold(code: str, args: tuple[Operand, ...], dtype: DType | None) -> Const | None:
    """The literal that ``code`` gives for literal operands, or None when it is left to the machine.

    Reals of the source alone fold in double precision whatever their type: a literal keeps its full precision until it is stored. What
    jumps (``floordiv``, ``mod``) is computed in the type of the operands if they are values of it. Other reals give what a kernel would
    compute from them.
    """
    if not args or dtype is not None:
        return None
    kind = args[0].dtype
    literals = [a for a in args if isinstance(a, Const)]
    exact = all(a.exact for a in literals)
    how = _type_of(code, [a.value for a in literals], kind, exact) if kind.is_real else _integer(code, literals, kind)
    if how is None:
        return None
    truth = TABLE[code].result == "bool"
    result = evaluate(code, [scalar(a.value, how) for a in literals], u1 if truth else how)
    return Const(result.item(), u1 if truth else kind, exact)


def _type_of(code: str, values: list[Any], dtype: DType, exact: bool) -> DType | None:
    """The type in which an operation of reals is computed; None: it is left to the machine."""
    if not exact:
        return dtype if code in _TYPED else None
    if code in _AT_RUN_TIME:
        return None
    return dtype if code in _JUMPING and all(_is_value(x, dtype) for x in values) else f64


def _integer(code: str, literals: list[Const], dtype: DType) -> DType | None:
    """The same for integers: operations that a debug mode may refuse are not folded."""
    last = literals[-1].value
    by_zero = code in DIVISIONS and last == 0
    too_far = code in SHIFTS and not 0 <= last < dtype.bits
    return None if by_zero or too_far or (code == "pow" and not 0 <= last <= 64) else dtype


def _is_value(x: Any, dtype: DType) -> bool:
    """Whether a number is one of the values of a type, to the bit."""
    with np.errstate(all="ignore"):
        return isnan(x) or float(dtype.numpy.type(x)) == x
