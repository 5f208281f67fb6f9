"""Writes the instructions on registers that all lanes share: arithmetic on Python's integers."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..faults import UnknownInstruction
from ..listing import Instruction
from ..wave import SCC
from .writer import Writer

_SIZES = {"32": "0xffffffff", "64": "0xffffffffffffffff"}
_ONES = 0xFFFFFFFF


def _reversed(x: int, bits: int) -> int:
    return int(f"{x:0{bits}b}"[::-1], 2)


def _lowest(x: int) -> int:
    return (x & -x).bit_length() - 1 if x else _ONES


def _leading(x: int, bits: int) -> int:
    return bits - x.bit_length() if x else _ONES


def _signs(x: int, bits: int) -> int:
    x = ~x & ((1 << bits) - 1) if x >> (bits - 1) else x
    return bits - x.bit_length() if x else _ONES


def _field(x: int, how: int, bits: int, signed: bool) -> int:
    first, count = how & (bits - 1), (how >> 16) & 0x7F
    found = (x >> first) & ((1 << count) - 1) if count else 0
    if signed and count and found >> (count - 1) & 1:
        found -= 1 << count
    return found & ((1 << bits) - 1)


_LOGIC = {
    "and": "{a} & {b}", "or": "{a} | {b}", "xor": "{a} ^ {b}", "andn2": "{a} & ~{b}", "and_not1": "{a} & ~{b}", "orn2": "{a} | ~{b}",
    "or_not1": "{a} | ~{b}", "nand": "~({a} & {b})", "nor": "~({a} | {b})", "xnor": "~({a} ^ {b})",
}  # fmt: skip
_SAVE = {**_LOGIC, "and_not0": "~{a} & {b}", "andn1": "~{a} & {b}", "orn1": "~{a} | {b}", "or_not0": "~{a} | {b}"}
_COMPARE = {"eq": "==", "lg": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_NAME = re.compile(r"^s_(\w+?)_([biu])(32|64)$")
_COMPARISON = re.compile(r"^s_cmp(k?)_(eq|lg|gt|ge|lt|le)_([iu])(32|64)$")
_SAVEEXEC = re.compile(r"^s_(\w+)_(saveexec|wrexec)_b(32|64)$")


def write_scalar(x: Writer, i: Instruction) -> bool:
    """Write an instruction; False if it is not known. Branches are not among them."""
    name = i.mnemonic
    if handler := _HANDLERS.get(name):
        handler(x, i)
        return True
    if found := _SAVEEXEC.match(name):
        return _save_exec(x, i, found[1], found[2], found[3])
    if found := _COMPARISON.match(name):
        _compare(x, i, found[1], found[2], found[3], found[4])
        return True
    found = _NAME.match(name)
    return found is not None and _write(x, i, found[1], found[2], found[3])


def _kinds(bits: str, signed: bool) -> str:
    return ("i" if signed else "u") if bits == "32" else ("l" if signed else "q")


def _set(x: Writer, i: Instruction, bits: str, value: str, scc: str = "") -> None:
    """Write the result; ``scc``: the flag, of the result ``r``."""
    r = x.let(f"({value}) & {_SIZES[bits]}")
    if scc:
        x.put(f"S[{SCC}] = int({scc.format(r=r)})")
    (x.set_pair if bits == "64" else x.set_word)(i.operands[0], r)
    if i.operands[0] in ("exec", "exec_lo", "exec_hi"):
        x.put("w.set_exec(w.exec())")


def _write(x: Writer, i: Instruction, what: str, letter: str, bits: str) -> bool:
    kind, operands = _kinds(bits, False), list(i.operands)
    a = x.word(operands[1], kind) if len(operands) > 1 else ""
    if what in _LOGIC:
        _set(x, i, bits, _LOGIC[what].format(a=a, b=x.word(operands[2], kind)), "{r} != 0")
    elif what in ("lshl", "lshr", "ashr"):
        by = f"({x.word(operands[2])} & {int(bits) - 1})"
        first = x.word(operands[1], _kinds(bits, True)) if what == "ashr" else a
        _set(x, i, bits, f"({first}) {'<<' if what == 'lshl' else '>>'} {by}", "{r} != 0")
    elif what in ("mov", "cmov"):
        _set(x, i, bits, a if what == "mov" else f"{a} if S[{SCC}] else {x.word(operands[0], kind)}")
    elif what == "not":
        _set(x, i, bits, f"~{a}", "{r} != 0")
    elif what == "cselect":
        _set(x, i, bits, f"{a} if S[{SCC}] else {x.word(operands[2], kind)}")
    elif what in ("min", "max"):
        first, second = (x.let(x.word(t, _kinds(bits, letter == "i"))) for t in operands[1:])
        _set(x, i, bits, f"{what}({first}, {second})", f"{first} {'<' if what == 'min' else '>='} {second}")
    elif what == "brev":
        _set(x, i, bits, x.call(_reversed, a, bits))
    elif what == "bfe":
        how = x.word(operands[2])
        _set(x, i, bits, x.call(_field, a, how, bits, str(letter == "i")), "{r} != 0")
    elif what == "bfm":
        second = x.word(operands[2])
        low = f"{int(bits) - 1}"
        _set(x, i, bits, f"((1 << ({x.word(operands[1])} & {low})) - 1) << ({second} & {low})")
    elif what in ("bitset0", "bitset1"):
        bit, old = f"(1 << ({x.word(operands[1])} & {int(bits) - 1}))", x.word(operands[0], kind)
        _set(x, i, bits, f"{old} | {bit}" if what == "bitset1" else f"{old} & ~{bit}")
    elif what in ("bitcmp0", "bitcmp1"):
        first, by = x.word(operands[0], kind), x.word(operands[1])
        x.put(f"S[{SCC}] = int((({first}) >> ({by} & {int(bits) - 1}) & 1) == {what[-1]})")
    elif what in ("add_nc", "sub_nc", "add", "sub") and bits == "64":
        _set(x, i, bits, f"{a} {'+' if what.startswith('add') else '-'} {x.word(operands[2], kind)}")
    elif what == "mul" and bits == "64":
        _set(x, i, bits, f"{a} * {x.word(operands[2], kind)}")
    elif what == "abs":
        _set(x, i, bits, f"abs({x.word(operands[1], 'i')})", "{r} != 0")
    elif what in ("ff1_i32", "ctz_i32"):
        x.set_word(operands[0], x.call(_lowest, a))
    elif what in ("flbit_i32", "clz_i32"):
        x.set_word(operands[0], x.call(_leading, a, bits))
    elif what in ("bcnt1_i32", "bcnt0_i32"):
        text = f"({a}).bit_count()" if what == "bcnt1_i32" else f"{bits} - ({a}).bit_count()"
        r = x.let(text)
        x.put(f"S[{SCC}] = int({r} != 0)")
        x.set_word(operands[0], r)
    elif what in ("wqm", "quadmask"):
        return False
    else:
        return False
    return True


def _save_exec(x: Writer, i: Instruction, what: str, how: str, bits: str) -> bool:
    template = _SAVE.get(what)
    if template is None:
        return False
    mask = x.let(x.word(i.operands[1], _kinds(bits, False)))
    old = x.let("w.exec()")
    new = x.let(f"({template.format(a=mask, b=old)}) & {_SIZES[bits]} & w.all")
    (x.set_pair if bits == "64" else x.set_word)(i.operands[0], old if how == "saveexec" else new)
    x.put(f"S[{SCC}] = int({new} != 0)")
    x.put(f"w.set_exec({new})")
    return True


def _compare(x: Writer, i: Instruction, short: str, relation: str, letter: str, bits: str) -> None:
    kind = _kinds(bits, letter == "i")
    a = x.word(i.operands[0], kind)
    b = x.word(i.operands[1], kind) if not short else str(_short(i.operands[1], letter == "i"))
    x.put(f"S[{SCC}] = int(({a}) {_COMPARE[relation]} ({b}))")


def _short(text: str, signed: bool = True) -> int:
    value = int(text, 0) & 0xFFFF
    return value - 0x10000 if signed and value >> 15 else value


def _carry(x: Writer, i: Instruction) -> None:
    a, b = x.word(i.operands[1]), x.word(i.operands[2])
    carry = f"S[{SCC}]" if i.mnemonic in ("s_addc_u32", "s_subb_u32", "s_add_co_ci_u32", "s_sub_co_ci_u32") else "0"
    r = x.let(f"{a} + {b} + {carry}" if "add" in i.mnemonic else f"{a} - {b} - {carry}")
    x.put(f"S[{SCC}] = int(not 0 <= {r} <= 0xffffffff)")
    x.set_word(i.operands[0], f"{r} & 0xffffffff")


def _signed_sum(x: Writer, i: Instruction) -> None:
    a, b = (x.word(t, "i") for t in i.operands[1:3])
    _overflow(x, i, f"({a}) {'+' if 'add' in i.mnemonic else '-'} ({b})")


def _overflow(x: Writer, i: Instruction, value: str) -> None:
    r = x.let(value)
    x.put(f"S[{SCC}] = int(not -0x80000000 <= {r} <= 0x7fffffff)")
    x.set_word(i.operands[0], f"{r} & 0xffffffff")


def _add_short(x: Writer, i: Instruction) -> None:
    _overflow(x, i, f"({x.word(i.operands[0], 'i')}) + ({_short(i.operands[1])})")


def _multiply_short(x: Writer, i: Instruction) -> None:
    x.set_word(i.operands[0], f"({x.word(i.operands[0])} * ({_short(i.operands[1])})) & 0xffffffff")


def _move_short(x: Writer, i: Instruction) -> None:
    x.set_word(i.operands[0], str(_short(i.operands[1]) & 0xFFFFFFFF))


def _multiply(x: Writer, i: Instruction) -> None:
    kind = "i" if i.mnemonic.endswith("i32") else "u"
    a, b = (x.word(t, kind) for t in i.operands[1:])
    x.set_word(i.operands[0], f"({a}) * ({b}) {'>> 32' if 'hi' in i.mnemonic else ''} & 0xffffffff")


def _extend(x: Writer, i: Instruction) -> None:
    top = 1 << (7 if i.mnemonic.endswith("i8") else 15)
    x.set_word(i.operands[0], f"(({x.word(i.operands[1])} & {2 * top - 1} ^ {top}) - {top}) & 0xffffffff")


def _shift_add(x: Writer, i: Instruction) -> None:
    r = x.let(f"({x.word(i.operands[1])} << {i.mnemonic[6]}) + {x.word(i.operands[2])}")
    x.put(f"S[{SCC}] = int({r} > 0xffffffff)")
    x.set_word(i.operands[0], f"{r} & 0xffffffff")


def _pack(x: Writer, i: Instruction) -> None:
    low, high = (
        f"({x.word(t)} {'>> 16' if c == 'h' else '& 0xffff'})" for t, c in zip(i.operands[1:], i.mnemonic[7:9], strict=True)
    )
    x.set_word(i.operands[0], f"{low} | {high} << 16")


def _signs_of(x: Writer, i: Instruction) -> None:
    bits = "64" if i.mnemonic.endswith("64") else "32"
    x.set_word(i.operands[0], x.call(_signs, x.word(i.operands[1], _kinds(bits, False)), bits))


def _mode(x: Writer, i: Instruction) -> None:
    """Registers about the way of rounding: only what is the case anyway, nearest and with denormals."""
    nearest = {"s_denorm_mode": "15", "s_round_mode": "0x0"}.get(i.mnemonic)
    if i.mnemonic == "s_setreg_imm32_b32" and i.text.replace(" ", "").endswith("hwreg(HW_REG_MODE,4,2),3"):
        return
    if nearest is None or int(i.operands[0], 0) != int(nearest, 0):
        raise UnknownInstruction(i.text)


_HANDLERS: dict[str, Callable[[Writer, Instruction], None]] = {
    **dict.fromkeys(("s_add_u32", "s_addc_u32", "s_sub_u32", "s_subb_u32", "s_add_co_u32", "s_sub_co_u32"), _carry),
    **dict.fromkeys(("s_add_co_ci_u32", "s_sub_co_ci_u32"), _carry),
    **dict.fromkeys(("s_add_i32", "s_sub_i32", "s_add_co_i32", "s_sub_co_i32"), _signed_sum),
    **dict.fromkeys(("s_addk_i32", "s_addk_co_i32"), _add_short),
    "s_mulk_i32": _multiply_short,
    "s_movk_i32": _move_short,
    **dict.fromkeys(("s_mul_i32", "s_mul_hi_u32", "s_mul_hi_i32"), _multiply),
    **dict.fromkeys(("s_sext_i32_i8", "s_sext_i32_i16"), _extend),
    **{f"s_lshl{k}_add_u32": _shift_add for k in range(1, 5)},
    **dict.fromkeys(("s_pack_ll_b32_b16", "s_pack_lh_b32_b16", "s_pack_hh_b32_b16", "s_pack_hl_b32_b16"), _pack),
    **dict.fromkeys(("s_flbit_i32", "s_flbit_i32_i64", "s_cls_i32", "s_cls_i32_i64"), _signs_of),
    **dict.fromkeys(("s_denorm_mode", "s_round_mode", "s_setreg_imm32_b32"), _mode),
}
