"""Uniformity within a wave: the values that are the same in all lanes of a wave, though they may differ between the waves of a block.

Votes are, and what all lanes read from one of them. Lanes without an iteration read no memory but what the whole block reads: where there
may be such lanes, the rest counts as different. All lanes of a wave run what sets a variable that they have in common (``barriers``).
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from ...ir.nodes import Block, Const, If, Local, LocalStore, Loop, Op, Operand, Place, Task
from ...ir.walk import walk
from .prologue import constant

Varying = set[Op | Local | Loop]


def same_in_groups(task: Task, size: int) -> Iterator[Op]:
    """The operations on the iteration's number that are the same in each ``size`` consecutive threads of a block, which are aligned: its
    quotients by a multiple of ``size``, and comparisons with one.
    """
    numbers = {s for s in walk(task.body) if isinstance(s, Op) and s.op == "iter"}
    begin = constant(task.axes[0].begin) if len(task.axes) == 1 else None
    if begin is not None and begin >= 0 and begin % size == 0:
        numbers.add(task.axes[0].index)
    for s in walk(task.body):
        if not isinstance(s, Op) or not s.args or not isinstance(s.args[0], Op) or s.args[0] not in numbers:
            continue
        by = constant(s.args[1]) if len(s.args) == 2 else None
        if s.op == "cast" and s.dtype.kind in "iu" and s.dtype.bits >= 32:
            numbers.add(s)
        elif by is not None and _joins(s.op, by, size):
            yield s
        elif by is not None and s.op == "and" and by > 0 and by & (by + 1) == 0:
            numbers.add(s)  # the number of the thread in its block


def _joins(code: str, by: int, size: int) -> bool:
    """Whether an operation with a constant gives the same for numbers in one group."""
    if code in ("shr", "sar"):
        return 0 < by < 31 and (1 << by) % size == 0
    if code in ("lt", "ge", "and"):
        return by % size == 0
    if code in ("le", "gt"):
        return (by + 1) % size == 0
    return code in ("floordiv", "cdiv") and by > 0 and by % size == 0


class Waves:
    """The analysis of one task, by a least fixed point.

    Args:
        task: its blocks are a whole number of waves.
        lanes: threads of a wave.
        in_block: what may differ between the threads of a block.
        whole: every thread has an iteration, and none fails.
    """

    def __init__(self, task: Task, lanes: int, in_block: Container[Op | Local | Loop], whole: bool) -> None:
        self.varying: Varying = {a.index for a in task.axes}
        self._same, self._in_block, self._whole = frozenset(same_in_groups(task, lanes)), in_block, whole
        size = -1
        while size != len(self.varying):
            size = len(self.varying)
            self._block(task.body, False, False)

    def same(self, x: Operand | Local | Loop) -> bool:
        """Whether a value, a variable, or how long a loop runs, is the same for all lanes of a wave."""
        return isinstance(x, Const) or x not in self.varying

    def _inside(self, s: If | Loop, control: bool, alone: bool) -> tuple[bool, bool]:
        """Whether what stands in a statement may not be done by all lanes of a wave, and whether a wave may be alone there."""
        x = s.cond if isinstance(s, If) else s
        apart = not isinstance(x, Const) and x in self._in_block
        return control or not self.same(x), alone or apart

    def _differs(self, s: Op, unread: bool) -> bool:
        """Whether a result may. ``unread``: lanes without an iteration do not read memory here."""
        if s in self._same or s.op == "ballot":
            return False
        if s.op == "shuffle":
            return not self.same(s.args[1])
        if s.op == "load":
            return s.attr in self.varying
        if s.op in ("iter", "atomic", "stack_get"):
            return True
        if s.op == "gload":
            assert isinstance(s.attr, Place)
            apart = any(not isinstance(a, Const) and a in self._in_block for a in s.args)
            if (not self._whole and (unread or apart)) or s.attr.per_trial:
                return True
        return not all(map(self.same, s.args))

    def _block(self, block: Block, control: bool, alone: bool) -> None:
        for s in block:
            match s:
                case Op():
                    if self._differs(s, control or alone):
                        self.varying.add(s)
                case LocalStore():
                    if control or not self.same(s.value):
                        self.varying.add(s.local)
                case If():
                    inner = self._inside(s, control, alone)
                    self._block(s.then, *inner)
                    self._block(s.orelse, *inner)
                case Loop():
                    if not self.same(s.begin):
                        self.varying.add(s.index)
                    ends = (s.begin,) if s.end is None else (s.begin, s.end)
                    if not all(map(self.same, ends)) or (s.exit is not None and s.exit in self.varying):
                        self.varying.add(s)
                    self._block(s.body, *self._inside(s, control, alone))
