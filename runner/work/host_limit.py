"""``limits.memory`` for what a trial takes of its host past its program: arrays of numpy, of other libraries, of its own.

The limit is the kernel's (RLIMIT_DATA): what would go beyond it is refused, as a ``MemoryError`` in the line that asked for it, before the
machine begins to swap. It counts private memory that may be written, used or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MIB = 1 << 20
SPARE_BYTES, SPARE_THREAD_BYTES = 512 * MIB, 16 * MIB
"""What a process takes beside its trial: the compiler at work, and the stacks and buffers of a thread for each core."""


def private_bytes() -> int:
    """Private memory of this process that may be written; 0 where the system does not say."""
    with suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmData:")), 0)
    return 0


def spare_bytes() -> int:
    """What a trial may take beside its limit."""
    return SPARE_BYTES + SPARE_THREAD_BYTES * (os.cpu_count() or 1)


@contextmanager
def at_most(limit: int | None) -> Iterator[None]:
    """While open, this process gets no more than ``limit`` bytes, and what it needs itself, beside what it has now. None: any.

    Its threads share it: for a process that runs one trial at a time. Where the system has no such limit, there is none.
    """
    now = private_bytes()
    if limit is None or not now:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = min([now + limit + spare_bytes(), *(old for old in (soft, hard) if old != resource.RLIM_INFINITY)])
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    except (ValueError, OSError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


__all__ = ["at_most", "private_bytes", "spare_bytes"]
