"""Uniformity analysis of a task: the values that are the same in all threads of a launch, and the atomics that a warp can combine."""

from __future__ import annotations

from ...ir.alias import Aliases
from ...ir.nodes import Const, Op, Operand, Task
from ...ir.ops import TABLE
from ...ir.walk import atomic_of, operands, place_of, task_blocks, written_places
from ..llvm import memory

_LEAVES = frozenset(("arg", "shape", "param", "seed"))
_FOLDED = frozenset("add sub mul min max and or xor".split())


class Uniform:
    """The values of a task that are the same in all threads of a launch, and the values that are used.

    Args:
        task: of a kernel.
        waves: threads that execute together can combine what they do.
    """

    def __init__(self, task: Task, waves: bool = True) -> None:
        self._waves = waves
        self.used = {x for s in task_blocks(task) for x in operands(s) if isinstance(x, Op)}
        self._written = Aliases(written_places(task.body) | {r.place for r in task.reductions})
        self._same: dict[Op, bool] = {}

    def same(self, x: Operand) -> bool:
        """Whether a value is the same in all threads."""
        if isinstance(x, Const):
            return True
        if x not in self._same:
            self._same[x] = self._is_same(x)
        return self._same[x]

    def _is_same(self, x: Op) -> bool:
        if x.op in _LEAVES:
            return True
        if not all(map(self.same, x.args)):
            return False
        if x.op == "gload":
            place = place_of(x)
            assert place is not None
            return place.buffer.kind != "block" and not self._written.of(place)
        return TABLE[x.op].pure and TABLE[x.op].arity > 0

    def way(self, s: Op) -> str:
        """How a warp can combine an atomic: "count" (lanes add one integer), "fold" (the old value is unused), or "": not at all."""
        place, code = atomic_of(s)
        if not self._waves or code not in _FOLDED or place.dtype.size < 4 or memory.alignment(place) != place.dtype.size:
            return ""
        if not all(map(self.same, s.args[: place.ndim])):
            return ""
        if place.dtype.is_int and code in ("add", "sub") and self.same(s.args[place.ndim]):
            return "count"
        return "" if s in self.used else "fold"
