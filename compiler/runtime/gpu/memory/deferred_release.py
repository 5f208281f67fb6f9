"""Deferred release of code and pinned memory that the programs of a process share on one device.

Unloading code and unpinning memory wait for all work on the device, and block all launches meanwhile. So both are kept for the next
program when one closes, and released when no program is open. The kept memory is bounded: pinned buffers by their number in use at once,
code by its bytes.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass

from ....errors import DeviceError
from ....ir.threads import new_lock
from ..driver import Driver
from ..results import report_lost
from .pinned import PinnedMemory

KEEP_PINNED = 64 << 20
"""Bytes of pinned buffers that stay when no program is open."""

MOST_UNUSED = 128 << 20
"""Maximum bytes of code that is neither used nor cached. With more, every program waits once until all of it is unloaded."""


@dataclass(frozen=True, slots=True)
class Unused:
    """A module whose last user is gone."""

    driver: Driver
    module: int
    nbytes: int


class DeferredRelease:
    """The code and the pinned memory of one device in this process.

    Attributes:
        pinned: words for launches.
        unused: modules that are no longer used. The garbage collector may append, on any thread.
        open: programs on the device.
    """

    def __init__(self, driver: Driver) -> None:
        self.pinned = PinnedMemory(driver)
        self.unused: deque[Unused] = deque()
        self.open = 0
        self._driver, self._lock = driver, new_lock(self, "_lock")
        self._spare: list[tuple[int, int]] = []  # address and bytes

    # ---- programs
    def enter(self) -> None:
        """A program is open."""
        with self._lock:
            self.open += 1

    def leave(self) -> None:
        """Note that a program is closed, after a wait for its stream. The last one frees everything unused.

        Raises:
            DeviceError: the device has failed.
        """
        with self._lock:
            self.open -= 1
            quiet = not self.open
        if quiet:
            self._unpin()
            self.unload(must=True)

    # ---- pinned buffers
    def take(self, nbytes: int, driver: Driver) -> int:
        """A pinned buffer: one that is left from another program, or a new one of this driver's.

        Raises:
            DeviceError: the system pins no more memory.
        """
        with self._lock:
            found = next((k for k, (_, size) in enumerate(self._spare) if size == nbytes), None)
            if found is not None:
                return self._spare.pop(found)[0]
        return driver.host_allocate(nbytes)

    def give(self, address: int, nbytes: int) -> None:
        """Take a buffer back. The device is done with it."""
        with self._lock:
            self._spare.append((address, nbytes))

    @property
    def spare_bytes(self) -> int:
        """Bytes of unused pinned buffers."""
        return sum(nbytes for _, nbytes in list(self._spare))

    def _unpin(self) -> None:
        while True:
            with self._lock:
                if not self._spare or sum(nbytes for _, nbytes in self._spare) <= KEEP_PINNED:
                    return
                address, _ = self._spare.pop(0)
            self._driver.host_free(address)

    # ---- code
    def unload(self, must: bool = False) -> int:
        """Unload unused modules: all of them or none, because only the first unload waits for the device.

        Args:
            must: also where that makes others wait, and there are few.

        Returns:
            How many.
        """
        count = 0
        if must or not self.open or sum(x.nbytes for x in self.unused.copy()) > MOST_UNUSED:
            while self.unused:
                try:
                    gone = self.unused.popleft()
                except IndexError:
                    break  # another thread was faster
                try:
                    gone.driver.unload(gone.module)
                    count += 1
                except DeviceError as e:
                    report_lost(e, f"{gone.nbytes:,} bytes of unused code stay loaded")
        return count


_devices: dict[str, DeferredRelease] = {}
_lock = new_lock(sys.modules[__name__], "_lock")


def shared(place: str, driver: Driver) -> DeferredRelease:
    """What is shared on a device. ``place``: its name in this process."""
    with _lock:
        if place not in _devices:
            _devices[place] = DeferredRelease(driver)
        return _devices[place]
