"""The ledger of a run: leases of (device, bytes) on the devices that it has. Pure: the clock is given, no Ray, no I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from ..packing import Packer, Placement, Request
from ..packing.packer import AGE_S
from ..packing.pools import Gate
from . import leases as words
from .devices import LedgerDevices
from .inventory import RESOURCES, Found, backend_of
from .leases import LEASE_REQUESTS, LEASE_S, MOST_REASONS, Exchange, Lease, LeaseEnd, Waits
from .requests import Grant, RequestGroup, Requests


class Ledger:
    """Grants leases, and takes them back when they are returned, or when their device is gone.

    Args:
        most: leases at once, on all devices; None: as many as there are lanes.
        age_s: see ``Packer``.
        lease_requests: most requests of a lease, and ``lease_s`` its most seconds.

    Attributes:
        grants: whether anything new may be granted now; what others hold is not known otherwise.
    """

    def __init__(
        self,
        most: int | None = None,
        *,
        age_s: float = AGE_S,
        lease_requests: int = LEASE_REQUESTS,
        lease_s: float = LEASE_S,
    ) -> None:
        self.lease_requests, self.lease_s = lease_requests, lease_s
        self.grants = True
        self._most = math.inf if most is None else most
        self._packer = Packer(age_s=age_s)
        self._requests = Requests()
        gate = None if most is None else Gate(most)
        self._devices = LedgerDevices(self._packer, gate, lambda device: len(self._requests.on(device)))
        self._ended: list[LeaseEnd] = []
        self._closing: set[str] = set()
        self._number = 0

    # Devices

    def add_device(self, found: Found) -> None:
        """A device may be used from now on.

        Raises:
            ValueError: there is such a device already.
        """
        self._devices.add(found)

    def lose_device(self, device: str, why: str = "") -> list[Lease]:
        """A device is gone: its leases, which end with the reason ``device lost``. Nothing happens when there is no such device."""
        lost = self._requests.on(device)
        for grant in lost:
            self._end(grant)
            self._ended.append(LeaseEnd(grant.lease.id, words.DEVICE_LOST + (f": {why}" if why else "")))
        self._closing.discard(device)
        self._devices.remove(device)
        return [grant.lease for grant in lost]

    def observe(self, pool: str, free: int, ours: int | None = None) -> None:
        """A pool has ``free`` bytes now, and the workers of the run hold ``ours`` of it. What others hold is the rest."""
        self._devices.observe(pool, free, ours)

    def limit(self, pools: Mapping[str, int], lanes: Mapping[str, int]) -> None:
        """Limit the bytes of each pool and the lanes of each device: other runs have the rest. The run keeps what it holds."""
        for pool, most in pools.items():
            capacity = next(one.found.capacity for one in self._devices.values() if one.found.pool == pool)
            self._devices.promise(pool, max(0, capacity - self._devices.foreign(pool) - most))
        for device, most in lanes.items():
            self._devices.limit(device, most)

    def foreign(self, pool: str) -> int:
        """Bytes of a pool that others are seen to hold."""
        return self._devices.foreign(pool)

    def held(self) -> tuple[dict[str, int], dict[str, int]]:
        """The bytes of each pool that are charged, and how many leases run on each device."""
        pools = {row["id"]: row["claimed"] + row["process"] for row in self._packer.pools()}
        return pools, Counter(grant.lease.device for grant in self._requests.grants.values())

    def idle(self) -> list[str]:
        """Devices where a worker lives and nothing runs."""
        return [name for name, one in self._devices.items() if one.worker and not self._requests.on(name)]

    def least(self) -> dict[str, int]:
        """The bytes of each pool that would let the smallest start that waits, with a process for it; empty when nothing waits."""
        out = dict[str, int]()
        for one in self._devices.values():
            found = one.found
            shapes = [shape for shape in self._requests.shapes.values() if shape.waiting and found.kind in shape.claims]
            if shapes:
                process = 0 if one.worker else found.charge(max(1, one.lanes))
                need = process + min(shape.claims[found.kind].smallest for shape in shapes)
                out[found.pool] = min(out.get(found.pool, need), need)
        return out

    def devices(self) -> list[Found]:
        """The devices that leases are granted on."""
        return [one.found for one in self._devices.values()]

    def closed(self, device: str) -> None:
        """The worker on a device is gone. Nothing happens while there is a lease: another worker will be started."""
        if not self._requests.on(device):
            self._closing.discard(device)
            self._devices.worker_ended(device)

    def avoid(self, device: str, seconds: float, now: float) -> bool:
        """Grant nothing more on a device for some time, because workers fail there, nor on those that fail with it. What runs goes on.

        Returns False and does nothing if the run has no other device: its trials then fail with their errors.
        """
        if device not in self._devices:
            return False
        alike = self._devices.alike(self._devices[device].found)
        others = [one for name, one in self._devices.items() if name not in alike and one.until is None]
        if not any(one.found.kind in self._requests.kinds for one in others):
            return False
        for name in alike:
            self._devices.rest(name, max(self._devices[name].until or 0.0, now + seconds))
        return True

    def drain(self, device: str) -> bool:
        """Grant nothing more on a device until it is lost. Returns whether nothing runs there any more."""
        if device in self._devices and self._devices[device].until != math.inf:
            self._devices.rest(device, math.inf)
        return not self._requests.on(device)

    # Requests

    def ask(self, requests: Sequence[Request]) -> None:
        """Queue requests, many at once.

        Raises:
            ValueError: one of them waits or is held already; none is queued then.
        """
        self._requests.add(requests)
        self._packer.submit(requests)

    def withdraw(self, ids: Iterable[str]) -> list[str]:
        """Take requests out of the queue; those that waited."""
        out = [name for name in ids if name in self._requests.waiting]
        self._packer.withdraw(out)
        for name in out:
            self._requests.over(self._requests.take(name))
        return out

    def give_back(self, done: Sequence[LeaseEnd], now: float) -> None:
        """Give leases back, and grant nothing yet. Unknown leases are ignored."""
        for end in done:
            grant = self._requests.grants.get(end.lease)
            if grant is not None:
                self._end(grant, self._measure(grant, end, now))

    def exchange(self, now: float) -> Exchange:
        """Receive what has been granted and ended since the last exchange."""
        for name, one in self._devices.items():
            if one.until is not None and one.until <= now:
                self._devices.rest(name, None)
        leases, close = list[Lease](), list[str]()
        if self.grants and self._packer.counts()[0]:
            placed = [(placement, self._requests.take(placement.request.id)) for placement in self._packer.next(now)]
            leases = [self._grant(placement, shape, now) for placement, shape in placed]
            in_the_way = self._packer.idle_in_the_way() if self._packer.counts()[0] else ()
            close = [name for name in in_the_way if name not in self._closing]
            self._closing.update(close)
        ended, self._ended = self._ended, []
        return Exchange(tuple(leases), tuple(ended), tuple(close))

    # Views

    def kinds(self) -> set[str]:
        """Classes of devices that there have been claims for."""
        return self._requests.kinds

    def busy(self) -> set[str]:
        """Devices on which something runs."""
        return {grant.lease.device for grant in self._requests.grants.values()}

    def demand(self) -> dict[str, int]:
        """How many requests run or wait, as far as they may run at once, by the resources of Ray that they can use."""
        found, left = Counter[str](), self._most
        running = Counter(id(grant.shape) for grant in self._requests.grants.values())
        for shape in self._requests.shapes.values():
            count = min(left, running[id(shape)] + len(shape.waiting))
            left -= count
            if count:
                found.update(dict.fromkeys({RESOURCES[backend_of(kind)] for kind in shape.claims}, int(count)))
        return dict(found)

    def why(self) -> dict[str, Waits]:
        """Why requests wait, with the arithmetic: by the oldest of each of the first shapes; the others are counted together."""
        waiting = [shape.waiting for shape in self._requests.shapes.values() if shape.waiting]
        out = {}
        for own in waiting[:MOST_REASONS]:
            name = next(iter(own))
            out[name] = Waits(len(own), self._packer.why(name))
        if rest := waiting[MOST_REASONS:]:
            text = f"for places of {len(rest)} other sizes"
            out[next(iter(rest[0]))] = Waits(sum(len(own) for own in rest), text)
        return out

    def snapshot(self) -> dict[str, Any]:
        """Pools, devices with what runs there, and groups that wait, as plain data."""
        return self._packer.snapshot()

    def counts(self) -> tuple[int, int]:
        """The numbers of waiting requests and of leases."""
        return self._packer.counts()[0], len(self._requests.grants)

    # Inside

    def _grant(self, placement: Placement, shape: RequestGroup, now: float) -> Lease:
        point, device = placement.point, placement.device
        more = list(islice(shape.waiting, self._more(shape, point.time)))
        self._packer.withdraw(more)
        for other in more:
            self._requests.take(other)
        self._number += 1
        names = (placement.request.id, *more)
        found = self._devices[device].found
        lease = Lease(str(self._number), device, point, names, found.node, placement.why, processes=found.backend == "cpu")
        self._requests.granted(Grant(lease, shape, now))
        self._closing.discard(device)
        self._devices.worker_started(device)
        return lease

    def _more(self, shape: RequestGroup, time: float) -> int:
        """The number of further requests of a lease: short ones only, and at most half of a lane's share of the queue."""
        seconds = shape.seconds
        if seconds is None:
            known = [claim.seconds for claim in shape.claims.values() if claim.seconds is not None]
            seconds = max(known) if len(known) == len(shape.claims) else None
        if seconds is None:
            return 0
        most = min(
            self.lease_requests,
            int(self.lease_s / max(seconds * time, 1e-9)),
            math.ceil((len(shape.waiting) + 1) / (2 * max(1, self._devices.lanes()))),
        )
        return max(0, most - 1)

    def _measure(self, grant: Grant, end: LeaseEnd, now: float) -> float | None:
        """The seconds of one request at the fastest point; None if the lease was cut short."""
        if end.reason != words.DONE:
            return None
        each = (now - grant.started) / len(grant.lease.requests) if end.seconds is None else end.seconds
        took = max(0.0, each) / grant.lease.point.time
        grant.shape.measured(took)
        return took

    def _end(self, grant: Grant, took: float | None = None) -> None:
        self._requests.ended(grant)
        self._packer.finish(grant.lease.requests[0], took)
        device = grant.lease.device
        if self._devices[device].until is not None or self._devices[device].most is not None:
            self._devices.fit(device)
