"""Which devices this machine has, and the choice of one for a run."""

from __future__ import annotations

from ..compiler.runtime.device import Backend
from ..compiler.runtime.device import devices as inventory
from .config import Loaded


def devices() -> list[Backend]:
    """One row for each backend word of a config, the CPU first."""
    return inventory()


def cores() -> int:
    """CPU threads that this process may use."""
    return _cpu().threads


def memory_bytes() -> int:
    """Memory of this machine."""
    return _cpu().memory_bytes


def _cpu() -> Backend:
    return next(row for row in inventory() if row.name == "cpu")


def require_device(loaded: Loaded, *, local: bool = True) -> str:
    """The backend that the config's ``device`` means here: ``auto`` is the first usable one.

    Raises:
        ConfigError: there is no such device, or the machine has fewer cores than one trial wants.
    """
    wanted, document = loaded.config.device, loaded.document
    rows = devices()
    usable = [row.name for row in rows if row.usable]
    if wanted.backend not in (*usable, "auto"):
        reason = next(row.detail for row in rows if row.name == wanted.backend)
        problem = document.problem(
            ("device", "backend"),
            f"no {wanted.backend} device can be used: {reason}",
            allowed=(*usable, "auto"),
            hint="`qdrun devices` shows what this machine has",
        )
        raise document.error(problem)
    if local and wanted.threads > cores():
        what = f"one trial wants {wanted.threads} threads, this machine has {cores()} cores"
        raise document.error(document.problem(("device", "threads"), what, hint=f"ask for at most {cores()}"))
    return usable[0] if wanted.backend == "auto" else wanted.backend
