"""Graphs of the CPU: what one thread launches and writes is recorded, and runs later as one sequence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir.threads import new_lock
from ...ir.trials import TrialLayout
from ..base import Allocation, Device
from ..mirror import Mirror, clear
from ..recording import ALL_TRIALS, RecordedWrite, RunOnce, Steps, Unrecordable
from ..runs import runs_of
from .recorded_memory import SequenceRecorder
from .sequence import RecordedSequence, sequence_of

MOST_CLEARED = 64
"""Runs of an array that are cleared one by one; numpy clears an array of more."""
_NO_SEEDS = np.empty(0, np.uint64)


class CpuGraphs(Device):
    """The graphs of one program."""

    def _begin_graphs(self) -> None:
        self._recorder: SequenceRecorder | None = None
        self._sequences: dict[int, RecordedSequence] = {}
        self._handles = itertools.count(1)
        self._recording_lock = new_lock(self, "_recording_lock")

    @property
    def graphs(self) -> bool:
        return bool(self._sequences)

    @property
    def lock(self) -> Any:
        """A reentrant lock. The recording thread holds it, so that other threads wait to read or write memory."""
        return self._recording_lock

    def begin_graph(
        self,
        wrote: Callable[[RecordedWrite], None],
        memories: Iterable[Allocation],
        trials: TrialLayout | None = None,
        per_trial: Container[int] = (),
    ) -> None:
        """From now on this thread neither launches nor writes: the program records it. Hold ``lock`` until the end.

        Args:
            wrote: called with what Python writes.
            memories: that Python may write to, beside this device's own.
            trials: those of a batched program.
            per_trial: see ``SequenceRecorder``.
        """
        self._recorder = SequenceRecorder(self.lock, wrote, [*self.allocations(), *memories], trials, per_trial)

    def end_graph(self, steps: Steps, once: RunOnce = ALL_TRIALS) -> int:
        """The graph of what was recorded. ``once``: what runs once for all trials of a batch."""
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        recorder.end()
        handle = next(self._handles)
        self._sequences[handle] = sequence_of(steps, recorder.trials, once)
        return handle

    def cancel_graph(self) -> None:
        """Forget what was recorded."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.end()

    def launch_graph(self, handle: int, name: str, seeds: np.ndarray, workers: int) -> int:
        """Run a graph, to its end or to the first launch that reports something; see ``RecordedSequence.run``. ``name``: not needed."""
        return self._sequences[handle].run(seeds, self.pool_address, workers)

    def row_words(self, handle: int) -> Mapping[str, int]:
        """See ``RecordedSequence``, of a graph."""
        return self._sequences[handle].row_words

    def drop_graph(self, handle: int) -> None:
        """Forget a graph."""
        self._sequences.pop(handle, None)

    def clearing(self, parts: Sequence[tuple[Mirror | None, np.ndarray]]) -> Callable[[], None]:
        """See ``Device``: a sequence, but for parts of many runs."""
        runs = [runs_of(array) if array.size else None for _, array in parts]
        few = [r is not None and r.rows <= MOST_CLEARED for r in runs]
        steps = [RecordedWrite(a.ctypes.data, r) for (_, a), r, is_few in zip(parts, runs, few) if r is not None and is_few]
        sequence, others = sequence_of(steps), [part for part, is_few in zip(parts, few) if not is_few]

        def run() -> None:
            sequence.run(_NO_SEEDS, 0, 1)
            clear(others)

        return run

    def _recordable(self, what: str, do: str) -> None:
        """Refuse what cannot be part of a graph, in the thread that records one."""
        if self._recorder is not None and self._recorder.records():
            raise Unrecordable(f"{what} while a graph is recorded\n  do: {do}")
