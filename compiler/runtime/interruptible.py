"""Lets signals be served while a compiler runs.

Python runs their handlers in the main thread alone, and only between its own instructions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _ThreadCall(Generic[T]):
    """A call in a thread, and what became of it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as e:  # it is raised where the result is awaited
            self._error = e
        finally:
            self._done.set()

    def result(self) -> T:
        self._done.wait()  # a signal handler may run here, and raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this frame
        return self._result


def interruptible(call: Callable[[], T]) -> T:
    """The result of a call that spends its time outside Python.

    In the main thread, the call runs in a thread that does not keep the process alive, and this one waits: Ctrl-C is served at once. What
    the handler raises leaves the call behind, which goes on by itself, and its result is dropped. So it must own all that it uses.
    In other threads, where no handler runs, it is an ordinary call.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    work = _ThreadCall(call)
    try:
        threading.Thread(target=work.run, name="qdrun-compiler", daemon=True).start()
    except RuntimeError:  # the interpreter ends, or the system gives no thread
        return call()
    return work.result()
