"""The cost model: predicts the nanoseconds of a gradient launch under a plan.

A loop of n iterations runs its body n times in the forward sweep, ``refills`` times to fill its tape again, and n times as last replay and
backward code. A run costs the sum of its operations; a state costs its words when it is put and when it is read:

    loop = runs of the loop * (n * (sweep + step) + refills * (refill + step) + n * (back + step) + words put + words read)
    task = rounds * (its loops + the rest of one iteration)
    rounds = ceil(iterations / (workers * width)) * width / lanes * width / (1 + SIMD * (width - 1))

``width`` is the number of iterations that the code runs in SIMD lanes, ``lanes`` the number of lanes that have states at a time.

The coefficients are constants, so that all machines make the same plan. They were fitted by ``benchmarks/checkpoint_cost.py``, which prints
them and the error of the model (docs/memory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .levels import LoopPlan
from .sizing import LoopSizing, StackRegion, TaskSizing
from .work import CLASSES, Inner, LoopWork, Work

FEATURES = (
    *(f"wait {name}" for name in CLASSES),
    *(f"forward {name}" for name in CLASSES),
    *(f"back {name}" for name in CLASSES),
    *("step", "refill step", "back step", "put", "get"),
)
NANOSECONDS = dict(
    zip(
        FEATURES,
        (
            *(0.51, 0.45, 6.8, 0.15, 2.0),
            *(0.12, 0.10, 1.9, 0.10, 0.50),
            *(0.05, 0.34, 2.6, 0.50, 0.39),
            *(1.2, 0.2, 1.2, 0.02, 0.03),
        ),
    )
)
"""Nanoseconds of an operation by class: on the critical path of a forward copy, elsewhere in it, and in a last replay with its backward
code; of the bookkeeping of an iteration in each phase; of a byte written to a stack, and read.
"""

SIMD = 0.5
"""Speed-up of each further SIMD lane of a CPU thread, relative to the first."""
GUESSED_TRIPS = 16
"""Assumed iterations of a loop without a plan, if the arguments of the launch do not determine its trip count."""
GUESSED_WHILE = 4096
"""Assumed iterations of a planned loop with an unknown trip count."""


def refills(n: Any, s: Any, r: Any) -> Any:
    """The number of body runs that refill tapes, for ``n`` iterations, segments of ``s`` and blocks of ``r`` segments (numbers or arrays).

    Segments are aligned to the loop's end: only the first block, and its first segment, may be short. The last segment was taped by
    the forward sweep. A segment's last state needs no run after it.
    """
    block = s * r
    blocks = -(-n // block)
    first = n - (blocks - 1) * block  # iterations of the first block
    heads = -(-first // s) - 1  # its segments, minus one
    alone = n - s - heads  # one block: the forward sweep has written its inner checkpoints
    inner = (r - 1) * (s - 1)
    many = inner + (blocks - 2) * (block - 1 + inner) + (first - 1) + (heads > 0) * (first - s - heads)
    return (blocks <= 1) * (n > s) * alone + (blocks > 1) * many


@dataclass(frozen=True)
class LoopCost:
    """The cost model of one loop of a task.

    Attributes:
        trips: iterations of one run of the loop.
        runs: runs of the loop in one parallel iteration.
        sweep, refill, back: nanoseconds of one run of the body's copies.
        x, t: bytes of a checkpoint and of a slot of the tape.
        known: the trip count is known when the loop starts, so that the forward sweep tapes the last segment only.
    """

    trips: int
    runs: float
    sweep: float
    refill: float
    back: float
    x: int
    t: int
    known: bool = True

    def nanoseconds(self, s: Any, r: Any) -> Any:
        """Nanoseconds of all runs of the loop, with segments of ``s`` and blocks of ``r`` segments (numbers or arrays).

        ``s`` >= trips: one level.
        """
        c, n = NANOSECONDS, self.trips
        least = min if isinstance(s, int) else np.minimum
        s = least(s, max(1, n))
        again = refills(n, s, r) if n else 0
        marks = (s < n) * -(-n // s)
        taped = least(s, n) if self.known else n
        ticks = n * (c["step"] + c["back step"]) + again * c["refill step"]
        moved = (marks * self.x + (taped + again) * self.t) * c["put"] + n * self.t * c["get"]
        return self.runs * (n * (self.sweep + self.back) + again * self.refill + ticks + moved)

    def of(self, p: LoopPlan) -> float:
        """Nanoseconds of all runs of the loop under a plan."""
        if p.C1 == 0:
            return float(self.nanoseconds(max(1, self.trips), 1))
        block = p.D1
        while p.bound is None and -(-self.trips // block) > p.C1:
            block *= 2
        return float(self.nanoseconds(p.S, max(1, block // p.S)))


@dataclass(frozen=True)
class TaskCost:
    """The cost model of one task: its loops by number, and the nanoseconds of the rest of a parallel iteration."""

    iterations: int
    rest: float
    loops: Mapping[int, LoopCost]

    def rounds(self, workers: int, lanes: int = 1, width: int = 1) -> float:
        """The time of the busiest worker, in units of one iteration.

        Args:
            workers: threads.
            lanes: SIMD lanes that have adstacks at a time; the code runs once for each group of lanes.
            width: iterations that the code runs in SIMD lanes.
        """
        turns = -(-self.iterations // max(1, workers * width)) * -(-min(width, self.iterations) // lanes)
        return turns * width / (1.0 + SIMD * (width - 1))

    def nanoseconds(self, plans: Mapping[int, LoopPlan], workers: int, lanes: int = 1, width: int = 1) -> float:
        """Nanoseconds of the whole task."""
        loops = sum(cost.of(plans[n]) for n, cost in self.loops.items() if n in plans)
        return self.rounds(workers, lanes, width) * (self.rest + loops)


def task_cost(
    task: TaskSizing,
    iterations: int,
    trips: Mapping[int, int | None],
    count: Callable[[Inner], int],
) -> TaskCost:
    """The cost model of a task.

    Args:
        task: the task.
        iterations: iterations of the parallel loop.
        trips: trip count of each loop with a plan, or around one, by number; None: unknown before the run.
        count: returns the iterations of a loop inside a copy of a body.
    """
    loops: dict[int, LoopCost] = {}
    rest = nanoseconds(task.work, count)

    def visit(region: StackRegion, runs: float) -> None:
        nonlocal rest
        for s in region.loops:
            known = trips.get(s.number)
            n = GUESSED_WHILE if known is None else known
            sweep, refill, back = _copies(s.work, count)
            if s.stacks:
                sizes = s.bytes("ck1"), s.bytes("tape")
                loops[s.number] = LoopCost(n, runs, sweep, refill, back, *sizes, _exact(s, known))
            else:
                rest += runs * n * (sweep + back)
            visit(s.inner, runs * max(1, n))
        for pair in region.arms:
            for arm in pair:
                visit(arm, runs)

    visit(task.region, 1.0)
    return TaskCost(iterations, rest, loops)


def _exact(s: LoopSizing, known: int | None) -> bool:
    return known is not None and not s.exits


def _copies(work: LoopWork, count: Callable[[Inner], int]) -> tuple[float, float, float]:
    return (
        nanoseconds(work.sweep, count, "forward"),
        nanoseconds(work.refill, count, "forward"),
        nanoseconds(work.back, count),
    )


def nanoseconds(work: Work, count: Callable[[Inner], float], phase: str = "back") -> float:
    """Nanoseconds of one run of a piece of code. ``phase``: "forward", where each iteration depends on the previous one, or "back"."""
    c = NANOSECONDS
    total = sum(n * c[f"{phase} {name}"] for n, name in zip(work.counts, CLASSES))
    if phase == "forward":
        total += sum(n * c[f"wait {name}"] for n, name in zip(work.path, CLASSES))
    return total + sum(weight * count(inner) * nanoseconds(body, count, phase) for inner, weight, body in work.loops)
