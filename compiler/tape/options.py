"""The Pareto-optimal plans of one loop: levels, block sizes and segment lengths, from the fastest to the smallest.

Blocks of r segments of S iterations form one scale: r = 1 is two levels, the largest useful r is the smallest three-level plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..ir.threads import once
from .cost import LoopCost
from .levels import LoopPlan, fixed_capacity, full_tape, thinning, three_levels, two_level_length, two_levels, with_levels

REACH = 1_000_000
"""Iterations that every plan of a loop without a bound supports."""
SMALLEST_THINNING = (100, 99, 100, 2500)
"""C1, C2, S, D1: 299 slots for 10^6 iterations, the most that 299 slots can hold."""
FASTEST_THINNING = (64, 63, 1024, 1024)
"""1,151 slots for 4,194,304 iterations; up to 1,024 iterations need no recomputation."""
_BLOCKS = np.array((2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), np.int64)
MORE_BLOCKS = np.array((2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256), np.int64)


@dataclass(frozen=True, eq=False)
class LoopOptions:
    """The Pareto-optimal plans of a loop, by increasing bytes and decreasing time.

    Attributes:
        bytes: bytes of one row, i64.
        nanoseconds: predicted time of one parallel iteration, f64.
        segments: segment lengths, i64.
        blocks: segments of a block, i64; 0: one level.
        cost: the loop's cost model.
        plans: the plans of a loop without a bound or of one iteration; the plans of other loops are made on demand.
        source: the origin of the bound, as text.
        grows: unused bytes of a budget may lengthen segments.
    """

    bytes: np.ndarray
    nanoseconds: np.ndarray
    segments: np.ndarray
    blocks: np.ndarray
    cost: LoopCost
    plans: tuple[LoopPlan, ...]
    source: str
    grows: bool = True

    def plan(self, k: int) -> LoopPlan:
        """The plan at an index."""
        if self.plans:
            return self.plans[k]
        n, s, r = self.cost.trips, int(self.segments[k]), int(self.blocks[k])
        if r == 0:
            return full_tape(n, self.source)
        return two_levels(n, s, self.source) if r == 1 else three_levels(n, s, r, self.source)

    @once
    def two_levels(self) -> np.ndarray:
        """Mask of the plans with two levels and segments that can grow, bool."""
        return (self.blocks == 1) & self.grows

    def grown(self, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The longest segments of two-level plans that fit.

        Args:
            room: bytes of a row, shape (n,).

        Returns:
            Segment lengths, i64 of shape (n,), 0 where none fits, and nanoseconds, f64 of shape (n,).
        """
        c, n = self.cost, self.cost.trips
        marks, need = _marks(n, c.x, c.t)
        # ``need`` decreases with ``marks``: the first fit has the longest segments
        at = np.searchsorted(-need, -room, side="left")
        fits = at < len(marks)
        count = marks[np.minimum(at, len(marks) - 1)]
        s = np.where(fits, np.minimum((room - count * c.x) // c.t, n - 1), 0)
        return s, c.nanoseconds(np.maximum(s, 1), 1)


@lru_cache(maxsize=256)
def _marks(n: int, x: int, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of checkpoints, from 2 to that of the smallest two-level plan, and the minimal bytes of each, non-increasing."""
    most = max(2, min(n, round((n * t / x) ** 0.5) + 1))
    marks = np.arange(2, most + 1, dtype=np.int64)
    return marks, np.minimum.accumulate(marks * x + -(-n // marks) * t)


def options_of(cost: LoopCost, bound: int | None, source: str, fixed_slots: int, many: int) -> LoopOptions:
    """The Pareto-optimal plans of one loop.

    Args:
        cost: its cost model.
        bound: maximum trip count; None: unknown before the run.
        source: the origin of the bound, as text.
        fixed_slots: slots of a loop without a bound, set by the user; 0: thinning.
        many: approximate number of two-level plans.
    """
    if bound is not None and bound > 1:
        return _known(cost, bound, source, many)
    if bound is not None:
        plans = [full_tape(bound, source)]
    else:
        plans = [fixed_capacity(fixed_slots, f"ad_stack_size: {source}")] if fixed_slots else ladder(f"thinning: {source}")
    return listed(plans, [p.words(cost.x, cost.t) for p in plans], cost, source)


def listed(plans: list[LoopPlan], sizes: list[int], cost: LoopCost, source: str, grows: bool = True) -> LoopOptions:
    """The Pareto-optimal ones of some plans. ``sizes``: their bytes; ``grows``: see ``LoopOptions``."""
    size, time = np.array(sizes, np.int64), np.array([cost.of(p) for p in plans])
    keep = pareto(size, time)
    none = np.zeros(len(keep), np.int64)
    return LoopOptions(size[keep], time[keep], none, none, cost, tuple(plans[k] for k in keep.tolist()), source, grows)


def _known(cost: LoopCost, n: int, source: str, many: int) -> LoopOptions:
    best = two_level_length(n, cost.x, cost.t)
    two = (best * (max(n - 1, best) / best) ** (np.arange(many) / max(1, many - 1))).round().astype(np.int64)
    blocks = MORE_BLOCKS if many >= 20 else _BLOCKS
    blocks = blocks[blocks * blocks < n]
    lengths = max(2, many // 5)
    root = np.sqrt(n * cost.x / (cost.t * blocks))
    three = np.clip(np.multiply.outer(1 + np.arange(lengths) / lengths, root).round(), 1, n).astype(np.int64).ravel()
    small = with_levels(n, 3, None, cost.x, cost.t)
    segments = np.concatenate(([n], two, three, [small.S]))
    r = np.concatenate(([0], np.ones_like(two), np.tile(blocks, lengths), [small.C2 + 1]))
    marks = np.where(r == 0, 0, -(-n // (segments * np.maximum(r, 1))) + r - 1)
    size = marks * cost.x + segments * cost.t
    time = cost.nanoseconds(segments, np.maximum(r, 1))
    keep = pareto(size, time)
    return LoopOptions(size[keep], time[keep], segments[keep], r[keep], cost, (), source)


@lru_cache(maxsize=64)
def ladder(source: str) -> list[LoopPlan]:
    """Thinning plans for at least ``REACH`` iterations, with decreasing slots; later plans have shorter segments and more checkpoints."""
    plans = [thinning(*FASTEST_THINNING, source=source)]
    for segment in (64, 128, 256, 512, 1024, 2048):
        for inner in (16, 32, 64, 128):
            marks = -(-REACH // (segment * inner))
            if 8 <= marks <= 128 and marks + inner + segment < sum(FASTEST_THINNING[:3]):
                plans.append(thinning(marks, inner - 1, segment, source=source))
    return [*plans, thinning(*SMALLEST_THINNING, source=source)]


def pareto(size: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Indices of the Pareto-optimal points, by increasing size and decreasing time. Of equal points the first is kept."""
    order = np.lexsort((time, size))
    sorted_time = time[order]
    best = np.minimum.accumulate(sorted_time)
    keep = np.ones(len(order), bool)
    keep[1:] = sorted_time[1:] < best[:-1]
    return order[keep]
