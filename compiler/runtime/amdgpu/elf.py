"""ELF files of AMD's GPUs, as far as LLVM's objects and our code objects have them: sections, symbols, relocations, notes.

64 bits, low end first. Names and numbers are those of the ELF standard and of LLVM's "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MACHINE = 224  # EM_AMDGPU
OSABI = 64  # ELFOSABI_AMDGPU_HSA
RELOCATABLE, SHARED = 1, 3  # e_type

PROGBITS, SYMTAB, STRTAB, RELA, HASH, DYNAMIC, NOTE, NOBITS, DYNSYM = 1, 2, 3, 4, 5, 6, 7, 8, 11  # types of sections
WRITE, ALLOC, EXEC = 1, 2, 4  # flags of sections
FUNC, SECTION = 2, 3  # types of symbols
DEFAULT, PROTECTED = 0, 3  # visibilities that other files may use
ABIVERSION = 8  # where its byte is

HEADER, SECTION_HEADER, PROGRAM_HEADER, SYMBOL = "<16sHHIQQQIHHHHHH", "<IIQQQQIIQQ", "<IIQQQQQQ", "<IBBHQQ"
HEADER_BYTES, SECTION_BYTES, PROGRAM_BYTES, SYMBOL_BYTES, RELA_BYTES = 64, 64, 56, 24, 24


@dataclass(frozen=True, slots=True)
class Section:
    """A section, with its bytes; a ``NOBITS`` section has none."""

    name: str
    type: int
    flags: int
    address: int
    size: int
    link: int
    info: int
    align: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol. ``section``: its number, 0 for one that is not defined; ``value``: an offset in it, or an address in a linked file."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def is_local(self) -> bool:
        """Whether only its own object may use it."""
        return self.info >> 4 == 0

    @property
    def type(self) -> int:
        """``FUNC``, ``SECTION`` or another."""
        return self.info & 15

    @property
    def visibility(self) -> int:
        """``DEFAULT``, ``PROTECTED``, or one that hides it from other files."""
        return self.other & 3


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place in a section that depends on a symbol's address."""

    section: int
    offset: int
    type: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Segment:
    """What a loader puts at an address: bytes, and zeros up to ``size``."""

    address: int
    data: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Elf:
    """A file. ``flags`` name the chip, ``ident`` is the first 16 bytes."""

    type: int
    flags: int
    ident: bytes
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    segments: tuple[Segment, ...]

    def section(self, name: str) -> Section | None:
        """The section that is called so."""
        return next((s for s in self.sections if s.name == name), None)

    def relocations(self) -> list[Relocation]:
        """Those of all sections."""
        out = []
        for s in self.sections:
            if s.type == RELA:
                for offset, info, addend in struct.iter_unpack("<QQq", s.data):
                    out.append(Relocation(s.info, offset, info & 0xFFFFFFFF, info >> 32, addend))
        return out


def text_at(table: bytes, offset: int) -> str:
    """A string of a string table."""
    return table[offset : table.index(b"\0", offset)].decode()


def read_elf(data: bytes) -> Elf:
    """Parse a file.

    Raises:
        ValueError: it is no ELF file of AMD's GPUs.
    """
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < HEADER_BYTES or data[7] != OSABI:
        raise ValueError("no ELF file of an AMD GPU")
    (ident, kind, machine, _, _, programs, headers, flags, _, _, n_programs, _, n_sections, names) = struct.unpack_from(
        HEADER, data
    )
    if machine != MACHINE:
        raise ValueError(f"an ELF file of machine {machine}")
    raw = [struct.unpack_from(SECTION_HEADER, data, headers + k * SECTION_BYTES) for k in range(n_sections)]
    table = data[raw[names][4] : raw[names][4] + raw[names][5]]
    sections = []
    for name, type_, flag, address, offset, size, link, info, align, _ in raw:
        bits = b"" if type_ == NOBITS else data[offset : offset + size]
        sections.append(Section(text_at(table, name), type_, flag, address, size, link, info, align, bits))
    segments = []
    for k in range(n_programs):
        what, _, offset, address, _, size, whole, _ = struct.unpack_from(PROGRAM_HEADER, data, programs + k * PROGRAM_BYTES)
        if what == 1:  # PT_LOAD
            segments.append(Segment(address, data[offset : offset + size], whole))
    return Elf(kind, flags, ident, tuple(sections), _symbols(sections), tuple(segments))


def _symbols(sections: list[Section]) -> tuple[Symbol, ...]:
    table = next((s for s in sections if s.type == SYMTAB), None)
    if table is None:
        return ()
    names = sections[table.link].data
    found = struct.iter_unpack(SYMBOL, table.data)
    return tuple(Symbol(text_at(names, n), info, other, section, value, size) for n, info, other, section, value, size in found)
