"""Memory of the emulated device: host pages that the host may touch only while device work runs.

At other times the pages have no access rights: code that uses a device address as a host address ends with a segmentation fault at that
line, instead of a correct result. New blocks hold NaN patterns, freed ones do so again and are given out late, and a margin on either side
of a block shows what a kernel writes outside of it.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

POISON, MARGIN_BYTE = 0xFF, 0xA5
"""The bytes of memory that was never written (NaN as a float of any size, -1 as an integer) and of the margins."""
ALIGN, MARGIN = 256, 64
_POISONED = 1 << 16  # so many bytes at either end of a large block hold the poison
_AROUND = 256 << 20  # blocks are placed round and round in the first so many bytes, as long as they fit
_PROT_NONE, _PROT_READ_WRITE = 0, 3


class BadAddress(Exception):
    """An address, or a range, that is not inside a live block."""


class Arena:
    """``size`` bytes of reserved addresses. ``guard``: no access outside ``open()``, where the system can do that."""

    def __init__(self, size: int, guard: bool = True) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
        self._keep = (ctypes.c_char * size).from_buffer(self._map)
        self.base = ctypes.addressof(self._keep)
        self._free: list[tuple[int, int]] = [(0, size)]  # (offset, bytes), in order, never adjacent
        self._starts: list[int] = []
        self._blocks: dict[int, tuple[int, int, int]] = {}  # address: bytes, and the offset and bytes of its place
        self._rover = 0
        self._open = 0
        self._protect = _mprotect() if guard else None
        self._shut()

    # ---- access
    @contextmanager
    def open(self) -> Iterator[None]:
        """Device work: the memory may be touched."""
        if not self._open and self._protect is not None:
            self._protect(self.base, self.size, _PROT_READ_WRITE)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._shut()

    def _shut(self) -> None:
        if not self._open and self._protect is not None:
            self._protect(self.base, self.size, _PROT_NONE)

    # ---- blocks
    @property
    def used(self) -> int:
        """Bytes of live blocks. Other threads may look, at any moment."""
        return sum(n for n, _, _ in list(self._blocks.values()))

    def allocate(self, nbytes: int) -> int:
        """The address of a new block of poison.

        Raises:
            MemoryError: no room.
        """
        need = -(-(ALIGN + nbytes + MARGIN) // ALIGN) * ALIGN
        found = self._place(need)
        if found is None:
            raise MemoryError
        offset, left = self._free.pop(found)
        start = self._rover if offset < self._rover <= offset + left - need else offset
        for rest in ((start + need, offset + left - start - need), (offset, start - offset)):
            if rest[1]:
                bisect.insort(self._free, rest)
        self._rover = start + need if start + need < _AROUND else 0
        address = self.base + start + ALIGN
        with self.open():
            ctypes.memset(address - MARGIN, MARGIN_BYTE, MARGIN)
            self._poison(address, nbytes)
            ctypes.memset(address + nbytes, MARGIN_BYTE, MARGIN)
        self._blocks[address] = (nbytes, start, need)
        bisect.insort(self._starts, address)
        return address

    def _place(self, need: int) -> int | None:
        """Which free range the next block comes from: the first that fits behind the last one given out."""
        fits = [k for k, (_, n) in enumerate(self._free) if n >= need]
        behind = [k for k in fits if self._free[k][0] + self._free[k][1] - need >= self._rover]
        return next(iter(behind or fits), None)

    def free(self, address: int) -> bool:
        """Take a block back; whether its margins are as they were.

        Raises:
            BadAddress: no live block begins there.
        """
        if address not in self._blocks:
            raise BadAddress(address)
        whole = self.intact(address)
        nbytes, offset, length = self._blocks.pop(address)
        self._starts.remove(address)
        with self.open():
            self._poison(address, nbytes)
        self._give_back(offset, length)
        return whole

    def _give_back(self, offset: int, length: int) -> None:
        at = bisect.bisect(self._free, (offset, 0))
        if at < len(self._free) and self._free[at][0] == offset + length:
            length += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == offset:
            before = self._free.pop(at - 1)
            offset, length = before[0], before[1] + length
        bisect.insort(self._free, (offset, length))

    def _poison(self, address: int, nbytes: int) -> None:
        """The inside of a large block is given back to the system instead: zero, and no page taken."""
        if nbytes <= 2 * _POISONED:
            ctypes.memset(address, POISON, nbytes)
            return
        page = mmap.PAGESIZE
        first, last = address + _POISONED, address + nbytes - _POISONED
        begin = -(-(first - self.base) // page) * page
        end = (last - self.base) // page * page
        if end > begin and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)
        ctypes.memset(address, POISON, _POISONED)
        ctypes.memset(last, POISON, _POISONED)

    def intact(self, address: int) -> bool:
        """Whether nothing has written into the margins of a live block."""
        nbytes = self._blocks[address][0]
        with self.open():
            around = ctypes.string_at(address - MARGIN, MARGIN) + ctypes.string_at(address + nbytes, MARGIN)
        return around == bytes([MARGIN_BYTE]) * (2 * MARGIN)

    def all_intact(self) -> bool:
        """Whether the margins of every live block are as they were."""
        with self.open():
            return all(map(self.intact, self._starts))

    def free_ranges(self) -> list[tuple[int, int]]:
        """Offset and bytes of each range that no block takes."""
        return list(self._free)

    def live(self) -> list[tuple[int, int]]:
        """The address and the bytes of each live block, in order."""
        return [(start, self._blocks[start][0]) for start in self._starts]

    def holds(self, address: int) -> bool:
        """Whether an address is one of the arena's, live or not."""
        return self.base <= address < self.base + self.size

    def check(self, address: int, nbytes: int) -> None:
        """Check that a range is inside one live block.

        Raises:
            BadAddress: it is not.
        """
        if nbytes == 0:
            return
        block = self.block_of(address)
        if block is None or address + nbytes > sum(block):
            raise BadAddress(address)

    def block_of(self, address: int) -> tuple[int, int] | None:
        """The address and the bytes of the live block that holds an address, or None."""
        k = bisect.bisect(self._starts, address) - 1
        if k < 0:
            return None
        start = self._starts[k]
        nbytes = self._blocks[start][0]
        return (start, nbytes) if address < start + nbytes else None


def _mprotect() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
