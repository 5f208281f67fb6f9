"""Loops whose threads meet: what of them has a gradient and a tangent.

Values that lanes exchange have both. Accesses to shared arrays are not tracked, so that these have neither, nor has what
waits for them.
"""

from __future__ import annotations

from ...errors import DifferentiationError
from ...ir.nodes import Kernel, Op, Stmt, Task
from ...ir.walk import cooperates, is_fence, place_of, walk
from ..shuffles import splits_evenly


def refuse_blocks(kernel: Kernel, what: str) -> None:
    """Stop where a task of the kernel has a barrier, a fence or a shared array. ``what``: "gradient" or "tangent".

    Raises:
        DifferentiationError: at the first of them.
    """
    for task in kernel.tasks:
        for s in walk(task.body):
            if _refused(task, s):
                how = "qd.ad.grad_replaced and qd.ad.grad_for give a gradient of your own"
                raise DifferentiationError(
                    f"the threads of this loop meet in blocks, and there is no {what} of that yet",
                    getattr(s, "loc", None),
                    f"write the loop with fields, without qd.simt{'; ' + how if what == 'gradient' else ''}",
                )


def _refused(task: Task, s: Stmt) -> bool:
    place = place_of(s)
    if is_fence(s) or (place is not None and place.buffer.kind == "block"):
        return True
    return isinstance(s, Op) and s.op == "shuffle" and not splits_evenly(task, s)


def refuse_tapes(task: Task) -> None:
    """Stop where a loop inside of a reverse task whose lanes exchange values keeps states.

    Raises:
        DifferentiationError: it does.
    """
    if task.stacks and cooperates(task):
        raise DifferentiationError(
            "the gradient of this loop, whose lanes exchange values, would keep the states of a loop inside of it, and cannot yet",
            task.loc,
            "unroll the inner loop with qd.static(range(..)), or end the outer loop before it",
        )


def refuse_order(task: Task) -> None:
    """Stop where the tangent of a task whose lanes exchange values would run in order.

    Raises:
        DifferentiationError: it would.
    """
    if task.serialize and cooperates(task):
        raise DifferentiationError(
            "the tangent of this loop, whose lanes exchange values, would run in order: several iterations write to one element",
            task.loc,
            "let each iteration store to an element of its own, or add to it: x[..] += value",
        )
