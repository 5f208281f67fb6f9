"""Memory of an open device: a buffer with an address for each block, found again by its address on the device or on the host."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import DeviceError
from ...ir.threads import new_lock
from .instance import PhysicalDevice
from .library import Structures, VulkanLoader
from .results import OUT_OF_DEVICE_MEMORY, TOO_MANY_OBJECTS, UNKNOWN, device_error

Place = Literal["device", "host", "words"]
"""The device's own memory; the host's, which both sides see; the same for words of launches, in the device's memory if both see that."""

ALIGN = 256
_USAGE = 0x1 | 0x2 | 0x20 | 0x20000  # transfer source and destination, storage, device address
_LOCAL, _VISIBLE, _COHERENT, _CACHED = 1, 2, 4, 8
_USED = _LOCAL | _VISIBLE | _COHERENT | _CACHED
_WHOLE = (1 << 64) - 1
_BY_ADDRESS = 2  # VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT


@dataclass(eq=False, slots=True)
class DeviceBuffer:
    """Memory, and its buffer.

    Attributes:
        buffer, memory: Vulkan's handles; ``number``: of the buffer, as a number.
        base: the buffer's address.
        address: of the block, a multiple of ``ALIGN``.
        nbytes: of the block.
        host: its address on the host; 0: the host does not see it.
        heap, size: the heap that it takes so many bytes of.
    """

    buffer: Any
    memory: Any
    number: int
    base: int
    address: int
    nbytes: int
    host: int
    heap: int
    size: int


class Buffers:
    """The blocks of a device that is open. Every call works on any thread."""

    def __init__(self, api: VulkanLoader, device: Any, physical: PhysicalDevice) -> None:
        self._api, self._device, self._physical = api, device, physical
        found = api.ffi.new("VkPhysicalDeviceMemoryProperties*")
        api.lib.vkGetPhysicalDeviceMemoryProperties(physical.handle, found)
        types = [found.memoryTypes[k] for k in range(found.memoryTypeCount)]
        self._types = [(t.propertyFlags, t.heapIndex) for t in types]
        self._heaps = [found.memoryHeaps[k].size for k in range(found.memoryHeapCount)]
        self._taken = [0] * len(self._heaps)
        self._budgets = "VK_EXT_memory_budget" in physical.extensions
        self._lock = new_lock(self, "_lock")
        self._blocks: dict[int, DeviceBuffer] = {}  # by their addresses
        self._starts: list[int] = []
        self._mapped: dict[int, DeviceBuffer] = {}  # by their addresses on the host
        self._mapped_starts: list[int] = []

    # ---- making
    def make(self, nbytes: int, place: Place) -> DeviceBuffer:
        """A new block, whose content is arbitrary.

        Raises:
            DeviceError: there is no room for it, or it is larger than the device allows; names the limit.
        """
        what = "host memory" if place == "host" else "device memory"
        doing = f"allocating {nbytes:,} bytes of {what} failed"
        limits = self._physical.limits
        if nbytes > limits.most_bytes:
            most = f"one allocation may have {limits.most_bytes:,} bytes ({limits.most_bytes_name})"
            raise device_error(OUT_OF_DEVICE_MEMORY, doing, detail=most)
        with self._lock:
            if len(self._blocks) >= limits.allocations:
                raise device_error(
                    OUT_OF_DEVICE_MEMORY, doing, detail=f"there may be {limits.allocations:,} (maxMemoryAllocationCount)"
                )
            block = self._placed(nbytes, place, doing)
            self._taken[block.heap] += block.size
            self._blocks[block.address] = block
            bisect.insort(self._starts, block.address)
            if block.host:
                self._mapped[block.host] = block
                bisect.insort(self._mapped_starts, block.host)
        return block

    def _placed(self, nbytes: int, place: Place, doing: str) -> DeviceBuffer:
        try:
            return self._aligned(nbytes, place, doing)
        except DeviceError as e:
            if place != "words" or e.code != OUT_OF_DEVICE_MEMORY:
                raise
            return self._aligned(nbytes, "host", doing)  # of the device's memory, the host may see a small part

    def _aligned(self, nbytes: int, place: Place, doing: str) -> DeviceBuffer:
        block = self._new(nbytes, nbytes, place, doing)
        if block.address % ALIGN == 0:
            return block
        self._forget(block)  # this driver aligns buffers less
        block = self._new(nbytes + ALIGN, nbytes, place, doing)
        skip = -block.base % ALIGN
        block.address, block.host = block.base + skip, block.host + skip if block.host else 0
        return block

    def _new(self, size: int, nbytes: int, place: Place, doing: str) -> DeviceBuffer:
        api, lib, new = self._api, self._api.lib, Structures(self._api)
        made, memory = api.ffi.new("VkBuffer*"), api.ffi.new("VkDeviceMemory*")
        info = new("VkBufferCreateInfo", size=-(-size // 16) * 16, usage=_USAGE)
        api.check_memory(lib.vkCreateBuffer(self._device, info, api.ffi.NULL, made), doing)
        needs = api.ffi.new("VkMemoryRequirements*")
        lib.vkGetBufferMemoryRequirements(self._device, made[0], needs)
        try:
            kind = self._kind(place, needs.memoryTypeBits)
            heap = self._types[kind][1]
            if not self._budgets and self._taken[heap] + needs.size > self._heaps[heap]:
                raise device_error(OUT_OF_DEVICE_MEMORY, doing, detail=f"the device has {self._heaps[heap]:,} bytes")
            wanted = new(
                "VkMemoryAllocateInfo",
                pNext=new("VkMemoryAllocateFlagsInfo", flags=_BY_ADDRESS),
                allocationSize=needs.size,
                memoryTypeIndex=kind,
            )
            code = lib.vkAllocateMemory(self._device, wanted, api.ffi.NULL, memory)
            api.check_memory(-OUT_OF_DEVICE_MEMORY if code == -TOO_MANY_OBJECTS else code, doing)
        except DeviceError:
            lib.vkDestroyBuffer(self._device, made[0], api.ffi.NULL)
            raise
        block = DeviceBuffer(made[0], memory[0], api.number(made[0]), 0, 0, nbytes, 0, heap, needs.size)
        try:
            self._bind(block, place, doing)
        except DeviceError:
            self._forget(block)
            raise
        return block

    def _bind(self, block: DeviceBuffer, place: Place, doing: str) -> None:
        api, lib, new = self._api, self._api.lib, Structures(self._api)
        api.check_memory(lib.vkBindBufferMemory(self._device, block.buffer, block.memory, 0), doing)
        block.base = block.address = int(
            lib.vkGetBufferDeviceAddress(self._device, new("VkBufferDeviceAddressInfo", buffer=block.buffer))
        )
        if place != "device":
            at = api.ffi.new("void**")
            api.check_memory(lib.vkMapMemory(self._device, block.memory, 0, _WHOLE, 0, at), doing)
            block.host = api.number(at[0])

    def _kind(self, place: Place, allowed: int) -> int:
        """The number of the best type of memory."""
        visible = _VISIBLE | _COHERENT

        def score(flags: int, heap: int) -> tuple[int, ...]:
            if place == "device":
                return flags & _LOCAL, self._heaps[heap], not flags & _VISIBLE
            if place == "words":
                return flags & visible == visible, flags & _LOCAL, not flags & _CACHED
            return flags & visible == visible, not flags & _LOCAL, flags & _CACHED

        # Types with other properties are for extensions that are not enabled.
        kinds = [k for k, (flags, _) in enumerate(self._types) if allowed >> k & 1 and not flags & ~_USED]
        best = max(kinds, key=lambda k: score(*self._types[k]), default=None)
        if best is None or not score(*self._types[best])[0]:
            raise device_error(UNKNOWN, f"the device has no memory for buffers ({place})")
        return best

    # ---- freeing
    def destroy(self, block: DeviceBuffer) -> None:
        """Give a block back to the device, which does not use it any more."""
        with self._lock:
            self._starts.remove(block.address)  # first: the collector may look for another block at any moment
            del self._blocks[block.address]
            if block.host:
                self._mapped_starts.remove(block.host)
                del self._mapped[block.host]
            self._taken[block.heap] -= block.size
        self._forget(block)

    def _forget(self, block: DeviceBuffer) -> None:
        self._api.lib.vkDestroyBuffer(self._device, block.buffer, self._api.ffi.NULL)
        self._api.lib.vkFreeMemory(self._device, block.memory, self._api.ffi.NULL)

    # ---- finding
    def at(self, address: int, nbytes: int = 1) -> tuple[DeviceBuffer, int]:
        """The block that some bytes of the device lie in, and where in its buffer.

        Raises:
            DeviceError: they are not all in one block.
        """
        with self._lock:
            k = bisect.bisect(self._starts, address) - 1
            block = self._blocks[self._starts[k]] if k >= 0 else None
        if block is None or address + nbytes > block.address + block.nbytes:
            raise device_error(UNKNOWN, f"{nbytes:,} bytes at {address:#x} are not memory of this device")
        return block, address - block.base

    def pinned(self, host: int) -> DeviceBuffer | None:
        """The block that the host sees at an address, if there is one."""
        with self._lock:
            k = bisect.bisect(self._mapped_starts, host) - 1
            block = self._mapped[self._mapped_starts[k]] if k >= 0 else None
        return block if block is not None and host < block.host + block.nbytes else None

    def memory(self) -> tuple[int, int]:
        """Bytes of the device's own memory that are free, and all of them; of all processes if the driver tells, else of this one."""
        heap = self._types[self._kind("device", -1)][1]
        total = self._heaps[heap]
        if not self._budgets:
            return max(0, total - self._taken[heap]), total
        new = Structures(self._api)
        found, budget = new.chain("VkPhysicalDeviceMemoryProperties2", "VkPhysicalDeviceMemoryBudgetPropertiesEXT")
        self._api.lib.vkGetPhysicalDeviceMemoryProperties2(self._physical.handle, found)
        return min(total, max(0, budget.heapBudget[heap] - budget.heapUsage[heap])), total
