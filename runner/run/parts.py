"""The parts that the state of a run is made of."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..packing import Claim
from ..store.attempts import Failure
from . import messages as m

Claims = Mapping[str, Claim]


@dataclass(frozen=True)
class Work:
    """A trial that is to run: the number of its last attempt and its charged failures so far (of owners before).
    ``alone``: it may be what killed others.
    """

    id: str
    number: int = 0
    charged: Mapping[str, int] = field(default_factory=dict)
    alone: bool = False


@dataclass
class TrialAt:
    """A trial that is not over, or was until a moment ago. ``asks``: for places; ``claims``: its own, if any."""

    id: str
    number: int
    charged: Counter[str]
    since: float = 0.0
    asks: int = 0
    alone: bool = False
    ended: bool = False
    claims: Claims | None = None


@dataclass
class LeaseAt:
    """A lease: the requests that wait in it, those that will not run under it, and the launch that does."""

    grant: m.Granted
    queue: deque[str]
    unfinished: list[str] = field(default_factory=list)
    flight: int | None = None


@dataclass
class Flight:
    """A launch that is not over: when it was sent and has begun, which of its trials are to end how, and when its worker is killed."""

    launch: m.Launch
    request: str
    sent: float
    since: float | None = None
    ending: dict[str, tuple[Failure, m.Error]] = field(default_factory=dict)
    kill_at: float = float("inf")


@dataclass
class DeviceAt:
    """A device: leases that wait for it, launches, generations of its workers, those to be replaced.

    ``crashed``: when one died last, the number of the launch that came next, and the attempt that was charged.
    """

    pending: deque[str] = field(default_factory=deque)
    flights: dict[int, Flight] = field(default_factory=dict)
    generations: Counter[int] = field(default_factory=Counter)
    retiring: set[m.Worker] = field(default_factory=set)
    crashed: tuple[float, int, tuple[tuple[str, int], ...]] = (-float("inf"), 0, ())


def error_of(kind: str, message: str) -> dict[str, str]:
    """An error of the runner itself, as rows have it."""
    return {"type": kind, "message": message, "traceback": ""}
