"""Types and literals of device text in Metal Shading Language. All integers are unsigned: the sign is in the operation, as in the text.

The language has no f64, and no atomics of 8 bytes. They are translated all the same, to what C++ would call them: so the tests run on the
emulated device, whose target may have them (``hardware.metal_target``).
"""

from __future__ import annotations

import math
import struct

import numpy as np

from ..text.lines import float_of

TYPES = {
    "i1": "bool", "i8": "uchar", "i16": "ushort", "i32": "uint", "i64": "ulong", "half": "half", "float": "float", "double": "double",
    "ptr": "ulong", "void": "void",
}  # fmt: skip
SIGNED = {"i8": "char", "i16": "short", "i32": "int", "i64": "long"}
NARROW = ("i8", "i16")
"""Types whose arithmetic C++ would do as signed ``int``."""
FLOATS = ("half", "float", "double")

_SMALLEST = float(np.finfo(np.float32).tiny)


def word_of(ty: str) -> str:
    """The type of the bits of a type."""
    return {"half": "ushort", "float": "uint", "double": "ulong"}.get(ty, TYPES[ty])


def literal(ty: str, word: str) -> str:
    """A literal of the text; ``zeroinitializer``, ``null`` and ``poison`` are zeros."""
    if ty == "i1":
        return "true" if word in ("true", "1") else "false"
    if word in ("zeroinitializer", "null", "poison"):
        word = "0x0" if ty in FLOATS else "0"
    if ty == "half":
        return _half(int(word[3:], 16) if word.startswith("0xH") else 0)
    if ty == "float":
        return _float(float_of(word))
    if ty == "double":
        return f"as_type<double>({struct.unpack('<Q', struct.pack('<d', float_of(word)))[0]}ul)"
    return integer(ty, int(word))


def integer(ty: str, value: int) -> str:
    """An integer of a type, of which as many bits count as it has."""
    if ty in NARROW:
        return f"{TYPES[ty]}({value & (0xFF if ty == 'i8' else 0xFFFF)})"
    if ty == "i32":
        return f"{value & 0xFFFFFFFF}u"
    return f"{value & 0xFFFFFFFFFFFFFFFF}ul"


def _float(value: float) -> str:
    """Digits that give the same bits. What a compiler might flush or fold otherwise is given as bits."""
    single = np.float32(value)
    if not math.isfinite(single) or (abs(single) < _SMALLEST and (single or math.copysign(1.0, single) < 0)):
        return f"as_type<float>({int(single.view(np.uint32))}u)"
    text = (
        np.format_float_scientific(single, unique=True)
        if abs(single) >= 1e9 or 0 < abs(single) < 1e-4
        else repr(float(str(single)))
    )
    return f"({text}f)" if text[0] == "-" else f"{text}f"


def _half(bits: int) -> str:
    return f"as_type<half>(ushort({bits}))"
