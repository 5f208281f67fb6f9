"""Estimates the fraction of a kernel's arithmetic that ``fast_math=True`` would replace by approximate GPU instructions.

A static estimate from the IR, for a note to the user: nothing is decided by it. Each operation counts the instructions that it takes on
a GPU (an H200); an operation inside a loop counts eight times as much as one around the loop, because trip counts are not known here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..ir.nodes import Block, If, Kernel, Loop, Op
from ..ir.ops import TABLE
from ..ir.types import f32

_OTHER_FUNCTION = 25
_TRIPS = 8
_FEW = 8
"""Evaluations of an iteration of the parallel loop, below which memory traffic takes longer than arithmetic."""


@dataclass(frozen=True)
class Approximable:
    """``share``: the part of a kernel's instructions that ``fast_math`` replaces, 0 to 1. ``names``: the operations, the most first."""

    share: float
    names: tuple[str, ...]


def approximable(kernel: Kernel) -> Approximable:
    """The share of a lowered kernel."""
    ours: Counter[str] = Counter()
    total = 0.0
    for task in kernel.tasks:
        total += _count(task.body, 1, ours)
    often = sum(ours[name] / TABLE[name].approximate for name in ours) >= _FEW
    share = sum(ours.values()) / total if often else 0.0
    return Approximable(share, tuple(name for name, _ in ours.most_common()))


def _count(block: Block, weight: int, ours: Counter[str]) -> float:
    """The instructions of a block; adds those that ``fast_math`` replaces to ``ours``."""
    total = 0.0
    for s in block:
        if isinstance(s, If):
            total += _count(s.then, weight, ours) + _count(s.orelse, weight, ours)
        elif isinstance(s, Loop):
            total += _count(s.body, weight * _TRIPS, ours)
        info = TABLE[s.op] if isinstance(s, Op) else None
        if isinstance(s, Op) and info is not None and s.dtype is f32 and info.approximate:
            ours[s.op] += weight * info.approximate
            total += weight * info.approximate
        else:
            total += weight * (_OTHER_FUNCTION if info is not None and info.function else 1)
    return total
