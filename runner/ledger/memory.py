"""Bytes of this machine's RAM and of its NVIDIA cards, total and free, without opening a device."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST = 1 << 60  # a cgroup says a number beyond this for "no limit"


@dataclass(frozen=True, slots=True)
class Card:
    """Memory of a card in bytes, and the version of its driver."""

    total: int
    free: int
    driver: str


def host(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[int, int | None]:
    """Bytes of RAM that this process may use, in all and free now (None: the system does not say). Limits of containers count, and those
    of every control group that this process is in, whatever lies in between.
    """
    table = _meminfo(proc / "meminfo")
    total = table.get("MemTotal") or _sysconf()
    free = table.get("MemAvailable")
    for limit, used in _limits(proc / "self" / "cgroup", cgroup):
        if not 0 < limit < (total or MOST):
            continue
        left = None if used is None else max(0, limit - used)
        total = limit
        free = left if free is None else min(free, limit if left is None else left)
    return total, free


def _meminfo(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines)
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) >= 2 and row[1].isdigit()}


def _sysconf() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limits(own: Path, root: Path) -> list[tuple[int, int | None]]:
    """The limits of the control groups of this process, from the outermost one in, and what of each cannot be taken back at once.

    Version 2 has one hierarchy, version 1 one for memory. Inside of a container the own path may be that of the host: then it is not there,
    and the limit of the container is at the root.
    """
    found = []
    for base, path, limit, now in (
        (root, _path(own, ""), "memory.max", "memory.current"),
        (root / "memory", _path(own, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        folders = [base]
        for part in path.parts:
            folders.append(folders[-1] / part)
        for folder in folders:
            most, used = _number(folder / limit), _number(folder / now)
            if most is not None and most < MOST:
                found.append((most, None if used is None else max(0, used - _cache(folder / "memory.stat"))))
    return found


def _path(own: Path, controller: str) -> Path:
    """The group of this process for a controller of version 1, or (empty) of version 2; relative."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Path()
    for line in lines:
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(",") and ".." not in path:
            return Path(path.lstrip("/"))
    return Path()


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _cache(path: Path) -> int:
    """Bytes of files that the system drops when memory is asked for."""
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return 0
    table = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    return table.get("inactive_file", table.get("total_inactive_file", 0))


def nvidia() -> dict[str, Card]:
    """NVIDIA's cards by UUID in lower case, as their management library (NVML) tells; empty without it or nvidia-ml-py.

    NVML needs no context on the card, so that asking costs the card no memory.
    """
    try:
        import pynvml as nvml
    except ImportError:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver
        return {}
    cards: dict[str, Card] = {}
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        for k in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # a card that another user has, or that is lost
                card = nvml.nvmlDeviceGetHandleByIndex(k)
                held = nvml.nvmlDeviceGetMemoryInfo(card)
                cards[nvml.nvmlDeviceGetUUID(card).lower()] = Card(int(held.total), int(held.free), driver)
    except nvml.NVMLError:
        return cards
    finally:
        nvml.nvmlShutdown()
    return cards
