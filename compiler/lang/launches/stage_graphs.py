"""Graph kernels with stages on a device that reads flags itself: the stages of a call are one graph, with a node for each loop that the
device runs again, and for what a checkpoint leaves out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast
from weakref import ref

from ...codegen.abi import CTX_STATUS_DEVICE
from ...errors import DeviceError, QdrunRuntimeError
from ...program.graph import Graph, record
from ...program.program import Program
from ...runtime.gpu.driver import DeviceFlag
from ...runtime.recording import RecordedLaunch
from ..data.ndarray import Ndarray
from .flags import word_of
from .stages import LaunchStage, Pause, Stage, StageLoop

FAILED = (1 << 32) - 1
"""The mark of a graph that is paused because a launch has failed."""
MOST_GRAPHS = 16
"""Graphs of one kernel that a program keeps: one for each combination of arguments that was given twice."""


class RecordedCall:
    """One call of a kernel with stages, in a graph that is being recorded.

    A launch that has failed pauses the graph: flags that it would have set stay as they are.

    Args:
        program: that records.
        kernels: of the stages.
        values: the arguments.
        labels: of all checkpoints: a graph that is paused has the number of its checkpoint in them, counted from 1.
        start: the checkpoint that is looked for; None: everything runs.
    """

    def __init__(
        self,
        program: Program,
        kernels: Mapping[LaunchStage, Any],
        values: Sequence[Any],
        labels: tuple[int, ...],
        start: int | None,
    ) -> None:
        self._program, self._device = program, cast("Any", program.device)
        self._kernels, self._values, self._labels, self._start = kernels, values, labels, start

    def record(self, stages: Sequence[Stage]) -> None:
        """Record all stages of the kernel."""
        self._device.resume_graph()
        self.run(stages)

    def run(self, stages: Sequence[Stage]) -> None:
        """Record stages. What stands behind a checkpoint is left out if that has paused."""
        for position, stage in enumerate(stages):
            if isinstance(stage, LaunchStage):
                if self._start is None:
                    self._launch(stage)
            elif isinstance(stage, StageLoop) and self._start in (None, *stage.labels):
                self._loop(stage)
            elif isinstance(stage, Pause) and self._start in (None, stage.label):
                self._start = None
                self.run(stage.body)
                self._device.pause_graph(word_of(stage.flag, self._values), 1 + self._labels.index(stage.label))
            else:  # all of it comes before the checkpoint that is looked for
                continue
            rest = stages[position + 1 :]
            if rest and not isinstance(stage, LaunchStage) and (isinstance(stage, Pause) or stage.labels):
                with self._device.part():
                    self.run(rest)
                return

    def _launch(self, work: LaunchStage) -> None:
        recording = self._program.recorders.recording
        assert recording is not None
        before = len(recording.steps)
        self._kernels[work](*self._values)
        for launch in recording.steps[before:]:
            if isinstance(launch, RecordedLaunch) and launch.compiled.messages:
                self._device.pause_graph(DeviceFlag(int(launch.executable.context[CTX_STATUS_DEVICE]), 8), FAILED)

    def _loop(self, loop: StageLoop) -> None:
        word = word_of(loop.flag, self._values)
        begun = self._start is not None
        if begun:  # the iteration in which it has paused goes on
            self.run(loop.body)
        with self._device.part(word, word) if begun else self._device.part(again=word):
            self.run(loop.body)


class _Given:
    """What a call was given, if that is ndarrays and numbers, whose launch needs no binding when they come again. It keeps none alive."""

    def __init__(self, plan: object, start: int | None, values: Sequence[Any], flags: Sequence[Any]) -> None:
        self._plan, self._start = plan, start
        self.plain = all(type(v) in (Ndarray, bool, int) for v in values)
        self._values = [ref(v) if type(v) is Ndarray else v for v in values] if self.plain else []
        self._flags = [ref(f) for f in flags]

    def holds(self, plan: object, start: int | None, values: Sequence[Any], flags: Sequence[Any]) -> bool:
        """Whether another call is given the same."""
        if self._plan is not plan or self._start != start:
            return False
        for known, value in zip(self._values, values):
            if type(known) is ref:
                if known() is not value:
                    return False
            elif type(known) is not type(value) or known != value:
                return False
        return all(known() is flag for known, flag in zip(self._flags, flags))


class StageGraphs:
    """The graphs of one kernel in one program, by what decides the launches of a call. They do not keep its arguments: a graph is launched
    only for arguments that lie where those of its recording did.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Graph | bool] = OrderedDict()  # True: to be recorded; False: it cannot be
        self._last: tuple[_Given, Graph] | None = None

    def again(self, plan: object, start: int | None, values: Sequence[Any], flags: Sequence[Any]) -> bool:
        """Launch the graph that was launched last, if a call has the same plan, start, arguments and flags. False: nothing was launched."""
        return self._last is not None and self._last[0].holds(plan, start, values, flags) and not self._last[1].launch()

    def remember(self, plan: object, start: int | None, values: Sequence[Any], flags: Sequence[Any]) -> None:
        """The graph that was launched last was that of a call with these."""
        given = _Given(plan, start, values, flags)
        graph = next(reversed(self._known.values()))
        self._last = (given, graph) if given.plain and isinstance(graph, Graph) else None

    def launch(self, program: Program, name: str, key: Hashable, call: Callable[[], None], prepare: Callable[[], None]) -> bool:
        """Launch the graph of a call, which is recorded when it comes for the second time.

        Args:
            program: the current one.
            name: of the kernel.
            key: of the call.
            call: its launches.
            prepare: compiles its kernels.

        Returns:
            Whether it was launched. Else there is no graph, and nothing has happened.
        """
        if key not in self._known:
            self._known[key] = True
            if len(self._known) > MOST_GRAPHS:
                self._known.popitem(last=False)
            return False
        self._known.move_to_end(key)
        graph = self._known[key]
        if graph is True:
            prepare()
            graph = self._known[key] = self._record(program, name, call)
        if not isinstance(graph, Graph):
            return False
        if graph.launch():  # it is stale
            del self._known[key]
            return False
        return True

    def _record(self, program: Program, name: str, call: Callable[[], None]) -> Graph | bool:
        """The graph; False: there cannot be one."""
        try:
            graph = record(program, name, call)
        except DeviceError:
            raise
        except QdrunRuntimeError:  # a stage prints, or draws random numbers, ..: the host launches it
            return False
        graph.forget_arguments()
        return graph
