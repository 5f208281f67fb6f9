"""Serialises launches, in Python and native, that share the memory of one program."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from ..runtime.native.launch_ir import S_NATIVE, S_PYTHON


class Alone(AbstractContextManager[None]):
    """See ``Program.alone``."""

    __slots__ = ("_outer", "_state", "_turn")

    def __init__(self, turn: threading.RLock, state: ctypes.Array[ctypes.c_int64]) -> None:
        self._turn, self._state, self._outer = turn, state, 0

    def __enter__(self) -> None:
        self._turn.acquire()
        state = self._state
        self._outer, state[S_PYTHON] = state[S_PYTHON], 1
        if state[S_NATIVE]:
            try:
                wait_until(lambda: not state[S_NATIVE])
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *error: object) -> None:
        self._state[S_PYTHON] = self._outer
        self._turn.release()


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for something that takes microseconds, mostly."""
    wait = 1e-6
    while not done():
        time.sleep(wait)
        wait = min(2 * wait, 1e-3)
