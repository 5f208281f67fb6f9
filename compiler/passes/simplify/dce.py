"""Dead code: what no effect needs.

First a mark from the effects (stores to memory, atomics, asserts, prints, adstack writes, exits, endless loops): a value marks
its operands, a load marks every store to its local, a statement marks the ifs and loops around it. Then a walk backwards drops
stores to locals that are overwritten before they are read. A loop whose range is finite goes when nothing in it is needed; an
endless one never does, because to end is an effect.
"""

from __future__ import annotations

from ...ir.nodes import (
    Assert,
    Block,
    ClaimRow,
    Exit,
    GlobalStore,
    If,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Overflow,
    Print,
    StackPut,
    Stmt,
    Task,
)
from ...ir.verify import verified
from ...ir.walk import operands, task_blocks

VALUES, STATEMENTS, OVERWRITTEN = 1, 2, 3
"""What a run of the pass drops: values only; other statements, too; also stores that are overwritten, whose values may be dead then."""


@verified(lowered=False)
def dce_in_place(task: Task, keep_slopes: bool = False) -> int:
    """Drop the dead code of one task; what was dropped, 0 for nothing. ``keep_slopes``: a number keeps the ``attach`` of its derivative."""
    marked = _Needed(task, keep_slopes).marked
    dropped = max(_sweep(task.prologue, marked), _sweep(task.body, marked))
    stores = _DeadStores(task, {r.local for r in task.reductions})
    stores.block(task.body)
    return OVERWRITTEN if stores.dropped else dropped


class _Needed:
    """The statements that some effect needs."""

    def __init__(self, task: Task, keep_slopes: bool = False) -> None:
        self.marked: set[int] = set()
        self._around: dict[int, Stmt | None] = {}  # the if or loop around a statement, by the statement's identity
        self._stores: dict[Local, list[Stmt]] = {}
        self._locals: set[Local] = set()
        self._slopes: dict[Operand, list[Stmt]] = {}
        if keep_slopes:
            for s in task_blocks(task):
                if isinstance(s, Op) and s.op == "attach":
                    self._slopes.setdefault(s.args[0], []).append(s)
        self._todo: list[Stmt] = []
        self._index(task.prologue, None)
        self._index(task.body, None)
        kept_loops = {stack.loop for stack in task.stacks}
        for a in task.axes:
            self._values((a.begin, a.end))
        for r in task.reductions:
            self._values(r.index)
            self._local(r.local)
        for s in task_blocks(task):
            if s.op in _EFFECT_OPS if isinstance(s, Op) else _is_effect(s) or s in kept_loops:
                self._mark(s)
        while self._todo:
            self._spread(self._todo.pop())

    def _index(self, block: Block, around: Stmt | None) -> None:
        for s in block:
            self._around[id(s)] = around
            if isinstance(s, LocalStore):
                self._stores.setdefault(s.local, []).append(s)
            elif isinstance(s, If):
                self._index(s.then, s)
                self._index(s.orelse, s)
            elif isinstance(s, Loop):
                self._index(s.body, s)

    def _mark(self, s: Stmt) -> None:
        if id(s) not in self.marked:
            self.marked.add(id(s))
            self._todo.append(s)
            for slope in self._slopes.get(s, ()) if isinstance(s, Op) else ():
                self._mark(slope)

    def _values(self, values: tuple[Operand, ...]) -> None:
        for x in values:
            # indices and launch parameters are not listed in a block
            if isinstance(x, Op) and id(x) in self._around and id(x) not in self.marked:
                self._mark(x)

    def _local(self, local: Local) -> None:
        if local not in self._locals:
            self._locals.add(local)
            for s in self._stores.get(local, ()):
                self._mark(s)

    def _spread(self, s: Stmt) -> None:
        """Mark what a needed statement needs."""
        if isinstance(s, Op):
            if s.args:
                self._values(s.args)
            elif s.op == "load":
                self._local(s.attr)  # type: ignore[arg-type]
        else:
            self._values(operands(s))
            if isinstance(s, Loop) and s.exit is not None:
                self._local(s.exit)
        around = self._around[id(s)]
        if around is not None and id(around) not in self.marked:
            self._mark(around)


_EFFECT_OPS = frozenset(("atomic", "barrier", "fence", "mark"))
_EFFECTS = (GlobalStore, Assert, Print, StackPut, Overflow, ClaimRow, Exit)


def _is_effect(s: Stmt) -> bool:
    return s.end is None if isinstance(s, Loop) else isinstance(s, _EFFECTS)


def _sweep(block: Block, marked: set[int]) -> int:
    """Remove unused statements; returns which."""
    dropped = 0
    kept: Block = []
    for s in block:
        if id(s) not in marked:
            dropped = max(dropped, VALUES if isinstance(s, Op) else STATEMENTS)
            continue
        kept.append(s)
        if isinstance(s, If):
            dropped = max(dropped, _sweep(s.then, marked), _sweep(s.orelse, marked))
        elif isinstance(s, Loop):
            dropped = max(dropped, _sweep(s.body, marked))
    if len(kept) != len(block):
        block[:] = kept
    return dropped


class _DeadStores:
    """Walks backwards with the set of locals that may still be read. One set, changed and changed back: no arm copies it."""

    def __init__(self, task: Task, after: set[Local]) -> None:
        self.dropped = False
        self._live = set(after)
        self._changes: list[Local] = []  # each changed sides when it was listed
        self._reads: dict[int, set[Local]] = {}
        self._all = self._read(task.body) | after

    def block(self, block: Block) -> None:
        """Drop the block's dead stores; afterwards the set holds what may be read from the block's beginning on."""
        dead: set[int] = set()
        for s in reversed(block):
            if isinstance(s, Op):
                if s.op == "load":
                    self._set(s.attr, True)  # type: ignore[arg-type]
            elif isinstance(s, LocalStore) and s.local not in self._live:
                dead.add(id(s))
            else:
                self._stmt(s)
        if dead:
            self.dropped = True
            block[:] = [s for s in block if id(s) not in dead]

    def _stmt(self, s: Stmt) -> None:
        match s:
            case LocalStore():
                self._set(s.local, False)
            case If():
                mark = len(self._changes)
                self.block(s.orelse)
                other = self._go_back(mark)
                self.block(s.then)
                then = self._go_back(mark)
                for local in {**other, **then}:
                    after = local in self._live
                    self._set(local, other.get(local, after) or then.get(local, after))
            case Loop():
                for local in self._read(s.body):
                    self._set(local, True)
                if s.exit:
                    self._set(s.exit, True)
                mark = len(self._changes)
                self.block(s.body)
                self._go_back(mark)
            case Exit():
                for local in self._all:  # control goes elsewhere: anything may be read there
                    self._set(local, True)

    def _set(self, local: Local, live: bool) -> None:
        if (local in self._live) is not live:
            self._live.symmetric_difference_update((local,))
            self._changes.append(local)

    def _go_back(self, mark: int) -> dict[Local, bool]:
        """Undo what happened since ``mark``; returns what had changed, and to what."""
        changed: dict[Local, bool] = {}
        while len(self._changes) > mark:
            local = self._changes.pop()
            changed.setdefault(local, local in self._live)  # the last change of each is met first
            self._live.symmetric_difference_update((local,))
        return changed

    def _read(self, block: Block) -> set[Local]:
        """The locals that a block reads, and those by which its loops end; not to be changed."""
        known = self._reads.get(id(block))
        if known is None:
            known = self._reads[id(block)] = set()
            for s in block:
                if isinstance(s, Op):
                    if isinstance(s.attr, Local):
                        known.add(s.attr)
                elif isinstance(s, If):
                    known |= self._read(s.then) | self._read(s.orelse)
                elif isinstance(s, Loop):
                    known |= self._read(s.body) | ({s.exit} if s.exit else set())
        return known
