"""Which of two accesses of a task to one element comes first: dependence directions of the loops around both.

A load whose element is not written after it reads what memory holds when the kernel has ended, so that the backward pass may read it
again. The proof goes from the outermost loop around both accesses inwards. Where equal elements mean that the write's iteration is an
earlier one, the write comes first. Where they mean the same iteration, the next loop decides, and at last the order of the statements.
See Wolfe, "Optimizing Supercompilers for Supercomputers", chapter on data dependence.
"""

from __future__ import annotations

from ...ir.alias import same_array
from ...ir.nodes import Block, If, Loop, Op, Stmt, Task
from ...ir.threads import once
from .access import Access, WriteSet
from .indexing import Extents, Linear, extents, is_invariant, linear, most_trips, own_element

WIDE = 1 << 16
"""Indices within an array do not wrap between two iterations if no factor is larger."""

Step = tuple[Stmt | None, bool, int]
"""One block on the path to a statement: the statement that holds it (None: the task), whether it is its ``orelse``, and the position
in the block."""


class AccessOrder:
    """The order of the accesses of one task.

    Args:
        task: with its exits lowered.
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    def final(self, load: Access, write: Access) -> bool:
        """Whether ``load`` reads an element that ``write`` does not change afterwards."""
        return self._first(write, load)

    def initial(self, load: Access, write: Access) -> bool:
        """Whether ``load`` reads an element that ``write`` has not changed before."""
        return self._first(load, write)

    def _first(self, one: Access, then: Access) -> bool:
        """Whether ``one`` certainly comes before ``then`` wherever both name one element."""
        way, other = self._ways.get(id(then[2])), self._ways.get(id(one[2]))
        if way is None or other is None or not same_array(one[0], then[0]):
            return False
        if self._task.parallel and not own_element(then[1], one[1], self._written, self._ranges):
            return False
        return self._earlier(way, other, then, one)

    @once
    def _written(self) -> WriteSet:
        return WriteSet(self._task)

    @once
    def _ranges(self) -> Extents:
        return extents(self._task)

    @once
    def _ways(self) -> dict[int, tuple[Step, ...]]:
        """The path to each statement of the task, by its identity."""
        found: dict[int, tuple[Step, ...]] = {}

        def look(block: Block, holder: Stmt | None, orelse: bool, above: tuple[Step, ...]) -> None:
            for position, s in enumerate(block):
                way = found[id(s)] = (*above, (holder, orelse, position))
                if isinstance(s, If):
                    look(s.then, s, False, way)
                    look(s.orelse, s, True, way)
                elif isinstance(s, Loop):
                    look(s.body, s, False, way)

        look(self._task.body, None, False, ())
        return found

    def _earlier(self, way: tuple[Step, ...], other: tuple[Step, ...], load: Access, write: Access) -> bool:
        same: set[Loop] = set()  # the loops around both of which the iteration is known to be the same
        if self._differ(load, write, same):
            return True
        for (holder, orelse, position), (holder2, orelse2, position2) in zip(way, other):
            assert holder is holder2
            if orelse != orelse2:
                return True  # one iteration runs one arm
            if isinstance(holder, Loop):
                distance = self._distance(holder, load, write, same)
                if distance is None:
                    return False
                if distance:
                    return distance < 0
                same.add(holder)
                if self._differ(load, write, same):
                    return True
            if position != position2:
                return position2 < position
        return False

    def _distance(self, loop: Loop, load: Access, write: Access, same: set[Loop]) -> int | None:
        """How far the write's iteration of a loop is behind the load's where both name one element: a number of that sign, or None
        where it is not known.
        """
        if loop.end is None:
            return None
        trips = most_trips(loop.begin, loop.end) if loop.step == 1 else None
        if trips is not None and trips <= 1:
            return 0
        for x, y in zip(load[1], write[1], strict=True):
            mine, theirs = linear(x), linear(y)
            factor = dict(mine.leaves).get(loop.index, 0)
            apart = mine.minus(theirs)
            rest = mine.minus(Linear(((loop.index, factor),), 0))
            near = abs(factor) < WIDE and abs(apart.constant) < WIDE * WIDE // 2  # else equal elements may lie a wrap apart
            if (
                factor and near and not apart.leaves and self._known(rest, same)
            ):  # values defined in this loop differ between iterations
                return apart.constant * factor * loop.step
        return None

    def _differ(self, load: Access, write: Access, same: set[Loop]) -> bool:
        """Whether the two never name one element in equal iterations of these loops: their ranges lie apart on some axis."""
        for x, y in zip(load[1], write[1], strict=True):
            mine, theirs = self._span(linear(x), same), self._span(linear(y), same)
            if mine and theirs and (_positive(mine[0].minus(theirs[1])) or _positive(theirs[0].minus(mine[1]))):
                return True
        return False

    def _span(self, form: Linear, same: set[Loop]) -> tuple[Linear, Linear] | None:
        """The least and the largest value of a form in one iteration of these loops, by values that are the same for both accesses."""
        low = high = form
        if any(abs(factor) >= WIDE for _, factor in form.leaves) or abs(form.constant) >= WIDE * WIDE // 2:
            return None  # it may wrap
        for leaf, factor in form.leaves:
            if self._known(Linear(((leaf, 1),), 0), same):
                continue
            loop = self._ranges.loops.get(leaf) if isinstance(leaf, Op) else None
            if loop is None or loop.end is None or abs(loop.step) != 1:
                return None
            first, last = linear(loop.begin), linear(loop.end).minus(Linear((), loop.step))
            if not (self._known(first, same) and self._known(last, same)):
                return None
            least, most = (first, last) if loop.step * factor > 0 else (last, first)
            own = Linear(((leaf, factor),), 0)
            low, high = low.minus(own).plus(least.times(factor)), high.minus(own).plus(most.times(factor))
        return low, high

    def _known(self, form: Linear, same: set[Loop]) -> bool:
        """Whether the leaves of a form are the same for both accesses in equal iterations of these loops."""
        for leaf, _ in form.leaves:
            if not isinstance(leaf, Op) or leaf in self._ranges or is_invariant(leaf, self._written):
                continue
            around = self._around(leaf)
            if around is None or not around <= same:
                return False
        return True

    def _around(self, leaf: Op) -> set[Loop] | None:
        """The loops in which a value is made anew; None: it is not of this task."""
        loop = self._ranges.loops.get(leaf)
        if loop is not None:
            return {holder for holder, _, _ in self._ways[id(loop)] if isinstance(holder, Loop)} | {loop}
        way = self._ways.get(id(leaf))
        return None if way is None else {holder for holder, _, _ in way if isinstance(holder, Loop)}


def _positive(form: Linear) -> bool:
    return not form.leaves and form.constant > 0
