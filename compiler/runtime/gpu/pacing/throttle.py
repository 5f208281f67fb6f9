"""How far the host runs ahead of a stream.

A launch only puts work into the stream, and keeps the interpreter's lock: giving it up for 3 us costs tens of microseconds where other
threads wait for it. But a stream takes about a thousand launches; the next one waits inside of the driver, and would keep the lock while
it does. And loading code waits for all work in any stream. So the host waits before, here, without the lock and without
spinning; ``pace`` says how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..driver import Driver

MARKS = 3
"""Events that take turns: the one that is put into the stream, the one that is waited for, and the one before, for the time between."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The launches between two marks that have passed, by keys of what was launched, and the microseconds of the device between them."""

    keys: Sequence[int]
    us: float


class Throttle:
    """Marks in one stream.

    Args:
        driver: of the device.
        stream: whose work is waited for.
    """

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self.stream = driver, stream
        self._marks: list[int] = []
        self._turn = 0
        self._keys: Sequence[int] = ()

    def __call__(self, keys: Sequence[int]) -> Interval | None:
        """Mark where the stream is, and wait until it has passed the mark before.

        Args:
            keys: of what was launched since the last call.

        Returns:
            The interval that ended with the mark before; None for the first two calls.

        Raises:
            DeviceError: the device has failed.
        """
        turn, last, self._turn = self._turn, self._keys, self._turn + 1
        self._keys = keys
        if len(self._marks) < MARKS:
            self._marks.append(self._driver.event(sleeps=True))
        self._driver.record(self._marks[turn % MARKS], self.stream)
        if not turn:
            return None
        passed = self._marks[(turn - 1) % MARKS]
        self._driver.event_wait(passed)
        if turn == 1 or self._turn != turn + 1:  # a signal handler has launched or closed meanwhile: the marks are others
            return None
        return Interval(last, 1e3 * self._driver.elapsed_ms(self._marks[(turn - 2) % MARKS], passed))

    def release(self) -> None:
        """Give the events back."""
        self._turn += 1
        while self._marks:
            self._driver.event_free(self._marks.pop())
