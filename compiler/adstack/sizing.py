"""What a plan needs to know of a reverse task, apart from any launch: its extent, its loops, their stacks, and which lie side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.nodes import Block, If, Kernel, Loop, Stack, Task
from .sizeexpr import Range, Reader


@dataclass(frozen=True)
class StackSizing:
    """A stack: words of one slot by plane."""

    name: str
    kind: str
    widths: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class LoopSizing:
    """A loop with stacks: its own range, the ranges around it, and what lies inside its body."""

    number: int
    range: Range
    exits: bool
    nest: tuple[Range, ...]
    stacks: tuple[StackSizing, ...]
    inner: Region

    def words(self, kind: str) -> int:
        """Words of one slot of a stack, over all planes."""
        return sum(n for s in self.stacks if s.kind == kind for _, n in s.widths)


@dataclass(frozen=True)
class Region:
    """Loops whose stacks are live together, and pairs of regions of which only one is (the arms of an ``if``)."""

    loops: tuple[LoopSizing, ...] = ()
    arms: tuple[tuple[Region, Region], ...] = ()

    def all_loops(self) -> list[LoopSizing]:
        """Every loop in the region and inside its loops, in program order of the loops themselves."""
        out: list[LoopSizing] = []
        for loop in self.loops:
            out += [loop, *loop.inner.all_loops()]
        for pair in self.arms:
            for arm in pair:
                out += arm.all_loops()
        return sorted(out, key=lambda s: s.number)


@dataclass(frozen=True)
class TaskSizing:
    """``position``: number of the task in the reverse kernel. ``axes`` empty: serial."""

    position: int
    name: str
    axes: tuple[Range, ...]
    parallel: bool
    region: Region


def size_task(
    kernel: Kernel, task: Task, position: int, name: str, stacks: Mapping[Loop, tuple[int, tuple[Stack, ...]]]
) -> TaskSizing:
    """Collect the sizing of a primal ``task``; ``stacks``: number and stacks of each loop with backward work."""
    reader = Reader(kernel, task)
    axes = reader.axes()
    region = _region(task.body, reader, stacks, axes)
    return TaskSizing(position, name, axes, task.parallel, region)


def _region(
    block: Block, reader: Reader, stacks: Mapping[Loop, tuple[int, tuple[Stack, ...]]], nest: tuple[Range, ...]
) -> Region:
    loops: list[LoopSizing] = []
    arms: list[tuple[Region, Region]] = []
    for s in block:
        if isinstance(s, If):
            pair = _region(s.then, reader, stacks, nest), _region(s.orelse, reader, stacks, nest)
            if any(r.loops or r.arms for r in pair):
                arms.append(pair)
        elif isinstance(s, Loop):
            own = reader.loop(s)
            inner = _region(s.body, reader, stacks, (*nest, own))
            number, mine = stacks.get(s, (-1, ()))
            if mine or inner.loops or inner.arms:
                sizes = tuple(StackSizing(k.name, k.kind, _widths(k)) for k in mine)
                loops.append(LoopSizing(number, own, s.exit is not None, nest, sizes, inner))
    return Region(tuple(loops), tuple(arms))


def _widths(stack: Stack) -> tuple[tuple[str, int], ...]:
    widths: dict[str, int] = {}
    for v in stack.locals:
        widths[v.dtype.plane] = widths.get(v.dtype.plane, 0) + 1
    return tuple(sorted(widths.items()))
