"""Sums that wait until a row has run, as ``RowOrder`` lists them.

Each iteration stores the values that it adds to buffers. Behind the row, a loop over the elements of each group adds them up in the order
of the iterations. Neither loop has an element that two of its iterations touch, so that LLVM makes vectors of both::

    for j in row: a[j] = ..                              # g[i, j - 1] += a; g[i, j + 1] += a
    for e in row and beside: g[i, e] = g[i, e] + a[e - 1] + a[e + 1]

Beside a row, the buffers hold -0.0, which changes no number when it is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...ir.nodes import Op, Operand, RowOrder, RowSum
from ...ir.walk import atomic_of, index_of
from ..llvm import arith, memory
from ..llvm.function import IN_PARALLEL, PARALLEL
from ..llvm.in_order import counting, nothing
from ..llvm.task_emitter import TaskEmitter
from .ordered_adds import OrderedAdds, again

_BESIDE = 16
"""Numbers on either side of a buffer."""
_NUMBERS = 2048
"""Numbers in all buffers, about."""


class RowSums:
    """The sums of one task that wait. ``longest``: the iterations of a row that buffers hold; 0: no sum waits."""

    def __init__(self, e: TaskEmitter, order: RowOrder | None) -> None:
        self._e, self._groups = e, order.sums if order else ()
        self._of: dict[tuple[Operand, str], str] = {}
        self._buffers: dict[Op, str] = {}
        self._adds = OrderedAdds(e, order.adds if order else (), e.task.body, e.task.axes[-1].index)
        values = len(set(map(_value, self.waiting))) + len(self._adds.kept)
        self.longest = max(_BESIDE, _NUMBERS // values) if values else 0
        self._adds.make_room(self.longest)
        for r in self.waiting:
            if _value(r) not in self._of:
                self._of[_value(r)] = self._buffer(r)
            self._buffers[r.add] = self._of[_value(r)]

    @property
    def waiting(self) -> list[RowSum]:
        """All of them."""
        return [r for group in self._groups for r in group]

    def _buffer(self, r: RowSum) -> str:
        e, ty = self._e, self._e.ty(r.add.dtype, False)
        buffer = e.slot(f"[{self.longest + 2 * _BESIDE} x {ty}]")
        self._clear(r, buffer)
        return buffer

    def _clear(self, r: RowSum, at: str) -> None:
        vector = f"<{_BESIDE} x {self._e.ty(r.add.dtype, False)}>"
        none = f"splat ({self._e.ty(r.add.dtype, False)} {nothing(self._e, r.add.dtype, False)})"
        self._e.put(f"store {vector} {none}, ptr {at}, align {r.add.dtype.size}")

    def __contains__(self, s: object) -> bool:
        """Whether an atomic is one of them."""
        return s in self._buffers or s in self._adds

    def keep(self, number: str) -> None:
        """At the end of the iteration with this number in its row: store what it adds."""
        e = self._e
        self._adds.keep(number)
        at = e.t(f"add nsw i64 {number}, {_BESIDE}") if self._of else ""
        for (value, code), buffer in self._of.items():
            ty, added = e.ty(value.dtype, False), e.operand(value, False)
            if code == "sub":
                added = e.t(f"fneg {ty} {added}")
            memory.write(e, value.dtype, added, e.t(f"getelementptr {ty}, ptr {buffer}, i64 {at}"), "uniform", value.dtype.size)

    def add(self, first: str, count: str) -> None:
        """Behind a row of ``count`` iterations, from that whose last index is ``first``."""
        e, done = self._e, set[str]()
        for r in self.waiting:
            if self._buffers[r.add] not in done:
                done.add(buffer := self._buffers[r.add])
                at = e.t(f"add nsw i64 {count}, {_BESIDE}")
                self._clear(r, e.t(f"getelementptr {e.ty(r.add.dtype, False)}, ptr {buffer}, i64 {at}"))
        for group in self._groups:
            self._add_group(group, first, count)
        if self._adds.any:
            with counting(e, count) as k, self._at(e.t(f"add nsw i64 {first}, {k}")):
                self._adds.add(k)

    @contextmanager
    def _at(self, index: str) -> Iterator[None]:
        """Inside the block, the last index has this value."""
        e, axis = self._e, self._e.task.axes[-1].index
        values, wide = dict(e.values), dict(e.wide)
        e.wide[axis] = index
        e.values[axis] = (index if axis.dtype.bits == 64 else e.t(f"trunc i64 {index} to {e.ty(axis.dtype, False)}"), False)
        yield
        e.values, e.wide = values, wide

    def _add_group(self, group: tuple[RowSum, ...], first: str, count: str) -> None:
        e, axis = self._e, self._e.task.axes[-1].index
        base = next(r.add for r in group if not r.lag)
        place, d = atomic_of(base)[0], base.dtype
        least, most = (of(r.lag for r in group) for of in (min, max))
        begin = e.t(f"sub nsw i64 {first}, {most}")
        with (
            counting(e, e.t(f"add nsw i64 {count}, {most - least}"), PARALLEL) as m,
            self._at(e.t(f"add nsw i64 {begin}, {m}")),
        ):
            e.access = IN_PARALLEL
            for x in index_of(base):
                again(e, x, {axis})
            ptr, _ = memory.address(e, place, index_of(base))
            total = memory.read(e, d, ptr, "uniform", memory.alignment(place))
            for r in group:
                at = e.t(f"add nsw i64 {m}, {_BESIDE - most + r.lag}")
                value = e.t(f"getelementptr {e.ty(d, False)}, ptr {self._buffers[r.add]}, i64 {at}")
                total = arith.binary(e, "add", d, False, total, memory.read(e, d, value, "uniform", d.size))
            memory.write(e, d, total, ptr, "uniform", memory.alignment(place))
            e.access = ""


def _value(r: RowSum) -> tuple[Operand, str]:
    """What a buffer holds: a value, or with "sub" its negative."""
    return r.add.args[-1], atomic_of(r.add)[1]
