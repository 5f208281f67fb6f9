"""Scalar types. Vectors and matrices are split into scalars by the front end, so the IR knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Kind = Literal["f", "i", "u", "b"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """A scalar type, compared by identity: each exists once.

    Attributes:
        kind: f (float), i (signed), u (unsigned) or b (one-bit truth value).
        size: bytes of one element in memory (a truth value takes one byte).
        is_real: the type can carry a gradient.
        is_int: the type counts things: signed, unsigned or a truth value.
        numpy: the numpy type with the same bytes.
    """

    name: str
    kind: Kind
    bits: int
    # attributes, not properties: compilation asks for them a million times
    size: int = field(init=False)
    is_real: bool = field(init=False)
    is_int: bool = field(init=False)
    numpy: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        size = max(1, self.bits // 8)
        numpy = np.dtype(np.bool_ if self.kind == "b" else f"{self.kind}{size}")
        made = {"size": size, "is_real": self.kind == "f", "is_int": self.kind != "f", "numpy": numpy}
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def holds(self, other: DType) -> bool:
        """For integers: whether every value of ``other`` is a value of this type."""
        if self is other or other.kind == "b":
            return True
        return self.bits > other.bits if self.kind in ("i", other.kind) else False

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return self.kind in "fi"

    @property
    def plane(self) -> str:
        """The adstack heap plane of a state word: float or int, 4 or 8 bytes; narrow types widen to 4."""
        return ("f" if self.is_real else "i") + ("8" if self.bits == 64 else "4")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:  # types are compared by identity, so a copy is the same object
        return _by_name, (self.name,)


def _by_name(name: str) -> DType:
    return ALL[name]


f16, f32, f64 = DType("f16", "f", 16), DType("f32", "f", 32), DType("f64", "f", 64)
i8, i16, i32, i64 = DType("i8", "i", 8), DType("i16", "i", 16), DType("i32", "i", 32), DType("i64", "i", 64)
u8, u16, u32, u64 = DType("u8", "u", 8), DType("u16", "u", 16), DType("u32", "u", 32), DType("u64", "u", 64)
u1 = DType("u1", "b", 1)

PLANES = {"f4": 4, "f8": 8, "i4": 4, "i8": 8}  # name -> bytes of a word
ALL = {t.name: t for t in (f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, u1)}
_FROM_NUMPY = {t.numpy: t for t in ALL.values()}


class Unsigned:
    """The unsigned type as wide as ``default_ip``, beside ``int`` and ``float`` for the default types."""


def unsigned(dtype: DType) -> DType:
    """The unsigned type of the same width."""
    return ALL[f"u{dtype.bits}"]


def from_numpy(dtype: np.dtype | type) -> DType:
    """The scalar type of a numpy dtype.

    Raises:
        KeyError: there is no such type (complex, object, big-endian).
    """
    return _FROM_NUMPY[np.dtype(dtype)]


def limits(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    if dtype.kind == "i":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def promote(a: DType, b: DType) -> DType:
    """The type in which ``a`` and ``b`` meet: a real beats an integer, then the wider wins, unsigned on a tie."""
    if a is b:
        return a
    if a.is_real or b.is_real:
        reals = [t for t in (a, b) if t.is_real]
        return max(reals, key=lambda t: t.bits)
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "u" else b
