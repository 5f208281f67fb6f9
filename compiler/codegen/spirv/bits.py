"""Values as 4-byte words and back: narrow ones lie in the low bits, side by side where there are several."""

from __future__ import annotations

from .body import SpirvBody
from .module import BITS
from .opcodes import Opcode


def word_of(f: SpirvBody, ty: str, values: list[int]) -> int:
    """Values of at most 4 bytes in a word, the first one in its low bits, zeros behind the last one."""
    if ty == "i32":
        return values[0]
    if BITS[ty] == 32:
        return f.op(Opcode.Bitcast, "i32", values[0])
    if len(values) == 1 and ty != "half":
        return f.op(Opcode.UConvert, "i32", values[0])
    n = 32 // BITS[ty]
    filled = [*values, *[f.module.constant(ty, "zeroinitializer")] * (n - len(values))]
    return f.op(Opcode.Bitcast, "i32", f.emit(Opcode.CompositeConstruct, f.module.vector(ty, n), *filled))


def values_of(f: SpirvBody, ty: str, word: int) -> list[int]:
    """All values of a type in a word."""
    if BITS[ty] == 32:
        return [word if ty == "i32" else f.op(Opcode.Bitcast, ty, word)]
    n = 32 // BITS[ty]
    parts = f.emit(Opcode.Bitcast, f.module.vector(ty, n), word)
    return [f.op(Opcode.CompositeExtract, ty, parts, k) for k in range(n)]


def first_of(f: SpirvBody, ty: str, word: int) -> int:
    """The value of a type in the low bits of a word."""
    if ty in ("i8", "i16"):
        return f.op(Opcode.UConvert, ty, word)
    return values_of(f, ty, word)[0]


def bits_of(f: SpirvBody, ty: str, value: int) -> tuple[int, str]:
    """The bits of a float as an integer, and its type: of a half those of a word, whose other bits are zeros."""
    if BITS[ty] == 64:
        return f.op(Opcode.Bitcast, "i64", value), "i64"
    return word_of(f, ty, [value]), "i32"


def float_of_bits(f: SpirvBody, ty: str, bits: int) -> int:
    """The other way round."""
    return f.op(Opcode.Bitcast, ty, bits) if BITS[ty] == 64 else first_of(f, ty, bits)


def hidden(f: SpirvBody, ty: str, value: int) -> int:
    """The same float, which the driver cannot know."""
    nothing = f.unknown_zero()
    bits, name = bits_of(f, ty, value)
    if name == "i64":
        nothing = f.op(Opcode.UConvert, "i64", nothing)
    return float_of_bits(f, ty, f.op(Opcode.IAdd, name, bits, nothing))
