"""Which devices the finish hangs on: those that some requests are confined to, where that work takes nearly as long as everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCARCE = 0.8
"""Devices are scarce when the work that is confined to them takes this part of the time of all work, or more."""
MOST_SETS = 8  # with more sets of classes than that none is looked for


@dataclass(slots=True, eq=False)
class SetWork:
    """What waits of the requests that can run on the same classes: how many, lane seconds, and byte seconds (a second where unknown)."""

    kinds: frozenset[str]
    count: int = 0
    lanes: float = 0.0
    area: float = 0.0


@dataclass(frozen=True, slots=True)
class _Link:
    """A set of classes with all work that is confined to it, and the lanes and bytes of its devices."""

    kinds: frozenset[str]
    parts: tuple[SetWork, ...]
    lanes: int
    bytes: int

    def seconds(self) -> float:
        """The least time that the work takes on these devices."""
        area = lanes = 0.0
        for part in self.parts:
            area += part.area
            lanes += part.lanes
        return max(area / self.bytes if self.bytes else 0.0, lanes / self.lanes if self.lanes else 0.0)


class Scarce:
    """Counts the work of each set of classes, and says which devices are scarce."""

    def __init__(self) -> None:
        self.sets: dict[frozenset[str], SetWork] = {}
        self._lanes: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._links: dict[str, tuple[_Link, ...]] = {}

    def resize(self, lanes: Mapping[str, int], bytes: Mapping[str, int]) -> None:
        """Lanes and usable bytes of each class have changed."""
        self._lanes, self._bytes = dict(lanes), dict(bytes)
        self._links.clear()

    def clear(self) -> None:
        """Nothing waits."""
        self.sets.clear()
        self._links.clear()

    def work(self, kinds: frozenset[str]) -> SetWork:
        """The account of a set."""
        found = self.sets.get(kinds)
        if found is None:
            found = self.sets[kinds] = SetWork(kinds)
            self._links.clear()
        return found

    def drop(self, work: SetWork) -> None:
        """No request of the set waits any more."""
        del self.sets[work.kinds]
        self._links.clear()

    def of(self, kind: str) -> tuple[frozenset[str], float] | None:
        """The smallest set of scarce classes with ``kind`` in it, and the part of the time of all work that its work takes.

        None where the devices of ``kind`` are not scarce, or where everything that they can run is confined to the same devices.
        """
        links = self._links.get(kind)
        if links is None:
            links = self._links[kind] = self._chain(kind)
        if len(links) < 2:
            return None
        times = [link.seconds() for link in links]
        longest = max(times)
        for link, seconds in zip(links[:-1], times):
            if seconds >= SCARCE * longest:
                return link.kinds, seconds / longest if longest else 1.0
        return None

    def _chain(self, kind: str) -> tuple[_Link, ...]:
        if len(self.sets) > MOST_SETS:
            return ()
        chain = sorted((kinds for kinds in self.sets if kind in kinds), key=lambda kinds: (len(kinds), sorted(kinds)))
        return tuple(
            _Link(
                kinds,
                tuple(work for other, work in self.sets.items() if other <= kinds),
                sum(self._lanes.get(name, 0) for name in kinds),
                sum(self._bytes.get(name, 0) for name in kinds),
            )
            for kinds in chain
        )
