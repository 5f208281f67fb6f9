"""The log of a tape: the launches that it recorded, which native launches of a later tape are compared with.

While a log is open in a program, the next launch that a native launcher can make may be the next one of the log: it has the same code and
the same arguments, but for those that are free. Then it is made, and counted, without Python. Any other launch goes to
Python, which closes the log and takes over what it has counted (``LaunchLog.made``). A log that was followed to its end is walked
backwards: the gradients of its launches run natively, last to first.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Container, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...codegen.abi import arg_words
from ...ir.nodes import ArgDecl
from .guard import word_array
from .launch import NativeLaunch
from .launch_ir import S_LOG
from .log_ir import (
    C_ARGS,
    C_COMPARED,
    C_COPIES,
    C_COUNT,
    C_GRADIENT,
    C_KEPT,
    C_MARKS,
    C_MARKS_AT,
    C_OBJECTS,
    C_TABLE,
    C_WORDS,
    K_COUNTERS,
    K_COUNTERS_AT,
    K_RUNS,
    K_RUNS_AT,
    L_AT,
    L_CODE,
    L_COPY,
    L_COUNT,
    L_FAILED,
    L_FOLLOWS,
    L_KEEP,
    L_KEPT,
    L_LAUNCHES,
    L_MOST,
    L_NOTE,
    L_QUEUE,
    L_THREAD,
    L_WORDS,
    M_WORDS,
    NO_GRADIENT,
)

_BYTES_DATA = bytes.__basicsize__ - 1
_thread = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))


class KeptRun(NamedTuple):
    """A run of bytes that is copied before a launch.

    Attributes:
        address: where it is.
        offset: of its copy, in the memory of all copies.
        nbytes: how long it is.
        late: the gradient of the launch reads what the launch leaves there: it is put back after it, not before.
    """

    address: int
    offset: int
    nbytes: int
    late: bool


class KeptRuns(NamedTuple):
    """What is copied before a launch.

    Attributes:
        runs: the copies.
        counters: those that count what is put back as writes from Python.
        early: the gradient of the launch runs when memory holds what it held before the launch.
    """

    runs: Sequence[KeptRun] = ()
    counters: Sequence[ctypes.c_int64] = ()
    early: bool = False


NOTHING_KEPT = KeptRuns()
"""Of a launch that overwrites nothing that a gradient needs."""


class TapeCopies(NamedTuple):
    """The copies of a tape as native launches make them.

    Attributes:
        of_launches: what is copied before each launch, by number.
        last: what is copied at the end.
        nbytes: of all.
        bases: of the memory that is copied.
    """

    of_launches: dict[int, KeptRuns]
    last: KeptRuns
    nbytes: int
    bases: frozenset[object]


class GivenArray(NamedTuple):
    """An array of others that a launch is given. ``marked``: its gradient reads it again."""

    nbytes: int
    marked: bool


NO_COPIES = TapeCopies({}, NOTHING_KEPT, 0, frozenset())
"""Of a tape that keeps nothing."""


class LoggedLaunch(NamedTuple):
    """A launch of a log.

    Attributes:
        launch: its native launch.
        gradient: that of its gradient, of which only the words of the arguments are not packed; None: there is nothing to differentiate.
        args: of the kernel.
        words: of its arguments.
        objects: how many arguments the call has.
        given: the arrays of others among the arguments, by ``ArgDecl.index``.
        free: arguments that may differ, by ``ArgDecl.index``: numbers that decide nothing, and where arrays of others lie.
        kept: what is copied before it.
    """

    launch: NativeLaunch
    gradient: NativeLaunch | None
    args: Sequence[ArgDecl]
    words: bytes
    objects: int
    given: Mapping[int, GivenArray]
    free: Container[int]
    kept: KeptRuns = NOTHING_KEPT


class LogUser(Protocol):
    """Launches that follow a log."""

    known: LaunchLog | None

    def take_over(self) -> Any:
        """Forget the log: another one opens it."""
        ...


class LaunchLog:
    """The memory of a log that the native launchers read and write.

    Args:
        launches: in their order.
        functions: the addresses of the native functions, by name, see ``launch.NativeCalls.log_functions``.
        last: what is copied after all launches, and put back after all gradients.
        nbytes: of all copies.
        copier: what makes them, see ``Device.native_copy``.
    """

    def __init__(
        self,
        launches: Sequence[LoggedLaunch],
        functions: Mapping[str, int],
        last: KeptRuns = NOTHING_KEPT,
        nbytes: int = 0,
        copier: tuple[int, int] = (0, 0),
    ) -> None:
        self.nbytes = nbytes
        self._user: weakref.ref[LogUser] | None = None
        self._held = [(x.launch, x.gradient) for x in launches]
        counts = [len(x.words) // 8 for x in launches]
        self._words = _words(sum(counts), b"".join(x.words for x in launches))
        self._compared = _words(sum(counts), b"".join(_compared(x) for x in launches))
        self._kept = (ctypes.c_int64 * sum(1 + x.objects for x in launches))()
        self._copies = [_CopyTable(x.kept) for x in launches]
        self._last = _CopyTable(last)
        marks = [_marks(x) for x in launches]
        self._marks = word_array([*chain.from_iterable(marks)])
        self._has_marks, self._takes_others = any(marks), any(x.given for x in launches)
        rows: list[int] = []
        at, kept, marked = 0, ctypes.addressof(self._kept), ctypes.addressof(self._marks)
        for launch, count, copies, mine in zip(launches, counts, self._copies, marks):
            gradient = NO_GRADIENT if launch.gradient is None else _table(launch.gradient)
            row = [0] * C_WORDS
            row[C_TABLE], row[C_GRADIENT], row[C_COUNT] = _table(launch.launch), gradient, count
            row[C_ARGS], row[C_COMPARED] = ctypes.addressof(self._words) + at, ctypes.addressof(self._compared) + at
            row[C_OBJECTS], row[C_KEPT] = 1 + launch.objects, kept
            row[C_MARKS], row[C_MARKS_AT] = len(mine) // M_WORDS, marked
            row[C_COPIES:] = copies.words
            at, kept, marked = at + 8 * count, kept + 8 * (1 + launch.objects), marked + 8 * len(mine)
            rows += row
        self._rows = word_array(rows)
        self._head = (ctypes.c_int64 * L_WORDS)()
        self._head[L_COUNT], self._head[L_MOST] = len(launches), max(counts, default=0)
        self._head[L_LAUNCHES] = ctypes.addressof(self._rows)
        self._head[L_COPY], self._head[L_QUEUE] = copier
        for word, name in ((L_FOLLOWS, "follows"), (L_KEEP, "keep"), (L_NOTE, "note")):
            self._head[word] = functions[name]
        at_head = ctypes.c_void_p
        self._walk_back = ctypes.PYFUNCTYPE(ctypes.c_int64, at_head)(functions["walk_back"])
        self._reversed = ctypes.PYFUNCTYPE(None, at_head, ctypes.c_int64)(functions["reversed_launch"])
        self._changed = ctypes.PYFUNCTYPE(ctypes.c_int64, at_head, ctypes.c_int64)(functions["first_changed"])
        self._forget = ctypes.PYFUNCTYPE(None, at_head, ctypes.c_int64)(functions["forget"])
        self._keep = ctypes.PYFUNCTYPE(None, at_head, at_head)(functions["keep"])
        self._put_back = ctypes.PYFUNCTYPE(None, at_head, at_head, ctypes.c_int64)(functions["put_back"])

    def open(self, state: ctypes.Array[ctypes.c_int64], user: LogUser, kept: int = 0) -> None:
        """Have the next launches of a program follow the log from its begin, in this thread.

        Args:
            state: of the program.
            user: the launches that follow it. It is told when another one opens the log.
            kept: the address of ``nbytes`` bytes for the copies.
        """
        before = None if self._user is None else self._user()
        if before is not None and before.known is self:
            before.take_over()
        self.forget()
        self._user = weakref.ref(user)
        self._head[L_AT], self._head[L_FAILED], self._head[L_THREAD], self._head[L_KEPT] = 0, 0, _thread(), kept
        self._head[L_CODE] = 0
        state[S_LOG] = ctypes.addressof(self._head)

    def close(self, state: ctypes.Array[ctypes.c_int64]) -> None:
        """Launches follow it no more. What they were given is kept until ``forget``."""
        state[S_LOG] = 0

    @property
    def position(self) -> int:
        """Launches that have followed it; while it is walked backwards, those whose gradients have not run."""
        return self._head[L_AT]

    @position.setter
    def position(self, at: int) -> None:
        self._head[L_AT] = at

    @property
    def words(self) -> np.ndarray:
        """The words of the arguments of all launches, one launch after the other, as the last ones that followed have them."""
        return np.ctypeslib.as_array(self._words)

    @property
    def takes_others(self) -> bool:
        """Whether a launch is given an array of others."""
        return self._takes_others

    @property
    def failed(self) -> bool:
        """Whether a launch that followed it has raised."""
        return bool(self._head[L_FAILED])

    @property
    def copy_code(self) -> int:
        """The code of a copy that has failed since it was opened; 0: none has."""
        return self._head[L_CODE]

    @property
    def ended(self) -> bool:
        """Whether all its launches were made."""
        return self._head[L_AT] == self._head[L_COUNT]

    def made(self, begin: int, end: int) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
        """The launches with these numbers, which were made: kernels with their arguments, and no keyword arguments."""
        return [self._given(self._rows[k * C_WORDS + C_KEPT], self._rows[k * C_WORDS + C_OBJECTS]) for k in range(begin, end)]

    def _given(self, at: int, count: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        kernel, *args = (ctypes.py_object * count).from_address(at)
        return kernel, tuple(args), {}

    def first_changed(self) -> int | None:
        """The first launch that was made an array of which Python has changed since, so that its gradient would read other values."""
        found = self._changed(ctypes.addressof(self._head), self._head[L_AT]) if self._has_marks else -1
        return None if found < 0 else found

    def begin(self) -> None:
        """Copy what the launches have left: all gradients run next."""
        self._keep(ctypes.addressof(self._head), self._last.address)

    def end(self) -> None:
        """Put back what the launches have left."""
        self._put_back(ctypes.addressof(self._head), self._last.address, 0)

    def walk_back(self) -> int:
        """Launch gradients natively, from ``position`` down.

        Returns:
            The number of launches whose gradients have not run: the last of these is to be run in Python. 0: all have run.

        Raises:
            QdrunError: a gradient has raised it; ``position`` counts it.
        """
        return self._walk_back(ctypes.addressof(self._head))

    def reversed_one(self) -> None:
        """Python has run the gradient of the last of ``position`` launches."""
        self._reversed(ctypes.addressof(self._head), self._head[L_AT])

    def is_early(self, number: int) -> bool:
        """Whether the gradient of a launch runs when memory holds what it held before the launch."""
        return self._copies[number].kept.early

    def forget(self) -> None:
        """Let go of what the launches were given."""
        self._forget(ctypes.addressof(self._head), len(self._held))

    def __del__(self) -> None:
        self.forget()


class _CopyTable:
    """The copies of a launch as native code reads them. ``words``: see ``log_ir.K_*``."""

    def __init__(self, kept: KeptRuns) -> None:
        self.kept = kept
        self._runs = word_array([int(x) for run in kept.runs for x in run])
        self._counters = word_array([ctypes.addressof(counter) for counter in kept.counters])
        self.words = [0] * 4
        self.words[K_RUNS], self.words[K_RUNS_AT] = len(kept.runs), ctypes.addressof(self._runs)
        self.words[K_COUNTERS], self.words[K_COUNTERS_AT] = len(kept.counters), ctypes.addressof(self._counters)
        self._table = word_array(self.words)

    @property
    def address(self) -> int:
        """The address of the words, for calls from Python."""
        return ctypes.addressof(self._table)


def _table(launch: NativeLaunch) -> int:
    return id(launch.table) + _BYTES_DATA


def _words(count: int, content: bytes) -> ctypes.Array[ctypes.c_int64]:
    made = (ctypes.c_int64 * max(1, count))()
    ctypes.memmove(made, content, len(content))
    return made


def _compared(launch: LoggedLaunch) -> bytes:
    """Which words of arguments are compared: not the first ones of those that are free."""
    out: list[bytes] = []
    for d in launch.args:
        free = int(d.index in launch.free)
        out.append(b"\0" * 8 * free + b"\xff" * 8 * (arg_words(d) - free))
    return b"".join(out)


def _marks(launch: LoggedLaunch) -> list[int]:
    """The marks of a launch, see ``log_ir.M_*``."""
    at, out = 0, list[int]()
    for d in launch.args:
        given = launch.given.get(d.index)
        if given is not None and given.marked:
            out += [at, given.nbytes, 0]
        at += arg_words(d)
    return out
