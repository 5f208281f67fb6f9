"""The trials of a program: how they lie in memory, and the random seed and the failure of each of a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import QdrunError, QdrunRuntimeError, TrialsFailed
from ...ir.trials import (
    FAILED,
    FAILED_CODE,
    FAILED_STATUS,
    FAILED_VALUES,
    FAILED_WORDS,
    ONE,
    SEEDS,
    TRIAL_PARAMS,
    TRIALS,
    TrialLayout,
)
from ...runtime.base import Allocation, Device
from ...runtime.mirror import clear, reading, store
from .async_errors import Reporting
from .launch_seeds import SEED_FACTOR

_WORDS = {SEEDS: 1, FAILED: FAILED_WORDS}
"""Words that each trial has of what a launch parameter is the address of."""


class SingleTrial:
    """The trials of a program that is not batched: there is one, and a launch that fails has failed for it.

    Attributes:
        layout: how trials lie in memory.
        open: the trial that Python reads and writes in a ``with program.trial(b)`` block; None: all of them.
        extent: see ``ir.trials.gpu_layout``; known once the trials have memory.
        same: fields to which their owner has written the same in all trials. Launches that read nothing else run once for all trials in a
            graph, which is stale when it is launched without them.
    """

    layout: TrialLayout = ONE
    open: int | None = None
    extent = 0
    same: Collection[Any] = ()

    def lay_out(self, shapes: Iterable[Sequence[int]]) -> None:
        """Decide how trials lie in memory, before the first memory that each has its own part of.

        Args:
            shapes: of the arrays of a trial that get this memory.

        Raises:
            OutOfMemory: there is none for the state of each trial.
        """

    def opened(self, number: int) -> int | None:
        """What ``open`` is while Python reads and writes one trial."""
        return None

    def enter(self, kernel: Reporting, context: np.ndarray, params: Mapping[tuple[int, str], int], status: int) -> None:
        """A kernel will be launched.

        Args:
            kernel: the kernel.
            context: of its launches: what tells it of the trials is written to it.
            params: the word of each launch parameter.
            status: where its code sees its status record.
        """

    def leave(self, kernel: Reporting) -> None:
        """A kernel is closed."""

    def report(self, kernel: Reporting) -> None:
        """Raise what the status record of a kernel says, and forget it.

        Raises:
            QdrunRuntimeError: it is the message of a launch.
            TrialsFailed: it says that trials have failed, and failures are not kept.
        """
        kernel.raise_message()

    def refuse(self, which: np.ndarray, error: QdrunError) -> NoReturn:
        """Raise an error of some trials.

        Args:
            which: (count,), booleans.
            error: of each of them.
        """
        raise error


class TrialBatch(SingleTrial):
    """The trials of a batched program. Each has a random seed and a failure, besides its fields.

    Attributes:
        keep_failures: a launch in which trials fail does not raise; ``failed`` tells them.
    """

    def __init__(
        self,
        count: int,
        random_seed: int,
        device: Device,
        lanes: int,
        allocate: Callable[[int, str], Allocation],
    ) -> None:
        """``count``: of the trials; ``random_seed``: of the first one; the others have the numbers after it; ``lanes``: see
        ``Device.trial_layout``.
        """
        self.count, self.keep_failures = count, False
        self._device, self._lanes, self._allocate = device, lanes, allocate
        self.layout = device.trials = device.trial_layout(count, lanes, 0)
        self._memory: dict[str, Allocation] = {}
        self._kernels: dict[int, Reporting] = {}  # by the address of the status record, for device code
        self._reported = False  # a launch has told of failures since they were forgotten
        self._seeds: Sequence[int] | np.ndarray = range(random_seed, random_seed + count)

    def lay_out(self, shapes: Iterable[Sequence[int]]) -> None:
        if not self._memory:
            self.extent = max((shape[-1] for shape in shapes if len(shape)), default=0)
            self.layout = self._device.trials = self._device.trial_layout(self.count, self._lanes, self.extent)
            self._memory = {name: self._allocate(self.layout.bytes(8 * words), "trials") for name, words in _WORDS.items()}
            self.set_seeds(self._seeds)

    def opened(self, number: int) -> int | None:
        return number

    def refuse(self, which: np.ndarray, error: QdrunError) -> NoReturn:
        raise TrialsFailed(which.size, {int(k): error for k in np.flatnonzero(which)})

    def enter(self, kernel: Reporting, context: np.ndarray, params: Mapping[tuple[int, str], int], status: int) -> None:
        for (_, name), word in params.items():
            if name in TRIAL_PARAMS:
                self._kernels[status] = kernel
                context[word] = self.count if name == TRIALS else self._memory[name].ptr

    def leave(self, kernel: Reporting) -> None:
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
        if not self._memory:
            return
        words = np.zeros(self.layout.padded, np.uint64)
        whole = seeds if isinstance(seeds, np.ndarray) else np.array([seed % 2**64 for seed in seeds], np.uint64)
        words[: len(seeds)] = whole.astype(np.uint64) * np.uint64(SEED_FACTOR)
        store(self._memory[SEEDS].mirror, self._words(SEEDS), words.reshape(-1, self.layout.width, 1))

    def failed(self) -> dict[int, QdrunError]:
        """The trials that have failed since ``forget_failures`` in launches that the host has waited for, each with its first error."""
        out: dict[int, QdrunError] = {}
        if not self._reported:
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

    def report(self, kernel: Reporting) -> None:
        kernel.take_status()
        self.report_failures()

    def report_failures(self) -> None:
        """Launches have ended in which trials have failed.

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
        return self.layout.view(self._memory[name].view, np.dtype(np.uint64), 8 * words, 0, (words,), (8,))
