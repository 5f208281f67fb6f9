"""The cost model: nanoseconds that a gradient launch takes under a plan. Constants of the code, so that a plan is the same everywhere.

A loop of n iterations runs its body n times in the forward sweep, ``refills`` times to fill its tape again, and n times as last replay and
backward code. Each run costs what its operations cost, and each state put and read back costs its words:

    loop = runs of the loop * (n * (sweep + step) + refills * (refill + step) + n * (back + step) + words put + words read)
    task = rounds * (its loops + the rest of one iteration)
    rounds = ceil(iterations / (workers * width)) * width / lanes * width / (1 + SIMD * (width - 1))

``width`` is how many iterations the code runs side by side, ``lanes`` how many of them have states at a time.

The coefficients were fitted by ``benchmarks/checkpoint_cost.py``, which prints them, and how far off the model is (docs/memory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .levels import LoopPlan
from .sizing import LoopSizing, Region, TaskSizing
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
"""Of an operation of each class: on the longest way through a copy that runs forward (the next iteration waits for it), elsewhere in
it, and in a last replay with its backward code; of the bookkeeping of an iteration in each phase; of a byte put on a stack, and read.
"""

SIMD = 0.5
"""What each further lane of a CPU thread brings, beside the first."""
GUESSED_TRIPS = 16
"""Iterations of a loop without a plan whose count the arguments of the launch do not tell."""
GUESSED_WHILE = 4096
"""Iterations of a planned loop whose count only running can tell."""


def refills(n: Any, s: Any, r: Any) -> Any:
    """Body runs that refill tapes: a loop of ``n`` iterations, segments of ``s``, blocks of ``r`` segments. Numbers or arrays of them.

    Segments are aligned to the loop's end: only the first block, and its first segment, may be short. The last segment was taped by
    the forward sweep. A segment's last state needs no run after it.
    """
    block = s * r
    blocks = -(-n // block)
    first = n - (blocks - 1) * block  # iterations of the first block
    heads = -(-first // s) - 1  # its segments but one
    alone = n - s - heads  # one block: the sweep left its inner checkpoints behind
    inner = (r - 1) * (s - 1)
    many = inner + (blocks - 2) * (block - 1 + inner) + (first - 1) + (heads > 0) * (first - s - heads)
    return (blocks <= 1) * (n > s) * alone + (blocks > 1) * many


@dataclass(frozen=True)
class LoopCost:
    """What one loop of a task costs, by plan.

    Attributes:
        trips: iterations of one run of the loop.
        runs: how often the loop is run in one parallel iteration.
        sweep, refill, back: nanoseconds of one run of the body's copies.
        x, t: bytes of a checkpoint and of a slot of the tape.
        known: the count is known when the loop starts: only the last segment is put on the tape by the forward sweep.
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
        """Of all runs of the loop, with segments of ``s`` and blocks of ``r`` of them (numbers or arrays). ``s`` >= trips: one level."""
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
        """Nanoseconds under a plan."""
        if p.C1 == 0:
            return float(self.nanoseconds(max(1, self.trips), 1))
        block = p.D1
        while p.bound is None and -(-self.trips // block) > p.C1:
            block *= 2
        return float(self.nanoseconds(p.S, max(1, block // p.S)))


@dataclass(frozen=True)
class TaskCost:
    """What one task costs: its loops by number, and nanoseconds of the rest of a parallel iteration."""

    iterations: int
    rest: float
    loops: Mapping[int, LoopCost]

    def rounds(self, workers: int, lanes: int = 1, width: int = 1) -> float:
        """How many times as long as one iteration the busiest worker takes.

        Args:
            workers: threads.
            lanes: iterations of a vector that have adstacks at a time: the code runs once for each turn.
            width: iterations that the code runs side by side.
        """
        turns = -(-self.iterations // max(1, workers * width)) * -(-min(width, self.iterations) // lanes)
        return turns * width / (1.0 + SIMD * (width - 1))

    def nanoseconds(self, plans: Mapping[int, LoopPlan], workers: int, lanes: int = 1, width: int = 1) -> float:
        """Of the whole task."""
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
        iterations: of the parallel loop.
        trips: of each loop with a plan, or around one, by number; None: only running can tell.
        count: iterations of a loop inside a copy of a body.
    """
    loops: dict[int, LoopCost] = {}
    rest = nanoseconds(task.work, count)

    def visit(region: Region, runs: float) -> None:
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
    """Of one run of a piece of code. ``phase``: it runs "forward", and each iteration waits for the one before, or "back"."""
    c = NANOSECONDS
    total = sum(n * c[f"{phase} {name}"] for n, name in zip(work.counts, CLASSES))
    if phase == "forward":
        total += sum(n * c[f"wait {name}"] for n, name in zip(work.path, CLASSES))
    return total + sum(weight * count(inner) * nanoseconds(body, count, phase) for inner, weight, body in work.loops)
