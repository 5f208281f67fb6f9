"""Which request a device takes: rules 2 and 3 of docs/packing.md."""

from __future__ import annotations

import math

from .fairness import Shares
from .pools import DeviceState
from .queue import ClaimGroup, UserQueue, Waiting

WEIGHT = 8
"""The exponent of the bytes of groups that have nearly as many, where one of them is chosen."""

USERS = 8  # number of users below the fair share that are compared for the best fit
Choice = tuple[ClaimGroup, str]
"""A group, and why."""


class Chooser:
    """Finds the waiting request that fits a device best. Read-only."""

    def __init__(self, waiting: Waiting, shares: Shares) -> None:
        self._waiting, self._shares = waiting, shares

    def choose(self, state: DeviceState, room: int) -> Choice | None:
        """The request that starts on a device with ``room`` bytes and without a reservation."""
        largest = self._wants_large(state)
        users = self._waiting.users
        if len(users) == 1:
            (queue,) = users.values()
            group = queue.first(state.device.kind, room, largest)
        else:
            group = self._of_users(state, room, largest)
        if group is None:
            return None
        queue = users[group.user]
        if queue.close and queue.count > len(queue.groups):
            group = self._mixed(queue, group, state, room, largest)
        return group, "the largest that fits" if largest else "the smallest"

    def beside(self, need: int, target: DeviceState, state: DeviceState, room: int, now: float) -> Choice | None:
        """A request that provably does not delay a reservation of ``need`` bytes on ``target``."""
        when, spare, lanes = target.free_at(need, now)
        if when == math.inf:
            return None
        kind, opening, beside = state.device.kind, state.opening, state is not target or lanes >= 1
        for _, user in self._shares.order(self._waiting.users):
            for group in self._waiting.users[user].fitting(kind, room):
                over = group.known and now + group.seconds(kind) <= when and opening <= spare
                if over or (beside and group.bytes_on(kind) + opening <= spare):
                    return group, "back-filled: the reservation waits no longer for it"
        return None

    def _of_users(self, state: DeviceState, room: int, largest: bool) -> ClaimGroup | None:
        """The best fit of some users below the fair share; where they have none, that of the user with the smallest share."""
        kind, waiting, best, size, count = state.device.kind, self._waiting, None, -1, 0
        fair = 1.0 / self._shares.active(waiting.users)
        for share, user in self._shares.order(waiting.users):
            if best is not None and (count >= USERS or share >= fair):
                break
            count += 1
            group = waiting.users[user].first(kind, room, largest, beyond=size)
            if group is not None:
                best, size = group, group.bytes_on(kind)
        return best

    def _mixed(self, queue: UserQueue, group: ClaimGroup, state: DeviceState, room: int, largest: bool) -> ClaimGroup:
        """Among the groups of a user with nearly as many bytes as the best fit, the one with the most remaining work per lane here.

        So a device runs them side by side, in proportion to their remaining work, instead of one after the other: they may use different
        resources. What is left is counted in the seconds that those took which have ended. The longest and the largest are not to be left
        for the end: seconds count twice, and bytes weigh.
        """
        near = queue.near(group, state.device.kind, room, largest)
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
        pool, waiting, shares, pressure = state.pool, self._waiting, self._shares, 1.0
        if waiting.count and shares.bytes and shares.lanes:
            pressure = max(1.0, (waiting.bytes / shares.bytes) / (waiting.count / shares.lanes))
        usable = pool.pool.capacity - pool.foreign
        used = (pool.claimed + pool.process) / usable if usable > 0 else 1.0
        return used <= pressure * running / state.device.lanes
