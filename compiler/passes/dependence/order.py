"""The order of statements: which may run after which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ir.nodes import Block, If, Loop, Stmt, Task

Position = tuple[int, tuple[object, ...]]  # number of the statement, the loops around it


class StatementOrder:
    """The positions of all statements of some tasks, one after the other.

    ``parallel``: whether a parallel task counts as a loop, whose iterations see each other.
    """

    def __init__(self, tasks: Iterable[Task], parallel: bool = False) -> None:
        self._positions: dict[int, Position] = {}
        self.statements: list[Stmt] = []
        for task in tasks:
            around: tuple[object, ...] = (task,) if parallel and task.parallel else ()
            for s, loops in _walk(task.body, around):
                self._positions[id(s)] = len(self.statements), loops
                self.statements.append(s)

    def number(self, s: Stmt) -> int:
        """The number of a statement in program order."""
        return self._positions[id(s)][0]

    def loops(self, s: Stmt) -> tuple[object, ...]:
        """The loops around a statement, outermost first."""
        return self._positions[id(s)][1]

    def in_one_loop(self, a: Stmt, b: Stmt) -> bool:
        """Whether some loop holds both, so that each may run before the other."""
        return bool(set(self.loops(a)) & set(self.loops(b)))

    def may_follow(self, late: Stmt, early: Stmt) -> bool:
        """Whether ``late`` may run after ``early``: it stands behind it, or a loop holds both."""
        return self.number(late) > self.number(early) or self.in_one_loop(late, early)


def _walk(block: Block, loops: tuple[object, ...]) -> Iterator[tuple[Stmt, tuple[object, ...]]]:
    for s in block:
        yield s, loops
        if isinstance(s, If):
            yield from _walk(s.then, loops)
            yield from _walk(s.orelse, loops)
        elif isinstance(s, Loop):
            yield from _walk(s.body, (*loops, s))
