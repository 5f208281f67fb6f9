"""Atomics: relaxed, of the device's scope, or of the block's in on-chip memory.

Floats are exchanged by their bits. A sum of floats is one instruction where the device has it, else a loop of exchanges.
"""

from __future__ import annotations

from ..text.lines import SIZES, AtomicLoad, AtomicStore, ExtractValue, Swap, Update
from .body import OnChipPlace, SpirvBody
from .memory import pointer, word_on_chip
from .module import FLOATS
from .opcodes import Capability, MemoryScope, Opcode, Semantics

_INTEGER = {
    "add": Opcode.AtomicIAdd, "sub": Opcode.AtomicISub, "and": Opcode.AtomicAnd, "or": Opcode.AtomicOr,
    "xor": Opcode.AtomicXor, "xchg": Opcode.AtomicExchange,
    "min": Opcode.AtomicSMin, "max": Opcode.AtomicSMax, "umin": Opcode.AtomicUMin, "umax": Opcode.AtomicUMax,
}  # fmt: skip
_SUM = {
    "float": ("float32_atomic_add", Capability.AtomicFloat32AddEXT),
    "double": ("float64_atomic_add", Capability.AtomicFloat64AddEXT),
}


def load(f: SpirvBody, x: AtomicLoad) -> None:
    """A load that other threads may disturb."""
    at, scope, relaxed = _where(f, x.type, x.address)
    f.values[x.result] = f.op(Opcode.AtomicLoad, x.type, at, scope, relaxed)


def store(f: SpirvBody, x: AtomicStore) -> None:
    """A store that other threads may disturb."""
    at, scope, relaxed = _where(f, x.type, x.address)
    f.do(Opcode.AtomicStore, at, scope, relaxed, f.operand(x.type, x.value))


def update(f: SpirvBody, x: Update) -> None:
    """An atomic of one value; what was there."""
    value = f.operand(x.type, x.value)
    if x.type not in FLOATS:
        f.values[x.result] = f.op(_INTEGER[x.op], x.type, *_where(f, x.type, x.address), value)
    elif x.op == "xchg":
        bits = _bits(x.type)
        old = f.op(Opcode.AtomicExchange, bits, *_where(f, bits, x.address), f.op(Opcode.Bitcast, bits, value))
        f.values[x.result] = f.op(Opcode.Bitcast, x.type, old)
    else:
        feature, capability = _SUM[x.type]
        if getattr(f.module.features, feature) and not isinstance(f.places.get(x.address), OnChipPlace):
            f.module.require(feature, capability)
            f.module.extend("SPV_EXT_shader_atomic_float_add")
            f.values[x.result] = f.op(Opcode.AtomicFAdd, x.type, *_where(f, x.type, x.address, True), value)
        else:
            f.values[x.result] = _sum_by_exchanges(f, x, value)


def swap(f: SpirvBody, x: Swap) -> None:
    """A compare-and-swap, of a float by its bits."""
    bits = _bits(x.type)
    expected, new = f.operand(x.type, x.expected), f.operand(x.type, x.new)
    if bits != x.type:
        expected, new = f.op(Opcode.Bitcast, bits, expected), f.op(Opcode.Bitcast, bits, new)
    old = _exchange(f, bits, _where(f, bits, x.address), new, expected)
    same = f.op(Opcode.IEqual, "i1", old, expected)
    f.pairs[x.result] = (old if bits == x.type else f.op(Opcode.Bitcast, x.type, old)), same


def part(f: SpirvBody, x: ExtractValue) -> None:
    """One of the values of a swap."""
    f.values[x.result] = f.pairs[x.pair][x.which]


def _bits(ty: str) -> str:
    return {"float": "i32", "double": "i64"}.get(ty, ty)


def _where(f: SpirvBody, ty: str, address: str, native: bool = False) -> tuple[int, int, int]:
    """What an atomic begins with: a pointer, the scope and the order. ``native``: of floats."""
    m, place = f.module, f.places.get(address)
    wide = SIZES[ty] == 8
    if isinstance(place, OnChipPlace):
        if wide:
            m.require("shared_int64_atomics", Capability.Int64Atomics)
        return word_on_chip(f, place, 0, "i64" if wide else "i32"), m.number(MemoryScope.Workgroup), m.number(Semantics.Relaxed)
    if wide and not native:
        m.require("int64_atomics", Capability.Int64Atomics)
    return pointer(f, ty, address), m.number(MemoryScope.Device), m.number(Semantics.Relaxed)


def _exchange(f: SpirvBody, bits: str, where: tuple[int, int, int], new: int, expected: int) -> int:
    at, scope, relaxed = where
    return f.op(Opcode.AtomicCompareExchange, bits, at, scope, relaxed, relaxed, new, expected)


def _sum_by_exchanges(f: SpirvBody, x: Update, value: int) -> int:
    """Exchange the bits until no other thread has come between."""
    m, bits = f.module, _bits(x.type)
    where = _where(f, bits, x.address)
    seen = f.new_variable(m.type(bits))
    f.do(Opcode.Store, seen, f.op(Opcode.AtomicLoad, bits, *where))
    header, body, onward, follow = (m.id() for _ in range(4))
    f.do(Opcode.Branch, header)
    f.label(header)
    f.do(Opcode.LoopMerge, follow, onward, 0)
    f.do(Opcode.Branch, body)
    f.label(body)
    before = f.op(Opcode.Load, bits, seen)
    old = f.op(Opcode.Bitcast, x.type, before)
    new = f.op(Opcode.Bitcast, bits, f.exact(Opcode.FAdd, x.type, old, value))
    found = _exchange(f, bits, where, new, before)
    f.do(Opcode.Store, seen, found)
    f.do(Opcode.BranchConditional, f.op(Opcode.IEqual, "i1", found, before), follow, onward)
    f.label(onward)
    f.do(Opcode.Branch, header)
    f.label(follow)
    return old
