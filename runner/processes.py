"""Processes as records on a disk name them: alive or not, since when, and among which process ids."""

from __future__ import annotations

import os
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether this machine has a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a process of another user: it exists
    return True


def pid_space() -> str:
    """The boot of this machine and the namespace of process ids that this process is in; empty where the system does not say."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def started(pid: int) -> str:
    """When a process began, in ticks since the boot: a later one with the same id has another time. Empty where that is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


__all__ = ["alive", "pid_space", "started"]
