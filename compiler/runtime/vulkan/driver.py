"""Vulkan as a driver of GPUs. The package ``vulkan`` is imported when a driver is made, never before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import DeviceError
from ..gpu.commands.driver import CommandDriver
from ..gpu.driver import CodeImage, DeviceInfo, LoadedFunction, Texts
from .buffers import ALIGN, DeviceBuffer
from .code import build
from .cut_loops import raise_if_cut
from .instance import instance
from .kind import VULKAN, describe, refusal
from .opened import OpenDevice, open_device
from .results import UNKNOWN, device_error
from .stream import VulkanStream
from .transfers import Transfers

_QUERIES = 64
_WHOLE_AND_WAITING = 1 | 2  # VK_QUERY_RESULT_64_BIT, VK_QUERY_RESULT_WAIT_BIT


@dataclass(eq=False, slots=True)
class _VulkanEvent:
    """A query of a pool, and what passes it: a submission of a stream."""

    pool: Any
    query: int
    stream: VulkanStream | None = None
    value: int = 0


class VulkanDriver(CommandDriver[VulkanStream]):
    """Vulkan, for one device. See ``Driver``."""

    kind = VULKAN

    def __init__(self) -> None:
        super().__init__()
        self._instance = instance()
        self._opened: OpenDevice | None = None
        self._transfers: dict[int, Transfers] = {}  # of each stream
        self._blocks: dict[int, DeviceBuffer] = {}  # that were allocated and not freed, by their addresses
        self._events: dict[int, _VulkanEvent] = {}
        self._queries: list[tuple[Any, int]] = []
        self._pools: list[Any] = []

    # ---- devices
    def device_count(self) -> int:
        """The number of devices that the loader lists."""
        return len(self._instance.devices)

    def describe(self, index: int) -> DeviceInfo:
        return describe(self._instance.devices[index])

    def open(self, index: int) -> None:
        """Take a device, which is opened once for the process."""
        device = self._instance.devices[index]
        why = refusal(device)
        if why:
            raise DeviceError(
                f"{device.name} cannot be used with Vulkan: {why}\n  do: use another device (device=..) or backend"
            )
        self._opened = open_device(device)
        self._open(self._opened)

    @property
    def _here(self) -> OpenDevice:
        assert self._opened is not None
        return self._opened

    # ---- streams
    def stream(self, ordered: bool) -> int:
        """A stream with a queue of its own, if the device has as many."""
        made = self._here.make_stream(ordered)
        self._streams[made.handle], self._transfers[made.handle] = made, Transfers(made)
        return made.handle

    def stream_free(self, stream: int) -> None:
        """Its memory and its semaphore."""
        made = self._streams.pop(stream)
        made.synchronize()
        self._transfers.pop(stream).close()
        made.close()

    def close(self, stream: int) -> None:
        """The stream, and what it kept of freed memory."""
        self.stream_free(stream)
        lib, null = self._here.api.lib, self._here.api.ffi.NULL
        for pool in self._pools:
            lib.vkDestroyQueryPool(self._here.handle, pool, null)
        self._pools, self._queries = [], []
        self._here.retire()

    def synchronize(self, stream: int) -> None:
        """Wait for a stream. The default one waits for those that are in order with it."""
        for made in [s for s in self._here.streams if s.ordered] if not stream else [self._streams[stream]]:
            made.synchronize()
            made.give_back()
        self._here.retire()
        if self._here.cut is not None:
            raise_if_cut(self._here.cut)

    # ---- memory
    def allocate(self, nbytes: int, stream: int) -> int:
        """A buffer, or one of the same size that was freed in the stream before."""
        made, size = self._streams[stream], -(-nbytes // ALIGN) * ALIGN
        made.give_back()
        block = made.reuse(size) or self._here.buffers.make(size, "device")
        self._blocks[block.address] = block
        return block.address

    def free(self, ptr: int, stream: int) -> None:
        self._streams[stream].free(self._blocks.pop(ptr))

    def trim(self) -> None:
        """Freed memory that the device is done with."""
        for made in list(self._streams.values()):
            made.give_back(0)

    def pool_bytes(self) -> tuple[int, int]:
        """Bytes of blocks, and with those that were freed and are kept."""
        used = sum(block.nbytes for block in list(self._blocks.values()))
        return used, used + sum(made.kept_bytes for made in list(self._streams.values()))

    def memory_info(self) -> tuple[int, int]:
        """Free and total, of all processes where the driver tells (VK_EXT_memory_budget)."""
        return self._here.buffers.memory()

    def host_allocate(self, nbytes: int) -> int:
        """Memory that both sides see without copies. The device has it at another address."""
        return self._here.buffers.make(nbytes, "host").host

    def device_address(self, address: int) -> int:
        """Of the block that the host sees there."""
        block = self._pinned(address)
        return block.address + address - block.host

    def host_free(self, ptr: int) -> None:
        self._here.buffers.destroy(self._pinned(ptr))

    def is_pinned(self, address: int) -> bool:
        """Whether it is memory of ``host_allocate``."""
        return self._here.buffers.pinned(address) is not None

    def _pinned(self, address: int) -> DeviceBuffer:
        block = self._here.buffers.pinned(address)
        if block is None:
            raise device_error(UNKNOWN, f"{address:#x} is not pinned memory of this device")
        return block

    def memset(self, ptr: int, word: int, count: int, width: int, stream: int) -> None:
        """In the stream, by a command if it fills whole 4-byte words; graphs record kernels alone."""
        nbytes = count * width
        if ptr % 4 or nbytes % 4 or self._streams[stream].capturing:
            self.memset_rows(ptr, 0, word, count, width, 1, stream)
            return
        block, offset = self._here.buffers.at(ptr, nbytes)
        word4 = (word & ((1 << 8 * width) - 1)) * {1: 0x01010101, 2: 0x00010001, 4: 1}[width]
        self._put("fill", stream, f"filling {nbytes:,} bytes failed", block.number, offset, nbytes, word4)

    def upload(self, dst: int, src_host: int, nbytes: int, stream: int) -> None:
        """In the stream: from pinned memory when its turn comes, else through memory of ours."""
        block, offset = self._here.buffers.at(dst, nbytes)
        pinned = self._here.buffers.pinned(src_host)
        if pinned is None:
            self._transfers[stream].upload(block, offset, src_host, nbytes)
        else:
            here = pinned.address - pinned.base + src_host - pinned.host
            self._copy(pinned, here, block, offset, nbytes, stream, f"a copy of {nbytes:,} bytes to the device failed")

    def download(self, dst_host: int, src: int, nbytes: int, stream: int) -> None:
        if self.is_pinned(dst_host):
            self.fetch(dst_host, src, nbytes, stream)
            self._streams[stream].synchronize()
            return
        self._transfers[stream].download(dst_host, *self._here.buffers.at(src, nbytes), nbytes)
        if self._here.cut is not None:
            raise_if_cut(self._here.cut)

    def fetch(self, dst_pinned: int, src: int, nbytes: int, stream: int) -> None:
        block, offset = self._here.buffers.at(src, nbytes)
        pinned = self._pinned(dst_pinned)
        there = pinned.address - pinned.base + dst_pinned - pinned.host
        self._copy(block, offset, pinned, there, nbytes, stream, f"a copy of {nbytes:,} bytes from the device failed")

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream; both are memory of this device."""
        if dst == src:  # Vulkan copies nothing onto itself
            return
        if self._streams[stream].capturing:
            self.copy_rows(dst, 0, src, 0, nbytes, 1, stream)
            return
        to, to_at = self._here.buffers.at(dst, nbytes)
        source, at = self._here.buffers.at(src, nbytes)
        self._copy(source, at, to, to_at, nbytes, stream, f"a copy of {nbytes:,} bytes on the device failed")

    def _copy(self, source: DeviceBuffer, at: int, to: DeviceBuffer, to_at: int, nbytes: int, stream: int, doing: str) -> None:
        if nbytes:
            self._put("copy", stream, doing, source.number, at, to.number, to_at, nbytes)

    def _put(self, command: str, stream: int, doing: str, *given: int) -> None:
        """Put a command of Vulkan's into a stream."""
        self._streams[stream].check(self._here.recorder.own[command](stream, *given), doing)

    # ---- code
    def build(self, texts: Texts, info: DeviceInfo, keep: bool) -> CodeImage:
        """SPIR-V, by our translator."""
        return build.build(texts, self._here.features, keep)

    def load_module(self, image: bytes, name: str) -> int:
        """Facts and SPIR-V. The driver compiles a function for each size of a launch, at the first one."""
        return self._here.load(image, name)

    def function(self, module: int, name: str) -> LoadedFunction:
        """With its pipeline, if all its launches have one size. The driver does not tell what a thread takes."""
        found = self._here.function(module, name)
        if found.facts.threads and not found.facts.dynamic:
            self._here.make_pipeline(found, found.facts.threads, 0)
        return LoadedFunction(found.handle, shared_bytes=found.facts.shared)

    def unload(self, module: int) -> None:
        """When what is in the streams now has run."""
        self._here.unload(module)

    # ---- events
    def event(self, sleeps: bool = False) -> int:
        if not self._queries:
            self._queries = self._make_queries()
        number = next(self._numbers)
        self._events[number] = _VulkanEvent(*self._queries.pop())
        return number

    def _make_queries(self) -> list[tuple[Any, int]]:
        api = self._here.api
        made = api.ffi.new("VkQueryPool*")
        kind = {
            "sType": api.type_of("VkQueryPoolCreateInfo"),
            "queryType": api.constant("QUERY_TYPE_TIMESTAMP"),
            "queryCount": _QUERIES,
        }
        info = api.ffi.new("VkQueryPoolCreateInfo*", kind)
        api.check_memory(api.lib.vkCreateQueryPool(self._here.handle, info, api.ffi.NULL, made), "making an event failed")
        self._pools.append(made[0])
        return [(made[0], k) for k in range(_QUERIES)]

    def event_free(self, event: int) -> None:
        """Its query is used again, in the order of the stream."""
        gone = self._events.pop(event)
        self._queries.append((gone.pool, gone.query))

    def record(self, event: int, stream: int) -> None:
        """In the stream, which is handed to the device."""
        made, at = self._streams[stream], self._events[event]
        self._put("stamp", stream, "recording an event failed", self._here.api.number(at.pool), at.query)
        at.stream, at.value = made, made.submit()

    def event_wait(self, event: int) -> None:
        at = self._events[event]
        if at.stream is not None and at.stream in self._here.streams:
            at.stream.wait(at.value)

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Between two time stamps of the device."""
        bits = self._here.physical.time_bits
        ticks = (self._stamp(self._events[end]) - self._stamp(self._events[begin])) & ((1 << bits) - 1)
        return ticks * self._here.physical.tick_ns * 1e-6

    def _stamp(self, at: _VulkanEvent) -> int:
        api, value = self._here.api, self._here.api.ffi.new("uint64_t*")
        code = api.lib.vkGetQueryPoolResults(self._here.handle, at.pool, at.query, 1, 8, value, 8, _WHOLE_AND_WAITING)
        api.check(code, "reading two events failed")
        return int(value[0])
