"""Compiling ahead: kernels and gradients that will be needed, on threads that would be idle.

LLVM's part of a compilation runs outside Python's lock (``runtime.jit``), so that several kernels compile at once. A tape knows which
gradients it will need as soon as it has recorded a launch; ``qd.compile`` is told. What fails here is not reported: the call that needs
the kernel meets the same error, and reports it at its own place.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..ir.threads import new_lock

MOST_THREADS = 8


class Ahead:
    """The threads of this process that compile, made when they are first needed. With one processor there are none."""

    def __init__(self) -> None:
        self._lock = new_lock(self, "_lock")
        self._pool: ThreadPoolExecutor | None = None
        self._open: set[Future[Any]] = set()

    def submit(self, work: Callable[[], Any]) -> Future[Any] | None:
        """Start work in the context of the caller; None where nothing is gained."""
        threads = min(processors(), MOST_THREADS)
        if threads < 2:
            return None
        context = contextvars.copy_context()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(threads, "qdrun-compile")
            future = self._pool.submit(context.run, work)
            self._open.add(future)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)
        if not future.cancelled():
            future.exception()  # seen: the call that needs the kernel raises it again

    def drain(self) -> None:
        """Wait until nothing is being compiled: before a fork, because the child would inherit locked locks."""
        wait(list(self._open))

    def forget(self) -> None:
        """In a forked child: the threads are gone."""
        self._pool = None
        self._open = set()


AHEAD = Ahead()


@functools.cache
def processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=AHEAD.drain, after_in_child=AHEAD.forget)
