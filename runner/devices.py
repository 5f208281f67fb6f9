"""Which devices this machine has, and the choice of one for a run."""

from __future__ import annotations

from dataclasses import dataclass

from ..compiler.runtime.device import Backend
from ..compiler.runtime.device import devices as inventory
from .config import EMULATED, Loaded

RESERVE_PART, RESERVE_BYTES = 20, 512 << 20
"""Of a device's memory a twentieth, at least 512 MiB, is left alone: what others hold, and what no allocator counts."""


@dataclass(frozen=True)
class Place:
    """Where a config's trials run: the backend and the device that it names (None: any), and what is known of that here.

    Attributes:
        present: this machine can run them, too; else they are planned without the device.
        devices: of this machine, for Ray to hand out; 0 where Ray is not asked: on the CPU, and for a device that the config names.
        memory_bytes: what the smallest of them has for trials, None where that is not known.
    """

    backend: str
    device: int | str | None = None
    present: bool = True
    devices: int = 0
    memory_bytes: int | None = None


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


def require_device(loaded: Loaded, *, local: bool = True) -> Place:
    """What the config's ``device`` means here: ``auto`` is the first usable backend that is not the CPU, and the CPU where there is none.

    Raises:
        ConfigError: there is no such device, or the machine has fewer cores than one trial wants.
    """
    wanted, document = loaded.config.device, loaded.document
    rows = devices()
    usable = [row.name for row in rows if row.usable]
    absent = wanted.backend not in (*usable, "auto")
    if absent and wanted.id != EMULATED and (local or wanted.backend == "cpu"):
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
    backend = next((name for name in usable if name != "cpu"), "cpu") if wanted.backend == "auto" else wanted.backend
    if wanted.id is None:
        return _place(next(row for row in rows if row.name == backend), local)
    if backend == "cpu":
        raise document.error(document.problem(("device", "id"), "the cpu backend has one device", hint="leave `id` out"))
    if not local:
        what = "Ray chooses among the devices of a cluster"
        raise document.error(document.problem(("device", "id"), what, hint="leave `id` out, or run without --address"))
    if wanted.id == EMULATED:
        return Place(backend, EMULATED)
    return _named(loaded, next(row for row in rows if row.name == backend))


def _place(row: Backend, local: bool) -> Place:
    if row.name == "cpu" or not local:
        return Place(row.name, present=row.usable)
    return Place(
        row.name, None, row.usable, len(row.devices), min((free_for_trials(d.memory_bytes) for d in row.devices), default=None)
    )


def _named(loaded: Loaded, row: Backend) -> Place:
    """The device that ``device.id`` names, by index, UUID or PCI address."""
    wanted = loaded.config.device.id
    for device in row.devices:
        if wanted in (device.index, device.uuid) or str(wanted).lower() in (
            device.pci.lower(),
            device.pci.lower().partition(":")[2],
        ):
            return Place(row.name, wanted, memory_bytes=free_for_trials(device.memory_bytes))
    known = tuple(f"{device.index}, {device.uuid} or {device.pci} ({device.name})" for device in row.devices)
    raise loaded.document.error(
        loaded.document.problem(("device", "id"), f"no {row.name} device is called `{wanted}`", allowed=known)
    )


def free_for_trials(memory_bytes: int) -> int:
    """What of a device's memory trials may take."""
    return memory_bytes - max(memory_bytes // RESERVE_PART, RESERVE_BYTES)
