"""``limits.memory`` for what a trial takes of its host past its program: arrays of numpy, of other libraries, of its own.

The limit is the kernel's (RLIMIT_DATA): what would go beyond it is refused, as a ``MemoryError`` in the line that asked for it, before the
machine begins to swap. It counts private memory that may be written, used or not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MIB = 1 << 20
SPARE_BYTES, SPARE_THREAD_BYTES = 512 * MIB, 16 * MIB
"""Overhead of a process besides its trial: the compiler, and the stacks and buffers of a thread per core."""


def private_bytes() -> int:
    """Private memory of this process that may be written; 0 where the system does not say."""
    with suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmData:")), 0)
    return 0


def spare_bytes(trials: int = 1) -> int:
    """Overhead of trials that run at once, besides their limits: each may be compiling."""
    return SPARE_BYTES * trials + SPARE_THREAD_BYTES * (os.cpu_count() or 1)


class HostLimit:
    """The limit of a process, whose lanes run trials with ``limit`` bytes each. None: any.

    Threads share the limit of their process: it holds for the trials together that have run at once since the process was last idle, as
    what they leave behind may stay in the allocator. Where the system has no such limit, there is none.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit if private_bytes() else None
        self._lock = threading.Lock()
        self._running = self._most = self._idle_bytes = 0
        self._before = (0, 0)

    @contextmanager
    def trial(self, count: int = 1) -> Iterator[None]:
        """While open, a trial runs, or a batch of so many."""
        if self.limit is None:
            yield
            return
        with self._lock:
            self._begin(self.limit, count)
        try:
            yield
        finally:
            with self._lock:
                self._running -= count
                if not self._running:
                    self._most = 0
                    _set(*self._before)

    @property
    def trials(self) -> int:
        """The present number of trials in the process."""
        return self._most

    def _begin(self, limit: int, count: int) -> None:
        import resource

        if not self._running:
            self._idle_bytes, self._before = private_bytes(), resource.getrlimit(resource.RLIMIT_DATA)
        self._running += count
        self._most = max(self._most, self._running)
        most = self._idle_bytes + limit * self._most + spare_bytes(self._most)
        _set(min([most, *(old for old in self._before if old != resource.RLIM_INFINITY)]), self._before[1])


def _set(soft: int, hard: int) -> None:
    import resource

    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


__all__ = ["HostLimit", "private_bytes", "spare_bytes"]
