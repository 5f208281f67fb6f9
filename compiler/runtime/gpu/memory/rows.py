"""Copies between the host and runs of bytes on the device, such as a column of a batch: eight trials' numbers in each group of trials.

A copy that crosses the bus run by run takes about a microsecond for each run. So the runs cross it as one block, and the device copies
between the block and their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...runs import Runs
from ..driver import Driver
from .device_memory import DeviceMemory

CHUNK = 16 << 20
"""Bytes of the block. Where the device has no room for it, it is smaller."""
LEAST = 64 << 10

Copy = Callable[[int, int, int], None]
"""Copies bytes across the bus: to an address, from an address, so many."""


class RowCopies:
    """The copies of one program, in the order of its stream.

    Args:
        driver, memory: of the device.
    """

    def __init__(self, driver: Driver, memory: DeviceMemory) -> None:
        self._driver, self._memory = driver, memory

    def upload(self, to: int, source: int, runs: Runs, upload: Copy) -> None:
        """Host to device. ``upload`` copies a block.

        Raises:
            DeviceError: the device is full, or the driver has failed.
        """
        with self._block(runs) as (block, most):
            for first in range(0, runs.rows, most):
                rows = min(most, runs.rows - first)
                upload(block, source + first * runs.nbytes, rows * runs.nbytes)
                places = to + first * runs.step, runs.step, block, runs.nbytes
                self._driver.copy_rows(*places, runs.nbytes, rows, self._memory.stream)

    def download(self, to: int, source: int, runs: Runs, download: Copy) -> None:
        """Device to host; it has ended on return. ``download`` copies a block.

        Raises:
            DeviceError: see ``upload``.
        """
        with self._block(runs) as (block, most):
            for first in range(0, runs.rows, most):
                rows = min(most, runs.rows - first)
                places = block, runs.nbytes, source + first * runs.step, runs.step
                self._driver.copy_rows(*places, runs.nbytes, rows, self._memory.stream)
                download(to + first * runs.nbytes, block, rows * runs.nbytes)

    @contextmanager
    def _block(self, runs: Runs) -> Iterator[tuple[int, int]]:
        """Memory of the device for some runs, and for how many."""
        rows = max(1, min(runs.rows, CHUNK // runs.nbytes))
        while True:
            try:
                block = self._memory.allocate(rows * runs.nbytes)
                break
            except MemoryError:
                if rows == 1 or rows * runs.nbytes <= LEAST:
                    raise
                rows = max(1, rows // 2)
        try:
            yield block, rows
        finally:
            self._memory.free(block)
