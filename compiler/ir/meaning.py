"""What each pure operation computes, on numpy scalars of the exact type. The interpreter runs it and constant folding uses it.

Integers are computed as Python ints and wrapped to the width; floats are rounded to their type after every operation.
Where C or IEEE leave room, the IR does not:

- integer division and remainder by zero give 0, and the most negative number divided by -1 wraps;
- float ``floordiv`` is ``floor(a / b)`` and float ``mod`` is ``a - b * floor(a / b)``, each step rounded;
- ``min`` is ``a if a < b else b`` and ``max`` is ``a if a > b else b``: the second operand on a tie, or when one is a NaN;
- ``sgn`` is ``(x > 0) - (x < 0)``, so 0 for both zeros and for a NaN; ``round`` goes away from zero on a tie;
- a float becomes an integer by truncation, saturates at the ends of the type, and NaN gives 0; ``u1`` of ``x`` is ``x != 0``;
- a shift count is taken modulo the width (``shr`` shifts zeros in, ``sar`` copies of the sign); ``clz(0)`` is the width;
- an integer power with a negative exponent is 0, except for the bases 1 and -1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from .builder import convert
from .types import DType, from_numpy, limits

Scalar = Any  # a numpy scalar: np.float32(1), np.int8(-3), np.bool_(True)


def scalar(value: float | int | bool | np.generic, dtype: DType) -> Scalar:
    """A Python or numpy number as the numpy scalar of ``dtype``, see ``convert``; floats are rounded to the type."""
    return dtype.numpy.type(convert(value, dtype) if not isinstance(value, np.generic) else convert(value.item(), dtype))


def round_away(x: Any) -> Any:
    """The nearest whole number; of two, the one away from zero."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole).astype(np.asarray(x).dtype)[()]


def identity(code: Literal["add", "min", "max"], dtype: DType) -> Scalar:
    """The value that changes nothing when it is combined by ``code``."""
    if code == "add":
        return scalar(0, dtype)
    if dtype.is_real:
        return scalar(float("inf") if code == "min" else float("-inf"), dtype)
    low, high = limits(dtype)
    return scalar(high if code == "min" else low, dtype)


def cast(x: Scalar, dtype: DType) -> Scalar:
    """``x`` as a value of another type."""
    if dtype.kind == "b":
        return np.bool_(x != 0)
    if dtype.is_real:
        return x.astype(dtype.numpy)  # one rounding, also from 64-bit integers
    return scalar(x, dtype)


def _power(a: Scalar, b: Scalar) -> Scalar:
    """C's ``pow``. Numpy takes the square root for an exponent of one half, which differs for -0 and minus infinity."""
    if b == 0.5 and (a == 0 or np.isinf(a)):
        return np.abs(a)
    return np.power(a, b)


def bitcast(x: Scalar, dtype: DType) -> Scalar:
    """The same bits read as another type of the same size."""
    if x.dtype.itemsize != dtype.size:
        raise TypeError(f"bitcast from {x.dtype} to {dtype}: the sizes differ")
    return np.frombuffer(x.tobytes(), dtype.numpy)[0]


def _cdiv(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _ipow(a: int, b: int, bits: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << bits)  # a power modulo 2**bits is what wrapping multiplications give
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


# on Python ints; the last parameter is the width in bits; the result is wrapped to the result type
INTEGER: dict[str, Callable[..., int]] = {
    "neg": lambda a, n: -a,
    "abs": lambda a, n: abs(a),
    "sgn": lambda a, n: (a > 0) - (a < 0),
    "bitnot": lambda a, n: a ^ ((1 << n) - 1),
    "not": lambda a, n: 1 - a,
    "popcnt": lambda a, n: (a & ((1 << n) - 1)).bit_count(),
    "clz": lambda a, n: n - (a & ((1 << n) - 1)).bit_length(),
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul": lambda a, b, n: a * b,
    "floordiv": lambda a, b, n: a // b if b else 0,
    "mod": lambda a, b, n: a % b if b else 0,
    "cdiv": lambda a, b, n: _cdiv(a, b),
    "crem": lambda a, b, n: a - b * _cdiv(a, b) if b else 0,
    "min": lambda a, b, n: a if a < b else b,
    "max": lambda a, b, n: a if a > b else b,
    "pow": _ipow,
    "and": lambda a, b, n: a & b,
    "or": lambda a, b, n: a | b,
    "xor": lambda a, b, n: a ^ b,
    "shl": lambda a, b, n: a << (b & (n - 1)),
    "shr": lambda a, b, n: (a & ((1 << n) - 1)) >> (b & (n - 1)),
    "sar": lambda a, b, n: a >> (b & (n - 1)),
}

# on numpy scalars of one float type; the result has that type
REAL: dict[str, Callable[..., Scalar]] = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": round_away,
    "trunc": np.trunc,
    "neg": operator.neg,
    "abs": np.abs,
    "sgn": lambda x: x.dtype.type(int(x > 0) - int(x < 0)),
    "detach": lambda x: x,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": lambda a, b: np.floor(a / b),
    "mod": lambda a, b: a - b * np.floor(a / b),
    "min": lambda a, b: a if a < b else b,
    "max": lambda a, b: a if a > b else b,
    "pow": _power,
    "atan2": np.arctan2,
    "attach": lambda a, b: a,
}

# on numpy scalars of any one type
COMPARISON: dict[str, Callable[[Scalar, Scalar], Any]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


def evaluate(code: str, args: Sequence[Scalar], dtype: DType) -> Scalar:
    """The result of a pure operation with operands; ``dtype`` is its result type."""
    with np.errstate(all="ignore"):
        if code == "select":
            return args[1] if args[0] else args[2]
        if code == "cast":
            return cast(args[0], dtype)
        if code == "bitcast":
            return bitcast(args[0], dtype)
        if code in COMPARISON:
            return np.bool_(COMPARISON[code](*args))
        if isinstance(args[0], np.floating):
            return dtype.numpy.type(REAL[code](*args))
        return scalar(INTEGER[code](*map(int, args), from_numpy(args[0].dtype).bits), dtype)


def update(code: str, old: Scalar, *values: Scalar) -> Scalar:
    """The new content of memory after an atomic."""
    if code == "cas":
        return values[1] if old == values[0] else old
    return values[0] if code == "xchg" else evaluate(code, (old, *values), from_numpy(old.dtype))
