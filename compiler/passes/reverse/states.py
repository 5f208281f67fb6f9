"""Fewer states: a task is rewritten, before it is reversed, so that its loops keep less on the adstack.

Accesses are analysed, and errors are reported, for the task as it was; only the reverse program is made from the rewritten one.
"""

from __future__ import annotations

from ...ir.nodes import Op, Stmt, Task
from ...ir.walk import atomic_of, walk
from ..simplify.simplify import simplify_in_place
from .induction import restated
from .slices import Slicer
from .unroll import MOST_TRIPS, unrolled

_ROUNDS = 3


def with_fewer_states(task: Task, slices: Slicer, trips: int = MOST_TRIPS) -> tuple[Task, Slicer]:
    """A task with the same values to reverse, and its slices; ``task`` itself when there is nothing to gain.

    Args:
        task: lowered; not changed.
        slices: of ``task``.
        trips: the most iterations of a loop that is written out.
    """
    if not _has_states(slices) or any(map(_decides, walk(task.body))):
        return task, slices
    new = restated(task)
    if new is not None:
        task, slices = _simplified(new)
    new = unrolled(task, slices, trips) if _has_states(slices) else None
    return (task, slices) if new is None else _simplified(new)


def _simplified(task: Task) -> tuple[Task, Slicer]:
    simplify_in_place(task, _ROUNDS)
    return task, Slicer(task)


def _has_states(slices: Slicer) -> bool:
    return any(info.tape for info in slices.info.values())


def _decides(s: Stmt) -> bool:
    """Whether a statement is an atomic whose gradient depends on other accesses to its element; that was decided for the task as it was."""
    return isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[0].differentiable and atomic_of(s)[1] not in ("add", "sub")
