"""Prepares a task: what reverse mode spread over two ``if``s with one condition comes together again."""

from __future__ import annotations

from ...ir.builder import StatementBuilder
from ...ir.nodes import Block, Const, If, Local, LocalStore, Op, Operand, Task
from ...ir.ops import TABLE
from ...ir.walk import inner_blocks, walk
from ..clone import clone_task, substitute
from ..simplify.simplify import simplify_in_place

Path = tuple[tuple[Operand, bool], ...]
"""The conditions around a statement, and whether they hold there."""


def prepared(task: Task) -> Task:
    """A copy of a task with fewer ``if``s, and fewer indices in locals."""
    out = clone_task(task)
    fuse_ifs(out.body)
    _IndexLocals(out)
    simplify_in_place(out)
    return out


def fuse_ifs(block: Block) -> None:
    """Merge neighbouring ``if``s with one condition."""
    out: Block = []
    for s in block:
        before = out[-1] if out else None
        if isinstance(s, If) and isinstance(before, If) and s.cond is before.cond and not s.site and not before.site:
            before.then += s.then
            before.orelse += s.orelse
        else:
            out.append(s)
    block[:] = out
    for s in block:
        for inner in inner_blocks(s):
            fuse_ifs(inner)


class _IndexLocals:
    """Computes an index again where a local brings it from one arm of an ``if`` to another that runs under the same condition."""

    def __init__(self, task: Task) -> None:
        self._axes = {a.index for a in task.axes}
        self._stores: dict[Local, tuple[Path, Operand]] = {}
        self._known: dict[Op, Operand] = {}
        stored = [s.local for s in walk(task.body) if isinstance(s, LocalStore) and not isinstance(s.value, Const)]
        self._once = {local for local in stored if stored.count(local) == 1 and local.dtype.kind == "i"}
        self._block(task.body, ())
        for s in walk(task.body):
            substitute(s, self._known)

    def _block(self, block: Block, path: Path) -> None:
        b = StatementBuilder([])
        for s in block:
            if isinstance(s, Op) and s.op == "load" and s.attr in self._stores:
                there, value = self._stores[s.attr]  # type: ignore[index]
                if path[: len(there)] == there:
                    self._known[s] = self._again(b, value, {})
                    continue
            b.block.append(s)
            if isinstance(s, LocalStore) and s.local in self._once:
                self._store(s, path)
            elif isinstance(s, If):
                self._block(s.then, (*path, (s.cond, True)))
                self._block(s.orelse, (*path, (s.cond, False)))
        block[:] = b.block

    def _store(self, s: LocalStore, path: Path) -> None:
        if not isinstance(s.value, Const) and self._is_index(s.value):
            self._stores[s.local] = path, s.value
        elif path or s.local in self._stores:  # a literal is stored before, for all paths
            self._stores.pop(s.local, None)
            self._once.discard(s.local)

    def _is_index(self, x: Operand) -> bool:
        """Whether a value is computed from the indices of the axes and arguments alone."""
        if isinstance(x, Const) or x in self._axes or x.op in ("arg", "shape"):
            return True
        return TABLE[x.op].pure and TABLE[x.op].arity > 0 and all(map(self._is_index, x.args))

    def _again(self, b: StatementBuilder, x: Operand, env: dict[Op, Operand]) -> Operand:
        if isinstance(x, Const) or x in self._axes:
            return x
        if x not in env:
            env[x] = b.op(x.op, *(self._again(b, a, env) for a in x.args), dtype=x.dtype, attr=x.attr)
        return env[x]
