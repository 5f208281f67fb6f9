"""Addresses, loads and stores.

An address in the device's memory is a 64-bit number, which becomes a pointer at each access. On-chip memory is an array of 4-byte words
for each variable: 8 bytes are two of them, 1 and 2 bytes are a part of one, which is written by two atomics that leave the rest alone.
Tapes are such an array of each thread (``private_tapes``), as long as the launch says.
A variable on which there are atomics of 8 bytes is an array of these. A constant table is a variable of the function.
"""

from __future__ import annotations

from ..text.lines import SIZES, Alloca, ElementAddress, Extract, Insert, Load, OnChip, Store
from .bits import first_of, values_of, word_of
from .body import OnChipPlace, SlotPlace, SpirvBody, TablePlace
from .features import Untranslated
from .module import BITS, TAPES_CONSTANT
from .opcodes import ALIGNED, MemoryScope, Opcode, Semantics, StorageClass


def slot(f: SpirvBody, x: Alloca) -> None:
    """A variable of the function."""
    f.places[x.result] = SlotPlace(x.type, f.new_variable(f.module.type(x.type)))


def on_chip(f: SpirvBody, x: OnChip) -> None:
    """The begin of a variable in on-chip memory."""
    f.places[x.result] = OnChipPlace(x.variable, f.module.number(0))


def element(f: SpirvBody, x: ElementAddress) -> None:
    """An address some elements further."""
    size = SIZES[x.type]
    if x.base[0] == "@":
        f.places[x.result] = _table_element(f, x)
        return
    place = f.places.get(x.base)
    if isinstance(place, OnChipPlace):
        f.places[x.result] = OnChipPlace(place.variable, _add(f, "i32", place.offset, _scaled(f, "i32", x, size)))
        return
    f.values[x.result] = _add(f, "i64", f.values[x.base], _scaled(f, "i64", x, size))


def _add(f: SpirvBody, ty: str, base: int, offset: int) -> int:
    if offset == f.module.number(0, ty):
        return base
    return offset if base == f.module.number(0, ty) else f.op(Opcode.IAdd, ty, base, offset)


def _scaled(f: SpirvBody, ty: str, x: ElementAddress, size: int) -> int:
    """The bytes from the base to the element, as an integer of a type."""
    if x.offset[0] != "%":
        return f.module.number(int(x.offset) * size, ty)
    index = f.values[x.offset]
    if x.index_type != ty:
        index = f.op(Opcode.UConvert if BITS[ty] < BITS[x.index_type] else Opcode.SConvert, ty, index)
    return index if size == 1 else f.op(Opcode.IMul, ty, index, f.module.number(size, ty))


def _table_element(f: SpirvBody, x: ElementAddress) -> TablePlace:
    table = f.text.tables[x.base[1:]]
    m = f.module
    known = f.places.get(x.base)
    if not isinstance(known, SlotPlace):
        ty = m.array(table.type, m.number(len(table.values)))
        content = m.composite(ty, [m.constant(table.type, v) for v in table.values])
        known = f.places[x.base] = SlotPlace(table.type, f.new_variable(ty, content))
    index = f.operand(x.index_type, x.offset)
    return TablePlace(f.emit(Opcode.AccessChain, m.pointer(StorageClass.Function, m.type(table.type)), known.variable, index))


def pointer(f: SpirvBody, ty: str, address: str) -> int:
    """A pointer to a value of a type in the device's memory."""
    return f.emit(Opcode.ConvertUToPtr, f.module.in_memory(ty), f.values[address])


# -- loads
def load(f: SpirvBody, x: Load) -> None:
    """A plain load."""
    if x.many > 1:
        f.vectors[x.result] = _load_vector(f, x)
        return
    place = f.places.get(x.address)
    match place:
        case SlotPlace(variable=variable):
            found = f.op(Opcode.Load, x.type, variable)
        case OnChipPlace():
            found = _load_on_chip(f, x.type, place)
        case TablePlace():
            found = f.op(Opcode.Load, x.type, place.pointer)
        case None if x.align < SIZES[x.type]:
            found = _load_in_parts(f, x)
        case None:
            found = f.op(Opcode.Load, x.type, pointer(f, x.type, x.address), ALIGNED, x.align)
    f.values[x.result] = found


def word_on_chip(f: SpirvBody, place: OnChipPlace, further: int = 0, ty: str = "i32") -> int:
    """A pointer to the 4-byte word in which a place is, or to a later one, as the words of its variable are; ``ty``: to one of 8 bytes.

    Raises:
        Untranslated: the variable has words of the other size.
    """
    m, what = f.module, f.text.variables[place.variable]
    f.on_chip.add(what.name)
    if (SIZES[ty] == 8) != what.wide:
        raise Untranslated
    size = SIZES[ty]
    words = m.specialised(TAPES_CONSTANT, 1) if what.dynamic else m.number(max(1, -(-what.size // size)))
    storage = StorageClass.Private if what.dynamic else StorageClass.Workgroup
    variable = f.named(m.variable(("on chip", what.name), storage, m.array(ty, words)))
    at = f.op(Opcode.ShiftRightLogical, "i32", place.offset, m.number(size.bit_length() - 1))
    if further:
        at = f.op(Opcode.IAdd, "i32", at, m.number(further))
    return f.emit(Opcode.AccessChain, m.pointer(storage, m.type(ty)), variable, at)


def _load_on_chip(f: SpirvBody, ty: str, place: OnChipPlace) -> int:
    if SIZES[ty] == 8 and f.text.variables[place.variable].wide:
        whole = f.op(Opcode.Load, "i64", word_on_chip(f, place, 0, "i64"))
        return whole if ty == "i64" else f.op(Opcode.Bitcast, ty, whole)
    word = f.op(Opcode.Load, "i32", word_on_chip(f, place))
    if SIZES[ty] == 8:
        high = f.op(Opcode.Load, "i32", word_on_chip(f, place, 1))
        return _joined(f, ty, word, high)
    if SIZES[ty] < 4:
        word = f.op(Opcode.ShiftRightLogical, "i32", word, _shift(f, place))
    return first_of(f, ty, word)


def _joined(f: SpirvBody, ty: str, low: int, high: int) -> int:
    """Two words as a value of 8 bytes."""
    return f.op(Opcode.Bitcast, ty, f.emit(Opcode.CompositeConstruct, f.module.vector("i32", 2), low, high))


def _shift(f: SpirvBody, place: OnChipPlace) -> int:
    """The first bit of a place in its word."""
    return f.op(
        Opcode.ShiftLeftLogical, "i32", f.op(Opcode.BitwiseAnd, "i32", place.offset, f.module.number(3)), f.module.number(3)
    )


# -- stores
def store(f: SpirvBody, x: Store) -> None:
    """A plain store."""
    if x.many > 1:
        _store_vector(f, x)
        return
    value, place = f.operand(x.type, x.value), f.places.get(x.address)
    match place:
        case SlotPlace(variable=variable):
            f.do(Opcode.Store, variable, value)
        case OnChipPlace():
            _store_on_chip(f, x.type, value, place)
        case _ if x.align < SIZES[x.type]:
            _store_in_parts(f, x, value)
        case _:
            f.do(Opcode.Store, pointer(f, x.type, x.address), value, ALIGNED, x.align)


def _store_on_chip(f: SpirvBody, ty: str, value: int, place: OnChipPlace) -> None:
    m, size = f.module, SIZES[ty]
    if size == 4:
        f.do(Opcode.Store, word_on_chip(f, place), word_of(f, ty, [value]))
    elif size == 8 and f.text.variables[place.variable].wide:
        whole = value if ty == "i64" else f.op(Opcode.Bitcast, "i64", value)
        f.do(Opcode.Store, word_on_chip(f, place, 0, "i64"), whole)
    elif size == 8:
        both = f.emit(Opcode.Bitcast, m.vector("i32", 2), value)
        for k in (0, 1):
            f.do(Opcode.Store, word_on_chip(f, place, k), f.op(Opcode.CompositeExtract, "i32", both, k))
    else:
        first, word = _shift(f, place), word_on_chip(f, place)
        hole = f.op(Opcode.Not, "i32", f.op(Opcode.ShiftLeftLogical, "i32", m.number((1 << 8 * size) - 1), first))
        bits = f.op(Opcode.ShiftLeftLogical, "i32", word_of(f, ty, [value]), first)
        scope, relaxed = m.number(MemoryScope.Workgroup), m.number(Semantics.Relaxed)
        f.op(Opcode.AtomicAnd, "i32", word, scope, relaxed, hole)
        f.op(Opcode.AtomicOr, "i32", word, scope, relaxed, bits)


# -- values that are not aligned, which Vulkan does not have: in parts of as many bytes as they are aligned to
def _load_in_parts(f: SpirvBody, x: Load) -> int:
    part, per = f"i{8 * x.align}", max(1, 4 // x.align)
    parts = [f.op(Opcode.Load, part, _further(f, x, k, part), ALIGNED, x.align) for k in range(SIZES[x.type] // x.align)]
    words = [word_of(f, part, parts[k : k + per]) for k in range(0, len(parts), per)]
    return first_of(f, x.type, words[0]) if len(words) == 1 else _joined(f, x.type, *words)


def _store_in_parts(f: SpirvBody, x: Store, value: int) -> None:
    part = f"i{8 * x.align}"
    if SIZES[x.type] == 8:
        both = f.emit(Opcode.Bitcast, f.module.vector("i32", 2), value)
        words = [f.op(Opcode.CompositeExtract, "i32", both, k) for k in (0, 1)]
    else:
        words = [word_of(f, x.type, [value])]
    parts = [p for word in words for p in values_of(f, part, word)]
    for k in range(SIZES[x.type] // x.align):
        f.do(Opcode.Store, _further(f, x, k, part), parts[k], ALIGNED, x.align)


# -- several values by one access
def _shape(x: Load | Store) -> tuple[str, int]:
    """What an access of several values is an access of: so many of a type. Devices have vectors of at most four, and none of narrow
    numbers: those go in words. A pair of bytes has two accesses.
    """
    size = SIZES[x.type] * x.many
    if SIZES[x.type] >= 4 and x.many <= 4:
        return x.type, x.many
    return ("i32", size // 4) if size % 4 == 0 else (x.type, 1)


def _load_vector(f: SpirvBody, x: Load) -> list[int]:
    ty, n = _shape(x)
    if n == 1 and ty == x.type:
        return [f.op(Opcode.Load, ty, _further(f, x, k, ty), ALIGNED, SIZES[ty]) for k in range(x.many)]
    whole = f.emit(Opcode.Load, _vector(f, ty, n), _vector_pointer(f, ty, n, x.address), ALIGNED, x.align)
    values = [f.op(Opcode.CompositeExtract, ty, whole, k) for k in range(n)] if n > 1 else [whole]
    return values if ty == x.type else [part for word in values for part in values_of(f, x.type, word)]


def _store_vector(f: SpirvBody, x: Store) -> None:
    (ty, n), values = _shape(x), f.vectors[x.value]
    if n == 1 and ty == x.type:
        for k, value in enumerate(values):
            f.do(Opcode.Store, _further(f, x, k, ty), value, ALIGNED, SIZES[ty])
        return
    if ty != x.type:
        per = 4 // SIZES[x.type]
        values = [word_of(f, x.type, values[k * per : (k + 1) * per]) for k in range(n)]
    whole = f.emit(Opcode.CompositeConstruct, _vector(f, ty, n), *values) if n > 1 else values[0]
    f.do(Opcode.Store, _vector_pointer(f, ty, n, x.address), whole, ALIGNED, x.align)


def _vector(f: SpirvBody, ty: str, n: int) -> int:
    return f.module.vector(ty, n) if n > 1 else f.module.type(ty)


def _vector_pointer(f: SpirvBody, ty: str, n: int, address: str) -> int:
    kind = f.module.pointer(StorageClass.PhysicalStorageBuffer, _vector(f, ty, n))
    return f.emit(Opcode.ConvertUToPtr, kind, f.values[address])


def _further(f: SpirvBody, x: Load | Store, k: int, ty: str) -> int:
    """A pointer to one of the values of a type that lie side by side."""
    at = _add(f, "i64", f.values[x.address], f.module.number(k * SIZES[ty], "i64"))
    return f.emit(Opcode.ConvertUToPtr, f.module.in_memory(ty), at)


def insert(f: SpirvBody, x: Insert) -> None:
    """Several values with another one in its place; those that are not there yet are not read."""
    values = list(f.vectors.get(x.vector, ())) or [0] * x.many
    values[x.place] = f.operand(x.type, x.value)
    f.vectors[x.result] = values


def extract(f: SpirvBody, x: Extract) -> None:
    """One of several values."""
    f.values[x.result] = f.vectors[x.vector][x.place]
