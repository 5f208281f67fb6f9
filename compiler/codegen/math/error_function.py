"""erf and erfc, for f32 and f64, for one value or many. The same code runs on every machine.

Up to 1, erf is a polynomial. Beyond, erfc(x) = exp(-x**2) * p(q) / (1 + 2 x) with q = (x - 4) / (x + 4), where p is close to 1; the square
is kept as a pair, since the exponential multiplies its error. The coefficients interpolate at Chebyshev's nodes, in 60 digits.
"""

from __future__ import annotations

from . import functions
from .hyperbolic import exp_of
from .lanes import Lanes

_ERF_32 = (
    0.12837916612625122,
    -0.3761262595653534,
    0.11283594369888306,
    -0.02685421146452427,
    0.005189087241888046,
    -0.000801686430349946,
    7.875874871388078e-05,
)
_ERF_64 = (
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
)
"""erf(x) = x + x * this(x**2), x within 1."""
_ERFC_32 = (
    1.2329951524734497,
    -0.13962113857269287,
    0.015379632823169231,
    0.06809800863265991,
    -0.1010376587510109,
    0.09371955692768097,
    -0.06635784357786179,
    0.03722529485821724,
    -0.016011739149689674,
    0.005053406115621328,
    -0.0011351167922839522,
    -0.000642741855699569,
)
_ERFC_64 = (
    1.2329951186255526,
    -0.13962111684056253,
    0.015379652102619523,
    0.06809705425469259,
    -0.10103906603629266,
    0.09373283499835361,
    -0.06633036581244672,
    0.037167515537377856,
    -0.016197734055679282,
    0.005031969979399385,
    -0.0007577732983635298,
    -0.00019925670474788313,
    0.00015062169462125237,
    -2.4399172870686758e-05,
    -1.1222015496282597e-05,
    5.709629675261918e-06,
    2.936688030676073e-07,
    -8.252727493350701e-07,
    7.491789135082537e-08,
    1.0993980640840464e-07,
    -1.8184199806971624e-08,
    -1.408922730961662e-08,
    1.9389565991275174e-09,
    1.2868186391484246e-09,
)
"""p(q) of x from 0 on, to where erfc is 0."""

_LIFT = 32


def _tail(e: Lanes, a: str) -> str:
    """erfc(a) for a >= 0."""
    most = e.c(10.5 if e.single else 28.0)
    a = e.select(e.cmp("olt", a, most), a, most)
    square, rest = e.two_prod(a, a)
    high, low = functions.exact_sum(e, e.neg(square), e.c(_LIFT * e.k.ln2[0]))
    power = exp_of(
        e, high, e.add(e.sub(low, rest), e.c(_LIFT * e.k.ln2[1]))
    )  # lifted: the result may be subnormal, this may not
    q = e.div(e.sub(a, e.c(4.0)), e.add(a, e.c(4.0)))
    p = e.poly(q, _ERFC_32 if e.single else _ERFC_64)
    return e.mul(e.mul(power, e.div(p, e.fma(a, e.c(2.0), e.c(1.0)))), e.c(2.0**-_LIFT))


def _center(e: Lanes, a: str) -> str:
    """erf(a) for 0 <= a <= 1."""
    return e.fma(a, e.poly(e.mul(a, a), _ERF_32 if e.single else _ERF_64), a)


def erf(e: Lanes, x: str) -> str:
    """The error function."""
    a = e.unary("fabs", x)
    y = e.select(e.cmp("olt", a, e.c(1.0)), _center(e, a), e.sub(e.c(1.0), _tail(e, a)))
    return e.select(e.cmp("uno", x, x), x, e.copysign(y, x))


def erfc(e: Lanes, x: str) -> str:
    """1 - erf(x), without the cancellation."""
    a = e.unary("fabs", x)
    tail = _tail(e, a)
    y = e.select(e.cmp("olt", x, e.c(0.0)), e.sub(e.c(2.0), tail), tail)
    y = e.select(e.cmp("olt", a, e.c(0.5)), e.sub(e.c(1.0), e.copysign(_center(e, a), x)), y)
    return e.select(e.cmp("uno", x, x), x, y)
