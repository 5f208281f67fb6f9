"""The interface of every backend's device, and byte accounting."""

from __future__ import annotations

import ctypes
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import OutOfMemory, QdrunRuntimeError
from ..ir.threads import new_lock
from ..ir.trials import TrialLayout, group_width
from .compiled import Compiled, CompileOptions
from .host_memory import reserved_bytes, zeroed
from .inventory import ProcessBytes
from .mirror import Link, Mirror, clear

if TYPE_CHECKING:
    from ..ir.nodes import Kernel

HEAP = "adstack"
"""The category of gradient heaps, which are planned into the bytes that a budget leaves."""


_serials = itertools.count(1)


def next_serial() -> int:
    """A number above those of all allocations that were made before, and below those of all that are made later."""
    return next(_serials)


@dataclass(eq=False, slots=True)
class Allocation:
    """Zeroed device memory. ``view`` shows the bytes to numpy; an allocation of 0 bytes has ``ptr`` 0 and an empty view.

    Where the device's memory is not the host's, ``view`` is a copy that ``mirror`` looks after: read and write through it.

    Attributes:
        ptr: the address; of memory of the host (``Device.host_words``), the host's.
        shift: how many bytes further device code sees it.
    """

    ptr: int
    nbytes: int
    category: str
    view: np.ndarray[Any, np.dtype[np.uint8]]
    freed: bool = False
    serial: int = field(default_factory=_serials.__next__)  # unlike the address, never given twice
    mirror: Mirror | None = None
    shift: int = 0

    @property
    def device_ptr(self) -> int:
        """The address for device code."""
        return self.ptr + self.shift

    def holds(self, address: int) -> bool:
        """Whether an address, of the device or of the host's copy, lies in it."""
        if self.ptr <= address < self.ptr + self.nbytes:
            return True
        return self.mirror is not None and self.mirror.holds(address)


def host_bytes(nbytes: int, category: str) -> Allocation:
    """Zeroed memory of the host; it lives as long as the allocation, or a view of it.

    Raises:
        MemoryError: the system does not give so many bytes.
    """
    view = zeroed(nbytes)
    return Allocation(view.ctypes.data, nbytes, category, view)


UNSEEN = frozenset({"adstack", "temporaries", "arguments"})
"""Categories of memory that no host code reads: they have no mirror."""


def mirrored(ptr: int, nbytes: int, category: str, link: Link) -> Allocation:
    """Zeroed device memory as an allocation, with a mirror of zeros unless no host code reads its category."""
    if category in UNSEEN:
        return Allocation(ptr, nbytes, category, np.empty(0, np.uint8))
    allocation = Allocation(ptr, nbytes, category, reserved_bytes(nbytes))
    allocation.mirror = Mirror(link, ptr, allocation.view)
    return allocation


MOST_BYTES = (1 << 63) - 1
"""The largest size that drivers and allocators accept."""


class BlockTooLarge(MemoryError):
    """A device refuses a block for its size alone; its text says which limit."""


class DeviceClient(Protocol):
    """The program that launches on a device, as far as the device knows it."""

    def alone(self) -> AbstractContextManager[None]:
        """A block in which no other thread launches."""
        ...

    def waited(self) -> None:
        """The host has waited for the device.

        Raises:
            QdrunRuntimeError: what launches have reported.
        """
        ...

    def freed(self, memory: Allocation) -> None:
        """Memory of the device was given back."""
        ...


class Device(ABC):
    """One program's device: allocates bytes by category and counts them, compiles, launches."""

    name: str
    arch: str
    threads: int
    native: bool = True  # kernels are machine code: a native launcher may call them
    on_host: bool = True  # its memory is the host's, and a launch has ended when its call returns
    identity: str = ""  # names the device in this process: code that is loaded on one is not on another
    chip_key: str = ""  # names what machine code is made for, beside the processor
    approximates: bool = False  # ``fast_math`` changes the compiled code
    process_bytes: ProcessBytes | None = None  # what a process takes of it beside its programs, where that was measured
    wide_states: bool = True  # gradients may keep f64 and i64
    tapes_on_chip: bool = False  # compiled kernels have their tapes in on-chip memory, unless a plan says otherwise
    link: Link | None = None  # of a device with memory of its own
    client: DeviceClient | None = None  # the program, once it is attached
    ahead: int = (
        0  # launches keep the interpreter's lock; after so many microseconds of them comes ``throttle``; 0: they give it up
    )
    trials: TrialLayout | None = None  # of a batched program
    lanes: int = 0  # threads of a wave that exchange values by instructions; 0: there are no such instructions
    grid_barrier: bool = False  # all threads of a loop can wait for each other
    gpu_lanes: int = 0  # threads of a trial that ``qd.init(gpu_lanes=)`` asks for; 0: what suits the device

    def __init__(self, byte_limit: int | None = None) -> None:
        self.byte_limit = byte_limit
        self.peak_bytes = 0
        self.beside_heap = ctypes.c_int64(
            0
        )  # bytes in use without ``adstack``: native launches look whether a budget leaves as much
        self._used: Counter[str] = Counter()
        self._peaks: Counter[str] = Counter()
        self._lock = new_lock(self, "_lock")
        self._live: dict[int, Allocation] = {}

    @property
    def live(self) -> Container[int]:
        """The addresses that this device has given out and not taken back."""
        return self._live.keys()

    def allocations(self) -> list[Allocation]:
        """Live bytes."""
        with self._lock:
            return list(self._live.values())

    def owner(self, address: int) -> Allocation | None:
        """The live allocation that an address lies in, if it is one of this device's."""
        found = self._live.get(address)
        if found is not None:
            return found
        with self._lock:
            return next((a for a in list(self._live.values()) if a.holds(address)), None)

    def trial_layout(self, count: int, lanes: int, extent: int) -> TrialLayout:
        """The trials of a batched program.

        Args:
            count: how many.
            lanes: of a group, as ``qd.init(cpu_lanes=)`` asks for; 0: what suits the device and the count.
            extent: see ``gpu_layout``; a CPU does not ask.
        """
        return TrialLayout(count, group_width(count, lanes, 8))

    @property
    def records(self) -> bool:
        """Whether a graph is made of the steps that the program records; else its driver records what it is given."""
        return self.on_host or self.trials is not None

    @property
    def conditional(self) -> bool:
        """Whether a graph can have parts that the device repeats or leaves out."""
        return False

    @property
    def pool_address(self) -> int:
        """The thread pool of parallel loops, 0 where the device has none."""
        return 0

    @property
    def graphs(self) -> bool:
        """Whether it keeps graphs of launches."""
        return False

    @property
    def dead(self) -> bool:
        """Whether it has failed, has said so, and cannot be used any more."""
        return False

    @property
    def used_bytes(self) -> int:
        """Bytes in use now."""
        return sum(
            list(self._used.values())
        )  # a list in one step: other threads look, and never wait for a copy that holds the lock

    def usage(self) -> dict[str, int]:
        """Bytes in use now, by category. Waits for nothing, see ``used_bytes``."""
        return {k: v for k, v in list(self._used.items()) if v}

    def peaks(self) -> dict[str, int]:
        """The most bytes in use at once of each category; the peak of all together may be less than their sum."""
        with self._lock:
            return {k: v for k, v in self._peaks.items() if v}

    def allocate(self, nbytes: int, category: str) -> Allocation:
        """Zeroed bytes, aligned to 64.

        Raises:
            OutOfMemory: the program's limit or the machine's memory is too small; names the bytes.
        """
        return self._provide(nbytes, category, self._allocate)

    def _provide(self, nbytes: int, category: str, make: Callable[[int, str], Allocation]) -> Allocation:
        """Bytes that ``make`` gives, counted under their category and within the limit."""
        if nbytes < 0:
            raise QdrunRuntimeError(f"cannot allocate {nbytes} bytes for {category}")
        if nbytes == 0:
            return Allocation(0, 0, category, np.empty(0, np.uint8))
        with self._lock:
            used = self._used.total()
            if self.byte_limit is not None and used + nbytes > self.byte_limit:
                raise OutOfMemory(self._refusal(nbytes, category, f"the limit is {self.byte_limit:,}"))
            if nbytes > MOST_BYTES:
                raise OutOfMemory(self._refusal(nbytes, category, "no machine can address so many"))
            try:
                allocation = make(nbytes, category)
            except MemoryError as e:
                why = str(e) if isinstance(e, BlockTooLarge) else f"{self.name} has no more"
                raise OutOfMemory(self._refusal(nbytes, category, why)) from e
            self._live[allocation.ptr] = allocation
            self._used[category] += nbytes
            self.beside_heap.value += nbytes if category != HEAP else 0
            self._peaks[category] = max(self._peaks[category], self._used[category])
            self.peak_bytes = max(self.peak_bytes, self._used.total())
        return allocation

    def _refusal(self, nbytes: int, category: str, why: str) -> str:
        parts = ", ".join(f"{k} {v:,}" for k, v in sorted(self._used.items()) if v) or "nothing"
        return f"{category} needs {nbytes:,} bytes; {self._used.total():,} are in use ({parts}); {why}"

    def free(self, allocation: Allocation) -> None:
        """Give an allocation back. Freeing it twice does nothing: destructors and ``close`` may both come."""
        with self._lock:
            if allocation.freed:
                return
            allocation.freed = True
            self._used[allocation.category] -= allocation.nbytes
            self.beside_heap.value -= allocation.nbytes if allocation.category != HEAP else 0
            if allocation.nbytes:
                del self._live[allocation.ptr]
                self._free(allocation)
        allocation.ptr, allocation.view = 0, np.empty(0, np.uint8)
        if self.client is not None:
            self.client.freed(allocation)

    def forked(self) -> None:  # noqa: B027
        """In a forked child."""

    def close(self) -> None:
        """Free everything. Views of it that someone kept stay readable; addresses do not."""
        for allocation in list(self._live.values()):
            self.free(allocation)

    def host_words(self, n: int, category: str) -> Allocation:
        """Zeroed 8-byte words that the host and the device both read and write, at one address."""
        return self.allocate(8 * n, category)

    def fill_context(self, words: np.ndarray, compiled: Compiled) -> None:  # noqa: B027
        """Write the words of a kernel's context that are this device's own."""

    def throttle(self) -> None:  # noqa: B027
        """Wait until the device is not too far behind; nothing to do where it has no queue."""

    def attach(self, client: DeviceClient) -> None:
        """Name the program that launches on it."""
        self.client = client

    def exclusive(self) -> AbstractContextManager[None]:
        """A block in which no other thread launches."""
        return nullcontext() if self.client is None else self.client.alone()

    def synchronize(self) -> None:  # noqa: B027
        """Wait until everything that was launched has ended; nothing to do where a launch has ended when its call returns.

        Raises:
            QdrunRuntimeError: what launches have reported.
        """

    def reported(self) -> None:  # noqa: B027
        """A failure of a launch was raised."""

    def launch_error(self, code: int, kernel: str) -> Exception:
        """The error of a launch that the driver refused with this code."""
        return QdrunRuntimeError(f"kernel `{kernel}` reported status {-code}, which it does not define: memory was overwritten")

    def native_copy(self) -> tuple[int, int]:
        """What copies memory of the device in its queue: a C function ``int (to, source, nbytes, queue)``, and the queue.

        Zeros: the host copies it.
        """
        return 0, 0

    def copied_natively(self, code: int) -> None:  # noqa: B027
        """The function of ``native_copy`` was called.

        Args:
            code: of a copy that has failed; 0: none has.

        Raises:
            DeviceError: one has.
        """

    def clearing(self, parts: Sequence[tuple[Mirror | None, np.ndarray]]) -> Callable[[], None]:
        """A function that writes zeros to these parts of memory, again and again."""
        return partial(clear, parts)

    def keep_source(self, compiled: Compiled, source: Callable[[], tuple[Kernel, CompileOptions]]) -> None:  # noqa: B027
        """The source of a compiled kernel of a batched program, for a device that compiles it again in recorded launches."""

    @abstractmethod
    def _allocate(self, nbytes: int, category: str) -> Allocation:
        """At least one zeroed byte; raises MemoryError."""

    @abstractmethod
    def _free(self, allocation: Allocation) -> None:
        """Give the bytes back to the system."""

    @abstractmethod
    def compile(self, kernel: Kernel, options: CompileOptions) -> Compiled:
        """A verified kernel, ready to run."""

    def variant(
        self, compiled: Compiled, far: frozenset[str], source: Callable[[], tuple[Kernel, CompileOptions]] | None = None
    ) -> Compiled:
        """The same kernel with these tapes in the heap, where there is on-chip memory. ``source``: gives what was compiled, and how."""
        return compiled

    def restore(self, compiled: Compiled, key: str, exports: list[str]) -> Compiled | None:
        """A kernel that another process has compiled, with its code; None when that is not kept, or not kept any more."""
        return None

    @abstractmethod
    def entry(self, compiled: Compiled) -> Callable[[int], None]:
        """Runs a compiled kernel on the argument buffer at an address (``codegen.abi``), to its end.

        What it reports is in the context's status record; an interpreter may raise it instead.
        """
