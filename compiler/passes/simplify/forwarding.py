"""Store-to-load forwarding: a load of what was stored before, with nothing written in between, is the stored value.

A local that is stored once thereby becomes a plain value wherever the store dominates. Locals that a loop carries stay as they
are: what a loop or an arm may write is unknown in it and after it. Memory is forwarded within one iteration and for equal
indices only; a write to anything that may be the same memory ends it.
"""

from __future__ import annotations

from typing import Any

from ...ir.alias import Aliases
from ...ir.nodes import Block, GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.verify import verified
from ...ir.walk import FENCES, Written, place_of, places_of
from ..clone import replace_head, substitute
from .cse import element_key

Index = tuple[object, ...]
Form = tuple[bool, ...]


@verified(lowered=False)
def forward_in_place(task: Task, aliases: Aliases | None = None) -> bool:
    """Forward the stores of one task; whether any load went. ``aliases``: of its places, and perhaps of others."""
    forwarder = _Forwarder(task, aliases or Aliases(places_of(task)))
    forwarder.block(task.prologue)
    replace_head(task, forwarder.value)
    forwarder.locals.clear()
    forwarder.cells.clear()
    forwarder.block(task.body)
    return bool(forwarder.known)


class _Forwarder:
    def __init__(self, task: Task, aliases: Aliases) -> None:
        self.aliases = aliases
        self.known: dict[Op, Operand] = {}  # a load and the value that it is
        self.locals: dict[Local, Operand] = {}
        # by the axes that hold literals, then by the literals: elements of one form with other literals are other elements
        self.cells: dict[Place, dict[Form, dict[Index, dict[Index, Operand]]]] = {}
        self.changes: list[tuple[dict[Any, Any], Any, Any]] = []  # table, key, what it held
        self.written = Written(task.prologue, task.body)

    def value(self, x: Operand) -> Operand:
        """The replacement of an operand."""
        return self.known.get(x, x) if isinstance(x, Op) else x

    def block(self, block: Block) -> None:
        """Forward within a block."""
        block[:] = [s for s in block if self.stays(s)]

    def arm(self, block: Block) -> None:
        """Forward into a nested block; its stores are not forwarded to the code after it."""
        mark = len(self.changes)
        self.block(block)
        while len(self.changes) > mark:
            table, key, before = self.changes.pop()
            if before is None:
                table.pop(key, None)
            else:
                table[key] = before

    def set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Change an entry of a table of known values (None: remove it), with a record to undo the change."""
        before = table.get(key)
        if value is not None:
            table[key] = value
        elif before is not None:
            del table[key]
        if value is not before:
            self.changes.append((table, key, before))

    def wrote(self, block: Block) -> None:
        """Forget what a nested block may write."""
        for target in self.written(block):
            if isinstance(target, Local):
                self.set(self.locals, target, None)
            else:
                self.clobber(target)

    def clobber(self, place: Place) -> None:
        """Forget what may share memory with ``place``."""
        for other in self.aliases.of(place):
            self.set(self.cells, other, None)

    def stays(self, s: Stmt) -> bool:
        """Process a statement; False when it is a load of a known value."""
        if self.known:
            substitute(s, self.known)
        match s:
            case Op():
                return self.op(s)
            case LocalStore():
                self.set(self.locals, s.local, s.value)
            case GlobalStore():
                self.store(s)
            case If():
                self.arm(s.then)
                self.arm(s.orelse)
                self.wrote(s.then)
                self.wrote(s.orelse)
            case Loop():
                self.wrote(s.body)
                self.arm(s.body)
        return True

    def store(self, s: GlobalStore) -> None:
        """Remember what an element holds now; forget the elements that it may be."""
        for other in self.aliases.of(s.place):
            if other is not s.place:
                self.set(self.cells, other, None)
        if s.place not in self.cells:
            self.set(self.cells, s.place, {})
        tables, index = self.cells[s.place], element_key(s.index)
        form, literals = _literals(index)
        for other, table in tables.items():
            if other != form:
                for key, cells in list(table.items()):
                    apart = {i: v for i, v in cells.items() if _differ(i, index)}
                    if len(apart) < len(cells):
                        self.set(table, key, apart or None)
        if form not in tables:
            self.set(tables, form, {})
        self.set(tables[form], literals, {index: s.value})

    def op(self, s: Op) -> bool:
        """Replace a load; an atomic invalidates the known values of its place, a barrier those of all places."""
        found: Operand | None = None
        if s.op == "load":
            assert isinstance(s.attr, Local)
            found = self.locals.get(s.attr)
        elif s.op == "gload":
            assert isinstance(s.attr, Place)
            index = element_key(s.args)
            form, literals = _literals(index)
            found = self.cells.get(s.attr, {}).get(form, {}).get(literals, {}).get(index)
        elif s.op == "atomic":
            place = place_of(s)
            assert place is not None
            self.clobber(place)
        elif s.op in FENCES:
            for place in self.aliases.all:
                self.set(self.cells, place, None)
        if found is None:
            return True
        self.known[s] = found
        return False


def _literals(index: Index) -> tuple[Form, Index]:
    """Which axes of an index hold literals, and these."""
    return tuple(not isinstance(x, Op) for x in index), tuple(x for x in index if not isinstance(x, Op))


def _differ(a: Index, b: Index) -> bool:
    """Whether two indices are certainly different elements: different literals on some axis."""
    return any(x != y and not isinstance(x, Op) and not isinstance(y, Op) for x, y in zip(a, b))
