"""Plans the heap of a gradient launch from its sizing, its arguments and the machine, optionally within a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import OutOfMemory
from ..ir.nodes import ArgDecl, Place
from ..ir.threads import once
from ..ir.types import PLANES
from .bounds.bounds import max_trips
from .bounds.queries import HostInputs
from .bounds.sizeexpr import SizeExpr
from .cost import GUESSED_TRIPS, GUESSED_WHILE, TaskCost, task_cost
from .heap_plan import HeapPlan, PlannedLoop, TaskPlan
from .layout import ON_CHIP, RowLayout
from .levels import LoopPlan, fixed_capacity, full_tape, thinning, with_levels
from .machine import Machine
from .options import FASTEST_THINNING, SMALLEST_THINNING, LoopOptions
from .placement import Placement, PlacementInputs, place, placed, workers_of
from .placement import options as placed_options
from .rows import TINY_STAKE, RowDemand, Rows, demand_of, iterations_of
from .search import Ask, TaskChoice, TooSmall, fit
from .sizing import LoopSizing, StackSizing, TaskSizing
from .work import Inner

if TYPE_CHECKING:
    import numpy as np


LANES_BYTES = 1 << 18
"""Bytes of the rows of a worker that fit into the cache of a core.

Up to them, a launch without a budget runs all of its lanes. Beyond them, more checkpoint levels in as many lanes take fewer bytes than one
lane with one level, and little more time.
"""


@dataclass(frozen=True)
class PlanOptions:
    """The options of a plan. ``levels``: checkpoint levels of loops with a known bound, without a ``budget`` (bytes of the heap).

    ``narrow``: numbers of the tasks that run one lane. ``spare``: bytes that the rows of a worker may take to run more lanes, without a
    budget. ``choose`` overrides the plan of every loop (for tests).
    """

    machine: Machine
    levels: int = 1
    unknown: tuple[int, int, int, int] = SMALLEST_THINNING
    fixed_slots: int = 0
    budget: int | None = None
    narrow: frozenset[int] = frozenset()
    spare: int = LANES_BYTES
    choose: Callable[[LoopSizing, int | None, str], LoopPlan] | None = field(default=None, compare=False)


def make_plan(kernel: str, tasks: tuple[TaskSizing, ...], host: HostInputs, options: PlanOptions) -> HeapPlan:
    """Plan a launch. Deterministic; runs nothing and uses no device.

    Raises:
        OutOfMemory: the budget is too small; names the smallest sufficient one, and the loop with the most bytes.
    """
    asked = [_Asked(t, host, options) for t in tasks]
    plan = HeapPlan(
        kernel, tuple(a.plan(a.fastest() if options.budget is not None else a.roomy(options.levels)) for a in asked)
    )
    if options.budget is None or plan.bytes <= options.budget or options.choose:
        return plan
    keeps = [a for a in asked if a.stateful]

    def planned(choices: list[TaskChoice]) -> HeapPlan:
        chosen = {a.task.position: c for a, c in zip(keeps, choices)}
        return HeapPlan(kernel, tuple(a.plan(chosen.get(a.task.position) or a.usual(1)) for a in asked))

    # The search estimates some bytes and thins its lists, so a plan with one level for all loops may be better.
    lanes = (0, 1) if options.machine.fewer else (0,)
    simple = [HeapPlan(kernel, tuple(a.plan(a.usual(n, some)) for a in asked)) for n in (1, 2, 3) for some in lanes]
    fits = [p for p in simple if p.bytes <= options.budget]
    try:
        found = fit([a.ask() for a in keeps], options.budget, options.fixed_slots, lambda choices: planned(choices).bytes)
        fits.insert(0, planned(found))
    except TooSmall as e:
        if not fits:
            least = min((planned(e.choices), *simple), key=lambda p: p.bytes)
            raise _refusal(least, options.budget) from None
    return min(fits, key=lambda p: p.seconds)


class _NoLaunch:
    """A host without any knowledge of the launch."""

    def scalar(self, arg: ArgDecl) -> int | float:
        raise LookupError

    def extent(self, arg: ArgDecl, axis: int) -> int:
        raise LookupError

    def array(self, place: Place) -> np.ndarray:
        raise LookupError


def gate_leaves(tasks: tuple[TaskSizing, ...], options: PlanOptions) -> list[SizeExpr]:
    """The leaves of row predicates that plans read of a launch, see ``RowPredicate.leaves``.

    Predicates that are never evaluated have none.
    """
    out: list[SizeExpr] = []
    for task in tasks:
        if task.gate is None or not task.gate.tests:
            continue
        try:
            small = _Asked(task, _NoLaunch(), options).stake < TINY_STAKE
        except LookupError:  # depends on the launch
            small = False
        if not small:
            out += task.gate.leaves()
    return out


class _Asked:
    """One task of a launch: the known facts about its loops, and its plans."""

    def __init__(self, task: TaskSizing, host: HostInputs, options: PlanOptions) -> None:
        if options.machine.side_by_side > 1 and (task.position in options.narrow or not task.parallel):
            options = replace(options, machine=replace(options.machine, lanes=1, width=1, fewer=False))
        self.task, self._host, self._options = task, host, options
        self._loops = task.region.all_loops()
        self.stateful = [s for s in self._loops if s.stacks]
        self._trips = {s.number: max_trips(s.range, s.nest, host) for s in self._loops}

    @once
    def cost(self) -> TaskCost:
        """The task's cost model."""
        trips = {n: t.count for n, t in self._trips.items()}
        return task_cost(self.task, max(1, self.demand.iterations or 1), trips, self._count)

    def _count(self, inner: Inner) -> int:
        if isinstance(inner, int):
            known = self._trips[inner].count
            return GUESSED_WHILE if known is None else known
        known = None if inner is None else max_trips(inner, (), self._host).count
        return GUESSED_TRIPS if known is None else known

    @property
    def stake(self) -> int:
        """Bytes of the rows of all workers with one level: every state on the tape."""
        usual = self._with(1, self._options.machine.lanes)
        words = RowLayout(usual.plans, usual.shared).place(self.task.region, {})
        words.pop(ON_CHIP, None)
        return (self._options.machine.rows if self.task.parallel else 1) * sum(n * PLANES[p] for p, n in words.items())

    @once
    def demand(self) -> RowDemand:
        """The number of workers and rows that the launch can use."""
        return demand_of(self.task, self._host, self._options.machine, self.stake)

    def rows(self, workers: int, lanes: int) -> Rows:
        """The rows of the task for a number of workers and of lanes per worker."""
        return self.demand.rows(replace(self._options.machine, workers=workers, lanes=lanes))

    @property
    def _lanes(self) -> list[int]:
        """The possible choices, the fastest first."""
        machine = self._options.machine
        return [1 << k for k in reversed(range(self._most.bit_length()))] if machine.fewer else [machine.lanes]

    @once
    def _most(self) -> int:
        """The useful number of lanes: more would leave rows empty, because iterations are few or few pass the predicate."""
        machine, demand = self._options.machine, self.demand
        passing = demand.passing if demand.passing is not None and demand.passing < machine.rows else machine.lanes
        some = max(1, min(machine.lanes, passing, machine.lanes if demand.iterations is None else demand.iterations))
        return 1 << (some - 1).bit_length() if machine.fewer else machine.lanes

    def ask(self) -> Ask:
        """The inputs of the search."""
        machine = self._options.machine
        crews = [(w, lanes) for w in fewer(machine.workers if self.task.parallel else 1) for lanes in self._lanes]
        rows = {crew: self.rows(*crew) for crew in crews}
        if not machine.shared:
            return Ask(self.task, self._launch.trips, self.cost, rows, machine.side_by_side)
        fastest, small = place(self._launch, 1, roomy=True), place(self._launch, 2)

        def options(many: int) -> dict[int, LoopOptions]:
            return placed_options(self._launch, small, fastest, self.cost.loops, many)

        return Ask(self.task, self._launch.trips, self.cost, rows, machine.side_by_side, options, small.shared)

    @once
    def _launch(self) -> PlacementInputs:
        """The inputs of the placement of tapes on a device with on-chip memory."""
        o, trips = self._options, {s.number: self._trips[s.number] for s in self.stateful}
        rows = o.machine.rows if self.task.parallel else 1
        iterations = iterations_of(self.task, self._host, o.machine) if trips and rows > 1 and o.machine.shared else None
        rows = rows if iterations is None else min(rows, iterations)
        return PlacementInputs(self.task.region, trips, rows, o.machine, o.unknown, o.fixed_slots)

    def roomy(self, levels: int) -> TaskChoice:
        """The choice with that many levels in every loop.

        If the rows of all lanes would exceed ``spare`` bytes: with fewer lanes or more levels, whichever is faster.
        """
        first = self.usual(levels)
        if not self._options.machine.fewer or self._options.choose or not self.stateful:
            return first
        room = max(self._options.spare * self._options.machine.workers, self.plan(self.usual(levels, 1)).bytes)
        if self.plan(first).bytes <= room:
            return first
        tried = (self.usual(n, lanes) for n in range(levels, 4) for lanes in self._lanes)
        return min((c for c in tried if self.plan(c).bytes <= room), key=lambda c: self.plan(c).seconds)

    def usual(self, levels: int, lanes: int = 0) -> TaskChoice:
        """The choice with that many levels in every loop, all workers and that many lanes; 0: all useful lanes."""
        o = self._options
        if not o.machine.fewer or not self.stateful:
            return self._with(levels, o.machine.lanes)
        return self._with(levels, min(lanes or self._most, self._most))

    def _with(self, levels: int, lanes: int) -> TaskChoice:
        o = self._options
        if o.machine.shared and not o.choose:
            found = place(self._launch, levels)
            return TaskChoice(found.plans, self._workers(found) if levels == 1 else o.machine.workers, found.shared)
        plans = {s.number: self._usual(s, levels, o.unknown) for s in self.stateful}
        return TaskChoice(plans, o.machine.workers, placed(self._launch, plans) if o.machine.shared else frozenset(), lanes)

    def fastest(self) -> TaskChoice:
        """The fastest choice, without a limit of memory."""
        o = self._options
        if o.machine.shared and not o.choose:
            found = place(self._launch, 1, roomy=True)
            return TaskChoice(found.plans, self._workers(found), found.shared)
        plans = {s.number: self._usual(s, 1, FASTEST_THINNING) for s in self.stateful}
        return TaskChoice(plans, o.machine.workers, lanes=self._most if self.stateful else o.machine.lanes)

    def _workers(self, placement: Placement) -> int:
        """The number of workers: the usual one, or more without a predicate, which is evaluated up to the usual number only."""
        return self._options.machine.workers if self.task.gate else workers_of(self._launch, placement)

    def _usual(self, s: LoopSizing, levels: int, unknown: tuple[int, int, int, int]) -> LoopPlan:
        trips, options = self._trips[s.number], self._options
        if options.choose:
            return options.choose(s, trips.count, trips.source)
        if trips.count is None and options.fixed_slots:
            return fixed_capacity(options.fixed_slots, f"ad_stack_size: {trips.source}")
        if trips.count is None:
            return thinning(*unknown, source=f"thinning: {trips.source}")
        if levels == 1:
            return full_tape(trips.count, trips.source)
        return with_levels(trips.count, levels, None, s.bytes("ck1"), s.bytes("tape"), trips.source)

    def plan(self, choice: TaskChoice) -> TaskPlan:
        """The task under a choice."""
        task, plans = self.task, choice.plans
        machine = replace(self._options.machine, workers=choice.workers, lanes=choice.lanes)
        layout = RowLayout(plans, choice.shared)
        words = layout.place(task.region, {})
        on_chip = words.pop(ON_CHIP, 0)
        params: dict[str, int] = dict(layout.offsets)
        for number, p in plans.items():
            params |= {f"C1.{number}": p.C1, f"C2.{number}": p.C2, f"S.{number}": p.S, f"D1.{number}": p.D1}
        loops = tuple(
            PlannedLoop(s.number, p := plans[s.number], s.range.loc, *_bytes_of(s, p, choice.shared)) for s in self.stateful
        )
        head = task.position, task.name
        if not any(words.values()) and not on_chip:
            return TaskPlan(*head, 0, "no stack", task.parallel, loops, words, params)
        rows = self.rows(choice.workers, choice.lanes)
        params |= rows.params(machine)
        workers = min(rows.workers, self._options.machine.workers)
        time = self.cost.nanoseconds(plans, workers, machine.lanes, machine.side_by_side)
        made = TaskPlan(*head, rows.count, rows.source, task.parallel, loops, words, params, rows.workers, time * 1e-9)
        if task.parallel:
            made = replace(made, lanes=machine.lanes)
        return replace(made, shared=choice.shared, shared_bytes=on_chip, block=machine.block) if machine.shared else made


def fewer(workers: int) -> list[int]:
    """The numbers of workers that a search tries: all up to 8, then powers of two."""
    if workers <= 8:
        return list(range(workers, 0, -1))
    return [workers, *(1 << k for k in reversed(range(workers.bit_length())) if 1 << k < workers)]


def _refusal(smallest: HeapPlan, budget: int) -> OutOfMemory:
    """Raise the error for a budget that is too small."""
    row = max(smallest.rows(), key=lambda row: int(str(row["bytes"])))
    bound = "an unknown number of" if row["bound"] is None else row["bound"]
    where = "{line}: {rows} rows ({rows_from}) x {row_bytes} bytes, {bound} iterations ({bound_from})".format(
        **row | {"bound": bound}
    )
    return OutOfMemory(
        f"the gradient `{smallest.kernel}` does not fit a budget of {budget:,} bytes: its smallest plan needs an adstack heap of"
        f" {smallest.bytes:,} bytes\n  at {where}\n  do: give a budget of {smallest.bytes} bytes or more, or keep fewer or smaller"
        " variables from one iteration of this loop to the next",
        smallest.bytes,
    )


def _bytes_of(s: LoopSizing, p: LoopPlan, shared: frozenset[str]) -> tuple[int, tuple[StackSizing, ...], int]:
    """Bytes of a row in the heap, the stacks, bytes of a thread on chip."""
    heap = on_chip = 0
    for k in s.stacks:
        size = p.slots(k.kind) * sum(n * PLANES[plane] for plane, n in k.widths)
        on_chip += size * (k.name in shared)
        heap += size * (k.name not in shared)
    return heap, s.stacks, on_chip
