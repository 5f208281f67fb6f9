"""Where a device's bytes come from: the driver's pool for large blocks, chunks of our own for small ones, pinned memory for words that
both sides see.

Device memory is freed in the order of the one stream: what is put into the stream later may have it at once, and runs after everything
that used it before. Pinned memory is written by the host at any time, so it is given out again only after the stream was waited for.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import DeviceError
from ..device import ALIGNMENT
from .driver import Driver
from .results import is_full

SMALL = 4096
"""Blocks of at most so many bytes come out of chunks."""

CHUNK = 256 << 10
PINNED_CHUNK = 64 << 10


def rounded(nbytes: int) -> int:
    """Bytes up to the next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False, slots=True)
class Chunk:
    """A block that smaller ones are cut from. ``top``: bytes given out at least once; ``live``: blocks in use."""

    base: int
    nbytes: int
    top: int = 0
    live: int = 0


class Slab:
    """Small blocks out of chunks, 64 bytes apart.

    A freed block waits in the bin of its size and is the next one of this size given out. A chunk goes back when nothing of it is in use;
    one empty chunk stays, so that a block that comes and goes does not take its chunk along. ``drop`` None: no chunk ever goes back.
    """

    def __init__(self, make: Callable[[int], int], drop: Callable[[int], None] | None, chunk_bytes: int) -> None:
        self._make, self._drop, self._chunk_bytes = make, drop, chunk_bytes
        self._chunks: list[Chunk] = []
        self._bins: defaultdict[int, list[tuple[int, Chunk]]] = defaultdict(list)
        self._live: dict[int, tuple[int, Chunk]] = {}

    @property
    def reserved(self) -> int:
        """Bytes of all chunks."""
        return sum(c.nbytes for c in self._chunks)

    def allocate(self, nbytes: int) -> int:
        """A block of at least so many bytes, not cleared."""
        size = rounded(nbytes)
        if self._bins[size]:
            address, chunk = self._bins[size].pop()
        else:
            chunk = next((c for c in self._chunks if c.nbytes - c.top >= size), None) or self._new_chunk(size)
            address = chunk.base + chunk.top
            chunk.top += size
        chunk.live += 1
        self._live[address] = size, chunk
        return address

    def owns(self, address: int) -> bool:
        """Whether a block at this address is in use."""
        return address in self._live

    def free(self, address: int) -> None:
        """Take a block back."""
        size, chunk = self._live.pop(address)
        chunk.live -= 1
        self._bins[size].append((address, chunk))
        if not chunk.live and self._drop is not None and sum(not c.live for c in self._chunks) > 1:
            self._release(chunk)

    def trim(self) -> None:
        """Give every chunk back that nothing uses."""
        for chunk in [c for c in self._chunks if not c.live and self._drop is not None]:
            self._release(chunk)

    def _new_chunk(self, size: int) -> Chunk:
        nbytes = max(size, self._chunk_bytes)
        chunk = Chunk(self._make(nbytes), nbytes)
        self._chunks.append(chunk)
        return chunk

    def _release(self, chunk: Chunk) -> None:
        self._chunks.remove(chunk)
        for size in list(self._bins):
            self._bins[size] = [(a, c) for a, c in self._bins[size] if c is not chunk]
        assert self._drop is not None
        self._drop(chunk.base)


@dataclass
class Usage:
    """Bytes of a device in this program. ``used``: what was asked for; ``reserved``: taken from the device for it; ``pinned``: taken of the
    host's memory; ``free`` and ``total``: of the device, all processes.
    """

    used: int
    reserved: int
    pinned: int
    free: int
    total: int


class DeviceMemory:
    """A device's memory, for one stream."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self._stream = driver, stream
        self._slab = Slab(self._take, lambda ptr: driver.free(ptr, stream), CHUNK)
        self._large: dict[int, int] = {}

    @property
    def reserved(self) -> int:
        """Bytes that were asked of the driver: blocks, and whole chunks."""
        return sum(self._large.values()) + self._slab.reserved

    def allocate(self, nbytes: int) -> int:
        """An address, a multiple of 64; the content is arbitrary.

        Raises:
            MemoryError: the device is full, also after everything that only waits to be freed was freed.
        """
        if nbytes <= SMALL:
            return self._slab.allocate(nbytes)
        address = self._take(nbytes)
        self._large[address] = nbytes
        return address

    def free(self, address: int) -> None:
        """Give a block back, in the order of the stream."""
        if self._slab.owns(address):
            self._slab.free(address)
        else:
            del self._large[address]
            self._driver.free(address, self._stream)

    def trim(self) -> None:
        """Wait for the stream, and give all that is free back to the device."""
        self._slab.trim()
        self._driver.synchronize(self._stream)
        self._driver.trim()

    def _take(self, nbytes: int) -> int:
        try:
            return self._driver.allocate(nbytes, self._stream)
        except DeviceError as e:
            if not is_full(e):
                raise
        self.trim()
        try:
            return self._driver.allocate(nbytes, self._stream)
        except DeviceError as e:
            if not is_full(e):
                raise
            self._driver.trim()  # a pool may hold what it gathered for the block that it could not give
            raise MemoryError(str(e)) from e


class PinnedMemory:
    """Pinned words for launches: status records, returned values. Shared by the programs of a process, and never unpinned: somebody may
    have kept a view of them.

    A freed block is given out again when the stream that may still write to it was waited for (``settled``).
    """

    def __init__(self, driver: Driver) -> None:
        self._slab = Slab(driver.host_allocate, None, PINNED_CHUNK)
        self._owned: set[int] = set()
        self._waiting: dict[int, tuple[int, int]] = {}  # stream and address by the number of the release
        self._releases = itertools.count(1)
        self._lock = threading.RLock()  # the collector may free while it is held

    @property
    def reserved(self) -> int:
        """Bytes of all chunks."""
        return self._slab.reserved

    def allocate(self, nbytes: int) -> int:
        """An address, a multiple of 64; the content is arbitrary."""
        with self._lock:
            address = self._slab.allocate(nbytes)
            self._owned.add(address)
            return address

    def owns(self, address: int) -> bool:
        """Whether a block at this address is in use."""
        return address in self._owned

    def free(self, address: int, stream: int) -> None:
        """Take a block back. Work that is in the stream may still write to it."""
        with self._lock:
            self._owned.discard(address)
            self._waiting[next(self._releases)] = stream, address

    def waiting(self, stream: int) -> list[int]:
        """Releases that have not taken effect: ask before the stream is waited for."""
        with self._lock:
            return [number for number, (of, _) in self._waiting.items() if of == stream]

    def settled(self, releases: list[int]) -> None:
        """Nothing in the stream uses the blocks of these releases any more."""
        with self._lock:
            for number in releases:
                _, address = self._waiting.pop(number, (0, 0))
                if address:
                    self._slab.free(address)

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()
