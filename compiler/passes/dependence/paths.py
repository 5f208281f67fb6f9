"""Finds silently lost gradients: in an array without a gradient, between two statements of one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.nodes import GlobalStore, Loc, Local, LocalStore, Op, Operand, Place, Stmt, Task
from ...ir.walk import atomic_of, index_of, stored_value
from ..reverse.activity import Activity
from ..reverse.derivatives import carries, rules_of
from .access import Access, WriteSet, writes_of
from .indexing import extents, never_same, own_element
from .order import StatementOrder


@dataclass(frozen=True)
class Broken:
    """A way on which a gradient is lost: ``array`` has none, is read at ``loc``, and was written (a differentiable value) at ``stored``."""

    array: str
    loc: Loc | None
    stored: Loc | None


def broken_paths(tasks: list[Task], activities: list[Activity]) -> tuple[Broken, ...]:
    """The arrays without a gradient through which a differentiable value comes back into an array with one, each once."""
    flow = _Flow(tasks, activities)
    while flow.step():
        pass
    return tuple(flow.broken.values())


def _access(s: Op) -> Access:
    return (s.attr, s.args, s) if s.op == "gload" else (atomic_of(s)[0], index_of(s), s)  # type: ignore[return-value]


class _Flow:
    def __init__(self, tasks: list[Task], activities: list[Activity]) -> None:
        self.order = StatementOrder(tasks, parallel=True)
        self.varied: set[Op | Local] = set().union(*(a.varied for a in activities))
        self.written = WriteSet(*tasks)
        self.lost: dict[Place, list[Access]] = {}
        self.source: dict[Operand | Local, Op] = {}  # what depends on a lost value -> the load that brought it back
        self.broken: dict[Place, Broken] = {}
        self._seen: set[int] = set()

    def step(self) -> bool:
        """Run one pass over the program. Returns whether it found anything new."""
        before = len(self._seen) + len(self.source)
        for s in self.order.statements:
            if isinstance(s, LocalStore):
                self._derive(s.local, (s.value,))
            elif isinstance(s, Op) and s.op == "load":
                self._derive(s, (s.attr,))  # type: ignore[arg-type]
            elif isinstance(s, Op) and s.op == "gload":
                self._load(s)
            elif isinstance(s, Op) and s.op != "atomic":
                if carries(s):
                    rules = zip(s.args, rules_of(s), strict=True)
                    self._derive(s, tuple(a for a, rule in rules if rule is not None))
            elif isinstance(s, (GlobalStore, Op)):
                self._write(s)
                if isinstance(s, Op):
                    self._load(s)
        return len(self._seen) + len(self.source) > before

    def _derive(self, x: Op | Local, parts: tuple[Operand | Local, ...]) -> None:
        found = next((self.source[p] for p in parts if p in self.source), None)
        if found is not None:
            self.source.setdefault(x, found)

    def _load(self, s: Op) -> None:
        place, index, _ = _access(s)
        for _, where, write in self.lost.get(place, ()):
            if never_same(index, where, self.written):
                continue
            late, early = self.order.loops(s), self.order.loops(write)
            common = [x for x in late if x in early]
            again = any(not isinstance(x, Task) or not own_element(index, where, self.written, extents(x)) for x in common)
            if again or self.order.number(write) < self.order.number(s):
                self.source.setdefault(s, s)

    def _write(self, s: Stmt) -> None:
        for place, index, _ in writes_of([s]):
            value = stored_value(s)
            if place.differentiable:
                if value in self.source:
                    self._break(self.source[value])
            elif place.dtype.is_real and (value in self.varied or value in self.source) and id(s) not in self._seen:
                self._seen.add(id(s))
                self.lost.setdefault(place, []).append((place, index, s))

    def _break(self, load: Op) -> None:
        place = _access(load)[0]
        self.broken.setdefault(place, Broken(place.name, load.loc, getattr(self.lost[place][0][2], "loc", None)))
