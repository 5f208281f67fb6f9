"""Times of one sweep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.batched.model import Columns


@dataclass(frozen=True)
class Measured:
    """One way of one batch.

    Attributes:
        side: ``ours`` or ``jax``.
        way: how it was run.
        batch: trials at once.
        seconds: of the fastest run.
        cpu: CPU seconds of a run, the mean of all: other programs on the machine hardly change it.
        first: seconds of the first run, with compilation.
        runs: how many there were.
    """

    side: str
    way: str
    batch: int
    seconds: float
    cpu: float
    first: float
    runs: int

    @property
    def rate(self) -> float:
        """Trials a second."""
        return self.batch / self.seconds


def measure(
    side: str, way: str, columns: Columns, sweep: Callable[[Columns], tuple[np.ndarray, Columns]], seconds: float
) -> tuple[Measured, tuple[np.ndarray, Columns]]:
    """Run a sweep for about some seconds, at least three times after two runs that warm up: ours records its launches at the second.

    Returns:
        The times, and the losses and gradients of the last run.
    """
    begin = time.perf_counter()
    found = sweep(columns)
    first = time.perf_counter() - begin
    sweep(columns)
    times: list[float] = []
    used: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        begin, cpu = time.perf_counter(), time.process_time()
        found = sweep(columns)
        times.append(time.perf_counter() - begin)
        used.append(time.process_time() - cpu)
    return Measured(side, way, len(found[0]), min(times), sum(used) / len(used), first, len(times)), found
