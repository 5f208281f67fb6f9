"""Folding of operations whose operands are all literals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.builder import convert
from ..ir.meaning import evaluate, scalar
from ..ir.nodes import Const, Operand
from ..ir.types import DType, u1

_COMPARE = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}
_INTEGER: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "neg": operator.neg,
    "abs": abs,
    "bitnot": operator.invert,
    "pow": pow,
    "sgn": lambda x: (x > 0) - (x < 0),
    "min": lambda x, y: x if x < y else y,
    "max": lambda x, y: x if x > y else y,
}
_REAL: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in "sin cos tan tanh exp log sqrt floor ceil trunc".split()},
    "asin": np.arcsin,
    "acos": np.arccos,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "neg": operator.neg,
    "abs": abs,
    "sgn": np.sign,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": lambda x, y: np.floor(x / y),
    "mod": lambda x, y: x - y * np.floor(x / y),
    "min": lambda x, y: x if x < y else y,
    "max": lambda x, y: x if x > y else y,
    "pow": np.power,
    "atan2": np.arctan2,
}

_TYPED = frozenset("neg abs sgn add sub mul div floordiv mod min max sqrt floor ceil trunc round".split())
"""What is the same on every machine; mathematical functions of values are left to the machine that runs the kernel."""


def rounded_literal(x: Const) -> Const:
    """A literal as a value of its type."""
    with np.errstate(all="ignore"):
        return Const(scalar(x.value, x.dtype).item(), x.dtype)


def fold(code: str, args: tuple[Operand, ...], dtype: DType | None) -> Const | None:
    """The literal that ``code`` gives for literal operands, or None when it is left to the machine.

    Reals of the source alone fold in double precision whatever their type: a literal keeps its full precision until it is stored. Others
    give what a kernel would compute from them.
    """
    if not args or dtype is not None:
        return None
    kind = args[0].dtype
    literals = [a for a in args if isinstance(a, Const)]
    exact = all(a.exact for a in literals)
    values = [a.value if exact else rounded_literal(a).value for a in literals]
    if code in _COMPARE:
        return Const(bool(_COMPARE[code](*values)), u1, exact)
    if code == "not":
        return Const(not values[0], u1, exact)
    if code in ("isnan", "isinf"):
        return Const(bool(getattr(np, code)(values[0])), u1, exact)
    if not kind.is_real:
        return _fold_integer(code, values, kind)
    return _fold_exact(code, values, kind) if exact else _fold_typed(code, values, kind)


def _fold_exact(code: str, values: list[Any], dtype: DType) -> Const | None:
    f = _REAL.get(code)
    if f is None:
        return None
    with np.errstate(all="ignore"):
        return Const(float(f(*map(np.float64, values))), dtype, True)


def _fold_typed(code: str, values: list[Any], dtype: DType) -> Const | None:
    if code not in _TYPED:
        return None
    return Const(evaluate(code, [scalar(v, dtype) for v in values], dtype).item(), dtype)


def _fold_integer(code: str, values: list[Any], dtype: DType) -> Const | None:
    if code in ("shl", "shr", "sar"):
        return _fold_shift(code, values, dtype)
    f = _INTEGER.get(code)
    if f is None or (code in ("floordiv", "mod") and values[1] == 0) or (code == "pow" and not 0 <= values[1] <= 64):
        return None
    return Const(convert(f(*map(int, values)), dtype), dtype)


def _fold_shift(code: str, values: list[Any], dtype: DType) -> Const | None:
    x, n = values
    if not 0 <= n < dtype.bits:
        return None
    if code == "shl":
        return Const(convert(x << n, dtype), dtype)
    x = x & ((1 << dtype.bits) - 1) if code == "shr" else x
    return Const(convert(x >> n, dtype), dtype)
