"""The log of a window of time steps: windows that launch the same follow it natively, as a tape follows that of a known tape.

Windows differ in the numbers that they pass on, such as the number of the step, and in nothing else. What two windows have shown of their
reads and writes, a third one that follows does not change: indices in memory that the steps write to are compared.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....runtime.native.guard import word_numbers
from ....runtime.native.log import NO_COPIES, LaunchLog
from ...kernel import log_functions
from ..logged_launches import known_tape
from .repeats import Trace

if TYPE_CHECKING:
    from ....program.memory.kept import KeptElements
    from ....program.memory.known_tapes import KnownTape, Launches
    from ....program.program import Program

_NUMBERS = frozenset((int, float, bool))
Numbers = dict["np.dtype[Any]", tuple[np.ndarray, np.ndarray]]
"""By the type of numbers: which numbers of a trace they are, and which words of a log."""


class WindowLog(NamedTuple):
    """A window that others follow.

    Attributes:
        log: its launches.
        trace: its events: one for each launch.
        at: where the numbers among its arguments are.
    """

    log: LaunchLog
    trace: Trace
    at: Numbers

    def write_trace(self, trace: Trace, ends: list[int]) -> None:
        """Write the events of a window that has followed the log. ``ends``: launches up to the end of each step."""
        numbers = np.array(self.trace.numbers)
        for dtype, (which, words) in self.at.items():
            numbers[which] = self.log.words[words].view(np.uint8).reshape(-1, 8)[:, : dtype.itemsize].copy().view(dtype)[:, 0]
        single = self.at.get(np.dtype(np.float32))
        trace.assign(self.trace, array("d", numbers.tobytes()), ends, None if single is None else single[0])


class WindowLogs:
    """The logs of the windows of one run of time steps: one of windows whose gradients come next, one of others.

    The program keeps them for later runs, which need not make them again. What is checked, is checked anew in each run.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._before: Trace | None = None  # of the last window that was recorded in Python
        self._template: tuple[Trace, object] | None = None  # the events of two such windows, and the key of their logs

    def get(self, reverses: bool) -> WindowLog | None:
        """The log that a window may follow; ``reverses``: its gradient comes next."""
        if self._template is None:
            return None
        trace, key = self._template
        known = self._program.known_tapes.window(self._program, (key, reverses))
        return None if known is None else WindowLog(known[0], trace, known[1])

    def recorded(self, launches: Launches, trace: Trace, kept: KeptElements | None) -> None:
        """A window was recorded in Python, which launches kernels and does nothing else.

        Args:
            launches: its launches.
            trace: its events.
            kept: the copies that its gradient needs; None: its gradient does not come next.
        """
        before, self._before = self._before, trace
        program, reverses = self._program, kept is not None
        usable = (
            launches
            and program.recorders.recording is None
            and program.recorders.versions is None
            and program.recorders.second_order is None
        )
        if not usable or before is None or program.arrays.shown or not trace.has_events_of(before):
            return
        key = launches[0][0].token, len(launches)
        self._template = trace, key
        if self.get(reverses) is None:
            made = self._made(launches, trace, kept)
            if made is not None:
                program.known_tapes.enter_window((key, reverses), *made)

    def left(self, reverses: bool) -> None:
        """A window did not follow its log to the end."""
        if self._template is not None:
            self._program.known_tapes.leave_window((self._template[1], reverses))

    def _made(self, launches: Launches, trace: Trace, kept: KeptElements | None) -> tuple[KnownTape, Numbers] | None:
        """The log of a window, and where its numbers are."""
        functions = log_functions()
        copies = NO_COPIES if kept is None else kept.logged()
        if not functions or copies is None:
            return None
        known = known_tape(self._program, launches, copies, functions, reverses=kept is not None)
        if known is None or known.log.takes_others:
            return None
        at: dict[np.dtype[Any], tuple[list[int], list[int]]] = {}
        number = word = 0
        for kernel, args, _ in launches:
            variant, bound = kernel.variant(args, {})
            decls, words = {d.name: d for d in variant.head.args}, word_numbers(variant.head.args)
            for param, arg in zip(kernel.binder.params, args):
                if type(arg) in _NUMBERS and param.name in decls:
                    which, where = at.setdefault(decls[param.name].dtype.numpy, ([], []))
                    which.append(number)
                    where.append(word + words[decls[param.name].index] - 1)
                number += 1
            word += len(bound.call.words) // 8 - 1
        if number != len(trace.numbers):
            return None  # objects have further arrays
        return known, {t: (np.array(a), np.array(b)) for t, (a, b) in at.items()}


__all__ = ["WindowLog", "WindowLogs"]
