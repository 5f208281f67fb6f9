"""Writes the instructions that read and write memory."""

from __future__ import annotations

import re

from ..faults import UnknownInstruction
from ..listing import Instruction
from ..values import accesses, moves
from ..values.accesses import CHANGES
from .operands import lane_register
from .writer import Writer

_ACCESS = re.compile(r"^(global|flat|scratch|buffer)_(load|store|atomic)_(\w+)$")
_WORDS = {"dword": 1, "dwordx2": 2, "dwordx3": 3, "dwordx4": 4, "b32": 1, "b64": 2, "b96": 3, "b128": 4}
_LOADS = {
    "ubyte": ("u", "b"), "sbyte": ("i", "c"), "ushort": ("u", "h"), "sshort": ("i", "j"), "u8": ("u", "b"), "i8": ("i", "c"),
    "u16": ("u", "h"), "i16": ("i", "j"),
}  # fmt: skip
"""How a load of less than 32 bits fills a register: the register's type, and the type in memory."""
_HALF_LOADS = {
    "short_d16": ("h", "h", 0), "short_d16_hi": ("h", "h", 1), "ubyte_d16": ("h", "b", 0), "ubyte_d16_hi": ("h", "b", 1),
    "sbyte_d16": ("j", "c", 0), "sbyte_d16_hi": ("j", "c", 1), "d16_b16": ("h", "h", 0), "d16_hi_b16": ("h", "h", 1),
    "d16_u8": ("h", "b", 0), "d16_hi_u8": ("h", "b", 1), "d16_i8": ("j", "c", 0), "d16_hi_i8": ("j", "c", 1),
    "u16_d16": ("h", "h", 0), "u16_d16_hi": ("h", "h", 1), "u8_d16": ("h", "b", 0), "u8_d16_hi": ("h", "b", 1),
    "i8_d16": ("j", "c", 0), "i8_d16_hi": ("j", "c", 1),
}  # fmt: skip
_STORES = {
    "byte": ("b", 0), "b8": ("b", 0), "short": ("h", 0), "b16": ("h", 0), "byte_d16_hi": ("b", 1), "short_d16_hi": ("h", 1),
    "d16_hi_b8": ("b", 1), "d16_hi_b16": ("h", 1), "b8_d16_hi": ("b", 1), "b16_d16_hi": ("h", 1),
}  # fmt: skip
_SIZES = {"b": 1, "c": 1, "h": 2, "j": 2}
_ATOMIC = re.compile(r"^(?:(add|min|max)(?:_num)?_f(32|64)|cmpswap(_x2|_b32|_b64)?|([a-z]+?)(_x2)?(?:_([iub])(32|64))?)$")
_DS = re.compile(
    r"^(read|load|write|store)(2|_2addr)?(st64|_stride64)?_(b32|b64|b96|b128|u8|i8|u16|i16|b8|b16)(_d16(?:_hi)?)?$"
)
_SCALAR = re.compile(r"^s_load_(?:dword(?:x(\d+))?|b(\d+))$")
_DS_ATOMIC = re.compile(r"^(?:(add|sub|min|max|and|or|xor|inc|dec|wrxchg|storexchg|cmpst|cmpstore)(_rtn)?_([iubf])(32|64))$")


def write_memory(x: Writer, i: Instruction) -> bool:
    """Write an instruction; False if it is not known."""
    if found := _SCALAR.match(i.mnemonic):
        _scalar_load(x, i, int(found[1] or 1) if found[2] is None else int(found[2]) // 32)
        return True
    if found := _ACCESS.match(i.mnemonic):
        space, what, form = found.groups()
        if what == "atomic":
            return space in ("global", "flat") and _atomic(x, i, form)
        return _access(x, i, space, what, form)
    if i.mnemonic.startswith("ds_"):
        return _on_chip(x, i, i.mnemonic[3:])
    return False


def _number(i: Instruction, modifier: str) -> int:
    return int(i.modifiers.get(modifier, "0"), 0)


def _scalar_load(x: Writer, i: Instruction, count: int) -> None:
    operands = [*i.operands, "0"]
    offset = x.word(operands[2], "i" if operands[2].startswith("-") else "u")
    first = x.shared_number(operands[0])
    address = f"{x.word(operands[1], 'q')} + {offset} + {_number(i, 'offset')}"
    x.put(f"S[{first}:{first + count}] = w.memory.words({address}, {count})")


def _addresses(x: Writer, i: Instruction, space: str, at: int, at_base: int) -> tuple[str, str, str]:
    """The memory of an access, the addresses of all lanes, and what is added to them.

    Args:
        x: the block.
        i: the instruction.
        space: "global", "flat" or "scratch".
        at: the place of the operand with the lanes' addresses or offsets.
        at_base: of the one that all lanes share; it may be missing.
    """
    more = str(_number(i, "offset"))
    text, base = i.operands[at], i.operands[at_base] if len(i.operands) > at_base else "off"
    if space == "scratch":
        return "w.scratch", _own(x, text, base), more
    if base in ("off", "null") or space == "flat":
        return "w.memory", x.lanes(text, "q"), more
    return "w.memory", x.call(accesses.from_base, x.lanes(text, "u"), x.word(base, "q")), more


def _own(x: Writer, text: str, base: str) -> str:
    offset = x.lanes(text, "u") if lane_register(text) else "0"
    return x.call(accesses.own_addresses, "w", f"{offset} + {x.word(base)}", "w.scratch_bytes")


def _buffer(x: Writer, i: Instruction) -> tuple[str, str, str]:
    """A buffer instruction, as it is used for the memory of each lane's own."""
    offset = x.lanes(i.operands[1], "u") if "offen" in i.modifiers else "0"
    return (
        "w.scratch",
        x.call(accesses.own_addresses, "w", f"{offset} + {x.word(i.operands[3])}", "w.scratch_bytes"),
        str(_number(i, "offset")),
    )


def _parts(x: Writer, text: str, words: int, skip: int = 0) -> list[str]:
    """The registers of so many words: by two, where that is possible."""
    found, k = [], 0
    while k < words:
        kind, size = ("q", 2) if words - k >= 2 else ("u", 1)
        found.append(f"({x.lanes(text, kind, more=k)}, {skip + 4 * k}, {kind!r})")
        k += size
    return found


def _access(x: Writer, i: Instruction, space: str, what: str, form: str) -> bool:
    is_load = what == "load"
    data = i.operands[0 if is_load or space == "buffer" else 1]
    if form in _WORDS:
        nbytes, parts = 4 * _WORDS[form], _parts(x, data, _WORDS[form])
    elif is_load and form in _LOADS:
        register, kind = _LOADS[form]
        nbytes, parts = _SIZES[kind], [f"({x.lanes(data, register)}, 0, {kind!r})"]
    elif is_load and form in _HALF_LOADS:
        register, kind, half = _HALF_LOADS[form]
        nbytes, parts = _SIZES[kind], [f"({x.lanes(data, register, half)}, 0, {kind!r})"]
    elif not is_load and form in _STORES:
        kind, half = _STORES[form]
        nbytes, parts = _SIZES[kind], [f"({x.lanes(data, 'h', half)}, 0, {kind!r})"]
    else:
        return False
    if space == "buffer":
        memory, addresses, more = _buffer(x, i)
    else:
        memory, addresses, more = _addresses(x, i, space, 1 if is_load else 0, 2)
    _call(x, is_load, memory, addresses, more, nbytes, parts)
    return True


def _call(x: Writer, is_load: bool, memory: str, addresses: str, more: str, nbytes: int, parts: list[str]) -> None:
    function = accesses.load if is_load else accesses.store
    x.put(x.call(function, "w", memory, addresses, more, str(nbytes), f"[{', '.join(parts)}]"))


def _atomic(x: Writer, i: Instruction, form: str) -> bool:
    found = _ATOMIC.match(form)
    if found is None:
        return False
    returns = "sc0" in i.modifiers or "glc" in i.modifiers or i.modifiers.get("th", "").endswith("RETURN")
    place = 1 if returns else 0
    data = i.operands[place + 1]
    space = "flat" if i.mnemonic.startswith("flat") else "global"
    memory, addresses, more = _addresses(x, i, space, place, place + 2)
    out = i.operands[0] if returns else ""
    if form.startswith("cmpswap"):
        wide = form.endswith(("x2", "64"))
        kind = "q" if wide else "u"
        new, expected = x.lanes(data, kind), x.lanes(data, kind, more=2 if wide else 1)
        target = x.lanes(out, kind) if out else "None"
        x.put(x.call(accesses.compare_exchange, "w", memory, addresses, more, repr(kind), new, expected, target))
        return True
    if found[1]:
        name, wide = "f" + found[1], found[2] == "64"
    else:
        name, wide = found[4], bool(found[5]) or found[7] == "64"
        if name in ("min", "max"):
            name = ("s" if found[6] == "i" else "u") + name
        name = {"swap": "swap"}.get(name, name)
    return _change(x, name, wide, memory, addresses, more, data, out)


def _change(x: Writer, name: str, wide: bool, memory: str, addresses: str, more: str, data: str, out: str) -> bool:
    if name not in CHANGES:
        return False
    kinds, function = CHANGES[name]
    kind = kinds[wide]
    target = x.lanes(out, kind) if out else "None"
    x.put(x.call(accesses.change, "w", memory, addresses, more, repr(kind), x.names.of(function), x.lanes(data, kind), target))
    return True


# ---- on-chip memory
def _on_chip(x: Writer, i: Instruction, form: str) -> bool:
    if form in ("bpermute_b32", "permute_b32"):
        function = moves.fetched if form.startswith("b") else moves.pushed
        args = [x.lanes(i.operands[1], "u"), x.operand(i.operands[2], "u", array=True), str(_number(i, "offset")), str(x.chip)]
        x.result(i.operands[0], "u", x.call(function, "w", *args))
        return True
    if form == "swizzle_b32":
        pattern = i.modifiers.get("offset", "")
        if not pattern.startswith(("0x", "0")) and not pattern.isdigit():
            raise UnknownInstruction(i.text)
        x.result(i.operands[0], "u", x.call(moves.swizzled, "w", x.lanes(i.operands[1], "u"), str(int(pattern, 0))))
        return True
    if found := _DS.match(form):
        return _on_chip_access(x, i, *found.groups())
    found = _DS_ATOMIC.match(form)
    return found is not None and _on_chip_atomic(x, i, found[1], bool(found[2]), found[3], found[4] == "64")


def _on_chip_access(
    x: Writer, i: Instruction, what: str, two: str | None, far: str | None, form: str, half: str | None
) -> bool:
    is_load = what in ("read", "load")
    address = x.lanes(i.operands[1 if is_load else 0], "u")
    size = {"b32": 4, "b64": 8, "b96": 12, "b128": 16}.get(form, int(form[1:]) // 8)
    if size < 4:
        kind = {"u8": "b", "i8": "c", "b8": "b", "u16": "h", "i16": "j", "b16": "h"}[form]
        high = int((half or "").endswith("hi"))
        if is_load:
            register = ("h" if kind in "bh" else "j") if half else ("u" if kind in "bh" else "i")
            parts = [f"({x.lanes(i.operands[0], register, high)}, 0, {kind!r})"]
        else:
            parts = [f"({x.lanes(i.operands[1], 'h', high)}, 0, {kind!r})"]
        _call(x, is_load, "w.lds", address, str(_number(i, "offset")), size, parts)
        return True
    places = [_number(i, "offset")]
    if two:
        places = [_number(i, m) * size * (64 if far else 1) for m in ("offset0", "offset1")]
    words = size // 4
    address = x.let(f"array({address})") if is_load and two else address
    for k, more in enumerate(places):
        if is_load:
            parts = _moved_parts(x, i.operands[0], words, k * words)
        else:
            parts = _parts(x, i.operands[1 + k], words)
        _call(x, is_load, "w.lds", address, str(more), size, parts)
    return True


def _moved_parts(x: Writer, text: str, words: int, first: int) -> list[str]:
    if words == 1:
        return [f"({x.lanes(text, 'u', more=first)}, 0, 'u')"]
    return [f"({x.lanes(text, 'q', more=first + k)}, {4 * k}, 'q')" for k in range(0, words - 1, 2)] + (
        [f"({x.lanes(text, 'u', more=first + words - 1)}, {4 * words - 4}, 'u')"] if words % 2 else []
    )


def _on_chip_atomic(x: Writer, i: Instruction, what: str, returns: bool, letter: str, wide: bool) -> bool:
    place = 1 if returns else 0
    address, more = x.lanes(i.operands[place], "u"), str(_number(i, "offset"))
    kind, out = "q" if wide else "u", i.operands[0] if returns else ""
    if what.startswith("cmpst"):
        first, second = (x.lanes(t, kind) for t in i.operands[place + 1 : place + 3])
        expected, new = (first, second) if what == "cmpst" else (second, first)  # GFX11 has them the other way round
        target = x.lanes(out, kind) if out else "None"
        x.put(x.call(accesses.compare_exchange, "w", "w.lds", address, more, repr(kind), new, expected, target))
        return True
    name = {"wrxchg": "swap", "storexchg": "swap"}.get(what, what)
    if letter == "f":
        name = f"f{name}"
    elif name in ("min", "max"):
        name = ("s" if letter == "i" else "u") + name
    return _change(x, name, wide, "w.lds", address, more, i.operands[place + 1], out)
