"""Metal as a driver. Nothing of macOS is loaded before a driver object is made."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

from ...errors import DeviceError
from ..gpu.commands.driver import CommandDriver
from ..gpu.driver import CodeImage, DeviceInfo, LoadedFunction, Texts
from . import build, objc
from .gpu import MetalGpu, gpu
from .heaps import Heaps
from .kind import METAL, OLDEST_SYSTEM
from .library import MetalLibrary, load_library
from .results import INVALID_HANDLE, device_error
from .stream import MetalStream

PROCESSORS, THREADS = 64, 1024
"""Metal does not tell how many processors a GPU has: a grid has at most so many times so many threads."""
FAMILIES = range(1020, 1000, -1)
"""``MTLGPUFamilyApple..``: 1001 is the first."""


def system_version() -> int:
    """The version of macOS, 100 * major + minor."""
    major, _, rest = platform.mac_ver()[0].partition(".")
    return 100 * int(major or 0) + int(rest.partition(".")[0] or 0)


def initialise() -> objc.Objc:
    """The Objective-C run time with Metal.

    Raises:
        DeviceError: there is no Metal, or too old a macOS; says which.
    """
    found = objc.load()
    if system_version() < OLDEST_SYSTEM:
        raise DeviceError(
            f"Metal cannot be used: this is macOS {platform.mac_ver()[0]}, and {OLDEST_SYSTEM // 100} is needed"
            "\n  do: update macOS, or use another backend"
        )
    return found


@dataclass(eq=False, slots=True)
class MetalEvent:
    """A place in a stream: after a submission, whose command buffer is kept until its time ``ended`` has been read."""

    stream: MetalStream
    submission: int
    buffer: int
    ended: float


class MetalDriver(CommandDriver[MetalStream]):
    """Metal, for one device. See ``Driver``."""

    kind = METAL

    def __init__(self) -> None:
        super().__init__()
        self._objc = initialise()
        self._devices = self._objc.devices()
        self._modules: dict[int, MetalLibrary] = {}
        self._events: dict[int, MetalEvent | None] = {}
        self._opened: tuple[MetalGpu, Heaps] | None = None

    # ---- devices
    def device_count(self) -> int:
        return len(self._devices)

    def describe(self, index: int) -> DeviceInfo:
        o, device = self._objc, self._devices[index]
        family = next((f - 1000 for f in FAMILIES if o.send(device, "supportsFamily:", f)), 0)
        with o.pool():
            name = o.text(o.send(device, "name"))
        number = o.send(device, "registryID")
        return DeviceInfo(
            index=index,
            name=name,
            uuid=f"GPU-{number:016x}",
            pci="built in",
            chip=f"apple{family}" if family and o.send(device, "hasUnifiedMemory") else "other",
            sms=PROCESSORS,
            threads_per_sm=THREADS,
            memory_bytes=o.send(device, "recommendedMaxWorkingSetSize"),
            driver_version=system_version(),
            most_bytes=o.send(device, "maxBufferLength"),
            most_bytes_name="maxBufferLength",
        )

    def open(self, index: int) -> None:
        found = gpu(self._objc, self._devices[index])
        self._opened = found, Heaps(self._objc, found.device, self._streams.values)
        self._open(found)

    @property
    def _gpu(self) -> MetalGpu:
        assert self._opened is not None
        return self._opened[0]

    @property
    def _heaps(self) -> Heaps:
        assert self._opened is not None
        return self._opened[1]

    # ---- streams
    def stream(self, ordered: bool) -> int:
        """A command queue. No other library's work is in order with it."""
        stream = self._gpu.stream(self._heaps)
        self._streams[stream.handle] = stream
        return stream.handle

    def stream_free(self, stream: int) -> None:
        self._streams.pop(stream).close()

    def close(self, stream: int) -> None:
        """Release the stream and the heaps."""
        try:
            self.stream_free(stream)
        finally:
            self._heaps.release()

    def synchronize(self, stream: int) -> None:
        """Wait for the stream. There is no default one."""
        if stream:
            self._streams[stream].synchronize()

    # ---- memory
    def allocate(self, nbytes: int, stream: int) -> int:
        """From the heaps. What was freed is in the order of the stream, as all work is."""
        doing = f"allocating {nbytes:,} bytes of device memory failed"
        self._streams[stream].refuse_in_graph(doing)
        return self._heaps.allocate(nbytes, doing).address

    def free(self, ptr: int, stream: int) -> None:
        """At once for what is put into the stream later; a heap goes once no work uses it."""
        self._heaps.free(ptr)

    def trim(self) -> None:
        """Give heaps back in which nothing lives."""
        self._heaps.trim()

    def pool_bytes(self) -> tuple[int, int]:
        """Bytes of blocks and of heaps."""
        return self._heaps.bytes()

    def memory_info(self) -> tuple[int, int]:
        """What macOS recommends to use at most, and what this process does not use of it. Metal does not tell what others use."""
        o, device = self._objc, self._gpu.device
        total = o.send(device, "recommendedMaxWorkingSetSize")
        return max(0, total - o.send(device, "currentAllocatedSize")), total

    def host_allocate(self, nbytes: int) -> int:
        """Shared memory; ``device_address`` says where kernels have it."""
        return self._gpu.mapped.allocate(nbytes, f"allocating {nbytes:,} bytes of shared memory failed").host

    def host_free(self, ptr: int) -> None:
        block = self._gpu.mapped.at_host(ptr)
        if block is None or block.host != ptr:
            raise device_error(INVALID_HANDLE, "freeing shared memory failed")
        self._gpu.mapped.free(block.address)

    def device_address(self, address: int) -> int:
        """The ``gpuAddress`` of memory of ``host_allocate``."""
        block = self._gpu.mapped.at_host(address)
        if block is None:
            raise device_error(INVALID_HANDLE, "finding shared memory failed")
        return block.address + address - block.host

    def is_pinned(self, address: int) -> bool:
        """Whether an address is memory of ``host_allocate``."""
        return self._gpu.mapped.at_host(address) is not None

    def memset(self, ptr: int, word: int, count: int, width: int, stream: int) -> None:
        self.memset_rows(ptr, 0, word, count, width, 1, stream)

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        self.copy_rows(dst, 0, src, 0, nbytes, 1, stream)

    def upload(self, dst: int, src_host: int, nbytes: int, stream: int) -> None:
        """Shared memory is read by the device when the copy's turn comes. All other memory is read at once, into the device's own where
        nothing is in the stream.
        """
        s, doing = self._streams[stream], f"a copy of {nbytes:,} bytes to the device failed"
        if nbytes and self.is_pinned(src_host):
            self.copy(dst, self.device_address(src_host), nbytes, stream)
            return
        s.refuse_in_graph(doing)
        if not nbytes:
            return
        if s.idle:
            ctypes.memmove(self._on_host(dst, nbytes, doing), src_host, nbytes)
            return
        staged = self._gpu.mapped.allocate(nbytes, doing)
        ctypes.memmove(staged.host, src_host, nbytes)
        self.copy(dst, staged.address, nbytes, stream)
        s.later(lambda: self._gpu.mapped.free(staged.address))

    def download(self, dst_host: int, src: int, nbytes: int, stream: int) -> None:
        """Wait, and copy on the host."""
        self._streams[stream].synchronize()
        if nbytes:
            ctypes.memmove(dst_host, self._on_host(src, nbytes, f"a copy of {nbytes:,} bytes from the device failed"), nbytes)

    def _on_host(self, address: int, nbytes: int, doing: str) -> int:
        """Where the host has device memory."""
        block = self._heaps.at(address, nbytes) or self._gpu.mapped.at(address, nbytes)
        if block is None:
            raise device_error(INVALID_HANDLE, doing)
        return block.host + address - block.address

    def fetch(self, dst_pinned: int, src: int, nbytes: int, stream: int) -> None:
        self.copy(self.device_address(dst_pinned), src, nbytes, stream)

    # ---- code
    def build(self, texts: Texts, info: DeviceInfo, keep: bool) -> CodeImage:
        """Metal Shading Language."""
        return build.build(texts, keep)

    def load_module(self, image: bytes, name: str) -> int:
        """Compile a source."""
        library = load_library(self._objc, self._gpu.device, image.decode(), f"`{name}`")
        number = next(self._numbers)
        self._modules[number] = library
        return number

    def function(self, module: int, name: str) -> LoadedFunction:
        """With its pipeline."""
        found = self._modules[module].function(name)
        return LoadedFunction(found.handle, shared_bytes=found.shared_bytes)

    def unload(self, module: int) -> None:
        """Release a library and its pipelines; command buffers that run keep theirs."""
        self._modules.pop(module).release()

    # ---- events
    def event(self, sleeps: bool = False) -> int:
        number = next(self._numbers)
        self._events[number] = None
        return number

    def event_free(self, event: int) -> None:
        self._ended(self._events.pop(event))

    def record(self, event: int, stream: int) -> None:
        """The command buffer ends here, and is committed."""
        s = self._streams[stream]
        last = s.submit()
        buffer, before = s.hold(last), self._events[event]
        self._events[event] = MetalEvent(s, last, buffer, s.ended)
        self._ended(before)

    def event_wait(self, event: int) -> None:
        found = self._events[event]
        if found is not None:
            found.stream.wait(found.submission)

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Between the ends of two command buffers, on the device's clock."""
        first, last = (self._ended(self._events[e]) for e in (begin, end))
        return 1e3 * (last - first)

    def _ended(self, event: MetalEvent | None) -> float:
        """When the work before an event has ended."""
        if event is None:
            return 0.0
        buffer, event.buffer = event.buffer, 0
        if buffer:
            event.ended = self._objc.send(buffer, "GPUEndTime")
            self._objc.send(buffer, "release")
        return event.ended
