"""Pinned memory of the host for words that both sides see. The host writes it at any time, so it is given out again only after the
stream was waited for.
"""

from __future__ import annotations

import itertools

from ....ir.threads import new_lock
from ..driver import Driver
from .slab import Slab

CHUNK = 64 << 10
"""Bytes that are pinned at once."""


class PinnedMemory:
    """Pinned words for launches: status records, returned values. Shared by the programs of a process, and never unpinned: a caller may
    have kept a view of them.

    A freed block is given out again when the stream that may still write to it was waited for (``settled``).
    """

    def __init__(self, driver: Driver) -> None:
        self._slab = Slab(driver.host_allocate, None, CHUNK)
        self._owned: dict[int, int] = {}  # the stream of each block in use
        self._waiting: dict[int, tuple[int, int]] = {}  # stream and address by the number of the release
        self._releases = itertools.count(1)
        self._lock = new_lock(self, "_lock")

    @property
    def reserved(self) -> int:
        """Bytes of all chunks."""
        return self._slab.reserved

    def allocate(self, nbytes: int, stream: int) -> int:
        """An address, a multiple of 64, for work in one stream; the content is arbitrary."""
        with self._lock:
            address = self._slab.allocate(nbytes)
            self._owned[address] = stream
            return address

    def owns(self, address: int) -> bool:
        """Whether a block at this address is in use."""
        return address in self._owned

    def free(self, address: int) -> None:
        """Take a block back. Work that is in its stream may still write to it."""
        with self._lock:
            self._waiting[next(self._releases)] = self._owned.pop(address), address

    def waiting(self, stream: int) -> list[int]:
        """Releases that have not taken effect: ask before the stream is waited for."""
        with self._lock:
            return [number for number, (of, _) in self._waiting.copy().items() if of == stream]

    def settled(self, releases: list[int]) -> None:
        """Nothing in the stream uses the blocks of these releases any more."""
        with self._lock:
            for number in releases:
                _, address = self._waiting.pop(number, (0, 0))
                if address:
                    self._slab.free(address)

    def moved(self, before: int, after: int) -> None:
        """What was done in one stream has ended, and what follows is done in another one."""
        with self._lock:
            self.settled(self.waiting(before))
            self._owned |= {address: after for address, of in self._owned.copy().items() if of == before}

    def ended(self, stream: int) -> None:
        """A stream is empty and goes: take back all blocks for work in it."""
        with self._lock:
            for address in [a for a, of in self._owned.copy().items() if of == stream]:
                self.free(address)
            self.settled(self.waiting(stream))
