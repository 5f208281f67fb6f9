"""The print ring of a device: what kernels printed, written to stdout when the host waits for the device."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from ...codegen.abi import (
    RECORD_CONTEXT,
    RECORD_COUNT,
    RECORD_SITE,
    RECORD_VALUES,
    RING_LOST,
    RING_RECORDS,
    RING_SIZE,
    RING_USED,
)
from ..cpu.device import print_record

RING_WORDS = 1 << 17
"""Bytes of a print ring: 1 MiB holds about ten thousand lines between two waits."""


class Ring:
    """A ring in device memory. ``read(address, words)`` and ``write(address, words)`` copy to and from it, and wait."""

    def __init__(
        self,
        address: int,
        read: Callable[[int, np.ndarray], None],
        write: Callable[[int, np.ndarray], None],
        words: int,
    ) -> None:
        self.address, self._read, self._write, self._words = address, read, write, words
        self._reset(self._words)

    def _reset(self, used: int) -> None:
        """Empty the ring: words that a record may take are zero before it does."""
        head = np.zeros(RING_RECORDS + used, np.int64)
        head[RING_SIZE] = self._words
        self._write(self.address, head)

    def drain(self) -> None:
        """Print what is there, in the order of arrival. The stream must be empty."""
        head = np.zeros(RING_RECORDS, np.int64)
        self._read(self.address, head)
        used = int(min(head[RING_USED], self._words))
        if not used and not head[RING_LOST]:
            return
        words = np.zeros(used, np.int64)
        if used:
            self._read(self.address + 8 * RING_RECORDS, words)
        self._reset(used)
        _print(words)
        if head[RING_LOST]:
            sys.stdout.write(f"... {int(head[RING_LOST]):,} prints are lost: call qd.sync() more often\n")


def _print(words: np.ndarray) -> None:
    at = 0
    while at + RECORD_VALUES <= len(words) and words[at + RECORD_CONTEXT]:
        count = int(words[at + RECORD_COUNT])
        first = at + RECORD_VALUES
        values = [int(x) for x in words[first : first + count]]
        print_record(int(words[at + RECORD_CONTEXT]), int(words[at + RECORD_SITE]), values)
        at = first + count
