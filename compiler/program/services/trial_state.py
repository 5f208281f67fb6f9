"""The state of each trial of a batched program, besides its fields: its random seed and its failure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ...errors import QdrunError, QdrunRuntimeError, TrialsFailed
from ...ir.trials import FAILED, FAILED_CODE, FAILED_STATUS, FAILED_VALUES, FAILED_WORDS, SEEDS, TRIALS, TrialLayout
from ...runtime.base import Allocation
from ...runtime.mirror import clear, reading, store
from .async_errors import Reporting
from .launch_seeds import SEED_FACTOR

_WORDS = {SEEDS: 1, FAILED: FAILED_WORDS}
"""Words that each trial has of what a launch parameter is the address of."""


class TrialState:
    """The trials of a batched program.

    Attributes:
        layout: how they lie in memory; None: they have none yet.
        keep_failures: a launch in which trials fail does not raise; ``failed`` tells them.
        same: fields to which their owner has written the same in all trials. Launches that read nothing else run once for all trials in a
            graph, which is stale when it is launched without them.
    """

    def __init__(self, count: int, random_seed: int) -> None:
        """``count``: of the trials; ``random_seed``: of the first one; the others have the numbers after it."""
        self.count, self.keep_failures = count, False
        self.layout: TrialLayout | None = None
        self.same: Collection[Any] = ()
        self._memory: dict[str, Allocation] = {}
        self._kernels: dict[int, Reporting] = {}  # by the address of the status record, for device code
        self._reported = False  # a launch has told of failures since they were forgotten
        self._seeds: Sequence[int] | np.ndarray = range(random_seed, random_seed + count)

    def place(self, layout: TrialLayout, allocate: Callable[[int, str], Allocation]) -> None:
        """Give the trials memory, once.

        Raises:
            OutOfMemory: from ``allocate``.
        """
        self._memory = {name: allocate(layout.bytes(8 * words), "trials") for name, words in _WORDS.items()}
        self.layout = layout
        self.set_seeds(self._seeds)

    def param(self, name: str, kernel: Reporting, status: int) -> int:
        """The value of one of ``trials.TRIAL_PARAMS`` for a kernel; ``status``: where its code sees its status record."""
        self._kernels[status] = kernel
        return self.count if name == TRIALS else self._memory[name].ptr

    def leave(self, kernel: Reporting) -> None:
        """A kernel is closed."""
        self._kernels = {status: known for status, known in self._kernels.items() if known is not kernel}

    def set_seeds(self, seeds: Sequence[int] | np.ndarray) -> None:
        """The random seed of each trial: it draws what a program made with ``qd.init(random_seed=)`` of it would draw.

        Args:
            seeds: (count,), whole numbers.

        Raises:
            QdrunRuntimeError: there is not one for each trial.
        """
        if len(seeds) != self.count:
            raise QdrunRuntimeError(f"{len(seeds)} random seeds for a batch of {self.count} trials\n  do: give one for each")
        if isinstance(seeds, np.ndarray) and isinstance(self._seeds, np.ndarray) and np.array_equal(seeds, self._seeds):
            return  # from one run of a batch to the next they are often the same
        self._seeds = seeds.copy() if isinstance(seeds, np.ndarray) else seeds  # the caller may write to it
        if self.layout is None:
            return
        words = np.zeros(self.layout.padded, np.uint64)
        whole = seeds if isinstance(seeds, np.ndarray) else np.array([seed % 2**64 for seed in seeds], np.uint64)
        words[: len(seeds)] = whole.astype(np.uint64) * np.uint64(SEED_FACTOR)
        store(self._memory[SEEDS].mirror, self._words(SEEDS), words.reshape(-1, self.layout.width, 1))

    def failed(self) -> dict[int, QdrunError]:
        """The trials that have failed since ``forget_failures`` in launches that the host has waited for, each with its first error."""
        out: dict[int, QdrunError] = {}
        if self.layout is None or not self._reported:
            return out
        mirror, table = self._memory[FAILED].mirror, self._words(FAILED)
        words = reading(mirror, table).reshape(self.layout.padded, FAILED_WORDS)
        for trial in np.flatnonzero(words[:, FAILED_CODE]).tolist():
            row = words[trial].view(np.int64).tolist()
            kernel = self._kernels[int(words[trial, FAILED_STATUS])]
            out[trial] = kernel.error_of(row[FAILED_CODE], row[FAILED_VALUES:])
        return out

    def forget_failures(self) -> None:
        """All trials take part again."""
        if self._reported:
            clear([(self._memory[FAILED].mirror, self._words(FAILED))])
            self._reported = False

    def report(self) -> None:
        """A launch has ended in which trials have failed.

        Raises:
            TrialsFailed: unless failures are kept.
        """
        self._reported = True
        if self.keep_failures:
            return
        found = self.failed()
        self.forget_failures()
        if found:
            raise TrialsFailed(self.count, found)

    def _words(self, name: str) -> np.ndarray:
        words = _WORDS[name]
        assert self.layout is not None
        return self.layout.view(self._memory[name].view, np.dtype(np.uint64), 8 * words, 0, (words,), (8,))
