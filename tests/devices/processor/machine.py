"""The state that emulated devices share: memory, streams of queued work, loaded functions, and the C functions for native code."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.ir.threads import new_lock
from qdrun.compiler.runtime.cuda.results import RESULTS

from .arena import Arena, BadAddress
from .blocks import SHARED_BYTES, Diverged
from .processor import DeviceCode, NativeCode

MEMORY_BYTES = 8 << 30
MOST_QUEUED, MOST_TOGETHER = 4096, 512  # threads of a launch whose blocks wait for each other
INVALID_VALUE, OUT_OF_MEMORY, INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS, LAUNCH_FAILED = 1, 2, 400, 500, 700, 719
TOO_LARGE, CAPTURE_UNSUPPORTED, NO_CAPTURE, UNKNOWN = 720, 900, 901, 999
_BUFFER, _BUFFER_SIZE = 1, 2  # of ``extra``, see ``codegen.gpu.grid.entry``

Work = Callable[[], None]

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
_MEMSET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)


class Fault(Exception):
    """A call that fails with this ``CUresult``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Stream:
    """Work in order: what has not run yet, and the graph that records it, if one does."""

    queue: deque[Work] = field(default_factory=deque)
    capture: list[Work] | None = None
    running: bool = False  # a destructor that runs in between must not run later work
    ordered: bool = False  # with the default stream


@dataclass
class Event:
    """When it passed, in milliseconds, and the stream that it waits in until then."""

    ms: float = 0.0
    stream: Stream | None = None


class EmulatedMachine:
    """The machine behind all emulated devices.

    There is one per process, because compiled host code contains the addresses of its functions.

    Attributes:
        eager: queued work runs at once, else as late as it may.
        arena: device memory.
        launches: kernels that have run.
        executed: how often each instruction of another GPU was executed, where such a GPU is emulated.
        waits: calls that wait for everything in every stream, as on a GPU, by their names: loading and unloading code, unpinning memory.
        held_up: those of them that found something to wait for.
        waiting: they run it, so that the next one finds nothing; else it runs as late as possible, so that no code relies on them.
    """

    def __init__(self, eager: bool = False, guard: bool = True) -> None:
        self.eager, self.arena, self.launches = eager, Arena(MEMORY_BYTES, guard), 0
        self.executed = Counter[str]()
        self.lock = new_lock(self, "lock")
        self.numbers = itertools.count(0x1000, 0x10)
        self.streams: dict[int, Stream] = {}
        self.modules: dict[int, dict[str, int]] = {}  # handles of functions by name
        self.kernels: dict[int, DeviceCode] = {}
        self.pinned: dict[int, np.ndarray] = {}
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, list[Work]] = {}
        self.waits, self.held_up, self.waiting = Counter[str](), Counter[str](), False
        self._sticky = 0
        self._next_failures: dict[str, int] = {}
        self._thunks = (
            _LAUNCH(self._on_launch),
            _MEMSET(self._on_memset),
            _LAUNCH(self._on_launch_together),
            _COPY(self._on_copy),
        )
        self.launch_address, self.memset_address, self.together_address, self.copy_address = (
            ctypes.cast(t, ctypes.c_void_p).value or 0 for t in self._thunks
        )

    # ---- failures
    def fail_next(self, call: str, code: int) -> None:
        """The next call of this name ("launch", "allocate", "synchronize", ..) fails with a CUresult. For tests."""
        self._next_failures[call] = code

    def heal(self) -> None:
        """Forget a failure that stays, and all queued work. For tests: after such a failure a GPU needs a new process."""
        self._sticky = 0
        self._next_failures.clear()
        for stream in self.streams.values():
            stream.queue.clear()
            stream.capture = None

    def guarded(self, call: str, work: Callable[[], Any], doing: str = "") -> Any:
        """Run a call of the driver under the lock.

        Raises:
            DeviceError: it fails, or an earlier one has failed for good.
        """
        with self.lock:
            try:
                code = self._sticky or self._next_failures.pop(call, 0)
                if code:
                    raise Fault(code)
                return work()
            except Fault as e:
                if RESULTS.of(e.code).restart:
                    self._sticky = e.code
                raise RESULTS.error(e.code, doing or f"{call} failed") from None

    # ---- streams
    def stream(self, number: int) -> Stream:
        """The stream of a handle."""
        if number not in self.streams:
            raise Fault(INVALID_HANDLE)
        return self.streams[number]

    def put(self, stream: int, work: Work) -> None:
        """Queue work, or record it."""
        s = self.stream(stream)
        if s.capture is not None:
            s.capture.append(work)
            return
        s.queue.append(work)
        if self.eager or len(s.queue) >= MOST_QUEUED:
            self.drain(s)

    def drain(self, s: Stream, until: Event | None = None) -> None:
        """Run the queued work, at most until an event has completed."""
        if s.capture is not None:
            raise Fault(CAPTURE_UNSUPPORTED)
        if not s.queue or s.running:
            return
        s.running = True
        try:
            with self.arena.open():
                while s.queue and (until is None or until.stream is s):
                    s.queue.popleft()()
        except BadAddress:
            s.queue.clear()
            raise Fault(ILLEGAL_ADDRESS) from None
        except DeviceError:  # of the executor: the work behind it needs its results
            s.queue.clear()
            raise
        finally:
            s.running = False

    def drain_all(self) -> None:
        """Run the queued work of all streams."""
        for s in self.streams.values():
            if s.capture is None:
                self.drain(s)

    def drain_ordered(self) -> None:
        """Run what the default stream waits for."""
        for s in list(self.streams.values()):
            if s.ordered and s.capture is None:
                self.drain(s)

    def whole(self, call: str) -> None:
        """A call for which a GPU waits for all work in any stream, and which blocks all other calls."""
        self.waits[call] += 1
        self.held_up[call] += any(s.queue for s in self.streams.values())
        if self.waiting:
            self.drain_all()

    def record(self, number: int, stream: int) -> None:
        """Put an event into a stream."""
        event = self.events[number]

        def work() -> None:
            event.ms, event.stream = now(), None

        s = self.stream(stream)
        if s.capture is None:
            event.stream = s
        self.put(stream, work)

    # ---- memory
    def move(self, dst: int, src: int, nbytes: int, *checked: int) -> None:
        """Copy bytes; each of ``checked`` is the start of a range that must be in one live block."""
        with self.arena.open():
            for start in checked:
                self.arena.check(start, nbytes)
            ctypes.memmove(dst, src, nbytes)

    def fill(self, ptr: int, word: int, count: int, width: int) -> None:
        """Fill with words of 1, 2 or 4 bytes."""
        if not count:
            return
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
        with self.arena.open():
            self.arena.check(ptr, count * width)
            np.ctypeslib.as_array((ctypes.c_uint8 * (count * width)).from_address(ptr)).view(kind).fill(word)

    def is_pinned(self, address: int, nbytes: int) -> bool:
        """Whether a range is pinned host memory; one of the device is refused."""
        if self.arena.holds(address):
            raise Fault(INVALID_VALUE)
        return any(a <= address and address + nbytes <= a + raw.size for a, raw in self.pinned.items())

    # ---- launches
    def _on_launch(self, function: int | None, *rest: Any) -> int:
        return self._code_of("launch", lambda: self._queue(function or 0, *rest))

    def _on_launch_together(self, function: int | None, *rest: Any) -> int:
        return self._code_of("launch", lambda: self._queue(function or 0, *rest, together=True))

    def _on_memset(self, ptr: int, word: int, count: int, stream: int | None) -> int:
        return self._code_of("memset", lambda: self.put(stream or 0, lambda: self.fill(ptr, word, count, 4)))

    def _on_copy(self, to: int, source: int, nbytes: int, stream: int | None) -> int:
        return self._code_of("copy", lambda: self.put(stream or 0, lambda: self.move(to, source, nbytes, to, source)))

    def _code_of(self, call: str, work: Work) -> int:
        try:
            self.guarded(call, work)
        except DeviceError as e:
            return e.code
        except Exception:  # the caller is native code, which cannot raise it
            traceback.print_exc()
            return UNKNOWN
        return 0

    def _queue(self, function: int, *rest: Any, together: bool = False) -> None:
        gx, gy, gz, bx, by, bz, shared, stream, params, extra = rest
        kernel = self.kernels.get(function)
        if kernel is None:
            raise Fault(INVALID_HANDLE)
        plain = gy == gz == by == bz == 1 and not params
        if not plain or not 0 < gx < 1 << 31 or not 0 < bx <= 1024 or shared > SHARED_BYTES:
            raise Fault(INVALID_VALUE)
        if together and gx * bx > MOST_TOGETHER:
            raise Fault(TOO_LARGE)
        words = _packed(extra)
        self.put(stream or 0, lambda: self._run(kernel, words, gx, bx, shared, together))

    def _run(self, kernel: DeviceCode, words: Any, blocks: int, threads: int, shared: int, together: bool) -> None:
        self.launches += 1
        try:
            if together:
                assert isinstance(kernel, NativeCode)
                kernel.run_together(ctypes.addressof(words), blocks, threads)
            else:
                kernel.run(ctypes.addressof(words), blocks, threads, shared)
        except Diverged:
            raise Fault(LAUNCH_FAILED) from None


def _packed(extra: int | None) -> Any:
    """A copy of a launch's parameters, which come as one buffer."""
    given: dict[int, int] = {}
    at = extra or 0
    while at and (key := ctypes.c_size_t.from_address(at).value) in (_BUFFER, _BUFFER_SIZE):
        given[key] = ctypes.c_size_t.from_address(at + 8).value
        at += 16
    size = ctypes.c_size_t.from_address(given[_BUFFER_SIZE]).value if given else 0
    return ctypes.create_string_buffer(ctypes.string_at(given[_BUFFER], size) if size else b"", size + 8)


def now() -> float:
    """Milliseconds, for events."""
    return 1e3 * time.perf_counter()


_machines: list[EmulatedMachine] = []
_making = new_lock(sys.modules[__name__], "_making")


def emulated_machine() -> EmulatedMachine:
    """The one of this process, whichever threads ask for it first. ``QDRUN_EMULATED=eager``: queued work runs at once."""
    with _making:
        if not _machines:
            _machines.append(EmulatedMachine(eager=os.environ.get("QDRUN_EMULATED") == "eager"))
        return _machines[0]
