"""Plans made in a thread that can be abandoned: a job whose ``build`` hangs costs its own trials their plan, and the run nothing else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Hung(Exception):
    """A piece of work took too long; its thread was left alone."""


def each_within(work: Callable[[T], R], items: Sequence[T], limit_s: float | None) -> Iterator[R | Hung | BaseException]:
    """Run ``work`` on each item in another thread, one after the other.

    A thread cannot be stopped: a hanging thread is abandoned (it ends with the process), and a new one continues with the next item.

    Args:
        work: the function.
        items: its arguments.
        limit_s: maximum seconds per item; None: unlimited.

    Yields:
        The result of ``work``, its exception, or ``Hung``.
    """
    start = 0
    while start < len(items):
        back: queue.SimpleQueue[R | BaseException] = queue.SimpleQueue()
        over = threading.Event()
        threading.Thread(target=_all, args=(work, items[start:], back, over), name="planning", daemon=True).start()
        for _ in items[start:]:
            start += 1
            try:
                yield back.get(timeout=limit_s)
            except queue.Empty:
                over.set()
                yield Hung(f"it took longer than {limit_s:g} s")
                break


def _all(work: Callable[[T], R], items: Sequence[T], back: queue.SimpleQueue[R | BaseException], over: threading.Event) -> None:
    for item in items:
        try:
            done: R | BaseException = work(item)
        except BaseException as error:
            done = error
        if over.is_set():
            return
        back.put(done)
