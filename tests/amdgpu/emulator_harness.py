"""Runs a few lines of assembly on the emulator, in a wave whose registers a test chooses."""

from __future__ import annotations

import numpy as np

from qdrun.tests.devices.amdgpu.code import Code
from qdrun.tests.devices.amdgpu.listing import read_assembly
from qdrun.tests.devices.amdgpu.memory import Memory, Region
from qdrun.tests.devices.amdgpu.wave import Masks, Wave

LDS_BYTES = 4096


class Run:
    """The state after some lines: ``v`` and ``s`` give registers."""

    def __init__(self, lines, *, lanes=None, shared=None, mask=None, generation=9, width=64, memory=()):
        text = "\n".join([".type k,@function", "k:", *lines, "s_endpgm", ".section .rodata"])
        code = Code(read_assembly(text)["k"], generation, width, {})
        self.on_chip = np.zeros(LDS_BYTES, np.uint8)
        regions = [Region(array.ctypes.data, array.view(np.uint8)) for array in memory]
        self.wave = wave = Wave(width, max(64, code.registers), Masks(width))
        with np.errstate(all="ignore"):
            wave.begin(width, Memory(regions), Memory([Region(0, self.on_chip)]), 64)
            for number, values in (lanes or {}).items():
                kind = {"u4": "u", "i4": "i", "f4": "f", "u8": "q", "i8": "l", "f8": "d", "u2": "h", "i2": "j", "f2": "e"}
                letter = kind[values.dtype.str[1:]]
                wave.views[letter][number * 2 if values.dtype.itemsize == 2 else number][:] = values
            for number, value in (shared or {}).items():
                wave.S[number] = value & 0xFFFFFFFF
            if mask is not None:
                wave.set_exec(mask)
            self.end = code.run(wave)

    def v(self, number, kind="u"):
        """A register of the lanes."""
        return self.wave.views[kind][number].copy()

    def s(self, number, words=1):
        """A shared register, or two."""
        return sum(self.wave.S[number + k] << 32 * k for k in range(words))
