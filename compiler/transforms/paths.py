"""Where a gradient would be lost without a word: in an array without a gradient, between two statements of one kernel."""

from __future__ import annotations

from ..errors import DifferentiationError
from ..ir.nodes import GlobalStore, Local, LocalStore, Op, Operand, Place, Stmt, Task
from ..ir.walk import atomic_of, index_of
from .access import Access, Writes, writes_of
from .activity import Activity
from .derivatives import ADJOINT, carries
from .indexing import extents, never_same, own_element
from .order import Order


def check_paths(tasks: list[Task], activities: list[Activity]) -> None:
    """Refuse a differentiable value that goes through an array without a gradient and comes back into one with a gradient.

    Raises:
        DifferentiationError: names the array and both lines.
    """
    flow = _Flow(tasks, activities)
    while flow.step():
        pass


def _written_value(s: Stmt) -> Operand:
    return s.value if isinstance(s, GlobalStore) else s.args[-1]  # type: ignore[union-attr]


def _access(s: Op) -> Access:
    return (s.attr, s.args, s) if s.op == "gload" else (atomic_of(s)[0], index_of(s), s)  # type: ignore[return-value]


class _Flow:
    def __init__(self, tasks: list[Task], activities: list[Activity]) -> None:
        self.order = Order(tasks, parallel=True)
        self.varied: set[Op | Local] = set().union(*(a.varied for a in activities))
        self.written = Writes(*tasks)
        self.lost: dict[Place, list[Access]] = {}
        self.source: dict[Operand | Local, Op] = {}  # what depends on a lost value -> the load that brought it back
        self._seen: set[int] = set()

    def step(self) -> bool:
        """One pass over the program; whether it found anything new."""
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
                    rules = zip(s.args, ADJOINT[s.op], strict=True)
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
            value = _written_value(s)
            if place.differentiable:
                if value in self.source:
                    self._refuse(self.source[value])
            elif place.dtype.is_real and (value in self.varied or value in self.source) and id(s) not in self._seen:
                self._seen.add(id(s))
                self.lost.setdefault(place, []).append((place, index, s))

    def _refuse(self, load: Op) -> None:
        place = _access(load)[0]
        write = self.lost[place][0][2]
        line = f"line {write.loc.line}" if getattr(write, "loc", None) else "an earlier statement"  # type: ignore[union-attr]
        raise DifferentiationError(
            f"the gradient is lost in `{place.name}`, which has none: {line} writes a differentiable value to it, and the loss may depend"
            " on what is read here",
            load.loc,
            f"make `{place.name}` with needs_grad=True; to stop the gradient here on purpose, write stop_grad({place.name})",
        )


__all__ = ["check_paths"]
