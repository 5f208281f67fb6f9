"""The packer: events in, placements out. It never promises more bytes of a pool than there are."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .choosing import Chooser
from .claims import Claim, ClaimsKey, Placement, Request, amount
from .places import in_the_way, soonest
from .pools import DeviceSpec, DeviceState, Gate, Pool, PoolState, Reservation, Running
from .queue import ClaimGroup, Waiting
from .views import pools_of, snapshot, why_waiting

AGE_S = 60.0


class Packer:
    """Places requests on devices.

    Args:
        age_s: a request is overtaken, and gets a reservation, when one that was first asked for this many seconds later has started.
    """

    def __init__(self, age_s: float = AGE_S) -> None:
        self.age_s = age_s
        self._pools: dict[str, PoolState] = {}
        self._devices: dict[str, DeviceState] = {}
        self._waiting = Waiting()
        self._chooser = Chooser(self._waiting)
        self._room: dict[str, int] = {}
        self._where: dict[str, DeviceState] = {}
        self._gates: dict[str, Gate] = {}
        self._newest = -math.inf
        self._reserved: Reservation | None = None
        self._touched: set[str] = set()

    # The devices

    def add_pool(self, pool: Pool) -> None:
        """Add a pool, or change the capacity of one."""
        state = self._pools.get(pool.id)
        if state is None:
            self._pools[pool.id] = PoolState(pool)
        else:
            state.pool = pool
        self._resize(fit=True)

    def add_device(self, device: DeviceSpec, gate: Gate | None = None) -> None:
        """Add a device to an existing pool. Its worker is charged from the first placement, or from ``worker_started`` on.

        ``gate``: a limit that several devices share.

        Raises:
            ValueError: the device exists already, or the pool does not.
        """
        if device.id in self._devices:
            raise ValueError(f"there is a device {device.id} already: lose_device takes it away")
        pool = self._pools.get(device.pool)
        if pool is None:
            raise ValueError(f"device {device.id} is on pool {device.pool}, which is not there: add_pool comes first")
        state = self._devices[device.id] = DeviceState(device, pool, gate=gate)
        if gate is not None:
            gate.pools.add(device.pool)
            self._gates[device.kind] = gate
        pool.devices[device.id] = state
        self._resize(fit=True)

    def lose_device(self, device: str) -> list[Request]:
        """A device is gone, with its worker; what ran there. Submit that again to have it run elsewhere."""
        lost = self.worker_ended(device)
        state = self._devices.pop(device)
        del state.pool.devices[device]
        if not state.pool.devices:
            del self._pools[state.pool.pool.id]
        if self._reserved is not None and self._reserved.device == device:
            self._drop_reservation()
        self._resize(fit=True)
        return lost

    def change_device(self, device: DeviceSpec) -> None:
        """A device has other lanes, or is of another class. What runs there goes on."""
        state = self._devices[device.id]
        if state.device != device:
            if state.worker:
                state.pool.process += device.process_bytes - state.device.process_bytes
            state.device = device
            if self._reserved is not None and self._reserved.device == device.id:
                self._drop_reservation()
            self._resize(fit=True)

    def set_foreign(self, pool: str, bytes: int) -> None:
        """Others hold this much of a pool now. What was placed before stays; nothing is added until it fits again."""
        state = self._pools[pool]
        if state.foreign != bytes:
            state.foreign = bytes
            self._resize()

    def worker_started(self, device: str) -> None:
        """A worker lives on the device: its process is charged. ``next`` has charged it already where it placed something."""
        self._devices[device].open()

    def worker_ended(self, device: str) -> list[Request]:
        """The worker of a device is gone, its process is charged no more; what ran there went with it."""
        state = self._devices[device]
        lost = [self._stop(request).request for request in list(state.running)]
        state.shut()
        self._touched.add(state.device.pool)
        return lost

    # The requests

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests. One that fits no device waits for one that may come, see ``misfit``.

        Raises:
            ValueError: a request of that id waits or runs already.
        """
        shapes: dict[int, tuple[ClaimsKey, Mapping[str, Claim]]] = {}
        count = len(self._waiting)
        for request in requests:
            if request.id in self._waiting or request.id in self._where:
                raise ValueError(f"request {request.id} waits or runs already")
            made = shapes.get(id(request.claims))  # the mapping is kept beside it, so that its id stays taken
            if made is None:
                made = shapes[id(request.claims)] = (request.shape(), request.claims)
            self._waiting.add(request, made[0])
        if len(self._waiting) > count:
            self._touch_all()

    def withdraw(self, ids: Iterable[str]) -> list[Request]:
        """Remove requests from the queue. Returns those that waited. Running requests continue until ``finish``."""
        out = []
        for name in ids:
            if name in self._waiting:
                request = self._waiting.remove(name)
                self._taken(request)
                out.append(request)
        return out

    def finish(self, request: str, seconds: float | None = None) -> Request:
        """A request ended, whatever came of it: its bytes and its lane are free.

        ``seconds``: that it took, or would have at the fastest point, where that says something about others of equal claims.

        Raises:
            KeyError: it does not run.
        """
        run = self._stop(request)
        if seconds is not None:
            self._waiting.learn(run.shape, seconds)
        return run.request

    def next(self, now: float) -> list[Placement]:
        """All that may start now. ``now``: seconds of a clock that never goes back."""
        out: list[Placement] = []
        while self._touched and len(self._waiting):
            states = [state for pool in self._touched if pool in self._pools for state in self._pools[pool].devices.values()]
            self._touched.clear()
            if len(states) == 1:
                self._fill(states[0], now, out)
            else:
                self._fill_all(states, now, out)
        if self._reserved is None and len(self._waiting):
            self._reserve(now)
        return out

    def idle_in_the_way(self) -> list[str]:
        """Devices whose idle worker keeps a request of another device on the same pool from starting: end those.

        To be asked after ``next``, when what waits fits nowhere.
        """
        return [name for pool in self._pools.values() for name in in_the_way(pool, self._waiting)]

    # Queries

    @property
    def reservation(self) -> Reservation | None:
        """The one there is."""
        return self._reserved

    def free(self, pool: str) -> int:
        """Bytes of a pool that nothing is charged for; negative when others took what was promised."""
        return self._pools[pool].free

    def counts(self) -> tuple[int, int]:
        """The numbers of waiting and of running requests."""
        return len(self._waiting), len(self._where)

    def why(self, request: str) -> str:
        """The device of a running request, or the arithmetic of why a request waits.

        Raises:
            KeyError: the request neither waits nor runs.
        """
        if request in self._where:
            run = self._where[request].running[request]
            return f"runs on {run.device.id} with {amount(run.point.bytes)}"
        found = self._waiting.get(request)
        if found is None:
            raise KeyError(f"request {request} neither waits nor runs")
        return why_waiting(found[0], found[1], self._devices, self._reserved, self._touched)

    def pools(self) -> list[dict[str, Any]]:
        """The pools of ``snapshot``."""
        return pools_of(self._pools)

    def snapshot(self) -> dict[str, Any]:
        """Pools, devices, groups that wait, and the reservation, as plain data. Bytes and counts."""
        return snapshot(self._pools, self._devices, self._waiting, self._reserved)

    # Inside

    def _fill(self, state: DeviceState, now: float, out: list[Placement]) -> None:
        """Place on one device until nothing more starts there."""
        while (placement := self._place(state, now)) is not None:
            out.append(placement)

    def _fill_all(self, states: Sequence[DeviceState], now: float, out: list[Placement]) -> None:
        """Place on devices, the smallest first, of equal ones where the fewest run, until nothing more starts."""
        ready = [(state.pool.pool.capacity, len(state.running), state.device.id) for state in states if state.room >= 0]
        heapq.heapify(ready)
        while ready and len(self._waiting):
            capacity, _, name = heapq.heappop(ready)
            state = self._devices[name]
            placement = self._place(state, now)
            if placement is not None:
                out.append(placement)
                heapq.heappush(ready, (capacity, len(state.running), name))

    def _touch_all(self) -> None:
        self._touched.update(self._pools)

    def _resize(self, *, fit: bool = False) -> None:
        """Usable bytes have changed, or (``fit``) devices and capacities: what a claim may have on each class, and what there is in all."""
        limits: dict[str, tuple[int, int]] = {}
        for state in self._devices.values():
            now, ever = limits.get(state.device.kind, (-1, -1))
            most = state.pool.pool.capacity - state.device.process_bytes
            limits[state.device.kind] = max(now, state.most), max(ever, most)
        self._room = {kind: now for kind, (now, _) in limits.items()}
        self._waiting.limit(limits, fit=fit)
        self._chooser.bytes = sum(max(0, pool.usable) for pool in self._pools.values() if pool.devices)
        self._chooser.lanes = sum(state.device.lanes for state in self._devices.values())
        if self._reserved is not None:
            device = self._devices.get(self._reserved.device)
            if device is None or self._reserved.need > device.most:
                self._drop_reservation()
        self._waiting.unpark()
        self._touch_all()

    def _drop_reservation(self) -> None:
        if self._reserved is not None:
            self._reserved = None
            self._touch_all()

    def _taken(self, request: Request) -> None:
        """A request waits no more."""
        if self._reserved is not None and self._reserved.request == request.id:
            self._drop_reservation()

    def _stop(self, name: str) -> Running:
        state = self._where.pop(name)
        run = state.stop(name)
        self._touched.add(state.device.pool)
        if state.gate is not None:
            self._touched |= state.gate.pools
            self._waiting.unpark()
        return run

    def _start(self, request: Request, shape: ClaimsKey, state: DeviceState, index: int, now: float) -> Running:
        claim = request.claims[state.device.kind]
        point = claim.points[index]
        end = math.inf if claim.seconds is None else now + claim.seconds * point.time
        run = Running(request, shape, state.device, point, now, end)
        state.start(run)
        self._where[request.id] = state
        self._newest = max(self._newest, request.submitted)
        if state.gate is not None and state.gate.full and self._reserved is not None:
            if self._devices[self._reserved.device].gate is state.gate:
                self._drop_reservation()  # it could not start, and would hold up others
        return run

    def _grant(self, state: DeviceState, group: ClaimGroup, why: str, now: float, name: str | None = None) -> Placement:
        request = self._waiting.pop(group) if name is None else self._waiting.remove(name)
        self._taken(request)
        run = self._start(request, group.shape, state, group.bases[state.device.kind], now)
        return Placement(request, state.device.id, run.point, why)

    def _place(self, state: DeviceState, now: float) -> Placement | None:
        room = state.room
        if room < 0:
            return None
        reserved = self._reserved
        if reserved is not None:
            placement = self._place_reserved(reserved, state, room, now)
            if placement is not None:
                return placement
            target = self._devices[reserved.device]
            if target.pool is state.pool:
                choice = self._chooser.beside(reserved.need, target, state, room, now)
                return None if choice is None else self._grant(state, *choice, now)
        if not self._waiting.fits(state.device.kind, room):
            return None
        choice = self._chooser.choose(state, room)
        return None if choice is None else self._grant(state, *choice, now)

    def _place_reserved(self, reserved: Reservation, state: DeviceState, room: int, now: float) -> Placement | None:
        found = self._waiting.get(reserved.request)
        if found is None or state.device.kind not in found[1].bases:
            return None
        if found[1].bytes_on(state.device.kind) > room:
            return None
        return self._grant(state, found[1], f"reserved: {reserved.why}", now, reserved.request)

    def _runnable(self, group: ClaimGroup) -> bool:
        room, gates = self._room, self._gates
        return any(
            group.bytes_on(kind) <= room.get(kind, -1) and not (kind in gates and gates[kind].full) for kind in group.bases
        )

    def _reserve(self, now: float) -> None:
        """Reserve for the oldest of those overtaken."""
        before = self._newest - self.age_s
        found = self._waiting.oldest(self._runnable) if self._waiting.overtaken(before) else None
        if found is None or found[0].submitted >= before:
            return
        request, group = found
        target = soonest(self._devices.values(), group, now)
        if target is not None:
            device, why = target.device, f"overtaken by requests {self.age_s:g} s younger"
            self._reserved = Reservation(request.id, device.id, group.bytes_on(device.kind), now, why)
            self._touched.add(device.pool)
