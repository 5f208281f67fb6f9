"""Processes as records on a disk name them: alive or not, since when, and among which process ids."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def alive(pid: int, began: str = "") -> bool:
    """Whether this machine has a process with this id that has not ended. A zombie has ended.

    ``began``: what ``started`` gave for it; a process that began at another time has taken the id over. Empty: not compared.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user: it exists
    facts = _facts(pid)
    if facts and facts[0] in "ZX" and facts[17] == "1":  # with other threads it has not ended: one may still write
        return False
    return not began or started(pid) == began


def gone_from_here(pid: int, host: str, space: str, began: str = "") -> bool:
    """Whether a process was one that this process could see, and is no more; see ``alive``.

    A machine of the same name, another boot of this one and another container have process ids of their own: there nothing is known.
    """
    return host == platform.node() and space == pid_space() and not alive(pid, began)


def pid_space() -> str:
    """The boot of this machine and the namespace of process ids that this process is in; empty where the system does not say."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def started(pid: int) -> str:
    """When a process began, in ticks since the boot: a later one with the same id has another time. Empty where that is not known."""
    facts = _facts(pid)
    return facts[19] if facts else ""


def _facts(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the third one on, the state; empty where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


__all__ = ["alive", "gone_from_here", "pid_space", "started"]
