"""Compiling ahead: kernels and gradients that will be needed, on threads that would be idle.

LLVM's part of a compilation runs outside Python's lock (``runtime.jit``), so that several kernels compile at once. A tape knows which
gradients it will need as soon as it has recorded a launch; ``qd.compile`` is told. What fails here is not reported: the call that needs
the kernel meets the same error, and reports it at its own place.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..errors import NothingToDifferentiate, QdrunTypeError
from ..ir.threads import new_lock
from .program import current_program

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
        """Wait until nothing is being compiled: before a fork, whose child would inherit locks that nobody opens."""
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


def compile_ahead(*calls: Any, gradients: bool = False) -> None:
    """Compile several kernels at once and return when all are ready. Nothing runs.

    ``qd.compile(k1, (k2, x, 3), (k3.grad, x))``: a kernel without arguments, or a tuple of a kernel and the arguments of a call;
    ``k.grad`` stands for the kernel and its gradient.

    Args:
        calls: what will be called.
        gradients: compile the gradients of all of them, too.

    Raises:
        QdrunTypeError: something that is not a kernel.
        QdrunCompilationError: a kernel that does not compile; of several, the first in the order of the calls.
        DifferentiationError: a kernel has no correct gradient.
    """
    program = current_program()
    program.materialize()
    groups: dict[int, list[Callable[[], None]]] = {}
    for call in calls:
        target, *args = call if isinstance(call, tuple) else (call,)
        if getattr(target, "prepare", None) is None:
            hint = "write qd.compile(k, (k2, x, 1.0))"
            raise QdrunTypeError(
                f"qd.compile() takes kernels and tuples (kernel, *arguments), not {type(target).__name__}", hint=hint
            )
        # the specialisations of one kernel are made one after another
        groups.setdefault(id(getattr(target, "kernel", target)), []).append(
            functools.partial(_prepare, target, args, gradients)
        )
    with program.device.loading():
        begun = [
            (work, AHEAD.submit(functools.partial(_all, work)) if program.device.native else None) for work in groups.values()
        ]
        wait([future for _, future in begun if future is not None])
        for work, future in begun:
            if future is None:
                _all(work)
            else:
                future.result()


def _all(work: list[Callable[[], None]]) -> None:
    for f in work:
        f()


def _prepare(target: Any, args: list[Any], gradient: bool) -> None:
    target.prepare(*args)
    reverse = getattr(target, "grad", None)
    if gradient and reverse is not None:
        with contextlib.suppress(NothingToDifferentiate):
            reverse.prepare(*args)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=AHEAD.drain, after_in_child=AHEAD.forget)

__all__ = ["AHEAD", "compile_ahead"]
