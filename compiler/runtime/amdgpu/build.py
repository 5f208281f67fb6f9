"""LLVM text -> object -> code object, kept on disk under the key of everything that decides it. No part of ROCm is needed.

Each code object is read back and checked before it is kept or loaded: LLVM deletes a kernel that a chip cannot run, without a word.
"""

from __future__ import annotations

import re

from ...codegen.amdgpu.amdgcn_table import TABLE
from ...codegen.amdgpu.chips import chip_of
from ...codegen.amdgpu.hardware import TRIPLE
from ...errors import QdrunRuntimeError
from .. import jit
from ..cache import kept, key_of
from ..gpu.compiling import Generator, generate
from ..gpu.driver import CodeImage, Texts
from .code_object import CodeObject, Malformed, check, read_code
from .link import LinkError, link

_KERNEL = re.compile(r"^define amdgpu_kernel void @(\w+)\(", re.M)
_BODY = re.compile(r"^define (amdgpu_kernel )?[^@\n]*@(\w+)\((.*?)^\}", re.M | re.S)
_ON_CHIP = re.compile(r"^@(\w+) = internal addrspace\(3\) global \[(\d+) x i(\d+)\]", re.M)
_GLOBAL = re.compile(r"@(\w+)")
_TAIL = """
!llvm.module.flags = !{!1000000}
!1000000 = !{i32 1, !"amdhsa_code_object_version", i32 500}
"""
"""Code object version 5, the first with the hidden arguments that device code reads; older versions of ROCm do not read 6."""


def _generate(text: str, name: str, chip: str, assembly: bool) -> bytes:
    TABLE.check(text, name)
    check_on_chip(text, name, chip)
    by = Generator(TRIPLE, chip, chip_of(chip).features, "AMD's GPUs", pic=True, whole=True)
    return generate(text, name, by, _TAIL, assembly=assembly)


def on_chip_bytes(text: str) -> dict[str, int]:
    """The bytes of on-chip memory that each kernel of a device module declares, for itself and for the functions that it may call."""
    sizes = {name: -(-int(count) * int(bits) // 8 // 16) * 16 for name, count, bits in _ON_CHIP.findall(text)}
    used = {(bool(kernel), name): set(_GLOBAL.findall(body)) & sizes.keys() for kernel, name, body in _BODY.findall(text)}
    of_functions = set[str]().union(*(names for (kernel, _), names in used.items() if not kernel))
    return {name: sum(sizes[x] for x in names | of_functions) for (kernel, name), names in used.items() if kernel}


def check_on_chip(text: str, name: str, chip: str) -> None:
    """Refuse a module whose kernels need more on-chip memory than a block has: LLVM ends the process.

    Raises:
        QdrunRuntimeError: names the kernel and both numbers.
    """
    most = chip_of(chip).lds_bytes
    needed = max(on_chip_bytes(text).values(), default=0)
    if needed > most:
        raise QdrunRuntimeError(
            f"a loop of kernel `{name}` needs {needed:,} bytes of on-chip memory for a block; {chip} has {most:,}\n"
            "  do: declare smaller simt.block.SharedArray, or give the loop a smaller block_dim"
        )


def compile_assembly(text: str, name: str, chip: str) -> str:
    """LLVM's assembly text of a device module.

    Args:
        text: LLVM text of the module.
        name: the kernel, for messages.
        chip: LLVM's name of it.

    Raises:
        QdrunRuntimeError: code is not made for the chip, or LLVM refuses the text; names the kernel.
    """
    return _generate(text, name, chip, assembly=True).decode()


def compile_object(text: str, name: str, chip: str, *, listing: bool = False) -> bytes:
    """The code object of a device module, linked and checked.

    Args:
        text: LLVM text of the module.
        name: the kernel, for messages.
        chip: LLVM's name of it.
        listing: keep the assembly text in the file.

    Raises:
        QdrunRuntimeError: code is not made for the chip, LLVM refuses the text, or makes something else of it; names the kernel.
    """
    made = _generate(text, name, chip, assembly=False)
    try:
        image = link(made, compile_assembly(text, name, chip) if listing else "")
        check(read_code(image), chip, _KERNEL.findall(text))
    except (LinkError, Malformed) as e:
        raise QdrunRuntimeError(
            f"the code object of kernel `{name}` for {chip} is wrong: {e}\n"
            "  do: this is a bug in qdrun or in LLVM; report it with the kernel's source and the version of llvmlite"
        ) from e
    return image


def build(texts: Texts, chip: str, keep: bool = True, *, listing: bool = False) -> CodeImage:
    """The code object of a kernel's device functions.

    Args:
        texts: of the kernel.
        chip: LLVM's name of it.
        keep: look on the disk, and keep what was made there.
        listing: keep the assembly text in the file.

    Raises:
        QdrunRuntimeError: see ``compile_object``.
    """
    key = key_of("code object 1", texts.device, chip, str(listing), jit.versions())
    header = {"name": texts.name, "chip": chip, "versions": jit.versions()}
    image, known = kept(key, lambda: compile_object(texts.device, texts.name, chip, listing=listing), header, keep)
    return CodeImage(image, key, known)


def code_of(image: bytes, name: str) -> CodeObject:
    """The code object that a driver is to load.

    Raises:
        QdrunRuntimeError: it is damaged; names the kernel.
    """
    try:
        return read_code(image)
    except Malformed as e:
        raise QdrunRuntimeError(f"the code of kernel `{name}` cannot be loaded: {e}\n  do: clear the kernel cache") from e
