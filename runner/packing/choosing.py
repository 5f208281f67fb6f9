"""Which request a device takes: rule 2 of docs/packing.md."""

from __future__ import annotations

import math

from .pools import DeviceState
from .queue import ClaimGroup, GroupIndex, Waiting

WEIGHT = 8
"""The exponent of the bytes of groups that have nearly as many, where one of them is chosen."""

Choice = tuple[ClaimGroup, str]
"""A group, and why."""


class Chooser:
    """Finds the waiting request that fits a device best. Read-only.

    ``bytes``, ``lanes``: of all devices.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting, self.bytes, self.lanes = waiting, 0, 0

    def choose(self, state: DeviceState, room: int) -> Choice | None:
        """The request that starts on a device with ``room`` bytes and without a reservation."""
        largest = self._wants_large(state)
        index = self._waiting.index
        group = index.first(state.device.kind, room, largest)
        if group is None:
            return None
        if index.close and len(self._waiting) > len(index.groups):
            group = self._mixed(index, group, state, room, largest)
        return group, "the largest that fits" if largest else "the smallest"

    def beside(self, need: int, target: DeviceState, state: DeviceState, room: int, now: float) -> Choice | None:
        """A request that provably does not delay a reservation of ``need`` bytes on ``target``."""
        when, spare, lanes = target.free_at(need, now)
        if when == math.inf:
            return None
        kind, opening, beside = state.device.kind, state.opening, state is not target or lanes >= 1
        for group in self._waiting.index.fitting(kind, room):
            over = group.known and now + group.seconds(kind) <= when and opening <= spare
            if over or (beside and group.bytes_on(kind) + opening <= spare):
                return group, "back-filled: the reservation waits no longer for it"
        return None

    def _mixed(self, index: GroupIndex, group: ClaimGroup, state: DeviceState, room: int, largest: bool) -> ClaimGroup:
        """Among the groups with nearly as many bytes as the best fit, the one with the most remaining work per lane here.

        So a device runs them side by side, in proportion to their remaining work, instead of one after the other: they may use different
        resources. What is left is counted in the seconds that those took which have ended. The longest and the largest are not to be left
        for the end: seconds count twice, and bytes weigh.
        """
        near = index.near(group, state.device.kind, room, largest)
        if len(near) < 2:  # others take longer, or do not fit
            return group
        running = [run.shape.mark for run in state.running.values()]
        ended = [one.took for _, one in near if one.took is not None]
        mean = sum(ended) / len(ended) if ended else 1.0
        base, most, best = near[0][0], -1.0, group
        for size, one in near:
            lanes, took = running.count(one.shape.mark), mean if one.took is None else one.took
            left = (one.size + lanes) * took * took * ((size / base) ** WEIGHT if base else 1.0) / (1 + lanes)
            if left > most:
                most, best = left, one
        return best

    def _wants_large(self, state: DeviceState) -> bool:
        """Whether the device has fewer of its bytes in use than of its lanes, under the pressure of the queue on both."""
        running = len(state.running)
        if not running:
            return True
        pool, waiting, pressure = state.pool, self._waiting, 1.0
        if waiting.count and self.bytes and self.lanes:
            pressure = max(1.0, (waiting.bytes / self.bytes) / (waiting.count / self.lanes))
        usable = pool.pool.capacity - pool.foreign
        used = (pool.claimed + pool.process) / usable if usable > 0 else 1.0
        return used <= pressure * running / state.device.lanes
