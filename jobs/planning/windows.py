"""Jobs in time steps under a memory budget: how many steps the arrays hold, and how many states are kept for the way back.

The bytes of such a job are a + b W for a window of W steps: b is the size of a slot of its arrays, and the plan of the job with a window of
one step says a, the heap of the gradients included. ``qd.ad.plan_steps`` says which window and how many snapshots are fastest within the
budget. A build with that window is measured, as the padding between arrays, or arrays that are no slots, may take more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .memory_plan import MemoryPlan, PlanEntry, PlannedJob
from .plan import differentiated, gradient_plan, heap_planes, launches_of

HEAP_SHARE = 4
"""The heap of the gradients gets at most 1 / HEAP_SHARE of the budget, if checkpoints within the kernels make that possible."""

COPIES = "simulate()"
"""The source of a plan's line for copies of temporaries and of states of fixed points."""

NEARLY = 1.05
"""A job that seems to need at most so much of its budget without windows is built and planned without."""

_known: dict[tuple[object, ...], Any] = {}
_MOST = 1024


def plan_window(
    job: PlannedJob,
    budget: int,
    where: tuple[object, ...],
    probe: Callable[[], AbstractContextManager[Any]],
    arch: str | None = None,
) -> Any:
    """The ``StepsPlan`` of a job: the fastest that fits ``budget`` bytes. Plans of jobs of one shape are made once.

    Args:
        job: not open.
        budget: bytes of the whole program.
        where: backend, threads and device of the program.
        probe: opens the job, built with its ``window``, in a program without a budget.
        arch: plan for this backend; None: for the program's own.

    Raises:
        OutOfMemory: nothing fits; names the smallest budget.
    """
    shape = json.dumps(job.shape_key(job.params), sort_keys=True, default=str)
    key = type(job), shape, job.wanted, budget, where, arch
    if key not in _known:
        if len(_known) >= _MOST:
            _known.clear()
        compiles, job.machine_code = job.machine_code, False  # programs of other windows: their kernels are never launched
        try:
            _known[key] = _plan(job, budget, probe, arch)
        finally:
            job.machine_code = compiles
    return _known[key]


@dataclass(frozen=True)
class _Sizes:
    """Bytes of a job with a window of one step: what ``build`` allocates, one slot of state, one slot of everything, all without the heap
    of the gradients; copies of what the steps write elsewhere; and heaps to try, the fastest first.
    """

    built: int
    state: int
    slot: int
    total: int
    logs: int
    heaps: tuple[int, ...]


def _plan(job: PlannedJob, budget: int, probe: Callable[[], AbstractContextManager[Any]], arch: str | None) -> Any:
    import qdrun as qd

    sizes = _measure(job, budget, probe, arch)
    steps = job.time_steps()
    if sizes.total + sizes.heaps[0] + (steps - 1) * sizes.slot <= budget * NEARLY:
        job.window = steps
        with probe():
            if job.plan(arch=arch).bytes <= budget:
                return qd.ad.plan_steps(steps, sizes.state, sizes.slot)
    for heap in sizes.heaps[:-1]:
        try:
            return _with_heap(job, budget, sizes, heap, probe)
        except qd.OutOfMemory:
            continue
    try:
        return _with_heap(job, budget, sizes, sizes.heaps[-1], probe)
    except qd.OutOfMemory as error:  # in the words of a config
        raise qd.OutOfMemory(str(error).replace("do: budget=", "do: memory_budget: "), error.smallest) from None


def _measure(job: PlannedJob, budget: int, probe: Callable[[], AbstractContextManager[Any]], arch: str | None) -> _Sizes:
    import qdrun as qd

    job.window = 1
    with probe():
        built = _held(job)
        state, slot = qd.ad.steps_bytes(job.state(), job.scratch())
        plan = job.plan(arch=arch)
        heap = plan.by_kind().get("adstack", 0)
        share = budget // HEAP_SHARE
        heaps = [_heap_within(job, share, arch) if heap > share else heap] + ([_heap_within(job, 0, arch)] if heap else [])
        logs, temporary = logs_bytes(job), bool(job.temporaries())
    if temporary:
        slot += _copies_of_a_step(job, plan, probe, arch)
    return _Sizes(built, state if job.wanted else 0, slot, plan.bytes - heap, logs, tuple(heaps))


def _copies_of_a_step(
    job: PlannedJob, one: MemoryPlan, probe: Callable[[], AbstractContextManager[Any]], arch: str | None
) -> int:
    """Bytes of copies that one more step in the window costs, given the plan of a window of one step."""
    job.window = 2
    with probe():
        return copies_bytes(job.plan(arch=arch)) - copies_bytes(one)


def copies_bytes(plan: MemoryPlan) -> int:
    """Bytes of the copies that gradients of implicit steps keep."""
    return sum(entry.bytes for entry in plan.entries if entry.source == COPIES)


def _with_heap(job: PlannedJob, budget: int, sizes: _Sizes, heap: int, probe: Callable[[], AbstractContextManager[Any]]) -> Any:
    """The plan beside a heap of so many bytes."""
    import qdrun as qd

    padding = 0
    while True:
        fixed = sizes.total - sizes.slot + sizes.logs + heap
        found = qd.ad.plan_steps(job.time_steps(), sizes.state, sizes.slot, budget, fixed_bytes=fixed + padding)
        job.window = found.window
        with probe():
            beyond = _held(job) - sizes.built - (found.window - 1) * sizes.slot
        if found.bytes - padding + beyond <= budget:
            return found
        padding = max(padding + 1, beyond)


def _held(job: PlannedJob) -> int:
    """The allocations of ``build``."""
    job.program.materialize()
    return job.program.device.used_bytes


def _heap_within(job: PlannedJob, budget: int, arch: str | None) -> int:
    """Bytes of the gradients' heap with checkpoints that fit a budget; as few as possible where nothing does."""
    import qdrun as qd

    heaps = []
    for kernel, args in differentiated(job, launches_of(job)):
        try:
            heaps.append(gradient_plan(kernel, args, arch, budget))
        except qd.OutOfMemory as error:
            if error.smallest is None:
                raise
            heaps.append(gradient_plan(kernel, args, arch, error.smallest))
    return sum(heap_planes(heaps).values())


def logs_bytes(job: PlannedJob) -> int:
    """Bytes of the copies that the gradient of several windows keeps of what the steps write outside of the window."""
    if not job.wanted:
        return 0
    arrays = [leaf for array in job.logs() for leaf in (array.leaves() if hasattr(array, "leaves") else [array])]
    return sum(array._form.nbytes for array in arrays)


def snapshots_of(job: PlannedJob) -> list[PlanEntry]:
    """The lines of a memory plan for what the time steps of an open job keep in a run."""
    plan, logs = job.steps_plan, logs_bytes(job)
    how = (
        f"({plan.snapshots} + the final one) x {plan.state_bytes} of state; {plan.windows} windows of {plan.window} of"
        f" {plan.n} steps, {plan.replays} run again"
    )
    entries = [PlanEntry(kind="snapshots", bytes=plan.snapshot_bytes, source="checkpointed_steps", formula=how)]
    if logs:
        entries.append(
            PlanEntry(kind="snapshots", bytes=logs, source="logs()", formula="copies of what the steps write elsewhere")
        )
    return entries


__all__ = ["COPIES", "logs_bytes", "plan_window", "snapshots_of"]
