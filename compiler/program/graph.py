"""Graphs: launches recorded once and launched again as one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..codegen.abi import CTX_LAUNCHES, PLANES
from ..errors import DeviceError, QdrunRuntimeError
from .program import Program, current_program
from .recording import Recording

if TYPE_CHECKING:
    from ..runtime.gpu.device import GpuDevice
    from ..tape.heap_plan import HeapPlan
    from .call import Call
    from .recording import LaunchableGradient


class Graph:
    """Launches that were recorded by ``qd.capture``. Calling it launches all of them at once, with the numbers that they had then.

    Attributes:
        launches: kernels in it, of one call.
    """

    def __init__(self, program: Program, recording: Recording, device: GpuDevice, handle: int, launches: int) -> None:
        self.program, self.name, self.launches = program, recording.name, launches
        self._recording, self._device, self._handle = recording, device, handle
        self._contexts = [e.context for e in recording.executables]
        watched: dict[tuple[LaunchableGradient, int], tuple[LaunchableGradient, Call, int | None, HeapPlan]] = {}
        for entry in recording.gradients:
            if not entry[0].fixed or self.program.options.memory_budget:
                watched.setdefault((entry[0], id(entry[3])), entry)
        self._watched = list(watched.values())
        planes = {plane for entry in recording.gradients for plane in entry[3].planes}
        self._heap = {plane: self.program.heap_memory(plane) for plane in PLANES if plane in planes}
        self._end = weakref.finalize(self, device.drop_graph, handle)
        self._end.atexit = False

    def __call__(self) -> None:
        """Launch. Like that of a kernel the call returns at once.

        Raises:
            QdrunRuntimeError: the program is closed, something records launches, or the adstack heap that was there when it was recorded
                is not the one that is needed now.
        """
        program = self.program
        if program.closed:
            raise QdrunRuntimeError(f"{self!r} belongs to a program that is closed; do: qd.init() and capture it again")
        for active, what in (
            (program.recording, "another graph is recorded: its launches would not be in it"),
            (program.tape, "a tape records: it would not know the launches; do: open the tape in the captured function"),
            (program.forward, "qd.ad.FwdMode is open: it would not know the launches"),
        ):
            if active is not None:
                raise QdrunRuntimeError(f"{self!r} cannot be launched while {what}")
        with program.running(), program.alone():
            self._check()
            self._device.launch_graph(self._handle, f"graph of {self.name}")
            for context in self._contexts:
                context[CTX_LAUNCHES] += 1
            for tensor in self._recording.written.values():
                program.data.wrote(tensor)
        program.launched(self._device.weight(-self._handle))

    def _check(self) -> None:
        """Refuse to run with another heap than the one that is there, or is needed."""
        for plane, memory in self._heap.items():
            if self.program.heap_memory(plane) is not memory:
                raise QdrunRuntimeError(
                    f"{self!r} uses an adstack heap that the program has replaced by another since\n  do: capture it again, after"
                    " the gradients that need most"
                )
        for gradient, call, budget, plan in self._watched:
            now = gradient.plan(call, budget, launched=True)
            if now != plan:
                raise QdrunRuntimeError(
                    f"{self!r} was recorded with an adstack heap of {plan.bytes:,} bytes for the gradient `{gradient.name}`, which"
                    f" has another plan now, of {now.bytes:,} bytes: what bounds its loops has changed\n  do: capture it again"
                )

    def close(self) -> None:
        """Forget the launches. Calls are errors afterwards."""
        self._end()

    def __repr__(self) -> str:
        return f"<graph of `{self.name}`: {self.launches} launches>"


def capture(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """Record what a function launches, and give it as one graph, on a GPU.

    The function is called once, and its launches do not run: calling the graph runs them. Numbers that it passes, and those that Python
    writes to fields (``x[None] = 1.0``, ``x.fill(0)``), are part of the graph; whole arrays are not. A ``with qd.ad.Tape(loss):`` in it is
    recorded with its gradients. Run the function once before, so that all kernels are compiled and all memory is there.

    Args:
        function: what to call.
        args: its arguments.
        kwargs: its keyword arguments.

    Raises:
        QdrunRuntimeError: no GPU; or the function does what a graph cannot: it reads what its launches write, waits, allocates, compiles,
            draws random numbers, prints, or launches a kernel that returns a value. Names it.
    """
    program = current_program()
    name = getattr(function, "__qualname__", type(function).__name__).rsplit("<locals>.", maxsplit=1)[-1]
    device = _device(program, name)
    with program.running(), program.alone(), device.lock:
        recording = Recording(name, program.heap_memory)
        with _recorded(program, device, recording) as handles:
            before = device.launches()
            function(*args, **kwargs)
        graph = Graph(program, recording, device, handles[0], device.launches() - before)
        device.launched_outside()  # what the host knows of the device's memory from the recording is not so
    return graph


def _device(program: Program, name: str) -> GpuDevice:
    """The program's GPU; refuses what cannot be recorded."""
    if program.device.on_host:
        raise QdrunRuntimeError(
            f"qd.capture: the {program.arch.value} backend has no graphs\n  do: call `{name}` itself: a launch takes about 0.1 us there"
        )
    for active, what in (
        (program.recording, "another graph is recorded"),
        (program.tape, "a tape records: it would replay launches that did not run; do: open the tape in the captured function"),
        (program.forward, "qd.ad.FwdMode is open; do: open it in the captured function"),
        (program.versions, "launches are checked one by one; do: qd.init(debug=False)"),
    ):
        if active is not None:
            raise QdrunRuntimeError(f"qd.capture: `{name}` cannot be recorded while {what}")
    program.materialize()
    device: Any = program.device
    return device


@contextmanager
def _recorded(program: Program, device: GpuDevice, recording: Recording) -> Iterator[list[int]]:
    """Launches inside are recorded; at the end the list has the graph's handle. After an exception there is no graph."""
    handles: list[int] = []
    device.begin_graph()
    program.recording = recording
    try:
        yield handles
    except BaseException:
        program.recording = None
        with suppress(DeviceError):
            device.drop_graph(device.end_graph())
        device.launched_outside()
        raise
    program.recording = None
    handles.append(device.end_graph())
