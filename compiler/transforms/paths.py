"""Where a gradient would be lost without a word: in an array without a gradient, between two statements of one kernel."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import DifferentiationError
from ..ir.nodes import Block, GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ..ir.walk import written_places
from .access import writes_of
from .activity import Activity
from .derivatives import carries
from .indexing import never_same

Position = tuple[int, tuple[Loop, ...]]  # number of the statement in the kernel, the loops around it


def check_paths(tasks: list[Task], activities: list[Activity]) -> None:
    """Refuse a differentiable value that goes through an array without a gradient and comes back into one with a gradient.

    Raises:
        DifferentiationError: names the array and both lines.
    """
    flow = _Flow(tasks, activities)
    while flow.step():
        pass


class _Flow:
    def __init__(self, tasks: list[Task], activities: list[Activity]) -> None:
        self.statements: list[tuple[Stmt, Position]] = []
        for task in tasks:
            self.statements += _numbered(task.body, (), len(self.statements))
        self.varied: set[Op | Local] = set().union(*(a.varied for a in activities))
        self.written = set().union(*(written_places(t.body) for t in tasks))
        self.lost: dict[Place, list[tuple[tuple[Operand, ...], Stmt, Position]]] = {}
        self.source: dict[Operand | Local, Op] = {}  # what depends on a lost value -> the load that brought it back
        self._seen: set[int] = set()

    def step(self) -> bool:
        """One pass over the program; whether it found anything new."""
        before = len(self._seen) + len(self.source)
        for s, position in self.statements:
            if isinstance(s, LocalStore):
                self._derive(s.local, (s.value,))
            elif isinstance(s, Op) and s.op == "load":
                self._derive(s, (s.attr,))  # type: ignore[arg-type]
            elif isinstance(s, Op) and s.op == "gload":
                self._load(s, position)
            elif isinstance(s, Op) and s.op != "atomic":
                if carries(s):
                    self._derive(s, s.args)
            else:
                self._write(s, position)
        return len(self._seen) + len(self.source) > before

    def _derive(self, x: Op | Local, parts: tuple[Operand | Local, ...]) -> None:
        found = next((self.source[p] for p in parts if p in self.source), None)
        if found is not None:
            self.source.setdefault(x, found)

    def _load(self, s: Op, position: Position) -> None:
        for where, _, at in self.lost.get(s.attr, ()):  # type: ignore[arg-type]
            again = set(at[1]) & set(position[1])  # in a common loop, the write comes before the next iteration's load
            if (at[0] < position[0] or again) and not never_same(s.args, where, self.written):
                self.source.setdefault(s, s)

    def _write(self, s: Stmt, position: Position) -> None:
        for place, index, _ in writes_of([s]):
            value = s.value if isinstance(s, GlobalStore) else s.args[-1]  # type: ignore[union-attr]
            if place.differentiable:
                if value in self.source:
                    self._refuse(self.source[value])
            elif place.dtype.is_real and (value in self.varied or value in self.source) and id(s) not in self._seen:
                self._seen.add(id(s))
                self.lost.setdefault(place, []).append((index, s, position))

    def _refuse(self, load: Op) -> None:
        place = load.attr
        assert isinstance(place, Place)
        write = self.lost[place][0][1]
        line = f"line {write.loc.line}" if getattr(write, "loc", None) else "an earlier statement"  # type: ignore[union-attr]
        raise DifferentiationError(
            f"the gradient is lost in `{place.name}`, which has none: {line} writes a differentiable value to it, and the loss may depend"
            " on what is read here",
            load.loc,
            f"make `{place.name}` with needs_grad=True; to stop the gradient here on purpose, read it in a kernel of its own",
        )


def _numbered(block: Block, loops: tuple[Loop, ...], first: int) -> list[tuple[Stmt, Position]]:
    out: list[tuple[Stmt, Position]] = []
    for s, around in _walk(block, loops):
        out.append((s, (first + len(out), around)))
    return out


def _walk(block: Block, loops: tuple[Loop, ...]) -> Iterator[tuple[Stmt, tuple[Loop, ...]]]:
    for s in block:
        if isinstance(s, (Op, LocalStore, GlobalStore)):
            yield s, loops
        elif isinstance(s, If):
            yield from _walk(s.then, loops)
            yield from _walk(s.orelse, loops)
        elif isinstance(s, Loop):
            yield from _walk(s.body, (*loops, s))


__all__ = ["check_paths"]
