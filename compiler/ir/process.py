"""This process: when it began to load the compiler; its garbage collector, which waits while a kernel is compiled. The IR is one large
graph that lives until the end, and looking through it again and again takes as long as the passes themselves.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .threads import new_lock

LOADED = time.time()
"""When this process began to load the compiler, to a second or two."""


class _Pause:
    def __init__(self) -> None:
        self.lock = new_lock(self, "lock")
        self.depth = 0
        self.was_on = False

    def begin(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.was_on = gc.isenabled()
                gc.disable()
            self.depth += 1

    def end(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0 and self.was_on:
                gc.enable()


_pause = _Pause()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No automatic garbage collection in this process until every thread that asked for it is done."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()


def _after_fork() -> None:
    """In a forked child the threads that paused it are gone."""
    global _pause
    if _pause.depth and _pause.was_on:
        gc.enable()
    _pause = _Pause()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
