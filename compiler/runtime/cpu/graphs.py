"""Graphs of the CPU: what one thread launches and writes is recorded, and runs later as one sequence."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...ir.threads import new_lock
from ..base import Allocation, Device
from ..compiled import Compiled
from ..recording import Unrecordable
from .recorded_memory import Recorder
from .sequence import RecordedSequence


class Graphs(Device):
    """The graphs of one program."""

    def _begin_graphs(self) -> None:
        self._recorder: Recorder | None = None
        self._sequences: dict[int, RecordedSequence] = {}
        self._handles = itertools.count(1)
        self._recording_lock = new_lock(self, "_recording_lock")

    @property
    def graphs(self) -> bool:
        """Whether it keeps graphs of launches."""
        return bool(self._sequences)

    @property
    def lock(self) -> Any:
        """Reentrant. Who records holds it, so that others wait who read or write memory meanwhile."""
        return self._recording_lock

    def begin_graph(self, memories: Iterable[Allocation]) -> None:
        """From now on what this thread launches and writes is recorded and does not run. Hold ``lock`` until the end.

        Args:
            memories: that Python may write to, beside this device's own.
        """
        self._recorder = Recorder(self.lock, [*self.allocations(), *memories])

    def record(self, compiled: Compiled, words: bytearray, context: np.ndarray, status: int, seed: int | None) -> int:
        """See ``Device``; the arguments are those of ``SequenceMaker.launch``."""
        assert self._recorder is not None
        self._recorder.settled()
        return self._recorder.maker.launch(compiled.address, words, context, status, seed)

    def expect(self, form: np.ndarray, name: str) -> None:
        """See ``Device``."""
        assert self._recorder is not None
        self._recorder.expect(form, name)

    def end_graph(self) -> int:
        """The graph of what was recorded."""
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        recorder.end()
        recorder.settled()
        handle = next(self._handles)
        self._sequences[handle] = recorder.maker.made()
        return handle

    def cancel_graph(self) -> None:
        """Forget what was recorded."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.end()

    def launch_graph(self, handle: int, name: str, seeds: np.ndarray) -> int:
        """Run a graph, to its end or to the first launch that reports something; see ``RecordedSequence.run``. ``name``: not needed."""
        return self._sequences[handle].run(seeds)

    def drop_graph(self, handle: int) -> None:
        """Forget a graph."""
        self._sequences.pop(handle, None)

    def _recordable(self, what: str, do: str) -> None:
        """Refuse what cannot be part of a graph, in the thread that records one."""
        if self._recorder is not None and self._recorder.records():
            raise Unrecordable(f"{what} while a graph is recorded\n  do: {do}")
