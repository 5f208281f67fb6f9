"""Requests to stop this process: Ctrl-C, SIGTERM and a closed terminal, counted, and kept from being taken over by Ray.

Ray's native code replaces the handler of SIGTERM when a process joins it, from whatever thread, and resets it when the process leaves: a
signal would print a C++ stack, or end the process in the middle of its last lines. ``counted_signals`` puts ours back within ``EVERY_S``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from .exit_codes import INTERRUPTED

EVERY_S = 0.02
END_S, HURRY_S = 30.0, 10.0
"""A command that was asked twice to stop ends after ``END_S`` whatever it waits for, and ``HURRY_S`` after each further request."""
_COMMAND = threading.Event()


@dataclass
class Stops:
    """Counts requests to stop; while a run starts they raise KeyboardInterrupt.

    All but Ctrl-C count twice, which stops running trials.
    """

    asked: int = 0
    starting: bool = False
    storeless: bool = False
    """The run has given up its store: threads that read it may never end."""
    check: Callable[[], None] = lambda: None

    @property
    def count(self) -> int:
        """The number of stop requests.

        Raises:
            ClusterLost: it must end, as its cluster is gone.
        """
        self.check()
        return self.asked

    @property
    def hurry(self) -> bool:
        """Whether nothing is waited for: the user has asked to end at once, or the store does not answer."""
        return self.asked > 1 or self.storeless

    def started(self) -> Stops:
        """The run has started, with its batches planned: from now on, a request lets trials end."""
        self.starting = False
        return self

    def hit(self, number: int, frame: object) -> None:
        """A signal arrived."""
        self.asked += 1 if number == signal.SIGINT else 2
        if self.starting:
            self.starting = False
            raise KeyboardInterrupt


def is_command() -> None:
    """Say that this process is a command of ours, which may be ended from within; a notebook, for example, is none."""
    _COMMAND.set()


def join(thread: threading.Thread, stops: Stops, seconds: float = float("inf")) -> bool:
    """Wait for a thread, but not once the user has asked to end at once; whether the thread has ended."""
    end = time.monotonic() + seconds
    while thread.is_alive() and not stops.hurry and time.monotonic() < end:
        thread.join(0.1)
    return not thread.is_alive()


@contextmanager
def counted_signals(stops: Stops) -> Iterator[None]:
    """Take SIGINT and SIGTERM over, also where the shell that started us ignores them; and SIGHUP, unless it is ignored (``nohup``).

    A command whose run is over ignores SIGTERM and SIGHUP while it prints how the run ended, and leaves: its exit code is that of the run.

    Elsewhere than the main thread: do nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminal = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    before = {number: signal.signal(number, stops.hit) for number in (signal.SIGINT, signal.SIGTERM, *terminal)}
    over = threading.Event()
    guard = threading.Thread(target=_guard, args=(stops, _Native(tuple(before)), over), name="signals", daemon=True)
    guard.start()
    try:
        yield
    finally:
        over.set()
        guard.join()
        outer = getattr(before[signal.SIGINT], "__self__", None)
        if isinstance(outer, Stops):  # a request to a run of a search is one to the search
            outer.asked += stops.asked
        for number, handler in before.items():
            leaves = _COMMAND.is_set() and number != signal.SIGINT and handler is signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if leaves else handler)


class _Native:
    """The handlers of signals as the operating system has them, which any thread can put back. ``signal.signal`` is for the main one."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self._get, self._set = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
        self._get.restype = self._set.restype = ctypes.c_void_p
        self._get.argtypes, self._set.argtypes = [ctypes.c_int], [ctypes.c_int, ctypes.c_void_p]
        self._ours = {number: self._get(number) for number in numbers}

    def restore(self) -> None:
        """Put handlers back that native code has replaced."""
        for number, handler in self._ours.items():
            if self._get(number) != handler:
                self._set(number, handler)


def _guard(stops: Stops, native: _Native, over: threading.Event) -> None:
    """Keep the handlers; end a command that does not end by itself."""
    asked, end = 1, float("inf")
    while not over.wait(EVERY_S):
        native.restore()
        if stops.asked > asked:
            asked, end = stops.asked, time.monotonic() + (END_S if end == float("inf") else HURRY_S)
        if _COMMAND.is_set() and time.monotonic() >= end:
            with suppress(Exception):
                print(
                    "interrupted: the command does not end by itself and is ended; `qdrun resume` continues its run",
                    file=sys.stderr,
                )
                sys.stderr.flush()
            os._exit(INTERRUPTED)


__all__ = ["Stops", "counted_signals", "is_command", "join"]
