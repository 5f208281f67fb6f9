"""The clock of a process for timestamps of events.

The wall clock may be set during a run, which would distort differences of its times. This clock is monotonic and includes sleep of the
machine. Other processes may have begun under another setting: what is said about the age of a run is measured by the run's own clock, which
its heartbeat has.
"""

from __future__ import annotations

import time


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


_BOOT = time.time() - _since_boot()


def now() -> float:
    """Seconds since 1970: those of the clock on the wall when this process began, and what has passed since."""
    return _BOOT + _since_boot()


__all__ = ["now"]
