"""Reaching definitions: one walk over a task gives each load of a variable the stores that can reach it.

A variable is a ``Local``, or an integer temporary of the kernel without axes, which a serial task sets like a local.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...ir.nodes import Block, GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.walk import atomic_of
from .sizeexpr import UnknownExpr

Variable = Local | Place


@dataclass(frozen=True)
class Before:
    """The value of a temporary after the preceding tasks."""

    place: Place


@dataclass(frozen=True, eq=False)
class Phi:
    """The value where two branches join: one of two, by a condition."""

    cond: Operand
    then: Reaching
    orelse: Reaching


@dataclass(eq=False)
class Carried:
    """The value of a variable in a loop: at the start of an iteration, or (``left``) after the loop.

    Attributes:
        symbol: stands for the value in formulas.
        before: the value in front of the loop.
        after: the value at the end of an iteration.
        top: the symbol of the same variable at the top of an iteration.
    """

    loop: Loop
    variable: Variable
    before: Reaching
    after: Reaching
    left: bool
    top: Op
    symbol: Op


Reaching = UnknownExpr | Before | Operand | Phi | Carried
"""The definitions that reach a load: a stored operand, or what stands for it."""
NEVER = UnknownExpr("a variable that was never set")


class ReachingDefinitions:
    """The values that reach each load of a variable in a task.

    Attributes:
        at: by the load.
        end: what temporaries hold at the end.

    Args:
        task: which one.
        reals: real locals are followed, too.
    """

    def __init__(self, task: Task, reals: bool = False) -> None:
        self._parallel, self._reals = task.parallel, reals
        self.at: dict[Op, Reaching] = {}
        self._now: dict[Variable, Reaching] = {r.local: UnknownExpr("a running total") for r in task.reductions}
        self._changed: dict[Variable, Reaching | None] = {}  # in the block that is walked: what was there before
        self._stored: dict[int, set[Variable]] = {}  # by block, inner blocks included
        self._note(task.body)
        if self._parallel:  # what an iteration finds depends on the others
            for v in self._stored[id(task.body)]:
                if isinstance(v, Place):
                    self._now[v] = UnknownExpr(f"`{v.name}`, which is written by the same loop")
        self._block(task.prologue)
        self._block(task.body)
        self.end = {v: x for v, x in self._now.items() if isinstance(v, Place)}

    # ---- which variables a block stores to
    def _note(self, block: Block) -> set[Variable]:
        out: set[Variable] = set()
        for s in block:
            if isinstance(s, If):
                out |= self._note(s.then) | self._note(s.orelse)
            elif isinstance(s, Loop):
                out |= self._note(s.body)
            else:
                v = self._target(s)
                if v is not None:
                    out.add(v)
        self._stored[id(block)] = out
        return out

    # ---- the walk
    def _block(self, block: Block) -> None:
        for s in block:
            if isinstance(s, If):
                self._if(s)
            elif isinstance(s, Loop):
                self._loop(s)
            elif isinstance(s, Op) and s.op == "load":
                assert isinstance(s.attr, Local)
                self.at[s] = self._now.get(s.attr, NEVER)
            elif isinstance(s, Op) and s.op == "gload" and is_variable(s.attr):
                self.at[s] = self._get(s.attr)  # type: ignore[arg-type]
            else:
                self._store(s)

    def _target(self, s: Stmt) -> Variable | None:
        """The variable that a statement stores to."""
        if isinstance(s, LocalStore):
            return s.local if self._reals or s.local.dtype.is_int else None
        if isinstance(s, GlobalStore):
            return s.place if is_variable(s.place) else None
        if isinstance(s, Op) and s.op == "atomic":
            place = atomic_of(s)[0]
            return place if is_variable(place) else None
        return None

    def _store(self, s: Stmt) -> None:
        v = self._target(s)
        if v is None or (isinstance(v, Place) and self._parallel):
            return
        if isinstance(s, (LocalStore, GlobalStore)):
            self._set(v, s.value)
        else:
            self._set(v, UnknownExpr(f"`{v.name}` is updated atomically"))

    def _get(self, v: Variable) -> Reaching:
        return self._now.get(v) or (Before(v) if isinstance(v, Place) else NEVER)

    def _set(self, v: Variable, value: Reaching) -> None:
        self._changed.setdefault(v, self._now.get(v))
        self._now[v] = value

    def _arm(self, block: Block) -> dict[Variable, Reaching]:
        """The values of the variables that a block changes, at its end; the current values are restored."""
        outer, self._changed = self._changed, {}
        self._block(block)
        made = {v: self._now[v] for v in self._changed}
        for v, before in self._changed.items():
            if before is None:
                del self._now[v]
            else:
                self._now[v] = before
        self._changed = outer
        return made

    def _if(self, s: If) -> None:
        then, orelse = self._arm(s.then), self._arm(s.orelse)
        for v in _ordered(then, orelse):
            a, b = then.get(v) or self._get(v), orelse.get(v) or self._get(v)
            self._set(v, a if b is NEVER else b if a is NEVER else Phi(s.cond, a, b))

    def _loop(self, s: Loop) -> None:
        stored = sorted(self._stored[id(s.body)], key=_order) if id(s.body) in self._stored else []
        if self._parallel:
            stored = [v for v in stored if isinstance(v, Local)]
        inside: dict[Variable, Carried] = {}
        for v in stored:
            symbol = _symbol(v)
            inside[v] = Carried(s, v, self._get(v), NEVER, False, symbol, symbol)
        outer, self._changed = self._changed, {}
        before = {v: self._now.get(v) for v in stored}
        self._now.update(inside)
        self._block(s.body)
        self._changed = outer
        for v, entry in inside.items():
            entry.after = self._now[v]
            if before[v] is None:
                del self._now[v]
            else:
                self._now[v] = before[v]  # type: ignore[assignment]
            self._set(v, Carried(s, v, entry.before, entry.after, True, entry.symbol, _symbol(v)))


def _symbol(v: Variable) -> Op:
    return Op("index", (), v.dtype)


def is_variable(place: object) -> bool:
    """Whether a place is a temporary that is set like a local: an integer without axes."""
    return isinstance(place, Place) and place.buffer.kind == "tmp" and place.ndim == 0 and place.dtype.is_int


def _ordered(*several: Iterable[Variable]) -> list[Variable]:
    return sorted({v for each in several for v in each}, key=_order)


def _order(v: Variable) -> tuple[str, int]:
    """Any order that does not depend on the process."""
    return v.name, v.id if isinstance(v, Local) else 0
