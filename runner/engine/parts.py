"""The parts that the state of a run is made of."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..ledger.leases import Lease
from ..packing import Claim
from ..store.attempts import Failure
from ..store.files import StorageDenied, StorageFull, StorageUnreachable
from ..value_columns import Places
from . import messages as m

Claims = Mapping[str, Claim]
NO_ROOM = StorageFull.__name__
"""The error of an attempt whose result found no room, by its type."""
OF_THE_WORKER = frozenset(("restart", "shared"))
"""What a record says of the worker, and not of the trial. ``shared``: it ran out of memory, perhaps because of others in its process."""
STORE_AWAY = frozenset(kind.__name__ for kind in (StorageFull, StorageUnreachable, StorageDenied))
"""Errors of a store that may pass, by their types."""


class Asked:
    """The requests that wait in the ledger, in order. Batches of several trials with the same claims are found without a look at all."""

    def __init__(self) -> None:
        self._batches: dict[str, Places] = {}
        self._claims: dict[str, Claims] = {}
        # ordered: a dict looks for its first key among all that were deleted before it
        self._alike: dict[int, OrderedDict[str, None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._batches

    def __iter__(self) -> Iterator[str]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, name: str) -> Places:
        return self._batches[name]

    def add(self, name: str, batch: Places, claims: Claims) -> None:
        """A request waits."""
        self._batches[name] = batch
        if len(batch) > 1:
            self._claims[name] = claims  # which keeps its id
            self._alike.setdefault(id(claims), OrderedDict())[name] = None

    def pop(self, name: str) -> Places | None:
        """A request waits no more; its batch, None where it did not wait."""
        if name in self._claims:
            key = id(self._claims.pop(name))
            del self._alike[key][name]
            if not self._alike[key]:
                del self._alike[key]
        return self._batches.pop(name, None)

    def alike(self, claims: Claims) -> tuple[str | None, int]:
        """The first batch of several trials with these claims, the same object, and their number."""
        found = self._alike.get(id(claims), ())
        return next(iter(found), None), len(found)


class Charges(dict[str, int]):
    """How often a trial was charged with failures of each class, 0 of others. Never changed in place: most trials share the empty one."""

    def __missing__(self, failure: str) -> int:
        return 0

    def more(self, failure: str, by: int) -> Charges:
        """The same with so many more failures of a class."""
        return Charges(self | {failure: self[failure] + by}) if by else self


NOT_CHARGED = Charges()


@dataclass(frozen=True)
class Crash:
    """The investigation of a death by a signal or of the loss of a GPU: the next attempt of the trial runs with every index checked.

    Attributes:
        signal: description of the signal, or the driver's message.
        status: status of the trial if the attempt finds nothing; empty if it has retries left.
        error, record: error and record for that status.
    """

    signal: str
    status: str = ""
    error: m.Error = field(default_factory=dict)
    record: m.Record = field(default_factory=dict)


class TrialAt(NamedTuple):
    """A trial that is to run, by its place in the sweep: the number of its last attempt, its failures so far, and whether it may be what
    killed others.
    """

    place: int
    number: int = 0
    charged: Charges = NOT_CHARGED
    alone: bool = False


class Work:
    """The trials that are to run, or were until a moment ago: arrays by place, and maps of what few trials have.

    Attributes:
        number: of the last attempt.
        tries: attempts that began.
        asks: for places.
        open: no row yet.
        charged: failures so far, of owners before, too.
        alone: those that may be what killed others.
        claims: of their own.
        signal: by which the process has died just now.
        crash: what the next attempt looks into.
        found: what that said.
    """

    def __init__(self, work: Sequence[TrialAt] | int) -> None:
        """``work``: the trials; or their number, none of which ran before."""
        known = () if isinstance(work, int) else work
        count = work if isinstance(work, int) else max((one.place + 1 for one in work), default=0)
        self.open = np.full(count, isinstance(work, int))
        self.number, self.asks = np.zeros(count, np.int32), np.zeros(count, np.int32)
        for one in known:
            self.open[one.place], self.number[one.place] = True, one.number
        self.tries = self.number.copy()
        self.charged = {one.place: one.charged for one in known if one.charged}
        self.alone = {one.place for one in known if one.alone}
        self.claims, self.signal = dict[int, Claims](), dict[int, str]()
        self.crash, self.found = dict[int, Crash](), dict[int, str]()

    def left(self, places: Iterable[int]) -> tuple[int, ...]:
        """Those without a row."""
        return tuple(place for place in places if place < len(self.open) and self.open[place])

    def waiting(self) -> list[int]:
        """All without a row."""
        return np.flatnonzero(self.open).tolist()


@dataclass
class LeaseAt:
    """A lease: the requests that wait in it, those that will not run under it, and the launches that its worker was given, in order.

    ``since``: when it was granted; ``may_fail``: of its launches, see ``Launch``.
    """

    grant: Lease
    queue: deque[str]
    unfinished: list[str] = field(default_factory=list)
    flights: deque[int] = field(default_factory=deque)
    since: float = 0.0
    may_fail: int | None = None


@dataclass(frozen=True)
class DroppedLaunch:
    """A launch that is not to begin: which of its trials end, and why. ``grace_s``: what one gets that has begun all the same; None: all
    its time.
    """

    places: frozenset[int]
    why: str
    grace_s: float | None
    failure: Failure = Failure.cancelled


@dataclass(slots=True)
class Flight:
    """A launch that is not over.

    Attributes:
        launch: what was launched.
        request: of the ledger.
        sent: when its turn came: it was launched, or the launch before it in its lease ended.
        place: where it runs, and with what, as the journal has it.
        begun: its attempts are written down as started.
        since: when its worker began with it; None until the worker has said so.
        ending: how trials of it end that are asked to.
        kill_at: when its worker is killed.
        drop: set when its worker was told not to begin with it.
    """

    launch: m.Launch
    request: str
    sent: float
    place: m.Record
    begun: bool = False
    since: float | None = None
    ending: dict[int, tuple[Failure, m.Error]] = field(default_factory=dict)
    kill_at: float = float("inf")
    drop: DroppedLaunch | None = None


@dataclass
class DeviceAt:
    """A device: leases that wait for it, launches, generations of its workers, those to be replaced.

    ``crashed``: when one died last, the number of the launch that came next, and the attempt that was charged. ``losses``: how often in
    a row it, or a worker there, was of no use, and ``lost`` when last, and which slot; ``rests``: how often it was avoided, and
    ``rests_until`` when. ``unready``: workers in a row that could not run trials; the next one begins at ``held_until``.
    """

    pending: deque[str] = field(default_factory=deque)
    flights: dict[int, Flight] = field(default_factory=dict)
    generations: Counter[int] = field(default_factory=Counter)
    retiring: set[m.WorkerId] = field(default_factory=set)
    crashed: tuple[float, int, tuple[tuple[int, int], ...]] = (-float("inf"), 0, ())
    losses: int = 0
    lost: tuple[float, int] = (-float("inf"), 0)
    rests: int = 0
    rests_until: float = -float("inf")
    unready: int = 0
    held_until: float = -float("inf")


Blame = tuple[Failure, m.Error, bool]
"""The verdict on a launch of a lost worker: the failure class, the error, and whether its trials are charged."""


def suspects(flights: Sequence[Flight], begun: frozenset[int] | None, *, crash: bool) -> tuple[list[Flight], list[Flight]]:
    """The launches of a lost worker, in order: those that had ended without being reported, and those that were running.

    ``begun``: the launch that each lane began last. If it is unknown, a crashed process may have been running any of its launches; a
    process that was lost for another reason was running those that are known to have begun.
    """
    ended: list[Flight] = []
    ran: list[Flight] = []
    by_lease: dict[str, list[Flight]] = {}
    for flight in flights:
        by_lease.setdefault(flight.launch.lease, []).append(flight)
    for own in by_lease.values():
        if begun is None:
            ran += own if crash else [flight for flight in own[:1] if flight.begun]
            continue
        at = next((k for k, flight in enumerate(own) if flight.launch.id in begun), None)
        if at is not None:
            ended += own[:at]
            ran.append(own[at])
    return ended, ran


def failure_of(record: m.Record) -> Failure | None:
    """The class of failure of a record of a worker; None: the attempt succeeded."""
    return None if record["status"] == "done" else Failure(record.get("failure") or Failure.user_error)


def error_of(kind: str, message: str) -> dict[str, str]:
    """An error of the runner itself, as rows have it."""
    return {"type": kind, "message": message, "traceback": ""}
