"""sinh, cosh, expm1 and log1p, for f32 and f64, for one value or many. The same code runs on every machine."""

from __future__ import annotations

from math import inf

from . import functions, scalar
from .lanes import Lanes

_SINH_32 = (
    0.1666666716337204,
    0.008333339355885983,
    0.00019838102161884308,
    2.806280235745362e-06,
)
_SINH_64 = (
    0.16666666666666666,
    0.008333333333333333,
    0.00019841269841269773,
    2.755731922404034e-06,
    2.505210836405804e-08,
    1.6059048396350562e-10,
    7.646625361656657e-13,
    2.8445264169895285e-15,
)
"""sinh(x) = x + x**3 * this(x**2), x within 1."""


def exp_of(e: Lanes, x: str, low: str = "") -> str:
    """exp(x + low), as GPUs compute it or as CPUs do."""
    return (functions.exp if e.v or e.f.module.target.libm else scalar.exp)(e, x, low)


def _log_of(e: Lanes, x: str) -> str:
    return (functions.log if e.v or e.f.module.target.libm else scalar.log)(e, x)


def _half_exp(e: Lanes, a: str) -> str:
    """exp(a) / 2 for a >= 0: exp(a - ln 2), which overflows no earlier than sinh and cosh do."""
    high, low = functions.exact_sum(e, a, e.c(-e.k.ln2[0]))
    return exp_of(e, high, e.sub(low, e.c(e.k.ln2[1])))


def cosh(e: Lanes, x: str) -> str:
    """The hyperbolic cosine."""
    half = _half_exp(e, _within(e, e.unary("fabs", x)))
    return _keep_nan(e, x, e.add(half, e.div(e.c(0.25), half)))


def sinh(e: Lanes, x: str) -> str:
    """The hyperbolic sine."""
    a = e.unary("fabs", x)
    z = e.mul(a, a)
    small = e.fma(e.mul(a, z), e.poly(z, _SINH_32 if e.single else _SINH_64), a)
    half = _half_exp(e, _within(e, a))
    big = e.sub(half, e.div(e.c(0.25), half))
    return _keep_nan(e, x, e.copysign(e.select(e.cmp("olt", a, e.c(1.0)), small, big), x))


def _within(e: Lanes, a: str) -> str:
    """A size that is not infinite, whose parts would be NaN."""
    most = e.c(100.0 if e.single else 800.0)
    return e.select(e.cmp("olt", a, most), a, most)


def _keep_nan(e: Lanes, x: str, y: str) -> str:
    return e.select(e.cmp("uno", x, x), x, y)


def _nearest_power(e: Lanes, x: str) -> tuple[str, str]:
    """The nearest whole number k to x / ln 2, and 2**(k - 1), which overflows for no finite exp(x)."""
    magic = 1.5 * 2.0**e.mantissa  # behind it the last bit of a float is worth 1: no conversion is needed
    shifted = e.fma(x, e.c(e.k.inv_ln2), e.c(magic))
    exponent = e.i("shl", e.i("add", e.bits(shifted), e.ci(e.bias - 1)), e.ci(e.mantissa))  # the bits above k are shifted out
    return e.sub(shifted, e.c(magic)), e.from_bits(exponent)


def expm1(e: Lanes, x: str) -> str:
    """exp(x) - 1: 2**k * (exp(r) - 1) + (2**k - 1), where the first part is small if k is not."""
    least, most = (-20.0, 89.0) if e.single else (-40.0, 710.0)
    clamped = e.select(e.cmp("olt", x, e.c(most)), x, e.c(most))
    clamped = e.select(e.cmp("ogt", clamped, e.c(least)), clamped, e.c(least))
    k, half = _nearest_power(e, clamped)
    r = e.fma(k, e.c(-e.k.ln2[1]), e.fma(k, e.c(-e.k.ln2[0]), clamped))
    p = e.fma(e.mul(r, r), e.poly(r, e.k.exp), r)
    y = e.mul(e.c(2.0), e.fma(half, p, e.sub(half, e.c(0.5))))
    y = e.select(e.cmp("oeq", k, e.c(0.0)), p, y)
    return e.select(e.cmp("ueq", x, e.c(0.0)), x, y)  # keeps a NaN and the sign of zero


def log1p(e: Lanes, x: str) -> str:
    """log(1 + x): that of the rounded sum, and what the rounding lost."""
    u = e.add(e.c(1.0), x)
    large = e.cmp("oge", x, e.c(1.0))
    lost = e.select(large, e.sub(e.c(1.0), e.sub(u, x)), e.sub(x, e.sub(u, e.c(1.0))))
    main = _log_of(e, u)
    y = e.add(main, e.div(lost, u))
    plain = e.logic("or", e.cmp("oeq", u, e.c(inf)), e.cmp("ole", u, e.c(0.0)))
    y = e.select(plain, main, y)
    return e.select(e.cmp("oeq", x, e.c(0.0)), x, y)  # keeps the sign of zero
