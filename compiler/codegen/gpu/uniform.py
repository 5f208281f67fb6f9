"""What of a task is the same in all threads of a launch, and which of its atomics the lanes of a warp can do together."""

from __future__ import annotations

from ...ir.alias import Aliases
from ...ir.nodes import Const, Op, Operand, Task
from ...ir.ops import TABLE
from ...ir.walk import atomic_of, operands, place_of, task_blocks, written_places
from ..llvm import memory

_LEAVES = frozenset(("arg", "shape", "param", "seed"))
_FOLDED = frozenset("add sub mul min max and or xor".split())


class Uniform:
    """What of a task is the same in all threads of a launch, and which of its values are used."""

    def __init__(self, task: Task) -> None:
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
        """How the lanes of a warp can do an atomic together: "count" (all add the same integer), "fold" (nobody wants the old value), or
        "" where they cannot.
        """
        place, code = atomic_of(s)
        if code not in _FOLDED or place.dtype.size < 4 or memory.alignment(place) != place.dtype.size:
            return ""
        if not all(map(self.same, s.args[: place.ndim])):
            return ""
        if place.dtype.is_int and code in ("add", "sub") and self.same(s.args[place.ndim]):
            return "count"
        return "" if s in self.used else "fold"
