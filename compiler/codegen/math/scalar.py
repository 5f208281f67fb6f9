"""sin, cos, tan, exp, log, tanh and pow for one value on a GPU: no C library, no table, no call, few conversions and divisions.

They meet the same bounds as ``functions``, which has the others, in fewer instructions there; the bits may differ.
"""

from __future__ import annotations

from math import inf

from ...ir.types import f32, f64
from . import functions, reduction
from .constants import POW_EXP, POW_LOG
from .lanes import Lanes


def _polys(e: Lanes, r: str) -> tuple[str, str]:
    """Sine and cosine of r, within pi/4."""
    z = e.mul(r, r)
    s = e.fma(e.mul(r, z), e.poly(z, e.k.sin), r)
    return s, e.fma(z, e.fma(z, e.poly(z, e.k.cos), e.c(-0.5)), e.c(1.0))


def _reciprocal(e: Lanes, b: str) -> str:
    """1 / b to a unit of the last place or so, for b that f32 has as a normal number: f64 from 22 bits by Newton's steps, twice."""
    if e.single:
        return e.quotient(e.c(1.0), b)
    one = Lanes(e.f, f32, False)
    q = e.widen(one.quotient(one.c(1.0), e.f.convert(b, f64, f32, False)))
    for _ in range(2):
        q = e.fma(e.fma(e.neg(b), q, e.c(1.0)), q, q)
    return q


def _divide(e: Lanes, a: str, b: str) -> str:
    """The quotient a / b, almost always rounded correctly. Neither may come near the ends of f32's range, unless b is about 1."""
    q = _reciprocal(e, b)
    s = e.mul(a, q)
    return e.fma(e.fma(e.neg(s), b, a), q, s)


def sin(e: Lanes, x: str) -> str:
    """The sine of x."""
    r = reduction.half_turned(e, x, ahead=False)
    return e.copysign(_sin_wide(e, r), r)  # keeps the sign of zero


def cos(e: Lanes, x: str) -> str:
    """The cosine of x."""
    return _sin_wide(e, reduction.half_turned(e, x, ahead=True))


def _sin_wide(e: Lanes, r: str) -> str:
    """The sine of r, within pi/2. One polynomial over the whole range takes fewer instructions than two and a choice."""
    z = e.mul(r, r)
    return e.fma(e.mul(r, z), e.poly(z, e.k.sin_wide), r)


def tan(e: Lanes, x: str) -> str:
    """The tangent of x."""
    r, quadrant = reduction.reduced(e, x)
    s, c = _polys(e, r)
    odd = e.f.t(f"icmp ne i32 {e.f.t(f'and i32 {quadrant}, 1')}, 0")
    y = _divide(e, e.select(odd, e.neg(c), s), e.select(odd, s, c))
    return e.select(e.cmp("oeq", x, e.c(0.0)), x, y)


def _power_of_two(e: Lanes, k: str) -> str:
    """2**k for an i32 of the range of normal numbers."""
    exponent = e.f.t(f"shl i32 {e.f.t(f'add i32 {k}, {e.bias}')}, {e.mantissa % 32}")
    if not e.single:
        exponent = e.i("shl", e.f.t(f"zext i32 {exponent} to i64"), e.ci(32))
    return e.from_bits(exponent)


def _exp_core(e: Lanes, x: str, low: str) -> tuple[str, str]:
    """exp(x + low) / 2**k, and k (an i32)."""
    k, whole = e.nearest(x, e.k.inv_ln2)
    r = e.fma(k, e.c(-e.k.ln2[0]), x)  # exact
    if low and e.single:  # what a sum of f32 loses is not small beside the other errors
        r, rest = e.two_sum(r, e.fma(k, e.c(-e.k.ln2[1]), low))
        y, lost = e.two_sum(e.c(1.0), r)
        return e.add(y, e.add(lost, e.fma(e.mul(r, r), e.poly(r, e.k.exp), rest))), whole
    r = e.fma(k, e.c(-e.k.ln2[1]), r)
    if low:
        r = e.add(r, low)
    return e.add(e.fma(e.mul(r, r), e.poly(r, e.k.exp), r), e.c(1.0)), whole


def exp(e: Lanes, x: str, low: str = "") -> str:
    """The exponential of x + low; ``low`` is tiny. Two factors reach subnormal results and the largest ones."""
    least, most = (-104.0, 89.0) if e.single else (-745.2, 709.782712893384)
    if e.single:  # these keep a NaN; the factors make the infinity and the zero
        x = e.f.intrinsic("minimum", e.d, False, e.f.intrinsic("maximum", e.d, False, x, e.c(least)), e.c(most))
    y, k = _exp_core(e, x, low)
    first = e.f.t(f"ashr i32 {k}, 1")
    for part in (first, e.f.t(f"sub i32 {k}, {first}")):
        y = e.mul(y, _power_of_two(e, part))
    if e.single:
        return y
    y = e.select(e.cmp("ogt", x, e.c(most)), e.c(inf), y)
    return e.select(e.cmp("olt", x, e.c(least)), e.c(0.0), y)


def log(e: Lanes, x: str) -> str:
    """The natural logarithm; f32 without a division."""
    if not e.single:
        return _log_double(e, x)
    small = e.cmp("olt", x, e.c(2.0**-126))
    b = e.bits(e.select(small, e.mul(x, e.c(2.0**23)), x))
    k = e.i("and", e.i("sub", b, e.ci(0x3F2AAAAB)), e.ci(-(1 << 23)))  # the exponent of x / (2/3), in its place
    f = e.sub(e.from_bits(e.i("sub", b, k)), e.c(1.0))
    n = e.fma(e.to_float(k), e.c(2.0**-23), e.select(small, e.c(-23.0), e.c(0.0)))
    t = e.fma(f, e.poly(f, e.k.log_whole), e.c(-0.5))
    y = e.fma(n, e.c(e.k.ln2[0]), e.fma(e.mul(f, f), t, f))
    odd = e.icmp("uge", e.bits(x), e.ci(0x7F800000))  # infinite, NaN or negative
    y = e.select(odd, e.fma(x, e.c(inf), e.c(inf)), y)
    return e.select(e.cmp("oeq", x, e.c(0.0)), e.c(-inf), y)


def _split(e: Lanes, b: str) -> tuple[str, str]:
    """The bits of a normal f64 as the bits of a number within [sqrt(1/2), sqrt(2)) or an ulp of f32 more, and the exponent, an i32."""
    f = e.f
    high = f.t(f"trunc i64 {e.i('lshr', b, e.ci(32))} to i32")
    k = f.t(f"ashr i32 {f.t(f'sub i32 {high}, {0x3FE6A09E}')}, 20")
    shift = e.i("shl", f.t(f"zext i32 {f.t(f'shl i32 {k}, 20')} to i64"), e.ci(32))
    return e.from_bits(e.i("sub", b, shift)), k


def _log_double(e: Lanes, x: str) -> str:
    """As ``functions.log``, by a reciprocal and with integers of 32 bits."""
    f = e.f
    high = f.t(f"trunc i64 {e.i('lshr', e.bits(x), e.ci(32))} to i32")
    small = f.t(f"icmp slt i32 {high}, {1 << 20}")  # or negative
    m, k = _split(e, e.bits(e.select(small, e.mul(x, e.c(2.0**54)), x)))
    k = f.t(f"sub i32 {k}, {f.t(f'select i1 {small}, i32 54, i32 0')}")
    n = f.t(f"sitofp i32 {k} to double")
    g = e.sub(m, e.c(1.0))
    s = _divide(e, g, e.add(e.c(2.0), g))
    z = e.mul(s, s)
    half = e.mul(e.mul(g, g), e.c(0.5))
    low = e.fma(n, e.c(e.k.ln2_short[1]), e.mul(s, e.fma(z, e.poly(z, e.k.log), half)))
    y = e.add(e.fma(n, e.c(e.k.ln2_short[0]), g), e.sub(low, half))
    odd = e.icmp("uge", e.bits(x), e.ci(0x7FF << 52))  # infinite, NaN or negative
    y = e.select(odd, e.fma(x, e.c(inf), e.c(inf)), y)
    return e.select(e.cmp("oeq", x, e.c(0.0)), e.c(-inf), y)


def tanh(e: Lanes, x: str) -> str:
    """The hyperbolic tangent."""
    a = e.unary("fabs", x)
    z = e.mul(a, a)
    small = e.fma(e.mul(a, z), e.poly(z, e.k.tanh), a)
    full = 10.0 if e.single else 20.0  # 1 to the last place from here on
    y, k = _exp_core(e, e.select(e.cmp("ogt", a, e.c(full)), e.c(2 * full), e.add(a, a)), "")
    big = e.fma(e.c(-2.0), _reciprocal(e, e.fma(y, _power_of_two(e, k), e.c(1.0))), e.c(1.0))
    return e.copysign(e.select(e.cmp("olt", a, e.c(0.625)), small, big), x)


def pow_(e: Lanes, x: str, y: str) -> str:
    """The power x ** y with C's rules for zeros, infinities, NaNs and negative bases.

    f32 computes in f64, just as well as it must, or in pairs of f32 where there is no f64.
    """
    size = e.unary("fabs", x)
    if e.single and e.f.module.target.doubles:
        main = e.f.convert(_pow_single(Lanes(e.f, f64, False), e, size, y), f64, f32, False)
    else:
        high, low = functions.log_pair(e, size, _reciprocal)
        p, p_low = e.two_prod(y, high)
        p_low = e.fma(y, low, p_low)
        # a product that overflows leaves no meaningful rest
        p_low = e.select(e.cmp("olt", e.unary("fabs", p), e.c(1000.0)), p_low, e.c(0.0))
        main = exp(e, p, p_low)
    return functions.pow_cases(e, x, y, size, main)


def _pow_single(w: Lanes, e: Lanes, x: str, y: str) -> str:
    """exp(y * log(x)) for a finite x > 0, each f32, to 35 bits."""
    f = w.f
    m, k = _split(w, w.bits(w.widen(x)))  # no f32 is subnormal there
    m = w.sub(m, w.c(1.0))
    d = w.add(m, w.c(2.0))
    q = w.widen(e.quotient(e.c(1.0), f.convert(d, f64, f32, False)))
    q = w.fma(w.fma(w.neg(d), q, w.c(1.0)), q, q)  # Newton: from 22 bits to 44
    s = w.mul(m, q)
    z = w.mul(s, s)
    t = w.fma(w.mul(s, z), w.poly(z, POW_LOG), w.add(s, s))
    log2 = f.t(f"sitofp i32 {k} to double")
    p = w.mul(w.widen(y), w.fma(log2, w.c(w.k.ln2[0]), t))
    p = w.select(w.cmp("ogt", p, w.c(100.0)), w.c(100.0), p)
    p = w.select(w.cmp("olt", p, w.c(-120.0)), w.c(-120.0), p)
    n, whole = w.nearest(p, w.k.inv_ln2)
    r = w.fma(n, w.c(-w.k.ln2[0]), p)
    out = w.add(w.fma(w.mul(r, r), w.poly(r, POW_EXP), r), w.c(1.0))
    return w.mul(out, _power_of_two(w, whole))
