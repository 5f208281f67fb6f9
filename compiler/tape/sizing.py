"""The launch-independent facts about a reverse task that a plan needs: its extent, its loops, their stacks and regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..ir.nodes import Block, If, Kernel, Loop, Stack, Task
from ..ir.types import PLANES
from .bounds.reader import ExprReader
from .bounds.row_predicates import RowPredicate, gate_of
from .bounds.sizeexpr import Bin, Cast, Extent, Lit, Range, ScalarArgument, parts
from .work import NO_LOOP_WORK, NO_WORK, Inner, LoopWork, Work


@dataclass(frozen=True)
class StackSizing:
    """A stack: words of one slot by plane."""

    name: str
    kind: str
    widths: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class LoopSizing:
    """A loop with stacks: its range, the enclosing ranges, the region of its body, and the work of its copies."""

    number: int
    range: Range
    exits: bool
    nest: tuple[Range, ...]
    stacks: tuple[StackSizing, ...]
    inner: StackRegion
    work: LoopWork = NO_LOOP_WORK

    def bytes(self, kind: str) -> int:
        """Bytes of one slot of a stack, over all planes."""
        return sum(n * PLANES[plane] for s in self.stacks if s.kind == kind for plane, n in s.widths)

    def words(self, kind: str) -> int:
        """Words of one slot of a stack, over all planes."""
        return sum(n for s in self.stacks if s.kind == kind for _, n in s.widths)


@dataclass(frozen=True)
class StackRegion:
    """Loops with stacks that are live together, and pairs of regions that exclude each other (the arms of an ``if``)."""

    loops: tuple[LoopSizing, ...] = ()
    arms: tuple[tuple[StackRegion, StackRegion], ...] = ()

    def all_loops(self) -> list[LoopSizing]:
        """All loops of the region, including nested ones, in program order."""
        out: list[LoopSizing] = []
        for loop in self.loops:
            out += [loop, *loop.inner.all_loops()]
        for pair in self.arms:
            for arm in pair:
                out += arm.all_loops()
        return sorted(out, key=lambda s: s.number)


@dataclass(frozen=True)
class TaskSizing:
    """The facts about one task.

    ``position``: its number in the reverse kernel. ``axes``: empty for a serial task. ``work``: the work outside of its loops.
    """

    position: int
    name: str
    axes: tuple[Range, ...]
    parallel: bool
    region: StackRegion
    work: Work = NO_WORK
    gate: RowPredicate | None = None  # the conditions around all loops with stacks
    trials: bool = False  # of a batched kernel: the axis is the axis of trials

    @property
    def planes(self) -> set[str]:
        """The planes that its stacks have words in."""
        return {plane for s in self.region.all_loops() for k in s.stacks for plane, _ in k.widths}


class CostModel(Protocol):
    """Counts the work of a task's reverse program."""

    def loop(self, s: Loop) -> LoopWork:
        """The copies of a loop with backward work."""
        ...

    def rest(self) -> Work:
        """The work outside of the planned loops."""
        ...


def size_task(
    kernel: Kernel,
    task: Task,
    position: int,
    name: str,
    stacks: Mapping[Loop, tuple[int, tuple[Stack, ...]]],
    costs: Callable[[Callable[[Loop, bool], Inner]], CostModel] | None = None,
) -> TaskSizing:
    """Collect the sizing of a primal ``task``.

    Args:
        kernel: the primal kernel.
        task: the primal task.
        position: number of the reverse task in the reverse kernel.
        name: name of the reverse task.
        stacks: number and stacks of each loop with backward work.
        costs: creates the counter of work, from a function that numbers a loop (given whether the loop has a plan). None: work is not
            counted.
    """
    reader = ExprReader(kernel, task)
    axes = reader.axes()

    def inner(s: Loop, planned: bool) -> Inner:
        return stacks[s][0] if planned and s in stacks else _simple(reader.loop(s))

    counted = costs(inner) if costs and any(mine for _, mine in stacks.values()) else None
    region = _region(task.body, reader, stacks, axes, counted)
    gate = gate_of(kernel, task, {s for s, (_, mine) in stacks.items() if mine})
    return TaskSizing(position, name, axes, task.parallel, region, counted.rest() if counted else NO_WORK, gate)


def _simple(r: Range) -> Range | None:
    """A range with a trip count that depends on the launch's arguments only, not on arrays or enclosing indices; else None. An argument
    with a value for each trial of a batch counts as an array.
    """
    ends = [e for end in (r.begin, r.end) if end is not None for e in parts(end)]
    if r.end is None or any(isinstance(e, ScalarArgument) and e.arg.per_trial for e in ends):
        return None
    return r if all(isinstance(e, (Lit, ScalarArgument, Extent, Bin, Cast)) for e in ends) else None


def _region(
    block: Block,
    reader: ExprReader,
    stacks: Mapping[Loop, tuple[int, tuple[Stack, ...]]],
    nest: tuple[Range, ...],
    costs: CostModel | None,
) -> StackRegion:
    loops: list[LoopSizing] = []
    arms: list[tuple[StackRegion, StackRegion]] = []
    for s in block:
        if isinstance(s, If):
            pair = _region(s.then, reader, stacks, nest, costs), _region(s.orelse, reader, stacks, nest, costs)
            if any(r.loops or r.arms for r in pair):
                arms.append(pair)
        elif isinstance(s, Loop):
            own = reader.loop(s)
            inner = _region(s.body, reader, stacks, (*nest, own), costs)
            number, mine = stacks.get(s, (-1, ()))
            if mine or inner.loops or inner.arms:
                sizes = tuple(StackSizing(k.name, k.kind, _widths(k)) for k in mine)
                work = costs.loop(s) if costs and number >= 0 else NO_LOOP_WORK
                loops.append(LoopSizing(number, own, s.exit is not None, nest, sizes, inner, work))
    return StackRegion(tuple(loops), tuple(arms))


def _widths(stack: Stack) -> tuple[tuple[str, int], ...]:
    widths: dict[str, int] = {}
    for v in stack.locals:
        widths[v.dtype.plane] = widths.get(v.dtype.plane, 0) + 1
    return tuple(sorted(widths.items()))
