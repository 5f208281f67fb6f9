"""What a run and its ledger tell each other: leases, their ends, and the answer of an exchange. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ..packing import ClaimPoint

MOST_REASONS = 8
"""Maximum number of shapes in the reasons for waiting; a sweep may have as many shapes as trials."""
LEASE_REQUESTS, LEASE_S = 64, 5.0
"""A lease of short requests covers at most so many of them, and at most so many seconds."""

DONE = "done"
CUT_SHORT = "cut short"
DEVICE_LOST = "device lost"


@dataclass(frozen=True, slots=True)
class Lease:
    """The permission to hold ``point.bytes`` of a device, on one lane, until it is given back or ended.

    Attributes:
        id: unique in the run's process.
        device: id of the device, as in ``Ledger.devices``.
        point: bytes, and relative time, of each of the requests.
        requests: ids of requests of equal claims, to be run one after the other in this lane; one, unless they are short.
        node: of the device.
        why: why now and here.
        processes: each lane of the device is a process of its own (CPUs); else all lanes share one.
    """

    id: str
    device: str
    point: ClaimPoint
    requests: tuple[str, ...]
    node: str = ""
    why: str = ""
    processes: bool = False


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """A lease is over: given back by the run, or taken by the ledger, with the reason.

    ``seconds``: what one of its requests took on the device, on the mean; None: the ledger takes the time from grant to end.
    """

    lease: str
    reason: str = DONE
    seconds: float | None = None


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
        close: devices with an idle worker that is in the way of others, or of other requests: end the worker, then call ``closed``.
        others: others wait for what this run has.
    """

    leases: tuple[Lease, ...] = ()
    ended: tuple[LeaseEnd, ...] = ()
    close: tuple[str, ...] = ()
    others: bool = False

    def __bool__(self) -> bool:
        return bool(self.leases or self.ended or self.close)
