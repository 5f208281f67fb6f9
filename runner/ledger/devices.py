"""The devices of a ledger, as its packer has them: lanes that others leave, bytes that others hold, and devices that are avoided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..packing import Packer, Pool
from ..packing.pools import Gate
from .inventory import Found, packing_device

AVOIDED = "avoided"
"""The class of a device on which nothing is to be placed: no claim is for it."""
STEPS = 64  # what others hold is rounded up to so many parts of a pool: a new amount makes the packer look at everything again


@dataclass(slots=True)
class LedgerDevice:
    """A device. ``worker``: its process is charged; ``until``: nothing is placed here before; ``most``: of its lanes, beside others."""

    found: Found
    worker: bool = False
    until: float | None = None
    most: int | None = None

    @property
    def lanes(self) -> int:
        """The lanes that others leave of it."""
        return self.found.lanes if self.most is None else min(self.most, self.found.lanes)


class LedgerDevices(Mapping[str, LedgerDevice]):
    """The devices by id; keeps those of the packer.

    Args:
        packer: of the ledger.
        gate: how many requests may run at once on all devices.
        running: how many leases there are on a device.
    """

    def __init__(self, packer: Packer, gate: Gate | None, running: Callable[[str], int]) -> None:
        self._packer, self._gate, self._running = packer, gate, running
        self._devices: dict[str, LedgerDevice] = {}
        self._foreign: dict[str, int] = {}
        self._promised: dict[str, int] = {}

    def __getitem__(self, device: str) -> LedgerDevice:
        return self._devices[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def lanes(self) -> int:
        """Requests that may run at once."""
        lanes = sum(one.lanes for one in self.values() if one.until is None)
        return lanes if self._gate is None else min(lanes, self._gate.most)

    def alike(self, found: Found) -> list[str]:
        """Devices that fail together: the groups of one node's cores are several."""
        return [name for name, one in self.items() if (one.found.pool, one.found.backend) == (found.pool, found.backend)]

    def add(self, found: Found) -> None:
        """Add a device; it is avoided where devices are that it would fail with."""
        if found.id in self._devices:
            raise ValueError(f"there is a device {found.id} already: lose_device takes it away")
        avoided = [until for name in self.alike(found) if (until := self[name].until) is not None]
        if not any(one.found.pool == found.pool for one in self.values()):
            self._foreign[found.pool] = found.foreign
            self._packer.add_pool(Pool(found.pool, found.capacity))
            self._set_foreign(found.pool)
        self._devices[found.id] = LedgerDevice(found)
        self._packer.add_device(packing_device(found), self._gate)
        if avoided:
            self.rest(found.id, min(avoided))

    def remove(self, device: str) -> None:
        """A device is gone; no lease must be left on it."""
        if self._devices.pop(device, None) is not None:
            self._packer.lose_device(device)

    def rest(self, device: str, until: float | None) -> None:
        """Place nothing more on a device until then; what runs there goes on. None: place again."""
        self[device].until = until
        self.fit(device)

    def limit(self, device: str, lanes: int) -> None:
        """Use no more lanes of a device than others leave, but for those on which something runs."""
        self[device].most = lanes
        self.fit(device)

    def fit(self, device: str) -> None:
        """Give the packer the lanes that a device has now. To be called again where a request ends on a device that has fewer."""
        one = self[device]
        lanes = max(self._running(device), one.lanes if one.until is None else 0)
        spec, kind = packing_device(replace(one.found, lanes=max(1, lanes))), one.found.kind if lanes else AVOIDED
        self._packer.change_device(replace(spec, kind=kind))

    def worker_started(self, device: str) -> None:
        """The packer charges a process on the device now."""
        self[device].worker = True

    def worker_ended(self, device: str) -> None:
        """It does no longer; no lease must be left there."""
        if device in self and self[device].worker:
            self[device].worker = False
            self._packer.worker_ended(device)

    def observe(self, pool: str, free: int, ours: int | None) -> None:
        """A pool has so many bytes free, and the workers of the run hold so many; None: all that is charged is taken as held."""
        total = next((one.found.total for one in self.values() if one.found.pool == pool), None)
        if total is None:
            return
        if ours is None:
            ours = sum(row["claimed"] + row["process"] for row in self._packer.pools() if row["id"] == pool)
        step = max(1, total // STEPS)
        self._foreign[pool] = -(-max(0, total - free - ours) // step) * step
        self._set_foreign(pool)

    def promise(self, pool: str, bytes: int) -> None:
        """Withhold bytes of a pool, in addition to the observed use of other processes."""
        if self._promised.get(pool, 0) != bytes:
            self._promised[pool] = bytes
            self._set_foreign(pool)

    def foreign(self, pool: str) -> int:
        """Bytes of a pool that others are seen to hold."""
        return self._foreign.get(pool, 0)

    def _set_foreign(self, pool: str) -> None:
        self._packer.set_foreign(pool, self._foreign[pool] + self._promised.get(pool, 0))
