"""HeapPlan: the memory of a gradient launch, to the byte, before it runs.

bytes = sum over planes of max over tasks of rows * words, where the words of a row are
slots(K, L, S) * width, summed over loops that are live together (see ``docs/adstack.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..ir.nodes import Loc
from ..ir.types import PLANES
from .bounds import Host, max_trips
from .levels import LoopPlan, fixed_capacity, full_tape, thinning, with_levels
from .machine import Machine
from .rows import rows_of
from .sizing import LoopSizing, Region, TaskSizing

UNKNOWN_TRIPS = (64, 63, 1024)  # C1, C2, S of a loop whose count only running can tell: 4,194,304 iterations


@dataclass(frozen=True)
class PlannedLoop:
    """One loop of a plan: its parameters, where it stands, and words of one row that its stacks take."""

    number: int
    plan: LoopPlan
    loc: Loc | None
    row_bytes: int


@dataclass(frozen=True)
class TaskPlan:
    """One task: ``rows`` adstack rows of ``words[plane]`` words. ``params`` go to the launch as they are."""

    position: int
    name: str
    rows: int
    rows_source: str
    parallel: bool
    loops: tuple[PlannedLoop, ...]
    words: Mapping[str, int]
    params: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Bytes of the heap while this task runs."""
        return sum(self.rows * n * PLANES[p] for p, n in self.words.items())


@dataclass(frozen=True)
class HeapPlan:
    """The heap of one gradient launch. Its tasks run one after another on the same heap."""

    kernel: str
    tasks: tuple[TaskPlan, ...]

    @property
    def row_stride(self) -> dict[str, int]:
        """Words from one row to the next, by plane. A serial task has one row and needs no stride."""
        return {p: max((t.words.get(p, 0) for t in self.tasks if t.parallel), default=0) for p in PLANES}

    @property
    def planes(self) -> dict[str, int]:
        """Bytes of each plane."""
        stride = self.row_stride

        def plane_words(t: TaskPlan, p: str) -> int:
            return t.rows * stride[p] if t.parallel else t.words.get(p, 0)

        return {p: size * max((plane_words(t, p) for t in self.tasks), default=0) for p, size in PLANES.items()}

    @property
    def bytes(self) -> int:
        """What the launch allocates."""
        return sum(self.planes.values())

    def rows(self) -> list[dict[str, object]]:
        """The plan as table rows: one a loop with stacks, with its slots, its bytes and where its bound comes from."""
        out: list[dict[str, object]] = []
        for t in self.tasks:
            for p in t.loops:
                out.append(
                    {
                        "task": t.name,
                        "line": f"{p.loc.file}:{p.loc.line}" if p.loc else "",
                        "rows": t.rows,
                        "rows_from": t.rows_source,
                        "bound": p.plan.bound,
                        "bound_from": p.plan.source,
                        "levels": p.plan.levels,
                        "segment": p.plan.S,
                        "row_bytes": p.row_bytes,
                        "bytes": t.rows * p.row_bytes,
                    }
                )
        return out


@dataclass(frozen=True)
class PlanOptions:
    """``levels``: checkpoint levels of loops with a known bound. ``choose`` overrides every loop (tests)."""

    machine: Machine
    levels: int = 1
    unknown: tuple[int, int, int] = UNKNOWN_TRIPS
    fixed_slots: int = 0
    choose: Callable[[LoopSizing, int | None, str], LoopPlan] | None = field(default=None, compare=False)


def make_plan(kernel: str, tasks: tuple[TaskSizing, ...], host: Host, options: PlanOptions) -> HeapPlan:
    """Plan a launch. Deterministic; touches no device and runs nothing."""
    return HeapPlan(kernel, tuple(_plan_task(t, host, options) for t in tasks))


def _plan_task(task: TaskSizing, host: Host, options: PlanOptions) -> TaskPlan:
    loops = task.region.all_loops()
    plans = {s.number: _plan_loop(s, host, options) for s in loops if s.stacks}
    layout = _Layout(plans)
    words = layout.place(task.region, {})
    params: dict[str, int] = dict(layout.offsets)
    for number, p in plans.items():
        params |= {f"C1.{number}": p.C1, f"C2.{number}": p.C2, f"S.{number}": p.S, f"D1.{number}": p.D1}
    planned = tuple(
        PlannedLoop(s.number, plans[s.number], s.range.loc, _row_bytes(s, plans[s.number])) for s in loops if s.stacks
    )
    if not any(words.values()):
        return TaskPlan(task.position, task.name, 0, "no stack", task.parallel, planned, words, params)
    rows = rows_of(task, host, options.machine)
    return TaskPlan(task.position, task.name, rows.count, rows.source, task.parallel, planned, words, params)


def _plan_loop(s: LoopSizing, host: Host, options: PlanOptions) -> LoopPlan:
    trips = max_trips(s.range, s.nest, host)
    if options.choose:
        return options.choose(s, trips.count, trips.source)
    if trips.count is None and options.fixed_slots:
        return fixed_capacity(options.fixed_slots, f"ad_stack_size: {trips.source}")
    if trips.count is None:
        return thinning(*options.unknown, source=f"thinning: {trips.source}")
    if options.levels == 1:
        return full_tape(trips.count, trips.source)
    return with_levels(trips.count, options.levels, None, s.words("ck1"), s.words("tape"), trips.source)


def _row_bytes(s: LoopSizing, p: LoopPlan) -> int:
    return sum(p.slots(k.kind) * n * PLANES[plane] for k in s.stacks for plane, n in k.widths)


class _Layout:
    """Places the stacks of a region in a row. Siblings are side by side; what lies inside their bodies shares one space."""

    def __init__(self, plans: Mapping[int, LoopPlan]) -> None:
        self.plans = plans
        self.offsets: dict[str, int] = {}

    def place(self, region: Region, base: Mapping[str, int]) -> dict[str, int]:
        """Place a region from ``base`` on; returns the first free word of each plane."""
        own = dict(base)
        self._place_stacks(region, own)
        end = dict(own)
        for inner in self._inner(region):
            _raise_to(end, self.place(inner, own))
        return end

    def _place_stacks(self, region: Region, at: dict[str, int]) -> None:
        """The stacks of a region's loops, one after another; the two arms of an ``if`` overlap."""
        for loop in region.loops:
            for stack in loop.stacks:
                slots = self.plans[loop.number].slots(stack.kind)
                for plane, width in stack.widths:
                    self.offsets[f"{stack.name}.{plane}"] = at.get(plane, 0)
                    at[plane] = at.get(plane, 0) + slots * width
        for pair in region.arms:
            ends = []
            for arm in pair:
                here = dict(at)
                self._place_stacks(arm, here)
                ends.append(here)
            for end in ends:
                _raise_to(at, end)

    def _inner(self, region: Region) -> list[Region]:
        out = [loop.inner for loop in region.loops]
        for pair in region.arms:
            for arm in pair:
                out += self._inner(arm)
        return out


def _raise_to(target: dict[str, int], other: Mapping[str, int]) -> None:
    for plane, words in other.items():
        target[plane] = max(target.get(plane, 0), words)
