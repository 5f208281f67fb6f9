"""The events and actions of a run's state machine: plain values without Ray or a clock. A trial is its place in the sweep.

Messages that exist once per trial are named tuples: creating a frozen dataclass of that size takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from ..ledger.leases import Lease, LeaseEnd
from ..packing import Request
from ..store.attempts import Failure
from ..store.columns import BatchRows
from ..value_columns import Places
from ..workers.spec import LaunchEnded

Record = Mapping[str, Any]
Error = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WorkerId:
    """A worker process of the run: its device, its number among those there at once, and its generation (one more after each loss)."""

    device: str
    slot: int = 0
    generation: int = 0


# Events


@dataclass(frozen=True, slots=True)
class GoesOn:
    """A request waits no more in the ledger: it is to run under a lease."""

    lease: str
    request: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Requests that can never run, each with the arithmetic why."""

    why: Mapping[str, str]


class Started(NamedTuple):
    """A worker has begun with a launch, so many seconds ago: from then on its time is counted."""

    launch: int
    ago_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """A worker process is gone. ``failure``: ``crash`` if the process died, ``infrastructure`` if its node did or Ray failed.

    ``begun``: the launch that each of its lanes began last; None: unknown. ``signal``: the description of the signal that killed it, if it
    is one that a memory or arithmetic error raises; empty otherwise.
    """

    worker: WorkerId
    failure: Failure
    error: Error
    begun: frozenset[int] | None = None
    signal: str = ""


class Unready(Enum):
    """Why a worker could not run trials: it said so itself; its process died or never answered; its node is gone."""

    said = auto()
    died = auto()
    lost = auto()


@dataclass(frozen=True, slots=True)
class NotReady:
    """A worker process is gone before it could run trials: none of them is at fault."""

    worker: WorkerId
    error: Error
    why: Unready = Unready.said


@dataclass(frozen=True, slots=True)
class Saving:
    """The trials that are over, and whose results their workers write down: a store may take its time, which is not theirs."""

    trials: frozenset[int]


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Ctrl-C: once to start no more, twice to stop what runs."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A request to cancel ``trials``, or with None the whole run."""

    trials: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """The store is full, or has room again."""

    full: bool


@dataclass(frozen=True, slots=True)
class Yield:
    """The ledger wants the bytes of idle workers on ``device``: end them once nothing runs there."""

    device: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Lease  # the ledger let requests run
    | GoesOn
    | LeaseEnd  # the ledger took a lease back, which is not to be given back
    | Refused
    | Started
    | LaunchEnded
    | WorkerDown
    | NotReady
    | Saving
    | Interrupted
    | Cancelled
    | Storage
    | Yield
    | Tick
)


# Actions


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the ledger for places."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take requests back that have not been granted."""

    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoOn:
    """Take back a request whose claims are those of a lease, to run it under that; ``GoesOn`` comes where it was not granted meanwhile.

    ``since``: when the lease was granted. ``others``: requests with other claims wait, too.
    """

    lease: str
    request: str
    since: float
    others: bool


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give a lease back. ``unfinished``: its requests that did not run to their end."""

    lease: str
    unfinished: tuple[str, ...] = ()


class Launch(NamedTuple):
    """The attempts of one trial, or of a batch, whose trials run at once in one program, on a worker. ``numbers``: of the attempts.

    ``behind``: another launch of the lease is not over: it is sent to wait for its turn on the same lane. ``may_fail``: once so many
    trials have failed, those after it in its call do not begin; None: all may. ``checked``: its one trial runs with every index checked,
    to find why its process died.
    """

    id: int
    worker: WorkerId
    trials: Places
    numbers: tuple[int, ...]
    bytes: int
    time: float
    lease: str
    behind: bool = False
    may_fail: int | None = None
    checked: bool = False


@dataclass(frozen=True, slots=True)
class RunLaunches:
    """Run launches of one lease, one after the other, on their worker, which is started if it is not there."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Tell a worker not to begin with launches. It answers each with ``LaunchEnded``: with ``begun`` False, unless it had begun already."""

    worker: WorkerId
    launches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskToStop:
    """Ask a worker to end a launch between two steps."""

    launch: int
    worker: WorkerId
    trials: Places


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker process now."""

    worker: WorkerId


class WriteEnded(NamedTuple):
    """Write the row of a trial: it is over."""

    trial: int
    number: int
    record: Record


class WriteBegun(NamedTuple):
    """Write down that the attempts of a launch run."""

    launch: int
    trials: Places
    numbers: tuple[int, ...]
    place: Record


class WriteRows(NamedTuple):
    """Write the rows of trials of a batch that ended well."""

    launch: int
    rows: BatchRows


class BatchOver(NamedTuple):
    """A batch runs no more; what its trials have come to is written before."""

    launch: int


@dataclass(frozen=True, slots=True)
class WriteRetry:
    """Write down that an attempt failed and the trial waits again. ``charged``: it counts against the retries of its class."""

    trial: int
    number: int
    failure: Failure
    error: Error = field(hash=False)
    charged: bool = True


@dataclass(frozen=True, slots=True)
class WriteRetired:
    """Write down why a worker is replaced."""

    worker: WorkerId
    why: str


@dataclass(frozen=True, slots=True)
class WritePardon:
    """Write down that a retry is not counted after all: the attempt died together with another one."""

    trial: int
    number: int


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A result found no room, though lines of the journal may: start nothing until there is."""

    why: str


@dataclass(frozen=True, slots=True)
class Avoid:
    """Start nothing on a device for so many seconds: its workers were of no use several times in a row; ``error``: the last time."""

    device: str
    seconds: float
    error: Error = field(hash=False)


@dataclass(frozen=True, slots=True)
class CannotStart:
    """Nothing runs, and workers got ready on none of these devices: give up, unless there are others. ``error``: the last time."""

    devices: frozenset[str]
    error: Error = field(hash=False)


@dataclass(frozen=True, slots=True)
class Stopping:
    """No more trials are started; ``state`` is that of the run from now on. ``running``: trials that have begun, and may still end."""

    state: str
    running: int
    why: str


Action = (
    Ask
    | Withdraw
    | GoOn
    | GiveBack
    | RunLaunches
    | Drop
    | AskToStop
    | Kill
    | WriteEnded
    | WriteBegun
    | WriteRows
    | BatchOver
    | WriteRetry
    | WritePardon
    | WriteRetired
    | NoRoom
    | Avoid
    | CannotStart
    | Stopping
)
