"""Adds to memory that wait until a block of iterations has run, and are made then in the order of the iterations and of the text."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.nodes import Block, Op, Operand
from ...ir.ops import TABLE
from ...ir.walk import atomic_of, index_of
from ..llvm import memory
from ..llvm.task_emitter import TaskEmitter

_MOST = 6
"""Operations of an index that are computed again, at most; else it is kept."""


class OrderedAdds:
    """Some adds of a loop over ``index``, whose body is ``block``. Numbers that only the iteration knows are kept in buffers.

    Attributes:
        kept: what buffers are for.
    """

    def __init__(self, e: TaskEmitter, adds: Iterable[Op], block: Block, index: Op) -> None:
        self._e, self._adds, self._index = e, tuple(adds), index
        self._inside = {s for s in block if isinstance(s, Op)}
        self._buffers: dict[Op, str] = {}
        wanted = [x for s in self._adds for x in (*(i for i in index_of(s) if self._size(i) > _MOST), s.args[-1])]
        self.kept = [x for x in dict.fromkeys(wanted) if isinstance(x, Op) and x in self._inside]

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._adds)

    def __contains__(self, s: object) -> bool:
        """Whether an atomic is one of them."""
        return s in self._adds

    def _size(self, x: Operand) -> int:
        """The operations that compute a value again, from the index of the loop and what does not change in it."""
        if x not in self._inside:
            return 0
        assert isinstance(x, Op)
        simple = TABLE[x.op].pure and TABLE[x.op].arity > 0 and x.dtype.is_int
        return 1 + sum(map(self._size, x.args)) if simple else _MOST + 1

    def make_room(self, numbers: int) -> None:
        """Buffers for so many iterations."""
        for x in self.kept:
            self._buffers[x] = self._e.slot(f"[{numbers} x {self._e.ty(x.dtype, False)}]")

    def keep(self, number: str) -> None:
        """At the end of the iteration with this number in its block: store what it adds, and where."""
        e = self._e
        for x, buffer in self._buffers.items():
            ty = e.ty(x.dtype, False)
            at = e.t(f"getelementptr {ty}, ptr {buffer}, i64 {number}")
            e.put(f"store {ty} {e.operand(x, False)}, ptr {at}, align {x.dtype.size}{e.access}")

    def add(self, number: str) -> None:
        """Make the adds of this iteration. The value of the loop's index is set."""
        e, changed = self._e, {self._index}
        before = dict(e.values)
        for x, buffer in self._buffers.items():
            ty = e.ty(x.dtype, False)
            at = e.t(f"getelementptr {ty}, ptr {buffer}, i64 {number}")
            e.values[x] = (e.t(f"load {ty}, ptr {at}, align {x.dtype.size}"), False)
            changed.add(x)
        for s in self._adds:
            place, code = atomic_of(s)
            for x in index_of(s):
                again(e, x, changed)
            ptr, _ = memory.address(e, place, index_of(s))
            memory.update(e, code, place, ptr, [e.operand(s.args[-1], False)])
        e.values = before


def again(e: TaskEmitter, x: Operand, changed: set[Op]) -> bool:
    """Compute once more what depends on values that have changed; whether it does."""
    if not isinstance(x, Op) or x.op == "param":
        return False
    if x not in changed and any([again(e, y, changed) for y in x.args]):
        e.wide.pop(x, None)
        e.op(x)
        changed.add(x)
    return x in changed
