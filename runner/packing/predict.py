"""Before anything runs: the least time that it can take, a run on virtual time, and what does not fit."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .claims import Placement, Request
from .packer import AGE_S, Packer
from .pools import DeviceSpec, DeviceState, Pool, PoolState, too_small

MOST_SETS = 8  # with more sets of devices that requests are confined to, a bound is not looked for on each


@dataclass(frozen=True)
class Bound:
    """No packing finishes before ``seconds``, the largest of ``parts``: each a necessary time by its name."""

    seconds: float
    parts: Mapping[str, float]

    @property
    def by(self) -> str:
        """The name of the part that binds."""
        return max(self.parts, key=lambda name: self.parts[name])


@dataclass(frozen=True)
class Forecast:
    """The result of a run on virtual time.

    Attributes:
        finish: seconds from the first arrival until the last request ends.
        known: whether all seconds are known; otherwise a request without seconds counts as one second (a unit).
        starts: when each request started, in the order of its start.
        placements: the placements, in that order.
        at_once: the most requests that ran at once, by device.
        waves: the most requests that a device ran, over what it ran at once, rounded up: rounds of equal trials.
        peak: the most bytes charged, by pool, processes included.
        busy: mean share of a pool's capacity that was claimed until the finish, by pool.
        misfits: why a request fits nowhere, by its id.
    """

    finish: float
    known: bool
    starts: Mapping[str, float]
    placements: tuple[Placement, ...]
    at_once: Mapping[str, int]
    waves: int
    peak: Mapping[str, int]
    busy: Mapping[str, float]
    misfits: Mapping[str, str]


def misfit(request: Request, pools: Iterable[Pool], devices: Iterable[DeviceSpec]) -> str | None:
    """Why a request could not even run alone, with the arithmetic; None when it can."""
    states, devices = {pool.id: PoolState(pool) for pool in pools}, list(devices)
    able = [DeviceState(d, states[d.pool]) for d in devices if d.kind in request.claims]
    if not able:
        have = ", ".join(sorted({d.kind for d in devices})) or "none"
        return f"has claims for devices of {', '.join(sorted(request.claims))}; there are: {have}"
    if any(request.claims[state.device.kind].smallest <= state.most for state in able):
        return None
    return too_small(request, max(able, key=lambda state: state.most - request.claims[state.device.kind].smallest))


def lower_bound(requests: Iterable[Request], pools: Iterable[Pool], devices: Iterable[DeviceSpec]) -> Bound:
    """A lower bound of the time of the requests on these devices, each at the point of its curve that is best for the bound.

    By bytes: byte seconds over all bytes, a process for each pool taken off; by lanes: lane seconds over all lanes; both also for what is
    confined to some of the devices, over these alone, of which the largest counts; the longest request. Requests without seconds count
    one second each. Requests that fit nowhere are left out.
    """
    states = {pool.id: PoolState(pool) for pool in pools}
    able = [DeviceState(device, states[device.pool]) for device in devices]
    work: dict[frozenset[str], tuple[float, float]] = {}
    longest = 0.0
    seen: dict[int, tuple[float, float, frozenset[str], Request] | None] = {}
    for request in requests:
        if id(request.claims) not in seen:
            seen[id(request.claims)] = _least(request, able)
        least = seen[id(request.claims)]
        if least is not None:
            area, lanes = work.get(least[2], (0.0, 0.0))
            work[least[2]], longest = (area + least[0], lanes + least[1]), max(longest, least[1])
    sets = set(work) if len(work) <= MOST_SETS else set()
    by_bytes = by_lanes = 0.0
    for some in sets | {frozenset(state.device.id for state in able)}:
        most: dict[str, int] = {}
        for state in able:
            if state.device.id in some:
                most[state.device.pool] = max(most.get(state.device.pool, 0), state.most)
        total_bytes, total_lanes = sum(most.values()), sum(s.device.lanes for s in able if s.device.id in some)
        inside = [amounts for kinds, amounts in work.items() if kinds <= some]
        by_bytes = max(by_bytes, sum(area for area, _ in inside) / total_bytes if total_bytes else 0.0)
        by_lanes = max(by_lanes, sum(lanes for _, lanes in inside) / total_lanes if total_lanes else 0.0)
    parts = {"bytes": by_bytes, "lanes": by_lanes, "longest": longest}
    return Bound(max(parts.values()), parts)


def _least(request: Request, able: Sequence[DeviceState]) -> tuple[float, float, frozenset[str], Request] | None:
    """The least byte seconds and seconds of a request over all points that fit somewhere, and the devices where one does."""
    ways = [
        (point.bytes * (claim.seconds or 1.0) * point.time, (claim.seconds or 1.0) * point.time, state.device.id)
        for state in able
        if (claim := request.claims.get(state.device.kind)) is not None
        for point in claim.points
        if point.bytes <= state.most
    ]
    return (min(w[0] for w in ways), min(w[1] for w in ways), frozenset(w[2] for w in ways), request) if ways else None


class _World:
    """A packer with the running requests at a moment of virtual time, and the recorded results."""

    def __init__(
        self, pools: list[Pool], devices: list[DeviceSpec], packer: Packer, takes: Callable[[Placement], float] | None
    ) -> None:
        self.packer, self.devices = packer, {device.id: device for device in devices}
        for pool in pools:
            packer.add_pool(pool)
        for device in devices:
            packer.add_device(device)
        self._takes = takes or self._seconds
        self.events: list[tuple[float, int, Placement, float]] = []
        self.starts: dict[str, float] = {}
        self.placements: list[Placement] = []
        self.running: dict[str, int] = {}
        self.at_once: dict[str, int] = {}
        self.ran: dict[str, int] = {}
        self.open: set[str] = set()
        self.charged: dict[str, int] = {pool.id: 0 for pool in pools}
        self.peak: dict[str, int] = {pool.id: 0 for pool in pools}
        self.area: dict[str, float] = {}

    def next_end(self) -> float:
        """When the next request ends; infinite when none runs."""
        return self.events[0][0] if self.events else math.inf

    def end(self, now: float) -> None:
        """Finish the requests that have ended."""
        while self.events and self.events[0][0] <= now:
            _, _, placement, took = heapq.heappop(self.events)
            self.packer.finish(placement.request.id, took / placement.point.time)
            self.running[placement.device] -= 1
            self.charged[self.devices[placement.device].pool] -= placement.point.bytes

    def start(self, now: float) -> None:
        """Start what the packer places, and end the idle workers that it names, until there is nothing more."""
        while True:
            for placement in self.packer.next(now):
                self._note(placement, now)
            idle = self.packer.idle_in_the_way()
            if not idle:
                return
            for name in idle:
                self.packer.worker_ended(name)
                self.open.remove(name)
                self.charged[self.devices[name].pool] -= self.devices[name].process_bytes

    def _note(self, placement: Placement, now: float) -> None:
        device, took = self.devices[placement.device], self._takes(placement)
        name, pool = device.id, device.pool
        self.starts[placement.request.id] = now
        self.placements.append(placement)
        heapq.heappush(self.events, (now + took, len(self.placements), placement, took))
        if name not in self.open:
            self.open.add(name)
            self.charged[pool] += device.process_bytes
        self.charged[pool] += placement.point.bytes
        self.peak[pool] = max(self.peak[pool], self.charged[pool])
        self.ran[name] = self.ran.get(name, 0) + 1
        self.running[name] = self.running.get(name, 0) + 1
        self.at_once[name] = max(self.at_once.get(name, 0), self.running[name])
        self.area[pool] = self.area.get(pool, 0.0) + placement.point.bytes * took

    def _seconds(self, placement: Placement) -> float:
        claim = placement.request.claims[self.devices[placement.device].kind]
        return (claim.seconds or 1.0) * placement.point.time


def simulate(
    requests: Iterable[Request],
    pools: Iterable[Pool],
    devices: Iterable[DeviceSpec],
    *,
    age_s: float = AGE_S,
    takes: Callable[[Placement], float] | None = None,
) -> Forecast:
    """Run the packer on virtual time. Requests arrive when they are submitted; time starts at 0.

    Args:
        requests: those to run.
        pools: the memory there is.
        devices: the devices there are, without workers yet.
        age_s: see ``Packer``.
        takes: the seconds that a placement really takes; those of its claim by default, one where they are not known.
    """
    fit, misfits = _split(requests, pools := list(pools), devices := list(devices))
    arrivals = sorted(fit, key=lambda request: request.submitted)
    world = _World(pools, devices, Packer(age_s), takes)
    start = arrivals[0].submitted if arrivals else 0.0
    first, now = 0, start
    while first < len(arrivals) or world.events:
        now = max(now, min(arrivals[first].submitted if first < len(arrivals) else math.inf, world.next_end()))
        world.end(now)
        last = first
        while last < len(arrivals) and arrivals[last].submitted <= now:
            last += 1
        world.packer.submit(arrivals[first:last])
        first = last
        world.start(now)
    if len(world.starts) < len(fit):
        left = next(request for request in fit if request.id not in world.starts)
        raise RuntimeError(f"{len(fit) - len(world.starts)} requests never start; {left.id}: {world.packer.why(left.id)}")
    known = all(claim.seconds is not None for request in fit for claim in request.claims.values())
    span = now - start
    waves = max((-(-count // world.at_once[name]) for name, count in world.ran.items()), default=0)
    busy = {pool.id: world.area.get(pool.id, 0.0) / (span * pool.capacity) if span and pool.capacity else 0.0 for pool in pools}
    return Forecast(span, known, world.starts, tuple(world.placements), world.at_once, waves, world.peak, busy, misfits)


def _split(requests: Iterable[Request], pools: list[Pool], devices: list[DeviceSpec]) -> tuple[list[Request], dict[str, str]]:
    fit: list[Request] = []
    misfits: dict[str, str] = {}
    seen: dict[int, tuple[str | None, Request]] = {}
    for request in requests:
        if id(request.claims) not in seen:
            seen[id(request.claims)] = misfit(request, pools, devices), request
        why = seen[id(request.claims)][0]
        if why is None:
            fit.append(request)
        else:
            misfits[request.id] = why
    return fit, misfits
