"""Recorders of launches: a tape, a block of forward mode, a graph, as the program and its kernels use them.

A recorder knows the launches of its own program. A launch in another program between them would run, and the recorder would miss it:
its results would be constants to a tape. So it is refused.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from ..errors import QdrunRuntimeError, describe
from ..ir.nodes import Loc
from .call import Call
from .memory.memory_regions import ExportedMemory
from .memory.versions import VersionEvent, Versions
from .recording import Recording
from .rehearsal import Rehearsal
from .state import ProgramState
from .variant import Variant


class WriteRecorder(Protocol):
    """Follows what Python writes to fields and ndarrays."""

    def wrote(self, tensor: Any, index: tuple[int, ...] | None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write; the arguments are those of ``Recorders.wrote``."""
        ...


class CustomFunction(Protocol):
    """A Python function with a gradient of its own."""

    fn: Callable[..., Any]
    cuts: bool

    @property
    def name(self) -> str:
        """The name in messages."""
        ...

    def gradient(self) -> Callable[..., Any]:
        """Its gradient."""
        ...

    def reserve(self, program: Any) -> int:
        """Compile and make what its gradient will need; further bytes that this will allocate."""
        ...


class TapeRecorder(WriteRecorder, Protocol):
    """A tape: remembers launches, to run their gradients last to first."""

    @property
    def empty(self) -> bool:
        """Whether nothing has been launched since it was opened."""
        ...

    in_steps: bool
    """Whether it records a step that may be run again."""

    @property
    def inside(self) -> bool:
        """Whether a function with a gradient of its own runs: what it launches is hidden."""
        ...

    def opens_log(self, kernel: Any) -> bool:
        """A launch has come to Python. Whether a log was opened that it may follow: then it is to be called again."""
        ...

    def leave_log(self) -> None:
        """Launches from now on come to Python."""
        ...

    def starts(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A kernel is about to run with these arguments: what it overwrites and an earlier gradient needs is kept."""
        ...

    def launching(self, call: Call) -> None:
        """A kernel is about to run with these arguments; told while versions are kept."""
        ...

    def record(self, event: VersionEvent | None = None) -> None:
        """The launch of that kernel was made."""
        ...

    def failed(self, what: Any, error: BaseException) -> None:
        """A launch raised."""
        ...

    def custom(self, function: CustomFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with a gradient of its own, as one step."""
        ...

    def step_begins(self, step: int | None) -> None:
        """The launches from now on are those of a time step; None: of none."""
        ...

    def looked_at(self, tensor: Any) -> None:
        """Python is about to read a field or an ndarray."""
        ...

    def saw(self, tensor: Any, value: Any, index: Any) -> None:
        """Python has read a field or an ndarray: all of it, or the element at an index."""
        ...

    def show(self, shown: ExportedMemory) -> None:
        """The memory of a field or an ndarray is handed out."""
        ...

    def returned(self, kernel: Any, args: tuple[Any, ...], result: Any) -> None:
        """A kernel has returned something to Python."""
        ...


class ForwardRecorder(WriteRecorder, Protocol):
    """A block of forward mode: kernels compute tangents beside values."""

    def launched(self, variant: Variant, call: Call) -> None:
        """A kernel has run."""
        ...


# ---- several programs in one context
_RECORDERS: ContextVar[tuple[tuple[weakref.ref[Recorders], int], ...]] = ContextVar("qdrun_recorders", default=())
"""Recorders in use in this context, each with its thread: one that got a copy of the context is another order."""

TAPE, FORWARD = "a tape records", "qd.ad.FwdMode is open"
"""What records, as messages call it."""
_LOST = {
    TAPE: (
        "no gradient would go through it",
        "launch it before or after the tape; in a function with @qd.ad.no_grad, if its results are constants, or with"
        " @qd.ad.grad_replaced, if you write its gradient; or make its fields in the program of the tape",
    ),
    FORWARD: (
        "no tangent would go through it",
        "launch it before or after the block, or make its fields in the program of the block",
    ),
}
_NOT_IN_THE_GRAPH = "it would run once, now", "leave it out of the captured function"


T = TypeVar("T")


class RecorderSlot(Generic[T]):
    """A recorder of ``Recorders``, or None. Whether launches must come through Python depends on it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, recorders: Recorders, owner: type) -> T | None:
        return recorders.__dict__.get(self._name)

    def __set__(self, recorders: Recorders, recorder: T | None) -> None:
        recorders.__dict__[self._name] = recorder
        recorders.update()


class Recorders:
    """What follows the launches of a program, and what Python reads and writes. Each is None while it does not.

    Attributes:
        tape: the tape that records launches.
        forward: the forward-mode block that is open.
        second_order: what computes a Hessian product, see ``Program.second_order``.
        versions: the version counters of arrays, kept with ``debug=True`` and while a tape validates.
        rehearsal: what records launches instead of running them.
        beside: recorders of other programs that were in use when this program became current.
    """

    tape = RecorderSlot[TapeRecorder]()
    forward = RecorderSlot[ForwardRecorder]()
    second_order = RecorderSlot[WriteRecorder]()
    versions = RecorderSlot[Versions]()
    rehearsal = RecorderSlot[Rehearsal]()

    def __init__(self, state: ProgramState) -> None:
        self._state, state.launch_failed = state, self.launch_failed
        self.beside: list[weakref.ref[Recorders]] = []
        self._observers: tuple[WriteRecorder, ...] = ()

    @property
    def recording(self) -> Recording | None:
        """The graph that this thread records."""
        return self._state.recording

    @recording.setter
    def recording(self, recording: Recording | None) -> None:
        self._state.captured = recording
        self.update()

    def update(self) -> None:
        """A recorder has come or gone, or something else has changed that decides whether launches come through Python."""
        found = self.rehearsal, self._state.captured, self.tape, self.versions, self.forward, self.second_order
        self._observers = tuple(one for one in found if one is not None)
        self._state.admission.slow(self.active())
        if self.tape is not None:
            self.tape.leave_log()
        if self.name:
            _opened(self)

    def active(self) -> bool:
        """Whether something records launches, or refuses them."""
        return bool(self._observers or self.beside) or self._state.batch.open is not None

    # ---- what they record
    @property
    def needs_memory(self) -> bool:
        """Whether launches are recorded, which may need the memory of the program later."""
        return any(one is not self.versions for one in self._observers)

    @property
    def reverses(self) -> bool:
        """Whether the gradients of launches will run: a tape records them, or would."""
        tape, rehearsal = self.tape, self.rehearsal
        return (tape is not None and not tape.inside) or (rehearsal is not None and rehearsal.differentiates)

    @property
    def name(self) -> str:
        """What records launches of this program and no other's, for messages; empty: nothing."""
        if self._state.captured is not None:
            return f"the graph of `{self._state.captured.name}` is recorded"
        return TAPE if self.tape is not None else FORWARD if self.forward is not None else ""

    @property
    def hides_launches(self) -> bool:
        """Whether a function with a gradient of its own runs in the tape: the tape does not look at launches inside."""
        return self._state.captured is None and self.tape is not None and self.tape.inside

    @property
    def ended(self) -> bool:
        """Whether the program is closed."""
        return self._state.admission.closed

    # ---- what they are told
    def wrote(self, tensor: Any, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write to a field or an ndarray: one element, or all of it.

        Args:
            tensor: the field or the ndarray.
            index: of the element, in the order of memory for an ndarray.
            source: the tensor that it is copied from.
            parts: indices within the element, one in the other, when only a part of it is written.

        Raises:
            QdrunRuntimeError: ``source`` belongs to another program, and one of the two records; or another program captures a graph.
        """
        if source is not None:
            self._refuse_copy_between(tensor, source)
        if any(other.name not in _LOST for other in self._others()):  # what Python writes to fields is a part of a graph
            self.refuse_beside(tensor._called(), "is written")
        for observer in self._observers:
            observer.wrote(tensor, index, source, parts)
        self._state.data.wrote(tensor)

    def looked_at(self, tensor: Any) -> None:
        """Python is about to read a field or an ndarray."""
        if self.tape is not None:
            self.tape.looked_at(tensor)
        if self.rehearsal is not None:
            self.rehearsal.looked_at(tensor)

    def saw(self, tensor: Any, value: Any, index: Any) -> None:
        """Python has read a field or an ndarray: all of it, or the element at an index."""
        if self.tape is not None:
            self.tape.saw(tensor, value, index)

    def shown(self, memory: ExportedMemory) -> None:
        """The memory of a field or an ndarray is handed out."""
        for recorder in (self.tape, self.versions):
            if recorder is not None:
                recorder.show(memory)

    def launch_failed(self, name: str, error: BaseException) -> None:
        """The native launch of a kernel has raised."""
        if self.tape is not None:
            self.tape.failed(f"kernel `{name}`", error)

    # ---- several programs in one context
    def is_current(self) -> None:
        """The program became the current one. Its launches go through Python if another program records in this context."""
        if others := self._others():
            self.beside = [weakref.ref(other) for other in others]
            self.update()

    def refuse_unrecorded(self, what: str, does: str = "is launched", loc: Loc | None = None) -> None:
        """Refuse a launch that the recorder of another program would miss; see ``refuse_beside``."""
        self.refuse_beside(what, does, loc)
        if self.beside and not any((other := found()) is not None and other.name for found in self.beside):
            self.beside = []
            self.update()

    def refuse_beside(self, what: str, does: str, loc: Loc | None = None) -> None:
        """Refuse what happens in this program and the recorder of another program would miss.

        Args:
            what: the kernel, the function, the graph or the array.
            does: what happens to it.
            loc: where it is defined.

        Raises:
            QdrunRuntimeError: another program records in this context, and this one has no recorder itself.
        """
        others = [other for other in self._others() if not other.hides_launches]
        if others and not (self.name or self._state.replay.running):
            name = others[-1].name
            lost, do = _LOST.get(name, _NOT_IN_THE_GRAPH)
            raise QdrunRuntimeError(describe(f"{what} {does} in another program while {name}: {lost}", loc, do))

    def _refuse_copy_between(self, tensor: Any, source: Any) -> None:
        """Refuse a copy from a field or an ndarray of another program while either program records.

        Raises:
            QdrunRuntimeError: it is one.
        """
        owner = getattr(source, "_owner", None)
        other: Recorders = self if owner is None else owner.recorders
        name = next((r.name for r in (self, other) if r.name and not r.hides_launches), "")
        if name and other is not self:
            raise QdrunRuntimeError(
                f"{tensor._called()} is copied from {source._called()} of another program while {name}:"
                f" {_LOST.get(name, _NOT_IN_THE_GRAPH)[0]}\n"
                "  do: x.from_numpy(y.to_numpy()), if the values are constants; or make both in one program"
            )

    def _others(self) -> list[Recorders]:
        """Those of other programs with a recorder in this context, as long as their tapes look at launches."""
        known = _RECORDERS.get()
        if not known or (len(known) == 1 and known[0][0]() is self):
            return []
        thread = threading.get_ident()
        others = [found() for found, its_thread in known if its_thread == thread]
        return [other for other in others if other is not None and other is not self and other.name]


def _opened(recorders: Recorders) -> None:
    """Remember that something records launches of a program in this context."""
    known, thread = _RECORDERS.get(), threading.get_ident()
    others = tuple(one for one in known if (r := one[0]()) is not None and r is not recorders and not r.ended)
    _RECORDERS.set((*others, (weakref.ref(recorders), thread)))
