"""Common subexpressions: a value that was computed before, in this block or around it, is not computed again.

A load counts as the same only while nothing was written in between: its key holds the version of what it reads, and every write
gives a new version. What a loop or an arm may write gets a new version around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from ...ir.alias import Aliases
from ...ir.nodes import Block, Const, GlobalStore, If, Local, LocalStore, Loop, Op, Operand, Place, Stmt, Task
from ...ir.ops import COMMUTATIVE, TABLE
from ...ir.verify import verified
from ...ir.walk import FENCES, Written, place_of, places_of
from ..clone import replace_head, substitute

Key = tuple[object, ...]
_DIFFERENT_EACH_TIME = FENCES | {"atomic", "stack_get", "shuffle", "ballot"}


@verified(lowered=False)
def cse_in_place(task: Task, aliases: Aliases | None = None) -> bool:
    """Merge the common subexpressions of one task; whether there were any. ``aliases``: of its places, and perhaps of others."""
    merger = _Merger(task, aliases or Aliases(places_of(task)))
    with_prologue = len(merger.log)
    merger.block(task.prologue)
    replace_head(task, merger.value)
    merger.forget(with_prologue)  # the body does not see the prologue's values
    merger.block(task.body)
    return bool(merger.same)


def key_of(x: Operand) -> object:
    """Equal for operands that are certainly the same value: 1, 1.0 and True differ, and so do the two zeros."""
    return (repr(x.value), x.dtype) if isinstance(x, Const) else x


def element_key(index: Iterable[Operand]) -> tuple[object, ...]:
    """Equal for indices that are certainly the same element. The type of a literal decides nothing: ``x[0]`` has two of them."""
    return tuple(int(x.value) if isinstance(x, Const) else x for x in index)


class _Merger:
    def __init__(self, task: Task, aliases: Aliases) -> None:
        self.aliases = aliases
        self.same: dict[Op, Op] = {}  # merged value -> remaining value
        self.available: dict[Key, Op] = {}
        self.log: list[Key] = []  # keys in the order in which they became available
        self.versions: dict[Local | Place, int] = {}
        self.changes: list[tuple[Local | Place, int]] = []  # what was written, and its version before
        self.written = Written(task.prologue, task.body)
        self.fresh = count(1)

    def value(self, x: Operand) -> Operand:
        """The replacement of an operand."""
        return self.same.get(x, x) if isinstance(x, Op) else x

    def forget(self, mark: int) -> None:
        """Leave a scope: what became available since ``mark`` no longer is."""
        while len(self.log) > mark:
            del self.available[self.log.pop()]

    def wrote(self, targets: Iterable[Local | Place]) -> None:
        """Give new versions to what was, or may have been, written."""
        for target in targets:
            for changed in self.aliases.of(target) if isinstance(target, Place) else (target,):
                self.changes.append((changed, self.versions.get(changed, 0)))
                self.versions[changed] = next(self.fresh)

    def go_back(self, mark: int) -> None:
        """Forget the versions since ``mark``: what was written on one arm was not written on the other."""
        while len(self.changes) > mark:
            changed, version = self.changes.pop()
            self.versions[changed] = version

    def block(self, block: Block) -> None:
        """Merge within a block; values of enclosing blocks are available."""
        mark = len(self.log)
        block[:] = [s for s in block if self.stays(s)]
        self.forget(mark)

    def stays(self, s: Stmt) -> bool:
        """Process a statement; False when an earlier value takes its place."""
        if self.same:
            substitute(s, self.same)
        match s:
            case Op():
                return self.op(s)
            case LocalStore():
                self.wrote((s.local,))
            case GlobalStore():
                self.wrote((s.place,))
            case If():
                mark = len(self.changes)
                self.block(s.then)
                self.go_back(mark)
                self.block(s.orelse)
                self.go_back(mark)
                self.wrote(self.written(s.then) | self.written(s.orelse))
            case Loop():
                written = self.written(s.body)
                self.wrote(written)
                self.block(s.body)
                self.wrote(written)
        return True

    def op(self, s: Op) -> bool:
        """Look a value up, or make it available."""
        if s.op == "atomic":
            place = place_of(s)
            assert place is not None
            self.wrote((place,))
        if s.op in FENCES:
            self.wrote(self.aliases.all)
        if s.op in _DIFFERENT_EACH_TIME:
            return True
        key = self.key(s)
        earlier = self.available.get(key)
        if earlier is None:
            self.available[key] = s
            self.log.append(key)
            return True
        self.same[s] = earlier
        return False

    def key(self, s: Op) -> Key:
        """The key of an operation: operations with equal keys compute the same value."""
        args = [a if a.__class__ is Op else key_of(a) for a in s.args]
        if s.op in COMMUTATIVE:
            x, y = s.args
            if isinstance(x, Op) and (not isinstance(y, Op) or y.id < x.id):
                args.reverse()
        version = 0 if TABLE[s.op].pure else self.versions.get(s.attr, 0)  # type: ignore[arg-type]
        return (s.op, s.dtype, s.attr, version, *args)
