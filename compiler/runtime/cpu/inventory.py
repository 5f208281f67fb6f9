"""The processor in the inventory."""

from __future__ import annotations

import os
from pathlib import Path

from .. import jit
from ..inventory import BackendLine, DeviceHandle
from . import pool


class HeldHost(DeviceHandle):
    """The processor."""

    name = "cpu"

    def memory(self) -> tuple[int, int]:
        """Bytes of the machine's RAM."""
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0, _total_memory()
        found = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        return found["MemAvailable"], found["MemTotal"]


def row() -> BackendLine:
    """The line of the processor."""
    threads, memory, model = pool.threads_available(), _total_memory(), jit.host().cpu
    detail = f"{model}, {threads} threads, {memory / 2**30:.1f} GiB"
    return BackendLine("cpu", True, True, detail, threads, memory, model=model)


def _total_memory() -> int:
    """Bytes of RAM; 0 when the platform does not say."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0
