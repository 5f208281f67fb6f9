"""The registers of a wave: those of its lanes as columns of one array, those that all lanes share as a list of integers.

A row of the array is a lane, so two registers that hold 8 bytes lie side by side: 64-bit values are views of it, as 16-bit ones are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import Memory, Region

VCC, M0, EXEC, SCC, FLAT, REGISTERS = 106, 124, 126, 128, 102, 132
POISON = 0xA5A5_FFE1
"""The content of registers that nothing has written: a NaN with a payload."""
MOST_MASKS = 4096
_KINDS = {
    "u": np.uint32, "i": np.int32, "f": np.float32, "q": np.uint64, "l": np.int64, "d": np.float64,
    "h": np.uint16, "j": np.int16, "e": np.float16,
}  # fmt: skip
KINDS = {kind: np.dtype(dtype) for kind, dtype in _KINDS.items()}
"""The types of values by letter: u, i, f have 32 bits, q, l, d have 64, h, j, e have 16."""


class Views(dict[int, np.ndarray]):
    """The registers of the lanes as one type. Keys are numbers of registers; of 16-bit types, twice that and the half."""

    def __init__(self, raw: np.ndarray, dtype: np.dtype) -> None:
        super().__init__()
        self._raw, self._dtype, self._step = raw, dtype, 2 if dtype.itemsize == 2 else 4

    def __missing__(self, key: int) -> np.ndarray:
        lanes, row = self._raw.shape
        view = np.ndarray((lanes,), self._dtype, self._raw.data, key * self._step, (row * 4,))
        self[key] = view
        return view


class Masks(dict[int, np.ndarray]):
    """Sets of lanes: an integer, and the same as flags. Nothing writes into the flags."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def __missing__(self, mask: int) -> np.ndarray:
        if len(self) > MOST_MASKS:
            self.clear()
        raw = np.frombuffer((mask & ((1 << self.width) - 1)).to_bytes(8, "little"), np.uint8)
        flags = np.unpackbits(raw, count=self.width, bitorder="little").view(bool)
        self[mask] = flags
        return flags

    def of(self, flags: np.ndarray) -> int:
        """The integer of flags, which are kept."""
        mask = int.from_bytes(np.packbits(flags, None, "little").tobytes(), "little")
        self[mask] = flags
        return mask


class Wave:
    """The state of a wave.

    Attributes:
        width: lanes, 32 or 64.
        S: shared registers as unsigned 32-bit integers: s0.., ``VCC``, ``EXEC``, ``M0``, ``SCC``.
        views: the lanes' registers by the letter of a type.
        active: flags of the lanes that take part; None: all do.
        lanes: their numbers; None: all.
        some: there is one.
        pc: the block of instructions that comes next.
    """

    def __init__(self, width: int, registers: int, masks: Masks) -> None:
        self.width, self.masks = width, masks
        self.raw = np.empty((width, registers + 16 + registers % 2), np.uint32)
        self.views = {kind: Views(self.raw, dtype) for kind, dtype in KINDS.items()}
        self.all = (1 << width) - 1
        self.numbers = np.arange(width)

    def begin(self, lanes: int, memory: Memory, lds: Memory, scratch_bytes: int) -> None:
        """A fresh wave whose first ``lanes`` lanes exist. ``scratch_bytes``: of each lane's own memory."""
        self.raw.fill(POISON)
        self.S = [POISON] * REGISTERS
        self.S[SCC] = 0
        self.memory, self.lds, self.pc, self.scratch_bytes = memory, lds, 0, scratch_bytes
        self.scratch = Memory([Region(0, np.full(scratch_bytes * self.width, 0xFF, np.uint8))])
        self.born = (1 << lanes) - 1
        self.set_exec(self.born)

    def set_exec(self, mask: int) -> None:
        """Choose the lanes that take part."""
        mask &= self.all
        self.S[EXEC], self.S[EXEC + 1] = mask & 0xFFFFFFFF, mask >> 32
        self.some = mask != 0
        if mask == self.all:
            self.active = self.lanes = None
        else:
            flags = self.masks[mask]
            self.active, self.lanes = flags, np.flatnonzero(flags)

    def exec(self) -> int:
        """The lanes that take part."""
        return self.S[EXEC] | (self.S[EXEC + 1] << 32 if self.width == 64 else 0)

    def taking_part(self) -> Any:
        """Flags of the lanes that take part."""
        return self.masks[self.exec()]
