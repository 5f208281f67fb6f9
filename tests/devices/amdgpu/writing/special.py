"""Writes the lanes' instructions that are no plain function of their operands: comparisons, masks, carries, single lanes, packed values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..faults import UnknownInstruction
from ..listing import Instruction
from ..values import floats, integers, moves
from ..values.fused import fma16, fma32
from .lanes import flags, modified, part_operand, plain
from .operands import lane_register, source
from .writer import VCC_TEXT, Writer

Handler = Callable[[Writer, Instruction, str], None]

_COMPARE = re.compile(r"^v_cmp(x?)_(class|\w+?)_([fiu])(16|32|64)$")
_LETTER = {"f16": "e", "f32": "f", "f64": "d", "i16": "j", "i32": "i", "i64": "l", "u16": "h", "u32": "u", "u64": "q"}
Array = np.ndarray


def unordered(a: Array, b: Array) -> Array:
    """One of them is NaN."""
    return np.isnan(a) | np.isnan(b)


def ordered(a: Array, b: Array) -> Array:
    """None of them is NaN."""
    return ~unordered(a, b)


def less_or_greater(a: Array, b: Array) -> Array:
    """Different, and none of them is NaN."""
    return (a < b) | (a > b)


def always(a: Array, b: Array) -> Array:
    """True."""
    return np.ones(np.broadcast(a, b).shape, bool)


_RELATIONS: dict[str, Any] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "neq": np.not_equal, "lg": less_or_greater, "o": ordered, "u": unordered, "t": always, "tru": always,
}  # fmt: skip
_NEGATED: dict[str, Any] = {
    "nlt": np.less,
    "nle": np.less_equal,
    "ngt": np.greater,
    "nge": np.greater_equal,
    "nlg": less_or_greater,
    "f": always,
}


def write_comparison(x: Writer, i: Instruction) -> bool:
    """``v_cmp..``; False if the instruction is none. One of ``v_cmpx..`` ends its block."""
    name, encoding = plain(i.mnemonic)
    found = _COMPARE.match(name)
    if not found:
        return False
    to_exec, relation, letter, bits = found.groups()
    kind = _LETTER[letter + bits]
    texts = list(i.operands)
    masks = texts[: len(texts) - 2]
    sources = texts[-2:]
    if encoding == "sdwa":
        a, b = (part_operand(x, i, k, t, kind) for k, t in enumerate(sources))
    else:
        half = flags(i, "op_sel", 2)
        kinds = (kind, "u" if relation == "class" else kind)
        a, b = (x.operand(t, k, array=True, half=h if k in "hje" else 0) for t, k, h in zip(sources, kinds, half, strict=False))
    if relation == "class":
        value = x.call(floats.in_class, a, b)
    elif relation in _RELATIONS:
        value = x.call(_RELATIONS[relation], a, b)
    elif relation in _NEGATED:
        value = f"~{x.call(_NEGATED[relation], a, b)}"
    else:
        return False
    flags_name = x.let(f"full(w.width, {value})" if not any(lane_register(source(t).text) for t in sources) else value)
    if not x.full:
        flags_name = x.let(f"{flags_name} & A")
    mask = x.let(f"w.masks.of({flags_name})")
    if to_exec and masks and masks[0] in ("exec", "exec_lo"):
        masks = []
    for text in masks if masks or to_exec else [VCC_TEXT[x.width]]:
        x.set_mask(text, mask)
    if to_exec:
        x.put(f"w.set_exec({mask})")
    return True


# ---- handlers by name
def _select(x: Writer, i: Instruction, name: str) -> None:
    encoding = plain(i.mnemonic)[1]
    kind = "h" if name.endswith("16") else "u"
    target, a, b = i.operands[:3]
    mask = x.mask(i.operands[3] if len(i.operands) > 3 else VCC_TEXT[x.width])
    where = x.where
    if encoding == "sdwa":
        first, second = part_operand(x, i, 0, a, kind), part_operand(x, i, 1, b, kind)
        if i.modifiers.get("dst_sel", "DWORD") != "DWORD":
            raise UnknownInstruction(i.text)
    else:
        half = flags(i, "op_sel", 4)
        first, second = (x.operand(t, kind, array=True, half=h if kind == "h" else 0) for t, h in ((a, half[0]), (b, half[1])))
    if "dpp" in encoding:
        x.put(f"moved_value, moved_lanes = {x.call(moves.moved, 'w', first, x.names.of(moves.movement(i.modifiers, x.width)))}")
        first, x.where = x.let("moved_value"), x.let("moved_lanes")
    half_out = flags(i, "op_sel", 4)[3] if kind == "h" else 0
    x.result(target, kind, x.call(np.where, mask, second, first), half_out)
    x.where = where


def _carry(x: Writer, i: Instruction, name: str) -> None:
    target, out, a, b = i.operands[:4]
    encoding = plain(i.mnemonic)[1]
    if "dpp" in encoding or i.modifiers.get("dst_sel", "DWORD") != "DWORD":
        raise UnknownInstruction(i.text)
    if encoding == "sdwa":
        first, second = part_operand(x, i, 0, a, "u"), part_operand(x, i, 1, b, "u")
    else:
        first, second = x.operand(a, "u", array=True), x.operand(b, "u", array=True)
    if "subrev" in name or "subbrev" in name:
        first, second = second, first
    carry = f"{x.mask(i.operands[4])}.astype(t_u)" if len(i.operands) > 4 else "t_u(0)"
    function = integers.difference_with_borrow if "sub" in name else integers.sum_with_carry
    _result_and_mask(x, target, "u", out, x.call(function, first, second, carry))


def _result_and_mask(x: Writer, target: str, kind: str, out: str, value: str) -> None:
    both = x.let(value)
    lanes = x.let(f"full(w.width, {both}[1]) & w.taking_part()")
    x.set_mask(out, x.let(f"w.masks.of({lanes})"))
    x.result(target, kind, f"{both}[0]")


def _wide_product(x: Writer, i: Instruction, name: str) -> None:
    signed = name.endswith("i32")
    kind, wide = ("i", "l") if signed else ("u", "q")
    a, b, c = (x.operand(t, k, array=True) for t, k in zip(i.operands[2:], (kind, kind, wide), strict=True))
    _result_and_mask(x, i.operands[0], wide, i.operands[1], x.call(integers.wide_i if signed else integers.wide_u, a, b, c))


def _division_scale(x: Writer, i: Instruction, name: str) -> None:
    kind = "d" if name.endswith("64") else "f"
    args = [f"full(w.width, {x.operand(t, kind, array=True)})" for t in i.operands[2:]]
    _result_and_mask(x, i.operands[0], kind, i.operands[1], x.call(floats.division_scale, *args))


def _division_steps(x: Writer, i: Instruction, name: str) -> None:
    kind = "d" if name.endswith("64") else "f"
    args = [x.operand(t, kind, array=True) for t in i.operands[1:]]
    x.result(i.operands[0], kind, modified(x, i, kind, x.call(floats.division_steps, *args, x.mask(VCC_TEXT[x.width]))))


def _first_lane(x: Writer, i: Instruction, name: str) -> None:
    if lane_register(i.operands[1]) is None:
        x.set_word(i.operands[0], x.word(i.operands[1]))
    else:
        x.set_word(i.operands[0], x.call(moves.first_lane, "w", x.lanes(i.operands[1], "u")))


def _read_lane(x: Writer, i: Instruction, name: str) -> None:
    x.set_word(i.operands[0], f"{x.lanes(i.operands[1], 'u')}.item({x.word(i.operands[2])} % w.width)")


def _write_lane(x: Writer, i: Instruction, name: str) -> None:
    x.put(f"{x.lanes(i.operands[0], 'u')}[{x.word(i.operands[2])} % w.width] = {x.word(i.operands[1])}")


def _count_lanes(x: Writer, i: Instruction, name: str) -> None:
    mask, start = x.operand(i.operands[1], "u", array=True), x.operand(i.operands[2], "u", array=True)
    x.result(i.operands[0], "u", x.call(moves.lanes_before, "w", mask, start, str("hi" in name)))


def _other_half(x: Writer, i: Instruction, name: str) -> None:
    x.result(i.operands[0], "u", x.call(moves.other_half, "w", x.lanes(i.operands[1], "u")))


def _rows(x: Writer, i: Instruction, name: str) -> None:
    args = [x.lanes(i.operands[1], "u"), x.word(i.operands[2]), x.word(i.operands[3]), str("lanex" in name)]
    x.result(i.operands[0], "u", x.call(moves.permuted_row, "w", *args))


def _exchange(x: Writer, i: Instruction, name: str) -> None:
    a, b = (x.lanes(t, "u") for t in i.operands)
    first, second = x.let(f"array({a})"), x.let(f"array({b})")
    x.store(a, second)
    x.store(b, first)


# ---- packed values
_PACKED: dict[str, tuple[str, Callable[..., Any]]] = {
    "v_pk_fma_f32": ("fff", fma32), "v_pk_mul_f32": ("ff", np.multiply), "v_pk_add_f32": ("ff", np.add),
    "v_pk_fma_f16": ("eee", fma16), "v_pk_mul_f16": ("ee", np.multiply), "v_pk_add_f16": ("ee", np.add),
    "v_pk_min_f16": ("ee", floats.minimum), "v_pk_max_f16": ("ee", floats.maximum),
    "v_pk_add_u16": ("hh", np.add), "v_pk_sub_u16": ("hh", np.subtract), "v_pk_add_i16": ("hh", np.add),
    "v_pk_sub_i16": ("hh", np.subtract), "v_pk_mul_lo_u16": ("hh", np.multiply), "v_pk_mad_u16": ("hhh", integers.sum_product),
    "v_pk_mad_i16": ("hhh", integers.sum_product), "v_pk_min_u16": ("hh", np.minimum), "v_pk_max_u16": ("hh", np.maximum),
    "v_pk_min_i16": ("jj", np.minimum), "v_pk_max_i16": ("jj", np.maximum), "v_pk_lshlrev_b16": ("hh", integers.shifted_left),
    "v_pk_lshrrev_b16": ("hh", integers.shifted_right), "v_pk_ashrrev_i16": ("jj", integers.shifted_right),
}  # fmt: skip


def _packed(x: Writer, i: Instruction, name: str) -> None:
    """The same function of the lower and of the upper values, each from the half that the modifiers name."""
    kinds, function = _PACKED[name]
    if "clamp" in i.modifiers:
        raise UnknownInstruction(i.text)
    found = []
    for part, (choice, signs) in enumerate((("op_sel", "neg_lo"), ("op_sel_hi", "neg_hi"))):
        picks, negative = flags(i, choice, len(kinds), part), flags(i, signs, len(kinds))
        args = []
        for text, kind, pick, minus in zip(i.operands[1:], kinds, picks, negative, strict=True):
            value = _half_of(x, text, kind, pick)
            args.append(x.call(np.negative, value) if minus else value)
        found.append(x.let(f"array({x.call(function, *args)})"))
    kind = kinds[0]
    for part, value in enumerate(found):
        if kind == "f":
            x.store(x.lanes(i.operands[0], "f", more=part), value)
        else:
            x.store(x.lanes(i.operands[0], kind, part), value)


def _half_of(x: Writer, text: str, kind: str, pick: int) -> str:
    register = lane_register(text)
    if register is not None:
        return x.lanes(text, kind, more=pick) if kind == "f" else x.lanes(text, kind, pick)
    if kind == "f":
        pair = re.match(r"^s\[(\d+):\d+\]$", text)
        return f"t_f({x.word(f's{int(pair[1]) + pick}' if pair else text, 'f')})"
    shared = re.match(r"^s\d+$", text)
    if shared and pick:
        return f"array(S[{text[1:]}] >> 16, t_h).view(t_{kind})"
    return f"t_{kind}({x.word(text, kind)})" if shared or not pick else f"t_{kind}(0)"


def _packed_move(x: Writer, i: Instruction, name: str) -> None:
    low, high = flags(i, "op_sel", 2)
    a, b = (x.let(f"array({_half_of(x, t, 'f', pick)})") for t, pick in zip(i.operands[1:], (low, high), strict=True))
    x.store(x.lanes(i.operands[0], "f"), a)
    x.store(x.lanes(i.operands[0], "f", more=1), b)


def _mixed(x: Writer, i: Instruction, name: str) -> None:
    """``v_fma_mix``: operands of 32 bits, or halves of registers."""
    halves, narrow = flags(i, "op_sel", 3), flags(i, "op_sel_hi", 3)
    args = [
        f"{x.operand(t, 'e', array=True, half=h)}.astype(t_f)" if n else x.operand(t, "f", array=True)
        for t, h, n in zip(i.operands[1:], halves, narrow, strict=True)
    ]
    value = modified(x, i, "f", x.call(fma32, *args))
    if name.endswith("f32"):
        x.result(i.operands[0], "f", value)
    else:
        x.result(i.operands[0], "e", f"{value}.astype(t_e)", half=int("mixhi" in name))


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("v_cndmask_b32", "v_cndmask_b16"), _select),
    **dict.fromkeys(
        (
            f"v_{name}_u32"
            for name in "add_co sub_co subrev_co addc_co subb_co subbrev_co add_co_ci sub_co_ci subrev_co_ci".split()
        ),
        _carry,
    ),
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_i64_i32"), _wide_product),
    **dict.fromkeys(("v_div_scale_f32", "v_div_scale_f64"), _division_scale),
    **dict.fromkeys(("v_div_fmas_f32", "v_div_fmas_f64"), _division_steps),
    "v_readfirstlane_b32": _first_lane,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
    **dict.fromkeys(("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"), _count_lanes),
    "v_permlane64_b32": _other_half,
    **dict.fromkeys(("v_permlane16_b32", "v_permlanex16_b32"), _rows),
    "v_swap_b32": _exchange,
    **dict.fromkeys(_PACKED, _packed),
    "v_pk_mov_b32": _packed_move,
    **dict.fromkeys(("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"), _mixed),
}


_EXEC_WRITERS = re.compile(r"^(v_cmpx|s_\w+_(saveexec|wrexec)_b(32|64)$)")


def writes_exec(i: Instruction) -> bool:
    """Whether an instruction chooses the lanes that take part, so that it is the last of its block."""
    to_exec = bool(i.operands) and i.operands[0] in ("exec", "exec_lo", "exec_hi")
    return to_exec or _EXEC_WRITERS.match(i.mnemonic) is not None
