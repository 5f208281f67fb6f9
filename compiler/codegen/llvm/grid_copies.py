"""Several iterations of a thread side by side, where a body does little but wait for memory.

A short body has one or two loads, and as many threads as the device holds do not keep enough of them on their way to use its bandwidth.
So a thread takes a few iterations at once, statement by statement: all of them load before any stores. The iterations of a parallel loop
may run at the same time, so that nothing needs to be known of where the pointers point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...ir.nodes import GlobalStore, If, Local, LocalStore, Op, Task
from ...ir.walk import cooperates, walk
from . import arith, grid_wide
from .grid_wide import Wide
from .task import identity

if TYPE_CHECKING:
    from .grid import GridEmitter

TILED = True
"""Whether the iterations of a thread lie a block's threads apart, or a grid's."""

MOST_COPIES, LOADS, STATEMENTS = 4, 8, 48
"""Iterations side by side, where an access is one element; loads on their way that are enough; statements of a body that is short."""


@dataclass(slots=True)
class Copy:
    """What the emitter knows of one of the iterations."""

    values: dict[Op, tuple[str, bool]]
    wide: dict[Op, str]
    locals: dict[Local, str] = field(default_factory=dict)
    iteration: tuple[str, bool] = ("0", False)

    def enter(self, e: GridEmitter) -> None:
        """Let the emitter write this iteration."""
        e.values, e.wide, e.locals, e.iteration = self.values, self.wide, self.locals, self.iteration


def copies_of(task: Task, plain: frozenset[Op]) -> tuple[int, Wide | None]:
    """How many iterations a thread takes at once, and which accesses they share."""
    body = list(walk(task.body))
    if not task.parallel or task.stacks or cooperates(task) or len(body) > STATEMENTS:
        return 1, None
    if not all(isinstance(s, (Op, LocalStore, GlobalStore, If)) for s in body):
        return 1, None
    loads = sum(isinstance(s, Op) and (s.op == "gload" or s in plain) for s in body)
    if not loads:
        return 1, None
    n = max(1, min(MOST_COPIES, LOADS // loads))
    wide = grid_wide.plan(task, plain) if TILED and loads <= LOADS else None
    if wide is None or wide.group * len(body) > MOST_COPIES * STATEMENTS:
        return n, None
    return max(n, wide.group), wide


def start(e: GridEmitter, n: int) -> list[Copy]:
    """The iterations; each folds reductions on its own."""
    copies = [Copy(dict(e.values), dict(e.wide), e.locals)]
    for _ in range(n - 1):
        copy = Copy(dict(e.values), dict(e.wide))
        for r in e.task.reductions:
            ty = e.ty(r.local.dtype, False)
            copy.locals[r.local] = e.slot(ty)
            e.put(f"store {ty} {identity(r)}, ptr {copy.locals[r.local]}")
        copies.append(copy)
    return copies


def body(e: GridEmitter, copies: list[Copy], unset: list[Local]) -> None:
    """One pass through the body by all of the iterations, whose indices are known."""
    for copy in copies:
        copy.enter(e)
        for x in unset:
            e.reset(x)
    wide = e.wide_accesses if len(copies) > 1 else None
    for s in e.task.body:
        if wide is not None and s in wide.accesses:
            for k in range(0, len(copies), wide.group):
                grid_wide.emit(e, wide, s, copies[k : k + wide.group])
            continue
        for copy in copies:
            copy.enter(e)
            e.block([s])
    copies[0].enter(e)


def join(e: GridEmitter, copies: list[Copy]) -> None:
    """Fold what the iterations have folded into what the first one has."""
    for r in e.task.reductions:
        d, ty = r.local.dtype, e.ty(r.local.dtype, False)
        total = e.t(f"load {ty}, ptr {copies[0].locals[r.local]}")
        for copy in copies[1:]:
            total = arith.binary(e, r.code, d, False, total, e.t(f"load {ty}, ptr {copy.locals[r.local]}"))
        e.put(f"store {ty} {total}, ptr {copies[0].locals[r.local]}")
