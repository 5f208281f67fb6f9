"""The few calls of a GPU driver that the backend needs. Handles and addresses are plain integers. ``nvidia`` has the real one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...errors import DeviceError
from .results import device_error


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What is known of a device before it is opened.

    Attributes:
        index: its number in this process, after CUDA_VISIBLE_DEVICES.
        uuid: ``GPU-`` and 32 hexadecimal digits in groups.
        pci: domain:bus:device.function, hexadecimal.
        cc: compute capability, (9, 0) for sm_90.
        sms: multiprocessors.
        threads_per_sm: threads that one of them holds at most.
        shared_per_block: bytes of shared memory that a block may take without asking.
        driver_version: 1000 * major + 10 * minor of the CUDA version that the driver speaks.
    """

    index: int
    name: str
    uuid: str
    pci: str
    cc: tuple[int, int]
    sms: int
    threads_per_sm: int
    memory_bytes: int
    l2_bytes: int
    shared_per_block: int
    driver_version: int

    @property
    def chip(self) -> str:
        """The name that code is compiled for."""
        return f"sm_{self.cc[0]}{self.cc[1]}"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a loaded module: its handle, and what a thread (registers, bytes of stack) and a block (shared bytes) of it take."""

    handle: int
    local_bytes: int = 0
    registers: int = 0
    shared_bytes: int = 0


class Driver(Protocol):
    """What a device needs of its driver. Every call works on any thread; one that fails raises ``DeviceError``.

    Attributes:
        name: ``cuda`` or ``emulated``: which code its modules are.
        launch_address: a C function with the signature of ``cuLaunchKernel``, for native code.
        memset_address: one with that of ``cuMemsetD32Async``.
    """

    name: str
    launch_address: int
    memset_address: int

    def device_count(self) -> int:
        """How many devices this process may use."""
        ...

    def describe(self, index: int) -> DeviceInfo:
        """A device, without opening it."""
        ...

    def open(self, index: int) -> None:
        """Take a device: its context is current on this thread afterwards. A driver object opens one device."""
        ...

    def share(self, index: int) -> None:
        """Before ``open``: many threads will wait for the device, so they are to sleep and not to spin."""
        ...

    def bind(self) -> None:
        """Make the context current on this thread, for code that calls the driver by itself."""
        ...

    def stream(self, ordered: bool) -> int:
        """A new stream, which waits for no other one of this kind. ``ordered``: it is in order with the default stream."""
        ...

    def stream_free(self, stream: int) -> None:
        """Give a stream back in which nothing runs."""
        ...

    def close(self, stream: int) -> None:
        """Give the last stream of this object back, and the memory that the driver keeps for it."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait for everything in a stream; raises what failed in it. Stream 0: for everything in the default stream, which comes after
        what is in ordered ones.
        """
        ...

    def allocate(self, nbytes: int, stream: int) -> int:
        """Device memory for work that is put into the stream later. Its content is arbitrary."""
        ...

    def free(self, ptr: int, stream: int) -> None:
        """Give memory back once the work that is in the stream now has ended."""
        ...

    def trim(self) -> None:
        """Give all memory that is kept for later allocations back to the device. Synchronize first: what is not free yet stays."""
        ...

    def pool_bytes(self) -> tuple[int, int]:
        """Bytes of this driver object's allocations: in use, and taken from the device."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """Bytes of the device that are free now, and all of them."""
        ...

    def host_allocate(self, nbytes: int) -> int:
        """Pinned host memory, at the same address on both sides. Its content is arbitrary."""
        ...

    def host_free(self, ptr: int) -> None:
        """Give pinned memory back; nothing may be using it."""
        ...

    def is_pinned(self, address: int) -> bool:
        """Whether an address is pinned memory of the host, ours or another library's."""
        ...

    def memset(self, ptr: int, word: int, count: int, width: int, stream: int) -> None:
        """Fill with ``count`` words of ``width`` bytes (1, 2 or 4)."""
        ...

    def upload(self, dst: int, src_host: int, nbytes: int, stream: int) -> None:
        """Host to device. Pageable memory may be changed after the call; pinned memory is read when its turn in the stream comes."""
        ...

    def download(self, dst_host: int, src: int, nbytes: int, stream: int) -> None:
        """Device to host. The bytes are there when the call returns."""
        ...

    def fetch(self, dst_pinned: int, src: int, nbytes: int, stream: int) -> None:
        """Device to pinned host memory, in the stream: the bytes are there once an event recorded after it has passed."""
        ...

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """Device to device, also between devices."""
        ...

    def assemble(self, text: bytes, name: str) -> bytes:
        """The image of a module from its text: machine code (a cubin) for the open device."""
        ...

    def load_module(self, image: bytes, name: str) -> int:
        """Load an image. ``name``: the kernel, for messages."""
        ...

    def function(self, module: int, name: str) -> Function:
        """A kernel function of a module."""
        ...

    def unload(self, module: int) -> None:
        """Forget a module; nothing of it may be running."""
        ...

    def event(self, sleeps: bool = False) -> int:
        """A new event. ``sleeps``: a thread that waits for it gives its processor up."""
        ...

    def event_free(self, event: int) -> None:
        """Forget an event."""
        ...

    def record(self, event: int, stream: int) -> None:
        """Put an event into a stream."""
        ...

    def event_wait(self, event: int) -> None:
        """Wait until what was before the event in its stream has ended."""
        ...

    def stream_wait(self, stream: int, event: int) -> None:
        """Let a stream wait for an event of another one."""
        ...

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Milliseconds on the device's clock between two events that have passed."""
        ...

    def capture_begin(self, stream: int) -> None:
        """Record what this thread puts into the stream from now on, instead of running it."""
        ...

    def capture_end(self, stream: int) -> int:
        """The recorded graph, ready to launch."""
        ...

    def graph_launch(self, graph: int, stream: int) -> None:
        """Put a graph into a stream."""
        ...

    def graph_free(self, graph: int) -> None:
        """Forget a graph."""
        ...


def failure(code: int, doing: str, detail: str = "") -> DeviceError:
    """The error of a driver call that returned a CUresult other than 0."""
    return device_error(code, doing, detail=detail)
