"""Tapes that were recorded before: when the same launches are recorded again, nothing is checked.

Each is a log (``runtime.native.log``): later launches follow it natively, and its gradients run natively.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from ...runtime.native.log import LaunchLog

MOST_LAUNCHES = 1 << 14
MOST_TAPES = 16
WORTH = 256
"""Launches in the same tapes, one after the other, after which a log is made: the first one of a process may be compiled for it."""

V = TypeVar("V")
Launches = Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]]
"""Kernels with their arguments and keyword arguments."""


class KnownTape(NamedTuple):
    """A tape that needs no check.

    Attributes:
        log: of its launches.
        generation: ``DataVersions.generation`` at its end; a kernel that was compiled or closed since may be one of these.
        copied: the ndarrays that it copies, which must be there, each with the serial number of its memory.
    """

    log: LaunchLog
    generation: int
    copied: tuple[tuple[weakref.ref[Any], int], ...]

    def is_valid(self, generation: int) -> bool:
        """Whether all its kernels, and the memory that it copies, are there."""
        return self.generation == generation and all(
            (array := ref()) is not None and array._memory.serial == serial for ref, serial in self.copied
        )


class _Seen(NamedTuple):
    """How often a tape was recorded, one after the other, with as many launches, and how often it must be before a log is made."""

    launches: int
    times: int
    wanted: int


class KnownTapes:
    """The known tapes of a program, by the kernel that each launches first, and its loss. They keep no kernels and no arrays alive."""

    def __init__(self) -> None:
        self._found: dict[object, KnownTape] = {}
        self._seen: dict[object, _Seen] = {}
        self._windows: dict[object, tuple[KnownTape, Any]] = {}

    def begins(self, program: Any, kernel: Any, loss: int) -> LaunchLog | None:
        """The log of the tape that begins with a launch of ``kernel``. ``loss``: the identity of its loss."""
        found = self._found.get((kernel.token, loss))
        if found is None:
            return None
        if not found.is_valid(program.data.generation):
            del self._found[kernel.token, loss]
            return None
        usable = not program.arrays.shown and program.recorders.versions is None  # else reads are marked
        return found.log if usable and program.recorders.recording is None and program.recorders.second_order is None else None

    def left(self, kernel: Any, loss: int) -> None:
        """The launches of a tape that began to follow a log were others: ask for more of the same before another log takes its place.

        It stays: the next tape may follow it, and one that leaves it takes no longer than one that is recorded in Python.
        """
        key = kernel.token, loss
        seen = self._seen.get(key)
        if seen is not None:
            _put(self._seen, key, seen._replace(times=0, wanted=2 * seen.wanted))

    def wants(self, program: Any, launches: Launches, loss: int) -> bool:
        """Whether to make a log of a tape that was recorded: it is recorded for the second time at least, and has many launches or was
        recorded often. To make one takes longer than a check.

        Args:
            program: of the tape.
            launches: those that it recorded.
            loss: the identity of its loss.
        """
        usable = program.recorders.recording is None and program.recorders.second_order is None and not program.arrays.shown
        if not usable or not 0 < len(launches) <= MOST_LAUNCHES:
            return False
        key = launches[0][0].token, loss
        seen = self._seen.get(key, _Seen(len(launches), 0, max(2, -(-WORTH // len(launches)))))
        seen = _Seen(len(launches), seen.times + 1 if seen.launches == len(launches) else 1, seen.wanted)
        _put(self._seen, key, seen)
        return seen.times >= seen.wanted

    def enter(self, kernel: Any, loss: int, tape: KnownTape) -> None:
        """Remember a tape that was checked, and whose gradients have run. It begins with a launch of ``kernel``."""
        self._found = {key: known for key, known in self._found.items() if known.generation == tape.generation}
        _put(self._found, (kernel.token, loss), tape)

    # ---- windows of time steps
    def window(self, program: Any, key: object) -> tuple[LaunchLog, Any] | None:
        """The log of a window of time steps, and what was remembered with it."""
        found = self._windows.get(key)
        if found is not None and not found[0].is_valid(program.data.generation):
            found = None
            del self._windows[key]
        return None if found is None else (found[0].log, found[1])

    def enter_window(self, key: object, tape: KnownTape, more: Any) -> None:
        """Remember the log of a window. ``more``: what goes with it."""
        self._windows = {k: known for k, known in self._windows.items() if known[0].generation == tape.generation}
        _put(self._windows, key, (tape, more))

    def leave_window(self, key: object) -> None:
        """Forget it."""
        self._windows.pop(key, None)


def _put(known: dict[object, V], key: object, value: V) -> None:
    """Remember a value as the newest of a few."""
    known.pop(key, None)
    known[key] = value
    if len(known) > MOST_TAPES:
        del known[next(iter(known))]


__all__ = ["KnownTape", "KnownTapes"]
