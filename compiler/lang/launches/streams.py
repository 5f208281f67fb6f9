"""Streams and events as Quadrants has them. A program has one queue of launches, and every stream is in order with it.

That is one of the orders that a program with streams allows: what waits for an event was launched after it. Launches of one program share
its temporaries and its adstack heap, so they could not overlap without another set of both for each stream.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ...errors import QdrunRuntimeError, QdrunTypeError
from ...program.program import Program, current_program

if TYPE_CHECKING:
    from ..args.binding import Binder


class _OfProgram:
    """What belongs to a program, can be closed, and is closed by ``with``."""

    _kind = ""

    def __init__(self, program: Program | None = None) -> None:
        self._program = weakref.ref(program or current_program())
        self._open = True

    def _owner(self) -> Program:
        """The program.

        Raises:
            QdrunRuntimeError: it is closed, or this was destroyed.
        """
        program = self._program()
        if program is None or program.closed:
            raise QdrunRuntimeError(f"this {self._kind} belongs to a program that is closed\n  do: make it after qd.init()")
        if not self._open:
            raise QdrunRuntimeError(f"this {self._kind} was destroyed\n  do: destroy it after its last use")
        return program

    def synchronize(self) -> None:
        """Wait for all launches of the program.

        Raises:
            QdrunRuntimeError: what they reported; the program is closed, or this was destroyed.
        """
        self._owner().synchronize()

    def destroy(self) -> None:
        """Give it up. Doing so again has no effect."""
        self._open = False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return f"<{self._kind}>"


class Stream(_OfProgram):
    """A stream: ``kernel(x, qd_stream=s)``. Made by ``qd.create_stream()``.

    Args:
        handle: a stream of another library; refused, but 0.
        program: that it belongs to; None: the current one.

    Raises:
        QdrunTypeError: a stream of another library is given.
    """

    _kind = "stream"

    def __init__(self, handle: int = 0, program: Program | None = None) -> None:
        if handle:
            raise QdrunTypeError(
                f"launches cannot go to a stream of another library (Stream({handle:#x}))",
                hint="leave it out: launches with arrays of another library are in order with its stream (docs/interop.md)",
            )
        super().__init__(program)

    @property
    def handle(self) -> int:
        """The address of the stream that all launches of the program go to; 0 on devices without one."""
        return getattr(self._owner().device, "stream", 0)


class Event(_OfProgram):
    """A point in the order of the launches. Made by ``qd.create_event()``."""

    _kind = "event"

    def record(self, qd_stream: Stream | None = None) -> None:
        """The point is here.

        Raises:
            QdrunRuntimeError: the program is closed, or this was destroyed.
        """
        self._check(qd_stream)

    def wait(self, qd_stream: Stream | None = None) -> None:
        """Later launches of the stream come after the point; they do so in any case.

        Raises:
            QdrunRuntimeError: the program is closed, or this was destroyed.
        """
        self._check(qd_stream)

    def _check(self, stream: Stream | None) -> None:
        _check_stream(self._owner(), stream)


def _check_stream(program: Program, stream: Any) -> None:
    """Refuse what is no stream of a program.

    Raises:
        QdrunTypeError: it is no stream.
        QdrunRuntimeError: it is one of another program, of one that is closed, or was destroyed.
    """
    if stream is None:
        return
    if not isinstance(stream, Stream):
        raise QdrunTypeError(f"qd_stream={stream!r} is no stream", hint="make one: qd.create_stream()")
    if stream._owner() is not program:
        raise QdrunRuntimeError("this stream belongs to another program\n  do: make it in the program that launches")


def take_stream(program: Program, binder: Binder, kwargs: dict[str, Any]) -> bool:
    """Take ``qd_stream`` out of the keywords of a launch, unless the kernel has a parameter of that name. Whether it was there.

    Raises:
        QdrunTypeError: it is no stream.
        QdrunRuntimeError: it is one of another program, of one that is closed, or was destroyed.
    """
    if "qd_stream" not in kwargs or binder.has("qd_stream"):
        return False
    _check_stream(program, kwargs.pop("qd_stream"))
    return True


def create_stream() -> Stream:
    """A stream of the current program."""
    return Stream()


def create_event() -> Event:
    """An event of the current program."""
    return Event()
