"""Which request a device takes: rules 2, 3, 4 and 7 of docs/packing.md."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .fairness import Shares, Turns
from .outlook import Outlook
from .pools import DeviceState
from .queue import SLOW, Group, UserQueue, Waiting, first_fitting

WEIGHT = 8
"""The exponent of the bytes of groups that have nearly as many, where one of them is chosen."""

USERS = 8  # of the users below the fair share, so many are looked at for the best fit
Choice = tuple[Group, int, str]
"""A group, the point of its claim, and why."""


class Chooser:
    """Looks at what waits for what fits a device best. Changes nothing.

    Attributes:
        turns: the order of the users.
        room: by class of devices the largest point that could be placed now, were all of ours gone.
        later: pools where something may start as time goes on, though nothing ends; the packer empties it.
    """

    def __init__(self, waiting: Waiting, shares: Shares, outlook: Outlook) -> None:
        self._waiting, self._shares, self._outlook = waiting, shares, outlook
        self.turns = Turns(waiting, shares)
        self.room: dict[str, int] = {}
        self.later: set[str] = set()

    def resize(self, room: dict[str, int], lanes: Mapping[str, int], usable: Mapping[str, int], bytes: int) -> None:
        """Devices or usable bytes have changed. ``lanes``, ``usable``: by class; ``bytes``: of all pools, each once."""
        self.room = room
        self._outlook.resize(lanes, usable)
        self._waiting.scarce.resize(lanes, usable)
        self._shares.resize(bytes, sum(lanes.values()))

    def choose(self, state: DeviceState, room: int, now: float) -> Choice | None:
        """What starts on a device that has ``room`` bytes and that nothing is reserved on."""
        kind, waiting = state.device.kind, self._waiting
        if len(waiting.scarce.sets) > 1:
            scarce = waiting.scarce.of(kind)
            if scarce is not None:
                group, room = self._confined(state, room, *scarce, now)
                if group is not None:
                    return group, group.bases[kind], "the largest of those that run here alone"
        largest = self._wants_large(state)
        users = waiting.users
        if len(users) == 1:
            (queue,) = users.values()
            group = queue.first(kind, room, largest)
            if group is not None and kind in group.slow:
                group = self._first_allowed(queue, state, room, largest, now)
        else:
            group = self._of_users(state, room, largest, now)
        if group is not None:
            queue = users[group.user]
            if queue.close and queue.count > len(queue.groups):
                group = self._mixed(queue, group, state, room, largest)
            return group, group.bases[kind], "the largest that fits" if largest else "the smallest"
        if waiting.curves:
            for _, user in self.turns.order():
                for group, k in waiting.users[user].smaller(kind, room):
                    if self.allowed(group, state, k, now):
                        return group, k, f"point {k + 1} of its curve: nothing fits at full size"
        return None

    def beside(self, need: int, target: DeviceState, state: DeviceState, room: int, now: float) -> Choice | None:
        """Something that provably leaves a reservation of ``need`` bytes on ``target`` its bytes and its lane when they would be free."""
        when, spare, lanes = target.free_at(need, now)
        if when == math.inf:
            return None
        kind, opening, beside = state.device.kind, state.opening, state is not target or lanes >= 1
        for _, user in self.turns.order():
            for group in self._waiting.users[user].fitting(kind, room, largest=True):
                k = group.bases[kind]
                over = group.known and now + group.seconds(kind, k) <= when and opening <= spare
                if (over or (beside and group.point_bytes(kind, k) + opening <= spare)) and self.allowed(group, state, k, now):
                    return group, k, "back-filled: the reservation waits no longer for it"
        return None

    def allowed(self, group: Group, state: DeviceState, index: int, now: float) -> bool:
        """Whether a request may start at a slower place than the best one that exists now."""
        seconds = group.seconds(state.device.kind, index)
        if seconds <= group.best * SLOW or seconds <= self._best(group) * SLOW:
            return True
        if self._outlook.allows(group, state.device.kind, index, now):
            return True
        self.later.add(state.device.pool)
        return False

    def _confined(
        self, state: DeviceState, room: int, kinds: frozenset[str], part: float, now: float
    ) -> tuple[Group | None, int]:
        """On scarce devices: the largest that fits of those that run on them alone; else the bytes that others may have.

        Others take so many bytes that what waits for these devices could never start beside what runs: where only they are in its
        way, they get no more than ``1 - part`` of the bytes. ``kinds``, ``part``: see ``Scarce.of``.
        """
        kind, wanted, fair, waiting = state.device.kind, None, 1.0 / self.turns.active(), self._waiting
        for count, (share, user) in enumerate(self.turns.order()):
            if count and (count >= USERS or share >= fair):
                break  # those below their share go first, with whatever they have
            queue = waiting.users[user]
            group = queue.confined(kind, room, kinds)
            if group is not None and (kind not in group.slow or self.allowed(group, state, group.bases[kind], now)):
                return group, room
            need = queue.next_confined(kind, room, kinds)
            wanted = need if wanted is None or (need is not None and need < wanted) else wanted
        if wanted is None or not state.running:
            return None, room
        others = sum(run.point.bytes for run in state.running.values() if not run.kinds <= kinds)
        if wanted <= state.room + others:
            return None, min(room, int((1.0 - part) * state.most) - others)
        return None, room

    def _of_users(self, state: DeviceState, room: int, largest: bool, now: float) -> Group | None:
        """The best fit of some users below the fair share; where they have none, that of the user with the smallest share."""
        kind, waiting, best, size, count = state.device.kind, self._waiting, None, -1, 0
        fair, most = 1.0 / self.turns.active(), waiting.extreme(kind, room, largest)
        for share, user in self.turns.order():
            if best is not None and (count >= USERS or share >= fair):
                break
            count += 1
            queue = waiting.users[user]
            group = queue.first(kind, room, largest, beyond=size)
            if group is not None and kind in group.slow:
                group = self._first_allowed(queue, state, room, largest, now)
            if group is not None:
                bytes = group.point_bytes(kind, group.bases[kind])
                if best is None or (bytes > size if largest else bytes < size):
                    best, size = group, bytes
                    if size == most:
                        break  # nobody has a better fit
        return best

    def _mixed(self, queue: UserQueue, group: Group, state: DeviceState, room: int, largest: bool) -> Group:
        """Of the groups of a user with nearly as many bytes as the best fit, the one that has the most left for each of its lanes here.

        So a device runs all of them side by side, by what is left of each, instead of one after the other: they may need different parts
        of it. What is left is counted in the seconds that those took which have ended. The longest and the largest are not to be left
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

    def _first_allowed(self, queue: UserQueue, state: DeviceState, room: int, largest: bool, now: float) -> Group | None:
        """The best fit of one user, of those that may start here, where it is slower than elsewhere for some."""
        kind = state.device.kind
        fitting = queue.fitting(kind, room, largest)
        return next((group for group in fitting if self.allowed(group, state, group.bases[kind], now)), None)

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

    def _best(self, group: Group) -> float:
        """Seconds at the fastest place that a group has, were all of ours gone; infinite when there is none now."""
        points = [(kind, first_fitting(group.claims[kind], self.room.get(kind, -1))) for kind in group.bases]
        return min((group.seconds(kind, k) for kind, k in points if k is not None), default=math.inf)
