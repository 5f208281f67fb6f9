"""``LoopPlan``, the launch parameters of one loop: C1 checkpoints, C2 inner checkpoints, S iterations per segment, D1 iterations per block.

- L=1: C1 = C2 = 0, S = K: every state on the tape, nothing recomputed.
- L=2: C1 = ceil(K/S), D1 = S: about 2 sqrt(K) slots for one more forward run.
- L=3: D1 = r S, C1 = ceil(K/D1), C2 = r - 1: about 3 cbrt(K) slots for two more.
- thinning (K unknown): (C2 + 1) S = 2^p D1, good for C1 (C2 + 1) S iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

FOREVER = 1 << 62


@dataclass(frozen=True)
class LoopPlan:
    """The checkpoint plan of one loop. ``bound``: the planned trip count, None if unknown. ``source``: the origin of the bound, as text."""

    C1: int
    C2: int
    S: int
    D1: int
    levels: int
    bound: int | None
    source: str = ""

    @property
    def tape_slots(self) -> int:
        """Slots of the tape: one per iteration of a segment, at least one.

        A loop with bound 0 that does run then overflows, and writes nowhere else.
        """
        return self.S if self.bound is None else max(1, min(self.S, self.bound))

    @property
    def capacity(self) -> int:
        """Iterations after which the loop overflows."""
        if self.C1 == 0:
            return self.S
        doublings = ((self.C2 + 1) * self.S // self.D1).bit_length() - 1
        return self.C1 * self.D1 << doublings

    def words(self, x: int, t: int) -> int:
        """Words of a row, given checkpoints of ``x`` words and tape slots of ``t`` words."""
        return (self.C1 + self.C2) * x + self.tape_slots * t

    def slots(self, kind: str) -> int:
        """Slots of a stack by kind: ck1, ck2 or tape."""
        return {"ck1": self.C1, "ck2": self.C2, "tape": self.tape_slots}[kind]


def full_tape(k: int, source: str = "") -> LoopPlan:
    """A plan with one level: a slot for each of ``k`` iterations."""
    return LoopPlan(0, 0, max(1, k), FOREVER, 1, k, source)


def thinning(c1: int, c2: int, s: int, d1: int | None = None, source: str = "") -> LoopPlan:
    """A thinning plan for an unknown trip count of up to ``c1 * (c2 + 1) * s`` iterations.

    Args:
        c1: checkpoints of blocks.
        c2: checkpoints of segments within a block.
        s: iterations of a segment.
        d1: initial iterations of a block; None: one segment.
        source: why the trip count is unknown.

    Raises:
        ValueError: the first block does not become the longest one, ``(c2 + 1) * s``, by doubling.
    """
    d1 = s if d1 is None else d1
    longest, rest = divmod((c2 + 1) * s, d1)
    if rest or longest & (longest - 1) or d1 % s:
        raise ValueError(f"a block of {d1} iterations does not become one of (C2 + 1) * S = {(c2 + 1) * s} by doubling")
    return LoopPlan(c1, c2, s, d1, 3, None, source)


def fixed_capacity(slots: int, source: str = "") -> LoopPlan:
    """A plan for an unknown trip count: a tape of ``slots`` iterations without checkpoints."""
    return LoopPlan(0, 0, max(1, slots), FOREVER, 1, None, source)


def two_levels(k: int, segment: int, source: str = "") -> LoopPlan:
    """A plan with two levels: a checkpoint every ``segment`` iterations, and a tape of one segment."""
    return LoopPlan(-(-k // segment), 0, segment, segment, 2, k, source)


def three_levels(k: int, segment: int, blocks: int, source: str = "") -> LoopPlan:
    """A plan with three levels: a checkpoint every ``blocks`` segments, inner checkpoints of one block, and a tape of one segment."""
    return LoopPlan(-(-k // (segment * blocks)), blocks - 1, segment, segment * blocks, 3, k, source)


def with_levels(k: int, levels: int, segment: int | None = None, x: int = 1, t: int = 1, source: str = "") -> LoopPlan:
    """The smallest plan with that many levels (and, if given, that segment length) for at most ``k`` iterations."""
    if levels == 1 or k <= 1:
        return full_tape(k, source)
    if levels == 2:
        return two_levels(k, min(segment, k) if segment else two_level_length(k, x, t), source)
    if segment:
        s = min(segment, k)
        return three_levels(k, s, _blocks(-(-k // s)), source)
    near = max(1, round((k * x / max(1, t)) ** (1 / 3)))
    lengths = np.arange(max(1, near // 2), min(k, 2 * near + 1) + 1, dtype=np.int64)
    segments = -(-k // lengths)
    r = np.maximum(2, np.ceil(np.sqrt(segments)).astype(np.int64))
    s = int(lengths[np.argmin((-(-segments // r) + r - 1) * x + lengths * t)])
    return three_levels(k, s, _blocks(-(-k // s)), source)


def two_level_length(k: int, x: int, t: int) -> int:
    """The segment length of the smallest two-level plan; the longest of them."""
    root = max(1, round((k * x / max(1, t)) ** 0.5))
    lengths = np.arange(min(k, 2 * root), max(1, root // 2) - 1, -1, dtype=np.int64)
    return int(lengths[np.argmin(-(-k // lengths) * x + lengths * t)])


def _blocks(segments: int) -> int:
    """The number of segments per block that minimises checkpoints plus inner checkpoints; the largest such number."""
    near = max(2, ceil(segments**0.5))
    return min(range(max(2, near - 2), near + 3), key=lambda r: (-(-segments // r) + r, -r))
