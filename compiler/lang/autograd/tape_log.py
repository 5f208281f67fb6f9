"""The log of a tape: its launches, what Python wrote between them, and where time steps began.

A launch has a number: how many came before it. What is written, or begins, before a launch has the number of that launch. Launches are
recorded in Python, or follow the log of a known tape natively (``runtime.native.log``); ``launches`` has them in either case.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import OutOfMemory, QdrunRuntimeError
from ...program.memory.given_arrays import changed_array, read_again
from ...program.memory.kept import TAPE
from ...runtime.base import Allocation
from ...runtime.native.log import LaunchLog
from .overwrites import HostWrite, Launch, Overwrites, Timed
from .time_steps.steps_check import Composite

if TYPE_CHECKING:
    from ...program.memory.versions import VersionEvent
    from ...program.program import Program
    from ...program.recorders import CustomFunction


class TapeLog:
    """What one tape has recorded, in its order.

    Attributes:
        others: the launches that are no kernels, by number.
        hidden: the launches that functions with gradients of their own have made.
        writes: what Python wrote.
        events: when each launch was, while versions are kept, by number.
        seeds: those of random numbers, by number.
        known: the log of the known tape that the launches follow so far.
    """

    def __init__(self) -> None:
        self.others: dict[int, CustomFunction | Composite] = {}
        self.hidden: list[Timed] = []
        self.writes: list[HostWrite] = []
        self.events: dict[int, VersionEvent] = {}
        self.seeds: dict[int, int] = {}
        self.known: LaunchLog | None = None
        self._launches: list[Launch] = []
        self._steps: list[tuple[int, int | None]] = []  # launches before, time step
        self._followed: int | None = None  # launches that have followed ``known``, once it is closed
        self._tried = self._spent = False
        self._copies: Allocation | None = None

    def __len__(self) -> int:
        known = self.known
        return len(self._launches) if known is None else known.position if self._followed is None else self._followed

    @property
    def launches(self) -> list[Launch]:
        """All launches so far."""
        if self.known is not None and (end := len(self)) > len(self._launches):
            self._launches += self.known.made(len(self._launches), end)
        return self._launches

    @property
    def is_plain(self) -> bool:
        """Whether it has launches of kernels only."""
        return not (self.others or self.hidden or self.writes)

    # ---- records
    def add(self, launch: Launch, event: VersionEvent | None = None, seed: int | None = None) -> None:
        """A launch was made."""
        number = len(self)
        if seed is not None:
            self.seeds[number] = seed
        if event is not None:
            self.events[number] = event
        self.launches.append(launch)

    def add_other(
        self, function: CustomFunction | Composite, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        """What is no kernel was made."""
        self.others[len(self)] = function
        self.launches.append((function, args, kwargs or {}))

    def add_write(
        self, tensor: Any, index: tuple[int, ...] | None, source: Any, parts: tuple[Any, ...], hidden: str
    ) -> HostWrite:
        """Python writes; see ``HostWrite``."""
        self.writes.append(HostWrite(len(self), tensor, index, source, hidden, parts, number=len(self.writes)))
        return self.writes[-1]

    def step_begins(self, step: int | None) -> None:
        """The launches from now on are those of a time step; None: of none."""
        self._steps.append((len(self), step))

    def begin_reverse(self, keeps: bool) -> None:
        """The gradients of the launches run next. ``keeps``: copies of what launches overwrite are put back on the way.

        Raises:
            QdrunRuntimeError: they have run before, and the copies are used up.
        """
        if self._spent:
            raise QdrunRuntimeError(
                "the gradients of this tape were run already, and its launches overwrite what they need: the copies are used up"
                "\n  do: record the launches in another tape"
            )
        self._spent = keeps or (self.known is not None and self.known.nbytes > 0)

    # ---- queries
    def place_of(self, number: int) -> tuple[int, int | None]:
        """The place of a launch as users count: from 1, in its time step if it is in one; and this step."""
        before = bisect_right(self._steps, number, key=lambda at: at[0])
        begin, step = self._steps[before - 1] if before else (0, None)
        return number + 1 - (begin if step is not None else 0), step

    def timed(self) -> list[Timed]:
        """All launches of kernels with their numbers, the hidden ones included."""
        own = [Timed(when, launch) for when, launch in enumerate(self.launches) if when not in self.others]
        return sorted([*own, *self.hidden], key=lambda t: t.when) if self.hidden else own

    def composites(self) -> list[tuple[int, Composite]]:
        """Those that are several launches, with their numbers."""
        return [(when, steps) for when, steps in self.others.items() if isinstance(steps, Composite)]

    def differentiated(self) -> Iterator[Launch]:
        """The launches whose gradients run, those of a few time steps for all of them."""
        inner = [t for _, steps in self.composites() for t in steps.sample() if isinstance(t, Timed)]
        yield from (t.launch for t in (*self.timed(), *inner) if not t.hidden)

    def reserve(self, program: Program) -> int:
        """Bytes that functions with a gradient of their own, and fixed points, allocate in their gradients, which run one by one."""
        if not program.options.memory_budget or program.recorders.recording is not None:
            return 0
        return max((function.reserve(program) for function in self.others.values()), default=0)

    def accesses_before(self, number: int) -> Overwrites:
        """What launches and assignments before launch ``number`` read and wrote, at times before 0."""
        timed = [t._replace(when=t.when - number) for t in self.timed() if t.when < number]
        writes = [replace(w, before=w.before - number) for w in self.writes if w.before <= number]
        found = Overwrites.of(timed, writes)
        for when, steps in self.composites():
            if when < number:
                steps.join(found, when - number)
        return found

    # ---- a known tape
    def follow(self, program: Program, kernel: Any, loss: Any) -> bool:
        """Follow the known tape that begins with a launch of ``kernel``. False: there is none, or this one has begun otherwise."""
        if self._tried or self._launches or not self.is_plain:
            return False
        self._tried = True
        known = program.known_tapes.begins(program, kernel, id(loss))
        return known is not None and self.follow_log(program, known)

    def follow_log(self, program: Program, known: LaunchLog) -> bool:
        """Follow a log from its begin. False: there is no memory for its copies."""
        if known.nbytes:
            try:
                self._copies = program.allocate(known.nbytes, TAPE)
            except OutOfMemory:  # the tape says of which launch
                return False
        self.known = known
        known.open(program.admission.state, self, 0 if self._copies is None else self._copies.ptr)
        return True

    def pause(self, state: ctypes.Array[ctypes.c_int64]) -> None:
        """Have the next launch come to Python. ``state``: of the program."""
        if self.known is not None and self._followed is None:
            self._followed = self.known.position
            self.known.close(state)

    def refuse_changed(self, program: Program) -> None:
        """Refuse arrays of launches that have followed a known tape, if Python has changed one since.

        Raises:
            DataAccessError: it has, and a gradient needs the values of then.
            DeviceError: a copy of what the launches overwrite has failed.
        """
        if self.known is None:
            return
        program.device.copied_natively(self.known.copy_code)
        number = self.known.first_changed()
        if number is not None:
            kernel, args, kwargs = self.launches[number]
            variant, _ = kernel.variant(args, kwargs)
            raise changed_array(variant, next(iter(read_again(variant).values())))

    def take_over(self) -> list[Launch]:
        """Follow the known tape, which is paused, no more. Returns all launches."""
        found, self.known = self.launches, None
        return found

    def release(self, program: Program) -> None:
        """Give the memory of the copies back."""
        copies = self.take_copies()
        if copies is not None:
            program.device.free(copies)

    def take_copies(self) -> Allocation | None:
        """The memory of the copies that launches which followed the known tape have made, which the caller frees."""
        found, self._copies = self._copies, None
        return found

    def forget(self) -> None:
        """Let go of launches that have followed the known tape."""
        if self.known is not None:
            self.known.forget()
            self.known = None

    def __del__(self) -> None:
        self.forget()
