"""Decides which tapes of a task are in on-chip memory, and the default checkpoint levels of its loops on such a device.

The on-chip memory of a thread is divided by water-filling: each loop gets up to B bytes, with the largest B that lets all live tapes fit. A
loop with a tape that fits keeps it there. The other tapes are in the heap, as long as those of the whole launch fit into the device's
cache. Beyond that, a loop has checkpoints in the heap and a segment in its on-chip share, which is both smaller and faster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isqrt

from ..ir.threads import once
from ..ir.types import PLANES
from .bounds.bounds import Trips
from .cost import LoopCost
from .layout import ON_CHIP, RowLayout
from .levels import LoopPlan, fixed_capacity, full_tape, thinning, three_levels, with_levels
from .machine import Machine
from .options import MORE_BLOCKS, REACH, LoopOptions, listed, options_of
from .sizing import LoopSizing, StackRegion

LEAST_SEGMENT = 8
"""Minimum iterations of an on-chip segment: shorter ones recompute too much."""
STEP, OVER = 8, 1
"""The slots of an on-chip segment are a multiple of ``STEP`` plus ``OVER``: the loops over them are unrolled, and a refill runs one
iteration less than the number of slots.
"""
THINNING_SEGMENTS = (64, 44, 40, 32, 24, 16, LEAST_SEGMENT)
"""Iterations of the on-chip segments of loops without a bound."""
_NOTHING = LoopPlan(0, 0, 0, 1, 1, None)


@dataclass(frozen=True)
class Placement:
    """The plans of a task's loops by number, and the names of the on-chip stacks."""

    plans: Mapping[int, LoopPlan]
    shared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PlacementInputs:
    """The inputs of a placement.

    Attributes:
        region: the loops of the task.
        trips: trip count of each loop with stacks, by number.
        rows: maximum number of rows of the task.
        machine: a device with on-chip memory.
        unknown: C1, C2, S, D1 of a loop without a bound and with a tape in the heap.
        fixed_slots: slots of a loop without a bound, set by the user; 0: thinning.
    """

    region: StackRegion
    trips: Mapping[int, Trips]
    rows: int
    machine: Machine
    unknown: tuple[int, int, int, int]
    fixed_slots: int = 0

    def fixed(self, s: LoopSizing) -> bool:
        """Whether the user has set the slots of the loop."""
        return self.trips[s.number].count is None and self.fixed_slots > 0

    def wanted(self, s: LoopSizing) -> int:
        """Slots of a complete on-chip tape, or of the longest segment of a loop without a bound."""
        count = self.trips[s.number].count
        return max(1, count) if count is not None else self.fixed_slots or THINNING_SEGMENTS[0]

    def least(self, s: LoopSizing) -> int:
        """Minimum number of slots of an on-chip tape."""
        return self.fixed_slots if self.fixed(s) else min(self.wanted(s), LEAST_SEGMENT)

    @once
    def loops(self) -> list[LoopSizing]:
        """The loops with stacks, innermost first."""
        return [s for _, _, s in sorted(((-d, s.number, s) for d, s in _deep(self.region) if s.stacks), key=lambda x: x[:2])]


def tape_of(s: LoopSizing) -> str:
    """The name of a loop's tape."""
    return next(k.name for k in s.stacks if k.kind == "tape")


def place(launch: PlacementInputs, levels: int, roomy: bool = False) -> Placement:
    """The plans of a task with that many levels.

    1: the fastest number, which is three if checkpoints of two levels exceed the device's cache.

    ``roomy``: memory is ample, so that two levels suffice.
    """
    slots = _filled(launch, launch.loops)
    kept = []
    if levels == 1:
        bounded = (s for s in launch.loops if launch.trips[s.number].count is not None)
        kept = _cached(launch, [s for s in bounded if slots.get(s.number, 0) < launch.wanted(s)])
        slots = _filled(launch, [s for s in launch.loops if s not in kept])
    plans: dict[int, LoopPlan] = {}
    for s in launch.loops:
        trips = launch.trips[s.number]
        if s in kept:
            assert trips.count is not None
            plans[s.number] = full_tape(trips.count, trips.source)
        else:
            plans[s.number] = _planned(launch, s, slots.get(s.number, 0), levels)
    shared = frozenset(tape_of(s) for s in launch.loops if s.number in slots)
    if levels == 1 and not roomy and launch.rows * _heap_bytes(launch, plans, shared) > launch.machine.cache:
        for s in launch.loops:
            less = _planned(launch, s, slots.get(s.number, 0), 3)
            if s not in kept and _far_bytes(s, less, shared) < _far_bytes(s, plans[s.number], shared):
                plans[s.number] = less
    return Placement(plans, shared)


def workers_of(launch: PlacementInputs, placement: Placement) -> int:
    """Workers of a parallel task: more than usual if every tape is on chip and the heap stays small."""
    machine, far = launch.machine, [s for s in launch.loops if tape_of(s) not in placement.shared]
    workers, row = machine.workers, machine.lanes * _heap_bytes(launch, placement.plans, placement.shared)
    while not far and 2 * workers <= machine.most and 2 * workers * row <= machine.small:
        workers *= 2
    return workers


def _heap_bytes(launch: PlacementInputs, plans: Mapping[int, LoopPlan], shared: frozenset[str] = frozenset()) -> int:
    """Bytes of a heap row. Loops without a plan have no slots."""
    words = RowLayout({n: plans.get(n, _NOTHING) for n in launch.trips}, shared).place(launch.region, {})
    return sum(n * PLANES[p] for p, n in words.items() if p != ON_CHIP)


def _far_bytes(s: LoopSizing, plan: LoopPlan, shared: frozenset[str]) -> int:
    """Bytes of one loop in a heap row."""
    return plan.words(s.bytes("ck1"), 0 if tape_of(s) in shared else s.bytes("tape"))


def placed(launch: PlacementInputs, plans: Mapping[int, LoopPlan]) -> frozenset[str]:
    """The on-chip tapes under given plans: those that fit, innermost loops first."""
    names: frozenset[str] = frozenset()
    for s in launch.loops:
        more = names | {tape_of(s)}
        only = {n: _NOTHING for n in launch.trips} | {x.number: plans[x.number] for x in launch.loops if tape_of(x) in more}
        layout = RowLayout(only, more)
        if layout.place(launch.region, {}).get(ON_CHIP, 0) <= launch.machine.shared:
            names = more
    return names


def options(
    launch: PlacementInputs, placement: Placement, fastest: Placement, costs: Mapping[int, LoopCost], many: int
) -> dict[int, LoopOptions]:
    """The plans of each loop that a budget may choose from. The placement of tapes is fixed, and no plan is larger than the fastest one.

    Args:
        launch: the inputs of the placement.
        placement: the on-chip tapes, and their largest plans.
        fastest: the plan without a limit.
        costs: the cost models of the loops.
        many: approximate number of two-level plans of a loop in the heap.
    """
    out = {}
    for s in launch.loops:
        plan, trips, cost = placement.plans[s.number], launch.trips[s.number], costs[s.number]
        if tape_of(s) in placement.shared:
            out[s.number] = _on_chip_options(plan, cost)
        elif trips.count is None or trips.count <= 1:
            out[s.number] = listed([plan], [plan.words(cost.x, cost.t)], cost, plan.source, grows=False)
        else:
            found = options_of(cost, trips.count, trips.source, launch.fixed_slots, many)
            first = plan if tape_of(s) in fastest.shared else fastest.plans[s.number]
            at = found.bytes <= max(plan.words(cost.x, cost.t), first.words(cost.x, cost.t))
            out[s.number] = replace(
                found,
                bytes=found.bytes[at],
                nanoseconds=found.nanoseconds[at],
                segments=found.segments[at],
                blocks=found.blocks[at],
                grows=False,
            )
    return out


def _on_chip_options(plan: LoopPlan, cost: LoopCost) -> LoopOptions:
    """The plan, and its variants with blocks of segments."""
    plans = [plan]
    if plan.C1 and plan.bound is not None:
        segments = -(-plan.bound // plan.S)
        plans += [three_levels(plan.bound, plan.S, r, plan.source) for r in MORE_BLOCKS.tolist() if r < segments]
    return listed(plans, [(p.C1 + p.C2) * cost.x for p in plans], cost, plans[0].source, grows=False)


def _deep(region: StackRegion, depth: int = 0) -> Iterable[tuple[int, LoopSizing]]:
    """Each loop with its nesting depth."""
    for s in region.loops:
        yield depth, s
        yield from _deep(s.inner, depth + 1)
    for pair in region.arms:
        for arm in pair:
            yield from _deep(arm, depth)


def _filled(launch: PlacementInputs, loops: Iterable[LoopSizing]) -> dict[int, int]:
    """On-chip slots by loop. Loops that would get too few get none, outer loops first."""
    left = [s for s in loops if launch.least(s) * s.bytes("tape") <= launch.machine.shared]
    while left:
        slots = _level(launch, left)
        tight = [s for s in left if slots[s.number] < launch.least(s)]
        if not tight:
            return slots
        outermost = max(map(launch.loops.index, tight))
        left.remove(launch.loops[outermost])
    return {}


def _level(launch: PlacementInputs, loops: list[LoopSizing]) -> dict[int, int]:
    """On-chip slots by loop, if each gets at most B bytes; B is the largest number with which all fit."""
    names = {tape_of(s) for s in loops}

    def slots(share: int) -> dict[int, int]:
        return {s.number: min(launch.wanted(s), share // s.bytes("tape")) for s in loops}

    def fits(share: int) -> bool:
        plans = {n: _NOTHING for n in launch.trips} | {n: replace(_NOTHING, S=k) for n, k in slots(share).items()}
        return RowLayout(plans, names).place(launch.region, {}).get(ON_CHIP, 0) <= launch.machine.shared

    return slots(bisect_left(range(launch.machine.shared + 1), True, key=lambda share: not fits(share)) - 1)


def _cached(launch: PlacementInputs, loops: list[LoopSizing]) -> list[LoopSizing]:
    """The loops that keep complete tapes in the heap: as many as the device's cache holds, smaller ones first."""
    left = loops
    while left:
        plans = {s.number: replace(_NOTHING, S=launch.wanted(s)) for s in left}
        if launch.rows * _heap_bytes(launch, plans) <= launch.machine.cache:
            break
        size = {s.number: launch.wanted(s) * s.bytes("tape") for s in left}
        left = [s for s in left if 2 * size[s.number] <= max(size.values())]
    return left


def _planned(launch: PlacementInputs, s: LoopSizing, slots: int, levels: int) -> LoopPlan:
    """The plan of a loop with that many on-chip slots; 0: its tape is in the heap."""
    trips = launch.trips[s.number]
    k, source = trips.count, trips.source
    if k is None and launch.fixed_slots:
        return fixed_capacity(launch.fixed_slots, f"ad_stack_size: {source}")
    if k is None:
        source = f"thinning: {source}"
        return (
            _thinning(next(n for n in THINNING_SEGMENTS if n <= slots), source)
            if slots
            else thinning(*launch.unknown, source=source)
        )
    if slots >= k:
        return full_tape(k, source)
    if not slots:
        return with_levels(k, max(2, levels), None, s.bytes("ck1"), s.bytes("tape"), source)
    return with_levels(k, max(2, levels), _even(slots), source=source)


def _even(slots: int) -> int:
    return (slots - OVER) // STEP * STEP + OVER if slots > STEP else slots


def _thinning(segment: int, source: str) -> LoopPlan:
    """The fewest checkpoints for ``REACH`` iterations with segments of that length."""
    blocks = -(-(isqrt(-(-REACH // segment) - 1) + 1) // 8) * 8
    return thinning(-(-REACH // (segment * blocks)), blocks - 1, segment, segment * blocks // 8, source)
