"""With ``overflow_check`` or ``debug``: emits the tests after the user's integer operations. Operations that the compiler adds may wrap.

Each gives a truth value: whether the result is the number that Python would compute. With ``overflow_check`` one that is false stops
the launch. With ``debug`` alone it is reported in a line of output, once for each operation, and the result wraps: hash functions and
random numbers are meant to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import describe
from ...ir.builder import StatementBuilder
from ...ir.meaning import limits
from ...ir.nodes import Assert, Const, Operand, Print
from ...ir.types import DType, f64, i64, u1, u64

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

Rule = Callable[[StatementBuilder, Operand, tuple[Operand, ...]], Operand]
"""Builds the test of a result, given its operands."""


def check(b: FrontBuilder, code: str, result: Operand, args: tuple[Operand, ...]) -> None:
    """Emit the test of an operation, if it can overflow."""
    rule = _RULES.get(code)
    if rule is None or not args[0].dtype.is_int or result.dtype is u1:
        return
    text = f"{{}} {_INFIX[code]} {{}}" if code in _INFIX else f"{'-' if code == 'neg' else code}({{}})"
    _require(b, rule(b, result, args), f"integer overflow: {text} does not fit {result.dtype}", args)


def check_cast(b: FrontBuilder, result: Operand, x: Operand) -> None:
    """Emit the test of a conversion to an integer, if there is a value that does not fit."""
    kind, target = x.dtype, result.dtype
    if kind is u1 or not target.is_int or target is u1:
        return
    if kind.is_real:
        inside = _real_fits(b, x, target)
    else:
        (low, high), (least, most) = limits(kind), limits(target)
        if least <= low and high <= most:
            return
        inside = b.op("eq", b.op("cast", result, dtype=kind), x)
        if kind.is_signed != target.is_signed:
            signed = x if kind.is_signed else result
            inside = b.op("and", inside, b.op("ge", signed, Const(0, signed.dtype)))
    _require(b, inside, f"integer overflow: {{}} does not fit {target}", (x,))


def check_update(b: FrontBuilder, code: str, old: Operand, value: Operand, name: str) -> None:
    """Emit the test of an atomic update, which knows what it has replaced."""
    if code not in ("add", "sub", "mul") or not old.dtype.is_int or old.dtype is u1:
        return
    new = b.op(code, old, value)
    text = f"integer overflow: {{}} {_INFIX[code]} {{}} does not fit {old.dtype}, of `{name}`"
    _require(b, _RULES[code](b, new, (old, value)), text, (old, value))


def fits(code: str, args: tuple[Operand, ...], folded: Const) -> bool:
    """Whether an operation on literals that was folded has no overflow, so that nothing is left to test."""
    exact = _EXACT.get(code)
    if exact is None:
        return code not in _RULES
    return exact(*(int(a.value) for a in args if isinstance(a, Const))) == folded.value


def _require(b: FrontBuilder, inside: Operand, message: str, args: tuple[Operand, ...]) -> None:
    if b.overflow == "raise":
        b.put(Assert(inside, message, args, kind="overflow"))
        return
    with b.if_(b.op("not", inside)):
        b.put(_report(b, message, args))


def _report(b: FrontBuilder, message: str, args: tuple[Operand, ...]) -> Print:
    """The line of a report, with the values of the operands between its texts."""
    head, *tails = describe(message.replace("{}", _VALUE), b.loc, _ADVICE).split(_VALUE)
    parts: list[str | Operand] = [head]
    for x, text in zip(args, tails, strict=True):
        parts += [x, text]
    return Print((*parts, "\n"), once=True)


def _zero(x: Operand) -> Const:
    return Const(0, x.dtype)


def _add(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    grown = b.op("ge", r, a[0])
    return b.op("eq", b.op("ge", a[1], _zero(r)), grown) if r.dtype.is_signed else grown


def _sub(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    if not r.dtype.is_signed:
        return b.op("ge", a[0], a[1])
    return b.op("eq", b.op("ge", a[1], _zero(r)), b.op("le", r, a[0]))


def _mul(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    x, y = a
    wide = i64 if r.dtype.is_signed else u64
    if r.dtype.bits < 64:
        return b.op("eq", b.cast(r, wide), b.op("mul", b.cast(x, wide), b.cast(y, wide)))
    exact = b.op("or", b.op("eq", x, _zero(x)), b.op("eq", b.op("cdiv", r, x), y))
    if not r.dtype.is_signed:
        return exact
    return b.op("and", exact, b.op("not", _least_by_minus_one(b, r, (y, x))))


def _least_by_minus_one(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    return b.op("and", b.op("eq", a[0], _least(a[0])), b.op("eq", a[1], Const(-1, a[1].dtype)))


def _least(x: Operand) -> Const:
    return Const(limits(x.dtype)[0], x.dtype)


def _quotient(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    return b.op("not", _least_by_minus_one(b, r, a)) if r.dtype.is_signed else Const(True, u1)


def _negated(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    return b.op("ne", a[0], _least(a[0])) if r.dtype.is_signed else b.op("eq", a[0], _zero(r))


def _absolute(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    return _negated(b, r, a) if r.dtype.is_signed else Const(True, u1)


def _count(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    """The count of a shift is less than the width; the machine would take it modulo that."""
    below = b.op("lt", a[1], Const(r.dtype.bits, a[1].dtype))
    return b.op("and", below, b.op("ge", a[1], _zero(a[1]))) if a[1].dtype.is_signed else below


def _left(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    back = b.op("sar" if r.dtype.is_signed else "shr", r, a[1])
    return b.op("and", _count(b, r, a), b.op("eq", back, a[0]))


def _power(b: StatementBuilder, r: Operand, a: tuple[Operand, ...]) -> Operand:
    """An f64 is near enough: no power of two or more lies so close to the end of a type."""
    whole = b.op("pow", b.cast(a[0], f64), b.cast(a[1], f64))
    return b.op("or", b.op("le", a[1], Const(1, a[1].dtype)), _inside(b, whole, r.dtype))


def _real_fits(b: StatementBuilder, x: Operand, target: DType) -> Operand:
    return _inside(b, b.op("trunc", b.cast(x, f64)), target)


def _inside(b: StatementBuilder, x: Operand, target: DType) -> Operand:
    """Whether a whole f64 is in the range of a type, whose ends are powers of two. A NaN is not."""
    low, high = limits(target)
    return b.op("and", b.op("ge", x, Const(float(low), f64)), b.op("lt", x, Const(float(high + 1), f64)))


_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "pow": "**", "shl": "<<", "shr": ">>", "sar": ">>"}
_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "floordiv": _quotient,
    "neg": _negated,
    "abs": _absolute,
    "shl": _left,
    "shr": _count,
    "sar": _count,
    "pow": _power,
}
_EXACT: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": int.__abs__,
}
"""What Python computes, for operations on literals."""
_ADVICE = "compute in a wider type, such as qd.i64, where it shall not wrap; this is printed once, and qd.init(overflow_check=True) raises"
_VALUE = "\0"
"""Where a text has the value of an operand."""
