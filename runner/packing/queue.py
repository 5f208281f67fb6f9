"""What waits: requests in groups of one user and equal claims, indexed by bytes for each class of devices."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .claims import Claim, ClaimsKey, Request
from .scarce import Scarce, SetWork

INFINITY = float("inf")
Entry = tuple[float, int, Request]
SLOW = 1.0 + 1e-9  # times that differ by no more are equal
STALE = 64  # beside as many as wait, so many sizes of groups that have ended are kept
NEAR = 8  # bytes are nearly equal when they differ by an eighth at most
LOOK = 8  # how many requests of different claims are looked at where the first one may not be placed


class Group:
    """Requests of one user with equal claims, the oldest first.

    Attributes:
        bases: for each class of devices that it can run on, the index of the first point that the largest pool of the class holds.
        known: whether the seconds of all its claims are known; otherwise a second here is a unit of time.
        best: seconds at the fastest of its bases; ``slow``: the classes where its base is slower than that.
        kinds: the classes of its bases; ``work``: the account of the requests that have the same ones, None while the group is in none.
        took: mean seconds at the fastest point of the ``ended`` ones that said them; None before.
        on: for each of these, seconds and byte seconds at the base. ``bends``: there are points beyond a base.
    """

    __slots__ = (
        *(
            "area",
            "bases",
            "best",
            "bytes",
            "claims",
            "heap",
            "shape",
            "kinds",
            "known",
            "number",
            "size",
            "slow",
            "user",
            "work",
            "bends",
            "ended",
            "on",
            "took",
        ),
    )

    def __init__(self, number: int, user: str, shape: ClaimsKey, limits: Mapping[str, int]) -> None:
        self.number, self.user, self.shape = number, user, shape
        self.took: float | None = None
        self.ended = 0
        self.claims: dict[str, Claim] = dict(shape.key)
        self.heap: list[Entry] = []
        self.size = 0
        self.work: SetWork | None = None
        self.known = all(claim.seconds is not None for claim in self.claims.values())
        self.fit(limits)

    def fit(self, limits: Mapping[str, int]) -> None:
        """The devices have changed: the largest bytes that a claim may have by class are ``limits``."""
        self.bases: dict[str, int] = {}
        for kind, claim in self.claims.items():
            index = first_fitting(claim, limits.get(kind, -1))
            if index is not None:
                self.bases[kind] = index
        self.kinds = frozenset(self.bases)
        self.best = min((self.seconds(kind, k) for kind, k in self.bases.items()), default=0.0)
        self.slow = frozenset(kind for kind, k in self.bases.items() if self.seconds(kind, k) > self.best * SLOW)
        self.bends = any(k + 1 < len(self.claims[kind].points) for kind, k in self.bases.items())
        self.on = tuple(
            (kind, seconds, seconds * self.point_bytes(kind, k))
            for kind, k in self.bases.items()
            for seconds in (self.seconds(kind, k),)
        )
        self.area = min((area for _, _, area in self.on), default=0.0)
        self.bytes = max((self.point_bytes(kind, k) for kind, k in self.bases.items()), default=0)

    def seconds(self, kind: str, index: int) -> float:
        """How long a request runs at a point of its curve."""
        claim = self.claims[kind]
        return (claim.seconds if self.known and claim.seconds is not None else 1.0) * claim.points[index].time

    def point_bytes(self, kind: str, index: int) -> int:
        """Bytes at a point of the curve."""
        return self.claims[kind].points[index].bytes


def first_fitting(claim: Claim, room: int) -> int | None:
    """The fastest point of at most ``room`` bytes."""
    for index, point in enumerate(claim.points):
        if point.bytes <= room:
            return index
    return None


@dataclass(slots=True)
class _Waits:
    entry: Entry
    group: Group


class UserQueue:
    """The groups of one user, and for each class of devices what fits into how many bytes."""

    def __init__(self) -> None:
        self.groups: dict[ClaimsKey, Group] = {}
        self.count = 0
        self.close = False
        self.oldest: list[Entry] = []
        self.parked: list[Entry] = []
        self._bases: dict[str, list[tuple[int, float, int, Group]]] = {}
        self._smaller: dict[str, list[tuple[int, float, int, int, Group]]] = {}

    def index(self, group: Group, elastic: bool) -> None:
        """Make a group findable by bytes. Rows differ in the number, so that groups are never compared."""
        number = group.number
        for kind, base in group.bases.items():
            points = group.claims[kind].points
            insort(self._bases.setdefault(kind, []), (points[base].bytes, -group.seconds(kind, base), number, group))
            for k in range(base + 1, len(points) if elastic else 0):
                insort(self._smaller.setdefault(kind, []), (points[k].bytes, -group.seconds(kind, k), number, k, group))

    def forget(self, group: Group, elastic: bool) -> None:
        """Undo ``index``."""
        number = group.number
        for kind, seconds, _ in group.on:
            base, points, rows = group.bases[kind], group.claims[kind].points, self._bases[kind]
            del rows[bisect_left(rows, (points[base].bytes, -seconds, number))]
            if elastic and base + 1 < len(points):
                less = self._smaller[kind]
                for k in range(base + 1, len(points)):
                    del less[bisect_left(less, (points[k].bytes, -group.seconds(kind, k), number, k))]

    def clear_index(self) -> None:
        """Forget all groups."""
        self._bases.clear()
        self._smaller.clear()

    def least(self, kind: str) -> float:
        """Bytes of the smallest point that there is; infinite when nothing can run there."""
        rows, less = self._bases.get(kind), self._smaller.get(kind)
        least = rows[0][0] if rows else INFINITY
        return min(least, less[0][0]) if less else least

    def first(self, kind: str, room: int, largest: bool, beyond: int = -1) -> Group | None:
        """The first of ``fitting``; None when it is no better than ``beyond`` bytes, if these are not negative.

        Says in ``close`` whether others have nearly as many bytes, see ``near``.
        """
        rows = self._bases.get(kind)
        if not rows or rows[0][0] > room:
            return None
        if not largest:
            size = rows[0][0]
            self.close = len(rows) > 1 and rows[1][0] <= size + size // NEAR
            return rows[0][3] if beyond < 0 or size < beyond else None
        row, last = rows[-1], -1
        if row[0] > room:
            last = bisect_right(rows, (room, 1.0)) - 1
            row = rows[last]
        size = row[0]
        if size <= beyond:
            return None
        self.close = last != 0 and len(rows) > 1 and rows[last - 1][0] >= size - size // NEAR
        if self.close and rows[last - 1][0] == size:  # of equal bytes the longest is first
            return rows[bisect_left(rows, (size, -INFINITY))][3]
        return row[3]

    def near(self, group: Group, kind: str, room: int, largest: bool) -> list[tuple[int, Group]]:
        """The groups whose base has nearly as many bytes as that of ``group``, itself among them, and is to take as long; with the bytes.

        ``group`` is the first of ``fitting``; only some are looked at, and none where a group is slow.
        """
        rows, base = self._bases[kind], group.bases[kind]
        size, seconds = group.point_bytes(kind, base), -group.seconds(kind, base)
        if largest:
            last = bisect_right(rows, (size, 1.0))
            rows = rows[max(bisect_left(rows, (size - size // NEAR, -INFINITY)), last - LOOK) : last]
        else:
            rows = rows[: min(LOOK, bisect_right(rows, (min(room, size + size // NEAR), 1.0)))]
        return [(row[0], row[3]) for row in rows if row[1] == seconds and kind not in row[3].slow]

    def fitting(self, kind: str, room: int, largest: bool) -> Iterator[Group]:
        """Some groups whose base on ``kind`` fits: from the largest bytes down or from the smallest up, the longest of equal ones first."""
        rows = self._bases.get(kind)
        if not rows or rows[0][0] > room:
            return
        if not largest:
            for size, _, _, group in rows[:LOOK]:
                if size <= room:
                    yield group
            return
        end, left = bisect_right(rows, (room, 1.0)), LOOK
        while end and left:
            first = bisect_left(rows, (rows[end - 1][0], -INFINITY))
            equal = rows[first : min(end, first + left)]
            for row in equal:
                yield row[3]
            end, left = first, left - len(equal)

    def confined(self, kind: str, room: int, kinds: frozenset[str]) -> Group | None:
        """The largest that fits of those that can run on ``kinds`` alone; only some of what fits is looked at."""
        for group in self.fitting(kind, room, largest=True):
            if group.kinds <= kinds:
                return group
        return None

    def next_confined(self, kind: str, room: int, kinds: frozenset[str]) -> int | None:
        """Bytes of the smallest of those that can run on ``kinds`` alone and do not fit; only some are looked at."""
        rows = self._bases.get(kind, [])
        first = bisect_right(rows, (room, 1.0))
        return next((row[0] for row in rows[first : first + LOOK] if row[3].kinds <= kinds), None)

    def between(self, kind: str, above: int, to: int, most: int) -> bool:
        """Whether the first point of at most ``most`` bytes of some group has more than ``above`` and at most ``to``."""
        rows = self._bases.get(kind, [])
        first = bisect_right(rows, (above, 1.0))
        if first < len(rows) and rows[first][0] <= to:
            return True
        for row in rows[bisect_right(rows, (most, 1.0)) :]:  # whose base does not fit now: others hold a part of the memory
            if row[3].bends:
                k = first_fitting(row[3].claims[kind], most)
                if k is not None and above < row[3].point_bytes(kind, k) <= to:
                    return True
        return False

    def smaller(self, kind: str, room: int) -> Iterator[tuple[Group, int]]:
        """Some points beyond a group's base that fit, the largest bytes first."""
        rows = self._smaller.get(kind)
        if not rows or rows[0][0] > room:
            return
        end = bisect_right(rows, (room, 1.0))
        for row in reversed(rows[max(0, end - LOOK) : end]):
            yield row[4], row[3]


class Waiting:
    """All that waits. ``count`` and ``bytes`` are of those that some device can hold."""

    def __init__(self, elastic: bool) -> None:
        self.users: dict[str, UserQueue] = {}
        self.scarce = Scarce()
        self.count = 0
        self.bytes = 0
        self.curves = 0  # groups with points beyond their bases
        self.joined = 0  # how often a user has come or gone
        self._oldest = INFINITY  # nothing that is not parked was submitted before
        self._elastic = elastic
        self._least: dict[str, float] = {}
        self._sizes: dict[str, list[int]] = {}  # bytes of the bases of all users, by class; made when they are first asked for
        self._stale = 0  # groups that have ended since
        self._entries: dict[str, _Waits] = {}
        self._limits: dict[str, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: object) -> bool:
        return request in self._entries

    def fit(self, limits: Mapping[str, int]) -> None:
        """The devices have changed: find the bases of every group again."""
        self._limits = dict(limits)
        self.count = self.bytes = 0
        self.curves = 0
        self.scarce.clear()
        self._sizes.clear()
        for queue in self.users.values():
            queue.clear_index()
            for group in queue.groups.values():
                group.fit(self._limits)
                group.work = self.scarce.work(group.kinds) if group.bases else None
                if group.work is not None:
                    self._index(queue, group)
                    self._count(group, group.work, group.size)
        self.unpark()

    def groups(self) -> Iterator[Group]:
        """Every group."""
        for queue in self.users.values():
            yield from queue.groups.values()

    def add(self, request: Request, shape: ClaimsKey) -> Group:
        """Queue a request; its group."""
        queue = self.users.get(request.user)
        if queue is None:
            queue = self.users[request.user] = UserQueue()
            self.joined += 1
        group = queue.groups.get(shape)
        self._number += 1
        if group is None:
            group = queue.groups[shape] = Group(self._number, request.user, shape, self._limits)
            if group.bases:
                group.work = self.scarce.work(group.kinds)
                self._index(queue, group)
        entry = (request.submitted, self._number, request)
        heapq.heappush(group.heap, entry)
        heapq.heappush(queue.oldest, entry)
        self._entries[request.id] = _Waits(entry, group)
        group.size += 1
        queue.count += 1
        self._oldest = min(self._oldest, request.submitted)
        if group.work is not None:
            self._count(group, group.work, 1)
        return group

    def get(self, request: str) -> tuple[Request, Group] | None:
        """A request that waits, with its group."""
        waits = self._entries.get(request)
        return (waits.entry[2], waits.group) if waits else None

    def learn(self, user: str, shape: ClaimsKey, seconds: float) -> None:
        """One that was in the group of a user with this shape has taken so long, at the fastest point."""
        queue = self.users.get(user)
        group = queue.groups.get(shape) if queue is not None else None
        if group is not None:
            group.ended += 1
            group.took = seconds if group.took is None else group.took + (seconds - group.took) / group.ended

    def pop(self, group: Group) -> Request:
        """Take the oldest of a group out, which must have one."""
        heap, entries = group.heap, self._entries
        while True:
            entry = heapq.heappop(heap)
            waits = entries.get(entry[2].id)
            if waits is not None and waits.entry is entry:
                del entries[entry[2].id]
                self._gone(group)
                return entry[2]

    def remove(self, request: str) -> tuple[Request, Group]:
        """Take a request out."""
        waits = self._entries.pop(request)
        self._gone(waits.group)
        return waits.entry[2], waits.group

    def _gone(self, group: Group) -> None:
        """One of a group, which is no more among the entries."""
        queue = self.users[group.user]
        group.size -= 1
        queue.count -= 1
        if group.work is not None:
            self._count(group, group.work, -1)
        if not group.size:
            if group.bases:
                queue.forget(group, self._elastic)
                self.curves -= group.bends
                self._stale += 1
            del queue.groups[group.shape]
        elif len(group.heap) > 2 * group.size + 64:
            group.heap = [entry for entry in group.heap if self._valid(entry)]
            heapq.heapify(group.heap)
        self._trim(queue, group.user)

    def oldest(self, user: str, runnable: Callable[[Group], bool]) -> tuple[Request, Group] | None:
        """The oldest request of a user whose group is ``runnable``; the others before it are parked until ``unpark``."""
        queue = self.users[user]
        while queue.oldest:
            entry = queue.oldest[0]
            if self._valid(entry):
                group = self._entries[entry[2].id].group
                if runnable(group):
                    return entry[2], group
                queue.parked.append(entry)
            heapq.heappop(queue.oldest)
        return None

    def overtaken(self, before: float) -> bool:
        """Whether some request may have been submitted before then; never False when one was, unless it is parked."""
        if before <= self._oldest:
            return False
        self._oldest = min((queue.oldest[0][0] for queue in self.users.values() if queue.oldest), default=INFINITY)
        return self._oldest < before

    def unpark(self) -> None:
        """Look at all requests again for the oldest."""
        for queue in self.users.values():
            for entry in queue.parked:
                heapq.heappush(queue.oldest, entry)
                self._oldest = min(self._oldest, entry[0])
            queue.parked.clear()

    def _index(self, queue: UserQueue, group: Group) -> None:
        queue.index(group, self._elastic)
        self.curves += group.bends
        self._least.clear()
        for kind, sizes in self._sizes.items():
            if kind in group.bases:
                size = group.point_bytes(kind, group.bases[kind])
                k = bisect_left(sizes, size)
                if k == len(sizes) or sizes[k] != size:
                    sizes.insert(k, size)

    def extreme(self, kind: str, room: int, largest: bool) -> int:
        """Bytes that no first point on ``kind`` of at most ``room`` bytes is above, or, for the smallest, below; -1 where there is none.

        Some group has so many, or had so before it ended.
        """
        if self._stale > len(self._entries) + STALE:
            self._sizes.clear()
            self._stale = 0
        sizes = self._sizes.get(kind)
        if sizes is None:
            groups = (group for group in self.groups() if kind in group.bases)
            sizes = self._sizes[kind] = sorted({group.point_bytes(kind, group.bases[kind]) for group in groups})
        k = bisect_right(sizes, room) - 1 if largest else 0
        return sizes[k] if k >= 0 and sizes else -1

    def fits(self, kind: str, room: int) -> bool:
        """Whether anything fits, at any point of its curve."""
        if room < self._least.get(kind, 0):
            return False
        least = INFINITY
        for queue in self.users.values():
            least = min(least, queue.least(kind))
            if least <= room:
                return True
        self._least[kind] = least  # until something else is queued nothing smaller comes
        return False

    def between(self, kind: str, above: int, to: int, most: int) -> bool:
        """Whether some group's first point of at most ``most`` bytes has more than ``above`` and at most ``to``."""
        return any(queue.between(kind, above, to, most) for queue in self.users.values())

    def _count(self, group: Group, work: SetWork, count: int) -> None:
        """``count`` more of a group wait that some device can hold."""
        self.count += count
        self.bytes += group.bytes * count
        work.count += count
        work.lanes += group.best * count
        work.area += group.area * count
        if not work.count:
            self.scarce.drop(work)

    def _valid(self, entry: Entry) -> bool:
        waits = self._entries.get(entry[2].id)
        return waits is not None and waits.entry is entry

    def _trim(self, queue: UserQueue, user: str) -> None:
        if not queue.count:
            del self.users[user]
            self.joined += 1
        elif len(queue.oldest) + len(queue.parked) > 2 * queue.count + 64:
            queue.oldest = [entry for entry in queue.oldest if self._valid(entry)]
            queue.parked = [entry for entry in queue.parked if self._valid(entry)]
            heapq.heapify(queue.oldest)
