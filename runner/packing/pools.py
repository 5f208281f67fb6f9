"""Memory pools, the devices that share them, and the bytes that are charged to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .claims import ClaimPoint, ClaimsKey, Request, amount


@dataclass(frozen=True, slots=True)
class Pool:
    """Physical memory: a card, unified memory, the RAM of a host. ``capacity``: bytes that may be used in all, the reserve taken off."""

    id: str
    capacity: int

    def __post_init__(self) -> None:
        if self.capacity < 0:
            raise ValueError(f"pool {self.id} has a capacity of {self.capacity} bytes")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device as the packer sees it.

    Attributes:
        id: name in placements.
        pool: its memory pool; several devices may share one.
        kind: its device class; the devices of a class share claims.
        lanes: number of requests that may run at once.
        process_bytes: context, frames and code, charged once while a worker lives on it, idle or not.
    """

    id: str
    pool: str
    kind: str
    lanes: int
    process_bytes: int = 0

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.process_bytes < 0:
            raise ValueError(f"device {self.id} needs at least one lane and no negative process_bytes: {self}")


@dataclass(slots=True)
class Running:
    """A request that runs; ``end``: when it is over at the latest, infinite when that is not known."""

    request: Request
    shape: ClaimsKey
    device: DeviceSpec
    point: ClaimPoint
    start: float
    end: float


@dataclass(slots=True)
class PoolState:
    """The account of a pool: ``claimed`` by requests, ``process`` by workers, ``foreign`` by others."""

    pool: Pool
    claimed: int = 0
    process: int = 0
    foreign: int = 0
    devices: dict[str, DeviceState] = field(default_factory=dict)

    @property
    def usable(self) -> int:
        """Bytes for all workers and requests of the packer together."""
        return self.pool.capacity - self.foreign

    @property
    def free(self) -> int:
        """Bytes left now; negative when others took what was promised."""
        return self.pool.capacity - self.foreign - self.claimed - self.process


@dataclass(slots=True)
class Gate:
    """A limit that devices share: at most ``most`` requests run at once on all of them. ``pools``: their pools."""

    most: int
    running: int = 0
    pools: set[str] = field(default_factory=set)

    @property
    def full(self) -> bool:
        """Whether nothing more may start."""
        return self.running >= self.most


@dataclass(slots=True)
class DeviceState:
    """A device, whether a worker is charged there, and what runs."""

    device: DeviceSpec
    pool: PoolState
    worker: bool = False
    running: dict[str, Running] = field(default_factory=dict)
    gate: Gate | None = None

    @property
    def full(self) -> bool:
        """Whether nothing more may start, however small."""
        return len(self.running) >= self.device.lanes or (self.gate is not None and self.gate.full)

    @property
    def opening(self) -> int:
        """Bytes that the first placement pays besides its own."""
        return 0 if self.worker else self.device.process_bytes

    @property
    def room(self) -> int:
        """The largest point that can be placed now; negative when there is none."""
        if len(self.running) >= self.device.lanes or (self.gate is not None and self.gate.full):
            return -1
        pool = self.pool
        free = pool.pool.capacity - pool.foreign - pool.claimed - pool.process
        return free if self.worker else free - self.device.process_bytes

    @property
    def most(self) -> int:
        """The largest point that fits once all other requests in the pool have ended."""
        return self.pool.usable - self.device.process_bytes

    def open(self) -> None:
        """Charge the worker."""
        if not self.worker:
            self.worker = True
            self.pool.process += self.device.process_bytes

    def shut(self) -> None:
        """Take the charge of the worker off."""
        if self.worker:
            self.worker = False
            self.pool.process -= self.device.process_bytes

    def start(self, run: Running) -> None:
        """Charge a request, and the worker that it needs."""
        self.open()
        self.running[run.request.id] = run
        self.pool.claimed += run.point.bytes
        if self.gate is not None:
            self.gate.running += 1

    def stop(self, request: str) -> Running:
        """Take the charge of a request off; the worker stays."""
        run = self.running.pop(request)
        self.pool.claimed -= run.point.bytes
        if self.gate is not None:
            self.gate.running -= 1
        return run

    def free_at(self, need: int, now: float) -> tuple[float, int, int]:
        """When a request of ``need`` bytes fits here if nothing else starts, with the bytes and lanes that are then left beside it.

        Infinite when some request whose end is not known, or is past, has to end before. ``need`` must be at most ``most``.
        """
        spare, lanes = self.pool.free - self.opening - need, self.device.lanes - len(self.running) - 1
        when = now
        runs = [run for other in self.pool.devices.values() for run in other.running.values()]
        for run in sorted(runs, key=lambda run: run.end if run.end > now else math.inf):
            if spare >= 0 and lanes >= 0:
                break
            when = run.end if run.end > now else math.inf
            spare += run.point.bytes
            lanes += run.device.id == self.device.id
        return (when, spare, lanes) if spare >= 0 and lanes >= 0 else (math.inf, spare, lanes)


@dataclass(frozen=True, slots=True)
class Reservation:
    """No other request may start in the pool of ``device`` if that could hold ``request`` up."""

    request: str
    device: str
    need: int
    since: float
    why: str


def too_small(request: Request, state: DeviceState) -> str:
    """The arithmetic of a request that can never run on a device of its class."""
    least, pool, process = request.claims[state.device.kind].smallest, state.pool, state.device.process_bytes
    text = (
        f"needs {amount(least)} at its smallest on {state.device.id} ({state.device.kind}), and its process {amount(process)}"
    )
    others = f", of which others hold {amount(pool.foreign)}" if pool.foreign else ""
    return f"{text}: {amount(least + process)}, more than the {amount(pool.pool.capacity)} of pool {pool.pool.id}{others}"
