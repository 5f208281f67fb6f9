"""Checks the device of a worker from inside: whether it is the leased one, and how many bytes are free."""

from __future__ import annotations

import os
import platform
import time

from ...compiler.errors import QdrunError
from ...compiler.runtime.inventory import DeviceHandle
from ...compiler.runtime.registry import hold
from .spec import WorkerSpec

GROWN_TIMES = 3
"""Readings in a row that must show growth: one may have met another process, or a compilation."""
WARM_LOOKS = 10
"""Looks after which the process has what it keeps: code, pools, caches."""


class DeviceMismatch(QdrunError, RuntimeError):
    """The process of a worker has another device than the one that it was started for."""


def take_device(spec: WorkerSpec, name: str) -> DeviceHandle:
    """Take the device of a worker.

    Raises:
        DeviceMismatch: it is another one than the spec says.
        DeviceError: there is none, or it cannot be used.
        QdrunRuntimeError: there is no such backend.
    """
    held = hold(spec.backend, spec.which, shared=spec.lanes > 1)
    wrong = [
        f"{what} {wanted}, it sees {found or 'none'}"
        for what, wanted, found, same in (
            ("the UUID", spec.uuid, held.uuid, held.uuid.lower().startswith(spec.uuid.lower())),
            ("the PCI address", spec.pci, held.pci, _pci(held.pci) == _pci(spec.pci)),
        )
        if wanted and not same
    ]
    if wrong:
        seen = "".join(f"; {name} is {value!r}" for name, value in os.environ.items() if name.endswith("_VISIBLE_DEVICES"))
        raise DeviceMismatch(
            f"{name} on {platform.node()} (process {os.getpid()}) was started for {spec.device} with {', and '.join(wrong)}{seen}\n"
            "  do: start the worker again; when it happens again, look at `qdrun devices` on that host"
        )
    return held


def _pci(address: str) -> str:
    """Without the domain 0, however many digits that has."""
    domain, _, rest = address.lower().partition(":")
    return rest if rest.count(":") and not domain.strip("0") else address.lower()


def process_bytes() -> int:
    """Bytes of host memory of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Wear:
    """When a process is to be replaced: after so many trials, or when it holds ever more that belongs to no trial.

    Attributes:
        trials: how many have ended.
        retire: why it is to be replaced; empty until then.
    """

    def __init__(self, recycle_after: int, grow_bytes: int, recycle_s: float = 0.0) -> None:
        self._most, self._grow, self._old = recycle_after, grow_bytes, time.monotonic() + recycle_s
        self.trials, self.retire, self._looks = 0, "", 0
        self._first: dict[str, int] = {}
        self._times: dict[str, int] = {}

    def ended(self) -> None:
        """A trial has ended."""
        self.trials += 1
        if self.trials >= self._most and time.monotonic() >= self._old:
            self.end(f"it has run {self.trials} trials")

    def look(self, held: dict[str, int]) -> None:
        """``held``: bytes by place (``process``, ``device``) beside what open trials hold."""
        self._looks += 1
        for place, amount in held.items():
            if self._looks <= WARM_LOOKS:
                self._first[place] = max(amount, self._first.get(place, 0))
                continue
            grown = amount - self._first.setdefault(place, amount)
            self._times[place] = self._times.get(place, 0) + 1 if grown > self._grow else 0
            if self._times[place] >= GROWN_TIMES:
                self.end(f"its {place} holds {grown:,} bytes more than after its first trials, and no trial has them")

    def end(self, why: str) -> None:
        """Replace it; the first reason stays."""
        self.retire = self.retire or why


__all__ = ["DeviceMismatch", "Wear", "process_bytes", "take_device"]
