"""This process: when it began to load the compiler, its garbage collector and its recursion limit while a kernel is compiled."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .threads import new_lock

LOADED = time.time()
"""When this process began to load the compiler, to a second or two."""

RECURSION_LIMIT = 10_000
"""Python frames that passes may nest: several for each level of an expression or an ``elif``, of which Python itself compiles 3000."""


class _Compiling:
    def __init__(self) -> None:
        self.lock = new_lock(self, "lock")
        self.depth = 0
        self.was_on = False
        self.limit = 0

    def begin(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.was_on, self.limit = gc.isenabled(), sys.getrecursionlimit()
                gc.disable()
                sys.setrecursionlimit(max(self.limit, RECURSION_LIMIT))
            self.depth += 1

    def end(self) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.restore()

    def restore(self) -> None:
        if self.was_on:
            gc.enable()
        with suppress(RecursionError):  # called deeper than the limit: the next kernel restores it
            sys.setrecursionlimit(self.limit)


_compiling = _Compiling()


@contextmanager
def while_compiling() -> Iterator[None]:
    """Pause the garbage collector and allow deep recursion, until every thread that compiles is done.

    The IR is one large graph that lives until the end: collecting it again and again takes as long as the passes themselves.
    """
    _compiling.begin()
    try:
        yield
    finally:
        _compiling.end()


def _after_fork() -> None:
    """In a forked child the threads that compiled are gone."""
    global _compiling
    if _compiling.depth:
        _compiling.restore()
    _compiling = _Compiling()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
