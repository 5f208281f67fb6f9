"""The driver of a library that is called through Python bindings, for the libraries whose calls differ in their names alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from .driver import Conditions, DriverTraits, LoadedFunction

KEEP_BYTES = 64 << 20
"""Freed bytes that a pool keeps for the next allocation instead of giving them back to the device at the next synchronization. Small: other
processes pack their memory beside ours."""
_NOT_ORDERED = 1  # the flag of a stream that does not wait for the default one, in every library


@dataclass(frozen=True, slots=True)
class LibraryNames:
    """The names of a library. Values are written with their group, as ``CUlimit.CU_LIMIT_STACK_SIZE``.

    Attributes:
        prefix: of all functions.
        functions: those that are not called by the prefix and the common name, by that name.
        pool: the type of a pool's properties, and the values of its allocations, handles and location.
        keeps, used, reserved: the attributes of a pool: bytes that it keeps, that are in use, that it has taken.
        capture: recording watches one thread.
        function: the beginning of a function's attributes.
    """

    prefix: str
    functions: Mapping[str, str]
    pool: tuple[str, str, str, str]
    keeps: str
    used: str
    reserved: str
    capture: str
    function: str


class LibraryDriver:
    """What the drivers of such libraries share of ``Driver``. A backend's driver adds how its devices are opened, and what differs.

    Attributes:
        d: the bindings: each function returns its result code, and then what it gives.
    """

    kind: DriverTraits
    names: ClassVar[LibraryNames]

    def __init__(self, d: Any) -> None:
        self.d = d
        self.launch_address = self.memset_address = self.together_address = self._copy_address = 0
        self._pool: Any = None

    def native_copy(self, stream: int) -> int:
        """See ``Driver``."""
        del stream
        return self._copy_address

    # ---- calls
    @abstractmethod
    def _call(self, doing: str, function: Any, *args: Any) -> Any:
        """Call a function with our device current, and return what it gives.

        Raises:
            DeviceError: the result is not success.
        """

    def _do(self, name: str, doing: str, *args: Any) -> Any:
        """Call the function with a common name. ``doing`` opens the message of a failure."""
        return self._call(doing, self._function(name), *args)

    def _function(self, name: str) -> Any:
        return getattr(self.d, self.names.functions.get(name) or f"{self.names.prefix}{name}")

    def _checked(self, doing: str, outcome: tuple[Any, ...]) -> Any:
        code, *rest = outcome
        if int(code):
            raise self.kind.results.error(int(code), doing, getattr(code, "name", ""))
        return rest[0] if len(rest) == 1 else tuple(rest)

    def _value(self, name: str) -> Any:
        return reduce(getattr, name.split("."), self.d)

    @property
    def conditions(self) -> Conditions | None:
        """None, unless the library has them."""
        return None

    def explain(self) -> str:
        """Nothing: a result has its code alone."""
        return ""

    # ---- streams
    def stream(self, ordered: bool) -> int:
        """Other libraries work on the default one: streams of programs that share memory with them are in order with it."""
        return int(self._do("StreamCreate", "making a stream failed", 0 if ordered else _NOT_ORDERED))

    def stream_free(self, stream: int) -> None:
        """Destroy it."""
        self._do("StreamDestroy", "giving a stream back failed", stream)

    def close(self, stream: int) -> None:
        """Destroy the stream and the pool."""
        doing = "closing the device failed"
        self._do("StreamDestroy", doing, stream)
        self._closing(doing)
        if self._pool is not None:
            self._do("MemPoolDestroy", doing, self._pool)
            self._pool = None

    def _closing(self, doing: str) -> None:
        """Between the stream and the pool."""

    def synchronize(self, stream: int) -> None:
        """Wait for the stream. The default one waits for all that are in order with it."""
        self._do("StreamSynchronize", "work on the device failed", stream)

    # ---- memory
    def _make_pool(self, doing: str, index: int) -> None:
        """A pool of our own: what it keeps and how much it holds is not mixed with other libraries' use of the device's default pool."""
        kind, *values = self.names.pool
        properties = self._value(kind)()
        properties.allocType, properties.handleTypes, properties.location.type = map(self._value, values)
        properties.location.id = index
        self._pool = self._do("MemPoolCreate", doing, properties)
        self._set_of_pool(self._value(self.names.keeps), doing, KEEP_BYTES)

    @abstractmethod
    def _set_of_pool(self, attribute: Any, doing: str, nbytes: int) -> None:
        """Set an attribute of the pool."""

    @abstractmethod
    def _of_pool(self, attribute: Any) -> int:
        """An attribute of the pool."""

    def allocate(self, nbytes: int, stream: int) -> int:
        """From the pool; it is aligned to 256 bytes."""
        doing = f"allocating {nbytes:,} bytes of device memory failed"
        if self._pool is None:
            return int(self._do("Malloc", doing, nbytes))
        return int(self._do("MallocFromPoolAsync", doing, nbytes, self._pool, stream))

    def free(self, ptr: int, stream: int) -> None:
        """In the order of the stream."""
        if self._pool is None:
            self._do("Free", "freeing device memory failed", ptr)  # waits for the device
        else:
            self._do("FreeAsync", "freeing device memory failed", ptr, stream)

    def trim(self) -> None:
        """Give back what the pool keeps."""
        if self._pool is not None:
            self._do("MemPoolTrimTo", "giving memory back failed", self._pool, 0)

    def pool_bytes(self) -> tuple[int, int]:
        """Bytes of the pool; 0 if the device has none."""
        if self._pool is None:
            return 0, 0
        return self._of_pool(self._value(self.names.used)), self._of_pool(self._value(self.names.reserved))

    def memory_info(self) -> tuple[int, int]:
        """Free and total, of all processes."""
        free, total = self._do("MemGetInfo", "reading the device's memory failed")
        return int(free), int(total)

    def device_address(self, address: int) -> int:
        """The same: addresses are unified."""
        return address

    def host_free(self, ptr: int) -> None:
        """Unpin and free."""
        self._do("HostFree", "freeing pinned memory failed", ptr)

    def memset(self, ptr: int, word: int, count: int, width: int, stream: int) -> None:
        """In the stream."""
        self._do(f"MemsetD{8 * width}Async", f"filling {count * width:,} bytes failed", ptr, word, count, stream)

    def memset_rows(self, ptr: int, step: int, word: int, count: int, width: int, rows: int, stream: int) -> None:
        """In the stream."""
        doing = f"filling {rows:,} rows of {count * width:,} bytes failed"
        self._do(f"MemsetD2D{8 * width}Async", doing, ptr, step, word, count, rows, stream)

    def fetch(self, dst_pinned: int, src: int, nbytes: int, stream: int) -> None:
        """In the stream."""
        self._do("MemcpyDtoHAsync", f"a copy of {nbytes:,} bytes from the device failed", dst_pinned, src, nbytes, stream)

    # ---- code
    def function(self, module: int, name: str) -> LoadedFunction:
        """With what a thread of it takes."""
        doing = f"kernel function `{name}` is not in its code"
        handle = self._do("ModuleGetFunction", doing, module, name.encode())
        attributes = ("LOCAL_SIZE_BYTES", "NUM_REGS", "SHARED_SIZE_BYTES")
        return LoadedFunction(
            int(handle),
            *(int(self._do("FuncGetAttribute", doing, self._value(self.names.function + x), handle)) for x in attributes),
        )

    def unload(self, module: int) -> None:
        """Drop a module."""
        self._do("ModuleUnload", "unloading code failed", module)

    # ---- events
    def event(self, sleeps: bool = False) -> int:
        """With a time stamp."""
        return int(
            self._do("EventCreate", "making an event failed", int(sleeps))
        )  # the flag of a blocking wait is 1 in every library

    def event_free(self, event: int) -> None:
        """Destroy it."""
        self._do("EventDestroy", "freeing an event failed", event)

    def record(self, event: int, stream: int) -> None:
        """In the stream."""
        self._do("EventRecord", "recording an event failed", event, stream)

    def event_wait(self, event: int) -> None:
        """On the host."""
        self._do("EventSynchronize", "work on the device failed", event)

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Between two events."""
        return float(self._do("EventElapsedTime", "reading two events failed", begin, end))

    # ---- graphs
    def capture_begin(self, stream: int) -> None:
        """Only this thread's calls are watched."""
        self._do("StreamBeginCapture", "recording a graph failed", stream, self._value(self.names.capture))

    def capture_end(self, stream: int) -> int:
        """End the recording, and instantiate."""
        doing = "recording a graph failed"
        graph = self._do("StreamEndCapture", doing, stream)
        try:
            return int(self._do("GraphInstantiate", doing, graph, 0))
        finally:
            self._function("GraphDestroy")(graph)

    def graph_launch(self, graph: int, stream: int) -> None:
        """Launch the whole graph."""
        self._do("GraphLaunch", "launching a graph failed", graph, stream)

    def graph_free(self, graph: int) -> None:
        """Destroy it."""
        self._do("GraphExecDestroy", "freeing a graph failed", graph)


def text_of(raw: Any) -> str:
    """A text that a library has written: a string, bytes, or an object of the bindings that gives its bytes."""
    data = raw.encode() if isinstance(raw, str) else bytes(raw)
    return data.split(b"\0")[0].decode(errors="replace")
