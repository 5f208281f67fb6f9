"""What the tasks of a kernel do, counted from its IR: operations, chains of them, bytes, loops. For predictions of a launch's time."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from ..ir.nodes import Assert, Const, If, Kernel, Loop, Op, Print, Task
from ..ir.walk import index_of, place_of, walk
from ..tape.bounds.reader import Reader
from ..tape.work import TaskWork
from .reverse.costs import FUNCTIONS, plain_work


def task_work(kernel: Kernel, task: Task, alone: Container[object] = ()) -> TaskWork:
    """The work of one task. It must keep no states: its loops run as they are written.

    Args:
        kernel: lowered, and simplified if the counts are to be those of what runs.
        task: one of its tasks.
        alone: atomics that no other thread meets, see ``injective.race_free``.
    """
    reader = Reader(kernel, task)
    places = {p: None for s in walk(task.body) if (p := place_of(s)) is not None and p.buffer.kind != "block"}
    reals = [s.dtype.bits for s in walk(task.body) if isinstance(s, Op) and s.args and s.dtype.is_real]
    wide = sum(bits == 64 for bits in reals) / max(1, len(reals))
    work = plain_work(task.body, reader.loop, alone=alone)
    *others, updates = work.counts  # each thread updates its own part of a reduction
    work = replace(work, counts=(*others, updates + len(task.reductions)))
    return TaskWork(task.name, reader.axes(), task.parallel, work, tuple(places), wide, _straight(task, alone))


def _straight(task: Task, alone: Container[object]) -> bool:
    """See ``TaskWork.straight``."""
    if len(task.axes) != 1 or not task.parallel or task.reductions:  # sums are made one after the other
        return False
    index = task.axes[0].index
    for s in walk(task.body):
        if isinstance(s, (Assert, If, Loop, Print)):
            return False
        if isinstance(s, Op) and (s.op in FUNCTIONS or (s.op == "atomic" and s not in alone)):
            return False
        if place_of(s) is not None and not all(x is index or isinstance(x, Const) for x in index_of(s)):
            return False
    return True


__all__ = ["task_work"]
