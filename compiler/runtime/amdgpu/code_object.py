"""Reads code objects: their kernels, with what the metadata and the kernel descriptors say of them, and checks that the two agree.

A *kernel descriptor* is the record of 64 bytes that the hardware's dispatcher reads. The *metadata* is what HIP reads: MessagePack in a
note.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...codegen.amdgpu.chips import CHIPS, WAVE
from .elf import ABIVERSION, SHARED, Elf, Segment, read_elf
from .link import LISTING

ABI = 3
"""The ELF file's version of the interface: code object version 5."""
WAVE32 = 1 << 10
"""The property of a kernel descriptor: waves have 32 threads."""
DYNAMIC_STACK = 1 << 11
"""The property of a kernel descriptor: the compiler does not know how much stack a thread takes."""
HIDDEN = frozenset(
    f"hidden_{name}_{axis}" for name in ("block_count", "group_size", "remainder", "global_offset") for axis in "xyz"
) | {"hidden_grid_dims"}
"""What every driver fills in of the hidden arguments, whatever the kernel."""
_METADATA = 32  # NT_AMDGPU_METADATA
_TARGET = "amdgcn-amd-amdhsa--"


class Malformed(ValueError):
    """A code object that must not be loaded."""


@dataclass(frozen=True, slots=True)
class CodeKernel:
    """A kernel of a code object.

    Attributes:
        name: of the kernel.
        descriptor, entry: addresses of its descriptor and of its code in the loaded file.
        code_bytes: of its code.
        kernarg_bytes: of all arguments, words_bytes: of those that the launch gives, which come first.
        hidden: where the others are that the driver fills in, by what they are: ``hidden_block_count_x`` (4 bytes),
            ``hidden_group_size_x`` (2 bytes) and their like.
        lds_bytes: on-chip memory of a block, without what a launch asks for.
        scratch_bytes: memory of a thread beside its registers.
        vgprs: registers of a thread, with accumulation registers (agprs); sgprs: of a wave.
        spilled: registers that did not suffice, and went to memory.
        wave: threads of a wave.
        most_threads: of a block.
        rsrc1, rsrc2, rsrc3, properties: words of the descriptor.
    """

    name: str
    descriptor: int
    entry: int
    code_bytes: int
    kernarg_bytes: int
    words_bytes: int
    hidden: Mapping[str, int]
    lds_bytes: int
    scratch_bytes: int
    vgprs: int
    agprs: int
    sgprs: int
    spilled: int
    wave: int
    most_threads: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A code object.

    Attributes:
        chip: LLVM's name of the chip that it is made for.
        kernels: by name.
        segments: what a loader puts where.
        symbols: addresses by name.
        listing: the assembly text, if the file has it.
    """

    chip: str
    kernels: Mapping[str, CodeKernel]
    segments: tuple[Segment, ...]
    symbols: Mapping[str, int]
    listing: str


def read_code(image: bytes) -> CodeObject:
    """Read and check a code object.

    Raises:
        Malformed: it is none, or its parts disagree.
    """
    try:
        file = read_elf(image)
        facts = metadata_of(file)
    except (ValueError, struct.error, IndexError, KeyError) as e:
        raise Malformed(f"no code object: {e}") from e
    if file.type != SHARED or file.ident[ABIVERSION] != ABI:
        raise Malformed(f"a file of type {file.type} and interface {file.ident[ABIVERSION]} in place of {SHARED} and {ABI}")
    target = str(facts.get("amdhsa.target", ""))
    chip = target.removeprefix(_TARGET).partition(":")[0]
    if not target.startswith(_TARGET) or chip not in CHIPS:
        raise Malformed(f"made for {target!r}")
    symbols = {s.name: s.value for s in file.symbols if s.name}
    sizes = {s.name: s.size for s in file.symbols}
    listing = file.section(LISTING)
    kernels = {}
    for said in facts.get("amdhsa.kernels", []):
        name = said[".name"]
        if f"{name}.kd" not in symbols or name not in symbols or sizes[f"{name}.kd"] != 64:
            raise Malformed(f"kernel `{name}` has no descriptor or no code")
        kernels[name] = _kernel(said, _bytes_at(file, symbols[f"{name}.kd"], 64), symbols, sizes[name])
    return CodeObject(chip, kernels, file.segments, symbols, listing.data.decode() if listing else "")


def _bytes_at(file: Elf, address: int, size: int) -> bytes:
    for s in file.segments:
        if s.address <= address and address + size <= s.address + len(s.data):
            return s.data[address - s.address :][:size]
    raise Malformed(f"no bytes at address {address:#x}")


def _kernel(said: dict[str, Any], record: bytes, symbols: Mapping[str, int], code_bytes: int) -> CodeKernel:
    """A kernel, of which the metadata and the descriptor say the same."""
    name = said[".name"]
    lds, scratch, kernarg, _, entry = struct.unpack_from("<IIIIq", record)
    rsrc3, rsrc1, rsrc2, properties = struct.unpack_from("<IIIH", record, 44)
    hidden = {a[".value_kind"]: a[".offset"] for a in said[".args"] if a[".value_kind"].startswith("hidden_")}
    given = [a[".offset"] + a[".size"] for a in said[".args"] if not a[".value_kind"].startswith("hidden_")]
    at = symbols[f"{name}.kd"]
    found = CodeKernel(
        name,
        at,
        at + entry,
        code_bytes,
        kernarg,
        max(given, default=0),
        hidden,
        lds,
        scratch,
        said[".vgpr_count"],
        said.get(".agpr_count", 0),
        said[".sgpr_count"],
        said[".vgpr_spill_count"] + said[".sgpr_spill_count"],
        said[".wavefront_size"],
        said[".max_flat_workgroup_size"],
        rsrc1,
        rsrc2,
        rsrc3,
        properties,
    )
    told = (said[".group_segment_fixed_size"], said[".private_segment_fixed_size"], said[".kernarg_segment_size"])
    if told != (lds, scratch, kernarg):
        raise Malformed(f"kernel `{name}`: the metadata says {told} bytes, the descriptor {(lds, scratch, kernarg)}")
    if found.entry != symbols[name]:
        raise Malformed(f"kernel `{name}`: the descriptor's code is at {found.entry:#x}, the symbol's at {symbols[name]:#x}")
    return found


def check(code: CodeObject, chip: str, names: list[str]) -> None:
    """Refuse a code object that does not hold what was compiled.

    Args:
        code: as read.
        chip: that it was compiled for.
        names: of the kernels of the text.

    Raises:
        Malformed: says what is wrong.
    """
    if code.chip != chip:
        raise Malformed(f"made for {code.chip}, not for {chip}")
    if sorted(code.kernels) != sorted(names):
        raise Malformed(f"has the kernels {sorted(code.kernels)} in place of {sorted(names)}")
    limits = CHIPS[chip]
    for k in code.kernels.values():
        if k.wave != WAVE or k.properties & WAVE32:
            raise Malformed(f"kernel `{k.name}` is made for waves of 32 threads")
        if k.properties & DYNAMIC_STACK:
            raise Malformed(f"kernel `{k.name}` has a stack of unknown size")
        unknown = sorted(set(k.hidden) - HIDDEN)
        if unknown:
            raise Malformed(f"kernel `{k.name}` asks for {', '.join(unknown)}")
        if k.lds_bytes > limits.lds_bytes or k.most_threads > limits.most_threads or k.vgprs > limits.vgprs:
            raise Malformed(f"kernel `{k.name}` takes more than {chip} has: {k}")


# -- metadata


def metadata_of(file: Elf) -> dict[str, Any]:
    """The metadata of a file.

    Raises:
        ValueError: there is none.
    """
    for section in file.sections:
        if section.name == ".note":
            name_bytes, size, kind = struct.unpack_from("<III", section.data)
            begin = 12 + -(-name_bytes // 4) * 4
            if kind == _METADATA and section.data[12:18] == b"AMDGPU":
                found, _ = _unpacked(section.data[begin : begin + size], 0)
                if isinstance(found, dict):
                    return found
    raise ValueError("there is no metadata")


_FIXED = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
_LONG = {0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """The MessagePack value at an offset, and where it ends: maps, lists, strings, integers, truth values."""
    tag, at = data[at], at + 1
    if tag < 0x80 or tag >= 0xE0:
        return (tag if tag < 0x80 else tag - 256), at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if tag in _FIXED:
        form = ">" + _FIXED[tag]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if tag in _LONG:
        form = ">" + _LONG[tag]
        size, at = struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    else:
        size = tag & (31 if 0xA0 <= tag < 0xC0 else 15)
    if 0xA0 <= tag < 0xC0 or tag in (0xD9, 0xDA, 0xDB):
        return data[at : at + size].decode(), at + size
    if 0x80 <= tag < 0x90 or tag in (0xDE, 0xDF):
        pairs = {}
        for _ in range(size):
            key, at = _unpacked(data, at)
            pairs[key], at = _unpacked(data, at)
        return pairs, at
    if 0x90 <= tag < 0xA0 or tag in (0xDC, 0xDD):
        items = []
        for _ in range(size):
            item, at = _unpacked(data, at)
            items.append(item)
        return items, at
    raise ValueError(f"MessagePack of type {tag:#x}")
