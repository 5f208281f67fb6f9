"""Which devices this machine has, and the choice of one for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...compiler.runtime.inventory import BackendLine
from ...compiler.runtime.registry import devices as inventory
from ..config.model import EMULATED, INTERPRETER, SOFTWARE, Loaded
from ..ledger.inventory import Found
from ..packing.claims import amount

RESERVE_PART, RESERVE_BYTES = 20, 512 << 20
"""The reserve of a device's memory: a twentieth, at least 512 MiB, for other processes and for what no allocator counts."""

AUTO = ("auto",)
"""``device.backends`` where the runner chooses."""


@dataclass(frozen=True)
class ChosenDevice:
    """The place of a config's trials: the backend and the device that it names (None: any), and the facts about them on this machine.

    Attributes:
        interpreted: the backend is the CPU, and programs run on the reference interpreter.
        present: this machine can run them, too; else they are planned without the device.
        devices: of this machine, for Ray to hand out; 0 where Ray is not asked: on the CPU, and for a device that the config names.
        memory_bytes: what the smallest of them has for trials, None where that is not known.
    """

    backend: str
    device: int | str | None = None
    present: bool = True
    devices: int = 0
    memory_bytes: int | None = None
    interpreted: bool = False

    @property
    def arch(self) -> str:
        """The ``arch`` of programs: the backend, or the interpreter."""
        return INTERPRETER if self.interpreted else self.backend


def devices() -> list[BackendLine]:
    """One row per backend name of a config, the CPU first."""
    return inventory()


def cores() -> int:
    """CPU threads that this process may use."""
    return _cpu().threads


def memory_bytes() -> int:
    """Memory of this machine."""
    return _cpu().memory_bytes


def _cpu() -> BackendLine:
    return next(row for row in inventory() if row.name == "cpu")


def require_device(loaded: Loaded, *, local: bool = True, backend: str | None = None) -> ChosenDevice:
    """Resolve the config's ``device`` on this machine; for ``auto`` the first of ``places_of_auto``.

    Args:
        loaded: the config.
        local: the trials run on this machine.
        backend: the earlier decision of ``auto``, in a resumed run.

    Raises:
        ConfigError: the device does not exist, or the machine has fewer cores than one trial needs.
    """
    wanted, document = loaded.config.device, loaded.document
    rows = devices()
    names = ["cpu"] if wanted.backends == (INTERPRETER,) else _names(loaded, rows)
    if backend is not None and wanted.backends == AUTO:
        names = [backend]
    # by what a cluster has, which need not be here
    decided = backend is not None and wanted.backends == AUTO and not local
    found = names[0] if decided else _choose(loaded, rows, names, local)
    if local and wanted.threads > cores():
        what = f"one trial wants {wanted.threads} threads, this machine has {cores()} cores"
        raise document.error(document.problem(("device", "threads"), what, hint=f"ask for at most {cores()}"))
    return replace(_place(loaded, rows, found, local), interpreted=wanted.backends == (INTERPRETER,))


def places_together(loaded: Loaded, *, local: bool = True) -> list[ChosenDevice]:
    """Where the trials of a config with ``together`` run: a place for each of its backends; nothing for any other config.

    Raises:
        ConfigError: one of them has no device with ``device.min_memory`` here.
    """
    wanted, rows = loaded.config.device, devices()
    names = wanted.backends if wanted.together else ()
    return [_place(loaded, rows, _choose(loaded, rows, [name], local), local) for name in names]


def places_of_auto(loaded: Loaded, *, local: bool = True) -> list[ChosenDevice]:
    """Where the trials of a config with ``backend: auto`` could run here, GPUs first; nothing for any other config."""
    wanted, rows = loaded.config.device, devices()
    if wanted.backends != AUTO or wanted.id is not None:
        return []
    roomy = {row.name for row in rows if row.usable and _roomy(row, wanted.min_memory)}
    return [_place(loaded, rows, name, local) for name in _names(loaded, rows) if name in roomy]


def places_of_cluster(loaded: Loaded, there: Sequence[Found]) -> list[ChosenDevice]:
    """Where the trials of a config with ``backend: auto`` could run on a cluster with these devices, GPUs first.

    Raises:
        ConfigError: nowhere, or the config names a device.
    """
    rows, document, least = devices(), loaded.document, loaded.config.device.min_memory or 0
    usable = {row.backend for row in there if row.usable and (row.backend == "cpu" or row.capacity >= least)}
    names = [*sorted(usable - {"cpu"}), *(usable & {"cpu"})]
    if not names:
        what = "no node of the cluster has a device for these trials"
        hint = "lower `min_memory`, or run without --address"
        raise document.error(document.problem(("device", "backend"), what, hint=hint))
    return [_place(loaded, rows, name, local=False) for name in names]


def _place(loaded: Loaded, rows: Sequence[BackendLine], backend: str, local: bool) -> ChosenDevice:
    wanted = loaded.config.device
    here = [
        row for row in rows if row.name == backend and row.usable and (wanted.id is not None or _roomy(row, wanted.min_memory))
    ]
    if wanted.id is not None:
        return _named(loaded, backend, here, local)
    if backend == "cpu" or not local:
        return ChosenDevice(backend, present=bool(here))
    return ChosenDevice(backend, devices=len(here), memory_bytes=min(free_for_trials(row.memory_bytes) for row in here))


def _names(loaded: Loaded, rows: Sequence[BackendLine]) -> list[str]:
    """The backends that a config wants, the most wanted first."""
    wanted = loaded.config.device.backends
    if wanted != AUTO:
        return list(wanted)
    return [*(name for name in dict.fromkeys(row.name for row in rows if row.usable) if name != "cpu"), "cpu"]


def _choose(loaded: Loaded, rows: Sequence[BackendLine], names: Sequence[str], local: bool) -> str:
    """The first backend of ``names`` that has a device with ``device.min_memory`` here; elsewhere, the first.

    Raises:
        ConfigError: none has.
    """
    wanted, document = loaded.config.device, loaded.document
    usable = list(dict.fromkeys(row.name for row in rows if row.usable))
    if emulated(wanted.id) or (not local and wanted.backends != AUTO and names[0] != "cpu"):
        return names[0]
    roomy = {row.name for row in rows if row.usable and _roomy(row, wanted.min_memory)}
    found = next((name for name in names if name in roomy), None)
    if found is not None:
        return found
    hint = "`qdrun devices` shows what this machine has"
    small = [row for row in rows if row.usable and row.name in names]
    if small:
        have = ", ".join(f"{row.name} {amount(_room(row))}" for row in small)
        what = f"no device has {amount(wanted.min_memory or 0)} for trials: {have}"
        raise document.error(document.problem(("device", "min_memory"), what, hint=f"lower it; {hint}"))
    reasons = [next(row.detail for row in rows if row.name == name) for name in names]
    what = "; ".join(f"no {name} device can be used: {reason}" for name, reason in zip(names, reasons))
    raise document.error(document.problem(("device", "backend"), what, allowed=(*usable, "auto"), hint=hint))


def _room(row: BackendLine) -> int:
    """Bytes for trials of a device."""
    return row.memory_bytes if row.name == "cpu" else free_for_trials(row.memory_bytes)


def _roomy(row: BackendLine, least: int | None) -> bool:
    return least is None or _room(row) >= least


def emulated(device: int | str | None) -> bool:
    """Whether a ``device.id`` means a device that the CPU plays."""
    return isinstance(device, str) and device.partition(":")[0] in (EMULATED, SOFTWARE)


def _named(loaded: Loaded, backend: str, here: Sequence[BackendLine], local: bool) -> ChosenDevice:
    """The device that ``device.id`` names, by index, UUID or PCI address."""
    wanted, document = loaded.config.device.id, loaded.document
    known: tuple[str, ...] = ()
    if backend == "cpu":
        what, hint = "the cpu backend has one device", "leave `id` out"
    elif emulated(wanted):
        return ChosenDevice(backend, wanted)
    elif not local:
        what, hint = "Ray chooses among the devices of a cluster", "leave `id` out, or run without --address"
    else:
        found = [row for row in here if _is(row, wanted)]
        if len(found) == 1:
            return ChosenDevice(backend, wanted, memory_bytes=free_for_trials(found[0].memory_bytes))
        what, hint = f"{len(found) or 'no'} {backend} devices are called `{wanted}`", "give an index, a UUID or a PCI address"
        known = tuple(f"{row.index} ({row.detail})" for row in here)
    raise document.error(document.problem(("device", "id"), what, allowed=known, hint=hint))


def _is(row: BackendLine, wanted: int | str | None) -> bool:
    if isinstance(wanted, int):
        return row.index == wanted
    name = str(wanted).lower()
    return row.uuid.lower().startswith(name) or name in row.pci.lower()


def free_for_trials(memory_bytes: int) -> int:
    """The bytes of a device's memory for trials."""
    return memory_bytes - max(memory_bytes // RESERVE_PART, RESERVE_BYTES)


@dataclass(frozen=True)
class Candidate:
    """A backend that could run the sweep.

    Attributes:
        backend: its name.
        why: why it cannot run the sweep, or which fact is unknown; empty otherwise.
        out: it cannot run the sweep.
    """

    backend: str
    why: str = ""
    out: bool = False

    @property
    def text(self) -> str:
        """The facts about it, as text."""
        if not self.why:
            return f"{self.backend} holds every trial"
        return f"{self.backend} {'is out' if self.out else 'is not known'}: {self.why}"


@dataclass(frozen=True)
class AutoChoice:
    """The decision of ``auto``, with its reason.

    Attributes:
        backend: the chosen backend.
        reason: a short text.
        candidates: all candidates, in the order of preference without any facts.
    """

    backend: str
    reason: str
    candidates: tuple[Candidate, ...]

    @property
    def head(self) -> str:
        """The chosen candidate."""
        return f"device auto: {self.backend}, {self.reason}"

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.head}: " + "; ".join(c.text for c in self.candidates)

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {"backend": self.backend, "reason": self.reason, "candidates": [vars(c) for c in self.candidates]}
