"""Holds launches up while code is loaded.

Loading a module waits for all work in any stream. Several loads in a row wait each time, unless no launch comes in between. A program with
several modules to load closes the gate: the other programs of the device stop at their next mark (``throttle``), and their next launch sets
one. They wait there without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ....ir.threads import Living, new_lock
from ...native.launch_ir import S_AHEAD
from .pace import MARK_US


class Counting:
    """The words that launches of one program count in (``launch_ir``)."""

    __slots__ = ("__weakref__", "state")

    def __init__(self, state: ctypes.Array[ctypes.c_int64]) -> None:
        self.state = state

    def mark_next(self) -> None:
        """The next launch sets a mark."""
        self.state[S_AHEAD] = MARK_US


class Gate:
    """Of one device; open at first."""

    def __init__(self) -> None:
        self._turn = new_lock(self, "_turn")  # one loads at a time
        self._open = threading.Event()
        self._open.set()
        self._loader = 0
        self._programs: Living[Counting] = Living()

    def enter(self, program: Counting) -> None:
        """A program that launches."""
        self._programs.add(program)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """A block in which other threads launch once more at most."""
        with self._turn:
            before, self._loader = self._loader, threading.get_ident()
            self._open.clear()
            try:
                for program in self._programs:
                    program.mark_next()
                yield
            finally:
                self._loader = before
                if not before:
                    self._open.set()

    def wait(self) -> None:
        """Wait until the gate is open. The thread that has closed it does not wait."""
        if not self._open.is_set() and self._loader != threading.get_ident():
            self._open.wait()
