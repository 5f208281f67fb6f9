"""Double-buffered copies between pageable memory of the host and the device, through two pinned buffers.

The device reads and writes pinned memory alone. The driver has a pinned buffer for the rest and one thread that fills it, which is slower
than the bus. Here the threads of the pool fill or empty one buffer while the device copies the other. The device's copies are put into
the one stream before the call returns, so they are in its order. The threads run native code alone: a Python thread might run the
collector, and free memory under the lock that the caller holds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ....codegen.builder import I64, Builder, NativeModule, Ptr, external, function
from ....errors import DeviceError
from ...cache import load_cached
from ...cpu.pool import get_pool, parallel_for_addresses
from ...jit import LoadedCode
from ..driver import Driver
from .deferred_release import DeferredRelease

CHUNK = 8 << 20
"""Bytes of one buffer."""

THREADS = 8
"""Threads that fill or empty a buffer; fewer where the process has fewer."""

THRESHOLD = 64 << 20
"""Copies of fewer bytes go the driver's own way."""

PART = 256 << 10
"""Bytes that a thread takes at once."""

_COPY = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
_parallel_for = external("qd_parallel_for_up_to", "void", "ptr", "ptr", "ptr", "i64", "i64", "i64")


@function("void")
def _part(f: Builder, frame: Ptr, begin: I64, end: I64, worker: I64) -> None:
    f.copy(frame[0] + begin, frame[1] + begin, end - begin)


@function("void")
def _copy(f: Builder, pool: Ptr, to: Ptr, source: Ptr, n: I64, part: I64, threads: I64) -> None:
    frame = f.stack(2)
    frame[0], frame[1] = to, source
    f.call(_parallel_for, pool, f.symbol(_part), frame, n, part, threads)


@dataclass(eq=False, slots=True)
class StagingBuffer:
    """A pinned buffer. ``busy``: the device may use it until ``event`` has passed."""

    ptr: int
    event: int
    busy: bool = False


class Staging:
    """The buffers of one program, taken when they are first needed. One copy at a time: the caller holds the device's lock.

    Args:
        driver, stream: of the device.
        shared: has the buffers that other programs have left, and gets ours back.
        chunk, threads: see ``CHUNK`` and ``THREADS``.
    """

    def __init__(
        self, driver: Driver, stream: int, shared: DeferredRelease, chunk: int | None = None, threads: int | None = None
    ) -> None:
        self._driver, self.stream, self._shared = driver, stream, shared
        self._chunk, self._threads = chunk or CHUNK, threads or THREADS
        self._buffers: list[StagingBuffer] = []
        self._code: LoadedCode | None = None
        self._lost = False  # a copy has failed: which buffers the device uses is not known
        self._active = self._refused = False

    @property
    def nbytes(self) -> int:
        """Pinned bytes of the host."""
        return len(self._buffers) * self._chunk

    def upload(self, to: int, source: int, nbytes: int) -> bool:
        """Host to device, in the order of the stream; the source may change on return.

        Returns:
            False: nothing was done, as no memory can be pinned, or a copy has been interrupted by this one.

        Raises:
            DeviceError: the driver has failed. Part of the bytes may be there.
        """
        if not self._ready():
            return False
        with self._noticing():
            for k, at in enumerate(range(0, nbytes, self._chunk)):
                buffer, size = self._buffers[k % 2], min(self._chunk, nbytes - at)
                self._settle(buffer)
                self._move(buffer.ptr, source + at, size)
                self._driver.upload(to + at, buffer.ptr, size, self.stream)
                self._begun(buffer)
        return True

    def download(self, to: int, source: int, nbytes: int) -> bool:
        """Device to host, after everything that is in the stream; it has ended on return.

        Returns:
            False: nothing was done, see ``upload``.

        Raises:
            DeviceError: the driver, or what was in the stream, has failed. Part of the bytes may be there.
        """
        if not self._ready():
            return False
        starts = range(0, nbytes, self._chunk)
        with self._noticing():
            self._fetch(0, source, nbytes)
            for k, at in enumerate(starts):
                if k + 1 < len(starts):
                    self._fetch(k + 1, source, nbytes)
                self._settle(self._buffers[k % 2])
                self._move(to + at, self._buffers[k % 2].ptr, min(self._chunk, nbytes - at))
        return True

    def release(self) -> None:
        """Give everything back; the stream must be empty."""
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            self._driver.event_free(buffer.event)
        if buffers:
            self._shared.give(buffers[0].ptr, 2 * self._chunk)

    # ---- inside
    def _ready(self) -> bool:
        """Make the buffers, if there are none; whether they can be had."""
        if self._active:  # a signal handler of Python's runs in the middle of a copy
            return False
        if self._lost:
            self._driver.synchronize(self.stream)
            self._lost = False
            for buffer in self._buffers:
                buffer.busy = False
        if self._buffers or self._refused:
            return bool(self._buffers)
        try:
            base = self._shared.take(2 * self._chunk, self._driver)
        except DeviceError as e:
            if e.restart:
                raise
            self._refused = True  # the driver's own way needs no more memory, and the bytes are the same
            return False
        try:
            text = NativeModule([_copy]).text
            self._code = load_cached(text, "copies", [_copy.name], parallel_for_addresses())[0]
            self._buffers = [StagingBuffer(base + k * self._chunk, self._driver.event()) for k in range(2)]
        except BaseException:
            self._shared.give(base, 2 * self._chunk)
            raise
        return True

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """A copy. One that fails, or that the user interrupts, may leave a buffer in use without an event after it."""
        self._active = True
        try:
            yield
        except BaseException:
            self._lost = True
            raise
        finally:
            self._active = False

    def _move(self, to: int, source: int, nbytes: int) -> None:
        assert self._code is not None
        pool = get_pool()
        copy = _COPY(self._code.addresses[_copy.name])
        copy(pool.address, to, source, nbytes, PART, self._threads)

    def _fetch(self, k: int, source: int, nbytes: int) -> None:
        """Put the copy of chunk ``k`` into a buffer into the stream."""
        buffer, at = self._buffers[k % 2], k * self._chunk
        self._settle(buffer)
        self._driver.fetch(buffer.ptr, source + at, min(self._chunk, nbytes - at), self.stream)
        self._begun(buffer)

    def _begun(self, buffer: StagingBuffer) -> None:
        self._driver.record(buffer.event, self.stream)
        buffer.busy = True

    def _settle(self, buffer: StagingBuffer) -> None:
        """Wait until the device has done with a buffer."""
        if buffer.busy:
            self._driver.event_wait(buffer.event)
            buffer.busy = False
