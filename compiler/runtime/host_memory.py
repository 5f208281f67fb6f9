"""Zeroed memory of the host."""

from __future__ import annotations

import sys
from mmap import mmap
from typing import Any

import numpy as np

ALIGNMENT = 64
LAZY = 1 << 20
"""Mirrors of so many bytes are reserved and not committed: they cost memory where they are read, and nothing before."""

_PRIVATE, _ANONYMOUS, _NORESERVE = 0x02, 0x20, 0x4000  # of Linux; ``mmap`` does not name the last one everywhere

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def zeroed(nbytes: int) -> Bytes:
    """Zeroed bytes at a multiple of 64; they live as long as a view of them.

    Raises:
        MemoryError: the system does not give so many bytes.
    """
    if nbytes > sys.maxsize - ALIGNMENT:
        raise MemoryError(f"{nbytes} bytes are more than an address can name")
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)  # zero pages come from the system untouched
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


def reserved_bytes(nbytes: int) -> Bytes:
    """Zeroed host memory that is taken from the system page by page, as it is touched."""
    if nbytes < LAZY or not _RESERVES:
        return zeroed(nbytes)
    return np.frombuffer(mmap(-1, nbytes, flags=_PRIVATE | _ANONYMOUS | _NORESERVE), np.uint8)


def _can_reserve() -> bool:
    try:
        mmap(-1, 4096, flags=_PRIVATE | _ANONYMOUS | _NORESERVE).close()
    except (OSError, ValueError, TypeError):
        return False
    return True


_RESERVES = _can_reserve()
