"""Every pure operation of ``ir.ops.TABLE`` as LLVM text.

No fast-math flag that moves operations is ever set, not even ``contract``: LLVM would fuse a product and a sum in one copy of a body
and not in another, and the reverse pass relies on replayed bodies giving the same bits. Nothing here traps: a division by zero gives
0, and the quotient of the least integer by -1 wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, isnan

from ...ir.nodes import Const, Op, Operand
from ...ir.ops import POSITIVE, TABLE, is_function
from ...ir.types import DType, f16, f32, i16, i32, i64, u1, u8
from ..math import library
from .function import Fn
from .target import Unsupported, const_text, float_text

Emit = Callable[[Fn, DType, bool, list[str]], str]

_FCMP = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_ICMP = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_FLOAT_BIN = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BIN = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_ROUNDING = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc"}


def compare(f: Fn, code: str, d: DType, v: bool, a: str, b: str) -> str:
    """A comparison; with a NaN only ``ne`` holds."""
    if d.is_real:
        return f.t(f"fcmp {_FCMP[code]} {f.ty(d, v)} {a}, {b}")
    pred = code if code in ("eq", "ne") else ("s" if d.kind == "i" else "u") + _ICMP[code]
    return f.t(f"icmp {pred} {f.ty(d, v)} {a}, {b}")


def select(f: Fn, d: DType, v: bool, cond: str, a: str, b: str) -> str:
    """``a`` where ``cond``, else ``b``."""
    ty = f.ty(d, v)
    return f.t(f"select {f.ty(u1, v)} {cond}, {ty} {a}, {ty} {b}")


def binary(f: Fn, code: str, d: DType, v: bool, a: str, b: str) -> str:
    """add, sub, mul, and, or, xor, min, max: what atomics and reductions combine with."""
    if code in ("min", "max"):
        return extreme(f, code, d, v, a, b)
    if d is f16:
        return f.convert(binary(f, code, f32, v, f.convert(a, f16, f32, v), f.convert(b, f16, f32, v)), f32, f16, v)
    return f.t(f"{(_FLOAT_BIN if d.is_real else _INT_BIN)[code]} {f.ty(d, v)} {a}, {b}")


def halves(f: Fn, d: DType, value: str, n: int) -> tuple[str, str]:
    """The first and the last ``n`` elements of a vector of twice as many."""
    ty = f.ty(d, False)
    numbers = [", ".join(f"i32 {k}" for k in range(first, first + n)) for first in (0, n)]
    low, high = (f.t(f"shufflevector <{2 * n} x {ty}> {value}, <{2 * n} x {ty}> poison, <{n} x i32> <{h}>") for h in numbers)
    return low, high


def extreme(f: Fn, code: str, d: DType, v: bool, a: str, b: str) -> str:
    """The smaller or the greater one. Of reals IEEE 754's: NaN if one is, and -0.0 is less than 0.0."""
    if not d.is_real:
        return select(f, d, v, compare(f, "lt" if code == "min" else "gt", d, v, a, b), a, b)
    if f.module.target.libm and d is not f16:
        return f.intrinsic(f"{code}imum", d, v, a, b)
    flag, word = f.ty(u1, v), {16: i16, 32: i32, 64: i64}[d.bits]
    bits = f.t(f"bitcast {f.ty(d, v)} {a} to {f.ty(word, v)}")
    sign = f.t(f"icmp {'slt' if code == 'min' else 'sge'} {f.ty(word, v)} {bits}, {f.lit('0', word, v)}")
    tie = f.t(f"and {flag} {compare(f, 'eq', d, v, a, b)}, {sign}")
    first = f.t(f"or {flag} {compare(f, 'lt' if code == 'min' else 'gt', d, v, a, b)}, {tie}")
    first = f.t(f"or {flag} {first}, {f.t(f'fcmp uno {f.ty(d, v)} {a}, {a}')}")
    return select(f, d, v, first, a, b)


def _beside_literal(f: Fn, code: str, s: Op, v: bool, args: list[str]) -> str:
    """Min or max of a real and a literal, by one comparison; "" if there is no such literal."""
    d = s.dtype
    for k, x in enumerate(s.args):
        if d.is_real and isinstance(x, Const) and not isnan(x.value):
            value, other = args[k], args[1 - k]
            closed = (copysign(1.0, x.value) < 0) == (code == "min")  # whether the literal wins a tie, which counts for zeros
            order = ("l" if code == "min" else "g") + ("e" if closed else "t")
            return select(f, d, v, compare(f, order, d, v, value, other), value, other)
    return ""


def _zero(f: Fn, d: DType, v: bool) -> str:
    return f.lit("0.0" if d.is_real else "0", d, v)


def _one(f: Fn, d: DType, v: bool) -> str:
    return f.lit(float_text(1.0, d) if d.is_real else "1", d, v)


def _math(f: Fn, name: str, d: DType, v: bool, args: list[str]) -> str:
    """A mathematical function: ours, so that one iteration has the bits of eight side by side. C's for scalars where ours would be slow."""
    target = f.module.target
    if target.libm and not target.fused and not v and TABLE[name].in_c:
        return library.libm(f, name, d, args)
    return library.call(f, name, d, v, args)


def _rsqrt(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    root = f.intrinsic("sqrt", d, v, args[0])
    return f.t(f"fdiv {f.ty(d, v)} {_one(f, d, v)}, {root}")


def _neg(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return f.t(f"fneg {f.ty(d, v)} {args[0]}" if d.is_real else f"sub {f.ty(d, v)} {_zero(f, d, v)}, {args[0]}")


def _abs(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    if d.is_real:
        return f.intrinsic("fabs", d, v, args[0])
    return args[0] if d.kind == "u" else f.intrinsic("abs", d, v, args[0], extra="false", extra_ty="i1")


def _sgn(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    """(x > 0) - (x < 0)"""
    ty, zero = f.ty(d, v), _zero(f, d, v)
    up = f.convert(compare(f, "gt", d, v, args[0], zero), u1, d, v)
    if d.kind == "u":
        return up
    down = f.convert(compare(f, "lt", d, v, args[0], zero), u1, d, v)
    if not d.is_real:
        return f.t(f"sub {ty} {up}, {down}")
    return select(f, d, v, _isnan(f, d, v, args), args[0], f.t(f"fsub {ty} {up}, {down}"))


def _bitnot(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return f.t(f"xor {f.ty(d, v)} {args[0]}, {f.lit('true' if d is u1 else '-1', d, v)}")


def _isnan(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return f.t(f"fcmp uno {f.ty(d, v)} {args[0]}, {args[0]}")


def _isinf(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    inf = f.lit(float_text(float("inf"), d), d, v)
    return f.t(f"fcmp oeq {f.ty(d, v)} {f.intrinsic('fabs', d, v, args[0])}, {inf}")


def _divide(f: Fn, d: DType, v: bool, a: str, b: str) -> tuple[str, str]:
    """C's quotient and remainder of integers; by zero both are 0, and nothing traps."""
    ty, zero = f.ty(d, v), _zero(f, d, v)
    sign = "s" if d.kind == "i" else "u"
    plain = b.lstrip("-").isdigit() and b not in ("0", "-1")  # a literal divisor that cannot fail
    safe = b
    by_zero = by_minus = ""
    if not plain:
        by_zero = f.t(f"icmp eq {ty} {b}, {zero}")
        bad = by_zero
        if sign == "s":
            by_minus = f.t(f"icmp eq {ty} {b}, {f.lit('-1', d, v)}")
            bad = f.t(f"or {f.ty(u1, v)} {by_zero}, {by_minus}")
        safe = select(f, d, v, bad, _one(f, d, v), b)
    q = _quotient(f, d, v, a, safe)
    r = f.t(f"sub {ty} {a}, {f.t(f'mul {ty} {q}, {safe}')}")
    if by_minus:
        q = select(f, d, v, by_minus, f.t(f"sub {ty} {zero}, {a}"), q)
    if by_zero:
        q = select(f, d, v, by_zero, zero, q)
    return q, r


def _quotient(f: Fn, d: DType, v: bool, a: str, b: str) -> str:
    """LLVM takes vectors of integer divisions apart; up to 32 bits a division in f64 gives the same quotient."""
    ty, sign = f.ty(d, v), "s" if d.kind == "i" else "u"
    if not v or d.bits == 64:
        return f.t(f"{sign}div {ty} {a}, {b}")
    wide = f.vec("double", v)
    x, y = (f.t(f"{sign}itofp {ty} {z} to {wide}") for z in (a, b))
    return f.t(f"fpto{sign}i {wide} {f.t(f'fdiv {wide} {x}, {y}')} to {ty}")


def _cdiv(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return _divide(f, d, v, *args)[0]


def _crem(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    if d.is_real:
        return library.call(f, "crem", d, v, args)
    return _divide(f, d, v, *args)[1]


def _off(f: Fn, d: DType, v: bool, r: str, b: str) -> str:
    """Whether C's remainder and Python's differ: it is not zero and its sign is not the divisor's."""
    ty, zero = f.ty(d, v), _zero(f, d, v)
    apart = f.t(f"icmp slt {ty} {f.t(f'xor {ty} {r}, {b}')}, {zero}")
    return f.t(f"and {f.ty(u1, v)} {f.t(f'icmp ne {ty} {r}, {zero}')}, {apart}")


def _floordiv(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    if d.is_real:
        return _float_floordiv(f, d, v, *args)
    q, r = _divide(f, d, v, *args)
    if d.kind != "i":
        return q
    ty = f.ty(d, v)
    return f.t(f"add {ty} {q}, {f.t(f'sext {f.ty(u1, v)} {_off(f, d, v, r, args[1])} to {ty}')}")


def _mod(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    if d.is_real:
        return library.call(f, "mod", d, v, args)
    _, r = _divide(f, d, v, *args)
    if d.kind != "i":
        return r
    return f.t(f"add {f.ty(d, v)} {r}, {select(f, d, v, _off(f, d, v, r, args[1]), args[1], _zero(f, d, v))}")


def _float_floordiv(f: Fn, d: DType, v: bool, a: str, b: str) -> str:
    return f.intrinsic("floor", d, v, f.t(f"fdiv {f.ty(d, v)} {a}, {b}"))


def _shift(f: Fn, op: str, d: DType, v: bool, a: str, b: str) -> str:
    """The count is taken modulo the width (LLVM leaves larger ones undefined)."""
    ty = f.ty(d, v)
    return f.t(f"{op} {ty} {a}, {f.t(f'and {ty} {b}, {f.lit(str(d.bits - 1), d, v)}')}")


def _shl(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return _shift(f, "shl", d, v, *args)


def _shr(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return _shift(f, "lshr", d, v, *args)


def _sar(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return _shift(f, "ashr" if d.kind == "i" else "lshr", d, v, *args)


def _pow(f: Fn, d: DType, v: bool, args: list[str]) -> str:
    return _math(f, "pow", d, v, args) if d.is_real else integer_power(f, d, v, *args)


def _table() -> dict[str, Emit]:
    """Operation code -> emitter. Small closures bind the code, so that one dictionary look-up finds everything."""

    def bin_(code: str) -> Emit:
        return lambda f, d, v, a: binary(f, code, d, v, a[0], a[1])

    def cmp_(code: str) -> Emit:
        return lambda f, d, v, a: compare(f, code, d, v, a[0], a[1])

    def round_(name: str) -> Emit:
        return lambda f, d, v, a: f.intrinsic(name, d, v, a[0])

    own = {
        "attach": lambda f, d, v, a: a[0], "detach": lambda f, d, v, a: a[0],
        "rsqrt": _rsqrt, "neg": _neg, "abs": _abs, "sgn": _sgn, "bitnot": _bitnot, "not": _bitnot, "isnan": _isnan, "isinf": _isinf,
        "cdiv": _cdiv, "crem": _crem, "floordiv": _floordiv, "mod": _mod, "shl": _shl, "shr": _shr, "sar": _sar, "pow": _pow,
    }  # fmt: skip
    return (
        {c: bin_(c) for c in (*_FLOAT_BIN, "min", "max", "and", "or", "xor")}
        | {c: cmp_(c) for c in _FCMP}
        | {c: round_(n) for c, n in _ROUNDING.items()}
        | own
    )


EMIT = _table()
_AS_IS = frozenset("attach detach neg abs isnan isinf min max lt le gt ge eq ne sgn".split())  # exact in f16
_STEPS = frozenset("floordiv rsqrt".split())
_U1_DIRECT = frozenset("and or xor bitnot not lt le gt ge eq ne min max".split())
_TRUTH = frozenset("isnan isinf lt le gt ge eq ne not".split())


def pure(f: Fn, s: Op, args: list[str], v: bool) -> str:
    """Emit one operation on registers of one shape."""
    code = s.op
    d = s.args[0].dtype
    if code == "select":
        return select(f, s.dtype, v, *args)
    if code in ("min", "max") and (found := _beside_literal(f, code, s, v, args)):
        return found
    if code == "cast":
        return f.convert(args[0], d, s.dtype, v)
    if code == "bitcast":
        return bitcast(f, args[0], d, s.dtype, v)
    if code == "cdiv" and s.attr == POSITIVE and not v:  # an idle lane may hold a zero, which would trap
        return f.t(f"sdiv {f.ty(d, v)} {args[0]}, {args[1]}")
    if code in ("popcnt", "clz"):
        return count_bits(f, s, args[0], v)
    if d is f16 and code in _STEPS:
        return _in_steps(f, code, v, args)
    if d is f16 and code not in _AS_IS:
        out = _apply(f, code, f32, v, [f.convert(a, f16, f32, v) for a in args])
        return out if code in _TRUTH else f.convert(out, f32, f16, v)
    if d is u1 and code in ("shl", "shr", "sar"):
        return args[0]  # a count modulo one is none
    if d is u1 and code not in _U1_DIRECT:
        out = EMIT[code](f, u8, v, [f.convert(a, u1, u8, v) for a in args])
        return f.convert(out, u8, u1, v)
    if code not in EMIT and not is_function(code):
        raise Unsupported(f"operation {code!r} on {d}")
    return _apply(f, code, d, v, args)


def _apply(f: Fn, code: str, d: DType, v: bool, args: list[str]) -> str:
    """By the table, or by the machine's approximation where the user allows one."""
    target = f.module.target
    if target.fast_math and d is f32 and code in target.approximations and not v:
        return target.approximations[code](f, *args)
    return EMIT[code](f, d, v, args) if code in EMIT else _math(f, code, d, v, args)


def _in_steps(f: Fn, code: str, v: bool, args: list[str]) -> str:
    """f16 operations that are several: each step is rounded."""

    def step(op: str, *xs: str) -> str:
        return f.convert(EMIT[op](f, f32, v, [f.convert(x, f16, f32, v) for x in xs]), f32, f16, v)

    if code == "rsqrt":
        return step("div", _one(f, f16, v), step("sqrt", args[0]))
    return step("floor", step("div", *args))


def bitcast(f: Fn, x: str, src: DType, dst: DType, v: bool) -> str:
    """Reinterpret bits as another type of the same size."""
    a, b = f.ty(src, v), f.ty(dst, v)
    if a == b:
        return x
    if src.size == dst.size and u1 in (src, dst):
        return f.convert(x, src, dst, v)
    if src.bits != dst.bits:
        raise Unsupported(f"bitcast from {src} to {dst}")
    return f.t(f"bitcast {a} {x} to {b}")


def count_bits(f: Fn, s: Op, x: str, v: bool) -> str:
    """Number of ones, or of leading zeros."""
    d = s.args[0].dtype
    if d is u1:
        one = f.convert(x, u1, s.dtype, v)
        return one if s.op == "popcnt" else binary(f, "xor", s.dtype, v, one, _one(f, s.dtype, v))
    if s.op == "popcnt":
        out = f.intrinsic("ctpop", d, v, x)
    else:
        out = f.intrinsic("ctlz", d, v, x, extra="false", extra_ty="i1")
    return f.convert(out, d, s.dtype, v)


def literal(f: Fn, c: Const, v: bool) -> str:
    """A literal at a shape."""
    return f.lit(const_text(c), c.dtype, v)


def is_literal(x: Operand, value: float) -> bool:
    """Whether an operand is this number."""
    return isinstance(x, Const) and x.value == value


def integer_power(f: Fn, d: DType, v: bool, a: str, b: str) -> str:
    """``a ** b`` for integers. A small literal exponent becomes multiplications, another one a call of a function that squares.

    A negative exponent gives what truncating the exact result gives: 1 for a base of 1, 1 or -1 for a base of -1, else 0.
    """
    ty = f.ty(d, v)
    text = b[b.rfind(" ") + 1 : -1] if b.startswith("splat") else b
    if text.isdigit() and int(text) <= 16:
        return _product(f, ty, a, int(text), f.lit("1", d, v))
    name = f"qd_pow_{d.name}" + (f"_v{f.lanes}" if v else "")
    f.module.helpers.setdefault(name, _power_helper(name, f, d, v))
    return f.t(f"call {ty} @{name}({ty} {a}, {ty} {b})")


def _product(f: Fn, ty: str, a: str, n: int, one: str) -> str:
    out = ""
    while n:
        if n & 1:
            out = f.t(f"mul {ty} {out}, {a}") if out else a
        n >>= 1
        if n:
            a = f.t(f"mul {ty} {a}, {a}")
    return out or one


def _power_helper(name: str, f: Fn, d: DType, v: bool) -> str:
    """The loop runs once per bit of the greatest exponent; lanes that are done multiply by one."""
    ty, flag = f.ty(d, v), f.vec("i1", v)
    zero, one, minus = f.lit("0", d, v), f.lit("1", d, v), f.lit("-1", d, v)
    inline = "" if f.module.target.libm else "alwaysinline "  # a call on a GPU goes through memory
    if v:
        any_ = f"  %bits = bitcast {flag} %more to i{f.lanes}\n  %go = icmp ne i{f.lanes} %bits, 0"
    else:
        any_ = "  %go = icmp ne i1 %more, false"
    tail = f"  ret {ty} %out1"
    if d.kind == "i":
        tail = f"""\
  %negative = icmp slt {ty} %b, {zero}
  %is1 = icmp eq {ty} %a, {one}
  %ism = icmp eq {ty} %a, {minus}
  %low = and {ty} %b, {one}
  %odd = icmp ne {ty} %low, {zero}
  %pm = select {flag} %odd, {ty} {minus}, {ty} {one}
  %x1 = select {flag} %ism, {ty} %pm, {ty} {zero}
  %x2 = select {flag} %is1, {ty} {one}, {ty} %x1
  %res = select {flag} %negative, {ty} %x2, {ty} %out1
  ret {ty} %res"""
    return f"""\
define internal {ty} @{name}({ty} %a, {ty} %b) {inline}nounwind willreturn memory(none) {{
entry:
  br label %loop
loop:
  %base = phi {ty} [ %a, %entry ], [ %base1, %loop ]
  %left = phi {ty} [ %b, %entry ], [ %left1, %loop ]
  %out = phi {ty} [ {one}, %entry ], [ %out1, %loop ]
  %bit = and {ty} %left, {one}
  %take = icmp ne {ty} %bit, {zero}
  %factor = select {flag} %take, {ty} %base, {ty} {one}
  %out1 = mul {ty} %out, %factor
  %base1 = mul {ty} %base, %base
  %left1 = lshr {ty} %left, {one}
  %more = icmp ne {ty} %left1, {zero}
{any_}
  br i1 %go, label %loop, label %done
done:
{tail}
}}"""
