"""Leases that have ended and whose lane keeps its program, and what was granted of their bytes meanwhile. Pure.

For the packer such a lease is over at once: it chooses as always. Where it chooses the same again (the run, the claims, the device, the
point), the new lease follows the old one and takes its program over, bytes and all. Where it does not, the run is told to let the program
go, and whatever was granted of those bytes, or of that lane, is told to nobody before that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..packing import ClaimPoint
from .lanes import DeviceUsers
from .leases import Unwanted
from .runs import Grant, RequestGroup, Run


class Succession:
    """Keeps account of what is in the memory of a pool though the packer has it as free.

    Args:
        free: the bytes of a pool that the packer has as free.
        places: the devices by id.
    """

    def __init__(self, free: Callable[[str], int], places: Callable[[], Mapping[str, DeviceUsers]]) -> None:
        self._free, self._places = free, places
        self._kept: dict[str, tuple[Run, Grant]] = {}
        self._asked: set[str] = set()
        self._late: dict[str, tuple[Run, Grant]] = {}

    def keep(self, run: Run, grant: Grant) -> None:
        """A lease has ended, its lane keeps its program."""
        grant.kept = True
        self._kept[grant.lease.id] = run, grant

    def forget(self, grant: Grant) -> None:
        """A lease is over for good."""
        self._kept.pop(grant.lease.id, None)
        self._asked.discard(grant.lease.id)
        self._late.pop(grant.lease.id, None)

    def take(self, run: Run, device: str, shape: RequestGroup, point: ClaimPoint) -> Grant | None:
        """A lease whose program a new one of the same kind takes over; it is over now. ``device``: as the packer calls it."""
        for name, (owner, grant) in self._kept.items():
            same = owner is run and grant.device == device and grant.shape is shape and grant.lease.point == point
            if same and name not in self._asked:
                self.forget(grant)
                del run.grants[name]
                return grant
        return None

    def followed(self, run: Run, lease: str) -> bool:
        """Whether the program of a lease went to another one of the run."""
        return any(grant.lease.follows == lease for grant in run.grants.values())

    def on(self, run: Run, device: str) -> list[Grant]:
        """Leases of a run that are over and kept on a device."""
        return [grant for owner, grant in self._kept.values() if owner is run and grant.lease.device == device]

    def bytes(self, pool: str) -> int:
        """What kept programs hold of a pool."""
        return sum(grant.lease.point.bytes for _, grant in self._in(self._kept, pool))

    def late(self, grant: Grant) -> bool:
        """Whether the run has not been told of a lease."""
        return grant.lease.id in self._late

    def grant(self, run: Run, grant: Grant) -> None:
        """A lease was granted: ``settle`` tells of it; at once of one that follows another, as its bytes and its lane are there."""
        if grant.lease.follows:
            run.tell(grant.lease)
        else:
            self._late[grant.lease.id] = run, grant

    def settle(self) -> None:
        """Tell the runs what is unwanted of theirs, and what of the granted they have room for. After the packer has chosen."""
        for name, (run, _) in self._kept.items():
            if name not in self._asked:
                self._asked.add(name)
                run.tell(Unwanted(name))
        for name, (run, grant) in list(self._late.items()):
            if self._has_room(run, grant):
                del self._late[name]
                run.tell(grant.lease)

    def _has_room(self, run: Run, grant: Grant) -> bool:
        """Whether a lease fits beside what is kept. The packer has made it fit where nothing is."""
        if not self._kept:
            return True
        device = grant.lease.device
        place = self._places()[device]
        here = self.on(run, device)
        if here:  # the lanes of the run's own worker
            told = [one for one in run.grants.values() if one.lease.device == device and not self.late(one)]
            if len(told) >= place.found.lanes:  # kept ones are among them
                return False
        pool = place.found.pool
        kept = self.bytes(pool)
        late = sum(other.lease.point.bytes for _, other in self._in(self._late, pool))
        return not kept or grant.lease.point.bytes <= self._free(pool) + late - kept

    def _in(self, some: Mapping[str, tuple[Run, Grant]], pool: str) -> Iterator[tuple[Run, Grant]]:
        places = self._places()
        for run, grant in some.values():
            if places[grant.lease.device].found.pool == pool:
                yield run, grant
