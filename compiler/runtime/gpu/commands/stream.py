"""A command stream as the host sees it: submissions and waits, work that is done after them, arguments, and the recording of graphs."""

from __future__ import annotations

import _thread
import ctypes
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakValueDictionary

from ....errors import DeviceError
from ....ir.threads import Living, new_lock
from ..results import Results
from . import words as w
from .link import SERVE, Recorder
from .own_kernels import COPY_1, COPY_4, FILL_4, copy_of_rows, fill_of_rows

WORK_FAILED = "work on the device failed"
CLOSED = 998
"""The code of a launch into a stream that is closed; no driver has it."""
S = TypeVar("S", bound="CommandStream")


@dataclass(frozen=True, slots=True)
class ArgumentRoom:
    """Memory for the arguments of launches: its addresses on both sides, the encoder's handle of it, and what gives it back."""

    host: int
    device: int
    handle: int
    free: Callable[[], None]


class CommandDevice(ABC, Generic[S]):
    """A device that this process has opened.

    Attributes:
        recorder: machine code that records launches.
        streams: all that are open.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.streams = recorder, Living[S]()
        self._refused, self._helpers = "", dict[str, int]()
        self._making = new_lock(self, "_making")

    @abstractmethod
    def load_helper(self, name: str) -> int:
        """Load a function of ours (``own_kernels``), once; returns its handle."""

    @abstractmethod
    def make_room(self, nbytes: int) -> ArgumentRoom:
        """Memory for arguments."""

    def helper(self, name: str) -> int:
        """The handle of a function of ours. ``name``: see ``own_kernels.texts``."""
        with self._making:
            if name not in self._helpers:
                self._helpers[name] = self.load_helper(name)
            return self._helpers[name]

    def explain(self, why: str = "") -> str:
        """What there is to say of the launch that failed last, beyond its code. It is said once. ``why``: of the next one."""
        said, self._refused = self._refused, why
        return said

    def retire(self) -> None:
        """Do what was to be done later and can be done now."""
        for stream in self.streams:
            stream.retire()


def after_all(streams: Iterable[CommandStream], action: Callable[[], None]) -> None:
    """Do something once all has run that is in some streams now."""
    every = list(streams)
    left = list(every)

    def passed() -> None:
        left.pop()
        if not left:
            action()

    for stream in every:
        stream.later(passed)
    if not every:
        action()
    for stream in every:
        stream.retire()


class CommandStream(ABC):
    """Commands that run in order.

    Attributes:
        handle: the address of its words.
        waits: how often the host has waited for it.
        capturing: launches are recorded, and do not run.
        results: the meanings of codes; ``not_in_graph``, ``unknown``: the codes for what a graph cannot record, and for any other failure.
    """

    results: ClassVar[Results]
    not_in_graph: ClassVar[int]
    unknown: ClassVar[int]

    def __init__(self, device: CommandDevice[Any]) -> None:
        self.device, self.waits, self.capturing = device, 0, False
        self.lock = new_lock(self, "lock")
        self._words = (ctypes.c_uint64 * w.STREAM_WORDS)()
        self._slots = (ctypes.c_uint64 * w.SLOT_COUNT)()
        self._words[w.SLOTS] = ctypes.addressof(self._slots)
        self.handle = ctypes.addressof(self._words)
        self._room: ArgumentRoom | None = None
        self._later = deque[tuple[int, Callable[[], None]]]()  # with the submission after which it is done
        self._graph = bytearray()

    def open(self) -> None:
        """Take launches from now on."""
        self._words[w.FILL] = self.device.helper(FILL_4)
        _streams[self.handle] = self
        self.device.streams.add(self)

    def copier(self) -> int:
        """The address of ``qd_copy_run``, which may be called with this stream from now on."""
        self._words[w.COPY_1], self._words[w.COPY_4] = map(self.device.helper, (COPY_1, COPY_4))
        return self.device.recorder.copy_address

    # ---- what an API does
    @abstractmethod
    def await_submission(self, value: int) -> None:
        """Wait until a submission has ended, or has failed. Other threads run meanwhile."""

    @abstractmethod
    def release(self) -> None:
        """Give back what the API has made for the stream. Nothing of it is running."""

    def raise_failure(self) -> None:  # noqa: B027 - else failures are codes of calls
        """Raise the failure of work that has ended, once."""

    def serve(self, what: int, row: ctypes.Array[ctypes.c_uint64], arguments: int) -> None:
        """Do what machine code asks for. ``row``: of the launch."""
        if what == w.SERVE_SLOT:
            self.waits += 1
            self.await_submission(int(self._words[w.LAST]) + 1 - w.SLOT_COUNT)
        elif what == w.SERVE_ROOM:
            self._grow_room(row[w.ROW_BYTES])
        else:
            self._graph += bytes(row) + ctypes.string_at(arguments, row[w.ROW_BYTES])

    def _grow_room(self, nbytes: int) -> None:
        """Make room for arguments of so many bytes in each slot. Memory from before goes once no launch reads it."""
        size = max(w.CHUNK, -(-nbytes // w.ROOM_ALIGN) * w.ROOM_ALIGN)
        made = self.device.make_room(size * w.SLOT_COUNT)
        with self.lock:
            old, self._room = self._room, made
            self.device.recorder.room(self.handle, made.host, made.device, made.handle, size)
        if old is not None:
            self.later(old.free)

    # ---- running
    def check(self, code: int, doing: str) -> None:
        """Raise what a function of the recorder has returned, if that is a failure."""
        if code:
            raise self.results.error(code, doing, detail=self.device.explain())

    def pending(self) -> int:
        """The number of the submission after which all that is in the stream now has run."""
        return self.device.recorder.pending(self.handle)

    def done(self) -> int:
        """The number of the last submission that has ended."""
        self.check(self.device.recorder.done(self.handle), WORK_FAILED)
        return int(self._words[w.DONE])

    @property
    def idle(self) -> bool:
        """Whether nothing is in the stream."""
        return self.pending() <= self.done()

    def submit(self) -> int:
        """Hand to the device what is recorded; returns the number of the last submission.

        Raises:
            DeviceError: the device has failed, or a graph is being recorded.
        """
        self.refuse_in_graph(WORK_FAILED)
        self.check(self.device.recorder.submit(self.handle), WORK_FAILED)
        return int(self._words[w.LAST])

    def wait(self, value: int) -> None:
        """Wait until a submission has ended.

        Raises:
            DeviceError: it, or one before it, has failed.
        """
        if self._words[w.DONE] < value:
            self.waits += 1
            self.await_submission(value)
            self.done()
        self.retire()
        self.raise_failure()

    def synchronize(self) -> None:
        """Run all that is in the stream, and wait for its end.

        Raises:
            DeviceError: some of it has failed, or a graph is being recorded.
        """
        self.wait(self.submit())

    def later(self, action: Callable[[], None]) -> None:
        """Do something once all has run that is in the stream now. The collector may call this in the middle of anything."""
        self._later.append((self.pending(), action))

    def retire(self) -> None:
        """Do what was to be done later and can be done now."""
        done = self.done() if self._later else 0
        with self.lock:
            ready = list[Callable[[], None]]()
            while self._later and self._later[0][0] <= done:
                ready.append(self._later.popleft()[1])
        for action in ready:
            action()

    def close(self) -> None:
        """Wait, and give everything back.

        Raises:
            DeviceError: work has failed.
        """
        try:
            self.synchronize()
        finally:
            _streams.pop(self.handle, None)
            self.device.streams.discard(self)
            if self._room is not None:
                self._room.free()
            self.release()

    # ---- launches of ours
    def fill_rows(self, ptr: int, step: int, word: int, count: int, width: int, rows: int) -> None:
        """Fill rows that begin ``step`` bytes apart with ``count`` words of ``width`` bytes each."""
        self._help(
            f"filling {rows:,} rows of {count * width:,} bytes failed", *fill_of_rows(ptr, step, word, count, width, rows)
        )

    def copy_rows(self, dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int) -> None:
        """Copy rows of ``nbytes``."""
        doing = f"a copy of {rows:,} rows of {nbytes:,} bytes failed"
        self._help(doing, *copy_of_rows(dst, dst_step, src, src_step, nbytes, rows))

    def _help(self, doing: str, name: str, arguments: tuple[int, ...]) -> None:
        """Launch a function of ours, a thread for each value; its last arguments are values of a row, and rows."""
        items = arguments[-2] * arguments[-1]
        if items:
            blocks = min(-(-items // w.FILL_BLOCK), w.MOST_BLOCKS)
            self.put(doing, self.device.helper(name), blocks, w.FILL_BLOCK, arguments)

    def put(self, doing: str, function: int, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        """Launch a function. ``doing``: what fails, for the message."""
        n = len(arguments)
        row = (ctypes.c_uint64 * (w.ROW_WORDS + n))(function, blocks, threads, 0, 8 * n, *arguments)
        at = ctypes.addressof(row)
        self.check(self.device.recorder.put(self.handle, at, at + 8 * w.ROW_WORDS), doing)

    # ---- graphs
    def refuse_in_graph(self, doing: str) -> None:
        """Raise an error if launches are recorded."""
        if self.capturing:
            raise self.results.error(self.not_in_graph, doing)

    def begin_capture(self) -> None:
        """Launches, fills and copies are recorded from now on, and do not run."""
        if self.capturing:
            raise self.results.error(self.not_in_graph, "recording a graph failed", detail="one is being recorded")
        self._graph, self.capturing, self._words[w.CAPTURE] = bytearray(), True, 1

    def end_capture(self) -> bytearray:
        """The rows that were recorded, each with its arguments behind it."""
        if not self.capturing:
            raise self.results.error(self.not_in_graph, "recording a graph failed", detail="none is being recorded")
        self._words[w.CAPTURE], self.capturing = 0, False
        return self._graph

    def replay(self, graph: bytearray) -> None:
        """Put recorded launches into the stream. Launches of other threads may come between them."""
        rows = (ctypes.c_char * len(graph)).from_buffer(graph)
        at = ctypes.addressof(rows)
        self.check(self.device.recorder.replay(self.handle, at, at + len(graph)), "launching a graph failed")


_streams: WeakValueDictionary[int, CommandStream] = WeakValueDictionary()
"""By their handles, for machine code."""


def _serve(what: int, stream: int, row: int, arguments: int) -> int:
    found = _streams.get(stream)
    if found is None:  # it is closed
        return CLOSED
    try:
        found.serve(what, (ctypes.c_uint64 * w.ROW_WORDS).from_address(row), arguments)
        return 0
    except BaseException as e:  # the caller is machine code, which cannot raise it
        if isinstance(e, KeyboardInterrupt):
            _thread.interrupt_main()
        elif not isinstance(e, DeviceError):
            traceback.print_exc()
        found.device.explain(str(e))
        return (e.code if isinstance(e, DeviceError) else 0) or found.unknown


_served = SERVE(_serve)  # machine code calls it until the process ends
SERVE_ADDRESS = ctypes.cast(_served, ctypes.c_void_p).value or 0
