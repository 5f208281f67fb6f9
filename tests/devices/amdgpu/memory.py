"""Memory as lanes see it: ranges of bytes with an address each. An access outside of all of them is an error."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np

from ..processor.arena import BadAddress

_ALL = 0xFFFF_FFFF_FFFF_FFFF
_TYPES = {
    "u": np.uint32, "i": np.int32, "f": np.float32, "q": np.uint64, "l": np.int64, "d": np.float64,
    "h": np.uint16, "j": np.int16, "e": np.float16, "b": np.uint8, "c": np.int8,
}  # fmt: skip
Piece = tuple["Region", np.ndarray, "np.ndarray | slice"]
_EVERY = slice(None)


class Region:
    """A range of bytes. ``views`` gives it as elements of a type that begin at every byte: accesses need no alignment."""

    def __init__(self, low: int, raw: np.ndarray) -> None:
        self.low, self.size, self.raw = low, raw.size, raw
        self.views: dict[str, np.ndarray] = {}

    @classmethod
    def at(cls, address: int, size: int) -> Region:
        """Memory of this process."""
        return cls(address, np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)))

    def view(self, kind: str) -> np.ndarray:
        """The bytes as values of a type, one for each first byte."""
        found = self.views.get(kind)
        if found is None:
            dtype = np.dtype(_TYPES[kind])
            count = max(0, self.size - dtype.itemsize + 1)
            found = self.views[kind] = np.ndarray((count,), dtype, self.raw.data, 0, (1,))
        return found


class Memory:
    """Regions; ``find`` gives the one that holds an address, or None."""

    def __init__(self, regions: list[Region], find: Callable[[int], Region | None] | None = None) -> None:
        self._recent, self._find = regions, find

    def region(self, address: int, nbytes: int) -> Region:
        """The region of an access.

        Raises:
            BadAddress: no region holds all of it.
        """
        for r in self._recent:
            if r.low <= address and address + nbytes <= r.low + r.size:
                return r
        r = self._find(address) if self._find else None
        if r is None or not (r.low <= address and address + nbytes <= r.low + r.size):
            raise BadAddress(address)
        self._recent.insert(0, r)
        return r

    def words(self, address: int, count: int) -> list[int]:
        """So many 32-bit words at an address, as scalar loads read them: its last two bits count as zero."""
        address &= ~3 & _ALL
        r = self.region(address, 4 * count)
        at = address - r.low
        return r.raw[at : at + 4 * count].view(np.uint32).tolist()

    def pieces(self, addresses: np.ndarray, more: int, nbytes: int, lanes: np.ndarray | None) -> Iterator[Piece]:
        """The regions that lanes access.

        Args:
            addresses: of all lanes.
            more: is added to them.
            nbytes: of one lane's access.
            lanes: those that take part; None: all.

        Yields:
            The region, the offsets in it, and the lanes.

        Raises:
            BadAddress: an access is in no region.
        """
        if lanes is not None:
            addresses = addresses.take(lanes)
            if not lanes.size:
                return
        first = (addresses.item(0) + more) & _ALL
        r = self.region(first, nbytes)
        offsets = np.add(addresses, np.uint64((more - r.low) & _ALL), dtype=np.uint64)
        if np.maximum.reduce(offsets) <= r.size - nbytes:  # an address below wraps to a large offset
            yield r, offsets.view(np.int64), _EVERY if lanes is None else lanes
            return
        left = np.arange(addresses.size)
        numbers = left if lanes is None else lanes
        whole = np.add(addresses, np.uint64(more & _ALL), dtype=np.uint64)
        while left.size:
            r = self.region(whole.item(left[0]), nbytes)
            offsets = whole[left] - np.uint64(r.low)
            inside = offsets <= np.uint64(r.size - nbytes)
            yield r, offsets[inside].view(np.int64), numbers[left[inside]]
            left = left[~inside]
