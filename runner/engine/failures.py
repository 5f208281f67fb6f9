"""Decides what happens to a trial after a failed attempt, by failure class. Pure.

Infrastructure (a lost machine, device, ledger): tried again. Out of memory: at the next smaller point of its curve or, at the last one,
with half as many bytes more; the last try with more than its fastest point, alone on its device. Crash: tried again alone, in the end
poisoned. Timeout, the job's own error, numbers that are not finite: the end. Only attempts that are charged count; those whose guilt is
not known are tried again alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..packing import Claim
from ..store.attempts import Failure
from ..value_columns import Places

GROWTH, SPARE = 1.5, 16
STATUS = {"crash": "poisoned", "cancelled": "cancelled"}


@dataclass(frozen=True)
class Rules:
    """The limits of a run.

    Attributes:
        infra, oom, crash: retries of a trial by class.
        timeout_s: seconds of a trial from its start; None: any.
        allowed: trials that may fail before the run is given up; None: all.
        grace_s: from asking a worker to stop until it is killed.
        finish_s: how long running trials may still take after the first Ctrl-C, or when too many have failed.
        start_s: how long a launch may take until its worker says that it has begun.
    """

    infra: int = 5
    oom: int = 2
    crash: int = 2
    timeout_s: float | None = None
    allowed: int | None = None
    grace_s: float = 2.0
    finish_s: float = float("inf")
    start_s: float = 300.0

    def retries(self, failure: Failure) -> int:
        """The number of retries of a trial after failures of this class."""
        known = {Failure.infrastructure: self.infra, Failure.out_of_memory: self.oom, Failure.crash: self.crash}
        return known.get(failure, 0)


@dataclass(frozen=True)
class Decision:
    """The decision about a trial after a charged failure.

    ``status``: its final status, None if it is retried. ``alone``: it runs alone on its device. ``step``: with fewer bytes, or with a
    larger claim if there is no smaller point.
    """

    status: str | None
    alone: bool = False
    step: bool = False


def decide(failure: Failure, charged: Mapping[str, int], rules: Rules) -> Decision:
    """Judge a failed attempt; ``charged`` counts the failures of the trial with this one."""
    count, retries = charged[failure], rules.retries(failure)
    if count > retries:
        return Decision(STATUS.get(failure, "failed"))
    if failure is Failure.out_of_memory:
        return Decision(None, alone=count == retries, step=True)
    return Decision(None, alone=failure is Failure.crash)


def halves(trials: Places) -> tuple[Places, ...]:
    """A batch in two."""
    middle = (len(trials) + 1) // 2
    return trials[:middle], trials[middle:]


def smaller(claims: Mapping[str, Claim], held: int, most: Mapping[str, int] | None = None) -> Mapping[str, Claim]:
    """Claims after an attempt with ``held`` bytes ran out of memory: the points below, where some class has one, else larger ones.

    ``most``: bytes that the largest device of a class can give: a claim grows to nearly as many, not to what nothing could ever run.
    """
    tried = [k for claim in claims.values() for k, point in enumerate(claim.points) if point.bytes == held]
    below = {kind: _below(claim, held, min(tried, default=None)) for kind, claim in claims.items()}
    if any(claim is not None for claim in below.values()):
        return {kind: claim or claims[kind] for kind, claim in below.items()}
    return {kind: _grown(claim, (most or {}).get(kind)) for kind, claim in claims.items()}


def last(curves: Mapping[str, Claim], held: int, most: Mapping[str, int] | None = None) -> Mapping[str, Claim]:
    """Claims of the last try after an attempt with ``held`` bytes: larger than the fastest point of the curves and than what it had."""
    whole = {kind: Claim.of([(max(held, claim.points[0].bytes), 1.0)], claim.seconds) for kind, claim in curves.items()}
    return {kind: _grown(claim, (most or {}).get(kind), held) for kind, claim in whole.items()}


def _below(claim: Claim, held: int, tried: int | None) -> Claim | None:
    """The points after the failed one, by position in the curve: on another class the same position has other bytes."""
    points = [point for k, point in enumerate(claim.points) if (point.bytes < held if tried is None else k > tried)]
    if not points:
        return None
    seconds = claim.seconds and claim.seconds * points[0].time
    return Claim.of([(point.bytes, point.time) for point in points], seconds)


def _grown(claim: Claim, most: int | None, least: int | None = None) -> Claim:
    def grown(held: int) -> int:
        wanted = max(1, int(held * GROWTH))
        # of all bytes of a device, others may take some before they are all free
        return wanted if most is None else max(held if least is None else least, min(wanted, most - most // SPARE))

    return Claim.of([(grown(point.bytes), point.time) for point in claim.points], claim.seconds)


def counted(error: Mapping[str, str], attempts: int) -> dict[str, str]:
    """An error that ended a trial after several attempts, with their number on its first line."""
    first, *rest = error.get("message", "").splitlines() or [""]
    return {**error, "message": "\n".join([f"{first} ({attempts} attempt{'s' if attempts != 1 else ''})", *rest])}
