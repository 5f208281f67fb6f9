"""The remainders of real divisions, exact: C's, with the sign of the dividend, and Python's, with that of the divisor.

The quotient is taken to as many bits as a fused product with the divisor leaves exact; a large one takes several turns. One that is too
large by one leaves a small remainder of the other sign, which the divisor brings back without a rounding. It is never too small: a
quotient is made a few units of the last place larger first, also where a device divides less exactly than IEEE asks for.
"""

from __future__ import annotations

from math import nan

from ..llvm.function import ROLLED
from .lanes import Lanes

_SPARE = 32
"""The last bits of a quotient, as a number, that are rounded away."""


def _divisor(e: Lanes, size: str, b: str) -> str:
    """``b``, or ``b`` times a power of two that is near enough to ``size`` for the quotient to be finite."""
    half = 2.0**50 if e.single else 2.0**350
    for _ in range(2):
        far = e.cmp("oge", e.mul(size, e.c(1 / half)), e.mul(b, e.c(half)))
        b = e.select(far, e.mul(e.mul(b, e.c(half)), e.c(half)), b)
    return b


def _quotient(e: Lanes, x: str, d: str) -> str:
    """The whole part of x / d for x >= d > 0, rounded to the bits that leave the product with d exact."""
    grown = e.mul(e.div(x, d), e.c(1.0 + 2.0 ** (2 - e.mantissa)))
    q = e.unary("trunc", grown)
    q = e.select(e.cmp("olt", q, e.c(1.0)), e.c(1.0), q)
    rounded = e.i("and", e.i("add", e.bits(q), e.ci(_SPARE // 2)), e.ci(-_SPARE))
    return e.from_bits(rounded)


def fmod(e: Lanes, a: str, b: str) -> str:
    """C's remainder. The body of a function: its loop begins in the first block."""
    f = e.f
    # Of a division by zero nothing is left, and no turn follows: on some GPUs the bits of the NaN that 0 / 0 is become those of 0 below.
    divisor = e.select(e.cmp("oeq", b, e.c(0.0)), e.c(nan), e.unary("fabs", b))
    first = e.bits(a)
    turn, done = f.label("turn"), f.label("done")
    f.jump(turn)
    f.at(turn)
    before, place = f.label("%x"), len(f.lines)
    x = e.from_bits(before)  # translators know phi of integers
    size = e.unary("fabs", x)
    d = _divisor(e, size, divisor)
    left = e.fma(e.neg(e.copysign(_quotient(e, size, d), x)), d, x)
    left = e.select(e.cmp("oge", size, divisor), left, x)
    f.lines.insert(place, f"  {before} = phi {e.int_ty} [ {first}, %entry ], [ {e.bits(left)}, %{turn} ]")
    more = e.cmp("oge", e.unary("fabs", left), divisor)
    if e.v:
        more = f.t(f"icmp ne i{f.lanes} {f.t(f'bitcast {e.flag_ty} {more} to i{f.lanes}')}, 0")
    f.again(more, turn, done, ROLLED)
    f.at(done)
    crossed = e.icmp("slt", e.i("xor", e.bits(left), first), e.ci(0))
    crossed = e.logic("and", crossed, e.cmp("one", left, e.c(0.0)))
    left = e.select(crossed, e.add(left, e.copysign(divisor, a)), left)
    return e.select(e.cmp("uno", a, divisor), e.c(nan), e.copysign(left, a))


def floor_mod(e: Lanes, a: str, b: str) -> str:
    """Python's remainder."""
    r = fmod(e, a, b)
    apart = e.icmp("slt", e.i("xor", e.bits(r), e.bits(b)), e.ci(0))
    other = e.select(apart, e.add(r, b), r)
    return e.select(e.cmp("oeq", r, e.c(0.0)), e.copysign(r, b), other)
