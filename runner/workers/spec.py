"""The messages between runner and worker: small plain data, without arrays except the columns of a batch.

Messages that exist once per trial are named tuples: creating a frozen dataclass of that size takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...jobs.core.watch import StepValues
from ..store.columns import BatchRows
from ..store.files import escaped
from ..study.trial_list import BatchColumns


def worker_name(run: str, device: str, number: int) -> str:
    """The name of a worker: ``qdrun/<run>/<device>/w<number>``."""
    return f"qdrun/{run}/{device}/w{number}"


def log_folder(device: str, number: int, owner: int) -> str:
    """The folder of a worker's own output in the run folder: ``stdout.log`` and ``stderr.log``, with the stacks of a crash in it."""
    return f"workers/{escaped(device)}/w{number}" + (f"-owner{owner}" if owner > 1 else "")


@dataclass(frozen=True)
class WorkerSpec:
    """The settings of a worker, and the device that it must find.

    Attributes:
        run: the URI of the run folder.
        owner, token: of the claim on the run (``store.owner.Owner``), a fencing token: a worker writes nothing for an owner that has lost
            the run.
        device: the ledger's name of the device.
        backend: the ``arch`` of its programs.
        which: the device option of its programs: an index, a UUID, a PCI address; None for the first that this process sees.
        uuid, pci: what the device must say of itself; empty: not checked. The first digits of a UUID are enough.
        lanes: trials that run at once.
        number: of the worker among those that this run had on the device, from 1.
        job: what the specs of all trials share (``Prepared.spec`` without trial, params, seed, optimize); a trial's own come on top.
        recycle_after: trials after which the process is to be replaced, once it has lived ``recycle_s`` seconds: a new one takes seconds
            to start, and a thousand trials may take less.
        grow_bytes: what process or device may hold more, with no trial open, than after the first trials; beyond, the process is replaced.
        storage_wait_s: seconds that a result waits for room in the store.
        own_process: the worker is alone in its process, and may redirect the descriptors 1 and 2 to its log.
        shapes: a trial of each, whose code is loaded before the first trial, see ``workers.preload``.
    """

    run: str
    owner: int
    token: str
    device: str
    backend: str = "cpu"
    which: int | str | None = None
    uuid: str = ""
    pci: str = ""
    lanes: int = 1
    number: int = 1
    job: Mapping[str, Any] = field(default_factory=dict)
    recycle_after: int = 1000
    recycle_s: float = 600.0
    grow_bytes: int = 1 << 30
    storage_wait_s: float = 60.0
    own_process: bool = True
    shapes: tuple[BatchSpec, ...] = ()


class BatchSpec(NamedTuple):
    """One trial, or several that run at once, on one lane.

    Attributes:
        lease: the lease of the batch.
        trials: their ids.
        attempts: the numbers of their attempts.
        columns: their parameters.
        claim_bytes: maximum bytes of their program; None: unknown.
        strict: allocations beyond the claim fail. False for a trial that is alone on its device: then the excess is only reported.
        budget_bytes: the ``memory_budget`` of their programs at the point of the claim's curve; None: what the spec says.
        launch: the runner's number of it, which nothing else of the run has.
        behind: an earlier call of the lease is not over, or was not when this was sent: it runs on the same lane, in the same program.
        may_fail: it does not begin once so many trials of its call have not ended well; None: whatever became of them.
        checked: every index is checked, to find why the process of its trial died.
    """

    lease: str
    trials: tuple[str, ...]
    attempts: tuple[int, ...]
    columns: BatchColumns
    claim_bytes: int | None = None
    strict: bool = True
    budget_bytes: int | None = None
    launch: int = 0
    behind: bool = False
    may_fail: int | None = None
    checked: bool = False

    def part(self, row: int) -> BatchSpec:
        """The batch of one of its trials."""
        one = slice(row, row + 1)
        return self._replace(trials=self.trials[one], attempts=self.attempts[one], columns=self.columns.part(row))


class LaunchEnded(NamedTuple):
    """A launch is over.

    Attributes:
        launch: its number.
        ends: the records of its trials, by id, in the runner by place; see ``runner.workers.records``. Those of a batch that ended well
            are in ``rows`` instead. A trial without an end did not begin, if others have one; if none has, the worker gave no result.
        rows: the trials that ran together and ended well.
        retire: why the worker must be replaced before it is given more; empty when it need not be.
        begun: False: the worker did not begin with it, and never will.
    """

    launch: int
    ends: Mapping[Any, Mapping[str, Any]]
    rows: tuple[BatchRows, ...] = ()
    retire: str = ""
    begun: bool = True

    @property
    def restart(self) -> bool:
        """Whether its worker has lost the device, and is killed."""
        return any(record.get("restart") for record in self.ends.values())


class LeaseNews(NamedTuple):
    """What has become of the launches of a call since the last news.

    Attributes:
        ends: of the launches that are over, in order.
        running: the launch that runs; 0 if there is none.
        seconds: since its begin.
    """

    ends: tuple[LaunchEnded, ...]
    running: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class LaneState:
    """The state of a lane.

    Attributes:
        lane: its number, from 0.
        trial, attempt: the running attempt; None and 0 if the lane is idle.
        lease: its lease.
        phase: ``idle``, ``open`` (import, build, plan), ``run``, ``save``.
        seconds: since the attempt began.
        runs: number of runs of the job; the step of an optimisation.
        steps: begun time steps of that run, if the job calls ``checkpoint``.
        bytes: what its program holds now, by category.
        progress: how far the trial is, as text, see ``Watch.progress``; empty when the lane is idle.
        point: the latest values that it has logged, of a batch those of the trial with the smallest loss; None: none yet.
    """

    lane: int
    trial: str | None = None
    attempt: int = 0
    lease: str = ""
    phase: str = "idle"
    seconds: float = 0.0
    runs: int = 0
    steps: int = 0
    bytes: dict[str, int] = field(default_factory=dict)
    progress: str = ""
    point: StepValues | None = None

    def seen(self) -> dict[str, Any]:
        """What is shown of the trial, as plain data: ``text``, and of its latest point ``step``, ``t`` and ``values``."""
        return {"text": self.progress} | ({} if self.point is None else self.point._asdict())


@dataclass(frozen=True)
class Progress:
    """A worker at one moment.

    Attributes:
        lanes: what each does.
        trials: how many attempts have ended here.
        process_bytes: memory of the process on its host.
        free_bytes, total_bytes: of the device; 0 where that is not known.
        retire: why the worker is to be replaced; empty when it is not.
    """

    lanes: tuple[LaneState, ...]
    trials: int
    process_bytes: int
    free_bytes: int
    total_bytes: int
    retire: str = ""

    def running(self) -> dict[str, LaneState]:
        """The lanes at work, each by the id of its trial, or of the first of its batch."""
        return {lane.trial: lane for lane in self.lanes if lane.trial is not None}


@dataclass(frozen=True)
class WorkerInfo:
    """The facts about a worker that it finds itself.

    Attributes:
        name: see ``worker_name``.
        pid, host: process id and host name.
        device_name, uuid, pci: the identity of its device; empty if it has none.
        free_bytes, total_bytes: memory of the device, after the worker has opened it.
        log: the folder of what the process itself prints (``stdout.log``, ``stderr.log``), in the run folder or on its host; empty when it
            is not alone in its process.
        begun: the file on its host that says what each lane began last, see ``workers.marks``; empty when there is none.
        node: its host as Ray calls it; empty outside of Ray.
    """

    name: str
    pid: int
    host: str
    device_name: str
    uuid: str
    pci: str
    free_bytes: int
    total_bytes: int
    log: str
    begun: str = ""
    node: str = ""


__all__ = [
    "BatchColumns",
    "BatchSpec",
    "LaneState",
    "LaunchEnded",
    "LeaseNews",
    "Progress",
    "WorkerInfo",
    "WorkerSpec",
    "log_folder",
    "worker_name",
]
