"""The queue of waiting requests, in groups of equal claims, indexed by bytes for each device class.

The packer uses one point of a curve: the fastest that fits the largest pool of the class, less the memory of other processes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .claims import Claim, ClaimsKey, Request

INFINITY = float("inf")
Entry = tuple[float, int, Request]
Limits = Mapping[str, tuple[int, int]]
"""By class of devices, the largest bytes that a claim may have: beside what others hold now, and if they held nothing."""
NEAR = 8  # bytes are nearly equal when they differ by an eighth at most
LOOK = 8  # number of different claims that are tried if the first one may not be placed


class ClaimGroup:
    """Requests with equal claims, the oldest first.

    Attributes:
        bases: for each class of devices that it can run on, the point that it runs at.
        known: whether the seconds of all its claims are known; otherwise a second here is a unit of time.
        took: mean seconds at the fastest point of the ``ended`` ones that said them; None before.
    """

    __slots__ = ("bases", "bytes", "claims", "ended", "heap", "known", "number", "shape", "size", "took")

    def __init__(self, number: int, shape: ClaimsKey, limits: Limits) -> None:
        self.number, self.shape = number, shape
        self.took: float | None = None
        self.ended = 0
        self.claims: dict[str, Claim] = dict(shape.key)
        self.heap: list[Entry] = []
        self.size = 0
        self.known = all(claim.seconds is not None for claim in self.claims.values())
        self.fit(limits)

    def fit(self, limits: Limits) -> None:
        """The devices, or what others hold of them, have changed."""
        self.bases: dict[str, int] = {}
        for kind, claim in self.claims.items():
            now, ever = limits.get(kind, (-1, -1))
            index = first_fitting(claim, now)
            index = first_fitting(claim, ever) if index is None else index  # it waits until others hold less
            if index is not None:
                self.bases[kind] = index
        self.bytes = max(map(self.bytes_on, self.bases), default=0)

    @property
    def bends(self) -> bool:
        """Whether the point that it runs at depends on what the devices hold."""
        return any(len(claim.points) > 1 for claim in self.claims.values())

    def seconds(self, kind: str) -> float:
        """The seconds of a request on a class; None: unknown."""
        claim = self.claims[kind]
        return (claim.seconds if self.known and claim.seconds is not None else 1.0) * claim.points[self.bases[kind]].time

    def bytes_on(self, kind: str) -> int:
        """Bytes of a request on a class."""
        return self.claims[kind].points[self.bases[kind]].bytes


def first_fitting(claim: Claim, room: int) -> int | None:
    """The fastest point of at most ``room`` bytes."""
    for index, point in enumerate(claim.points):
        if point.bytes <= room:
            return index
    return None


@dataclass(slots=True)
class _WaitKey:
    entry: Entry
    group: ClaimGroup


class GroupIndex:
    """The groups, and for each class of devices what fits into how many bytes."""

    def __init__(self) -> None:
        self.groups: dict[ClaimsKey, ClaimGroup] = {}
        self.close = False
        self._bases: dict[str, list[tuple[int, float, int, ClaimGroup]]] = {}

    def add(self, group: ClaimGroup) -> None:
        """Make a group findable by bytes. Rows differ in the number, so that groups are never compared."""
        for kind in group.bases:
            insort(self._bases.setdefault(kind, []), (group.bytes_on(kind), -group.seconds(kind), group.number, group))

    def forget(self, group: ClaimGroup) -> None:
        """Undo ``add``."""
        for kind in group.bases:
            rows = self._bases[kind]
            del rows[bisect_left(rows, (group.bytes_on(kind), -group.seconds(kind), group.number))]

    def clear_index(self) -> None:
        """Forget all groups."""
        self._bases.clear()

    def least(self, kind: str) -> float:
        """Bytes of the smallest; infinite when nothing can run there."""
        rows = self._bases.get(kind)
        return rows[0][0] if rows else INFINITY

    def first(self, kind: str, room: int, largest: bool) -> ClaimGroup | None:
        """The first of ``fitting``.

        Says in ``close`` whether others have nearly as many bytes, see ``near``.
        """
        rows = self._bases.get(kind)
        if not rows or rows[0][0] > room:
            return None
        if not largest:
            size = rows[0][0]
            self.close = len(rows) > 1 and rows[1][0] <= size + size // NEAR
            return rows[0][3]
        row, last = rows[-1], -1
        if row[0] > room:
            last = bisect_right(rows, (room, 1.0)) - 1
            row = rows[last]
        size = row[0]
        self.close = last != 0 and len(rows) > 1 and rows[last - 1][0] >= size - size // NEAR
        if self.close and rows[last - 1][0] == size:  # of equal bytes the longest is first
            return rows[bisect_left(rows, (size, -INFINITY))][3]
        return row[3]

    def near(self, group: ClaimGroup, kind: str, room: int, largest: bool) -> list[tuple[int, ClaimGroup]]:
        """The groups whose base has nearly as many bytes as that of ``group``, itself among them, and is to take as long; with the bytes.

        ``group`` is the first of ``fitting``; only some are looked at.
        """
        rows, size, seconds = self._bases[kind], group.bytes_on(kind), -group.seconds(kind)
        if largest:
            last = bisect_right(rows, (size, 1.0))
            rows = rows[max(bisect_left(rows, (size - size // NEAR, -INFINITY)), last - LOOK) : last]
        else:
            rows = rows[: min(LOOK, bisect_right(rows, (min(room, size + size // NEAR), 1.0)))]
        return [(row[0], row[3]) for row in rows if row[1] == seconds]

    def fitting(self, kind: str, room: int) -> Iterator[ClaimGroup]:
        """A limited number of groups that fit on ``kind``: from the largest bytes down, the longest of equal ones first."""
        rows = self._bases.get(kind)
        if not rows or rows[0][0] > room:
            return
        end, left = bisect_right(rows, (room, 1.0)), LOOK
        while end and left:
            first = bisect_left(rows, (rows[end - 1][0], -INFINITY))
            equal = rows[first : min(end, first + left)]
            for row in equal:
                yield row[3]
            end, left = first, left - len(equal)

    def between(self, kind: str, above: int, to: int) -> bool:
        """Whether some group has more than ``above`` bytes and at most ``to``."""
        rows = self._bases.get(kind, [])
        first = bisect_right(rows, (above, 1.0))
        return first < len(rows) and rows[first][0] <= to


class Waiting:
    """All that waits. ``count`` and ``bytes`` are of those that some device can hold."""

    def __init__(self) -> None:
        self.index = GroupIndex()
        self.count = 0
        self.bytes = 0
        self.curves = 0  # groups with several points
        self._first = INFINITY  # nothing that is not parked was submitted before
        self._oldest: list[Entry] = []
        self._parked: list[Entry] = []
        self._least: dict[str, float] = {}
        self._entries: dict[str, _WaitKey] = {}
        self._limits: Limits = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: object) -> bool:
        return request in self._entries

    def limit(self, limits: Limits, *, fit: bool) -> None:
        """Recompute the points of every group after a change of other processes' memory, or (``fit``) of the devices."""
        self._limits = limits
        if fit or self.curves:
            self._fit()

    def _fit(self) -> None:
        self.count = self.bytes = 0
        self.curves = 0
        self.index.clear_index()
        for group in self.groups():
            group.fit(self._limits)
            if group.bases:
                self._index(group)
                self._count(group, group.size)

    def groups(self) -> Iterator[ClaimGroup]:
        """Every group."""
        yield from self.index.groups.values()

    def add(self, request: Request, shape: ClaimsKey) -> ClaimGroup:
        """Queue a request; its group."""
        group = self.index.groups.get(shape)
        self._number += 1
        if group is None:
            group = self.index.groups[shape] = ClaimGroup(self._number, shape, self._limits)
            if group.bases:
                self._index(group)
        entry = (request.submitted, self._number, request)
        heapq.heappush(group.heap, entry)
        heapq.heappush(self._oldest, entry)
        self._entries[request.id] = _WaitKey(entry, group)
        group.size += 1
        self._first = min(self._first, request.submitted)
        if group.bases:
            self._count(group, 1)
        return group

    def get(self, request: str) -> tuple[Request, ClaimGroup] | None:
        """A request that waits, with its group."""
        waits = self._entries.get(request)
        return (waits.entry[2], waits.group) if waits else None

    def learn(self, shape: ClaimsKey, seconds: float) -> None:
        """Record the seconds of a finished request with this shape, scaled to the fastest point."""
        group = self.index.groups.get(shape)
        if group is not None:
            group.ended += 1
            group.took = seconds if group.took is None else group.took + (seconds - group.took) / group.ended

    def pop(self, group: ClaimGroup) -> Request:
        """Take the oldest of a group out, which must have one."""
        heap, entries = group.heap, self._entries
        while True:
            entry = heapq.heappop(heap)
            waits = entries.get(entry[2].id)
            if waits is not None and waits.entry is entry:
                del entries[entry[2].id]
                self._gone(group)
                return entry[2]

    def remove(self, request: str) -> Request:
        """Take a request out."""
        waits = self._entries.pop(request)
        self._gone(waits.group)
        return waits.entry[2]

    def _gone(self, group: ClaimGroup) -> None:
        """Take one request of a group that has been removed from the entries."""
        group.size -= 1
        if group.bases:
            self._count(group, -1)
        if not group.size:
            if group.bases:
                self.index.forget(group)
                self.curves -= group.bends
            del self.index.groups[group.shape]
        elif len(group.heap) > 2 * group.size + 64:
            group.heap = [entry for entry in group.heap if self._valid(entry)]
            heapq.heapify(group.heap)
        self._trim()

    def oldest(self, runnable: Callable[[ClaimGroup], bool]) -> tuple[Request, ClaimGroup] | None:
        """The oldest request whose group is ``runnable``; the others before it are parked until ``unpark``."""
        while self._oldest:
            entry = self._oldest[0]
            if self._valid(entry):
                group = self._entries[entry[2].id].group
                if runnable(group):
                    return entry[2], group
                self._parked.append(entry)
            heapq.heappop(self._oldest)
        return None

    def overtaken(self, before: float) -> bool:
        """Whether some request may have been submitted before then; never False when one was, unless it is parked."""
        if before <= self._first:
            return False
        self._first = self._oldest[0][0] if self._oldest else INFINITY
        return self._first < before

    def unpark(self) -> None:
        """Recompute the oldest request from all requests."""
        for entry in self._parked:
            heapq.heappush(self._oldest, entry)
            self._first = min(self._first, entry[0])
        self._parked.clear()

    def _index(self, group: ClaimGroup) -> None:
        self.index.add(group)
        self.curves += group.bends
        self._least.clear()

    def fits(self, kind: str, room: int) -> bool:
        """Whether anything fits."""
        if room < self._least.get(kind, 0):
            return False
        least = self.index.least(kind)
        if least <= room:
            return True
        self._least[kind] = least  # until something else is queued nothing smaller comes
        return False

    def between(self, kind: str, above: int, to: int) -> bool:
        """Whether some group has more than ``above`` bytes and at most ``to``."""
        return self.index.between(kind, above, to)

    def _count(self, group: ClaimGroup, count: int) -> None:
        """``count`` more of a group wait that some device can hold."""
        self.count += count
        self.bytes += group.bytes * count

    def _valid(self, entry: Entry) -> bool:
        waits = self._entries.get(entry[2].id)
        return waits is not None and waits.entry is entry

    def _trim(self) -> None:
        if len(self._oldest) + len(self._parked) > 2 * len(self._entries) + 64:
            self._oldest = [entry for entry in self._oldest if self._valid(entry)]
            self._parked = [entry for entry in self._parked if self._valid(entry)]
            heapq.heapify(self._oldest)
