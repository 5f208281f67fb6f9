"""Counts the operations and memory accesses of a reverse kernel: the input of the cost model (``cost.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from .bounds.sizeexpr import Range

CLASSES = ("simple", "division", "function", "load", "update")
"""Classes of operations: arithmetic and comparisons; division and square roots; elementary functions; loads; stores and atomics."""

Inner = Union[int, Range, None]
"""A loop inside a piece of code: the number of a planned loop, the range of another loop, or None for an unknown trip count."""


@dataclass(frozen=True)
class Work:
    """One run of a piece of code.

    Attributes:
        counts: operations by ``CLASSES``; those of each arm of an ``if`` count one half.
        path: those of them that wait for one another, on the longest way through the code; counted for copies that only run forward.
        loops: loops inside it that run plainly, each with its weight and the work of one iteration.
    """

    counts: tuple[float, ...] = (0.0,) * len(CLASSES)
    path: tuple[float, ...] = (0.0,) * len(CLASSES)
    loops: tuple[tuple[Inner, float, Work], ...] = ()


NO_WORK = Work()


@dataclass(frozen=True)
class LoopWork:
    """The copies of a loop's body: forward sweep, refill, and last replay with backward code. Loops with plans of their own are left
    out of ``back``.
    """

    sweep: Work = NO_WORK
    refill: Work = NO_WORK
    back: Work = NO_WORK


NO_LOOP_WORK = LoopWork()
