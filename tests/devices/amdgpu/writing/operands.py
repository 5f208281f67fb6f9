"""Operands of instructions: registers, and constants as the bits that the hardware makes of them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from ..faults import UnknownInstruction
from ..wave import EXEC, FLAT, M0, SCC, VCC

_SPECIAL = {
    "vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "exec": EXEC, "exec_lo": EXEC, "exec_hi": EXEC + 1, "m0": M0, "scc": SCC,
    "src_scc": SCC, "flat_scratch": FLAT, "flat_scratch_lo": FLAT, "flat_scratch_hi": FLAT + 1,
}  # fmt: skip
_SHARED = re.compile(r"^(s|ttmp)(?:(\d+)|\[(\d+):(\d+)\])$")
_LANES = re.compile(r"^([va])(?:(\d+)|\[(\d+):(\d+)\])(?:\.([lh]))?$")
_TTMP = 108
_MODIFIED = re.compile(r"^(-?)(\|?)(.*?)(\|?)$")
_CALL = re.compile(r"^(neg|abs|sext)\((.*)\)$")
_INTEGER = re.compile(r"^-?(0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"^-?\d+\.\d*(e[-+]?\d+)?$")
_FORMATS = {2: ("<e", "<H"), 4: ("<f", "<I"), 8: ("<d", "<Q")}
_EXACT = {"0.15915494": 0.15915494309189532, "0.1592": 0.15915494309189532}


@dataclass(frozen=True, slots=True)
class Source:
    """An operand without its signs. ``sext``: of an SDWA instruction, its part is signed."""

    text: str
    negative: bool = False
    absolute: bool = False
    sext: bool = False


def source(text: str) -> Source:
    """Takes ``-|x|``, ``neg(x)``, ``sext(x)`` apart. A minus before a number belongs to the number."""
    negative = absolute = sext = False
    while True:
        call = _CALL.match(text)
        if call:
            negative, absolute, sext = negative or call[1] == "neg", absolute or call[1] == "abs", sext or call[1] == "sext"
            text = call[2]
        elif text.startswith("-") and not text[1:2].isdigit():
            negative, text = True, text[1:]
        elif text.startswith("|") and text.endswith("|"):
            absolute, text = True, text[1:-1]
        else:
            return Source(text, negative, absolute, sext)


def shared(text: str) -> int | None:
    """The number of a register that all lanes share (the first of several), or None."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    found = _SHARED.match(text)
    if not found:
        return None
    return int(found[2] or found[3]) + (_TTMP if found[1] == "ttmp" else 0)


@dataclass(frozen=True, slots=True)
class LaneRegister:
    """A register of the lanes, the first of several. ``file``: v or a; ``half``: which 16 bits, if the text says it."""

    file: str
    number: int
    half: int | None


def lane_register(text: str) -> LaneRegister | None:
    """A register that each lane has of its own, or None."""
    found = _LANES.match(text)
    if not found:
        return None
    half = None if found[5] is None else "lh".index(found[5])
    return LaneRegister(found[1], int(found[2] or found[3]), half)


def constant(text: str, kind: str, size: int) -> int | None:
    """The bits of a constant as an operand of a type with ``size`` bytes, or None if it is none.

    Text of 32 bits in the place of a double is its high half; a whole number is never converted to a float.
    """
    float_format, int_format = _FORMATS[size]
    if _FLOAT.match(text):
        value = _EXACT.get(text.lstrip("-")[:10].rstrip("0"), None)
        value = float(text) if value is None else (-value if text[0] == "-" else value)
        return struct.unpack(int_format, struct.pack(float_format, value))[0]
    if not _INTEGER.match(text):
        return None
    value = int(text, 0)
    if size == 8 and kind == "d" and "0x" in text and 0 <= value <= 0xFFFFFFFF:
        return value << 32
    return value & ((1 << 8 * size) - 1)


def must(text: str, number: int | None) -> int:
    """A register's number.

    Raises:
        UnknownInstruction: the operand is something else.
    """
    if number is None:
        raise UnknownInstruction(f"operand {text}")
    return number
