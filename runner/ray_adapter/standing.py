"""The record of the Ray that ``qdrun up`` keeps on this machine between runs; ``remote.keeper`` starts and ends it.

A process of its own holds it, as Ray's processes die with the thread that started them. Its record is a private file of this user. A run
without ``--address`` joins it instead of starting Ray; it holds a shared lock for that time, which ``down`` looks at.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..private import private, state_folder
from ..processes import alive, pid_space

RECORD, USERS = "ray.json", "ray.users"
SHELL = ("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "WINDOWID", "LS_COLORS", "PS1")
"""Variables that differ from shell to shell and mean nothing to a job; so do those that begin with ``PREFIXES``."""
PREFIXES = ("SSH_", "XDG_SESSION", "TMUX", "VSCODE_", "DBUS_", "RAY_", "PYTEST_")


@dataclass(frozen=True)
class Standing:
    """A Ray that stands on this machine.

    Attributes:
        pid: of the process that holds it; ``began``, ``space``: what tells that process from a later one with the same id.
        address: host:port of its control plane.
        dashboard: host:port, empty without one.
        python: the environment of its workers (``sys.prefix``).
        cores: of the machine, as Ray hands them out; ``gpus``: devices besides them.
    """

    pid: int
    began: str
    space: str
    address: str
    dashboard: str
    python: str
    cores: int
    gpus: int

    @property
    def lives(self) -> bool:
        """Whether the process that holds it is still there."""
        return self.space == pid_space() and alive(self.pid, self.began)

    def suits(self, gpus: int) -> bool:
        """Whether a run of this process can use it: its workers have the same Python, and enough devices."""
        return self.python == sys.prefix and gpus <= self.gpus

    def changes(self) -> dict[str, str]:
        """The variables of this process that its workers would not have."""
        with suppress(OSError):
            text = Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="surrogateescape")
            pairs = (part.partition("=") for part in text.split("\0") if part)
            return changed({name: value for name, _, value in pairs}, os.environ)
        return changed({}, os.environ)


def changed(there: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``here`` that are others ``there``, without those of a shell or of Ray."""
    return {k: v for k, v in here.items() if there.get(k) != v and k not in SHELL and not k.startswith(PREFIXES)}


def standing() -> Standing | None:
    """The Ray that stands here; None where there is none. A record whose process is gone is removed."""
    path = standing_folder() / RECORD
    try:
        found = Standing(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if found.lives:
        return found
    path.unlink(missing_ok=True)
    return None


def hold() -> int:
    """Take part in the use of the Ray that stands here, until the file descriptor is closed: ``stop`` finds it in use."""
    users = os.open(standing_folder() / USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)
    return users


def standing_folder() -> Path:
    """The private folder of its record."""
    return private(state_folder() / "standing")


__all__ = ["Standing", "changed", "hold", "standing", "standing_folder"]
