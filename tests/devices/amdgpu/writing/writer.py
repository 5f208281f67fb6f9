"""Writes a block of instructions as a Python function over NumPy arrays: operands are resolved once.

A function takes the wave and returns the number of the next block. It is written anew for waves all of whose lanes take part, whose results
need no masks.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ..faults import UnknownInstruction
from ..wave import KINDS
from .operands import LaneRegister, Source, constant, lane_register, shared, source

_DISTANCE = re.compile(r"^\(?([\w.$]+)-([\w.$]+)\)?(&4294967295|>>32)$")
_PAIR = struct.Struct("<Q"), struct.Struct("<d")
_WORD = struct.Struct("<I"), struct.Struct("<f")
_HALF = struct.Struct("<H"), struct.Struct("<e")
_BITS = {"f": "u", "i": "u", "d": "q", "l": "q", "e": "h", "j": "h"}
Function = Callable[..., Any]


def as_f32(bits: int) -> float:
    """The float of 32 bits."""
    return _WORD[1].unpack(_WORD[0].pack(bits))[0]


def as_f64(bits: int) -> float:
    """The float of 64 bits."""
    return _PAIR[1].unpack(_PAIR[0].pack(bits))[0]


def as_f16(bits: int) -> float:
    """The float of 16 bits."""
    return _HALF[1].unpack(_HALF[0].pack(bits & 0xFFFF))[0]


def _flip(x: np.ndarray) -> np.ndarray:
    return x ^ x.dtype.type(1 << (8 * x.dtype.itemsize - 1))


def _drop(x: np.ndarray) -> np.ndarray:
    return x & x.dtype.type((1 << (8 * x.dtype.itemsize - 1)) - 1)


_SIGNED = {
    "i": lambda t: f"(({t}) ^ 0x80000000) - 0x80000000",
    "l": lambda t: f"(({t}) ^ 0x8000000000000000) - 0x8000000000000000",
    "j": lambda t: f"(({t}) & 0xffff ^ 0x8000) - 0x8000",
    "h": lambda t: f"({t}) & 0xffff",
    "f": lambda t: f"as_f32({t})",
    "d": lambda t: f"as_f64({t})",
    "e": lambda t: f"as_f16({t})",
}
_HELPERS = {"as_f32": as_f32, "as_f64": as_f64, "as_f16": as_f16, "copyto": np.copyto, "full": np.full, "array": np.array}


class Names(dict[str, Any]):
    """What the functions of a kernel call: NumPy's and ours by name."""

    def __init__(self) -> None:
        super().__init__(_HELPERS)
        self.update({f"t_{kind}": dtype.type for kind, dtype in KINDS.items()})
        self._known: dict[int, str] = {}

    def of(self, thing: Any) -> str:
        """The name of a function or an object, which lives as long as this."""
        name = self._known.get(id(thing))
        if name is None:
            name = self._known[id(thing)] = f"{getattr(thing, '__name__', 'k').strip('<>')}_{len(self._known)}"
            self[name] = thing
        return name


class Writer:
    """The lines of one block.

    Attributes:
        chip: the number of the generation: 9 for gfx90a and gfx942, 10, 11, 12.
        width: lanes of a wave.
        full: all lanes take part.
        agprs: the number of the first accumulator among the registers.
        where: the text of the flags of the lanes that are written.
        symbols: addresses of the module's variables, and of the function's labels.
    """

    def __init__(self, names: Names, chip: int, width: int, full: bool, agprs: int, symbols: dict[str, int]) -> None:
        self.names, self.chip, self.width, self.full, self.agprs, self.symbols = names, chip, width, full, agprs, symbols
        self.lines: list[str] = []
        self.kinds: set[str] = set()
        self.where = "" if full else "A"
        self.waiting: list[str] | None = None  # writes that wait for both halves of a pair of instructions
        self.base = 0  # what the last s_getpc_b64 gave
        self._temporaries = 0

    # ---- text
    def put(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def let(self, value: str) -> str:
        """A new name for a value."""
        self._temporaries += 1
        name = f"t{self._temporaries}"
        self.lines.append(f"{name} = {value}")
        return name

    def call(self, function: Function, *args: str) -> str:
        """The text of a call."""
        return f"{self.names.of(function)}({', '.join(args)})"

    # ---- registers of the lanes
    def row(self, register: LaneRegister) -> int:
        """The number of a register among v and a registers."""
        return register.number + (self.agprs if register.file == "a" else 0)

    def view(self, kind: str, row: int, half: int = 0) -> str:
        """A register of the lanes as a type."""
        self.kinds.add(kind)
        return f"{kind.upper()}[{2 * row + half if KINDS[kind].itemsize == 2 else row}]"

    def lanes(self, text: str, kind: str, half: int = 0, more: int = 0) -> str:
        """An operand that must be a register of the lanes, or one ``more`` places behind it."""
        register = lane_register(text)
        if register is None:
            raise UnknownInstruction(f"operand {text}")
        return self.view(kind, self.row(register) + more, register.half if register.half is not None else half)

    # ---- shared registers
    def word(self, text: str, kind: str = "u") -> str:
        """A shared operand as a Python number of a type; signs are not looked at."""
        size = KINDS[kind].itemsize
        number = shared(text)
        if number is not None:
            bits = f"S[{number}]" if size <= 4 else f"(S[{number}] | S[{number + 1}] << 32)"
            return _SIGNED[kind](bits) if kind in _SIGNED else bits
        if text in ("null", "off"):
            return "0"
        value = constant(text, kind, size)
        if value is None:
            value = self._special(text)
        if kind in ("f", "d", "e"):
            x = {"f": as_f32, "d": as_f64, "e": as_f16}[kind](value)
            return repr(x) if np.isfinite(x) else f"{_SIGNED[kind](str(value))}"
        return str(value) if kind in "uqh" else f"({value - (1 << 8 * size) if value >> (8 * size - 1) else value})"

    def _special(self, text: str) -> int:
        if text == "src_vccz":
            raise UnknownInstruction("operand vccz")
        if text == "src_shared_base":
            return SHARED_APERTURE << 32
        if text == "src_private_base":
            return PRIVATE_APERTURE << 32
        if found := _DISTANCE.match(text):
            value = self.symbols[found[1]] - self.symbols[found[2]]
            return (value >> 32 if found[3] == ">>32" else value) & 0xFFFFFFFF
        symbol, _, part = text.partition("@")
        if symbol in self.symbols and part.startswith("rel32@"):
            value = (self.symbols[symbol] - self.base) & 0xFFFF_FFFF_FFFF_FFFF
            return value & 0xFFFFFFFF if part.startswith("rel32@lo") else value >> 32
        raise UnknownInstruction(f"operand {text}")

    def set_word(self, text: str, value: str) -> None:
        """Write a shared register: ``value`` is in the range of 32 bits."""
        if text != "null":
            self.put(f"S[{self.shared_number(text)}] = {value}")

    def set_pair(self, text: str, value: str) -> None:
        """Write two shared registers: ``value`` is in the range of 64 bits."""
        if text != "null":
            number, name = self.shared_number(text), self.let(value)
            self.put(f"S[{number}] = {name} & 0xffffffff")
            self.put(f"S[{number + 1}] = {name} >> 32")

    def set_mask(self, text: str, value: str) -> None:
        """Write a set of lanes."""
        (self.set_pair if self.width == 64 else self.set_word)(text, value)

    def mask(self, text: str) -> str:
        """A set of lanes as flags."""
        return f"w.masks[{self.word(text, 'q' if self.width == 64 else 'u')}]"

    @staticmethod
    def shared_number(text: str) -> int:
        """The number of a shared register that is written."""
        number = shared(text)
        if number is None:
            raise UnknownInstruction(f"result {text}")
        return number

    # ---- operands of the lanes' instructions
    def operand(self, text: str, kind: str, array: bool = False, half: int = 0) -> str:
        """An operand with its signs.

        Args:
            text: of the operand.
            kind: its type.
            array: a NumPy value is needed, not a Python number.
            half: which half of a register a 16-bit operand is in.
        """
        s = source(text)
        register = lane_register(s.text)
        if register is None:
            value = self.word(s.text if kind not in "hje" or not half else self._shifted(s.text), kind)
            if array or s.negative or s.absolute:
                value = f"t_{kind}({value})"
        else:
            value = self.lanes(s.text, kind, half)
        return self.signs(s, kind, value)

    def _shifted(self, text: str) -> str:
        raise UnknownInstruction(f"the high half of {text}")

    def signs(self, s: Source, kind: str, value: str) -> str:
        """A value with the signs of its operand, which change bits: NaN keep theirs."""
        if not s.negative and not s.absolute:
            return value
        if kind in "fde":
            value = self.call(np.absolute, value) if s.absolute else value
            return self.call(np.negative, value) if s.negative else value
        value = self.call(_drop, value) if s.absolute else value
        return self.call(_flip, value) if s.negative else value

    # ---- results of the lanes' instructions
    def result(self, text: str, kind: str, value: str, half: int = 0, zeroes: bool = False) -> None:
        """Write a register of the lanes.

        Args:
            text: of the operand.
            kind: the type of the value.
            value: an array, or a number.
            half: which half a 16-bit value goes to.
            zeroes: the other half becomes zero.
        """
        target = self.lanes(text, kind, half)
        if zeroes:
            target = self.lanes(text, "u")
            value = f"{value}.view(t_h)" if kind != "h" else value
        self.store(target, value)

    def store(self, target: str, value: str) -> None:
        """Write a view in the lanes that take part."""
        if self.waiting is not None:
            self.waiting.append(self._copy(target, self.let(f"array({value})")))
        else:
            self.put(self._copy(target, value))

    def _copy(self, target: str, value: str) -> str:
        return f"copyto({target}, {value}, where={self.where})" if self.where else f"copyto({target}, {value})"

    def apply(self, function: Function, target: str, args: list[str]) -> None:
        """Call a function of NumPy that can write its result itself."""
        if self.where or self.waiting is not None:
            self.store(target, self.call(function, *args))
        else:
            self.put(self.call(function, *args, f"out={target}"))

    # ---- the function
    def text(self, name: str) -> str:
        """The function."""
        head = ["S = w.S"] + [f"{k.upper()} = w.views[{k!r}]" for k in sorted(self.kinds)]
        if not self.full:
            head.append("A = w.active")
        return "\n  ".join([f"def {name}(w):", *head, *self.lines]) + "\n"


VCC_TEXT = {64: "vcc", 32: "vcc_lo"}
SHARED_APERTURE, PRIVATE_APERTURE = 0x10000, 0x20000
"""The high words of generic addresses of on-chip memory and of a lane's own memory."""
