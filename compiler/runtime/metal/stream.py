"""A stream: a command queue, the command buffer that is being filled, and what waits for those that were committed.

Work of a stream is in order. Within an encoder a barrier stands behind each launch, and a fence orders one encoder behind the other, for
Metal does not track the memory (``heaps``). A command buffer is committed when the host waits, at an event, and after so many launches.
"""

from __future__ import annotations

import ctypes
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from ...errors import DeviceError
from ...ir.threads import new_lock
from .heaps import Heap, HeapBlock, Heaps
from .native import (
    FILL_THREADS,
    G_WORDS,
    RING_ALIGN,
    S_ENCODER,
    S_LEFT,
    S_PIPELINE,
    S_RING,
    S_RING_DEVICE,
    S_RING_HOST,
    S_RING_SIZE,
    S_RING_USED,
    S_SHARED,
    S_WORDS,
)
from .objc import Objc
from .results import CAPTURE_UNSUPPORTED, INVALID_HANDLE, NO_OBJECT, UNKNOWN, device_error
from .transfers import Transfer

LAUNCHES, FIRST = 256, 8
"""Launches of a command buffer; of one that begins while the device has nothing to do, so that it has soon."""
RING_BYTES = 256 << 10
"""Bytes of the ring of a command buffer, for words that ``setBytes`` does not take."""
COMPLETED, FAILED = 4, 5
"""``MTLCommandBufferStatus``"""
WORK_FAILED = "work on the device failed"


@dataclass(eq=False, slots=True)
class Submission:
    """A committed command buffer. ``then``: what may happen once it has ended; ``ended``: when, in seconds, None before that."""

    stream: MetalStream
    handle: int
    then: list[Callable[[], None]] = field(default_factory=list)
    ended: float | None = None


@dataclass(eq=False, slots=True, weakref_slot=True)
class MetalStreams:
    """What the streams of a device have in common.

    Attributes:
        objc, device: the run time, and the MTLDevice.
        mapped: memory that the host writes at any time. What is freed of it may be given out once no work uses it.
        take, give, encode, replay: functions of the recorder.
        transfer: gives the handle of one of our own kernels.
        refused: what was the matter with the launch that failed last.
    """

    objc: Objc
    device: int
    mapped: Heaps
    take: Callable[..., Any]
    give: Callable[..., Any]
    encode: Callable[..., Any]
    replay: Callable[..., Any]
    transfer: Callable[[str], int]
    refused: str = ""
    _lock: Any = None

    def __post_init__(self) -> None:
        self._lock = new_lock(self, "_lock")

    def take_mapped(self, nbytes: int, doing: str) -> HeapBlock:
        """A block of shared memory.

        Raises:
            DeviceError: see ``Heaps.allocate``.
        """
        with self._lock:
            return self.mapped.allocate(nbytes, doing)

    def free_mapped(self, block: HeapBlock) -> None:
        """Take a block back that no work uses."""
        with self._lock:
            self.mapped.free(block.address)


@dataclass(frozen=True, slots=True)
class RecordedCommands:
    """Recorded launches: the words ``native.G_*`` of each, one after the other."""

    words: ctypes.Array[ctypes.c_uint64]
    count: int


_streams: WeakValueDictionary[int, MetalStream] = WeakValueDictionary()
"""By their handles, for the recorder."""


class MetalStream:
    """One stream.

    Args:
        shared: of the device.
        heaps: gives those that its work may use, besides those that all streams do.

    Attributes:
        handle: the address of its words, which the recorder reads.
        submitted: command buffers that were committed.
    """

    def __init__(self, shared: MetalStreams, heaps: Callable[[], list[Heap]]) -> None:
        self.shared, self._heaps = shared, heaps
        objc = shared.objc
        self._queue = objc.send(shared.device, "newCommandQueue")
        self._fence = objc.send(shared.device, "newFence")
        if not (self._queue and self._fence):
            raise device_error(NO_OBJECT, "making a stream failed")
        self._words = (ctypes.c_uint64 * S_WORDS)()
        self.handle = ctypes.addressof(self._words)
        self._lock, self._depth = new_lock(self, "_lock"), 0
        self._buffer = self._encoder = 0
        self._named = set[int]()  # the heaps that the open encoder knows
        self._pending: deque[Submission] = deque()
        self._then: list[Callable[[], None]] = []  # what waits for the open command buffer
        self._capture: list[tuple[list[int], bytes]] | None = None
        self._error: DeviceError | None = None
        self.ended = 0.0  # when the last command buffer has ended
        self.submitted = 0
        _streams[self.handle] = self

    # ---- launches
    def launch(self, function: int, blocks: int, threads: int, shared: int, words: int, nbytes: int) -> None:
        """Put a launch into the stream, or into the graph that it records.

        Raises:
            DeviceError: the device has failed, or gives no command buffer.
        """
        with self._held():
            if self._capture is not None:
                self._capture.append(([function, blocks, threads, shared], ctypes.string_at(words, nbytes) if nbytes else b""))
                return
            while not self._encoded(function, blocks, threads, shared, words, nbytes):
                pass

    def transfer(self, what: Transfer) -> None:
        """Put a fill or a copy into the stream. Nothing if there is nothing to do."""
        if what.blocks:
            function = self.shared.transfer(what.name)
            words = ctypes.addressof(what.words)
            self.launch(function, what.blocks, FILL_THREADS, 0, words, ctypes.sizeof(what.words))

    def _encoded(self, function: int, blocks: int, threads: int, shared: int, words: int, nbytes: int) -> bool:
        """Whether a launch is in the encoder; if not, there is more room the next time."""
        self._begin()
        if not self.shared.encode(self.handle, self._encoder, function, blocks, threads, shared, words, nbytes):
            return True
        self._new_ring(nbytes)
        return False

    def _begin(self) -> None:
        """See to it that an encoder is open that takes a launch."""
        if self._encoder and self._words[S_LEFT] > 0:
            return
        self._commit()
        self.retire()
        objc = self.shared.objc
        with objc.pool():
            buffer = objc.send(self._queue, "commandBuffer")
            encoder = objc.send(buffer, "computeCommandEncoder")
            if not encoder:
                raise device_error(NO_OBJECT, "putting work into the stream failed")
            self._buffer, self._encoder = objc.send(buffer, "retain"), objc.send(encoder, "retain")
        if self.submitted:
            objc.send(encoder, "waitForFence:", self._fence)
        self._named.clear()
        self._use([*self.shared.mapped.heaps, *self._heaps()])
        self._words[S_PIPELINE] = self._words[S_SHARED] = 0
        self._words[S_LEFT] = LAUNCHES if self._pending else FIRST

    def _use(self, heaps: list[Heap]) -> None:
        new = [h.handle for h in heaps if h.handle not in self._named]
        if new:
            self._named.update(new)
            self.shared.objc.send(self._encoder, "useHeaps:count:", (ctypes.c_void_p * len(new))(*new), len(new))

    def use(self, heap: Heap) -> None:
        """Launches from now on may use the memory of a heap."""
        with self._held():
            if self._encoder:
                self._use([heap])

    def _new_ring(self, nbytes: int) -> None:
        """A ring with room for the words of a launch. The one before goes with the command buffer."""
        block = self.shared.take_mapped(max(RING_BYTES, nbytes + RING_ALIGN), "room for the words of launches is missing")
        self._use([block.heap])
        self._words[S_RING], self._words[S_RING_HOST], self._words[S_RING_DEVICE] = block.buffer, block.host, block.address
        self._words[S_RING_USED], self._words[S_RING_SIZE] = 0, block.nbytes
        self._then.append(lambda: self.shared.free_mapped(block))

    # ---- the encoder's turns
    @contextmanager
    def _held(self) -> Iterator[None]:
        """A block in which no other thread uses the encoder."""
        with self._lock:
            self._depth += 1
            if self._depth == 1 and self._encoder:
                while not self.shared.take(self.handle):  # machine code on another thread is at it
                    time.sleep(0)
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth and self._encoder:
                    self.shared.give(self.handle, self._encoder)

    def _commit(self) -> None:
        """Commit the open command buffer."""
        if not self._encoder:
            return
        objc, buffer, encoder = self.shared.objc, self._buffer, self._encoder
        self._buffer = self._encoder = self._words[S_ENCODER] = 0
        with objc.pool():  # for what Metal makes inside
            objc.send(encoder, "updateFence:", self._fence)
            objc.send(encoder, "endEncoding")
            objc.send(encoder, "release")
            objc.send(buffer, "commit")
        self._words[S_RING_SIZE] = self._words[S_RING_USED] = 0
        self._pending.append(Submission(self, buffer, self._then))
        self._then = []
        self.submitted += 1

    # ---- waiting
    def mark(self) -> Submission | None:
        """Commit what is there: the last command buffer, after which all work until now has ended; None: it has."""
        with self._held():
            self._commit()
            self.retire()
            return self._pending[-1] if self._pending else None

    def later(self, then: Callable[[], None]) -> None:
        """Do something once all work has ended that is in the stream now."""
        with self._held():
            if self._encoder:
                self._then.append(then)
            elif self._pending:
                self._pending[-1].then.append(then)
            else:
                then()

    @property
    def idle(self) -> bool:
        """Whether nothing is in the stream."""
        with self._held():
            self.retire()
            return not self._encoder and not self._pending

    def synchronize(self) -> None:
        """Wait for all work.

        Raises:
            DeviceError: some of it has failed.
        """
        self._refuse_in_graph(WORK_FAILED)
        last = self.mark()
        if last is not None:
            self.wait(last)
        self.check()

    def wait(self, submission: Submission) -> None:
        """Wait until a command buffer has ended.

        Raises:
            DeviceError: it, or one before it, has failed.
        """
        objc = self.shared.objc
        with self._lock:
            before = list(self._pending) if submission.ended is None else []
            before = before[: before.index(submission) + 1] if submission in before else []
            handles = [objc.send(s.handle, "retain") for s in before]
        for handle in handles:  # in order: the first of them may be the one that has failed
            try:
                with objc.pool():
                    objc.send(handle, "waitUntilCompleted")
            finally:
                objc.send(handle, "release")
        with self._held():
            self.retire()
        self.check()

    def retire(self) -> None:
        """Do what waits for command buffers that have ended. Hold the encoder."""
        objc = self.shared.objc
        while self._pending and objc.send(self._pending[0].handle, "status") >= COMPLETED:
            done = self._pending.popleft()
            if objc.send(done.handle, "status") == FAILED and self._error is None:
                self._error = self._failure(done.handle)
            done.ended = self.ended = objc.send(done.handle, "GPUEndTime")
            with objc.pool():
                objc.send(done.handle, "release")
            for then in done.then:
                then()

    def _failure(self, buffer: int) -> DeviceError:
        objc = self.shared.objc
        with objc.pool():
            error = objc.send(buffer, "error")
            return device_error(
                objc.send(error, "code") or 1, WORK_FAILED, detail=objc.text(objc.send(error, "localizedDescription"))
            )

    def check(self) -> None:
        """Raise the failure of work, once."""
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    # ---- graphs
    def _refuse_in_graph(self, doing: str) -> None:
        if self._capture is not None:
            raise device_error(CAPTURE_UNSUPPORTED, doing)

    @property
    def capturing(self) -> bool:
        """Whether launches are recorded."""
        return self._capture is not None

    def capture_begin(self) -> None:
        """Launches are recorded from now on. No encoder is open meanwhile, so all of them come to ``launch``."""
        with self._held():
            self._commit()
            self._capture = []

    def capture_end(self) -> RecordedCommands:
        """What was recorded."""
        with self._held():
            recorded, self._capture = self._capture or [], None
        words: list[int] = []
        for numbers, data in recorded:
            padded = data + bytes(-len(data) % 8)
            words += [*numbers, len(padded)]
            assert len(numbers) + 1 == G_WORDS
            words += [int.from_bytes(padded[k : k + 8], "little") for k in range(0, len(padded), 8)]
        return RecordedCommands((ctypes.c_uint64 * max(1, len(words)))(*words), len(recorded))

    def replay(self, graph: RecordedCommands) -> None:
        """Put recorded launches into the stream; into the graph, if it records one."""
        with self._held():
            at, done = ctypes.c_uint64(ctypes.addressof(graph.words)), 0
            while done < graph.count:
                if self._capture is None:
                    self._begin()
                    done = self.shared.replay(self.handle, self._encoder, at.value, done, graph.count, ctypes.byref(at))
                if done < graph.count:  # no room, or a graph is recorded
                    numbers = (ctypes.c_uint64 * G_WORDS).from_address(at.value)
                    words = at.value + 8 * G_WORDS
                    self.launch(numbers[0], numbers[1], numbers[2], numbers[3], words, numbers[4])
                    at.value, done = words + numbers[4], done + 1

    # ---- the end
    def close(self) -> None:
        """Wait, and release everything.

        Raises:
            DeviceError: work has failed.
        """
        try:
            self.synchronize()
        finally:
            _streams.pop(self.handle, None)
            self.shared.objc.send(self._fence, "release")
            self.shared.objc.send(self._queue, "release")


def by_handle(handle: int) -> MetalStream:
    """The stream of a handle.

    Raises:
        DeviceError: it is closed.
    """
    found = _streams.get(handle)
    if found is None:
        raise device_error(INVALID_HANDLE, "using a stream failed")
    return found


def slow(function: int, blocks: int, threads: int, shared: int, stream: int, words: int | None, nbytes: int) -> int:
    """The recorder's call for what it does not do itself. Returns 0, or the code of a failure."""
    try:
        found = by_handle(stream)
        try:
            found.launch(function, blocks, threads, shared, words or 0, nbytes)
        except DeviceError as e:
            found.shared.refused = str(e)
            raise
    except DeviceError as e:
        return e.code or UNKNOWN
    except Exception:  # the caller is machine code, which cannot raise it
        traceback.print_exc()
        return UNKNOWN
    return 0
