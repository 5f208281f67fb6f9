"""Assigns offsets to the stacks of a task: in a heap row, and in the on-chip memory of a thread."""

from __future__ import annotations

from collections.abc import Mapping, Set

from ..ir.types import PLANES
from .levels import LoopPlan
from .sizing import StackRegion, StackSizing

ON_CHIP = "on chip"
"""The key of the on-chip memory among the planes. It is counted in bytes of a thread, over all planes."""


class RowLayout:
    """Places the stacks of a region in a row. Siblings are adjacent; stacks inside their bodies overlap.

    Attributes:
        plans: the plan of each loop with stacks, by number.
        shared: the names of the stacks in on-chip memory.
        offsets: the first word of each stack in each plane, ``"tape.0.f4"``-like names to words (bytes of a thread for a stack on
            chip); complete after ``place``.
    """

    def __init__(self, plans: Mapping[int, LoopPlan], shared: Set[str] = frozenset()) -> None:
        self.plans, self.shared = plans, shared
        self.offsets: dict[str, int] = {}

    def place(self, region: StackRegion, base: Mapping[str, int]) -> dict[str, int]:
        """Place a region at ``base``. Returns the first free word of each plane, and the first free byte of ``ON_CHIP``."""
        own = dict(base)
        self._place_stacks(region, own)
        end = dict(own)
        for inner in self._inner(region):
            _raise_to(end, self.place(inner, own))
        return end

    def _place_stacks(self, region: StackRegion, at: dict[str, int]) -> None:
        """Place the stacks of a region's loops one after another; the two arms of an ``if`` overlap."""
        for loop in region.loops:
            for stack in loop.stacks:
                slots = self.plans[loop.number].slots(stack.kind)
                if stack.name in self.shared:
                    self._place_on_chip(stack, slots, at)
                    continue
                for plane, width in stack.widths:
                    self.offsets[f"{stack.name}.{plane}"] = at.get(plane, 0)
                    at[plane] = at.get(plane, 0) + slots * width
        for pair in region.arms:
            ends = []
            for arm in pair:
                here = dict(at)
                self._place_stacks(arm, here)
                ends.append(here)
            for end in ends:
                _raise_to(at, end)

    def _place_on_chip(self, stack: StackSizing, slots: int, at: dict[str, int]) -> None:
        """Place the planes of a stack one after another, each aligned to its word size."""
        for plane, width in stack.widths:
            size = PLANES[plane]
            first = -(-at.get(ON_CHIP, 0) // size) * size
            self.offsets[f"{stack.name}.{plane}"] = first
            at[ON_CHIP] = first + slots * width * size

    def _inner(self, region: StackRegion) -> list[StackRegion]:
        out = [loop.inner for loop in region.loops]
        for pair in region.arms:
            for arm in pair:
                out += self._inner(arm)
        return out


def _raise_to(target: dict[str, int], other: Mapping[str, int]) -> None:
    for plane, words in other.items():
        target[plane] = max(target.get(plane, 0), words)
