"""Times of the launches of a program, by kernel: ``qd.init(kernel_profiler=True)``.

A device that runs behind the host puts an event with its time before and behind each launch. Events are read later, so that launches stay
asynchronous. On the CPU a launch has ended when its call returns, and the host's clock measures it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ..ir.threads import new_lock
from .base import Device

TRACE = 4096
"""Launches that are kept one by one."""
PENDING = 256
"""Launches whose events may wait to be read."""


class KernelTimes(NamedTuple):
    """Times of the launches of a kernel, in milliseconds.

    Attributes:
        name: of the kernel; ``k.grad`` is the gradient of ``k``.
        counter: launches.
        min, max, avg, total: times; 0.0 without a launch.
        share: of the time of all kernels, 0 to 1.
    """

    name: str
    counter: int = 0
    min: float = 0.0
    max: float = 0.0
    avg: float = 0.0
    total: float = 0.0
    share: float = 0.0


class KernelProfiler:
    """Measures the launches of one program."""

    def __init__(self, device: Device) -> None:
        self._clock: Any = _HostClock() if device.on_host else _DeviceClock(device)
        self._lock = new_lock(self, "_lock")
        self._pending: deque[tuple[str, Any]] = deque()
        self._sums: dict[str, list[float]] = {}  # launches, least, most, total
        self.trace: deque[tuple[str, float]] = deque(maxlen=TRACE)

    @property
    def how(self) -> str:
        """How launches are measured."""
        return self._clock.how

    def launch(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call that launches something, and measure it. One that raises is not counted, nor one that goes into a graph."""
        if self._clock.capturing:  # a driver records it: nothing runs
            return call(*args)
        begun = self._clock.begin()
        result = call(*args)
        span = self._clock.end(begun)
        with self._lock:
            self._pending.append((name, span))
            while len(self._pending) > (PENDING if self._clock.lags else 0):
                self._read()
        return result

    def _read(self) -> None:
        """Enter the oldest launch that was not read."""
        name, span = self._pending.popleft()
        ms = self._clock.read(span)
        found = self._sums.setdefault(name, [0, ms, ms, 0.0])
        found[:] = found[0] + 1, min(found[1], ms), max(found[2], ms), found[3] + ms
        self.trace.append((name, ms))

    def times(self) -> list[KernelTimes]:
        """All kernels, that with the largest share first. Waits for the device."""
        with self._lock:
            while self._pending:
                self._read()
            whole = sum(total for *_, total in self._sums.values())
            found = [
                KernelTimes(name, int(n), least, most, total / n, total, total / whole if whole else 0.0)
                for name, (n, least, most, total) in self._sums.items()
            ]
        return sorted(found, key=lambda one: -one.total)

    def clear(self) -> None:
        """Forget all launches."""
        with self._lock:
            while self._pending:  # their events are used again
                self._read()
            self._sums.clear()
            self.trace.clear()

    def close(self) -> None:
        """Give the events back."""
        self._pending.clear()
        self._clock.release()


class _HostClock:
    """For launches that have ended when their call returns."""

    how, lags, capturing = "the host's clock around each launch", False, False

    def begin(self) -> float:
        """Before a launch."""
        return time.perf_counter()

    def end(self, begun: float) -> float:
        """After it."""
        return 1e3 * (time.perf_counter() - begun)

    def read(self, span: float) -> float:
        """Milliseconds."""
        return span

    def release(self) -> None:
        """Give nothing back."""


class _DeviceClock:
    """Events in the stream of a device."""

    how, lags = "events of the device around each launch", True

    def __init__(self, device: Any) -> None:
        self._device, self._driver = device, device.driver
        self._free: list[int] = []
        self._made: list[int] = []

    @property
    def capturing(self) -> bool:
        """Whether launches go into a graph."""
        return bool(self._device.capturing)

    def begin(self) -> int:
        """Put an event in front of a launch."""
        return self._mark()

    def end(self, begun: int) -> tuple[int, int]:
        """Put an event behind it."""
        return begun, self._mark()

    def _mark(self) -> int:
        if not self._free:
            self._free.append(self._driver.event())
            self._made.append(self._free[-1])
        event = self._free.pop()
        with self._device._failing():
            self._driver.record(event, self._device.stream)
        return event

    def read(self, span: tuple[int, int]) -> float:
        """Milliseconds between two events, on the device's clock."""
        with self._device._failing():
            self._driver.event_wait(span[1])
            ms = float(self._driver.elapsed_ms(*span))
        self._free += span
        return ms

    def release(self) -> None:
        """Give the events back."""
        for event in self._made:
            self._driver.event_free(event)
        self._made, self._free = [], []
