"""Zeroed memory of the host."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

ALIGNMENT = 64

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
