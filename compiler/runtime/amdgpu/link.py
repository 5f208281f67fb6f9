"""Links one object of LLVM's into a code object, the file that AMD's driver loads. No other linker is needed.

The file is a shared library of three segments, each on pages of its own: notes, symbols and constants; code; the dynamic section. The
driver finds kernels by the metadata in the notes, their descriptors (``<kernel>.kd``) by the full symbol table, and the size of the file by
its section headers, so all of them are kept. Our device code has no variables and calls nothing, so there is nothing else to lay out or to
leave to the driver.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from . import elf
from .elf import ALLOC, EXEC, WRITE, Elf, Symbol

PAGE = 4096
REL32, REL64, REL32_LO, REL32_HI = 4, 5, 10, 11
"""Types of relocations (``R_AMDGPU_*``): addresses relative to the place, or one half of them."""
LISTING = ".qdrun.listing"
"""The section of the assembly text, which no loader reads."""


class LinkError(ValueError):
    """The object has something that a code object of ours does not have."""


@dataclass(slots=True)
class _OutputSection:
    """A section of the file that is being written."""

    name: str
    type: int
    flags: int
    data: bytearray
    align: int
    entry_bytes: int = 0
    link: _OutputSection | None = None
    info: int = 0
    offset: int = 0
    address: int = 0


@dataclass(slots=True)
class _Strings:
    """A string table."""

    data: bytearray = field(default_factory=lambda: bytearray(1))

    def add(self, text: str) -> int:
        """Where a string begins."""
        self.data += text.encode() + b"\0"
        return len(self.data) - len(text.encode()) - 1


def link(data: bytes, listing: str = "") -> bytes:
    """The code object of an object.

    Args:
        data: the object.
        listing: its assembly text, to be kept in the file.

    Raises:
        LinkError: names what the linker does not know.
        ValueError: it is no object of AMD's GPUs.
    """
    source = elf.read_elf(data)
    if source.type != elf.RELOCATABLE:
        raise LinkError("no object file")
    parts = _parts_of(source)
    exported = [s for s in source.symbols if _is_exported(s) and s.section in parts]
    names = _Strings()
    dynsym = _OutputSection(
        ".dynsym", elf.DYNSYM, ALLOC, bytearray(elf.SYMBOL_BYTES * (1 + len(exported))), 8, elf.SYMBOL_BYTES, info=1
    )
    hashes = _OutputSection(".hash", elf.HASH, ALLOC, _hash_table(exported), 4, 4, dynsym)
    dynstr = _OutputSection(".dynstr", elf.STRTAB, ALLOC, names.data, 1)
    offsets = [names.add(s.name) for s in exported]
    dynsym.link = dynstr
    dynamic = _OutputSection(".dynamic", elf.DYNAMIC, ALLOC | WRITE, bytearray(16 * 6), 8, 16, dynstr)
    notes = [p for p in parts.values() if p.type == elf.NOTE]
    fixed = [p for p in parts.values() if p.type != elf.NOTE and not p.flags & EXEC]
    code = [p for p in parts.values() if p.flags & EXEC]
    segments = [(4, [*notes, dynsym, hashes, dynstr, *fixed]), (5, code), (6, [dynamic])]
    segments = [(rights, members) for rights, members in segments if members]
    headers = 4 + len(segments)
    end = _lay_out([members for _, members in segments], elf.HEADER_BYTES + headers * elf.PROGRAM_BYTES)
    _relocate(source, parts)
    loaded = [p for _, members in segments for p in members]
    where = {id(p): k for k, p in enumerate(loaded, 1)}
    for k, (s, at) in enumerate(zip(exported, offsets), 1):
        part = parts[s.section]
        row = (at, s.info, s.other, where[id(part)], part.address + s.value, s.size)
        struct.pack_into(elf.SYMBOL, dynsym.data, k * elf.SYMBOL_BYTES, *row)
    facts = [
        (6, dynsym.address),
        (11, elf.SYMBOL_BYTES),
        (5, dynstr.address),
        (10, len(dynstr.data)),
        (4, hashes.address),
        (0, 0),
    ]
    dynamic.data[:] = b"".join(struct.pack("<QQ", *fact) for fact in facts)
    rest = _symbol_table(source, parts, where, exported)
    if listing:
        rest.append(_OutputSection(LISTING, elf.PROGBITS, 0, bytearray(listing.encode()), 1))
    return _file(source, segments, loaded, rest, dynamic, notes, end)


def _is_exported(s: Symbol) -> bool:
    return not s.is_local and s.visibility in (elf.DEFAULT, elf.PROTECTED) and s.section != 0


def _parts_of(source: Elf) -> dict[int, _OutputSection]:
    """The sections that are loaded, by their numbers in the object."""
    out = {}
    for k, s in enumerate(source.sections):
        if not s.flags & ALLOC or not s.size:
            continue
        if s.flags & WRITE or s.type not in (elf.PROGBITS, elf.NOTE):
            raise LinkError(f"the section {s.name}, which device code does not have")
        out[k] = _OutputSection(s.name, s.type, s.flags & (ALLOC | EXEC), bytearray(s.data), s.align)
    return out


def _up(n: int, to: int) -> int:
    return -(-n // max(to, 1)) * max(to, 1)


def _lay_out(segments: list[list[_OutputSection]], first: int) -> int:
    """Give every part its offset in the file, and its address: a page further in each segment. Returns the end of the last one."""
    end = first
    for k, members in enumerate(segments):
        for part in members:
            part.offset = end = _up(end, part.align)
            part.address = end + k * PAGE
            end += len(part.data)
    return end


def _relocate(source: Elf, parts: dict[int, _OutputSection]) -> None:
    """Write the addresses that the object leaves open."""
    for r in source.relocations():
        if r.section not in parts:
            continue
        symbol, part = source.symbols[r.symbol], parts[r.section]
        if symbol.section not in parts:
            raise LinkError(f"the symbol `{symbol.name}`, which is not defined")
        distance = parts[symbol.section].address + symbol.value + r.addend - part.address - r.offset
        if r.type == REL64:
            struct.pack_into("<q", part.data, r.offset, distance)
        elif r.type in (REL32, REL32_LO, REL32_HI):
            half = distance >> 32 if r.type == REL32_HI else distance
            struct.pack_into("<I", part.data, r.offset, half & 0xFFFFFFFF)
        else:
            raise LinkError(f"a relocation of type {r.type} against `{symbol.name}`")


def _hash_table(exported: list[Symbol]) -> bytearray:
    """The table by which loaders look symbols up, and count them."""
    buckets = max(1, len(exported))
    first, following = [0] * buckets, [0] * (1 + len(exported))
    for k, s in enumerate(exported, 1):
        bucket = _hash(s.name) % buckets
        following[k], first[bucket] = first[bucket], k
    words = [buckets, len(following), *first, *following]
    return bytearray(struct.pack(f"<{len(words)}I", *words))


def _hash(name: str) -> int:
    """The ELF standard's."""
    h = 0
    for byte in name.encode():
        h = (h << 4) + byte
        high = h & 0xF0000000
        h = (h ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return h


def _symbol_table(
    source: Elf, parts: dict[int, _OutputSection], where: dict[int, int], exported: list[Symbol]
) -> list[_OutputSection]:
    """The full symbol table and its strings: local symbols first, then those that others see."""
    names = _Strings()
    inner = [s for s in source.symbols if s.section in parts and s.name and s.type != elf.SECTION and s not in exported]
    table = _OutputSection(".symtab", elf.SYMTAB, 0, bytearray(elf.SYMBOL_BYTES), 8, elf.SYMBOL_BYTES, info=1 + len(inner))
    for s in [*inner, *exported]:
        part = parts[s.section]
        info = s.type if s in inner else s.info
        row = (names.add(s.name), info, s.other, where[id(part)], part.address + s.value, s.size)
        table.data += struct.pack(elf.SYMBOL, *row)
    table.link = _OutputSection(".strtab", elf.STRTAB, 0, names.data, 1)
    return [table, table.link]


def _file(
    source: Elf,
    segments: list[tuple[int, list[_OutputSection]]],
    loaded: list[_OutputSection],
    rest: list[_OutputSection],
    dynamic: _OutputSection,
    notes: list[_OutputSection],
    end: int,
) -> bytes:
    """The bytes: header, program headers, sections, section headers."""
    names = _Strings()
    rest.append(_OutputSection(".shstrtab", elf.STRTAB, 0, names.data, 1))
    every = [*loaded, *rest]
    titles = [names.add(p.name) for p in every]
    for part in rest:
        part.offset = _up(end, part.align)
        end = part.offset + len(part.data)
    number = {id(p): k for k, p in enumerate(every, 1)}
    sections = _up(end, 8)
    out = bytearray(sections + elf.SECTION_BYTES * (1 + len(every)))
    programs = _program_headers(segments, dynamic, notes)
    head = (source.ident, elf.SHARED, elf.MACHINE, 1, 0, elf.HEADER_BYTES, sections, source.flags, elf.HEADER_BYTES)
    sizes = (elf.PROGRAM_BYTES, len(programs), elf.SECTION_BYTES, 1 + len(every), len(every))
    struct.pack_into(elf.HEADER, out, 0, *head, *sizes)
    for k, row in enumerate(programs):
        struct.pack_into(elf.PROGRAM_HEADER, out, elf.HEADER_BYTES + k * elf.PROGRAM_BYTES, *row)
    for k, (part, title) in enumerate(zip(every, titles), 1):
        out[part.offset : part.offset + len(part.data)] = part.data
        linked = number[id(part.link)] if part.link is not None else 0
        row = (
            title,
            part.type,
            part.flags,
            part.address,
            part.offset,
            len(part.data),
            linked,
            part.info,
            part.align,
            part.entry_bytes,
        )
        struct.pack_into(elf.SECTION_HEADER, out, sections + k * elf.SECTION_BYTES, *row)
    return bytes(out)


def _program_headers(
    segments: list[tuple[int, list[_OutputSection]]], dynamic: _OutputSection, notes: list[_OutputSection]
) -> list[tuple[int, ...]]:
    """What the loader maps (``PT_LOAD``), and where it finds the rest. The first segment begins with the file's header."""
    count = len(segments) + 4 - (not notes)
    size = elf.PROGRAM_BYTES * count
    rows: list[tuple[int, ...]] = [(6, 4, elf.HEADER_BYTES, elf.HEADER_BYTES, elf.HEADER_BYTES, size, size, 8)]  # PT_PHDR
    for k, (rights, members) in enumerate(segments):
        begin, last = (0, 0) if k == 0 else (members[0].offset, members[0].address), members[-1]
        size = last.offset + len(last.data) - begin[0]
        rows.append((1, rights, begin[0], begin[1], begin[1], size, size, PAGE))
    size = len(dynamic.data)
    rows.append((2, 6, dynamic.offset, dynamic.address, dynamic.address, size, size, 8))
    rows.append((0x6474E551, 6, 0, 0, 0, 0, 0, 0))  # PT_GNU_STACK: not executable
    if notes:
        first, last = notes[0], notes[-1]
        size = last.offset + len(last.data) - first.offset
        rows.append((4, 4, first.offset, first.address, first.address, size, size, 4))
    return rows
