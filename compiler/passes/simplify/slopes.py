"""Drops what only differentiation reads: ``attach`` and ``detach`` become their value, and the slopes behind them go.

For kernels that are compiled as they are: a primal, or a gradient that has been taken.
"""

from __future__ import annotations

from ...ir.nodes import Kernel, Op, Operand, Task
from ...ir.walk import has_op, task_blocks
from ..clone import clone_kernel, replace_head, replace_operands
from .dce import dce_in_place

_MARKS = ("attach", "detach")


def without_slopes(kernel: Kernel) -> Kernel:
    """The kernel without ``attach`` and ``detach``, with the same results; ``kernel`` itself, when it has none."""
    if not has_op(kernel, *_MARKS):
        return kernel
    out = clone_kernel(kernel)
    for task in out.tasks:
        _drop(task)
        dce_in_place(task)
    return out


def without_unused_slopes(kernel: Kernel) -> Kernel:
    """The kernel without slopes that only second derivatives need; ``kernel`` itself, when it has no ``attach``."""
    if not has_op(kernel, "attach"):
        return kernel
    out = clone_kernel(kernel)
    for task in out.tasks:
        dce_in_place(task)
    return out


def _value(x: Operand) -> Operand:
    while isinstance(x, Op) and x.op in _MARKS:
        x = x.args[0]
    return x


def _drop(task: Task) -> None:
    replace_head(task, _value)
    for s in task_blocks(task):
        replace_operands(s, _value)
