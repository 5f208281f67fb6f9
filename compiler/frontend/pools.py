"""Levels with a budget: which cells a loop activates is computed before it, and gives them blocks.

A loop that activates cells is preceded by one that does nothing else, computes only what that needs, and sets the flags. Then a loop over
the cells takes a block for each cell that has become active: each cell is asked by one thread, so nothing waits for anything. After a
loop that deactivates cells their blocks are given back. Within one loop the blocks of cells do not change.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import QdrunSyntaxError
from ..ir.alias import may_alias
from ..ir.builder import StatementBuilder
from ..ir.nodes import (
    Assert,
    Axis,
    Block,
    Const,
    Exit,
    GlobalStore,
    Kernel,
    Local,
    LocalStore,
    Op,
    Operand,
    Place,
    Stmt,
    Task,
)
from ..ir.types import i32
from ..ir.walk import inner_blocks, operands, place_of, walk, written_places
from ..passes.clone import clone_task
from .values.budget import PoolRef, used_up


def plan_pools(kernel: Kernel, pools: Mapping[Place, PoolRef]) -> None:
    """Add the tasks that give blocks to cells and take them back, in place. ``pools``: those whose activity changes, by their flags.

    Raises:
        QdrunSyntaxError: which cells a loop activates depends on what it writes.
    """
    if not pools:
        return
    tasks: list[Task] = []
    for task in kernel.tasks:
        stores = [s for s in walk(task.body) if isinstance(s, GlobalStore) and s.place in pools]
        begun = {s.place: pools[s.place] for s in stores if not _is_zero(s.value)}
        ended = {s.place: pools[s.place] for s in stores if _is_zero(s.value)}
        if begun:
            tasks.append(_Activation(task, begun).only())
        tasks += [step(task, pool) for pool in begun.values() for step in (_take, _check)]
        tasks.append(task)
        tasks += [_give_back(task, pool) for pool in ended.values()]
        for pool in ended.values():
            kernel.frees = pool.name
    kernel.tasks[:] = tasks


def _is_zero(x: Operand) -> bool:
    return isinstance(x, Const) and not x.value


class _Activation:
    """A task without all that does not decide which cells of some levels it activates."""

    def __init__(self, task: Task, pools: Mapping[Place, PoolRef]) -> None:
        self._pools, self._written = pools, written_places(task.body)
        self._task = clone_task(task)
        self._task.name = f"{task.name}_cells"
        self._values: set[Op] = set()
        self._locals: set[Local] = set()
        self._kept: set[int] = set()
        for s in walk(task.body):
            if isinstance(s, Op) and s.op == "gload" and isinstance(s.attr, Place) and s.attr in pools:
                self._refuse(s, pools[s.attr])

    def only(self) -> Task:
        """The task.

        Raises:
            QdrunSyntaxError: it depends on what the whole task writes.
        """
        size = -1
        while size != len(self._values) + len(self._locals) + len(self._kept):
            size = len(self._values) + len(self._locals) + len(self._kept)
            self._find(self._task.body)
        self._strip(self._task.body)
        for s in walk(self._task.body):
            if isinstance(s, Op) and (s.op == "atomic" or (s.op == "gload" and self._changes(s))):
                self._refuse(s, next(iter(self._pools.values())))
        return self._task

    def _changes(self, s: Op) -> bool:
        """Whether the whole task may write what is loaded."""
        place = place_of(s)
        return place is not None and any(may_alias(place, p) for p in self._written)

    def _refuse(self, s: Op, pool: PoolRef) -> None:
        raise QdrunSyntaxError(
            f"which cells of `{pool.name}` become active depends on what the same loop writes, and the level has a budget",
            s.loc,
            "activate the cells in a loop before, with qd.activate(level, index)",
        )

    def _find(self, block: Block) -> bool:
        """Note what is needed of a block; whether it has statements with an effect among that."""
        some = False
        for s in block:
            kept = self._is_needed(s)
            for inner in inner_blocks(s):
                kept |= self._find(inner)
            if kept:
                some |= not isinstance(s, Op)
                self._kept.add(id(s))
                self._values.update(x for x in operands(s) if isinstance(x, Op))
                if isinstance(s, Op) and isinstance(s.attr, Local):
                    self._locals.add(s.attr)
        return some

    def _is_needed(self, s: Stmt) -> bool:
        match s:
            case GlobalStore():
                return s.place in self._pools and not _is_zero(s.value)
            case LocalStore():
                return s.local in self._locals
            case Assert():
                return s.kind == "bounds"  # of an index
            case Op():
                return s in self._values
        return isinstance(s, Exit)

    def _strip(self, block: Block) -> None:
        block[:] = [s for s in block if id(s) in self._kept]
        for s in block:
            for inner in inner_blocks(s):
                self._strip(inner)


def _cells(task: Task, pool: PoolRef, what: str) -> tuple[Task, StatementBuilder, tuple[Operand, ...]]:
    """A task over the cells of a level: it, its builder, the index of a cell."""
    axes = [Axis(Op("index", (), i32, None, task.loc), Const(0, i32), Const(n, i32)) for n in pool.slots.shape or ()]
    out = Task(f"{task.name}_{what}", [], axes, loc=task.loc)
    b = StatementBuilder(out.body)
    b.loc = task.loc
    return out, b, tuple(a.index for a in axes)


def _take(task: Task, pool: PoolRef) -> Task:
    """The task that gives a block to each active cell that has none. Where none is left, the cell becomes inactive."""
    out, b, cell = _cells(task, pool, "take")
    zero, one = Const(0, i32), Const(1, i32)
    active, none = (b.op(code, b.gload(p, cell), zero) for code, p in (("ne", pool.flags), ("eq", pool.slots)))
    with b.if_(active), b.if_(none):
        used = b.atomic("add", pool.free, (zero,), one)
        with b.if_(b.op("lt", used, Const(pool.count, i32))) as fits:
            at = b.op("add", used, one)
            found = b.gload(pool.free, (at,))
            b.gstore(pool.slots, cell, b.op("select", b.op("eq", found, zero), at, found))
        with b.into(fits.orelse):
            b.gstore(pool.flags, cell, zero)
    return out


def _check(task: Task, pool: PoolRef) -> Task:
    """The task that stops the launch if there were too few blocks."""
    b = StatementBuilder([])
    b.loc = task.loc
    zero, count = Const(0, i32), Const(pool.count, i32)
    used = b.gload(pool.free, (zero,))
    fits = b.op("le", used, count)
    with b.if_(b.op("not", fits)):
        b.gstore(pool.free, (zero,), count)
    message = used_up(pool.name, pool.budget, pool.count, pool.block_bytes, "{}")
    b.put(Assert(fits, message, (b.op("sub", used, count),)))
    return Task(f"{task.name}_check_budget", b.block, loc=task.loc)


def _give_back(task: Task, pool: PoolRef) -> Task:
    """The task that takes the block of each cell that is not active any more."""
    out, b, cell = _cells(task, pool, "give_back")
    zero = Const(0, i32)
    slot = b.gload(pool.slots, cell)
    inactive, some = b.op("eq", b.gload(pool.flags, cell), zero), b.op("ne", slot, zero)
    with b.if_(inactive), b.if_(some):
        used = b.atomic("sub", pool.free, (zero,), Const(1, i32))
        b.gstore(pool.free, (used,), slot)
        b.gstore(pool.slots, cell, zero)
    return out
