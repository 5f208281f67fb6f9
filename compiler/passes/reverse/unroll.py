"""Short loops of literal length, written out before they are reversed: straight code keeps its values in registers, and needs no adstack.

Only loops that would keep states are written out. The gradient does not change: the copies are taken backwards in the order in which the
loop's iterations would be.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ...ir.nodes import Assert, Block, Const, GlobalStore, If, Loc, LocalStore, Loop, Op, Stmt, Task
from ...ir.walk import loop_names, walk
from ..clone import clone_block, clone_task
from .slices import Slicer

MOST_TRIPS = 16
MOST_STATEMENTS = 1024
"""Maximum statements of one unrolled loop. Its checkpoints would take three copies of the body and some 150 statements."""

MOST_OF_TASK = 4096
"""Maximum statements of all unrolled loops of a task that are longer than their checkpoints would be; earlier loops take precedence."""

_CHECKPOINTS = 150


def unrolled(task: Task, slices: Slicer, trips: int = MOST_TRIPS) -> Task | None:
    """A copy of a task without its short loops that keep states; None when it has none.

    Args:
        task: lowered; not changed.
        slices: of ``task``.
        trips: the most iterations of a loop that is written out; 0: none is.
    """
    chosen = _Choice(slices, trips)
    chosen.size(task.body, 1)
    if not chosen.loops:
        return None
    new = clone_task(task)
    _write_out(new.body, {copy for s, copy in zip(walk(task.body), walk(new.body), strict=True) if s in chosen.loops})
    return new


class _Choice:
    def __init__(self, slices: Slicer, trips: int) -> None:
        self.loops: set[Stmt] = set()
        self._slices, self._trips = slices, trips
        self._left = MOST_OF_TASK

    def size(self, block: Block, copies: int) -> int:
        """The statements that a block becomes; ``copies``: how many of it the reverse program has."""
        return sum(self._size(s, copies) for s in block)

    def _size(self, s: Stmt, copies: int) -> int:
        if isinstance(s, If):
            return 1 + self.size(s.then, copies) + self.size(s.orelse, copies)
        if not isinstance(s, Loop):
            return 1
        state = self._keeps_state(s)
        count = self._count(s) if state else 0
        body = self.size(s.body, copies if count or not state else copies + 2)
        written, kept = body * count, 1 + (3 * body + _CHECKPOINTS if state else body)
        if count and written <= MOST_STATEMENTS and (written <= kept or written * copies <= self._left):
            self._left -= written * copies if written > kept else 0
            self.loops.add(s)
            return written
        return kept

    def _keeps_state(self, s: Loop) -> bool:
        return s in self._slices.info and bool(self._slices.info[s].tape)

    def _count(self, s: Loop) -> int:
        """The iterations of a loop that may be written out; 0: of one that may not."""
        if s.exit is not None or not (isinstance(s.begin, Const) and isinstance(s.end, Const)):
            return 0
        count = len(range(int(s.begin.value), int(s.end.value), s.step))
        return 0 if count > self._trips else count


def _write_out(block: Block, loops: set[Stmt]) -> None:
    out: Block = []
    for s in block:
        if isinstance(s, If):
            _write_out(s.then, loops)
            _write_out(s.orelse, loops)
        elif isinstance(s, Loop):
            _write_out(s.body, loops)
            if s in loops:
                out += _copies(s)
                continue
        out.append(s)
    block[:] = out


def _copies(s: Loop) -> Block:
    assert isinstance(s.begin, Const) and isinstance(s.end, Const)
    numbers = range(int(s.begin.value), int(s.end.value), s.step)
    name = loop_names(s.loc)[0]
    return [x for k in numbers for x in _located(clone_block(s.body, {s.index: Const(k, s.index.dtype)}), (name, k))]


def _located(block: Block, iteration: tuple[str, int]) -> Block:
    """Let messages of a copy name its iteration."""
    for s in walk(block):
        if isinstance(s, (Op, LocalStore, GlobalStore, Assert)) and s.loc is not None:
            s.loc = _within(s.loc, iteration)
    return block


@functools.lru_cache(maxsize=4096)
def _within(loc: Loc, iteration: tuple[str, int]) -> Loc:
    return replace(loc, at=(iteration, *loc.at))
