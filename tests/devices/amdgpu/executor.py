"""Runs the code objects of AMD GPUs on the emulated device.

An image is what a driver would load, with LLVM's assembly text in a section that it would not. The segments are put into memory of this
process; the instructions are read from the text.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from qdrun.compiler.codegen.amdgpu.chips import chip_of
from qdrun.compiler.runtime.amdgpu.build import build, code_of
from qdrun.compiler.runtime.amdgpu.code_object import CodeKernel, CodeObject
from qdrun.compiler.runtime.gpu.driver import CodeImage, Texts

from ..processor.arena import Arena
from ..processor.machine import EmulatedMachine, emulated_machine
from ..processor.processor import block_order
from .code import Code
from .launch import Start, run_launch, user_registers
from .listing import read_assembly
from .memory import Region


@dataclass(frozen=True, slots=True, eq=False)
class AmdCode:
    """A kernel of a loaded code object. See ``processor.processor.DeviceCode``. ``executed``: counts its instructions."""

    kernel: CodeKernel
    code: Code
    segments: Region
    executed: Counter[str]

    def run(self, words: int, blocks: int, threads: int, shared: int) -> None:
        """Run all blocks of a launch.

        Raises:
            Diverged: the waves of a block did not come to the same barrier.
            BadAddress: an access outside of memory that is there.
            UnknownInstruction: an instruction is not known.
        """
        machine = emulated_machine()
        given = ctypes.string_at(words, self.kernel.words_bytes)
        self.run_on(given, blocks, threads, shared, lambda address: _region(machine, address))

    def run_on(self, words: bytes, blocks: int, threads: int, shared: int, find: Callable[[int], Region | None]) -> None:
        """The same, on memory that ``find`` gives: the region of an address, or None."""
        k = self.kernel
        start = Start(
            user_registers(k.properties),
            k.rsrc2 >> 1 & 31,
            (bool(k.rsrc2 >> 7 & 1), bool(k.rsrc2 >> 8 & 1), bool(k.rsrc2 >> 9 & 1)),
            k.lds_bytes,
            k.scratch_bytes,
            k.kernarg_bytes,
            k.hidden,
        )
        try:
            run_launch(self.code, start, words, blocks, threads, shared, block_order(blocks), [self.segments], find)
        finally:
            self.code.count(self.executed)


class AmdExecutor:
    """See ``processor.processor.Executor``.

    Args:
        chip: LLVM's name.
        executed: counts how often waves execute each instruction.
    """

    def __init__(self, chip: str, executed: Counter[str]) -> None:
        self.chip, self._executed = chip, executed
        self._generation = chip_of(chip).major

    def build(self, texts: Texts, keep: bool) -> CodeImage:
        """The code object, with its text."""
        return build(texts, self.chip, keep, listing=True)

    def load(self, image: bytes, name: str) -> Mapping[str, AmdCode]:
        """The kernels of a code object.

        Raises:
            QdrunRuntimeError: it is damaged.
        """
        if not image:
            return {}
        loaded = code_of(image, name)
        raw = _placed(loaded)
        base = raw.ctypes.data
        symbols = {symbol: base + value for symbol, value in loaded.symbols.items()}
        listings = read_assembly(loaded.listing)
        return {
            k.name: AmdCode(k, Code(listings[k.name], self._generation, k.wave, symbols), Region(base, raw), self._executed)
            for k in loaded.kernels.values()
        }


def _placed(code: CodeObject) -> np.ndarray:
    """The segments as a loader puts them."""
    raw = np.zeros(max(s.address + s.size for s in code.segments) + 4096, np.uint8)
    placed = raw[-raw.ctypes.data % 4096 :]
    for s in code.segments:
        placed[s.address : s.address + len(s.data)] = np.frombuffer(s.data, np.uint8)
    return placed


def _region(machine: EmulatedMachine, address: int) -> Region | None:
    """The live block of device memory, or the pinned memory, that an address is in."""
    arena: Arena = machine.arena
    if arena.holds(address):
        found = arena.block_of(address)
        return None if found is None else Region.at(*found)
    for base, raw in list(machine.pinned.items()):
        if base <= address < base + raw.size:
            return Region(base, raw)
    return None
