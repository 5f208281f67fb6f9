"""Which launches may begin, in Python and native: one thread at a time where they share memory, and none in a closed program."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ...errors import QdrunRuntimeError
from ...ir.threads import new_lock
from ...runtime.base import Device
from ...runtime.native.launch_ir import F_CLOSED, F_SLOW, F_WORDS, S_AHEAD, S_NATIVE, S_PYTHON, S_RUNNING, S_WORDS


class Alone(AbstractContextManager[None]):
    """See ``Admission.alone``."""

    __slots__ = ("_outer", "_state", "_turn")

    def __init__(self, turn: threading.RLock, state: ctypes.Array[ctypes.c_int64]) -> None:
        self._turn, self._state, self._outer = turn, state, 0

    def __enter__(self) -> None:
        self._turn.acquire()
        state = self._state
        self._outer, state[S_PYTHON] = state[S_PYTHON], 1
        if state[S_NATIVE]:
            try:
                _wait_until(lambda: not state[S_NATIVE])
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *error: object) -> None:
        self._state[S_PYTHON] = self._outer
        self._turn.release()


class Admission:
    """Admits the launches of a program.

    Attributes:
        closed: the program is: nothing is launched any more.
        flags: read before each native launch: non-zero sends the call through Python.
        state: native launchers read and write it.
        turn: the lock of ``alone``, for what native launches need not wait for.
    """

    def __init__(self, device: Device) -> None:
        self._device, self.closed = device, False
        self.flags = (ctypes.c_int64 * F_WORDS)()
        self.state = (ctypes.c_int64 * S_WORDS)()
        self.turn, self._running = new_lock(self, "turn"), dict[object, int]()

    def alone(self) -> AbstractContextManager[None]:
        """A launch with memory that the program's launches share (returned values, temporaries, the heap): one thread at a time.

        Native launchers look at the state and enter themselves without giving up the interpreter's lock in between.
        """
        return Alone(self.turn, self.state)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A launch in Python, which ``wait`` waits for.

        Raises:
            QdrunRuntimeError: the program is closed.
        """
        launch = object()
        self._running[launch] = threading.get_ident()
        try:
            if self.closed:
                raise QdrunRuntimeError("this program was closed on another thread; do: qd.init() again")
            yield
        finally:
            del self._running[launch]

    def launched(self, weight: int) -> None:
        """Python has launched something that counts so much (``abi.CTX_WEIGHT``): what native launchers do after theirs."""
        self.state[S_AHEAD] += weight
        if self.state[S_AHEAD] >= self._device.ahead:
            self.state[S_AHEAD] = 0
            self._device.throttle()

    def slow(self, records: bool) -> None:
        """Send launches through Python: something ``records`` them, or (also those that a tape lets pass) the program is closed or its
        device is lost.
        """
        self.flags[F_CLOSED] = int(self.closed or self._device.dead)
        self.flags[F_SLOW] = int(records or self.flags[F_CLOSED])

    def wait(self) -> None:
        """Wait until no other thread is in the middle of a launch."""
        _wait_until(lambda: not self.state[S_RUNNING] and set(self._running.values()) <= {threading.get_ident()})

    def forked(self) -> None:
        """In a forked child: the other threads, and what they were doing, are gone."""
        self._running = {}
        ctypes.memset(self.state, 0, ctypes.sizeof(self.state))


def _wait_until(done: Callable[[], bool]) -> None:
    """Wait for something that takes microseconds, mostly."""
    wait = 1e-6
    while not done():
        time.sleep(wait)
        wait = min(2 * wait, 1e-3)
