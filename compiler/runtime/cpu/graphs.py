"""Graphs of the CPU: what one thread launches and writes is recorded, and runs later as one sequence."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir.threads import new_lock
from ...ir.trials import TrialLayout
from ..base import Allocation, Device
from ..compiled import Compiled
from ..recording import ALL_TRIALS, RecordedWrite, RunOnce, Unrecordable
from .recorded_memory import SequenceRecorder
from .sequence import RecordedSequence

STRIDE = "stride."
"""Launch parameters of this name say how far adstack rows are apart, in words of a plane, divided by the lanes of a row."""


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
        self, memories: Iterable[Allocation], trials: TrialLayout | None = None, per_trial: Container[int] = ()
    ) -> None:
        """From now on what this thread launches and writes is recorded and does not run. Hold ``lock`` until the end.

        Args:
            memories: that Python may write to, beside this device's own.
            trials: those of a batched program.
            per_trial: see ``SequenceRecorder``.
        """
        self._recorder = SequenceRecorder(self.lock, [*self.allocations(), *memories], trials, per_trial)

    def record(self, compiled: Compiled, words: bytearray, context: np.ndarray, status: int, seed: int | None) -> int:
        """See ``Device``; the arguments are those of ``SequenceMaker.launch``."""
        assert self._recorder is not None
        self._recorder.settled()
        maker = self._recorder.maker
        if maker.trials is not None and not compiled.chunk:  # a kernel that does nothing
            return -1
        strides = {}
        if maker.trials is not None:
            params = compiled.layout.params.items()
            strides = {word: (name[len(STRIDE) :], compiled.lanes) for (_, name), word in params if name.startswith(STRIDE)}
        return maker.launch(compiled.chunk or compiled.address, words, context, status, seed, strides)

    def expect(self, form: np.ndarray, name: str) -> None:
        assert self._recorder is not None
        self._recorder.expect(form, name)

    @property
    def recorded_writes(self) -> Sequence[RecordedWrite]:
        """What Python has written since the recording began."""
        return () if self._recorder is None else self._recorder.maker.writes

    def end_graph(self, once: RunOnce = ALL_TRIALS) -> int:
        """The graph of what was recorded. ``once``: what runs once for all trials of a batch."""
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        recorder.end()
        recorder.settled()
        handle = next(self._handles)
        self._sequences[handle] = recorder.maker.made(once)
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
        """See ``SequenceMaker.row_words``, of a graph."""
        return self._sequences[handle].row_words

    def drop_graph(self, handle: int) -> None:
        """Forget a graph."""
        self._sequences.pop(handle, None)

    def _recordable(self, what: str, do: str) -> None:
        """Refuse what cannot be part of a graph, in the thread that records one."""
        if self._recorder is not None and self._recorder.records():
            raise Unrecordable(f"{what} while a graph is recorded\n  do: {do}")
