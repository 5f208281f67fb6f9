"""The request of a trial to the ledger: its claim by device class, from the memory plan of its shape.

Without ``memory_budget`` a claim has one point, the plan; with one in bytes, the plan within it. With ``auto`` it is a curve: the planner
is asked what fewer bytes for the states of the gradients, or for time steps, would cost in time; a worker gets the bytes of the point that
was granted as its ``memory_budget``. Relative times are those of the gradients, from the planner's cost model: they rank points, and are
not promised. Before a run begins, ``Claims.settle`` finds out on virtual time which points the trials are to ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...jobs.base import Job, MemoryPlan
from ...jobs.planning.explain import windows_within
from ...jobs.planning.plan import differentiated, gradient_plan, heap_planes, launches_of
from ..packing import Claim, DeviceSpec, Forecast, Placement, Pool, Request, simulate
from ..value_columns import Places, group_numbers

SHARES = (2, 4, 10)
"""The parts of the heap, and of the whole in time steps, that are tried."""
MOST_FORECAST = 2000
"""Trials whose end is predicted in several ways before a run begins; of more, every so manieth."""
GAIN = 0.95
"""Giving up the fastest points must bring so much: times of points are a model's, and so are those of trials."""
Points = tuple[tuple[int, float], ...]


def curve(job: Job[Any], plan: MemoryPlan, arch: str | None = None) -> Points:
    """The points of an open job without a budget: (bytes, relative time), the plan itself first. Compiles nothing."""
    full = (plan.bytes, 1.0)
    if job.program is None or not job.wanted:
        return (full,)
    if job.time_steps() > 2:
        return (full, *((less.bytes, max(1.0, less.time)) for less in windows_within(job, plan) if less.time is not None))
    return (full, *_heaps(job, plan, arch))


def _heaps(job: Job[Any], plan: MemoryPlan, arch: str | None) -> Iterable[tuple[int, float]]:
    """Fewer bytes for the states that gradients keep."""
    launches = differentiated(job, launches_of(job))
    heaps = [gradient_plan(kernel, args, arch, None) for kernel, args in launches]
    whole, seconds = sum(heap_planes(heaps).values()), sum(heap.seconds for heap in heaps)
    if not whole or not seconds:
        return
    for share in SHARES:
        try:
            less = [gradient_plan(kernel, args, arch, whole // share) for kernel, args in launches]
        except MemoryError:
            return
        held = sum(heap_planes(less, whole // share).values())
        yield plan.bytes - whole + held, max(1.0, sum(heap.seconds for heap in less) / seconds)


def claim_of(plan: MemoryPlan | None, points: Points = (), seconds: float | None = None) -> Claim:
    """The claim of a trial. A trial without a plan claims nothing: it will fail with its own error.

    Args:
        plan: the plan of its shape.
        points: the points of ``curve``; without them the plan is the only point.
        seconds: its maximum duration, if known.
    """
    return Claim.of(points or ((plan.bytes if plan is not None else 0, 1.0),), seconds)


class Claims:
    """The claims of all trials of a run: one mapping object for each shape, so that the packer sees them as equal.

    Args:
        shapes: trials of each shape, with the claim of one of them by class of devices.
    """

    def __init__(self, shapes: Sequence[tuple[Places, Mapping[str, Claim]]]) -> None:
        self._of = group_numbers([places for places, _ in shapes])
        self._plans = [claims for _, claims in shapes]
        self._claims = list(self._plans)

    def __call__(self, trial: int) -> Mapping[str, Claim]:
        """The claims of a trial that runs alone."""
        return self._claims[self._of[trial]]

    def curves(self, trial: int) -> Mapping[str, Claim]:
        """All points of a trial, also those that ``settle`` has given up."""
        return self._plans[self._of[trial]]

    def fastest(self, trial: int, kind: str) -> int | None:
        """Bytes of the plan of a trial without a budget; None where it has no claim for this class."""
        claim = self._plans[self._of[trial]].get(kind)
        return None if claim is None else claim.points[0].bytes

    def settle(self, trials: Places, pools: Sequence[Pool], devices: Sequence[DeviceSpec]) -> int | None:
        """Take the claims with which these trials are predicted to end first, see ``choose``; returns what that gives."""
        if all(len(claim.points) == 1 for claims in self._claims for claim in claims.values()):
            return None
        step = -(-len(trials) // MOST_FORECAST) or 1
        wanted = [Request(str(place), self(place), 0.0) for place in trials[::step]]
        _, level = choose(wanted, pools, devices)
        if level:
            self._claims = [lowered(claims, level) for claims in self._claims]
        return level


def choose(requests: Sequence[Request], pools: Sequence[Pool], devices: Sequence[DeviceSpec]) -> tuple[Forecast, int]:
    """On virtual time: which claims of these requests end first, and when.

    Tried are the fastest points that fit (0), and those of curves without their first points (1, 2, ..): where bytes bind, many small
    trials at once may end before a few large ones. The first of equal ones is taken.
    """
    best, level = simulate(requests, pools, devices), 0
    most = max((len(claim.points) for request in requests for claim in request.claims.values()), default=1)
    for lower in range(1, most):
        found = _simulate_lowered(requests, pools, devices, lower)
        if found.finish < best.finish * GAIN:
            best, level = found, lower
    return best, level


def _simulate_lowered(
    requests: Sequence[Request], pools: Sequence[Pool], devices: Sequence[DeviceSpec], level: int
) -> Forecast:
    kinds = {device.id: device.kind for device in devices}
    made: dict[int, Mapping[str, Claim]] = {}
    first: dict[tuple[int, str], float] = {}  # seconds of the first point that is left
    less = []
    for request in requests:
        key = id(request.claims)
        if key not in made:
            made[key] = claims = lowered(request.claims, level)
            for kind, claim in request.claims.items():
                first[id(claims), kind] = (claim.seconds or 1.0) * claim.points[min(level, len(claim.points) - 1)].time
        less.append(replace(request, claims=made[key]))

    def takes(placement: Placement) -> float:
        return first[id(placement.request.claims), kinds[placement.device]] * placement.point.time

    return simulate(less, pools, devices, takes=takes)


def lowered(claims: Mapping[str, Claim], level: int) -> Mapping[str, Claim]:
    """Claims without their ``level`` fastest points; the last one is kept. Times are those of the first that is left."""
    out = {}
    for kind, claim in claims.items():
        rest = claim.points[min(level, len(claim.points) - 1) :]
        seconds = None if claim.seconds is None else claim.seconds * rest[0].time
        out[kind] = Claim.of([(point.bytes, point.time) for point in rest], seconds)
    return out


__all__ = ["Claims", "choose", "claim_of", "curve", "lowered"]
