"""Copies between the host and runs of bytes on the device, such as a column of a batch: eight trials' numbers in each group of trials.

A copy that crosses the bus run by run takes about a microsecond for each run. So the runs cross it as one block, and the device copies
between the block and their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        with self._block([(to, runs)]) as (block, room):
            for load in _loads([(to, runs)], room):
                for first, some in load:
                    upload(block, source, some.rows * some.nbytes)
                    self._driver.copy_rows(first, some.step, block, some.nbytes, some.nbytes, some.rows, self._memory.stream)
                    source += some.rows * some.nbytes

    def download(self, to: int, parts: Sequence[tuple[int, Runs]], download: Copy) -> None:
        """Device to host, of the runs that begin at several addresses; it has ended on return. ``download`` copies a block.

        Raises:
            DeviceError: see ``upload``.
        """
        with self._block(parts) as (block, room):
            for load in _loads(parts, room):
                end = block
                for first, some in load:
                    self._driver.copy_rows(end, some.nbytes, first, some.step, some.nbytes, some.rows, self._memory.stream)
                    end += some.rows * some.nbytes
                download(to, block, end - block)
                to += end - block

    @contextmanager
    def _block(self, parts: Sequence[tuple[int, Runs]]) -> Iterator[tuple[int, int]]:
        """Memory of the device for some runs, and its bytes."""
        least = max(runs.nbytes for _, runs in parts)
        nbytes = max(least, min(CHUNK, sum(runs.rows * runs.nbytes for _, runs in parts)))
        while True:
            try:
                block = self._memory.allocate(nbytes)
                break
            except MemoryError:
                if nbytes <= max(least, LEAST):
                    raise
                nbytes = max(least, nbytes // 2)
        try:
            yield block, nbytes
        finally:
            self._memory.free(block)


def _loads(parts: Sequence[tuple[int, Runs]], room: int) -> Iterator[list[tuple[int, Runs]]]:
    """The runs in lists that fit a block of ``room`` bytes."""
    load, free = list[tuple[int, Runs]](), room
    for first, runs in parts:
        done = 0
        while done < runs.rows:
            rows = min(free // runs.nbytes, runs.rows - done)
            if rows:
                load.append((first + done * runs.step, runs._replace(rows=rows)))
            done, free = done + rows, free - rows * runs.nbytes
            if done < runs.rows:
                yield load
                load, free = [], room
    yield load
