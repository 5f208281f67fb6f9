"""sin, cos, tan, asin, acos, atan2, exp, log, tanh and pow, for f32 and f64, for one value or many."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from ...ir.types import f32, f64
from .lanes import Lanes


def trig_limit(single: bool) -> float:
    """The greatest argument that the reduction by pi/2 in three parts still handles to about one ulp."""
    return 1e5 if single else 1e9


def reduced(e: Lanes, x: str) -> tuple[str, str, str]:
    """Reduce x by the nearest multiple of pi/2.

    Returns the remainder as a pair, and the number of the quadrant. |x| is within ``trig_limit``.
    """
    p = e.k.half_pi
    k = e.unary("rint", e.mul(x, e.c(e.k.two_over_pi)))
    high = e.fma(k, e.c(-p[0]), x)  # exact: both are multiples of the last bit of p[0]
    t, t_low = e.two_prod(k, e.c(p[1]))
    r = e.sub(high, t)
    back = e.sub(r, high)
    lost = e.sub(e.sub(high, e.sub(r, back)), e.add(t, back))
    low = e.fma(k, e.c(-p[2]), e.sub(lost, t_low))
    return r, low, e.to_int(k)


def _sin_cos_polys(e: Lanes, r: str, low: str) -> tuple[str, str]:
    z = e.mul(r, r)
    s = e.add(e.fma(e.mul(r, z), e.poly(z, e.k.sin), low), r)
    c = e.fma(r, e.neg(low), e.mul(z, e.c(-0.5)))
    return s, e.add(e.fma(e.mul(z, z), e.poly(z, e.k.cos), c), e.c(1.0))


def _flip(e: Lanes, y: str, quadrant: str) -> str:
    """Change the sign in the lower half of the circle: bit 1 of the quadrant moves to the sign bit."""
    sign = e.i("shl", e.i("and", quadrant, e.ci(2)), e.ci(e.int.bits - 2))
    return e.from_bits(e.i("xor", e.bits(y), sign))


def sin(e: Lanes, x: str) -> str:
    """The sine of x, |x| within ``trig_limit``"""
    return _sine(e, x, *_circle(e, x))


def cos(e: Lanes, x: str) -> str:
    """The cosine of x, |x| within ``trig_limit``"""
    return _cosine(e, *_circle(e, x))


def sin_cos(e: Lanes, x: str) -> tuple[str, str]:
    """The sine and the cosine of x, |x| within ``trig_limit``: the bits of ``sin`` and of ``cos``."""
    circle = _circle(e, x)
    return _sine(e, x, *circle), _cosine(e, *circle)


def _circle(e: Lanes, x: str) -> tuple[str, str, str, str]:
    """The sine and the cosine of the remainder, the quadrant, and whether its number is odd."""
    r, low, quadrant = reduced(e, x)
    s, c = _sin_cos_polys(e, r, low)
    return s, c, quadrant, e.icmp("ne", e.i("and", quadrant, e.ci(1)), e.ci(0))


def _sine(e: Lanes, x: str, s: str, c: str, quadrant: str, odd: str) -> str:
    y = _flip(e, e.select(odd, c, s), quadrant)
    return e.select(e.cmp("oeq", x, e.c(0.0)), x, y)  # keeps the sign of zero


def _cosine(e: Lanes, s: str, c: str, quadrant: str, odd: str) -> str:
    return _flip(e, e.select(odd, s, c), e.i("add", quadrant, e.ci(1)))


def tan(e: Lanes, x: str) -> str:
    """The tangent of x, |x| within ``trig_limit``"""
    s, c, _, odd = _circle(e, x)
    y = e.div(e.select(odd, e.neg(c), s), e.select(odd, s, c))
    return e.select(e.cmp("oeq", x, e.c(0.0)), x, y)


def _scale(e: Lanes, y: str, k: str) -> str:
    """Multiply y by 2**k in two steps, so that subnormal results and the largest ones are reached."""
    first = e.i("ashr", k, e.ci(1))
    for part in (first, e.i("sub", k, first)):
        y = e.mul(y, e.from_bits(e.i("shl", e.i("add", part, e.ci(e.bias)), e.ci(e.mantissa))))
    return y


def exp(e: Lanes, x: str, low: str = "") -> str:
    """The exponential of x + low; ``low`` is tiny."""
    least, most = (-104.0, 88.72284) if e.single else (-745.2, 709.782712893384)
    clamped = e.select(e.cmp("olt", x, e.c(most)), x, e.c(most))
    clamped = e.select(e.cmp("ogt", clamped, e.c(least)), clamped, e.c(least))
    k = e.unary("rint", e.mul(clamped, e.c(e.k.inv_ln2)))
    r = e.fma(k, e.c(-e.k.ln2[1]), e.fma(k, e.c(-e.k.ln2[0]), clamped))
    if low:
        r = e.add(r, low)
    y = e.add(e.fma(e.mul(r, r), e.poly(r, e.k.exp), r), e.c(1.0))
    y = _scale(e, y, e.to_int(k))
    y = e.select(e.cmp("ogt", x, e.c(most)), e.c(inf), y)
    return e.select(e.cmp("uno", x, x), x, y)


def _mantissa(e: Lanes, x: str) -> tuple[str, str]:
    """Split x = m * 2**k with m in [sqrt(1/2), sqrt(2)); k as a float."""
    small = e.cmp("olt", x, e.c(2.0**-126 if e.single else 2.0**-1022))
    b = e.bits(e.select(small, e.mul(x, e.c(2.0 ** (e.mantissa + 1))), x))
    k = e.i("ashr", e.i("sub", b, e.ci(0x3F3504F3 if e.single else 0x3FE6A09E667F3BCD)), e.ci(e.mantissa))
    m = e.from_bits(e.i("sub", b, e.i("shl", k, e.ci(e.mantissa))))
    return m, e.to_float(e.iselect(small, e.i("sub", k, e.ci(e.mantissa + 1)), k))


def log(e: Lanes, x: str) -> str:
    """The natural logarithm."""
    m, k = _mantissa(e, x)
    f = e.sub(m, e.c(1.0))
    s = e.div(f, e.add(e.c(2.0), f))
    z = e.mul(s, s)
    half = e.mul(e.mul(f, f), e.c(0.5))
    low = e.fma(k, e.c(e.k.ln2_short[1]), e.mul(s, e.add(half, e.mul(z, e.poly(z, e.k.log)))))
    y = e.add(e.fma(k, e.c(e.k.ln2_short[0]), f), e.sub(low, half))
    y = e.select(e.cmp("oeq", x, e.c(0.0)), e.c(-inf), y)
    y = e.select(e.cmp("ult", x, e.c(0.0)), e.c(nan), y)
    return e.select(e.cmp("oeq", x, e.c(inf)), x, y)


def log_pair(e: Lanes, x: str, reciprocal: Callable[[Lanes, str], str] | None = None) -> tuple[str, str]:
    """The logarithm of a positive finite x, to about 67 bits: what a power needs, since its exponent multiplies the error.

    ``reciprocal``: where it is cheaper than divisions; it may be off by a few units of the last place.
    """
    m, k = _mantissa(e, x)
    f = e.sub(m, e.c(1.0))  # exact
    d, d_low = e.two_sum(e.c(2.0), f)
    inverse = reciprocal(e, d) if reciprocal else ""
    s = e.mul(f, inverse) if inverse else e.div(f, d)
    left = e.fma(e.neg(s), d, f)
    left = e.fma(e.neg(s), d_low, left)
    s_low = e.mul(left, inverse) if inverse else e.div(left, d)
    z, z_low = e.two_prod(s, s)
    z_low = e.fma(e.add(s, s), s_low, z_low)
    c, c_low = e.two_prod(z, s)  # the cube
    c_low = e.add(c_low, e.fma(z, s_low, e.mul(z_low, s)))
    t, t_low = e.two_prod(c, e.c(e.k.two_thirds[0]))
    t_low = e.add(t_low, e.fma(c, e.c(e.k.two_thirds[1]), e.mul(c_low, e.c(e.k.two_thirds[0]))))
    tail = e.mul(e.mul(c, z), e.poly(z, e.k.log_tail))
    high, low = e.two_sum(e.add(s, s), t)
    low = e.add(low, e.add(e.add(e.add(s_low, s_low), t_low), tail))
    base, base_low = e.two_prod(k, e.c(e.k.ln2[0]))
    total, rest = exact_sum(e, base, high)
    rest = e.add(rest, e.add(low, e.fma(k, e.c(e.k.ln2[1]), base_low)))
    return e.two_sum(total, rest)


def exact_sum(e: Lanes, a: str, b: str) -> tuple[str, str]:
    """The exact sum as a pair, whichever is larger."""
    s = e.add(a, b)
    back = e.sub(s, a)
    return s, e.add(e.sub(a, e.sub(s, back)), e.sub(b, back))


def pow_(e: Lanes, x: str, y: str) -> str:
    """The power x ** y with C's rules for zeros, infinities, NaNs and negative bases. f32 computes in f64."""
    size = e.unary("fabs", x)
    if e.single:
        w = Lanes(e.f, f64, e.v)
        wide = exp(w, w.mul(w.widen(y), log(w, w.widen(size))))
        main = e.f.convert(wide, f64, f32, e.v)
    else:
        high, low = log_pair(e, size)
        p, p_low = e.two_prod(y, high)
        p_low = e.fma(y, low, p_low)
        # a product that overflows leaves no meaningful rest
        main = exp(e, p, e.select(e.cmp("olt", e.unary("fabs", p), e.c(1000.0)), p_low, e.c(0.0)))
    return pow_cases(e, x, y, size, main)


def pow_cases(e: Lanes, x: str, y: str, size: str, main: str) -> str:
    """The power of every pair: ``main`` where no rule of C's says otherwise. ``size``: |x|."""
    one, zero, infinite = e.c(1.0), e.c(0.0), e.c(inf)
    whole = e.cmp("oeq", e.unary("floor", y), y)
    half = e.mul(y, e.c(0.5))
    odd = e.logic("and", whole, e.cmp("one", e.unary("floor", half), half))
    down = e.negative(y)
    pole = e.logic("or", e.cmp("oeq", size, zero), e.cmp("oeq", size, infinite))
    at_pole = e.select(e.logic("xor", down, e.cmp("oeq", size, infinite)), infinite, zero)
    out = e.select(pole, at_pole, main)
    grows = e.logic("xor", down, e.cmp("ogt", size, one))
    at_infinity = e.select(e.cmp("oeq", size, one), one, e.select(grows, infinite, zero))
    out = e.select(e.cmp("oeq", e.unary("fabs", y), infinite), at_infinity, out)
    below = e.negative(x)
    out = e.select(e.logic("and", below, odd), e.neg(out), out)
    bad = e.logic("and", e.cmp("olt", x, zero), e.cmp("one", e.unary("floor", y), y))
    bad = e.logic("and", bad, e.cmp("one", size, infinite))
    out = e.select(e.logic("or", bad, e.cmp("uno", x, y)), e.c(nan), out)
    plain = e.logic("or", e.cmp("oeq", x, one), e.cmp("oeq", y, zero))
    return e.select(plain, one, out)


def tanh(e: Lanes, x: str) -> str:
    """The hyperbolic tangent."""
    a = e.unary("fabs", x)
    z = e.mul(a, a)
    small = e.fma(e.mul(a, z), e.poly(z, e.k.tanh), a)
    big = e.sub(e.c(1.0), e.div(e.c(2.0), e.add(exp(e, e.add(a, a)), e.c(1.0))))
    return e.copysign(e.select(e.cmp("olt", a, e.c(0.625)), small, big), x)


def _asin_parts(e: Lanes, x: str) -> tuple[str, str]:
    """Whether |x| > 1/2, and asin(|x|), or then asin(sqrt((1 - |x|) / 2))."""
    a = e.unary("fabs", x)
    big = e.cmp("ogt", a, e.c(0.5))
    z = e.select(big, e.mul(e.sub(e.c(1.0), a), e.c(0.5)), e.mul(a, a))
    s = e.select(big, e.unary("sqrt", z), a)
    return big, e.fma(e.mul(s, z), e.poly(z, e.k.asin), s)


def asin(e: Lanes, x: str) -> str:
    """The arc sine."""
    big, p = _asin_parts(e, x)
    far = e.sub(e.c(e.k.half_pi[0]), e.fma(p, e.c(2.0), e.c(-e.k.half_pi[1])))
    return e.copysign(e.select(big, far, p), x)


def acos(e: Lanes, x: str) -> str:
    """The arc cosine."""
    big, p = _asin_parts(e, x)
    twice = e.add(p, p)
    below = e.cmp("olt", x, e.c(0.0))
    far = e.select(below, e.sub(e.c(e.k.pi[0]), e.sub(twice, e.c(e.k.pi[1]))), twice)
    near = e.sub(e.c(e.k.half_pi[0]), e.sub(e.copysign(p, x), e.c(e.k.half_pi[1])))
    return e.select(big, far, near)


def atan2(e: Lanes, y: str, x: str) -> str:
    """The angle of the point (x, y)."""
    ax, ay = e.unary("fabs", x), e.unary("fabs", y)
    steep = e.cmp("ogt", ay, ax)
    num, den = e.select(steep, ax, ay), e.select(steep, ay, ax)
    q = e.select(e.cmp("oeq", den, e.c(0.0)), e.c(0.0), e.div(num, den))
    q = e.select(e.cmp("oeq", num, e.c(inf)), e.c(1.0), q)
    z = e.mul(q, q)
    r = e.fma(e.mul(q, z), e.poly(z, e.k.atan), q)
    r = e.select(steep, e.add(e.sub(e.c(e.k.half_pi[0]), r), e.c(e.k.half_pi[1])), r)
    r = e.select(e.negative(x), e.add(e.sub(e.c(e.k.pi[0]), r), e.c(e.k.pi[1])), r)
    return e.copysign(e.select(e.cmp("uno", x, y), e.c(nan), r), y)
