"""What a batched program keeps for each of its trials, beside fields: where random seeds begin, and failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ..errors import QdrunError, QdrunRuntimeError, TrialsFailed
from ..ir.trials import FAILED, FAILED_CODE, FAILED_STATUS, FAILED_VALUES, FAILED_WORDS, SEEDS, TRIALS, TrialLayout
from ..runtime.base import Allocation
from ..runtime.mirror import clear, reading, store

SEED_FACTOR = 0x9E3779B97F4A7C15
"""What a random seed is multiplied with before the launch's part is added."""


class Reports(Protocol):
    """A kernel whose failures the table holds."""

    def error_of(self, code: int, values: Sequence[int]) -> QdrunError:
        """The error of a message; ``values``: the words of its first operands."""
        ...


class TrialState:
    """The trials of a batched program.

    Attributes:
        layout: how many there are, and how they lie in memory.
        keep_failures: a launch in which trials fail does not raise; ``failed`` tells them.
    """

    def __init__(self, layout: TrialLayout, random_seed: int, allocate: Callable[[int, str], Allocation]) -> None:
        """``random_seed``: of the first trial; the others have the numbers after it."""
        self.layout, self._allocate, self.keep_failures = layout, allocate, False
        self._memory: dict[str, Allocation] = {}  # by launch parameter
        self._kernels: dict[int, Reports] = {}  # by the address of the status record
        self._seeds: Sequence[int] = range(random_seed, random_seed + layout.count)

    def param(self, name: str, kernel: Reports, status: int) -> int:
        """The value of one of ``trials.TRIAL_PARAMS`` for a kernel with this status record."""
        if name == TRIALS:
            return self.layout.count
        self._kernels[status] = kernel
        if name not in self._memory:
            words = 1 if name == SEEDS else FAILED_WORDS
            self._memory[name] = self._allocate(self.layout.bytes(8 * words), "trials")
            if name == SEEDS:
                self.set_seeds(self._seeds)
        return self._memory[name].ptr

    def set_seeds(self, seeds: Sequence[int]) -> None:
        """The random seed of each trial: it draws what a program made with ``qd.init(random_seed=)`` of it would draw.

        Raises:
            QdrunRuntimeError: there is not one for each trial.
        """
        if len(seeds) != self.layout.count:
            raise QdrunRuntimeError(
                f"{len(seeds)} random seeds for a batch of {self.layout.count} trials\n  do: give one for each"
            )
        self._seeds = seeds
        memory = self._memory.get(SEEDS)
        if memory is not None:
            words = np.zeros(self.layout.padded, np.uint64)
            words[: len(seeds)] = [seed * SEED_FACTOR % 2**64 for seed in seeds]
            store(memory.mirror, self._words(SEEDS, 1), words.reshape(-1, self.layout.width, 1))

    def failed(self) -> dict[int, QdrunError]:
        """The trials that have failed since ``forget_failures``, each with its first error."""
        memory = self._memory.get(FAILED)
        if memory is None:
            return {}
        words = reading(memory.mirror, self._words(FAILED, FAILED_WORDS)).reshape(self.layout.padded, FAILED_WORDS)
        out: dict[int, QdrunError] = {}
        for trial in np.flatnonzero(words[:, FAILED_CODE]).tolist():
            row = words[trial].view(np.int64).tolist()
            kernel = self._kernels[int(words[trial, FAILED_STATUS])]
            out[trial] = kernel.error_of(row[FAILED_CODE], row[FAILED_VALUES:])
        return out

    def forget_failures(self) -> None:
        """All trials take part again."""
        memory = self._memory.get(FAILED)
        if memory is not None:
            clear([(memory.mirror, self._words(FAILED, FAILED_WORDS))])

    def report(self) -> None:
        """A launch has ended in which trials have failed.

        Raises:
            TrialsFailed: unless failures are kept.
        """
        if self.keep_failures:
            return
        found = self.failed()
        self.forget_failures()
        if found:
            raise TrialsFailed(self.layout.count, found)

    def _words(self, name: str, words: int) -> np.ndarray:
        memory = self._memory[name]
        return self.layout.view(memory.view, np.dtype(np.uint64), 8 * words, 0, (words,), (8,))
