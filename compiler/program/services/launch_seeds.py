"""Random seeds of launches: a function of the program's seed and of how many launches have drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

SEED_FACTOR = 0x9E3779B97F4A7C15
"""The factor of a program's random seed, or of a trial's, before the launch's part is added."""


class LaunchSeeds:
    """The seeds of a program's launches.

    Attributes:
        random_seed: the program's.
        drawn: launches that drew random numbers.
        last: the seed of the last of them.
        replayed: that of the launch whose gradient a tape runs.
    """

    def __init__(self, random_seed: int, batched: bool) -> None:
        """``batched``: a seed is the launch's part alone; kernels add that of each trial, see ``TrialBatch.set_seeds``."""
        self.random_seed, self._batched = random_seed, batched
        self.drawn = 0
        self.last: int | None = None
        self.replayed: int | None = None
        self._shared: list[int] | None = None  # by the parts of a launch: the seed, once it is drawn

    def draw(self) -> int:
        """A fresh seed for a launch."""
        if self._shared is None:
            return int(self.draw_many(1)[0])
        if not self._shared:
            self._shared.append(int(self.draw_many(1)[0]))
        return self._shared[0]

    def draw_many(self, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Those of the next launches, at once."""
        numbers = np.arange(self.drawn + 1, self.drawn + 1 + count, dtype=np.uint64)
        self.drawn += count
        own = 0 if self._batched else self.random_seed
        return np.uint64(own * SEED_FACTOR & (2**64 - 1)) + numbers * np.uint64(0xD1342543DE82EF95)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """The launches inside have the random numbers of one."""
        before, self._shared = self._shared, []
        try:
            yield
        finally:
            self._shared = before

    def state(self) -> tuple[int, int | None, int | None]:
        """What ``restore`` takes, to have later launches draw what those from now on do."""
        return self.drawn, self.last, self.replayed

    def restore(self, state: tuple[int, int | None, int | None]) -> None:
        """Go back to a ``state``."""
        self.drawn, self.last, self.replayed = state
