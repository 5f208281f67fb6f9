"""What a trial asks the ledger for: its claim by class of devices, from the memory plan of its shape.

Without ``memory_budget`` a claim has one point, the plan; with one in bytes, the plan within it. With ``auto`` it is a curve: the planner
is asked what fewer bytes for the states of the gradients, or for time steps, would cost in time; a worker gets the bytes of the point that
was granted as its ``memory_budget``. Relative times are those of the gradients, from the planner's cost model: they rank points, and are
not promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...jobs.base import Job, MemoryPlan
from ...jobs.plan import gradient_plan, heap_planes
from ..packing import Claim

SHARES = (2, 4, 10)
"""The parts of the heap, and of the whole in time steps, that are tried."""
Points = tuple[tuple[int, float], ...]


def curve(job: Job[Any], plan: MemoryPlan, arch: str | None = None) -> Points:
    """The points of an open job without a budget: (bytes, relative time), the plan itself first."""
    full = (plan.bytes, 1.0)
    if job.program is None or not job.wanted:
        return (full,)
    explained = job.explain(arch=arch) if job.time_steps() > 2 else None
    if explained is not None:
        kept = [r for r in explained.remedies if r.time is not None and r.name.startswith("memory_budget: ")]
        return (full, *((remedy.bytes, max(1.0, remedy.time or 1.0)) for remedy in kept))
    return (full, *_heaps(job, plan, arch))


def _heaps(job: Job[Any], plan: MemoryPlan, arch: str | None) -> Iterable[tuple[int, float]]:
    """Fewer bytes for the states that gradients keep."""
    launches = list(job.launches())
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
    """The claim of a trial. One that could not be planned claims nothing: it will say itself what is wrong with it.

    Args:
        plan: of its shape.
        points: of ``curve``; without them the plan is the only point.
        seconds: that it takes at the most, where that is known.
    """
    return Claim.of(points or ((plan.bytes if plan is not None else 0, 1.0),), seconds)


class Claims:
    """The claims of all trials of a run: one mapping object for each shape, so that the packer sees them as equal.

    Args:
        shapes: trials of each shape, with the claim of one of them by class of devices.
    """

    def __init__(self, shapes: Sequence[tuple[Sequence[str], Mapping[str, Claim]]]) -> None:
        self._of = {name: index for index, (names, _) in enumerate(shapes) for name in names}
        self._claims = [claims for _, claims in shapes]
        self._batches: dict[tuple[int, int], Mapping[str, Claim]] = {}

    def __call__(self, batch: tuple[str, ...]) -> Mapping[str, Claim]:
        """The claims of a batch: so many times the bytes of its first trial."""
        shape, size = self._of[batch[0]], len(batch)
        if size == 1:
            return self._claims[shape]
        if (shape, size) not in self._batches:
            self._batches[shape, size] = {kind: times(claim, size) for kind, claim in self._claims[shape].items()}
        return self._batches[shape, size]

    def fastest(self, trial: str, kind: str) -> int | None:
        """Bytes of the fastest point of a trial; None where it has no claim for this class."""
        claim = self._claims[self._of[trial]].get(kind)
        return None if claim is None else claim.points[0].bytes


def times(claim: Claim, size: int) -> Claim:
    """The claim of so many equal trials in one launch."""
    return Claim.of([(point.bytes * size, point.time) for point in claim.points], claim.seconds)


__all__ = ["Claims", "claim_of", "curve", "times"]
