"""The meaning of each pure operation, on numpy scalars or arrays of the exact type: for the interpreter, constant folding and plans.

Integers wrap; floats are rounded to their type after every operation.
The IR defines cases that C or IEEE leave undefined:

- integer division and remainder by zero give 0, and the most negative number divided by -1 wraps;
- float ``floordiv`` is ``floor(a / b)``, each step rounded; float ``crem`` is C's ``fmod`` and ``mod`` is Python's ``%``, both exact but
  for the one sum that gives ``mod`` the sign of ``b``;
- ``min`` and ``max`` of reals are NaN if an operand is, and -0.0 is less than 0.0;
- ``sgn`` is ``(x > 0) - (x < 0)``, so 0 for both zeros, and NaN for a NaN; ``round`` goes away from zero on a tie;
- a float becomes an integer by truncation, saturates at the ends of the type, and NaN gives 0; ``u1`` of ``x`` is ``x != 0``;
- a shift count is taken modulo the width (``shr`` shifts zeros in, ``sar`` copies of the sign); ``clz(0)`` is the width;
- an integer power with a negative exponent is 0, except for the bases 1 and -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from .builder import convert
from .ops import TABLE
from .types import DType, from_numpy, limits

Scalar = Any  # a numpy scalar: np.float32(1), np.int8(-3), np.bool_(True)
Values = Any
"""A numpy scalar, or an array."""


def scalar(value: float | int | bool | np.generic, dtype: DType) -> Scalar:
    """A Python or numpy number as the numpy scalar of ``dtype``, see ``convert``; floats are rounded to the type."""
    number = convert(value.item() if isinstance(value, np.generic) else value, dtype)
    if not dtype.is_real:
        return dtype.numpy.type(number)
    with np.errstate(over="ignore"):
        return dtype.numpy.type(number)


def identity(code: Literal["add", "min", "max"], dtype: DType) -> Scalar:
    """The value that changes nothing when it is combined by ``code``."""
    if code == "add":
        return scalar(0, dtype)
    if dtype.is_real:
        return scalar(float("inf") if code == "min" else float("-inf"), dtype)
    low, high = limits(dtype)
    return scalar(high if code == "min" else low, dtype)


def cast(x: Values, dtype: DType) -> Values:
    """Values of another type; reals become integers as in a kernel: truncated, at the ends of the type saturated, a NaN 0."""
    if dtype.kind == "b":
        return x if x.dtype == np.bool_ else x != 0
    if dtype.is_real or x.dtype.kind != "f":
        return x.astype(dtype.numpy, copy=False)  # one rounding, also from 64-bit integers
    low, high = limits(dtype)
    whole = x.astype(np.float64)
    inside = (whole > low - 1) & (whole < high + 1)
    found = np.where(inside, whole, 0.0).astype(dtype.numpy)
    none, least, most = (np.asarray(end, dtype.numpy) for end in (0, low, high))
    ends = np.where(np.isnan(whole), none, np.where(whole < 0, least, most))
    return np.where(inside, found, ends)[()]


def bitcast(x: Scalar, dtype: DType) -> Scalar:
    """Reinterpret bits as another type of the same size."""
    if x.dtype.itemsize != dtype.size:
        raise TypeError(f"bitcast from {x.dtype} to {dtype}: the sizes differ")
    return np.frombuffer(x.tobytes(), dtype.numpy)[0]


# ---- integers. Literals have the type of the values: numpy 1 makes C longs of Python's integers, and a C long and a u64 meet in float64
def _divisor(b: Values) -> Values:
    return np.where(b == 0, b.dtype.type(1), b)


def _or_zero(b: Values, found: Values) -> Values:
    """``found``, but 0 where the divisor is."""
    return np.where(b == 0, found.dtype.type(0), found)


def _cdiv(a: Values, b: Values) -> Values:
    safe = _divisor(b)
    down = a // safe
    up = down + ((down * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return _or_zero(b, up)


def _width(a: Values) -> int:
    return 1 if a.dtype.kind == "b" else 8 * a.dtype.itemsize


def _unsigned(a: Values) -> np.ndarray:
    a = np.asarray(a)
    return a.view(f"u{a.dtype.itemsize}")


def _count(a: Values, b: Values) -> Values:
    """A shift count modulo the width."""
    return b & b.dtype.type(_width(a) - 1)


def _ipow(a: Values, b: Values) -> Values:
    """By squaring, as wrapping multiplications give; a negative exponent gives 0, except for the bases 1 and -1."""
    zero, one = a.dtype.type(0), a.dtype.type(1)
    out, base, left = np.ones_like(a + b), a, np.maximum(b, zero)
    for _ in range(int(np.max(left, initial=zero)).bit_length()):
        out = np.where(left & one, out * base, out)
        base, left = base * base, left >> one
    if a.dtype.kind == "u":
        return out
    inverse = np.where(a == one, one, np.where(a == -one, np.where(b & one, -one, one), zero))
    return np.where(b < zero, inverse, out)


def _popcnt(a: Values) -> Values:
    left = _unsigned(a).astype(np.uint64)
    out = np.zeros(left.shape, np.int64)
    for _ in range(_width(a)):
        out = out + (left & np.uint64(1)).astype(np.int64)
        left = left >> np.uint64(1)
    return out


def _clz(a: Values) -> Values:
    left = _unsigned(a).astype(np.uint64)
    out = np.full(left.shape, _width(a), np.int64)
    for _ in range(_width(a)):
        out = out - (left != 0)
        left = left >> np.uint64(1)
    return out


# of integers of one type; what comes out is then taken in the result's type
INTEGER: dict[str, Callable[..., Values]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sgn": np.sign,
    "bitnot": np.invert,
    "not": np.logical_not,
    "popcnt": _popcnt,
    "clz": _clz,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": lambda a, b: _or_zero(b, a // _divisor(b)),
    "mod": lambda a, b: _or_zero(b, a % _divisor(b)),
    "cdiv": _cdiv,
    "crem": lambda a, b: _or_zero(b, a - b * _cdiv(a, b)),
    "min": np.minimum,
    "max": np.maximum,
    "pow": _ipow,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": lambda a, b: np.left_shift(a, _count(a, b)),
    "shr": lambda a, b: (_unsigned(a) >> _unsigned(_count(a, b))).view(a.dtype),
    "sar": lambda a, b: np.right_shift(a, _count(a, b)),
}


def _minimum(a: Values, b: Values) -> Values:
    """IEEE 754's minimum: numpy's leaves the sign of a zero open."""
    first = (a < b) | np.isnan(a) | ((a == b) & np.signbit(a))
    return np.where(first, a, b)


def _maximum(a: Values, b: Values) -> Values:
    first = (a > b) | np.isnan(a) | ((a == b) & ~np.signbit(a))
    return np.where(first, a, b)


# of reals of one type; the result has that type
REAL: dict[str, Callable[..., Values]] = {
    **{code: info.real for code, info in TABLE.items() if info.real is not None},
    "neg": np.negative,
    "abs": np.abs,
    "sgn": np.sign,
    "detach": lambda x: x,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": lambda a, b: np.floor(a / b),
    "mod": np.remainder,
    "crem": np.fmod,
    "min": _minimum,
    "max": _maximum,
    "attach": lambda a, b: a,
}

# of truth values, where numpy has no such function; the others are those of integers
BOOLEAN: dict[str, Callable[..., Values]] = {
    "neg": lambda x: x,
    "sgn": lambda x: x,
    "sub": np.logical_xor,
    "pow": lambda a, b: np.logical_or(a, np.logical_not(b)),
}

_BY_KIND = {"f": REAL, "b": INTEGER | BOOLEAN, "i": INTEGER, "u": INTEGER}

# of values of any one type
COMPARISON: dict[str, Callable[[Values, Values], Values]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def evaluate(code: str, args: Sequence[Values], dtype: DType) -> Values:
    """The result of a pure operation, of numpy scalars or, but for ``bitcast``, of arrays that broadcast.

    Args:
        code: the operation.
        args: its operands, of their exact types.
        dtype: its result type.
    """
    with np.errstate(all="ignore"):
        if code == "cast":
            return cast(args[0], dtype)
        if code == "bitcast":
            return bitcast(args[0], dtype)
        if code == "select":
            return np.where(*args)[()]
        if code in COMPARISON:
            return COMPARISON[code](*args)
        meaning = _BY_KIND[args[0].dtype.kind].get(code) or TABLE[code].real
        assert meaning is not None, f"`{code}` means nothing for {args[0].dtype}"
        return np.asarray(meaning(*args)).astype(dtype.numpy, copy=False)[()]


def update(code: str, old: Scalar, *values: Scalar) -> Scalar:
    """The new content of memory after an atomic."""
    if code == "cas":
        return values[1] if old == values[0] else old
    return values[0] if code == "xchg" else evaluate(code, (old, *values), from_numpy(old.dtype))
