"""The instructions of device text as data, one class for each form of a line.

Types are those of the text: ``i1`` to ``i64``, ``half``, ``float``, ``double``, ``ptr``. Operands are words of the text: a register
(``%r1``), a literal (``5``, ``0x3FF0000000000000``, ``true``) or ``zeroinitializer``. Every value is scalar; where ``many`` is more than
1, an access or a value has so many elements of the type, side by side.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SIZES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8, "ptr": 8}
"""Bytes of a type in memory."""


class Alloca(NamedTuple):
    """A variable of the function. Its register is an address that loads and stores name, and nothing else."""

    result: str
    type: str


class OnChip(NamedTuple):
    """The address of a variable of the module in on-chip memory (``OnChipVariable``)."""

    result: str
    variable: str


class ElementAddress(NamedTuple):
    """The address ``offset`` elements of ``type`` after ``base``: an address, or the name of a constant table (``@..``)."""

    result: str
    type: str
    base: str
    index_type: str
    offset: str


class Load(NamedTuple):
    """A plain load; ``align`` in bytes."""

    result: str
    type: str
    many: int
    address: str
    align: int


class Store(NamedTuple):
    """A plain store; ``align`` in bytes."""

    type: str
    many: int
    value: str
    address: str
    align: int


class AtomicLoad(NamedTuple):
    """A relaxed load that other threads may disturb."""

    result: str
    type: str
    address: str


class AtomicStore(NamedTuple):
    """A relaxed store that other threads may disturb."""

    type: str
    value: str
    address: str


class Update(NamedTuple):
    """``atomicrmw``: add, sub, and, or, xor, xchg, max, min, umax, umin or fadd; relaxed. The result is what was there."""

    result: str
    op: str
    address: str
    type: str
    value: str


class Swap(NamedTuple):
    """``cmpxchg``, relaxed. The result is a pair for ``ExtractValue``: what was there (0), whether it was as expected (1)."""

    result: str
    address: str
    type: str
    expected: str
    new: str
    weak: bool


class ExtractValue(NamedTuple):
    """One of the two values of a ``Swap``."""

    result: str
    pair: str
    which: int


class Fence(NamedTuple):
    """All earlier accesses of this thread come before all later ones, for all threads of the device."""


class Binary(NamedTuple):
    """An operation of two values of one type, by LLVM's name."""

    result: str
    op: str
    type: str
    a: str
    b: str


class Negate(NamedTuple):
    """``fneg``: the other sign."""

    result: str
    type: str
    value: str


class Compare(NamedTuple):
    """``icmp`` or ``fcmp``; the result is an ``i1``. Pointers are compared with ``null``."""

    result: str
    op: str
    order: str
    type: str
    a: str
    b: str


class Select(NamedTuple):
    """``a`` where the condition holds, else ``b``."""

    result: str
    condition: str
    type: str
    a: str
    b: str


class CastInst(NamedTuple):
    """A conversion, by LLVM's name."""

    result: str
    op: str
    source: str
    value: str
    type: str


class Insert(NamedTuple):
    """The values of ``vector`` (or ``poison``) with another one at ``place``."""

    result: str
    type: str
    many: int
    vector: str
    value: str
    place: int


class Extract(NamedTuple):
    """One of the values of a vector."""

    result: str
    type: str
    many: int
    vector: str
    place: int


class CallInst(NamedTuple):
    """A call of a function of the text, of ``llvm.*``, or of a pseudo function of the hardware (``qd.*``). ``result``: "" if void."""

    result: str
    type: str
    name: str
    types: tuple[str, ...]
    args: tuple[str, ...]


Line = (
    Alloca | OnChip | ElementAddress | Load | Store | AtomicLoad | AtomicStore | Update | Swap | ExtractValue | Fence
    | Binary | Negate | Compare | Select | CastInst | Insert | Extract | CallInst
)  # fmt: skip
"""An instruction that is not the end of a block."""


class Jump(NamedTuple):
    """The end of a block; ``leaves``: from inside any loops and conditions."""

    to: str
    leaves: bool


class Branch(NamedTuple):
    """The end of a block that goes one of two ways."""

    condition: str
    yes: str
    no: str


class Return(NamedTuple):
    """The end of a function; type and value are "" in one that returns nothing."""

    type: str
    value: str


End = Jump | Branch | Return


def float_of(text: str) -> float:
    """The value of a literal of ``float`` or ``double``."""
    return struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0] if text.startswith("0x") else float(text)
