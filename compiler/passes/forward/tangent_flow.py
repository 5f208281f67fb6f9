"""Finds the values that can have a tangent in forward mode, and the places where a tangent is lost."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.nodes import GlobalStore, Local, LocalStore, Op, Operand, Place, Stmt, Task
from ...ir.walk import atomic_of, index_of, place_of, walk, written_places
from ..dependence.access import Access
from ..dependence.indexing import never_same
from ..dependence.order import StatementOrder
from ..reverse.activity import refuse_bits, refuse_unknown
from ..reverse.derivatives import carries


class TangentFlow:
    """Of all tasks of a kernel. ``varied`` holds the values and locals that can have a tangent other than zero.

    Raises:
        DifferentiationError: the bits of a value with a tangent become a real number again, or an operation has no rule.
    """

    def __init__(self, tasks: list[Task]) -> None:
        self._tasks = tasks
        self._statements = [s for task in tasks for s in walk(task.body)]
        self.varied: set[Op | Local] = set()
        self._temporaries: set[Place] = set()  # those that are given a tangent
        self._propagate()
        refuse_unknown(self._statements, self.varied)
        refuse_bits(self._statements, self.varied)
        self._useful: set[Op | Local | Place] = set()  # what reaches a place with a dual
        self._trace_back()

    def dual(self, place: Place) -> Place | None:
        """The place of a place's tangents; None if it has none."""
        return None if place.buffer.kind == "tmp" and place not in self._temporaries else place.dual

    def _size(self) -> int:
        return len(self.varied) + len(self._temporaries)

    def _propagate(self) -> None:
        size = -1
        while size != self._size():
            size = self._size()
            for s in self._statements:
                if isinstance(s, LocalStore):
                    if s.value in self.varied:
                        self.varied.add(s.local)
                elif isinstance(s, Op) and s.dtype.is_real and self._depends(s):
                    self.varied.add(s)
                for place, value in _written(s):
                    if place.buffer.kind == "tmp" and place.dual is not None and value in self.varied:
                        self._temporaries.add(place)

    def _depends(self, s: Op) -> bool:
        if s.op in ("gload", "atomic"):
            place = place_of(s)
            return place is not None and self.dual(place) is not None
        if s.op == "load":
            return s.attr in self.varied
        return carries(s) and any(a in self.varied for a in s.args)

    def _trace_back(self) -> None:
        size = -1
        while size != len(self._useful):
            size = len(self._useful)
            for s in reversed(self._statements):
                self._trace(s)

    def _trace(self, s: Stmt) -> None:
        for place, value in _written(s):
            reaches = place in self._useful if place.buffer.kind == "tmp" else place.dual is not None
            if reaches and isinstance(value, Op):
                self._useful.add(value)
        if isinstance(s, LocalStore) and s.local in self._useful and isinstance(s.value, Op):
            self._useful.add(s.value)
        elif isinstance(s, Op) and s in self._useful:
            if s.op in ("load", "gload"):
                self._useful.add(s.attr)  # type: ignore[arg-type]
            elif carries(s):
                self._useful.update(a for a in s.args if isinstance(a, Op) and a.dtype.is_real)

    # ---- lost tangents
    def lost(self) -> tuple[Access, ...]:
        """Stores of values that can have a tangent to memory that keeps none."""
        return tuple(self._lost())

    def read(self) -> tuple[Access, ...]:
        """Loads of memory without a dual whose value reaches memory with one."""
        return tuple(self._read())

    def broken(self) -> tuple[tuple[Access, Access], ...]:
        """Pairs of a load and an earlier store of one place: a tangent is lost in this very kernel."""
        written: set[Place] = set().union(*(written_places(t.body) for t in self._tasks))
        order, stores = StatementOrder(self._tasks), self.lost()
        return tuple(
            (read, write)
            for read in self._read()
            for write in stores
            if write[0] is read[0] and order.may_follow(read[2], write[2]) and not never_same(read[1], write[1], written)
        )

    def _lost(self) -> Iterator[Access]:
        for s in self._statements:
            for place, value in _written(s):
                if value in self.varied and place.dual is None and place.buffer.kind in ("field", "arg"):
                    index = index_of(s)
                    yield place, index, s

    def _read(self) -> Iterator[Access]:
        for s in self._statements:
            if isinstance(s, Op) and s.op in ("gload", "atomic") and s in self._useful:
                place, index = place_of(s), index_of(s)
                if place is not None and place.dual is None and place.buffer.kind in ("field", "arg"):
                    yield place, index, s


def _written(s: Stmt) -> Iterator[tuple[Place, Operand]]:
    """The place that a statement changes, and by which value."""
    if isinstance(s, GlobalStore):
        yield s.place, s.value
    elif isinstance(s, Op) and s.op == "atomic":
        yield atomic_of(s)[0], s.args[-1]
