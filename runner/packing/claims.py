"""``Claim`` and ``Request``: a request has a curve of (bytes, relative time) for each device class that it may run on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Key = tuple[tuple[str, "Claim"], ...]


@dataclass(frozen=True, slots=True)
class ClaimPoint:
    """A point of a claim: ``bytes`` on the device without the overhead of the process, and ``time`` relative to the fastest point."""

    bytes: int
    time: float = 1.0

    def __post_init__(self) -> None:
        if self.bytes < 0 or not 1.0 <= self.time < math.inf:
            raise ValueError(f"a point needs bytes >= 0 and a finite time >= 1.0 of the fastest point: {self}")


@dataclass(frozen=True)
class Claim:
    """The points of a request on one class of devices, the fastest first: bytes fall and time rises from each to the next.

    Attributes:
        points: at least one; the first has time 1.0.
        seconds: how long the request runs at its first point, at the most; None when that is not known. Only requests that are known
            are back-filled in front of a reservation.

    Raises:
        ValueError: the points are not such a curve, or the seconds are not positive.
    """

    points: tuple[ClaimPoint, ...]
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.points or self.points[0].time != 1.0:
            raise ValueError(f"a claim needs points, and the first one, the fastest, has time 1.0: {self.points}")
        for a, b in zip(self.points, self.points[1:], strict=False):
            if b.bytes >= a.bytes or b.time <= a.time:
                raise ValueError(f"from one point of a claim to the next bytes fall and time rises: {a} then {b}; use Claim.of")
        if self.seconds is not None and not 0.0 < self.seconds < math.inf:
            raise ValueError(
                f"the seconds of a claim are positive and finite, or None where they are not known: {self.seconds}"
            )

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]], seconds: float | None = None) -> Claim:
        """The curve of any (bytes, time) pairs: points that another one beats are left out, times are made relative to the fastest."""
        kept: list[tuple[int, float]] = []
        for size, time in sorted(points, key=lambda p: (p[1], p[0])):
            if not kept or size < kept[-1][0]:
                kept.append((size, time))
        if not kept or not 0.0 < kept[0][1] < math.inf:
            raise ValueError("a claim needs points with positive times")
        return cls(tuple(ClaimPoint(size, time / kept[0][1]) for size, time in kept), seconds)

    @property
    def smallest(self) -> int:
        """Bytes of the smallest point."""
        return self.points[-1].bytes


class ClaimsKey:
    """The claims of interchangeable requests, hashed once: a group of the queue is found by it, and that of many claims is slow.

    ``mark``: equal shapes have equal ones, and others have others but by chance.
    """

    __slots__ = ("key", "mark")

    def __init__(self, key: Key) -> None:
        self.key, self.mark = key, hash(key)

    def __hash__(self) -> int:
        return self.mark

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ClaimsKey) and self.mark == other.mark and self.key == other.key)


@dataclass(frozen=True)
class Request:
    """A trial, or a batch of ``trials`` that share one launch and one lane, that waits for a place.

    Attributes:
        id: unique among waiting and running requests.
        claims: for each device class (``DeviceSpec.kind``) that it may run on, its claim there.
        submitted: time of the first submission, in seconds of the clock of ``Packer.next``; kept when it is asked for again.
        trials: those that it carries, by their places in the sweep.
    """

    id: str
    claims: Mapping[str, Claim] = field(hash=False)
    submitted: float
    trials: Sequence[int] = field(default=(0,), hash=False)

    def __post_init__(self) -> None:
        if not self.claims or not self.trials:
            raise ValueError(f"request {self.id} needs a claim for some class of devices, and at least one trial")

    def key(self) -> Key:
        """Requests with equal keys are interchangeable for the packer, but for their age."""
        return tuple(sorted(self.claims.items(), key=lambda item: item[0]))

    def shape(self) -> ClaimsKey:
        """The key, hashed."""
        return ClaimsKey(self.key())


@dataclass(frozen=True, slots=True)
class Placement:
    """A request may start on ``device`` with ``point.bytes``; ``why`` there."""

    request: Request
    device: str
    point: ClaimPoint
    why: str


def amount(count: int) -> str:
    """Bytes as people read them."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
