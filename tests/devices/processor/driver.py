"""The driver's interface on the processor, for tests: devices with a memory of their own, streams, modules, graphs.

What runs device functions is an ``Executor``: the processor, or an emulator of another GPU's instructions.

It is stricter than a GPU where that finds faults: device memory cannot be touched by the host (``arena``), work that was queued runs as
late as it may, and a failure stays, as on a GPU, until the process ends (``heal`` is for the tests of that).
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np

from qdrun.compiler.runtime.cuda.kind import CUDA
from qdrun.compiler.runtime.gpu.driver import CodeImage, Conditions, DeviceInfo, DriverTraits, LoadedFunction, Texts

from .arena import POISON
from .conditions import EmulatedConditions
from .hardware import emulated_target
from .machine import (
    CAPTURE_UNSUPPORTED,
    ILLEGAL_ADDRESS,
    INVALID_HANDLE,
    INVALID_VALUE,
    NO_CAPTURE,
    NOT_FOUND,
    OUT_OF_MEMORY,
    Event,
    Fault,
    Stream,
    emulated_machine,
)
from .processor import PROCESSOR, Executor

SMS, THREADS_PER_SM = 2, 4
"""Few threads, so that a test's few iterations already need more than one round of the grid."""


EMULATED = replace(
    CUDA, name="emulated", target=lambda info: emulated_target(), blocking="", dlpack=None, stays=False, process=None
)
"""It stands for an NVIDIA GPU, whose results it gives; a failure ends with its test (``EmulatedMachine.heal``)."""


class EmulatedDriver:
    """A driver object of the one emulated machine.

    Args:
        executor: runs the device functions.
        kind: the properties of the devices that it stands for.
        name, chip: of the devices.
        threads_per_sm: as many threads as half a grid has.
    """

    def __init__(
        self,
        executor: Executor = PROCESSOR,
        kind: DriverTraits = EMULATED,
        name: str = "emulated device",
        chip: str = "sm_90",
        threads_per_sm: int = THREADS_PER_SM,
    ) -> None:
        self._executor, self.kind = executor, kind
        self._name, self._chip, self._threads_per_sm = name, chip, threads_per_sm
        self.machine = emulated_machine()
        self.launch_address, self.memset_address = self.machine.launch_address, self.machine.memset_address
        self.together_address = self.machine.together_address
        self._used: dict[int, int] = {}
        self.conditions: Conditions | None = EmulatedConditions(self.machine) if kind is EMULATED else None

    def native_copy(self, stream: int) -> int:
        """See ``Driver``."""
        del stream
        return self.machine.copy_address

    # ---- devices
    def device_count(self) -> int:
        """Two, so that a choice can be wrong."""
        return 2

    def describe(self, index: int) -> DeviceInfo:
        """A device of a few threads."""
        return DeviceInfo(
            index=index,
            name=self._name,
            uuid=f"GPU-00000000-0000-0000-0000-{index:012d}",
            pci=f"0000:{index + 1:02x}:00.0",
            chip=self._chip,
            sms=SMS,
            threads_per_sm=self._threads_per_sm,
            memory_bytes=self.machine.arena.size,
            driver_version=13000,
        )

    def share(self, index: int) -> None:
        """No effect: there is nothing to set."""

    def open(self, index: int) -> None:
        """No effect: everything is loaded."""

    def explain(self) -> str:
        """Nothing."""
        return ""

    def bind(self) -> None:
        """No effect: there are no contexts."""

    # ---- streams
    def stream(self, ordered: bool) -> int:
        """A new stream."""

        def call() -> int:
            number = next(self.machine.numbers)
            self.machine.streams[number] = Stream(ordered=ordered)
            return number

        return self.machine.guarded("stream", call)

    def stream_free(self, stream: int) -> None:
        """Run the queued work and remove the stream."""
        self.close(stream)

    def close(self, stream: int) -> None:
        """Run the queued work and remove the stream."""

        def call() -> None:
            self.machine.drain(self.machine.stream(stream))
            del self.machine.streams[stream]

        self.machine.guarded("close", call)

    def synchronize(self, stream: int) -> None:
        """Run the queued work of a stream; stream 0: of all streams that are ordered with it."""
        m = self.machine
        run = (lambda: m.drain(m.stream(stream))) if stream else m.drain_ordered
        m.guarded("synchronize", run, "work on the device failed")

    # ---- memory
    def allocate(self, nbytes: int, stream: int) -> int:
        """A block of poison."""

        def call() -> int:
            if self.machine.stream(stream).capture is not None:
                raise Fault(CAPTURE_UNSUPPORTED)
            try:
                ptr = self.machine.arena.allocate(nbytes)
            except MemoryError:
                raise Fault(OUT_OF_MEMORY) from None
            self._used[ptr] = nbytes
            return ptr

        return self.machine.guarded("allocate", call, f"allocating {nbytes:,} bytes of device memory failed")

    def free(self, ptr: int, stream: int) -> None:
        """Once the work before it has run."""

        def work() -> None:
            if not self.machine.arena.free(ptr):
                raise Fault(ILLEGAL_ADDRESS)  # something was written outside of the block

        def call() -> None:
            if self._used.pop(ptr, None) is None:
                raise Fault(INVALID_VALUE)
            self.machine.put(stream, work)

        self.machine.guarded("free", call)

    def trim(self) -> None:
        """Nothing is kept."""

    def pool_bytes(self) -> tuple[int, int]:
        """Bytes of this object's blocks; blocks are not rounded up."""
        return sum(self._used.values()), sum(self._used.values())

    def memory_info(self) -> tuple[int, int]:
        """Free and total, of all programs."""
        arena = self.machine.arena
        return arena.size - arena.used, arena.size

    def host_allocate(self, nbytes: int) -> int:
        """Poison, 64-byte aligned."""
        raw = np.full(nbytes + 64, POISON, np.uint8)
        skip = -raw.ctypes.data % 64
        with self.machine.lock:
            self.machine.pinned[raw.ctypes.data + skip] = raw[skip : skip + nbytes]
        return raw.ctypes.data + skip

    def device_address(self, address: int) -> int:
        """The same."""
        return address

    def host_free(self, ptr: int) -> None:
        """Waits for all streams, as the driver does."""

        def call() -> None:
            self.machine.whole("host_free")
            self.machine.drain_all()
            raw = self.machine.pinned.pop(ptr, None)
            if raw is None:
                raise Fault(INVALID_VALUE)
            raw[:] = POISON

        self.machine.guarded("host_free", call)

    def is_pinned(self, address: int) -> bool:
        """Free memory of ``host_allocate``."""
        return self.machine.guarded("is_pinned", lambda: self.machine.is_pinned(address, 1))

    def memset(self, ptr: int, word: int, count: int, width: int, stream: int) -> None:
        """In the stream."""
        m = self.machine
        m.guarded("memset", lambda: m.put(stream, lambda: m.fill(ptr, word, count, width)))

    def upload(self, dst: int, src_host: int, nbytes: int, stream: int) -> None:
        """Pageable memory is read at once, pinned memory when the work runs."""
        m = self.machine

        def call() -> None:
            if m.is_pinned(src_host, nbytes):
                m.put(stream, lambda: m.move(dst, src_host, nbytes, dst))
                return
            if m.stream(stream).capture is not None:
                raise Fault(CAPTURE_UNSUPPORTED)
            staged = ctypes.create_string_buffer(ctypes.string_at(src_host, nbytes), nbytes + 1)
            m.put(stream, lambda: m.move(dst, ctypes.addressof(staged), nbytes, dst))

        m.guarded("upload", call)

    def download(self, dst_host: int, src: int, nbytes: int, stream: int) -> None:
        """Run what was queued, and copy."""
        m = self.machine

        def call() -> None:
            m.put(stream, lambda: m.move(dst_host, src, nbytes, src))
            m.drain(m.stream(stream))

        m.guarded("download", call)

    def fetch(self, dst_pinned: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream."""
        m = self.machine

        def call() -> None:
            if not m.is_pinned(dst_pinned, nbytes):
                raise Fault(INVALID_VALUE)
            m.put(stream, lambda: m.move(dst_pinned, src, nbytes, src))

        m.guarded("fetch", call)

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream."""
        m = self.machine
        m.guarded("copy", lambda: m.put(stream, lambda: m.move(dst, src, nbytes, dst, src)))

    def copy_rows(self, dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int, stream: int) -> None:
        """Row after row, as ``copy``."""
        for k in range(rows):
            self.copy(dst + k * dst_step, src + k * src_step, nbytes, stream)

    def memset_rows(self, ptr: int, step: int, word: int, count: int, width: int, rows: int, stream: int) -> None:
        """Row after row, as ``memset``."""
        for k in range(rows):
            self.memset(ptr + k * step, word, count, width, stream)

    # ---- modules
    def build(self, texts: Texts, info: DeviceInfo, keep: bool) -> CodeImage:
        """The text itself, unless the executor has another image."""
        return self._executor.build(texts, keep)

    def load_module(self, image: bytes, name: str) -> int:
        """Load an image.

        Raises:
            QdrunRuntimeError: the executor refuses it.
        """
        loaded = self._executor.load(image, name)
        m = self.machine

        def call() -> int:
            m.whole("load_module")
            handle = next(m.numbers)
            module = m.modules[handle] = {n: next(m.numbers) for n in loaded}
            m.kernels.update({number: loaded[n] for n, number in module.items()})
            return handle

        return m.guarded("load_module", call, f"loading kernel `{name}` failed")

    def function(self, module: int, name: str) -> LoadedFunction:
        """A function's handle."""

        def call() -> LoadedFunction:
            if module not in self.machine.modules or name not in self.machine.modules[module]:
                raise Fault(NOT_FOUND)
            return LoadedFunction(self.machine.modules[module][name], 0, 32, 0)

        return self.machine.guarded("function", call)

    def unload(self, module: int) -> None:
        """Queued work keeps the code."""

        def call() -> None:
            if module not in self.machine.modules:
                raise Fault(INVALID_HANDLE)
            self.machine.whole("unload")
            for handle in self.machine.modules.pop(module).values():
                del self.machine.kernels[handle]

        self.machine.guarded("unload", call)

    # ---- events
    def event(self, sleeps: bool = False) -> int:
        """A new event."""
        number = next(self.machine.numbers)
        self.machine.events[number] = Event()
        return number

    def event_free(self, event: int) -> None:
        """Forget an event."""
        self.machine.events.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        """Note when the work before it has run."""
        self.machine.guarded("record", lambda: self.machine.record(event, stream))

    def event_wait(self, event: int) -> None:
        """Run the work before the event, in its stream and in streams that it waits for."""
        m, found = self.machine, self.machine.events[event]
        m.guarded("event_wait", lambda: None if found.stream is None else m.drain(found.stream, found))

    def elapsed_ms(self, begin: int, end: int) -> float:
        """The time between two completed events."""
        return self.machine.events[end].ms - self.machine.events[begin].ms

    def _put(self, call: str, stream: int, work: Any) -> None:
        self.machine.guarded(call, lambda: self.machine.put(stream, work))

    # ---- graphs
    def capture_begin(self, stream: int) -> None:
        """From now on the stream's work is recorded and does not run."""

        def call() -> None:
            s = self.machine.stream(stream)
            self.machine.drain(s)
            s.capture = []

        self.machine.guarded("capture_begin", call)

    def capture_end(self, stream: int) -> int:
        """The graph of what was recorded."""

        def call() -> int:
            s = self.machine.stream(stream)
            if s.capture is None:
                raise Fault(NO_CAPTURE)
            number = next(self.machine.numbers)
            self.machine.graphs[number], s.capture = s.capture, None
            return number

        return self.machine.guarded("capture_end", call)

    def graph_launch(self, graph: int, stream: int) -> None:
        """Queue all of a graph's work."""

        def call() -> None:
            if graph not in self.machine.graphs:
                raise Fault(INVALID_HANDLE)
            for work in self.machine.graphs[graph]:
                self.machine.put(stream, work)

        self.machine.guarded("graph_launch", call)

    def graph_free(self, graph: int) -> None:
        """Forget a graph."""
        self.machine.graphs.pop(graph, None)
