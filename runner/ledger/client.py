"""The ledger of a run, in the run's process: ``Ledger`` with a clock, and with the devices that the run may use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from .. import clock
from ..packing import Request
from .inventory import Found
from .leases import Exchange, LeaseEnd, Waits
from .ledger import Ledger


class DeviceSource(Protocol):
    """Where the devices of a run come from: ``Machine``, this one, or ``HeldDevices`` of a cluster."""

    @property
    def others(self) -> bool:
        """Whether others wait for what the run has."""
        ...

    @property
    def changed(self) -> bool:
        """Whether an exchange would bring devices, or the loss of some."""
        ...

    @property
    def beside(self) -> str:
        """What others have that trials wait for, in words; empty where that is not so."""
        ...

    def devices(self) -> list[Found]:
        """Every device of the machine or the cluster, usable or not."""
        ...

    def options(self, device: str) -> dict[str, Any]:
        """Options for the actor of a worker on a device."""
        ...

    def granting(self, ledger: Ledger) -> AbstractContextManager[list[str]]:
        """While open, the ledger grants what the run may have. Afterwards: the devices whose idle worker is in the way of others."""
        ...

    def observed(self, pool: str, ours: int) -> None:
        """The workers of the run hold so many bytes of a pool."""
        ...

    def closed(self, device: str) -> None:
        """The run's worker on a device is gone."""
        ...

    def look_for(self, backend: str | None) -> None:
        """Get a device of a backend that there is none of yet; None: that is over."""
        ...

    def close(self) -> None:
        """The run is over, and its workers gone."""
        ...


class RunLedger:
    """The ledger of a run, as its loop calls it from one thread.

    Args:
        run: its name.
        source: of its devices.
        most: leases at once; None: as many as there are lanes.
    """

    def __init__(self, run: str, source: DeviceSource, *, most: int | None = None) -> None:
        self.run, self.source = run, source
        self._ledger = Ledger(most)

    def ask(self, requests: Sequence[Request]) -> None:
        """Queue requests, many at once. ``submitted``: ``clock.now()``.

        Raises:
            ValueError: one of them waits or is held already; none is queued then.
        """
        self._ledger.ask(requests)

    def withdraw(self, ids: Iterable[str]) -> list[str]:
        """Take requests back; the ids of those that had not been granted yet."""
        return self._ledger.withdraw(ids)

    def exchange(self, done: Sequence[LeaseEnd] = ()) -> Exchange:
        """Return leases, and receive what is new. Never waits."""
        now = clock.now()
        self._ledger.give_back(done, now)
        with self.source.granting(self._ledger) as idle:
            answer = self._ledger.exchange(now)
        return replace(answer, close=(*answer.close, *idle), others=self.source.others)

    def closed(self, device: str) -> None:
        """The run's worker on a device is gone: its process is charged no more."""
        self._ledger.closed(device)
        self.source.closed(device)

    def avoid(self, device: str, seconds: float) -> bool:
        """Grant nothing more on a device for so long; False, and nothing is done, where the run has no other."""
        return self._ledger.avoid(device, seconds, clock.now())

    def observe(self, pool: str, free: int, ours: int | None = None) -> None:
        """A worker has seen so many bytes free in a pool, and our workers hold ``ours`` of it."""
        if ours is not None:
            self.source.observed(pool, ours)
        self._ledger.observe(pool, free, ours)

    def devices(self) -> list[Found]:
        """Every device of the machine or the cluster, usable or not."""
        return self.source.devices()

    def options(self, device: str) -> dict[str, Any]:
        """Options for the actor of a worker on a device: ``Worker.options(**ledger.options(lease.device))``.

        Raises:
            KeyError: the device is lost.
        """
        return self.source.options(device)

    def why(self) -> dict[str, Waits]:
        """Why requests wait: by the id of one of each kind. Of many kinds, the first ones."""
        beside = self.source.beside
        return {
            name: Waits(one.count, f"{one.why}; {beside}" if beside else one.why) for name, one in self._ledger.why().items()
        }

    def snapshot(self) -> dict[str, Any]:
        """Pools, devices with leases, and what waits, as plain data."""
        return self._ledger.snapshot()

    def close(self) -> None:
        """The run is over, and its workers gone."""
        self.source.close()
