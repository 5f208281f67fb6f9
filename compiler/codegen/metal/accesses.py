"""Loads, stores and atomics as Metal Shading Language.

An address of the device's memory is a ``ulong`` that is cast to a pointer. One of on-chip memory is the bytes from the begin of ``qs``.
Atomics are relaxed, as in the text. There are none of 64 bits, and in on-chip memory none of floats.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..text.lines import SIZES, Swap, Update
from .expressions import unsupported
from .values import FLOATS, SIGNED, TYPES, word_of

RELAXED = "memory_order_relaxed"
_NAMES = {
    "add": "fetch_add", "sub": "fetch_sub", "and": "fetch_and", "or": "fetch_or", "xor": "fetch_xor", "xchg": "exchange",
    "max": "fetch_max", "min": "fetch_min", "umax": "fetch_max", "umin": "fetch_min", "fadd": "fetch_add",
}  # fmt: skip

PARTS = ("x", "y", "z", "w")

SWAP = """static bool qd_swap(SPACE atomic_WORD* at, thread WORD& seen, WORD other)
{
  WORD expected = seen;
  bool done = false;
  do {
    seen = expected;
    done = atomic_compare_exchange_weak_explicit(at, &seen, other, memory_order_relaxed, memory_order_relaxed);
  } while (!done && seen == expected);
  return done;
}
"""
"""An exchange that fails only where something else is there: the language has those that fail for no reason, too."""

ADD = """static FLOAT qd_add(threadgroup atomic_WORD* at, FLOAT value)
{
  WORD seen = atomic_load_explicit(at, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(
      at, &seen, as_type<WORD>(as_type<FLOAT>(seen) + value), memory_order_relaxed, memory_order_relaxed)) {
  }
  return as_type<FLOAT>(seen);
}
"""
"""A sum in on-chip memory."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address as an expression. ``on_chip``: the bytes from the begin of the block's memory."""

    text: str
    on_chip: bool = False

    @property
    def space(self) -> str:
        """The address space."""
        return "threadgroup" if self.on_chip else "device"

    def pointer(self, kind: str) -> str:
        """A pointer to a type of the language."""
        return f"reinterpret_cast<{self.space} {kind}*>({f'qs + {self.text}' if self.on_chip else self.text})"

    def place(self, kind: str) -> str:
        """What is there, as a type of the language."""
        return f"*{self.pointer(kind)}"

    def shifted(self, by: int) -> Address:
        """The address so many bytes behind."""
        return self if not by else Address(f"({self.text} + {by}{'u' if self.on_chip else 'ul'})", self.on_chip)


_UNSIGNED = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


def read(ty: str, at: Address, align: int) -> str:
    """A plain load. The language wants its natural alignment; with less, it is one of several parts."""
    size = SIZES[ty]
    if align >= size:
        return at.place(TYPES[ty])
    word = "ulong" if size == 8 else "uint"
    suffix = "ul" if size == 8 else "u"
    parts = (f"({word}({at.shifted(k).place(_UNSIGNED[align])}) << {8 * k}{suffix})" for k in range(0, size, align))
    return _from_word(ty, f"({' | '.join(parts)})", word)


def write(ty: str, at: Address, value: str, align: int) -> list[str]:
    """The statements of a plain store."""
    size = SIZES[ty]
    if align >= size:
        return [f"{at.place(TYPES[ty])} = {value};"]
    kind, suffix = _UNSIGNED[align], "ul" if size == 8 else "u"
    bits = value if TYPES[ty] in _UNSIGNED.values() else f"as_type<{word_of(ty)}>({value})"
    wide = f"{'ulong' if size == 8 else 'uint'}({bits})"
    return [f"{at.shifted(k).place(kind)} = {kind}({wide} >> {8 * k}{suffix});" for k in range(0, size, align)]


def _from_word(ty: str, bits: str, word: str) -> str:
    """A value from its bits in a word that may be wider."""
    own = word_of(ty)
    bits = bits if own == word else f"{own}({bits})"
    return bits if own == TYPES[ty] else f"as_type<{TYPES[ty]}>({bits})"


def pieces(ty: str, many: int, align: int) -> list[tuple[int, str]]:
    """The accesses that make one of several elements: how many elements each has, and its type in the language."""
    size = next((n for n in (4, 2) if many % n == 0 and align >= n * SIZES[ty]), 1)
    return [(size, f"{TYPES[ty]}{size if size > 1 else ''}")] * (many // size)


def _atomic(ty: str, op: str = "") -> str:
    if SIZES[ty] < 4:
        raise unsupported(f"an atomic of the type {ty}")
    return f"atomic_{SIGNED[ty] if op in ('max', 'min') else TYPES[ty]}"


def load(ty: str, at: Address) -> str:
    """An atomic load."""
    return f"atomic_load_explicit({at.pointer(_atomic(ty))}, {RELAXED})"


def store(ty: str, at: Address, value: str) -> str:
    """An atomic store."""
    return f"atomic_store_explicit({at.pointer(_atomic(ty))}, {value}, {RELAXED})"


def update(line: Update, at: Address, value: str) -> str:
    """An atomic operation; what was there before."""
    ty, op = line.type, line.op
    if ty in FLOATS and op == "xchg":
        word = word_of(ty)
        bits = f"atomic_exchange_explicit({at.pointer(f'atomic_{word}')}, as_type<{word}>({value}), {RELAXED})"
        return f"as_type<{TYPES[ty]}>({bits})"
    if ty in FLOATS and at.on_chip:
        if op != "fadd":
            raise unsupported(f"the atomic `{op}` on floats in on-chip memory")
        return f"qd_add({at.pointer(f'atomic_{word_of(ty)}')}, {value})"
    if op in ("max", "min"):
        value = f"{SIGNED[ty]}({value})"
    out = f"atomic_{_NAMES[op]}_explicit({at.pointer(_atomic(ty, op))}, {value}, {RELAXED})"
    return f"{TYPES[ty]}({out})" if op in ("max", "min") else out


def swap(line: Swap, at: Address, seen: str, new: str) -> str:
    """An exchange, whether it was done; ``seen`` is a variable with what is expected, and has what was there afterwards."""
    pointer = at.pointer(_atomic(line.type).replace(TYPES[line.type], word_of(line.type)))
    if line.weak:
        return f"atomic_compare_exchange_weak_explicit({pointer}, &{seen}, {new}, {RELAXED}, {RELAXED})"
    return f"qd_swap({pointer}, {seen}, {new})"


def helper(kind: str, space: str, ty: str) -> str:
    """The text of a function of ours. ``ty``: of the text."""
    text = ADD if kind == "add" else SWAP
    return text.replace("SPACE", space).replace("WORD", word_of(ty)).replace("FLOAT", TYPES[ty])
