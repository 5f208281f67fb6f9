"""Reduction of any angle by pi/2 or pi, for one value, on machines without C's library.

Up to ``trig_limit`` three fused steps with pi or pi/2 in three parts do (Cody and Waite); past it the product with 2/pi is made in integers
from just the bits of 2/pi that matter (Payne and Hanek, "Radian reduction for trigonometric functions", 1983), behind a branch that
is almost never taken. The error of what is left is about one unit of its last place everywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from math import inf, nan

from ...ir.types import f32, f64, i32, i64
from ..llvm.function import Fn
from .functions import trig_limit
from .lanes import Lanes

# The first 1,216 bits of 2/pi behind the point, the most significant first.
TWO_OVER_PI = (
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6bab"
)
QUARTER, HALF = 2, 1
"""A turn by pi/2, or by pi, as the number of bits before the point of the circle's fractions."""
_PAD = 64
"""Zeros before the point of the table: a small argument starts there."""


def reduced(e: Lanes, x: str) -> tuple[str, str]:
    """Reduce x by the nearest multiple of pi/2.

    Returns the remainder, in [-pi/4, pi/4] up to rounding, and the number of the quadrant, an i32 with two significant low bits. An
    infinite x leaves a NaN.
    """
    f = e.f
    k, whole = e.nearest(x, e.k.two_over_pi)

    def far(size: str) -> tuple[str, str]:
        r, whole = _far(e, e.bits(size), QUARTER)
        minus, back = e.negative(x), f.t(f"sub i32 0, {whole}")
        return e.select(minus, e.neg(r), r), f.t(f"select i1 {minus}, i32 {back}, i32 {whole}")

    return _where_large(e, x, _less(e, x, k, e.k.half_pi), whole, far)


def half_turned(e: Lanes, x: str, ahead: bool) -> str:
    """An angle in [-pi/2, pi/2], but for a rounding, that has the sine of x, or its cosine with ``ahead``. A zero keeps its sign for the
    sine; an infinite x leaves a NaN.

    x is the nearest multiple of pi and a rest, which changes its sign at the odd multiples. The cosine is that of the sine a quarter
    of a turn ahead: the nearest odd multiple of pi/2.
    """
    f = e.f
    magic = e.c(
        1.5 * 2.0**e.mantissa + ahead
    )  # behind it a float's last bit is worth 1; the cosine's signs are the other way round
    if ahead:
        shifted = e.add(e.fma(x, e.c(e.k.one_over_pi), e.c(-0.5)), magic)
        k = e.add(e.sub(shifted, magic), e.c(0.5))
    else:
        shifted = e.fma(x, e.c(e.k.one_over_pi), magic)
        k = e.sub(shifted, magic)

    def far(size: str) -> tuple[str, str]:
        r, odd = _far(e, e.bits(size), HALF, ahead)
        flag = f.t(f"trunc i32 {odd} to i1")
        flag = f.t(f"xor i1 {flag}, {'true' if ahead else e.negative(x)}")
        return e.select(flag, e.neg(r), r), "0"

    sign = e.i("shl", e.bits(shifted), e.ci(e.int.bits - 1))
    r = e.from_bits(e.i("xor", e.bits(_less(e, x, k, e.k.pi_down)), sign))
    return _where_large(e, x, r, "0", far)[0]


def _less(e: Lanes, x: str, k: str, parts: tuple[float, ...]) -> str:
    """The difference x - k * (sum of the parts). The first step is exact; the others round to the last place of their results."""
    for part in parts:
        x = e.fma(k, e.c(-part), x)
    return x


def _where_large(e: Lanes, x: str, near: str, count: str, far: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
    """A float and an i32: ``near`` and ``count``, or what ``far`` makes of |x| where that is past the limit; NaN for an infinite x."""
    f = e.f
    left, whole = f.slot(e.float_ty), f.slot("i32")
    f.put(f"store {e.float_ty} {near}, ptr {left}")
    f.put(f"store i32 {count}, ptr {whole}")
    size = e.unary("fabs", x)
    past, done = f.label("far"), f.label("near")
    f.branch(_large(e, size), past, done, unlikely=True)
    f.at(past)
    r, turns = far(size)
    f.put(f"store {e.float_ty} {e.select(e.cmp('olt', size, e.c(inf)), r, e.c(nan))}, ptr {left}")
    f.put(f"store i32 {turns}, ptr {whole}")
    f.jump(done)
    f.at(done)
    return f.t(f"load {e.float_ty}, ptr {left}"), f.t(f"load i32, ptr {whole}")


def _large(e: Lanes, size: str) -> str:
    """Whether a size is past the limit. f64: from its high word, for comparisons of f64 are slow; a NaN is large, too."""
    limit = trig_limit(e.single)
    if e.single:
        return e.cmp("ogt", size, e.c(limit))
    high = e.f.t(f"trunc i64 {e.i('lshr', e.bits(size), e.ci(32))} to i32")
    return e.f.t(f"icmp sgt i32 {high}, {struct.unpack('<q', struct.pack('<d', limit))[0] >> 32}")


def _table(e: Lanes, bits: int) -> tuple[str, str]:
    """The bits of 2/pi behind ``_PAD`` zeros as a constant of words of so many bits: its name and how a pointer to it is written."""
    digits = "0" * (_PAD // 4) + TWO_OVER_PI
    size = bits // 4
    words = [int(digits[k : k + size], 16) for k in range(0, len(digits) - size + 1, size)]
    if e.single:
        words = words[:10]
    number = e.f.module.target.constant_space
    space = f" addrspace({number})" if number else ""
    name = f"@qd_two_over_pi_{bits}"
    items = ", ".join(f"i{bits} {w}" for w in words)
    e.f.module.declare(name, f"{name} = internal{space} constant [{len(words)} x i{bits}] [{items}], align 8")
    return name, f"ptr{space}"


def _window(e: Lanes, bits: int, first: str) -> list[str]:
    """Three words of so many bits of the table, from bit ``first`` (an i32) on."""
    f, ty = e.f, f"i{bits}"
    name, pointer = _table(e, bits)
    word = f.t(f"lshr i32 {first}, {bits.bit_length() - 1}")
    raw: list[str] = []
    for k in range(4):
        at = f.t(f"getelementptr {ty}, {pointer} {name}, i32 {f.t(f'add i32 {word}, {k}')}")
        raw.append(f.t(f"load {ty}, {pointer} {at}, !invariant.load !0"))
    shift = f.t(f"and i32 {first}, {bits - 1}")
    if bits == 64:
        shift = f.t(f"zext i32 {shift} to i64")
    f.module.declare(f"llvm.fshl.{ty}", f"declare {ty} @llvm.fshl.{ty}({ty}, {ty}, {ty})")
    return [f.t(f"call {ty} @llvm.fshl.{ty}({ty} {a}, {ty} {b}, {ty} {shift})") for a, b in pairwise(raw)]


def _parts(e: Lanes, bits: str) -> tuple[str, str]:
    """The mantissa of a normal number as an i64, and its first bit of 2/pi in the table (i32): bits before it make multiples of 4."""
    f, m = e.f, e.mantissa
    fraction = f.t(f"or {e.int_ty} {f.t(f'and {e.int_ty} {bits}, {(1 << m) - 1}')}, {1 << m}")
    exponent = f.t(f"lshr {e.int_ty} {bits}, {m}")
    if e.single:
        fraction = f.t(f"zext i32 {fraction} to i64")
    else:
        exponent = f.t(f"trunc i64 {exponent} to i32")
    # x = fraction * 2**(exponent - bias - m); its product with bit i of 2/pi weighs 2**(.. - i), and 2**1 is the first weight kept
    return fraction, f.t(f"add i32 {exponent}, {_PAD - 2 - e.bias - m}")


def _far(e: Lanes, bits: str, turn: int, ahead: bool = False) -> tuple[str, str]:
    """A positive x of these bits over the nearest multiple of a ``turn``: what is left, and how many as an i32 of which the low bits
    count. With ``ahead``, of x - pi/2.
    """
    return (_far_single if e.single else _far_double)(e, bits, turn, ahead)


def _turns(f: Fn, high: str, turn: int) -> str:
    """The number of turns nearest to a fraction of the circle, of which the first 64 bits are given."""
    return f.convert(f.t(f"lshr i64 {f.t(f'add i64 {high}, {1 << (63 - turn)}')}, {64 - turn}"), i64, i32, False)


def _far_single(e: Lanes, bits: str, turn: int, ahead: bool) -> tuple[str, str]:
    f = e.f
    fraction, first = _parts(e, bits)
    words = [f.t(f"zext i32 {w} to i64") for w in _window(e, 32, first)]
    p = [f.t(f"mul i64 {fraction}, {w}") for w in words]
    low = f.t(f"add i64 {p[1]}, {f.t(f'lshr i64 {p[2]}, 32')}")
    high = f.t(f"add i64 {f.t(f'shl i64 {p[0]}, 32')}, {low}")
    if ahead:
        high = f.t(f"sub i64 {high}, {1 << 62}")
    rest = f.t(f"shl i64 {high}, {turn}")
    if f.module.target.doubles:
        w = Lanes(f, f64, False)
        r = w.mul(f.t(f"sitofp i64 {rest} to double"), w.c((w.k.half_pi if turn == QUARTER else w.k.pi)[0] * 2.0**-64))
        return f.convert(r, f64, f32, False), _turns(f, high, turn)
    words = [f"ashr i64 {rest}, 40", f"and i64 {f.t(f'lshr i64 {rest}, 16')}, {2**24 - 1}", f"and i64 {rest}, {2**16 - 1}"]
    pieces = [e.to_float(f.t(f"trunc i64 {f.t(word)} to i32")) for word in words]
    return _angle(e, pieces, (24, 48, 64), turn), _turns(f, high, turn)


def _far_double(e: Lanes, bits: str, turn: int, ahead: bool) -> tuple[str, str]:
    f = e.f
    fraction, first = _parts(e, bits)
    words = _window(e, 64, first)
    word = (_product if f.module.target.i128 else _product_by_halves)(f, fraction, words, 1 << 62 if ahead else 0)
    least = f.t(f"shl i64 {word(0)}, {turn}")
    words = [f"ashr i64 {word(64 - turn)}, 12", f"and i64 {word(24 - turn)}, {2**52 - 1}", f"and i64 {least}, {2**24 - 1}"]
    pieces = [e.to_float(f.t(word)) for word in words]
    return _angle(e, pieces, (52, 104, 128), turn), _turns(f, word(64), turn)


def _angle(e: Lanes, pieces: list[str], bits: tuple[int, int, int], turn: int) -> str:
    """A signed fraction, times pi or pi/2. It may start with zeros, so it comes in three exact pieces; ``bits``: the place of each one's
    last bit behind the point.
    """
    pi = e.k.half_pi if turn == QUARTER else e.k.pi
    a, b, c = (e.c(2.0**-n) for n in bits)
    first, second = e.two_sum(e.mul(pieces[0], a), e.mul(pieces[1], b))
    high, low = e.two_sum(first, e.fma(pieces[2], c, second))
    r, rest = e.two_prod(high, e.c(pi[0]))
    rest = e.add(rest, e.fma(high, e.c(pi[1]), e.mul(low, e.c(pi[0]))))
    return e.add(r, rest)


def _product(f: Fn, a: str, words: list[str], less: int) -> Callable[[int], str]:
    """The product of a number of 64 bits and one of three words, without its last word, modulo 2**128, and less by ``less * 2**64``.

    Returns the function that emits 64 bits of it, from one of the lower 65 on.
    """

    def wide(a: str, b: str) -> str:
        return f.t(f"mul i128 {f.t(f'zext i64 {a} to i128')}, {f.t(f'zext i64 {b} to i128')}")

    top = f.t(f"mul i64 {a}, {words[0]}")
    top = f.t(f"shl i128 {f.t(f'zext i64 {top} to i128')}, 64")
    low = f.t(f"lshr i128 {wide(a, words[2])}, 64")
    p = f.t(f"add i128 {top}, {f.t(f'add i128 {wide(a, words[1])}, {low}')}")
    if less:
        p = f.t(f"sub i128 {p}, {less << 64}")
    return lambda begin: f.t(f"trunc i128 {f.t(f'lshr i128 {p}, {begin}')} to i64")


def _product_by_halves(f: Fn, a: str, words: list[str], less: int) -> Callable[[int], str]:
    """The same with integers of 64 bits."""

    def above(b: str) -> str:
        """The upper word of the product of a and b."""
        a_low, a_high, b_low, b_high = (f.t(x) for n in (a, b) for x in (f"and i64 {n}, {2**32 - 1}", f"lshr i64 {n}, 32"))
        least = f.t(f"mul i64 {a_low}, {b_low}")
        one = f.t(f"add i64 {f.t(f'mul i64 {a_high}, {b_low}')}, {f.t(f'lshr i64 {least}, 32')}")
        other = f.t(f"add i64 {f.t(f'mul i64 {a_low}, {b_high}')}, {f.t(f'and i64 {one}, {2**32 - 1}')}")
        top = f.t(f"add i64 {f.t(f'mul i64 {a_high}, {b_high}')}, {f.t(f'lshr i64 {one}, 32')}")
        return f.t(f"add i64 {top}, {f.t(f'lshr i64 {other}, 32')}")

    middle = f.t(f"mul i64 {a}, {words[1]}")
    low = f.t(f"add i64 {middle}, {above(words[2])}")
    carry = f.t(f"zext i1 {f.t(f'icmp ult i64 {low}, {middle}')} to i64")
    high = f.t(f"add i64 {f.t(f'mul i64 {a}, {words[0]}')}, {above(words[1])}")
    high = f.t(f"sub i64 {f.t(f'add i64 {high}, {carry}')}, {less}")

    def word(begin: int) -> str:
        if begin in (0, 64):
            return high if begin else low
        return f.t(f"or i64 {f.t(f'shl i64 {high}, {64 - begin}')}, {f.t(f'lshr i64 {low}, {begin}')}")

    return word
