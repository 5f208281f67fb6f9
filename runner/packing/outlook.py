"""When everything that waits and runs will have finished, in closed form: work by throughput for each set of device classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .pools import Running
from .queue import INFINITY, Group

EPSILON = 1e-9
UNKNOWN = 3.0  # a request without seconds starts at a slower place when that is at most a third of what is left of the queue
MOST_SETS = (
    8  # more sets of classes than that are looked at only one by one: less work is seen, so the finish is never too late
)


@dataclass(slots=True)
class _Work:
    """Work of the groups that run on the same set of classes: at the best class, and as it would be on each."""

    count: int = 0
    lanes: float = 0.0
    area: float = 0.0
    lanes_on: dict[str, float] = field(default_factory=dict)
    area_on: dict[str, float] = field(default_factory=dict)

    def add(self, other: _Work) -> None:
        self.count += other.count
        self.lanes += other.lanes
        self.area += other.area
        for kind, seconds in other.lanes_on.items():
            self.lanes_on[kind] = self.lanes_on.get(kind, 0.0) + seconds
        for kind, area in other.area_on.items():
            self.area_on[kind] = self.area_on.get(kind, 0.0) + area


@dataclass(slots=True)
class _Terms:
    """A finish of one set: work and what is done of it in a second, for lanes and for bytes."""

    lanes: float
    lanes_rate: float
    area: float
    area_rate: float

    def seconds(self, more_lanes: float = 0.0, more_area: float = 0.0) -> float:
        lanes = (self.lanes + more_lanes) / self.lanes_rate if self.lanes_rate else 0.0
        return max(lanes, (self.area + more_area) / self.area_rate if self.area_rate else 0.0)


class Outlook:
    """The predicted finish: a lower bound of it, so that what ends before it does not move it.

    Requests of known seconds and those without are kept apart: for the latter, a second is a unit, which is learnt from those that ended.
    """

    def __init__(self, groups: Callable[[], Iterable[Group]]) -> None:
        """``groups``: all that wait; called the first time that a finish is asked for, and after ``forget``."""
        self._groups = groups
        self._counted = False
        self._work: dict[bool, dict[frozenset[str], _Work]] = {True: {}, False: {}}
        self._running: dict[str, Running] = {}
        self._lanes: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._ended: list[Running] = []
        self._unit_sum = 0.0
        self._unit_count = 0
        self._changes = 0
        self._last: tuple[int, float, bool, float, dict[frozenset[str], _Terms]] | None = None

    def resize(self, lanes: Mapping[str, int], bytes: Mapping[str, int]) -> None:
        """Lanes and usable bytes of each class have changed."""
        self._lanes, self._bytes = dict(lanes), dict(bytes)
        self._changes += 1

    def forget(self) -> None:
        """The bases of the groups have changed: count them again when that is next needed."""
        self._work = {True: {}, False: {}}
        self._counted = False
        self._changes += 1

    def wait(self, group: Group, count: int) -> None:
        """``count`` more requests of a group wait, or fewer when it is negative."""
        if self._counted:
            self._count(group, count)
            self._changes += 1

    def _count(self, group: Group, count: int) -> None:
        if not group.bases or not count:
            return
        sets, kinds = self._work[group.known], group.kinds
        work = sets.get(kinds)
        if work is None:
            work = sets[kinds] = _Work()
        work.count += count
        if not work.count:
            del sets[kinds]
            return
        work.lanes += count * group.best
        work.area += count * group.area
        for kind, seconds, area in group.on:
            work.lanes_on[kind] = work.lanes_on.get(kind, 0.0) + count * seconds
            work.area_on[kind] = work.area_on.get(kind, 0.0) + count * area

    def start(self, run: Running) -> None:
        """A request runs."""
        self._running[run.request.id] = run
        self._changes += 1

    def stop(self, request: str, ended: bool) -> None:
        """A request runs no more; ``ended`` by itself."""
        run = self._running.pop(request)
        self._changes += 1
        if ended and run.end == INFINITY:
            self._ended.append(run)

    def tick(self, now: float) -> None:
        """Learn from what ended since the last time."""
        for run in self._ended:
            self._unit_sum += max(0.0, now - run.start) / run.point.time
            self._unit_count += 1
        if self._ended:
            self._ended.clear()
            self._changes += 1

    def unit(self, known: bool) -> float | None:
        """Seconds of a unit; None before one of the requests without seconds has ended."""
        if known:
            return 1.0
        return self._unit_sum / self._unit_count if self._unit_count else None

    def allows(self, group: Group, kind: str, index: int, now: float) -> bool:
        """Whether one request of a group may start at this point of its curve without a later finish of everything."""
        unit = self.unit(group.known)
        if unit is None:
            return False
        if not self._counted:
            self._counted = True
            for other in self._groups():
                self._count(other, other.size)
        finish, terms = self._finish(group.known, unit, now)
        seconds, base = group.seconds(kind, index), group.bases[kind]
        if unit * seconds * (1.0 if group.known else UNKNOWN) > finish * (1.0 + EPSILON):
            return False
        if index == base:
            return True
        more = seconds - group.seconds(kind, base)
        area = seconds * group.point_bytes(kind, index) - group.seconds(kind, base) * group.point_bytes(kind, base)
        mine = set(group.bases)
        return all(unit * t.seconds(more, area) <= finish * (1.0 + EPSILON) for kinds, t in terms.items() if mine <= kinds)

    def _finish(self, known: bool, unit: float, now: float) -> tuple[float, dict[frozenset[str], _Terms]]:
        """Seconds until everything is predicted to end, and the terms of it. Kept until something changes: many are asked at once."""
        kept = self._last
        if kept is None or kept[:3] != (self._changes, now, known):
            terms = self._terms(known, now)
            finish = max(self._last_end(now) - now, unit * max((t.seconds() for t in terms.values()), default=0.0))
            kept = self._last = (self._changes, now, known, finish, terms)
        return kept[3], kept[4]

    def _terms(self, known: bool, now: float) -> dict[frozenset[str], _Terms]:
        sets = self._work[known]
        held = self._held(now) if known else {}
        out: dict[frozenset[str], _Terms] = {}
        for kinds in sets:
            work = _Work()
            for other in sets if len(sets) <= MOST_SETS else (kinds,):
                if other <= kinds:
                    work.add(sets[other])
            terms = _Terms(work.lanes, 0.0, work.area, 0.0)
            for kind in kinds:
                speed = work.lanes / work.lanes_on[kind] if work.lanes_on.get(kind) else 1.0
                thrift = work.area / work.area_on[kind] if work.area_on.get(kind) else 1.0
                lanes, area = held.get(kind, (0.0, 0.0))
                terms.lanes += lanes * speed
                terms.area += area * thrift
                terms.lanes_rate += self._lanes.get(kind, 0) * speed
                terms.area_rate += self._bytes.get(kind, 0) * thrift
            out[kinds] = terms
        return out

    def _held(self, now: float) -> dict[str, tuple[float, float]]:
        """What the running requests of known seconds still take, by class: lane seconds and byte seconds."""
        out: dict[str, tuple[float, float]] = {}
        for run in self._running.values():
            if run.end > now and run.end != INFINITY:
                lanes, area = out.get(run.device.kind, (0.0, 0.0))
                out[run.device.kind] = lanes + run.end - now, area + (run.end - now) * run.point.bytes
        return out

    def _last_end(self, now: float) -> float:
        """When all that runs should be over: one that took longer than was known takes as long again."""
        last, unit = now, self.unit(False) or 0.0
        for run in self._running.values():
            end = run.end
            if end == INFINITY:
                end = run.start + unit * run.point.time
            if end <= now:
                end = now + (now - run.start)
            last = max(last, end)
        return last
