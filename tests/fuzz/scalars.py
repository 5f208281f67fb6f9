"""Scalar types and what each operation gives, written from docs/language.md and apart from the compiler, which is under test.

Integers are computed as Python ints and wrapped; reals are numpy scalars, rounded after every operation. Mathematical functions are
those of the C library, as in scalar machine code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.machine_math import of_numbers


@dataclass(frozen=True)
class Type:
    """A scalar type by its name: i32, u8, f64, u1."""

    name: str

    @property
    def kind(self) -> str:
        return "b" if self.name == "u1" else self.name[0]

    @property
    def bits(self) -> int:
        return int(self.name[1:])

    @property
    def real(self) -> bool:
        return self.kind == "f"

    @property
    def numpy(self) -> np.dtype:
        return np.dtype(np.bool_ if self.name == "u1" else f"{self.kind}{self.bits // 8}")

    @property
    def limits(self) -> tuple[int, int]:
        if self.kind == "i":
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    def __repr__(self) -> str:
        return self.name


REALS = tuple(Type(n) for n in ("f16", "f32", "f64"))
INTEGERS = tuple(Type(n) for n in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"))
U1 = Type("u1")
TYPES = {t.name: t for t in (*REALS, *INTEGERS, U1)}
F16, F32, F64 = REALS
I32, I64, U64 = TYPES["i32"], TYPES["i64"], TYPES["u64"]
_OF_NUMPY = {t.numpy: t for t in TYPES.values()}


def type_of(x: np.generic) -> Type:
    """The type of a typed value."""
    return _OF_NUMPY[x.dtype]


def meet(a: Type, b: Type) -> Type:
    """Two types meet in the wider one; a real beats an integer; on a tie, unsigned wins."""
    if a == b:
        return a
    if a.real or b.real:
        return max((t for t in (a, b) if t.real), key=lambda t: t.bits)
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "u" else b


def wrap(value: int, t: Type) -> np.generic:
    """A whole number in the width of a type."""
    if t == U1:
        return np.bool_(value)
    low = value & ((1 << t.bits) - 1)
    return t.numpy.type(low - (1 << t.bits) if t.kind == "i" and low >> (t.bits - 1) else low)


def make(value: Any, t: Type) -> np.generic:
    """A Python number as a typed value."""
    if t == U1:
        return np.bool_(value != 0)
    if t.real:
        with np.errstate(all="ignore"):
            return np.float64(value).astype(t.numpy) if isinstance(value, float) else t.numpy.type(value)
    return cast(np.float64(value), t) if isinstance(value, float) else wrap(int(value), t)


def cast(x: np.generic, t: Type) -> np.generic:
    """Between types: integers wrap; a real becomes an integer by truncation, within the ends of the type, and NaN becomes 0."""
    if t == U1:
        return np.bool_(x != 0)
    if t.real:
        with np.errstate(all="ignore"):
            return x.astype(t.numpy)
    if not isinstance(x, np.floating):
        return wrap(int(x), t)
    if np.isnan(x):
        return wrap(0, t)
    low, high = t.limits
    if np.isinf(x):
        return wrap(high if x > 0 else low, t)
    return wrap(min(max(int(x), low), high), t)


def _toward_zero(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int, bits: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << bits)
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


INTEGER: dict[str, Callable[..., int]] = {
    "+": lambda a, b, n: a + b,
    "-": lambda a, b, n: a - b,
    "*": lambda a, b, n: a * b,
    "//": lambda a, b, n: a // b if b else 0,
    "%": lambda a, b, n: a % b if b else 0,
    "**": _power,
    "&": lambda a, b, n: a & b,
    "|": lambda a, b, n: a | b,
    "^": lambda a, b, n: a ^ b,
    "<<": lambda a, b, n: a << (b % n),
    ">>": lambda a, b, n: a >> (b % n),
    "shr": lambda a, b, n: (a & ((1 << n) - 1)) >> (b % n),
    "min": lambda a, b, n: a if a < b else b,
    "max": lambda a, b, n: a if a > b else b,
    "raw_div": lambda a, b, n: _toward_zero(a, b),
    "raw_mod": lambda a, b, n: a - b * _toward_zero(a, b) if b else 0,
}


def _python_mod(a: Any, b: Any) -> Any:
    """The exact remainder, brought to the sign of the divisor by one sum."""
    r = np.fmod(a, b)
    if r == 0:
        return np.copysign(r, b)
    return r + b if (r < 0) != (b < 0) and not np.isnan(r) else r


def _extreme(a: Any, b: Any, first: bool, least: bool) -> Any:
    """The smaller or the greater one: NaN if one is, and -0.0 is less than 0.0."""
    if np.isnan(a) or np.isnan(b):
        return a + b
    if a == b == 0:
        return a if bool(np.signbit(a)) == least else b
    return a if first else b


REAL: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": lambda a, b: np.floor(a / b),
    "%": _python_mod,
    "min": lambda a, b: _extreme(a, b, a < b, True),
    "max": lambda a, b: _extreme(a, b, a > b, False),
    "raw_div": operator.truediv,
    "raw_mod": np.fmod,
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
TRANSCENDENTAL = dict.fromkeys("sin cos tan asin acos sinh cosh tanh exp expm1 log log1p erf erfc".split(), 1) | {
    "atan2": 2,
    "pow": 2,
}
ROUNDINGS = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}


def libm(name: str, *args: Any) -> Any:
    """A mathematical function of the machine on typed reals; f16 by way of f32."""
    with np.errstate(all="ignore"):
        return of_numbers(name)(*args)


def round_away(x: Any) -> Any:
    """The nearest whole number; of two, the one away from zero."""
    whole = np.trunc(x)
    return whole + x.dtype.type(np.copysign(1.0, x)) if abs(x - whole) >= 0.5 else whole


def binary(op: str, a: np.generic, b: np.generic, t: Type) -> np.generic:
    """An operation on two values of type ``t``."""
    if op in COMPARE:
        return np.bool_(COMPARE[op](a, b))
    with np.errstate(all="ignore"):
        if t.real:
            return libm("pow", a, b) if op == "**" else t.numpy.type(REAL[op](a, b))
        return wrap(INTEGER[op](int(a), int(b), t.bits), t)
