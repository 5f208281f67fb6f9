"""Recorders of launches: a tape, a block of forward mode, a graph, as the program and its kernels use them.

A recorder knows the launches of its own program. A launch in another program between them would run, and the recorder would miss it:
its results would be constants to a tape. So it is refused.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from ..errors import QdrunRuntimeError, describe
from ..ir.nodes import Loc
from .call import Call
from .memory.memory_regions import ExportedMemory
from .memory.versions import VersionEvent
from .variant import Variant


class WriteRecorder(Protocol):
    """Follows what Python writes to fields and ndarrays."""

    def wrote(self, tensor: Any, index: tuple[int, ...] | None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write; the arguments are those of ``Program.wrote``."""
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
_RECORDERS: ContextVar[tuple[tuple[weakref.ref[Any], int], ...]] = ContextVar("qdrun_recorders", default=())
"""The programs that recorded launches in this context, each with its thread: one that got a copy of the context is another order."""

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


class SideBySide(Protocol):
    """A program, as another one sees it."""

    replaying: bool

    @property
    def closed(self) -> bool:
        """Whether everything was freed."""
        ...

    @property
    def recorder(self) -> str:
        """What records its launches, for messages; empty: nothing."""
        ...

    @property
    def hides_launches(self) -> bool:
        """Whether a function with a gradient of its own runs in a tape: the tape does not look at launches inside."""
        ...


def recorder_opened(program: SideBySide) -> None:
    """Remember that something records launches of ``program`` in this context."""
    known, thread = _RECORDERS.get(), threading.get_ident()
    others = tuple(entry for entry in known if (p := entry[0]()) is not None and p is not program and not p.closed)
    _RECORDERS.set((*others, (weakref.ref(program), thread)))


def recorders_beside(program: SideBySide) -> list[Any]:
    """Other programs with a recorder in this context, as long as their tapes look at launches."""
    recorders = _RECORDERS.get()
    if not recorders or (len(recorders) == 1 and recorders[0][0]() is program):
        return []
    thread = threading.get_ident()
    programs = [found() for found, its_thread in recorders if its_thread == thread]
    return [p for p in programs if p is not None and p is not program and p.recorder]


def graph_beside(program: SideBySide) -> bool:
    """Whether another program captures a graph in this context: what Python writes to fields is a part of one, and no part of its."""
    return any(p.recorder not in _LOST for p in recorders_beside(program))


def refuse_beside(program: SideBySide, what: str, does: str = "is launched", loc: Loc | None = None) -> None:
    """Refuse what happens in ``program`` and the recorder of another program would miss.

    Args:
        program: the program of the launch.
        what: the kernel, the function, the graph or the array.
        does: what happens to it.
        loc: where it is defined.

    Raises:
        QdrunRuntimeError: another program records in this context, and ``program`` has no recorder itself.
    """
    beside = [p for p in recorders_beside(program) if not p.hides_launches]
    if beside and not (program.recorder or program.replaying):
        name = beside[-1].recorder
        lost, do = _LOST.get(name, _NOT_IN_THE_GRAPH)
        raise QdrunRuntimeError(describe(f"{what} {does} in another program while {name}: {lost}", loc, do))


def refuse_copy_between(program: SideBySide, tensor: Any, source: Any) -> None:
    """Refuse a copy from a field or an ndarray of another program while either program records.

    Raises:
        QdrunRuntimeError: it is one.
    """
    other = getattr(source, "_owner", program)
    name = next((p.recorder for p in (program, other) if p.recorder and not p.hides_launches), "")
    if name and other is not program:
        raise QdrunRuntimeError(
            f"{tensor._called()} is copied from {source._called()} of another program while {name}:"
            f" {_LOST.get(name, _NOT_IN_THE_GRAPH)[0]}\n"
            "  do: x.from_numpy(y.to_numpy()), if the values are constants; or make both in one program"
        )
