"""Time of device work: CUDA events on the stream that the launches go to, and the host's clock beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass
class Clock:
    """Measures functions that only launch.

    Attributes:
        sync: waits for the device.
        stream: CUstream handle that events are recorded on; None: no events, the host's clock alone.
    """

    sync: Callable[[], None]
    stream: int | None = None

    def measure(self, f: Callable[[], None], seconds: float, least: int = 5, most: int = 100) -> dict[str, Any]:
        """Medians over about ``seconds`` and at least ``least`` runs, in ms.

        Returns:
            ``ms``: by events, or by the host's clock where events say less than half (they were on a stream that does not wait for the
            launches); ``wall_ms``: until the device has finished; ``host_ms``: until ``f`` returned; ``least_ms``; ``runs``; ``clock``.
        """
        f()
        self.sync()
        rows: list[tuple[float, float, float]] = []
        begin = time.perf_counter()
        while len(rows) < least or (time.perf_counter() - begin < seconds and len(rows) < most):
            rows.append(self._once(f))
            if time.perf_counter() - begin > 8 * seconds and len(rows) >= 2:
                break
        event, wall, host = ([1e3 * row[k] for row in rows] for k in range(3))
        trusted = self.stream is not None and median(event) > min(0.5 * median(wall), median(wall) - 0.2)
        chosen = event if trusted else wall
        return {
            "ms": median(chosen),
            "least_ms": min(chosen),
            "wall_ms": median(wall),
            "host_ms": median(host),
            "runs": len(rows),
            "clock": "events" if trusted else "wall",
        }

    def _once(self, f: Callable[[], None]) -> tuple[float, float, float]:
        """Seconds by events, by the host until the end, and by the host until ``f`` returned."""
        if self.stream is None:
            begin = time.perf_counter()
            f()
            host = time.perf_counter() - begin
            self.sync()
            return 0.0, time.perf_counter() - begin, host
        from cuda.bindings import driver

        first, last = (_checked(driver.cuEventCreate(0)) for _ in range(2))
        self.sync()
        begin = time.perf_counter()
        _checked(driver.cuEventRecord(first, self.stream))
        f()
        host = time.perf_counter() - begin
        _checked(driver.cuEventRecord(last, self.stream))
        self.sync()
        _checked(driver.cuEventSynchronize(last))
        wall = time.perf_counter() - begin
        event = _checked(driver.cuEventElapsedTime(first, last)) / 1e3
        for made in (first, last):
            _checked(driver.cuEventDestroy(made))
        return event, wall, host


def batch(stream: int, sync: Callable[[], None], before: Callable[[], None], f: Callable[[], None], times: int) -> float:
    """Milliseconds of one of many launches, by events. ``before`` keeps the device busy until the host has launched them all."""
    from cuda.bindings import driver

    first, last = (_checked(driver.cuEventCreate(0)) for _ in range(2))
    sync()
    before()
    _checked(driver.cuEventRecord(first, stream))
    for _ in range(times):
        f()
    _checked(driver.cuEventRecord(last, stream))
    waits = driver.cuEventQuery(first)[0] != driver.CUresult.CUDA_SUCCESS  # else the device was done with ``before`` too early
    _checked(driver.cuEventSynchronize(last))
    ms = float(_checked(driver.cuEventElapsedTime(first, last))) / times
    for made in (first, last):
        _checked(driver.cuEventDestroy(made))
    return ms if waits else -ms


def _checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call.

    Raises:
        RuntimeError: the call failed.
    """
    code, *values = result
    if int(code):
        raise RuntimeError(f"the CUDA driver says {code}")
    return values[0] if values else None


def make_context() -> None:
    """Have a context on this thread: that of the package if it left one current, else the primary one of device 0."""
    from cuda.bindings import driver

    _checked(driver.cuInit(0))
    if not int(_checked(driver.cuCtxGetCurrent())):
        _checked(driver.cuCtxSetCurrent(_checked(driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(0))))))


def used_bytes() -> int:
    """Bytes of the device that are in use, by any process."""
    from cuda.bindings import driver

    free, total = driver.cuMemGetInfo()[1:]
    return total - free


def copy_rate(nbytes: int = 1 << 30, seconds: float = 0.5) -> float:
    """Bytes a second that a plain copy on the device reads and writes, together."""
    from cuda.bindings import driver

    make_context()
    source, target = (_checked(driver.cuMemAlloc(nbytes)) for _ in range(2))
    _checked(driver.cuMemsetD32(source, 0x3F812345, nbytes // 4))
    stream = _checked(driver.cuStreamCreate(0))
    clock = Clock(lambda: _checked(driver.cuStreamSynchronize(stream)), int(stream))
    ms = clock.measure(lambda: _checked(driver.cuMemcpyDtoDAsync(target, source, nbytes, stream)), seconds)["ms"]
    for memory in (source, target):
        _checked(driver.cuMemFree(memory))
    return 2 * nbytes / ms * 1e3
