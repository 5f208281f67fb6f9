"""The devices of a ledger as its packer has them: one for each run that may use it, with a share of the lanes, on one pool."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..packing import DeviceSpec, Packer, Pool
from ..packing.pools import Gate
from .inventory import Found
from .leases import Terms
from .runs import MARK, Run

IDLE = "avoided"
"""The class of a device on which a run is to place nothing: no claim is for it."""
STEPS = 64  # what others hold is rounded up to so many parts of a pool: a new amount makes the packer look at everything again


@dataclass(slots=True)
class DeviceUsers:
    """A device. ``runs``: the lanes of each run that may use it; ``workers``: runs whose process is charged here; ``resting``: runs that
    are to place nothing more here.
    """

    found: Found
    group: str
    runs: dict[str, int] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    resting: set[str] = field(default_factory=set)
    limit: int | None = None


class DeviceLanes:
    """Keeps the packer's devices. A run gets the lanes of a device alone, or shares them with the other runs that wait, see ``share``.

    Bytes are never exceeded. Lanes are, by what still runs when another run joins, and where more runs wait than there are lanes: each
    has one at least.
    """

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._places: dict[str, DeviceUsers] = {}
        self._foreign: dict[str, int] = {}
        self._promised: dict[str, int] = {}
        self._said: dict[str, dict[str, int]] = {}
        self._open: dict[str, int] = {}
        self._shared: frozenset[str] = frozenset()
        self._terms: dict[str, Terms] = {}
        self._gates: dict[str, Gate] = {}

    def join(self, run: str, terms: Terms) -> None:
        """A run has joined: before any device is opened to it."""
        if run not in self._terms:
            self._terms[run] = terms
            if terms.most is not None:
                self._gates[run] = Gate(terms.most)

    def places(self) -> Mapping[str, DeviceUsers]:
        """The devices by id."""
        return self._places

    def devices(self) -> list[Found]:
        """The known devices."""
        return [place.found for place in self._places.values()]

    def of(self, run: str) -> int:
        """The lanes of a run in all, as far as it may use them at once."""
        lanes = sum(place.runs.get(run, 0) for place in self._places.values() if run not in place.resting)
        gate = self._gates.get(run)
        return lanes if gate is None else min(lanes, gate.most)

    def most(self, run: str) -> int:
        """How many leases a run may have at once."""
        return self._gates[run].most if run in self._gates else sys.maxsize

    def add(self, found: Found, group: str) -> None:
        """Add a device."""
        if found.id in self._places:
            raise ValueError(f"there is a device {found.id} already: lose_device takes it away")
        if not any(place.found.pool == found.pool for place in self._places.values()):
            self._foreign[found.pool] = found.foreign
        self._places[found.id] = DeviceUsers(found, group)

    def remove(self, device: str) -> None:
        """A device is gone; no lease must be left on it."""
        place = self._places.pop(device, None)
        if place is not None:
            for run in place.runs:
                self._drop(place, run)
            self._shared = frozenset()

    def open(self, run: Run, device: str) -> None:
        """A run may use a device."""
        place = self._places[device]
        if run.id not in place.runs:
            self._put(place, run.id, place.found.lanes)
            self._shared = frozenset()

    def rest(self, run: Run, device: str) -> None:
        """Place nothing more for a run on a device; running requests continue. Call it again whenever one of them has ended."""
        place = self._places[device]
        place.resting.add(run.id)
        count = sum(grant.lease.device == device for grant in run.grants.values())
        if place.runs[run.id] != count:
            self._relane(place, run, count)

    def wake(self, run: Run, device: str) -> None:
        """A run may use a device again."""
        place = self._places[device]
        place.resting.discard(run.id)
        self._relane(place, run, place.found.lanes)
        self._shared = frozenset()

    def leave(self, run: str) -> None:
        """A run is gone; no lease of it must be left."""
        for said in self._said.values():
            said.pop(run, None)
        self._terms.pop(run, None)
        self._gates.pop(run, None)
        for place in self._places.values():
            place.resting.discard(run)
            if place.runs.pop(run, None) is not None:
                place.workers.discard(run)
                self._drop(place, run)
        self._shared = frozenset()

    def worker_started(self, run: str, device: str) -> None:
        """The packer charges a process of the run on the device now."""
        self._places[device].workers.add(run)

    def worker_ended(self, run: str, device: str) -> None:
        """It does no longer; no lease of the run must be left there."""
        place = self._places.get(device)
        if place is not None and run in place.workers:
            place.workers.discard(run)
            self._packer.worker_ended(device + MARK + run)

    def observe(self, pool: str, free: int, ours: int | None, run: str) -> None:
        """A pool has so many bytes free, and the workers of a run hold so many, see ``Ledger.observe``."""
        places = [place for place in self._places.values() if place.found.pool == pool]
        if not places:
            return
        said = self._said.setdefault(pool, {})
        if ours is not None:
            said[run] = ours
        workers = {name for place in places for name in place.workers}
        if ours is not None and workers <= said.keys():
            held = sum(said[name] for name in workers)
        else:
            rows = [row for row in self._packer.snapshot()["pools"] if row["id"] == pool]
            held = sum(row["claimed"] + row["process"] for row in rows)
        step = max(1, places[0].found.total // STEPS)
        self._foreign[pool] = -(-max(0, places[0].found.total - free - held) // step) * step
        self._set_foreign(pool)

    def promise(self, pool: str, bytes: int) -> None:
        """Withhold bytes of a pool, in addition to the observed use of other processes, see ``Ledger.limit``."""
        if self._promised.get(pool, 0) != bytes:
            self._promised[pool] = bytes
            self._set_foreign(pool)

    def foreign(self, pool: str) -> int:
        """Bytes of a pool that others are seen to hold."""
        return self._foreign.get(pool, 0)

    def _set_foreign(self, pool: str) -> None:
        if self._open.get(pool):
            self._packer.set_foreign(pool, self._foreign[pool] + self._promised.get(pool, 0))

    def limit(self, run: Run, device: str, lanes: int) -> None:
        """A run has so many lanes of a device, but for those on which something runs."""
        place = self._places[device]
        place.limit = lanes
        if run.id not in place.runs or run.id in place.resting:
            return
        count = sum(grant.lease.device == device for grant in run.grants.values())
        wanted = max(count, min(lanes, place.found.lanes))
        if place.runs[run.id] != wanted:
            self._relane(place, run, wanted)

    def room(self, run: str, device: str, bytes: int) -> bool:
        """Whether so many bytes, and the process of the run, fit on a device that is open to the run."""
        place = self._places[device]
        need = bytes + (0 if run in place.workers else self._charge(place.found, run, place.runs.get(run)))
        return any(row["free"] >= need for row in self._packer.snapshot()["pools"] if row["id"] == place.found.pool)

    def share(self, runs: Iterable[Run]) -> None:
        """Divide the lanes of every device among the users of the runs that wait, and then among their runs.

        A run gets no more than it may use: the others have the rest.
        """
        waiting = {run.id: run for run in runs if run.waiting}
        if self._shared == waiting.keys():
            return
        self._shared = frozenset(waiting)
        gated = {name: self._usable(waiting[name]) for name in self._gates.keys() & waiting.keys()} if len(waiting) > 1 else {}
        for place in self._places.values():
            if place.limit is not None:
                continue
            whole, users = place.found.lanes, dict[str, list[Run]]()
            for name in sorted((place.runs.keys() & waiting.keys()) - place.resting):
                users.setdefault(waiting[name].user, []).append(waiting[name])
            most = {run.id: gated[run.id].get(place.found.id, whole) if run.id in gated else whole for run in waiting.values()}
            wanted = [sum(most[run.id] for run in users[user]) for user in sorted(users)]
            for part, user in zip(_parts(whole, wanted), sorted(users)):
                for lanes, run in zip(_parts(part, [most[run.id] for run in users[user]]), users[user]):
                    if place.runs[run.id] != lanes:
                        self._relane(place, run, lanes)

    def _usable(self, run: Run) -> dict[str, int]:
        """The maximum number of lanes by device for a run with a gate: its part of the run's limit, rounded up.

        It is spread over the devices that hold the largest of what waits, so that all of it can run there; where none does, over all.
        """
        places = [place for place in self._places.values() if run.id in place.runs and run.id not in place.resting]
        able = [place for place in places if self._holds_all(place, run)] or places
        lanes, most = sum(place.found.lanes for place in able), self._gates[run.id].most
        return {place.found.id: -(-most * place.found.lanes // lanes) for place in places}

    def _holds_all(self, place: DeviceUsers, run: Run) -> bool:
        """Whether everything that waits of a run could run on a device, were it empty."""
        kind, room = place.found.kind + MARK + run.id, place.found.capacity - self._charge(place.found, run.id, 1)
        claims = [shape.claims.get(kind) for shape in run.shapes.values() if shape.waiting]
        return all(claim is not None and claim.smallest <= room for claim in claims)

    def _put(self, place: DeviceUsers, run: str, lanes: int) -> None:
        found = place.found
        if not self._open.get(found.pool):
            self._packer.add_pool(Pool(found.pool, found.capacity))
        self._open[found.pool] = self._open.get(found.pool, 0) + 1
        self._set_foreign(found.pool)
        name, kind = found.id + MARK + run, (found.kind if lanes else IDLE) + MARK + run
        device = DeviceSpec(name, found.pool, kind, max(1, lanes), self._charge(found, run, max(1, lanes)))
        self._packer.add_device(device, self._gates.get(run))
        place.runs[run] = lanes

    def _charge(self, found: Found, run: str, lanes: int | None) -> int:
        """Bytes of the process of a run on a device."""
        return found.charge(lanes) + (0 if found.backend == "cpu" else self._terms[run].frames)

    def _drop(self, place: DeviceUsers, run: str) -> None:
        self._packer.lose_device(place.found.id + MARK + run)
        self._open[place.found.pool] -= 1

    def _relane(self, place: DeviceUsers, run: Run, lanes: int) -> None:
        """Another number of lanes: the packer gets the device anew, with what runs there. None: its worker alone is charged."""
        name, kind = place.found.id + MARK + run.id, place.found.kind + MARK + run.id
        ran = {request.id: request for request in self._packer.lose_device(name)}
        self._open[place.found.pool] -= 1
        self._put(place, run.id, lanes)
        for grant in run.grants.values():
            if grant.device == name:
                index = ran[grant.request].claims[kind].points.index(grant.lease.point)
                self._packer.adopt(ran[grant.request], name, index, grant.started)
        if run.id in place.workers:
            self._packer.worker_started(name)


def _parts(whole: int, most: Sequence[int]) -> list[int]:
    """Split a number into equal parts of at least one, limited by ``most``; the rest remains unused."""
    parts = [1] * len(most)
    for _ in range(len(most), whole):
        able = [k for k, part in enumerate(parts) if part < most[k]]
        if not able:
            break
        parts[min(able, key=lambda k: parts[k])] += 1
    return parts
