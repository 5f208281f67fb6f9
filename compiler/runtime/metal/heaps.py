"""Device memory: blocks from a few heaps, so that one message makes all of them resident.

A block is an MTLBuffer. Kernels know it by its ``gpuAddress``, the host by its ``contents``: the memory of Apple's processors is both
sides'. Heaps are not tracked: the stream orders what uses them (``stream``), so a block that is freed may be given out at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

from ...errors import DeviceError
from .objc import Objc
from .results import OUT_OF_MEMORY, device_error

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
    """The heaps of one driver object. The caller serialises its calls.

    Args:
        objc, device: whose memory it is.
        made: called with a new heap, before anything in it is used.
        gone: called with an empty heap that is to go: it releases it once nothing that was put into a stream uses it.
    """

    def __init__(self, objc: Objc, device: int, made: Callable[[Heap], None], gone: Callable[[Heap], None]) -> None:
        self._objc, self._device, self._made, self._gone = objc, device, made, gone
        self.heaps: list[Heap] = []
        self._blocks: dict[int, HeapBlock] = {}
        self._starts: list[int] = []
        self._by_host: dict[int, HeapBlock] = {}
        self._host_starts: list[int] = []
        self.limit = int(objc.send(device, "maxBufferLength"))

    # ---- blocks
    def allocate(self, nbytes: int, doing: str) -> HeapBlock:
        """A block, whose content is arbitrary.

        Args:
            nbytes: at least one.
            doing: what fails, for the message.

        Raises:
            DeviceError: the device has no room, or makes no buffer that large; names the bytes and the limit.
        """
        nbytes = max(1, nbytes)
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
        """Take a block back.

        Raises:
            KeyError: no block begins there.
        """
        block = self._blocks.pop(address)
        self._starts.remove(address)
        del self._by_host[block.host]
        self._host_starts.remove(block.host)
        self._objc.send(block.buffer, "release")
        block.heap.blocks -= 1
        if not block.heap.blocks and (block.heap.size != CHUNK or sum(not h.blocks for h in self.heaps) > 1):
            self._drop(block.heap)

    def trim(self) -> None:
        """Give every heap back in which nothing lives."""
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
        return _inside(self._blocks, self._starts, address, nbytes)

    def at_host(self, address: int, nbytes: int = 1) -> HeapBlock | None:
        """The same for an address of the host."""
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
        self._made(heap)
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
        self._gone(heap)

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
