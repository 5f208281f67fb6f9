"""Operations of values, comparisons and conversions.

Signs are in the operations: all integers are unsigned types. A truth value is not a number, so its operations are others.
"""

from __future__ import annotations

from ..text.lines import Binary, CastInst, Compare, Negate, Select
from .bits import bits_of, float_of_bits, hidden
from .body import OnChipPlace, SpirvBody
from .module import BITS, FLOATS, is_zero
from .opcodes import Opcode

_BINARY = {
    "add": Opcode.IAdd, "sub": Opcode.ISub, "mul": Opcode.IMul, "sdiv": Opcode.SDiv, "udiv": Opcode.UDiv, "srem": Opcode.SRem,
    "urem": Opcode.UMod, "and": Opcode.BitwiseAnd, "or": Opcode.BitwiseOr, "xor": Opcode.BitwiseXor,
    "shl": Opcode.ShiftLeftLogical, "lshr": Opcode.ShiftRightLogical, "ashr": Opcode.ShiftRightArithmetic,
}  # fmt: skip
_REAL = {"fadd": Opcode.FAdd, "fsub": Opcode.FSub, "fmul": Opcode.FMul, "fdiv": Opcode.FDiv}
_TRUTH = {"and": Opcode.LogicalAnd, "or": Opcode.LogicalOr, "xor": Opcode.LogicalNotEqual}
_ORDER = {
    "eq": Opcode.IEqual, "ne": Opcode.INotEqual, "slt": Opcode.SLessThan, "sle": Opcode.SLessThanEqual, "sgt": Opcode.SGreaterThan,
    "sge": Opcode.SGreaterThanEqual, "ult": Opcode.ULessThan, "ule": Opcode.ULessThanEqual, "ugt": Opcode.UGreaterThan,
    "uge": Opcode.UGreaterThanEqual,
}  # fmt: skip
_COMPARE = {
    "oeq": Opcode.FOrdEqual, "one": Opcode.FOrdNotEqual, "olt": Opcode.FOrdLessThan, "ole": Opcode.FOrdLessThanEqual,
    "ogt": Opcode.FOrdGreaterThan,
    "oge": Opcode.FOrdGreaterThanEqual, "ueq": Opcode.FUnordEqual, "une": Opcode.FUnordNotEqual, "ult": Opcode.FUnordLessThan,
    "ule": Opcode.FUnordLessThanEqual, "ugt": Opcode.FUnordGreaterThan, "uge": Opcode.FUnordGreaterThanEqual,
}  # fmt: skip
_CAST = {
    "zext": Opcode.UConvert, "sext": Opcode.SConvert, "trunc": Opcode.UConvert, "fpext": Opcode.FConvert, "fptrunc": Opcode.FConvert,
    "sitofp": Opcode.ConvertSToF, "uitofp": Opcode.ConvertUToF,
}  # fmt: skip


def binary(f: SpirvBody, x: Binary) -> None:
    """An operation of two values."""
    if x.op in _REAL:
        f.values[x.result] = f.exact(_REAL[x.op], x.type, _real(f, x.type, x.a), _real(f, x.type, x.b))
        return
    a, b = f.operand(x.type, x.a), f.operand(x.type, x.b)
    if x.type == "i1":
        f.values[x.result] = f.op(_TRUTH[x.op], "i1", a, b)
    elif BITS[x.type] < 32 and (x.op, x.a) == ("sub", "0"):
        f.values[x.result] = negative(f, x.type, b)
    elif BITS[x.type] < 32 and x.op == "mul" and "-1" in (x.a, x.b):
        f.values[x.result] = negative(f, x.type, b if x.a == "-1" else a)
    else:
        f.values[x.result] = f.op(_BINARY[x.op], x.type, a, b)


def _real(f: SpirvBody, ty: str, text: str) -> int:
    """An operand of a float operation; one that may be a zero which the driver folds wrongly is hidden from it."""
    value = f.operand(ty, text)
    suspect = text in f.foldable if text[0] == "%" else is_zero(text)
    return hidden(f, ty, value) if suspect and f.module.features.folds_wrongly else value


def negative(f: SpirvBody, ty: str, value: int) -> int:
    """``0 - value`` of a narrow integer, where the driver cannot know the zero: NVIDIA's compiler works a negation out in 32 bits, and
    forgets that the least number is its own negative. It knows ``~value + 1`` for a negation, too.
    """
    return f.op(Opcode.ISub, ty, f.op(Opcode.UConvert, ty, f.unknown_zero()), value)


def negate(f: SpirvBody, x: Negate) -> None:
    """The other sign, of a half by its bits."""
    value = f.operand(x.type, x.value)
    if x.type != "half":
        f.values[x.result] = f.op(Opcode.FNegate, x.type, value)
        return
    bits, ty = bits_of(f, x.type, value)
    f.values[x.result] = float_of_bits(f, x.type, f.op(Opcode.BitwiseXor, ty, bits, f.module.number(1 << 15, ty)))


def compare(f: SpirvBody, x: Compare) -> None:
    """A truth value."""
    if x.type == "ptr" and x.a in f.places:  # on chip, never null
        f.values[x.result] = f.module.constant("i1", "true")
        return
    if x.op == "fcmp":
        f.values[x.result] = _compare_reals(f, x.order, f.compared(x.type, x.a), f.compared(x.type, x.b))
        return
    a, b = f.operand(x.type, x.a), f.operand(x.type, x.b)
    if x.type == "i1":
        f.values[x.result] = _compare_truths(f, x.order, a, b)
    else:
        f.values[x.result] = f.op(_ORDER[x.order], "i1", a, b)


def _compare_reals(f: SpirvBody, order: str, a: int, b: int) -> int:
    if order not in ("uno", "ord"):
        return f.op(_COMPARE[order], "i1", a, b)
    found = f.op(Opcode.IsNan, "i1", a)
    if a != b:
        found = f.op(Opcode.LogicalOr, "i1", found, f.op(Opcode.IsNan, "i1", b))
    return found if order == "uno" else f.op(Opcode.LogicalNot, "i1", found)


def _compare_truths(f: SpirvBody, order: str, a: int, b: int) -> int:
    """``true`` is 1 without a sign, and -1 with one."""
    if order in ("eq", "ne"):
        return f.op(Opcode.LogicalEqual if order == "eq" else Opcode.LogicalNotEqual, "i1", a, b)
    if order in ("ult", "uge", "sgt", "sle"):  # not a, and b; or its contrary
        found = f.op(Opcode.LogicalAnd, "i1", f.op(Opcode.LogicalNot, "i1", a), b)
    else:
        found = f.op(Opcode.LogicalAnd, "i1", a, f.op(Opcode.LogicalNot, "i1", b))
    return found if order[1:] in ("lt", "gt") else f.op(Opcode.LogicalNot, "i1", found)


def select(f: SpirvBody, x: Select) -> None:
    """One of two values. Of two floats that the driver knows, it would forget the sign of a zero."""
    known = x.type in FLOATS and all(y[0] != "%" or y in f.foldable for y in (x.a, x.b))
    a, b = (_real(f, x.type, y) if known else f.operand(x.type, y) for y in (x.a, x.b))
    f.values[x.result] = f.op(Opcode.Select, x.type, f.operand("i1", x.condition), a, b)


def cast(f: SpirvBody, x: CastInst) -> None:
    """A conversion. What is rounded to f16 is hidden.

    f16 is computed in f32, and NVIDIA's compiler leaves out a conversion to f16 and back.
    """
    place = f.places.get(x.value)
    if isinstance(place, OnChipPlace):  # as a number: bytes from the begin of the variable, which is aligned
        f.values[x.result] = f.op(Opcode.UConvert, "i64", place.offset)
        return
    value = f.operand(x.source, x.value)
    if x.op in ("ptrtoint", "inttoptr") or (x.op == "bitcast" and x.source == x.type):
        f.values[x.result] = value
    elif x.op == "bitcast":
        f.values[x.result] = f.op(Opcode.Bitcast, x.type, value)
    elif x.source == "i1":
        one, zero = _truth_as(x)
        yes, no = f.module.constant(x.type, one), f.module.constant(x.type, zero)
        f.values[x.result] = f.op(Opcode.Select, x.type, value, yes, no)
    elif x.type == "i1":
        low = f.op(Opcode.BitwiseAnd, x.source, value, f.module.number(1, x.source))
        f.values[x.result] = f.op(Opcode.INotEqual, "i1", low, f.module.number(0, x.source))
    elif x.op == "sext" and (x.source, x.type) == ("i32", "i64"):
        f.values[x.result] = widened(f, value)
    else:
        found = f.op(_CAST[x.op], x.type, value)
        f.values[x.result] = hidden(f, x.type, found) if (x.op, x.type) == ("fptrunc", "half") else found


def _truth_as(x: CastInst) -> tuple[str, str]:
    if x.type in FLOATS:
        return ("-1.0" if x.op == "sitofp" else "1.0"), "0.0"
    return ("-1" if x.op == "sext" else "1"), "0"


def widened(f: SpirvBody, value: int) -> int:
    """A signed i32 as i64, by halves: one driver takes ``0 < sext(x)`` for a comparison without signs."""
    high = f.op(Opcode.ShiftRightArithmetic, "i32", value, f.module.number(31))
    return f.op(Opcode.Bitcast, "i64", f.emit(Opcode.CompositeConstruct, f.module.vector("i32", 2), value, high))
