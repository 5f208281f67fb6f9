"""Graphs of a device: what one thread puts into the stream is recorded, and launched as one later."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.abi import RECENT, SCRATCH_FAILED, SCRATCH_PAUSED, TABLE_LAUNCHES, TABLE_RECENT
from ..recording import ALL_TRIALS, RecordedWrite, RunOnce, Steps, Unrecordable
from .driver import NO_WORD, Conditions, DeviceFlag
from .trial_graphs import TrialGraphs

if TYPE_CHECKING:
    from .memory.device_memory import DeviceMemory


class GpuGraphs(TrialGraphs):
    """The graphs of one program.

    Attributes:
        stream: of the program.
        capturing: a graph is being recorded: no allocation is possible, and frees are deferred.
    """

    stream: int
    memory: DeviceMemory
    scratch_address: int
    _lock: Any

    def _begin_graphs(self) -> None:
        self._capturing = False
        self._recorder = 0  # the thread that records
        self._foreign = False  # other libraries have memory that the graph being recorded writes
        self._joins = False  # memory was shared while a graph was recorded
        self._reported = False  # a failure was raised since the last launch of a graph
        self._begin_trial_graphs()
        self._graphs: dict[int, bool] = {}  # by their handles: whether they must wait for other libraries
        self._postponed: list[int] = []

    @abstractmethod
    def join(self) -> None:
        """See ``Link``."""

    @abstractmethod
    def settle(self, stream: int = 0) -> None:
        """See ``Link``."""

    @abstractmethod
    def synchronize(self) -> None:
        """See ``Device``."""

    @abstractmethod
    def download(self, to: int, source: int, nbytes: int) -> None:
        """See ``Link``."""

    @abstractmethod
    def memset(self, to: int, word: int, count: int, width: int) -> None:
        """See ``Link``."""

    @property
    def capturing(self) -> bool:
        """See the class."""
        return self._capturing

    @capturing.setter
    def capturing(self, value: bool) -> None:
        with self._lock:
            self._capturing = value
            if not value:
                waiting, self._postponed = self._postponed, []
                for address in waiting:
                    self.memory.free(address)

    def begin_graph(
        self,
        wrote: Callable[[RecordedWrite], None] | None = None,
        memories: object = (),
        trials: object = None,
        per_trial: Container[int] = (),
    ) -> None:
        """From now on this thread's launches, fills and copies are recorded and do not run. Hold ``lock`` until the end.

        Args:
            wrote: called with what Python writes, in a batched program; else the driver records it.
            memories: all memory that the host writes to has a mirror already.
            trials: are known.
            per_trial: the serial numbers of the memories that each trial of a batch has its own part of.
        """
        self._alive()
        if self.trials is not None:
            assert wrote is not None
            self._begin_walk(wrote, per_trial)
        else:
            with self._failing():
                self.driver.capture_begin(self.stream)
        self._foreign, self._recorder = False, threading.get_ident()
        self.capturing = True
        self.launched_outside()  # what the host knows of the device's memory is not what a launch of the graph will find

    def end_graph(self, steps: Steps = (), once: RunOnce = ALL_TRIALS) -> int:
        """The graph of what was recorded. ``steps``: of a batch; ``once``: which of them run once for all trials."""
        try:
            handle = self._captured(steps, once)
        finally:
            self.capturing = False  # frees what was waiting: not before the end, or it would be part of the graph
            self._marked = self.launches()  # what was recorded has not run
        self._graphs[handle] = self._foreign
        if self._joins:
            self.join()
        self.launched_outside()  # what the host knows of the device's memory from the recording is not so
        return handle

    def _captured(self, steps: Steps, once: RunOnce) -> int:
        """The handle of what was recorded."""
        if self.trials is None:
            with self._failing():
                return self.driver.capture_end(self.stream)
        return self._end_walk(steps, once)

    # ---- what a graph repeats or leaves out
    @property
    def conditional(self) -> bool:
        """Whether ``part`` is possible."""
        return self.trials is None and self.driver.conditions is not None

    @property
    def _conditions(self) -> Conditions:
        found = self.driver.conditions
        assert found is not None
        return found

    @contextmanager
    def part(self, first: DeviceFlag = NO_WORD, again: DeviceFlag | None = None) -> Iterator[None]:
        """What is recorded inside runs if the graph is not paused, and a number is set.

        Args:
            first: the number.
            again: it runs again under the same conditions as long as this number is set after it; None: it runs once.
        """
        conditions, stream = self._conditions, self.stream
        with self._failing():
            condition = conditions.new(stream)
            conditions.set(condition, first, self.scratch_address, stream)
            conditions.begin(condition, again is not None, stream)
        try:
            yield
            if again is not None:
                with self._failing():
                    conditions.set(condition, again, self.scratch_address, stream)
        finally:
            with self._failing():
                conditions.end(stream)

    def resume_graph(self) -> None:
        """The graph that is recorded is not paused from here on."""
        self.memset(self.scratch_address + 8 * SCRATCH_PAUSED, 0, 1, 4)

    def pause_graph(self, word: DeviceFlag, mark: int) -> None:
        """The graph that is recorded is paused from here on if a number is set: no ``part`` of it runs any more. ``mark``: not 0."""
        with self._failing():
            self._conditions.pause(word, mark, self.scratch_address, self.stream)

    def paused_graph(self) -> int:
        """Wait for the device: the mark of the graph that was paused since ``resume_graph``; 0: none.

        Raises:
            QdrunRuntimeError: what launches have reported.
        """
        self.synchronize()
        mark = np.zeros(1, np.uint32)
        self.download(mark.ctypes.data, self.scratch_address + 8 * SCRATCH_PAUSED, 4)
        return int(mark[0])

    # ---- the end of a recording
    def cancel_graph(self) -> None:
        """Forget what was recorded."""
        if self._capturing:
            self.drop_graph(self.end_graph())
        self.launched_outside()

    def launch_graph(self, handle: int, name: str, seeds: np.ndarray | None = None, workers: int = 0) -> int:
        """Put a graph into the stream.

        Args:
            handle: of the graph.
            name: for messages.
            seeds: of its random numbers, in a batched program; else nothing in it draws any.
            workers: of a CPU.

        Returns:
            -1: failures are reported later.
        """
        self._alive()
        if self._graphs[handle]:
            self.settle()
        if self._reported:  # perhaps of this graph, whose launches have the same numbers each time
            self._reported = False
            self.memset(self.scratch_address + 8 * SCRATCH_FAILED, 0, 2, 4)
        with self._failing():
            if handle in self._walks:
                self._run(self._walks[handle], name, seeds)
            else:
                self.driver.graph_launch(handle, self.stream)
        self._kernels[-handle] = name
        self.table[TABLE_RECENT + self.launches() % RECENT] = -handle
        self.table[TABLE_LAUNCHES] += 1
        return -1

    def row_words(self, handle: int) -> dict[str, int]:
        """Empty: the launches of a graph run one after another."""
        return {}

    def reported(self) -> None:
        """A failure of a launch was raised: it holds up no later one."""
        self._reported = True

    def drop_graph(self, handle: int) -> None:
        """Forget a graph; one that is running ends first."""
        if self._graphs.pop(handle, None) is None or self._dead is not None:
            return
        if handle in self._walks:
            self._drop(self._walks.pop(handle))
        elif self.trials is None:
            self.driver.graph_free(handle)

    def _recordable(self, what: str, do: str) -> None:
        """Refuse what cannot be part of a graph, in the thread that records one."""
        if self._capturing and self._recorder == threading.get_ident():
            raise Unrecordable(f"{what} while a graph is recorded\n  do: {do}")
