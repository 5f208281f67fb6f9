"""Reduction of any angle by pi/2, for one value, on machines without C's library.

Up to ``trig_limit`` three fused steps with pi/2 in three parts do (Cody and Waite); past it the product with 2/pi is made in integers
from just the bits of 2/pi that matter (Payne and Hanek, "Radian reduction for trigonometric functions", 1983), behind a branch that
is almost never taken. The error of what is left is about one unit of its last place everywhere.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from math import inf, nan

from ...ir.types import f32, f64, i32, i64
from .functions import trig_limit
from .lanes import Lanes

# The first 1,216 bits of 2/pi behind the point, the most significant first.
TWO_OVER_PI = (
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73e"
    "e88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b7"
    "4f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6bab"
)
_PAD = 64
"""Zeros before the point of the table: a small argument starts there."""


def reduced(e: Lanes, x: str) -> tuple[str, str]:
    """What is left of x over the nearest multiple of pi/2, in [-pi/4, pi/4] but for a rounding, and the number of the quadrant as an
    i32 of which the two low bits count. An infinite x leaves a NaN.
    """
    f = e.f
    left, quadrant = f.slot(e.float_ty), f.slot("i32")
    k, whole = e.nearest(x, e.k.two_over_pi)
    r = x
    for part in e.k.half_pi:
        r = e.fma(k, e.c(-part), r)  # the first is exact; the second rounds to the last place of its result
    f.put(f"store {e.float_ty} {r}, ptr {left}")
    f.put(f"store i32 {whole}, ptr {quadrant}")
    size = e.unary("fabs", x)
    far, done = f.label("far"), f.label("near")
    f.branch(_large(e, size), far, done, unlikely=True)
    f.at(far)
    r, whole = (_far_single if e.single else _far_double)(e, e.bits(size))
    minus = e.negative(x)
    r = e.select(e.cmp("olt", size, e.c(inf)), e.select(minus, e.neg(r), r), e.c(nan))
    f.put(f"store {e.float_ty} {r}, ptr {left}")
    back = f.t(f"sub i32 0, {whole}")
    f.put(f"store i32 {f.t(f'select i1 {minus}, i32 {back}, i32 {whole}')}, ptr {quadrant}")
    f.jump(done)
    f.at(done)
    return f.t(f"load {e.float_ty}, ptr {left}"), f.t(f"load i32, ptr {quadrant}")


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
    space = " addrspace(4)" if e.f.module.target.triple.startswith("nvptx") else ""
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


def _far_single(e: Lanes, bits: str) -> tuple[str, str]:
    f = e.f
    fraction, first = _parts(e, bits)
    words = [f.t(f"zext i32 {w} to i64") for w in _window(e, 32, first)]
    p = [f.t(f"mul i64 {fraction}, {w}") for w in words]
    low = f.t(f"add i64 {p[1]}, {f.t(f'lshr i64 {p[2]}, 32')}")
    high = f.t(f"add i64 {f.t(f'shl i64 {p[0]}, 32')}, {low}")
    quadrant = f.t(f"lshr i64 {f.t(f'add i64 {high}, {1 << 61}')}, 62")
    rest = f.t(f"sitofp i64 {f.t(f'shl i64 {high}, 2')} to double")
    w = Lanes(f, f64, False)
    r = w.mul(rest, w.c(w.k.half_pi[0] * 2.0**-64))
    return f.convert(r, f64, f32, False), f.convert(quadrant, i64, i32, False)


def _far_double(e: Lanes, bits: str) -> tuple[str, str]:
    f = e.f
    fraction, first = _parts(e, bits)
    w0, w1, w2 = _window(e, 64, first)

    def wide(a: str, b: str) -> str:
        return f.t(f"mul i128 {f.t(f'zext i64 {a} to i128')}, {f.t(f'zext i64 {b} to i128')}")

    top = f.t(f"mul i64 {fraction}, {w0}")
    top = f.t(f"shl i128 {f.t(f'zext i64 {top} to i128')}, 64")
    low = f.t(f"lshr i128 {wide(fraction, w2)}, 64")
    p = f.t(f"add i128 {top}, {f.t(f'add i128 {wide(fraction, w1)}, {low}')}")
    high = f.t(f"trunc i128 {f.t(f'lshr i128 {p}, 64')} to i64")
    quadrant = f.t(f"lshr i64 {f.t(f'add i64 {high}, {1 << 61}')}, 62")
    return _to_double(e, f.t(f"shl i128 {p}, 2")), f.convert(quadrant, i64, i32, False)


def _to_double(e: Lanes, p: str) -> str:
    """A signed fraction of 128 bits, times pi/2: in three exact pieces, for it may start with zeros."""
    f = e.f
    top = f.t(f"ashr i128 {p}, 76")
    head = f.t(f"sitofp i64 {f.t(f'trunc i128 {top} to i64')} to double")
    pieces: list[str] = []
    for shift, width in ((24, 52), (0, 24)):
        word = f.t(f"trunc i128 {f.t(f'lshr i128 {p}, {shift}')} to i64")
        pieces.append(f.t(f"sitofp i64 {f.t(f'and i64 {word}, {(1 << width) - 1}')} to double"))
    high, low = e.two_sum(e.mul(head, e.c(2.0**-52)), e.mul(pieces[0], e.c(2.0**-104)))
    high, low = e.two_sum(high, e.fma(pieces[1], e.c(2.0**-128), low))
    r, rest = e.two_prod(high, e.c(e.k.half_pi[0]))
    rest = e.add(rest, e.fma(high, e.c(e.k.half_pi[1]), e.mul(low, e.c(e.k.half_pi[0]))))
    return e.add(r, rest)
