"""Explains the memory of an open job before it runs: bytes by field and by loop, and the savings of each remedy."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from .memory_plan import MemoryPlan, PlannedJob
from .plan import differentiated, field_rows, gradient_plan, heap_planes, heap_room, launches_of, make_plan
from .windows import COPIES, logs_bytes

NOW, SMALLEST = "now", "the smallest budget"  # of ``kernel.grad.remedies``
STEP_AND_GRADIENT = 3
"""A time step and its gradient take about three times as long as the step: what running a step again is compared with."""
PADDING = 512
"""Bytes that the space between arrays may change by from one window to the next."""


class Remedy(BaseModel):
    """One way to save bytes.

    Attributes:
        name: the change, as the user would write it.
        bytes: bytes of the trial with it.
        saves: the saved bytes.
        time: predicted time of the gradients relative to the present, from the cost model; for a budget of time steps that of the whole
            run; None if no gradient keeps states.
        how: the effect.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    bytes: int
    saves: int
    time: float | None
    how: str


class Explanation(BaseModel):
    """The memory of one trial, taken apart.

    Attributes:
        plan: bytes by kind.
        fields: every field and array with its shape, type and bytes, largest first.
        kernels: bytes that each compiled kernel keeps.
        loops: every loop that keeps states: gradient, ``line``, rows, iterations, slots, bytes (of its own; kernels share one heap).
        remedies: what would save how much.
        built_again: why the job is built again for each run, see ``Job.why_built_again``; empty: its launches are recorded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: MemoryPlan
    fields: tuple[dict[str, Any], ...] = ()
    kernels: tuple[dict[str, Any], ...] = ()
    loops: tuple[dict[str, Any], ...] = ()
    remedies: tuple[Remedy, ...] = ()
    built_again: str = ""


def explain(job: PlannedJob, arch: str | None = None) -> Explanation:
    """Take the plan of an open job apart. Compiles its kernels if ``job.machine_code``, runs none.

    Args:
        job: with the fields and kernels of ``build``.
        arch: for this backend, which need not be there; None: the program's own.

    Raises:
        OutOfMemory: nothing fits ``memory_budget``.
    """
    if job.program is None:
        return Explanation(plan=job.plan(), built_again=job.why_built_again())
    plan, room = make_plan(job, arch), heap_room(job.program, job.allocates())
    launches = differentiated(job, launches_of(job))
    heaps = [gradient_plan(kernel, args, arch, room) for kernel, args in launches]
    loops = [{"gradient": heap.kernel, **row} for heap in heaps for row in heap.rows()]
    loops.sort(key=lambda row: -row["bytes"])
    other = {} if arch is None else {"arch": arch}
    ways = [kernel.grad.remedies(*args, **other) | {NOW: heap} for (kernel, args), heap in zip(launches, heaps)]
    return Explanation(
        plan=plan,
        fields=tuple(field_rows(job)),
        kernels=tuple(kernel.to_json() for kernel in job.program.kernels()),
        loops=tuple(loops),
        remedies=tuple(sorted(_remedies(job, plan, ways) + windows_within(job, plan), key=lambda remedy: remedy.saves)),
        built_again=job.why_built_again(),
    )


def _remedies(job: PlannedJob, plan: MemoryPlan, ways: list[dict[str, Any]]) -> list[Remedy]:
    """The savings of each way of planning all gradients; ways without savings are left out."""
    rest = plan.bytes - plan.by_kind().get("adstack", 0)
    now = sum(way[NOW].seconds for way in ways)
    out = []
    for name in dict.fromkeys(name for way in ways for name in way):
        if name == SMALLEST and job.time_steps():
            continue  # a budget changes the window, too
        if plan.budget and name != SMALLEST:
            continue  # the planner would spend what they save
        heaps = [way.get(name, way[NOW]) for way in ways]
        # Under its smallest budget a gradient has the heap for itself: what others needed is given back.
        heap = max(h.bytes for h in heaps) if name == SMALLEST else sum(heap_planes(heaps).values())
        saves = plan.bytes - rest - heap
        if saves > 0:
            time = sum(h.seconds for h in heaps) / now if now else None
            out.append(Remedy(name=_title(name, rest + heap), bytes=rest + heap, saves=saves, time=time, how=_how(job, name)))
    return out


def windows_within(job: PlannedJob, plan: MemoryPlan) -> list[Remedy]:
    """The effects of budgets of a half, a quarter and a tenth on an open job with time steps; none for other jobs."""
    import qdrun as qd

    steps, kept = job.time_steps(), sum(e.bytes for e in plan.entries if e.source in ("checkpointed_steps", "logs()"))
    if steps < 3 or not job.wanted:
        return []
    state, slot = qd.ad.steps_bytes(job.state(), job.scratch())
    slot += sum(e.bytes for e in plan.entries if e.source == COPIES) // job.window
    fixed = plan.bytes - kept - job.window * slot + logs_bytes(job)
    now = steps * STEP_AND_GRADIENT + (job.steps_plan.replays if job.steps_plan else 0)
    out = []
    for part in (2, 4, 10):
        budget = plan.bytes // part
        try:
            found = qd.ad.plan_steps(steps, state, slot, budget - PADDING, fixed_bytes=fixed)
        except qd.OutOfMemory:
            continue
        out.append(_window_remedy(budget, plan.bytes, found, now))
    return out


def _window_remedy(budget: int, total: int, found: Any, now: float) -> Remedy:
    how = f"{found.windows} windows of {found.window} of {found.n} steps, {found.snapshots} snapshots, {found.replays} steps run again"
    time = (found.n * STEP_AND_GRADIENT + found.replays) / now
    return Remedy(name=f"memory_budget: {budget}", bytes=budget, saves=total - budget, time=time, how=how)


def smallest_windows(job: PlannedJob, total: int, now: Any) -> Remedy:
    """The smallest budget as a remedy.

    Args:
        job: in time steps, open with that budget.
        total: bytes of the trial as it is.
        now: the plan of its time steps as it is, None where one window holds all.
    """
    found, budget = job.steps_plan, job.program.options.memory_budget
    remedy = _window_remedy(budget, total, found, found.n * STEP_AND_GRADIENT + (now.replays if now else 0))
    return remedy.model_copy(update={"how": f"the smallest budget that works: {remedy.how}"})


def _title(name: str, total: int) -> str:
    """The remedy as one writes it into a config, or, where that has no key for it, into ``qd.init``."""
    if name == "cpu_max_num_threads=1":
        return "device: {threads: 1}"
    return f"memory_budget: {total}" if name == SMALLEST else f"qd.init({name})"


def _how(job: PlannedJob, name: str) -> str:
    if name == "cpu_max_num_threads=1":
        return "one adstack row instead of one for each thread"
    if name == SMALLEST:
        return "the smallest budget that works; any larger one is met by the fastest plan that fits"
    how = "fewer states are kept, the others are computed again"
    return how if job.time_steps() else f"{how}; a memory_budget of these bytes does it, too"
