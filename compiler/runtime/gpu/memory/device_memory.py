"""Where a device's bytes come from: the driver's pool for large blocks, chunks of our own for small ones.

Device memory is freed in the order of the one stream: what is put into the stream later may have it at once, and runs after everything
that used it before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ....errors import DeviceError
from ..driver import Driver
from ..pacing.throttle import Throttle
from ..results import report_lost
from .deferred_release import DeferredRelease
from .slab import Slab
from .staging import Staging

SMALL = 4096
"""Blocks of at most so many bytes come out of chunks."""

CHUNK = 256 << 10
"""Bytes of a chunk."""


@dataclass
class Usage:
    """Bytes of a device in this program. ``used``: what was asked for; ``reserved``: taken from the device for it; ``pinned``: taken of the
    host's memory; ``free`` and ``total``: of the device, all processes.
    """

    used: int
    reserved: int
    pinned: int
    free: int
    total: int


class DeviceMemory:
    """A device's memory, for one stream. One thread at a time; what the collector frees in the middle of a call waits for its end.

    Args:
        driver, stream: of the device.
        reclaim: where the device is full: gives back what is kept for later, and says whether there was anything.
    """

    def __init__(self, driver: Driver, stream: int, reclaim: Callable[[], bool] = lambda: False) -> None:
        self._driver, self.stream, self._reclaim = driver, stream, reclaim
        self._slab = Slab(self._take, self._drop, CHUNK)
        self._large: dict[int, int] = {}
        self._busy, self._freed = False, deque[int]()

    @property
    def reserved(self) -> int:
        """Bytes that were asked of the driver: blocks, and whole chunks."""
        return sum(self._large.copy().values()) + self._slab.reserved

    def allocate(self, nbytes: int) -> int:
        """An address, a multiple of 64; the content is arbitrary.

        Raises:
            MemoryError: the device is full, also after everything that only waits to be freed was freed.
        """
        with self._undisturbed():
            if nbytes <= SMALL:
                return self._slab.allocate(nbytes)
            address = self._take(nbytes)
            self._large[address] = nbytes
            return address

    def free(self, address: int) -> None:
        """Give a block back, in the order of the stream."""
        self._freed.append(address)
        if not self._busy:
            with self._undisturbed():
                pass

    def trim(self) -> None:
        """Wait for the stream, and give all that is free back to the device."""
        with self._undisturbed():
            self._trim()

    def release(self) -> None:
        """Free everything, and give it back to the device."""
        with self._undisturbed():
            blocks, self._large = self._large, {}
            for address in blocks:
                self._driver.free(address, self.stream)
            self._slab.release()
            self._trim()
            self._freed.clear()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A block that changes what is kept here; what was freed meanwhile is freed at its end."""
        self._busy = True
        try:
            yield
            while self._freed:
                self._give_back(self._freed.popleft())
        finally:
            self._busy = False

    def _give_back(self, address: int) -> None:
        if self._slab.owns(address):
            self._slab.free(address)
        else:
            del self._large[address]
            self._driver.free(address, self.stream)

    def _trim(self) -> None:
        self._slab.trim()
        self._driver.synchronize(self.stream)
        self._driver.trim()

    def _take(self, nbytes: int) -> int:
        release_abandoned()
        try:
            return self._driver.allocate(nbytes, self.stream)
        except DeviceError as e:
            if not self._driver.kind.results.is_full(e):
                raise
        while self._freed:
            self._give_back(self._freed.popleft())
        self._trim()
        while True:
            try:
                return self._driver.allocate(nbytes, self.stream)
            except DeviceError as e:
                if not self._driver.kind.results.is_full(e):
                    raise
                if not self._reclaim():
                    self._driver.trim()  # a pool may hold what it gathered for the block that it could not give
                    raise MemoryError(str(e)) from e

    def _drop(self, ptr: int) -> None:
        self._driver.free(ptr, self.stream)


class Holdings:
    """Everything that one program holds of a device.

    Attributes:
        stream: what the program does on the device is in its order.
        ordered: the stream is in order with the default one, which other libraries use.
        memory: the device's.
        shared: what the programs of the process share.
        staging: buffers for large copies.
        throttle: keeps the host near the stream.
    """

    def __init__(self, driver: Driver, shared: DeferredRelease, reclaim: Callable[[], bool]) -> None:
        self._driver, self.shared, self.ordered = driver, shared, False
        self.stream = driver.stream(ordered=False)
        self.memory = DeviceMemory(driver, self.stream, reclaim)
        self.staging = Staging(driver, self.stream, shared)
        self.throttle = Throttle(driver, self.stream)
        shared.enter()

    def join(self) -> None:
        """Switch to a stream that is ordered with the default stream. No launch may happen meanwhile.

        Raises:
            DeviceError: the device has failed.
        """
        before, made = self.stream, self._driver.stream(ordered=True)
        self._driver.synchronize(before)
        self.shared.pinned.moved(before, made)
        self.stream = self.memory.stream = self.staging.stream = self.throttle.stream = made
        self.ordered = True
        self._driver.stream_free(before)

    def release(self) -> None:
        """Wait for the stream, and give everything back.

        Raises:
            DeviceError: the device has failed.
        """
        with ExitStack() as last_first:  # what fails keeps nothing else from being given back
            last_first.callback(self.shared.leave)
            last_first.callback(self._driver.close, self.stream)
            last_first.callback(self.memory.release)
            last_first.callback(self.throttle.release)
            last_first.callback(self.staging.release)
            last_first.callback(self.shared.pinned.ended, self.stream)
            self._driver.synchronize(self.stream)

    def abandon(self) -> None:
        """The device was collected without being closed: ``release_abandoned`` frees everything.

        The garbage collector calls this anywhere, in the middle of an import say, so nothing is done here.
        """
        _abandoned.append(self)


_abandoned: deque[Holdings] = deque()


def release_abandoned() -> None:
    """Release what devices held that are gone and were never closed."""
    while _abandoned:
        try:
            holdings = _abandoned.popleft()
        except IndexError:
            return  # another thread was faster
        try:
            holdings.release()
        except DeviceError as e:
            report_lost(e, "a program that was never closed could not free everything\n  do: with qd.init(..): closes it")
