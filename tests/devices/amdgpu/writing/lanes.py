"""Writes instructions that compute in each lane by itself."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..faults import UnknownInstruction
from ..listing import Instruction
from ..values.floats import clamped
from ..values.moves import moved, movement
from .lane_table import OPERATIONS, SATURATED, Operation
from .operands import lane_register, source
from .writer import Writer

_SUFFIX = re.compile(r"_(e32|e64|dpp|dpp8|e64_dpp|sdwa)$")
_LIST = re.compile(r"\d+")
_PARTS = {f"BYTE_{k}": (8 * k, 0xFF) for k in range(4)} | {"WORD_0": (0, 0xFFFF), "WORD_1": (16, 0xFFFF)}


def plain(mnemonic: str) -> tuple[str, str]:
    """A mnemonic without the name of its encoding, and that."""
    found = _SUFFIX.search(mnemonic)
    return (mnemonic[: found.start()], found[1]) if found else (mnemonic, "")


def flags(i: Instruction, modifier: str, count: int, default: int = 0) -> list[int]:
    """The list of a modifier such as ``op_sel:[0,1]``."""
    text = i.modifiers.get(modifier)
    found = [int(x) for x in _LIST.findall(text)] if text else []
    return found + [default] * (count - len(found))


def write_operation(x: Writer, i: Instruction) -> bool:
    """Write an instruction of the table; False if it is none.

    Raises:
        UnknownInstruction: it has a form that is not known.
    """
    name, encoding = plain(i.mnemonic)
    name = name.replace("v_dual_", "v_")
    op = OPERATIONS.get(name)
    if op is None:
        return False
    if "clamp" in i.modifiers and op.result not in "fde":
        op = SATURATED.get(name)
        if op is None:
            raise UnknownInstruction(i.text)
    if encoding == "sdwa":
        _write_parts(x, i, op)
        return True
    operands = _operands(x, i, op, "dpp" in encoding)
    half = flags(i, "op_sel", len(op.operands) + 1)[len(op.operands) - op.tied] if op.result in "hje" else 0
    where = x.where
    if "dpp" in encoding:
        operands[0] = _move(x, i, operands[0])
    _result(x, i, op, operands, half)
    x.where = where
    return True


def _operands(x: Writer, i: Instruction, op: Operation, move: bool) -> list[str]:
    ufunc = isinstance(op.function, np.ufunc)
    texts = list(i.operands[1 : 1 + len(op.operands) - op.tied]) + ([i.operands[0]] if op.tied else [])
    if len(texts) != len(op.operands):
        raise UnknownInstruction(i.text)
    halves = flags(i, "op_sel", len(texts) + 1)
    vector = any(lane_register(source(t).text) for t in texts)
    found = []
    for k, (text, kind) in enumerate(zip(texts, op.operands, strict=True)):
        tied = op.tied and k == len(texts) - 1
        half = halves[k] if kind in "hje" and not tied else 0
        found.append(x.operand(text, kind, array=not ufunc or not vector or move, half=half))
    return found


def _move(x: Writer, i: Instruction, value: str) -> str:
    """The first operand from other lanes; from here on only the lanes that get one are written."""
    how = x.names.of(movement(i.modifiers, x.width))
    x.put(f"moved_value, moved_lanes = {x.call(moved, 'w', value, how)}")
    x.where = x.let("moved_lanes")
    return x.let("moved_value")


def modified(x: Writer, i: Instruction, kind: str, value: str) -> str:
    """A float result with ``mul:2``, ``div:2`` or ``clamp``."""
    if kind not in "fde":
        return value
    if "mul" in i.modifiers:
        value = f"({value}) * t_{kind}({int(i.modifiers['mul'])})"
    if "div" in i.modifiers:
        value = f"({value}) / t_{kind}({int(i.modifiers['div'])})"
    return x.call(clamped, value) if "clamp" in i.modifiers else value


def _result(x: Writer, i: Instruction, op: Operation, operands: list[str], half: int) -> None:
    target = i.operands[0]
    register = lane_register(target)
    zeroes = op.result in "hje" and x.chip < 10 and not op.keeps and not half and (register is None or register.half is None)
    changed = any(m in i.modifiers for m in ("mul", "div", "clamp")) and op.result in "fde"
    if isinstance(op.function, np.ufunc) and not zeroes and not changed:
        x.apply(op.function, x.lanes(target, op.result, half), operands)
        return
    x.result(target, op.result, modified(x, i, op.result, x.call(op.function, *operands)), half, zeroes)


# ---- SDWA: parts of registers
def part(x: np.ndarray, shift: int, mask: int, signed: bool) -> np.ndarray:
    """A byte or a word of 32-bit values, as 32 bits."""
    found = (x >> np.uint32(shift)) & np.uint32(mask)
    top = np.uint32((mask >> 1) + 1)
    return (found ^ top) - top if signed else found


def inserted(old: np.ndarray, value: np.ndarray, shift: int, mask: int, rest: str) -> np.ndarray:
    """A result in the place of a byte or a word."""
    placed = (value & np.uint32(mask)) << np.uint32(shift)
    if rest == "UNUSED_PRESERVE":
        return (old & ~np.uint32(mask << shift)) | placed
    if rest == "UNUSED_SEXT":
        top = np.uint32(((mask >> 1) + 1) << shift)
        return (placed ^ top) - top
    return placed


def part_operand(x: Writer, i: Instruction, k: int, text: str, kind: str) -> str:
    """An operand of an SDWA instruction: its chosen part as a type."""
    chosen = i.modifiers.get(f"src{k}_sel", "DWORD")
    s = source(text)
    if chosen == "DWORD":
        return x.operand(text if not s.sext else s.text, kind, array=True)
    shift, mask = _PARTS[chosen]
    register = x.lanes(s.text, "u") if lane_register(s.text) else f"t_u({x.word(s.text)})"
    value = x.let(x.call(part, register, str(shift), str(mask), str(s.sext)))
    dtype: Any = {"h": "t_h", "j": "t_j", "e": "t_e"}.get(kind)
    if dtype:
        value = f"{value}.astype(t_h).view({dtype})"
    elif kind != "u":
        value = f"{value}.view(t_{kind})"
    return x.signs(s, kind, value)


def _write_parts(x: Writer, i: Instruction, op: Operation) -> None:
    texts = list(i.operands[1 : 1 + len(op.operands) - op.tied])
    operands = [part_operand(x, i, k, t, kind) for k, (t, kind) in enumerate(zip(texts, op.operands, strict=False))]
    if op.tied:
        operands.append(x.operand(i.operands[0], op.operands[-1], array=True))
    value = x.let(modified(x, i, op.result, x.call(op.function, *operands)))
    if op.result in "hje":
        value = x.let(f"{value}.view(t_h).astype(t_u)")
    elif op.result != "u":
        value = f"{value}.view(t_u)"
    target = x.lanes(i.operands[0], "u")
    chosen = i.modifiers.get("dst_sel", "DWORD")
    if chosen != "DWORD":
        shift, mask = _PARTS[chosen]
        rest = repr(i.modifiers.get("dst_unused", "UNUSED_PAD"))
        value = x.call(inserted, target, value, str(shift), str(mask), rest)
    x.store(target, value)
