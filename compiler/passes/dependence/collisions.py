"""Rule 3 of data access: several iterations of a parallel loop may not store to one element with a gradient.

Which of them comes last is not determined, so the gradient is not defined. A store may name its element in any way that depends on all
axes: an index that is read from memory is taken as the user's assertion that it does not repeat. An element that is the same for all
indices of an axis needs a condition around it that picks one of them. Two writes with different indices must be proven apart when both
are sums of axis indices, or one is read from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...errors import DataAccessError
from ...ir.alias import same_array
from ...ir.nodes import Block, Const, GlobalStore, If, Local, Loop, Op, Operand, Place, Stmt, Task
from ...ir.walk import stored_value, walk
from .access import Access, Writes, line_of, writes_of
from .indexing import axes_of, extents, is_invariant, is_sum, linear, own_element


def check_stores(task: Task, varied: set[Op | Local]) -> None:
    """Rule 3, for one task. ``varied``: what a gradient can flow through.

    Raises:
        DataAccessError: naming the lines.
    """
    for access, write in collisions(task, varied, lambda place: place.differentiable):
        raise _refusal(access, write)


def collisions(task: Task, varied: set[Op | Local], kept: Callable[[Place], bool]) -> Iterator[tuple[Access, Stmt]]:
    """The stores of varied values to ``kept`` places that may meet another write of the element, by another iteration."""
    stores = [a for a in writes_of(walk(task.body)) if isinstance(a[2], GlobalStore) and kept(a[0])]
    if not task.parallel or not stores:
        return
    found = _Collisions(task)
    for access in stores:
        for write in found.writes.meeting(access[0], access[1]):
            if stored_value(access[2]) not in varied and stored_value(write[2]) not in varied:
                continue
            if found.collide(access, write):
                yield access, write[2]


def shared_stores(task: Task) -> set[GlobalStore]:
    """The stores of a parallel task that are not proven to have elements of their own.

    Two of them on one element store the same value, or the user asserts that their elements differ. Reverse mode exchanges the
    element's adjoint with zero there, so that the first one to run takes all of it.
    """
    stores = [s for s in walk(task.body) if isinstance(s, GlobalStore) and s.place.differentiable]
    if not task.parallel or not stores:
        return set()
    written, ranges = Writes(task), extents(task)
    return {s for s in stores if not own_element(s.index, s.index, written, ranges)}


def _refusal(access: Access, write: Stmt) -> DataAccessError:
    place, _, store = access
    again = f" ({line_of(write)})" if write is not store else ""
    return DataAccessError(
        f"several iterations write to one element of `{place.name}`{again}, and which of them comes last is not determined",
        store.loc,  # type: ignore[union-attr]
        "give each iteration its own element, add up with `+=`, or run the loop in order: loop_config(serialize=True)",
    )


class _Collisions:
    def __init__(self, task: Task) -> None:
        self.writes, self.ranges = Writes(task), extents(task)
        self._picked: dict[int, frozenset[Op]] = {}  # statement -> the axes that conditions around it fix
        self._conditions(task.body, frozenset())

    def collide(self, a: Access, b: Access) -> bool:
        """Whether ``a`` in one iteration and ``b`` in another may name one element."""
        picked = self._picked[id(a[2])] & self._picked[id(b[2])]
        if not same_array(a[0], b[0]):
            return True
        if a[1] != b[1]:
            several = {axis for axis, n in self.ranges.items() if n != 1}
            return not several <= picked and not self._apart(a[1], b[1])
        named = axes_of(a[1], self.writes, self.ranges)
        if named is None:
            return False
        free = {axis for axis, n in self.ranges.items() if n != 1 and axis not in named}
        if a[2] is b[2]:
            values = axes_of((stored_value(a[2]),), self.writes, self.ranges)
            free = free if values is None else free & values
        return not free <= picked

    def _apart(self, a: tuple[Operand, ...], b: tuple[Operand, ...]) -> bool:
        """Whether two different indices of two iterations name two elements: proven, or asserted by the user where they are computed."""
        if own_element(a, b, self.writes, self.ranges):
            return True
        sums = all(is_sum(x, self.writes, self.ranges) for x in (*a, *b))
        return not sums and not _reads((*a, *b))

    def _conditions(self, block: Block, picked: frozenset[Op]) -> None:
        for s in block:
            self._picked[id(s)] = picked
            if isinstance(s, If):
                self._conditions(s.then, picked | self._fixed(s.cond))
                self._conditions(s.orelse, picked)
            elif isinstance(s, Loop):
                self._conditions(s.body, picked)

    def _fixed(self, cond: Operand) -> set[Op]:
        """The axes of which a true condition leaves one index: ``i == n``."""
        if isinstance(cond, Const):
            return set()
        if cond.op == "and":
            return self._fixed(cond.args[0]) | self._fixed(cond.args[1])
        if cond.op != "eq" or cond.args[0].dtype.is_real:
            return set()
        leaves = linear(cond.args[0]).minus(linear(cond.args[1])).leaves
        axes = {leaf for leaf, _ in leaves if isinstance(leaf, Op) and leaf in self.ranges}
        rest = (leaf for leaf, _ in leaves if isinstance(leaf, Op) and leaf not in axes)
        return axes if len(axes) == 1 and all(is_invariant(x, self.writes) for x in rest) else set()


def _reads(values: tuple[Operand, ...]) -> bool:
    """Whether values are computed from memory."""
    todo, seen = list(values), set[Operand]()
    while todo:
        x = todo.pop()
        if isinstance(x, Op) and x not in seen:
            seen.add(x)
            if x.op == "gload":
                return True
            todo += x.args
    return False
