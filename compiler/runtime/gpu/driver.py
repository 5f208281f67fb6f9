"""The interface of a GPU backend: its ``DriverTraits``, and the calls of its driver.

Handles and addresses are plain integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...codegen.gpu.hardware import GpuTarget
from ..cache import disk_cache, key_of
from ..inventory import ProcessBytes
from .results import Results


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The facts about a device that are known before it is opened.

    Attributes:
        index: number among the devices that this process may use.
        uuid: ``GPU-`` and 32 hexadecimal digits in groups.
        pci: domain:bus:device.function, hexadecimal.
        chip: the driver's name of the target of compilation.
        sms: multiprocessors.
        threads_per_sm: maximum number of resident threads of a multiprocessor.
        driver_version: the driver's number.
        only_named: why a program gets the device only if it names it; empty: also if it does not.
        most_bytes: of one allocation; 0: as many as the device has. ``most_bytes_name``: what the driver calls this limit.
    """

    index: int
    name: str
    uuid: str
    pci: str
    chip: str
    sms: int
    threads_per_sm: int
    memory_bytes: int
    driver_version: int
    only_named: str = ""
    most_bytes: int = 0
    most_bytes_name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class DriverTraits:
    """The properties that all devices of a driver share.

    Attributes:
        arch: the backend of ``qd.init``.
        name: of the driver: which code its modules are.
        title: the backend's name in messages.
        results: the meanings of the driver's result codes.
        target: returns the target of code generation for a device; raises ``DeviceError`` if the device is too old.
        speaks: what a device's driver speaks, with its version.
        look: the command that lists the devices.
        blocking: the environment variable with which every launch waits; empty: there is none.
        shared_environment: variables that a process sets whose threads will all launch.
        dlpack: the devices' type in DLPack; None: no other library can use their memory.
        stays: a failure that stays ends the device for this process.
        process: what a process takes beside its programs; None: nothing.
    """

    arch: str
    name: str
    title: str
    results: Results
    target: Callable[[DeviceInfo], GpuTarget]
    speaks: Callable[[DeviceInfo], str]
    look: str
    blocking: str = ""
    shared_environment: Mapping[str, str] = field(default_factory=dict)
    dlpack: int | None = None
    stays: bool = True
    process: ProcessBytes | None = None


@dataclass(frozen=True, slots=True)
class GpuBackend:
    """A backend.

    Attributes:
        kind: the properties of its devices.
        driver: makes a driver object; raises ``DeviceError`` where the driver cannot be used.
    """

    kind: DriverTraits
    driver: Callable[[], Driver]


@dataclass(frozen=True, slots=True)
class Texts:
    """The text of a kernel from the code generator. ``features``: target features for LLVM, besides the chip."""

    name: str
    device: str
    host: str
    entry: str
    functions: tuple[str, ...]
    features: str


@dataclass(frozen=True, slots=True)
class CodeImage:
    """An image that a driver loads. ``key``: its key on disk; ``known``: it was read from disk."""

    data: bytes
    key: str
    known: bool


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """A function of a loaded module: its handle, and what a thread (registers, bytes of stack) and a block (shared bytes) of it take."""

    handle: int
    local_bytes: int = 0
    registers: int = 0
    shared_bytes: int = 0


class DeviceFlag(NamedTuple):
    """A number on the device: its address and its bytes. It counts as set if one of its bits is."""

    address: int
    nbytes: int


NO_WORD = DeviceFlag(0, 0)
"""Stands for a number that is set."""


class Conditions(Protocol):
    """Parts of a graph that the device runs again, or leaves out: conditional nodes. All calls are for the graph that a stream records."""

    def new(self, stream: int) -> int:
        """A condition of the part that is begun next."""
        ...

    def set(self, condition: int, word: DeviceFlag, scratch: int, stream: int) -> None:
        """When the stream comes here the condition becomes true if the number is set and the graph is not paused.

        Args:
            condition: of ``new``.
            word: the number.
            scratch: the address of the device's scratch memory (``codegen.abi``), which says whether it is paused.
            stream: that records.
        """
        ...

    def pause(self, word: DeviceFlag, mark: int, scratch: int, stream: int) -> None:
        """The graph is paused from here on, with this mark in the scratch memory, if the number is set then."""
        ...

    def begin(self, condition: int, again: bool, stream: int) -> None:
        """What is recorded from now on runs if the condition is true. ``again``: and as long as it is, after it."""
        ...

    def end(self, stream: int) -> None:
        """The part that was begun last ends."""
        ...


class Driver(Protocol):
    """The driver of a device. Every call works on any thread; a failing call raises ``DeviceError``.

    Attributes:
        conditions: of graphs; None: the device has none.
        kind: the properties that its devices share.
        launch_address: the C function ``qd_launch`` (``codegen.gpu.grid.entry``), for native code.
        memset_address: ``qd_memset``.
        together_address: ``qd_launch_together``; 0: the target has no ``grid_barrier``.
    """

    kind: DriverTraits
    launch_address: int
    memset_address: int
    together_address: int

    @property
    def conditions(self) -> Conditions | None:
        """See the class."""
        ...

    def device_count(self) -> int:
        """The number of devices that this process may use."""
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

    def explain(self) -> str:
        """What the driver says about the launch that it refused last, beyond its code; empty: nothing, or it has been said."""
        ...

    def bind(self) -> None:
        """Make the context current on this thread, for native code that calls the driver directly."""
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
        """Wait for all work in a stream; raises its errors. Stream 0 is the default stream, which comes after
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
        """Return all cached free memory to the device. Synchronize first: memory that is still in use stays."""
        ...

    def pool_bytes(self) -> tuple[int, int]:
        """Bytes of this driver object's allocations: in use, and taken from the device."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """Bytes of the device that are free now, and all of them."""
        ...

    def host_allocate(self, nbytes: int) -> int:
        """Pinned host memory, by the host's address of it. Device code sees it, too. Its content is arbitrary."""
        ...

    def device_address(self, address: int) -> int:
        """The address at which device code sees a byte of memory of ``host_allocate``; ``address``: the host's."""
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

    def native_copy(self, stream: int) -> int:
        """The C function that copies as ``copy`` does, with the same arguments, in this stream. It returns 0 or the code of a failure."""
        ...

    def copy_rows(self, dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int, stream: int) -> None:
        """Device to device: ``rows`` runs of ``nbytes``, each so many bytes after the one before."""
        ...

    def memset_rows(self, ptr: int, step: int, word: int, count: int, width: int, rows: int, stream: int) -> None:
        """``count`` words of ``width`` bytes (1, 2 or 4) in each row, in the stream."""
        ...

    def build(self, texts: Texts, info: DeviceInfo, keep: bool) -> CodeImage:
        """The image of a kernel's device functions for a device, kept on disk with ``keep``.

        Raises:
            QdrunRuntimeError: the compiler refuses the text; names the kernel.
            DeviceError: the driver refuses the code; names the kernel.
        """
        ...

    def load_module(self, image: bytes, name: str) -> int:
        """Load an image. ``name``: the kernel, for messages."""
        ...

    def function(self, module: int, name: str) -> LoadedFunction:
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


def text_image(texts: Texts, keep: bool) -> CodeImage:
    """The device text itself, for a driver that loads that. It is kept on disk so that it can be restored, too."""
    data, key = texts.device.encode(), key_of("device text", texts.device)
    disk = disk_cache() if keep else None
    if disk:
        disk.put(key, data, {"name": texts.name})
    return CodeImage(data, key, True)
