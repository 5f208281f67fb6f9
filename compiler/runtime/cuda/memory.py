"""Where a device's bytes come from: the driver's pool for large blocks, chunks of our own for small ones, pinned memory for words that
both sides see.

Device memory is freed in the order of the one stream: what is put into the stream later may have it at once, and runs after everything
that used it before. Pinned memory is written by the host at any time, so it is given out again only after the stream was waited for.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import DeviceError
from ..device import ALIGNMENT
from .driver import Driver
from .results import is_full
from .staging import Staging
from .throttle import Throttle

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

    def release(self) -> None:
        """Give every chunk back, whoever uses it."""
        chunks, self._chunks = self._chunks, []
        self._bins.clear()
        self._live.clear()
        if self._drop is not None:
            for chunk in chunks:
                self._drop(chunk.base)

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
    """A device's memory, for one stream. One thread at a time; what the collector frees in the middle of a call waits for its end."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self._stream = driver, stream
        self._slab = Slab(self._take, lambda ptr: driver.free(ptr, stream), CHUNK)
        self._large: dict[int, int] = {}
        self._busy, self._freed = False, deque[int]()

    @property
    def reserved(self) -> int:
        """Bytes that were asked of the driver: blocks, and whole chunks."""
        return sum(self._large.copy().values()) + self._slab.reserved

    def allocate(self, nbytes: int) -> int:
        """An address, a multiple of 64; the content is arbitrary.

        Raises:
            MemoryError: the device is full, also after everything that only waits to be freed was freed.
        """
        with self._undisturbed():
            if nbytes <= SMALL:
                return self._slab.allocate(nbytes)
            address = self._take(nbytes)
            self._large[address] = nbytes
            return address

    def free(self, address: int) -> None:
        """Give a block back, in the order of the stream."""
        self._freed.append(address)
        if not self._busy:
            with self._undisturbed():
                pass

    def trim(self) -> None:
        """Wait for the stream, and give all that is free back to the device."""
        with self._undisturbed():
            self._trim()

    def release(self) -> None:
        """Free everything, and give it back to the device."""
        with self._undisturbed():
            blocks, self._large = self._large, {}
            for address in blocks:
                self._driver.free(address, self._stream)
            self._slab.release()
            self._trim()
            self._freed.clear()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A block that changes what is kept here; what was freed meanwhile is freed at its end."""
        self._busy = True
        try:
            yield
            while self._freed:
                self._give_back(self._freed.popleft())
        finally:
            self._busy = False

    def _give_back(self, address: int) -> None:
        if self._slab.owns(address):
            self._slab.free(address)
        else:
            del self._large[address]
            self._driver.free(address, self._stream)

    def _trim(self) -> None:
        self._slab.trim()
        self._driver.synchronize(self._stream)
        self._driver.trim()

    def _take(self, nbytes: int) -> int:
        release_abandoned()
        try:
            return self._driver.allocate(nbytes, self._stream)
        except DeviceError as e:
            if not is_full(e):
                raise
        while self._freed:
            self._give_back(self._freed.popleft())
        self._trim()
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
        self._owned: dict[int, int] = {}  # the stream of each block in use
        self._waiting: dict[int, tuple[int, int]] = {}  # stream and address by the number of the release
        self._releases = itertools.count(1)
        self._lock = threading.RLock()  # the collector may free while it is held

    @property
    def reserved(self) -> int:
        """Bytes of all chunks."""
        return self._slab.reserved

    def allocate(self, nbytes: int, stream: int) -> int:
        """An address, a multiple of 64, for work in one stream; the content is arbitrary."""
        with self._lock:
            address = self._slab.allocate(nbytes)
            self._owned[address] = stream
            return address

    def owns(self, address: int) -> bool:
        """Whether a block at this address is in use."""
        return address in self._owned

    def free(self, address: int) -> None:
        """Take a block back. Work that is in its stream may still write to it."""
        with self._lock:
            self._waiting[next(self._releases)] = self._owned.pop(address), address

    def waiting(self, stream: int) -> list[int]:
        """Releases that have not taken effect: ask before the stream is waited for."""
        with self._lock:
            return [number for number, (of, _) in self._waiting.copy().items() if of == stream]

    def settled(self, releases: list[int]) -> None:
        """Nothing in the stream uses the blocks of these releases any more."""
        with self._lock:
            for number in releases:
                _, address = self._waiting.pop(number, (0, 0))
                if address:
                    self._slab.free(address)

    def ended(self, stream: int) -> None:
        """A stream is empty and goes: take back all blocks for work in it."""
        with self._lock:
            for address in [a for a, of in self._owned.copy().items() if of == stream]:
                self.free(address)
            self.settled(self.waiting(stream))

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()


class Holdings:
    """Everything that one device holds of its driver.

    Attributes:
        memory: the device's.
        pinned: words of the host, shared by the programs of the process.
        staging: buffers for large copies.
        throttle: keeps the host near the stream.
    """

    def __init__(self, driver: Driver, pinned: PinnedMemory) -> None:
        self._driver, self.stream = driver, driver.stream()
        self.memory, self.pinned = DeviceMemory(driver, self.stream), pinned
        self.staging = Staging(driver, self.stream)
        self.throttle = Throttle(driver, self.stream)

    def release(self) -> None:
        """Wait for the stream, and give everything back.

        Raises:
            DeviceError: the device has failed.
        """
        self._driver.synchronize(self.stream)
        self.pinned.ended(self.stream)
        self.staging.release()
        self.throttle.release()
        self.memory.release()
        self._driver.close(self.stream)

    def abandon(self) -> None:
        """Nobody has closed the device and it is gone: ``release_abandoned`` gives everything back. The collector calls this anywhere, in
        the middle of an import say, so nothing is done here.
        """
        _abandoned.append(self)


_abandoned: deque[Holdings] = deque()


def release_abandoned() -> None:
    """Release what devices held that are gone and were never closed."""
    while _abandoned:
        try:
            _abandoned.popleft().release()
        except (DeviceError, IndexError):
            pass  # the device has failed, and what it held goes with the process; or another thread was faster
