"""How far the host runs ahead of a stream.

A launch only puts work into the stream, and keeps the interpreter's lock: giving it up for 3 us costs tens of microseconds where other
threads wait for it. But a stream takes about a thousand launches; the next one waits inside of the driver, and would keep the lock while
it does. So the host waits before, here, without the lock and without spinning.
"""

from __future__ import annotations

import itertools

from .driver import Driver

AHEAD = 256
"""Launches between two marks; the host is at most two marks ahead."""


class Throttle:
    """Marks in one stream.

    Args:
        driver: of the device.
        stream: whose work is waited for.
    """

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self._stream = driver, stream
        self._marks: list[int] = []
        self._turns = itertools.count()

    def __call__(self) -> None:
        """Mark where the stream is, and wait until it has passed the mark before.

        Raises:
            DeviceError: the device has failed.
        """
        turn = next(self._turns)
        if len(self._marks) < 2:
            self._marks.append(self._driver.event(sleeps=True))
        self._driver.record(self._marks[turn % 2], self._stream)
        if turn:
            self._driver.event_wait(self._marks[(turn - 1) % 2])

    def release(self) -> None:
        """Give the events back."""
        while self._marks:
            self._driver.event_free(self._marks.pop())
