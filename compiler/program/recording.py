"""The data that is collected while a function is recorded as a graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from ..codegen.abi import CTX_LAUNCHES, CTX_SEED
from ..errors import QdrunRuntimeError
from ..ir.byte_bounds import byte_bounds
from ..ir.threads import Living
from ..runtime.base import Allocation
from ..runtime.compiled import Compiled
from ..runtime.recording import RecordedLaunch, RecordedWrite, Unrecordable
from ..tape.heap_plan import HeapPlan
from .call import Call

if TYPE_CHECKING:
    from ..compile.lazy_kernel import LazyKernel
    from ..ir.nodes import Buffer

_FIRST = "run the function once before it is captured"


class Launchable(Hashable, Protocol):
    """A compiled kernel in a program, as a recording sees it."""

    name: str
    draws: bool
    context: np.ndarray
    last_seed: int | None
    lazy: LazyKernel
    owners: Mapping[Buffer, Allocation]
    users: Living[object]

    @property
    def returns(self) -> Sequence[object]:
        """The types of the scalars that it returns."""
        ...

    @property
    def compiled(self) -> Compiled:
        """Its code."""
        ...

    def take_status(self) -> bool:
        """Whether the status record says something, which it forgets."""
        ...

    def raise_status(self, plan: HeapPlan | None = None) -> None:
        """Raise what the status record says of a launch with this plan."""
        ...


class LaunchableGradient(Launchable, Protocol):
    """A compiled gradient in a program."""

    def watched(self, call: Call) -> tuple[object, ...] | None:
        """The key of the plans of a launch that depend on memory; None: no plan depends on memory."""
        ...

    def plan(self, call: Call, budget: int | None = None, *, launched: bool = False) -> HeapPlan:
        """The heap of a launch."""
        ...


LaunchPlace = tuple[Callable[[BaseException, int], None], int]
"""What adds to an error where the launch of a number is in a tape, and the number."""


class Recording:
    """The launches of a recorded function and everything that they use, so that a graph never runs on freed memory or stale plans.

    Attributes:
        thread: the one that records; launches of others wait.
        steps: the launches, in their order, and what Python writes in between, unless a driver records it.
        executables: what was launched, with the code that was launched.
        gradients: each gradient launch with its arguments, its budget and its plan.
        written: fields and ndarrays that Python writes to in between.
        kept: arguments.
        bound: launches whose arguments are numbers: what was found for them, by the kernel and the numbers.

    Args:
        name: of the function.
        heap_memory: gives each plane of the program's heap that there is.
        draws: whether its launches may draw random numbers: each launch of the graph sets their seeds.
        on_host: whether Python can write to its memory without a step.
    """

    def __init__(self, name: str, heap_memory: Callable[[str], Allocation | None], draws: bool, on_host: bool) -> None:
        self.name, self.thread, self._heap_memory, self._draws = name, threading.get_ident(), heap_memory, draws
        self._on_host = on_host
        self.steps: list[RecordedLaunch | RecordedWrite] = []
        self._contexts: dict[bytes, np.ndarray] = {}
        self._expected: list[tuple[int, int, str]] = []  # memory that Python is about to write, and its name
        self.seeds: dict[int, int] = {}  # the numbers of the seeds that were drawn, by what they were
        self._seeds_before: dict[Launchable, int | None] = {}
        self.executables: dict[Launchable, object] = {}
        self.gradients: list[tuple[LaunchableGradient, Call, int | None, HeapPlan]] = []
        self.written: dict[int, Any] = {}
        self.kept: list[object] = []
        self.bound: dict[object, Any] = {}

    def launching(self, executable: Launchable, call: Call) -> None:
        """A kernel is about to be recorded.

        Raises:
            QdrunRuntimeError: a graph cannot do what it does.
        """
        if executable.returns:
            self._refuse(f"kernel `{executable.name}` returns values, which the host waits for", "store them in a field")
        if executable.draws and not self._draws:
            self._refuse(
                f"kernel `{executable.name}` draws random numbers: each launch of the graph would draw the same ones",
                "launch it outside",
            )
        if executable.compiled.prints:
            self._refuse(f"kernel `{executable.name}` prints", "launch it outside, or take the print away")
        if call.loans or call.after:
            self._refuse(
                f"kernel `{executable.name}` is given an array that is copied to the device and back", "give it a qd.ndarray"
            )
        if self._draws and not (call.own | call.parts).issuperset(call.arrays):
            self._refuse(f"kernel `{executable.name}` is given an array of another library", "give it a qd.ndarray")
        self.executables[executable] = executable.compiled
        executable.users.add(self)
        self.kept.append(call)

    def drawing(self, executable: Launchable) -> None:
        """A kernel is about to be given a seed."""
        self._seeds_before.setdefault(executable, executable.last_seed)

    def ended(self) -> None:
        """Nothing has run: kernels have the seeds that they had."""
        for executable, seed in self._seeds_before.items():
            executable.last_seed = seed

    def drawn(self, executable: Launchable, seed: int, fresh: bool) -> None:
        """A kernel that is about to be recorded draws random numbers; ``fresh``: from a seed that no launch had before.

        Raises:
            QdrunRuntimeError: it repeats those of a launch that is not part of the graph.
        """
        if fresh:
            self.seeds[seed] = len(self.seeds)
        elif seed not in self.seeds:
            self._refuse(
                f"the gradient `{executable.name}` repeats the random numbers of a launch that is not part of it",
                "capture a function that launches the kernel, too",
            )

    def add(self, executable: Launchable, plan: HeapPlan | None, place: LaunchPlace | None, call: Call) -> None:
        """The kernel is recorded.

        Raises:
            Unrecordable: see ``settled``.
        """
        self.settled()
        seed = self.seeds[executable.last_seed] if executable.draws and executable.last_seed is not None else None
        context = executable.context.copy()
        if seed is None:
            context[CTX_LAUNCHES] = context[CTX_SEED] = 0  # others launch the same kernel meanwhile
            context = self._contexts.setdefault(context.tobytes(), context)
        self.steps.append(RecordedLaunch(executable, executable.compiled, call, bytes(call.words), context, plan, seed, place))

    @property
    def launches(self) -> list[RecordedLaunch]:
        """The launches, in their order."""
        return [step for step in self.steps if isinstance(step, RecordedLaunch)]

    def raise_status(self, number: int) -> None:
        """Raise what a launch has reported. ``number``: of the step."""
        launch = self.steps[number]
        assert isinstance(launch, RecordedLaunch)
        try:
            launch.executable.raise_status(launch.plan)
        except QdrunRuntimeError as error:
            if launch.place is not None:
                locate, place = launch.place
                locate(error, place)
            raise

    def plan(self, gradient: LaunchableGradient, call: Call, budget: int | None) -> HeapPlan:
        """The plan of a gradient that is about to be recorded.

        Raises:
            QdrunRuntimeError: the plan depends on what launches of the graph write, or the program's heap is too small for it.
        """
        try:
            plan = gradient.plan(call, budget, launched=True)
        except Unrecordable:
            self._refuse(
                f"the gradient `{gradient.name}` plans its adstack heap from an array that may have been written since it was planned"
                " last: a heap cannot be sized in a graph",
                "write the bounds of its loops outside",
            )
        for plane, need in plan.planes.items():
            memory = self._heap_memory(plane)
            have = memory.nbytes if memory is not None else 0
            if need > have:
                self._refuse(
                    f"the gradient `{gradient.name}` needs {need:,} bytes of adstack heap and the program has {have:,}: a heap cannot"
                    " be sized in a graph",
                    _FIRST,
                )
        self.gradients.append((gradient, call, budget, plan))
        return plan

    def new(self, kernel: object) -> None:
        """Refuse a kernel that would have to be compiled for its arguments.

        Raises:
            QdrunRuntimeError: always.
        """
        self._refuse(f"{kernel!r} is not compiled for these arguments yet", _FIRST)

    def new_gradient(self, kernel: str) -> None:
        """Refuse a gradient that would have to be compiled.

        Raises:
            QdrunRuntimeError: always.
        """
        self._refuse(f"the gradient of kernel `{kernel}` is not compiled yet", _FIRST)

    def wrote(self, tensor: Any, index: Any = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python writes to a field or an ndarray between two launches; in another thread that is no part of the graph."""
        del index, source, parts
        if self.thread == threading.get_ident():
            self.written[id(tensor)] = tensor
            if self._on_host:
                self._expected.append((*byte_bounds(tensor._form), tensor.name))

    def write(self, write: RecordedWrite) -> None:
        """What Python writes is recorded."""
        low, high = next(write.spans)
        self._expected = [e for e in self._expected if e[1] <= low or high <= e[0]]
        self.steps.append(write)

    def settled(self) -> None:
        """Check that all intended writes were recorded.

        Raises:
            Unrecordable: an element that was read before the recording was written.
        """
        if self._expected:
            raise Unrecordable(
                f"Python has written to `{self._expected[0][2]}` through an element, or a view, that it had before the recording, while a"
                " graph is recorded\n  do: write to the field itself, as in x[i] = ..; what was written is in the field"
            )

    def keep(self, *arguments: object) -> None:
        """Arguments that must live as long as the graph."""
        self.kept.append(arguments)

    def forget_arguments(self) -> None:
        """Keep none of them alive."""
        self.kept.clear()
        self.bound.clear()
        self.steps.clear()

    def _refuse(self, what: str, do: str) -> NoReturn:
        raise QdrunRuntimeError(f"{what}, while the graph of `{self.name}` is recorded\n  do: {do}")
