"""Memory in use on the first NVIDIA card, sampled by a process of its own: ``python -m benchmarks.sweep_card FILE`` until stdin closes.

Each line of FILE: seconds since the epoch, bytes in use by everybody (contexts included), bytes in all, and the percent of time in which a
kernel ran.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EVERY_S = 0.05


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Busy(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Card:
    """The first card, by NVIDIA's management library: no context is made. Raises ``OSError`` where there is none."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        if self._library.nvmlInit_v2() or self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)):
            raise OSError("no NVIDIA card that the management library knows")

    def read(self) -> tuple[int, int, int]:
        """Bytes in use and in all, and percent busy."""
        memory, busy = _Memory(), _Busy()
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            raise OSError("the card does not say how much memory is in use")
        self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(busy))
        return memory.total - memory.free, memory.total, busy.gpu


def total_bytes() -> int | None:
    """Bytes of the card; None without one."""
    try:
        return Card().read()[1]
    except OSError:
        return None


@contextmanager
def sampled(path: Path) -> Iterator[None]:
    """Sample during the block."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.sweep_card", str(path)], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate()


def summary(path: Path, start_t: float, end_t: float) -> dict[str, Any]:
    """Mean and most of the bytes in use from one time to another; empty where nothing was sampled."""
    lines = path.read_text(encoding="ascii").splitlines()[1:] if path.is_file() else []
    rows = [tuple(map(float, line.split(","))) for line in lines if line.count(",") == 3]
    inside = [row for row in rows if start_t <= row[0] <= end_t]
    if len(inside) < 2:
        return {}
    weights = [after[0] - before[0] for before, after in itertools.pairwise(inside)]
    mean = sum(w * row[1] for w, row in zip(weights, inside)) / sum(weights)
    busy = sum(w * row[3] for w, row in zip(weights, inside)) / sum(weights)
    total, most = inside[0][2], max(row[1] for row in inside)
    return {
        "samples": len(inside),
        "card_bytes": int(total),
        "mean_bytes": int(mean),
        "mean_part": round(mean / total, 4),
        "most_part": round(most / total, 4),
        "kernels_ran_percent": round(busy, 1),
    }


def main() -> None:
    """See the module."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with open(sys.argv[1], "w", encoding="ascii") as stream:
        stream.write("t,used,total,busy\n")
        try:
            card = Card()
        except OSError as error:
            print(f"no samples of memory: {error}", file=sys.stderr)
            return
        while not over.wait(EVERY_S):
            used, total, busy = card.read()
            stream.write(f"{time.time():.3f},{used},{total},{busy}\n")
            stream.flush()


if __name__ == "__main__":
    main()
