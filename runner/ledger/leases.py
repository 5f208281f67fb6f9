"""The messages between a run and the ledger: leases, their ends, and the answer of an exchange. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ..packing import ClaimPoint, Request

BEAT_S = 5.0
"""A run lets the ledger hear from it at least this often; an exchange counts."""
EXPIRE_S = 30.0
"""A run that was silent for so long loses its leases."""
MOST_REASONS = 8
"""Maximum number of shapes in the reasons for waiting; a sweep may have as many shapes as trials."""
LEASE_REQUESTS, LEASE_S = 64, 5.0
"""A lease of short requests covers at most so many of them, and at most so many seconds."""

DONE = "done"
CUT_SHORT = "cut short"
EXPIRED = "expired"
DEVICE_LOST = "device lost"
LEFT = "the run has left"


@dataclass(frozen=True, slots=True)
class Lease:
    """The permission to hold ``point.bytes`` of a device, on one lane, until it is given back or ended.

    Attributes:
        id: unique, over restarts of the ledger too.
        run: the run that has it.
        device: id of the device, as in ``Ledger.devices``.
        node: of the device.
        point: bytes, and relative time, of each of the requests.
        requests: ids of requests of equal claims, to be run one after the other in this lane; one, unless they are short.
        expires: seconds of the ledger's clock; every sign of life of the run moves it on.
        why: why now and here.
        group: of the device in Ray (hexadecimal); empty where the ledger is in the run's own process.
    """

    id: str
    run: str
    device: str
    node: str
    point: ClaimPoint
    requests: tuple[str, ...]
    expires: float
    why: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """A lease is over: given back by the run, or taken by the ledger, with the reason.

    ``seconds``: what one of its requests took on the device, on the mean; None: the ledger takes the time from grant to end.
    """

    lease: str
    reason: str = DONE
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """The properties of a run that joins a ledger.

    Attributes:
        most: maximum number of leases at once, on all devices; None: as many as there are lanes.
        frames: bytes of its kernels' stack frames on a GPU, in addition to the overhead of a process.
    """

    most: int | None = None
    frames: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that a run holds and a ledger that starts again must be told of; ``request``: the first of those that it covers."""

    lease: Lease
    request: Request


@dataclass(frozen=True, slots=True)
class Waits:
    """Why so many requests wait."""

    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """The answer of the ledger.

    Attributes:
        leases: leases granted since the last answer; run them now.
        ended: leases that the ledger has revoked, with the reason: stop their launches. Their requests are removed; submit again what is to
            run again.
        close: devices with an idle worker of the run that blocks other requests: end the worker, then call ``closed``.
        last: number of the last news in this answer; the next exchange gives it back as ``seen``.
        known: False: the ledger has never heard of the run, or has given it up: ``join`` again.
        others: requests of other runs wait, or other users of the cluster for its cores.
        reached: False: the ledger could not be reached; it is tried again at the next exchange, what was given back is not lost.
    """

    leases: tuple[Lease, ...] = ()
    ended: tuple[LeaseEnd, ...] = ()
    close: tuple[str, ...] = ()
    last: int = 0
    known: bool = True
    others: bool = False
    reached: bool = True

    def __bool__(self) -> bool:
        return bool(self.leases or self.ended or self.close)
