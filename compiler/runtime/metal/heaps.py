"""Device memory: blocks from a few heaps, so that one message makes all of them resident.

A block is an MTLBuffer. Kernels know it by its ``gpuAddress``, the host by its ``contents``: the memory of Apple's processors is both
sides'. Heaps are not tracked: the stream orders what uses them (``stream``), so a block that is freed may be given out at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from ...errors import DeviceError
from ...ir.threads import new_lock
from ..gpu.commands.stream import after_all
from .objc import Objc
from .results import INVALID_HANDLE, OUT_OF_MEMORY, device_error
from .stream import MetalStream

CHUNK = 16 << 20
"""Bytes of a heap for blocks of up to a quarter of it; a larger block has a heap of its own."""

SHARED, UNTRACKED = 0, 1
"""``MTLStorageModeShared``, ``MTLHazardTrackingModeUntracked``"""
OPTIONS = SHARED << 4 | UNTRACKED << 8
"""``MTLResourceOptions`` of every buffer."""


@dataclass(eq=False, slots=True)
class Heap:
    """An MTLHeap. ``size``: its bytes; ``blocks``: how many are live in it."""

    handle: int
    size: int
    blocks: int = 0


@dataclass(eq=False, slots=True)
class HeapBlock:
    """Live memory. ``address``: the device's; ``host``: the address of the same bytes on the host."""

    address: int
    host: int
    nbytes: int
    buffer: int
    heap: Heap = field(repr=False)


class Heaps:
    """Heaps for the work of some streams.

    Args:
        objc, device: whose memory it is.
        streams: gives the streams.

    Attributes:
        heaps: that are in use, or kept.
    """

    def __init__(self, objc: Objc, device: int, streams: Callable[[], Iterable[MetalStream]]) -> None:
        self._objc, self._device, self._streams = objc, device, streams
        self._lock = new_lock(self, "_lock")
        self.heaps: list[Heap] = []
        self._retired: list[Heap] = []  # empty ones, which go once nothing that was put into a stream uses them
        self._blocks: dict[int, HeapBlock] = {}
        self._starts: list[int] = []
        self._by_host: dict[int, HeapBlock] = {}
        self._host_starts: list[int] = []
        self.limit = int(objc.send(device, "maxBufferLength"))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A block that changes the heaps. Streams are told at its end, without the lock: they may be waiting for it."""
        try:
            with self._lock:
                yield
        finally:
            streams = list(self._streams())
            for stream in streams:
                stream.use_heaps()
            while self._retired:
                after_all(streams, partial(self._objc.send, self._retired.pop().handle, "release"))

    # ---- blocks
    def allocate(self, nbytes: int, doing: str) -> HeapBlock:
        """A block, whose content is arbitrary.

        Args:
            nbytes: at least one.
            doing: what fails, for the message.

        Raises:
            DeviceError: the device has no room, or makes no buffer that large; names the bytes and the limit.
        """
        with self._changing():
            return self._allocate(max(1, nbytes), doing)

    def _allocate(self, nbytes: int, doing: str) -> HeapBlock:
        if nbytes > self.limit:
            raise self._full(nbytes, doing)
        need = self._objc.send(self._device, "heapBufferSizeAndAlignWithLength:options:", nbytes, OPTIONS)
        for heap in self._candidates(need.size, need.align):
            buffer = self._objc.send(heap.handle, "newBufferWithLength:options:", nbytes, OPTIONS)
            if buffer:
                return self._keep(buffer, nbytes, heap)
        heap = self._new_heap(CHUNK if need.size <= CHUNK // 4 else need.size, nbytes, doing)
        buffer = self._objc.send(heap.handle, "newBufferWithLength:options:", nbytes, OPTIONS)
        if not buffer:
            self._drop(heap)
            raise self._full(nbytes, doing)
        return self._keep(buffer, nbytes, heap)

    def free(self, address: int) -> None:
        """Take a block back. What is put into a stream later may have it at once.

        Raises:
            DeviceError: no block begins there.
        """
        with self._changing():
            block = self._blocks.pop(address, None)
            if block is None:
                raise device_error(INVALID_HANDLE, "freeing device memory failed")
            self._starts.remove(address)
            del self._by_host[block.host]
            self._host_starts.remove(block.host)
            self._objc.send(block.buffer, "release")
            block.heap.blocks -= 1
            if not block.heap.blocks and (block.heap.size != CHUNK or sum(not h.blocks for h in self.heaps) > 1):
                self._drop(block.heap)

    def trim(self) -> None:
        """Give every heap back in which nothing lives."""
        with self._changing():
            for heap in [h for h in self.heaps if not h.blocks]:
                self._drop(heap)

    def release(self) -> None:
        """Give everything back."""
        for address in list(self._blocks):
            self.free(address)
        self.trim()

    def bytes(self) -> tuple[int, int]:
        """In use, and of all heaps."""
        return sum(b.nbytes for b in list(self._blocks.values())), sum(h.size for h in list(self.heaps))

    def at(self, address: int, nbytes: int = 1) -> HeapBlock | None:
        """The block that holds so many bytes at an address of the device."""
        with self._lock:
            return _inside(self._blocks, self._starts, address, nbytes)

    def at_host(self, address: int, nbytes: int = 1) -> HeapBlock | None:
        """The same for an address of the host."""
        with self._lock:
            return _inside(self._by_host, self._host_starts, address, nbytes)

    # ---- heaps
    def _candidates(self, size: int, align: int) -> list[Heap]:
        return [h for h in self.heaps if self._objc.send(h.handle, "maxAvailableSizeWithAlignment:", align) >= size]

    def _new_heap(self, size: int, nbytes: int, doing: str) -> Heap:
        objc = self._objc
        descriptor = objc.send(objc.named_class("MTLHeapDescriptor"), "new")
        try:
            objc.send(descriptor, "setSize:", size)
            objc.send(descriptor, "setStorageMode:", SHARED)
            objc.send(descriptor, "setHazardTrackingMode:", UNTRACKED)
            handle = objc.send(self._device, "newHeapWithDescriptor:", descriptor)
        finally:
            objc.send(descriptor, "release")
        if not handle:
            raise self._full(nbytes, doing)
        heap = Heap(handle, size)
        self.heaps.append(heap)
        return heap

    def _keep(self, buffer: int, nbytes: int, heap: Heap) -> HeapBlock:
        heap.blocks += 1
        address, host = self._objc.send(buffer, "gpuAddress"), self._objc.send(buffer, "contents")
        block = HeapBlock(address, host, nbytes, buffer, heap)
        self._blocks[address] = self._by_host[host] = block
        bisect.insort(self._starts, address)
        bisect.insort(self._host_starts, host)
        return block

    def _drop(self, heap: Heap) -> None:
        self.heaps.remove(heap)
        self._retired.append(heap)

    def _full(self, nbytes: int, doing: str) -> DeviceError:
        detail = f"newBufferWithLength:{nbytes} has given nil; maxBufferLength is {self.limit:,} bytes"
        return device_error(OUT_OF_MEMORY, doing, detail=detail)


def _inside(blocks: dict[int, HeapBlock], starts: list[int], address: int, nbytes: int) -> HeapBlock | None:
    k = bisect.bisect(starts, address) - 1
    if k < 0:
        return None
    start = starts[k]
    block = blocks[start]
    return block if address + nbytes <= start + block.nbytes else None
