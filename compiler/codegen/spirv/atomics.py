"""Atomics: relaxed, of the device's scope, or of the block's in on-chip memory.

Floats are exchanged by their bits. A sum of floats is one instruction where the device has it, else a loop of exchanges.
"""

from __future__ import annotations

from ..text.lines import SIZES, AtomicLoad, AtomicStore, Part, Swap, Update
from .body import Body, OnChipPlace
from .memory import pointer, word_on_chip
from .module import FLOATS
from .opcodes import Capability, Op, Scope, Semantics

_INTEGER = {
    "add": Op.AtomicIAdd, "sub": Op.AtomicISub, "and": Op.AtomicAnd, "or": Op.AtomicOr, "xor": Op.AtomicXor, "xchg": Op.AtomicExchange,
    "min": Op.AtomicSMin, "max": Op.AtomicSMax, "umin": Op.AtomicUMin, "umax": Op.AtomicUMax,
}  # fmt: skip
_SUM = {
    "float": ("float32_atomic_add", Capability.AtomicFloat32AddEXT),
    "double": ("float64_atomic_add", Capability.AtomicFloat64AddEXT),
}


def load(f: Body, x: AtomicLoad) -> None:
    """A load that other threads may disturb."""
    at, scope, relaxed = _where(f, x.type, x.address)
    f.values[x.result] = f.op(Op.AtomicLoad, x.type, at, scope, relaxed)


def store(f: Body, x: AtomicStore) -> None:
    """A store that other threads may disturb."""
    at, scope, relaxed = _where(f, x.type, x.address)
    f.do(Op.AtomicStore, at, scope, relaxed, f.operand(x.type, x.value))


def update(f: Body, x: Update) -> None:
    """An atomic of one value; what was there."""
    value = f.operand(x.type, x.value)
    if x.type not in FLOATS:
        f.values[x.result] = f.op(_INTEGER[x.op], x.type, *_where(f, x.type, x.address), value)
    elif x.op == "xchg":
        bits = _bits(x.type)
        old = f.op(Op.AtomicExchange, bits, *_where(f, bits, x.address), f.op(Op.Bitcast, bits, value))
        f.values[x.result] = f.op(Op.Bitcast, x.type, old)
    else:
        feature, capability = _SUM[x.type]
        if getattr(f.module.features, feature) and not isinstance(f.places.get(x.address), OnChipPlace):
            f.module.require(feature, capability)
            f.module.extend("SPV_EXT_shader_atomic_float_add")
            f.values[x.result] = f.op(Op.AtomicFAdd, x.type, *_where(f, x.type, x.address, True), value)
        else:
            f.values[x.result] = _sum_by_exchanges(f, x, value)


def swap(f: Body, x: Swap) -> None:
    """A compare-and-swap, of a float by its bits."""
    bits = _bits(x.type)
    expected, new = f.operand(x.type, x.expected), f.operand(x.type, x.new)
    if bits != x.type:
        expected, new = f.op(Op.Bitcast, bits, expected), f.op(Op.Bitcast, bits, new)
    old = _exchange(f, bits, _where(f, bits, x.address), new, expected)
    same = f.op(Op.IEqual, "i1", old, expected)
    f.pairs[x.result] = (old if bits == x.type else f.op(Op.Bitcast, x.type, old)), same


def part(f: Body, x: Part) -> None:
    """One of the values of a swap."""
    f.values[x.result] = f.pairs[x.pair][x.which]


def _bits(ty: str) -> str:
    return {"float": "i32", "double": "i64"}.get(ty, ty)


def _where(f: Body, ty: str, address: str, native: bool = False) -> tuple[int, int, int]:
    """What an atomic begins with: a pointer, the scope and the order. ``native``: of floats."""
    m, place = f.module, f.places.get(address)
    wide = SIZES[ty] == 8
    if isinstance(place, OnChipPlace):
        if wide:
            m.require("shared_int64_atomics", Capability.Int64Atomics)
        return word_on_chip(f, place, 0, "i64" if wide else "i32"), m.number(Scope.Workgroup), m.number(Semantics.Relaxed)
    if wide and not native:
        m.require("int64_atomics", Capability.Int64Atomics)
    return pointer(f, ty, address), m.number(Scope.Device), m.number(Semantics.Relaxed)


def _exchange(f: Body, bits: str, where: tuple[int, int, int], new: int, expected: int) -> int:
    at, scope, relaxed = where
    return f.op(Op.AtomicCompareExchange, bits, at, scope, relaxed, relaxed, new, expected)


def _sum_by_exchanges(f: Body, x: Update, value: int) -> int:
    """Exchange the bits until no other thread has come between."""
    m, bits = f.module, _bits(x.type)
    where = _where(f, bits, x.address)
    seen = f.new_variable(m.type(bits))
    f.do(Op.Store, seen, f.op(Op.AtomicLoad, bits, *where))
    header, body, onward, follow = (m.id() for _ in range(4))
    f.do(Op.Branch, header)
    f.label(header)
    f.do(Op.LoopMerge, follow, onward, 0)
    f.do(Op.Branch, body)
    f.label(body)
    before = f.op(Op.Load, bits, seen)
    old = f.op(Op.Bitcast, x.type, before)
    new = f.op(Op.Bitcast, bits, f.exact(Op.FAdd, x.type, old, value))
    found = _exchange(f, bits, where, new, before)
    f.do(Op.Store, seen, found)
    f.do(Op.BranchConditional, f.op(Op.IEqual, "i1", found, before), follow, onward)
    f.label(onward)
    f.do(Op.Branch, header)
    f.label(follow)
    return old
