"""From a prepared config to a run that can begin: plans within the time limit, claims by class of devices, workers' specs, the state."""

from __future__ import annotations

import getpass
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from ...jobs.base import Job
from ..collector import paused
from ..ledger.client import RunLedger
from ..ledger.inventory import Found, pools_and_devices
from ..packing import Claim, DeviceSpec, Pool
from ..ray_adapter.cluster import ClusterError
from ..ray_adapter.worker_pool import RayWorkers, Workers
from ..store.attempts import Failure
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from ..store.owner import Owner
from ..study.batches import Batches, compile_batch, groups_of, why_not
from ..study.placement import at_most, usable
from ..study.plan import Planned, PlannedBytes, PlannedGroup, Prepared, opened, plan_all
from ..study.requests import Claims, claim_of
from ..study.target import load
from ..value_columns import Places, group_numbers
from ..workers.preload import MOST_SHAPES
from ..workers.spec import BatchSpec, WorkerSpec
from . import messages as m
from .event_writer import Inside, Outside
from .failures import Rules
from .loop import Runner
from .parts import TrialAt
from .state import SweepState

WARM_BYTES = 256 << 20
DEVICE_LOOK_S = 1.0


def warm(prepared: Prepared, job: type[Job[Any]], planned: Sequence[Planned], over: Callable[[], bool]) -> threading.Thread:
    """Compile the kernels of all shapes in a thread while Ray starts, until ``over``, so that workers of this machine find them in the disk
    cache. Errors are ignored, because the trials raise them, too.

    On the CPU alone, and small trials alone: the last one is still open when the first trials run, and no lease covers its bytes.
    """
    here = prepared.backend == "cpu" and job.needs_compiler

    def work() -> None:
        for group, _ in planned:
            if over() or not here:
                return
            if group.plan is not None and group.plan.bytes <= WARM_BYTES:
                first = prepared.trials[group.first]
                with suppress(BaseException):  # a user's code
                    if len(group.places) > 1 and not why_not(prepared, job, group, first):
                        compile_batch(prepared, job, first)
                        continue
                    with opened(prepared, job, first, prepared.loaded.config.budget_bytes) as made:
                        made.plan()

    thread = threading.Thread(target=work, name="warm", daemon=True)  # a build that hangs must not hold up the end of the run
    thread.start()
    return thread


def claims_of(prepared: Prepared, planned: Sequence[Planned], found: Iterable[Found]) -> Claims:
    """The claims of all trials by class of devices, each from the plan of that class.

    A plan is for one backend and, on the CPU, for so many threads: a heap has a row for each. ``planned`` is for the first backend of the
    config and its threads; for other backends, and for nodes with fewer cores, one trial of each shape is planned again.
    """
    own, seconds = prepared.loaded.config.device.threads, prepared.loaded.config.limits.timeout_s
    ways = {row.kind: (row.backend, row.threads if row.backend == "cpu" else own) for row in found}
    plans = {(prepared.backend, own): {group.first: (group, points) for group, points in planned}}
    for backend, threads in sorted(set(ways.values()) - set(plans)):
        again = plan_all(prepared.each[backend], load(prepared.target), seconds, threads=threads)
        plans[backend, threads] = {group.first: (group, points) for group, points in again}
    made = []
    for one in planned:
        of_class = {way: plan.get(one[0].first, one) for way, plan in plans.items()}
        claims = {way: claim_of(group.plan, points, seconds) for way, (group, points) in of_class.items()}
        made.append((one[0].places, {kind: claims[way] for kind, way in sorted(ways.items())}))
    return Claims(made)


def batches_of(
    prepared: Prepared, planned: Sequence[Planned], found: Iterable[Found], pools: Sequence[Pool], devices: Sequence[DeviceSpec]
) -> Batches:
    """The trials of a config that run together on these devices."""
    config = prepared.loaded.config
    threads = {row.kind: row.threads if row.backend == "cpu" else config.device.threads for row in found}
    shapes = [group for group, _ in planned]
    groups = groups_of(prepared, load(prepared.target), shapes, threads, pools, devices)
    return Batches(groups, config.limits.timeout_s)


def rules_of(prepared: Prepared, trials: int) -> Rules:
    """The limits of a config as the state machine takes them."""
    limits = prepared.loaded.config.limits
    retries = limits.retries
    return Rules(retries.infra, retries.oom, retries.crash, limits.timeout_s, limits.failures_allowed(trials))


def specs_of(prepared: Prepared, folder: RunFolder, owner: Owner, found: Sequence[Found]) -> dict[str, WorkerSpec]:
    """The worker settings by device; a device with a process per lane has workers with one lane."""
    shared = prepared.shared_spec()
    # another process has another working directory
    where = str(folder.path.absolute()) if isinstance(folder.files, LocalFiles) else folder.uri
    named = prepared.place.device
    return {
        row.id: WorkerSpec(
            run=where,
            owner=owner.number,
            token=owner.token,
            device=row.id,
            backend=row.backend,
            which=None if row.backend == "cpu" else (row.uuid or row.index) if named is None else named,
            uuid=row.uuid,
            pci=row.pci,
            lanes=1 if row.backend == "cpu" else row.lanes,
            job=shared | ({"threads": row.threads} if row.backend == "cpu" else {}),
        )
        for row in found
    }


def numbered(spec: WorkerSpec, worker: m.WorkerId, lanes: int) -> WorkerSpec:
    """The spec of one worker of a device: each has a number that none before it had."""
    return replace(spec, number=1 + worker.slot + lanes * worker.generation)


def to_preload(prepared: Prepared, planned: Sequence[Planned], claims: Claims, row: Found) -> tuple[BatchSpec, ...]:
    """The shapes with code that is preloaded for the lanes of a GPU; none for a device with one lane, where loading delays no lane."""
    if row.backend == "cpu" or row.lanes < 2 or not load(prepared.target).needs_compiler:
        return ()
    firsts = [group.first for group, _ in planned if group.plan is not None][:MOST_SHAPES]
    return tuple(
        BatchSpec("", prepared.trials.ids_at((place,)), (1,), prepared.columns((place,)), claim.points[0].bytes)
        for place in firsts
        if (claim := claims(place).get(row.kind)) is not None
    )


class Roster(Mapping[str, Found]):
    """The devices that a run may use, by id, including those that join during the run and those that are lost."""

    def __init__(self, look: Callable[[], Iterable[Found]]) -> None:
        self._look, self._rows = look, {row.id: row for row in look()}

    def __getitem__(self, device: str) -> Found:
        if device not in self._rows:
            self._rows |= {row.id: row for row in self._look()}
        return self._rows[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def now(self) -> set[str]:
        """The devices that there are now."""
        return {row.id for row in self._look()}

    def kind(self, device: str) -> str:
        """The class of a device; empty where it is not known."""
        row = self.get(device)
        return row.kind if row is not None else ""

    def about(self, device: str) -> dict[str, str | int]:
        """What the journal is to say about a device; nothing where it is not known."""
        row = self.get(device)
        if row is None:
            return {}
        told = {name: str(getattr(row, name)) for name in ("node", "backend", "model", "uuid", "pci", "driver")}
        return {name: text for name, text in told.items() if text} | {"memory_bytes": row.total}


def inside_of(prepared: Prepared, planned: Sequence[Planned], claims: Claims, roster: Roster) -> Inside:
    """The facts about the trials and the devices that the runner needs."""
    elastic = prepared.loaded.config.elastic

    def budget(launch: m.Launch) -> int | None:
        """Fewer bytes than the plan without a budget: the trial is planned into what it was granted."""
        if not elastic:
            return None
        fastest = claims.fastest(launch.trials[0], roster.kind(launch.worker.device))
        return launch.bytes if fastest is not None and launch.bytes < fastest else None

    groups = [group for group, _ in planned]
    numbers, limits = group_numbers([group.places for group in groups]), prepared.byte_limits
    large = [too_large(group, limits) for group in groups]
    # without launches a plan lacks what gradients need: a trial that takes it is not at fault
    loose = [group.plan is not None and not group.plan.whole for group in groups]
    return Inside(
        prepared.trials,
        prepared.columns,
        PlannedBytes(groups).__getitem__,
        budget,
        lambda place: large[numbers[place]],
        lambda place: loose[numbers[place]],
        roster.about,
        roster.now,
    )


def run_trials(
    prepared: Prepared,
    planned: Sequence[Planned],
    outside: Callable[[Workers], Outside],
    ledger: RunLedger,
    *,
    folder: RunFolder,
    owner: Owner,
    work: Sequence[TrialAt] | None = None,
    before: Mapping[str, int] | None = None,
) -> str:
    """Run the trials of a run, or what ``resume`` leaves of them, on the devices of a ledger; the state of the run.

    Args:
        prepared: the config.
        planned: the result of ``plan_all``.
        outside: the journal and the board of the run, used once there are workers.
        ledger: of the run.
        folder: the run's folder.
        owner: the claim on it.
        work: of a run that goes on: trials that are to run.
        before: number of earlier ends by status.

    Raises:
        OwnerLost: another process has taken the run over.
    """
    with closing(ledger):  # its thread must end before Ray does
        roster = Roster(lambda: usable(prepared, ledger.devices()))
        found = list(roster.values())
        claims = claims_of(prepared, planned, found)
        pools, devices = pools_and_devices(found)
        places = range(len(prepared.trials)) if work is None else tuple(one.place for one in work)
        here = pools_and_devices(at_most(found, prepared))
        claims.settle(places, *here)
        batches = batches_of(prepared, planned, found, *here)

        def spec(worker: m.WorkerId) -> WorkerSpec:
            row = roster[worker.device]
            made = numbered(specs_of(prepared, folder, owner, [row])[row.id], worker, row.lanes)
            alone = [one for one in planned if not batches.has(one[0].first)]
            return replace(made, shapes=to_preload(prepared, alone, claims, row))

        workers = RayWorkers(folder.name, spec, ledger.options)
        inside = inside_of(prepared, planned, claims, roster)
        most = largest(pools, devices)
        with paused():
            state = state_of(prepared, claims, work, before, most, batches)
        return Runner(state, inside, outside(workers)).run()


def largest(pools: Iterable[Pool], devices: Iterable[DeviceSpec]) -> dict[str, int]:
    """The bytes that a trial alone on the largest device of each class can have."""
    capacity, most = {pool.id: pool.capacity for pool in pools}, dict[str, int]()
    for device in devices:
        most[device.kind] = max(most.get(device.kind, 0), capacity[device.pool] - device.process_bytes)
    return most


def state_of(
    prepared: Prepared,
    claims: Claims,
    work: Sequence[TrialAt] | None = None,
    before: Mapping[str, int] | None = None,
    most: Mapping[str, int] | None = None,
    batches: Batches | None = None,
) -> SweepState:
    """The state of a new run, or of one that goes on with ``work``, after trials that ended ``before``.

    ``most``: see ``SweepState``. ``batches``: those that run together; None: none do.
    """
    together = batches or Batches()
    job, debug = load(prepared.target), prepared.loaded.config.debug
    rules = rules_of(prepared, len(prepared.trials))
    # a trial that checks its indices already, or has no kernels, would say no more if it ran again
    checks = job.needs_compiler and not prepared.place.interpreted and not (debug and (debug.bounds or debug.asserts))
    options = {"before": before, "most": most, "curves": claims.curves, "checks": checks}
    options["batches"] = together.of(range(len(prepared.trials))) if work is None else batched(work, together)

    def asked(batch: Places) -> Mapping[str, Claim]:
        return together.claims(batch) if len(batch) > 1 else claims(batch[0])

    return SweepState(len(prepared.trials) if work is None else work, rules, asked, **options)


def batched(work: Sequence[TrialAt], batches: Batches) -> list[Places]:
    """Trials in the batches that they run in. Suspects of a crash come last and among themselves, as all but one may be innocent: a batch
    that crashes is halved. A trial that was charged with a crash runs by itself.
    """
    guilty = {one.place for one in work if one.charged and one.charged[Failure.crash]}
    suspects = tuple(one.place for one in work if one.alone and one.place not in guilty)
    known = set(suspects)
    return batches.of([one.place for one in work if one.place not in known], guilty) + batches.of(suspects)


def too_large(group: PlannedGroup, limits: Mapping[str, int | None]) -> str:
    """Why the trials of a shape are not started: their plan is larger than the config allows; empty where it is not."""
    for name, limit in limits.items():
        if group.plan is not None and limit is not None and group.plan.bytes > limit:
            return f"the plan needs {group.plan.bytes} bytes, {name} is {limit}; the trial was not started"
    return ""


def user() -> str:
    """The user of the share that a run counts against."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


class RunCancelled(Exception):
    """The run was asked to stop before a trial had begun."""


def check_device(
    prepared: Prepared,
    ledger: RunLedger,
    cores: Callable[[], int],
    note: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> None:
    """Return once a node has a device for the trials, and the cores of one; ``limits.device_wait`` is how long it may take.

    Args:
        prepared: the config.
        ledger: of the run; it is closed where there is no device.
        cores: the most that a node has now.
        note: says to the user that the run waits.
        cancelled: whether the run was asked to stop.

    Raises:
        ClusterError: there is none, or not in time.
        RunCancelled: it was asked to stop while it waited.
    """
    limit, why = prepared.loaded.config.limits.device_wait or 0.0, _lack(prepared, ledger, cores())
    if why and limit:
        end = time.monotonic() + limit
        note(f"{why.splitlines()[0]} yet: the run waits for one, for {limit:g} s at most; Ctrl-C or `qdrun cancel` ends it")
        ledger.source.look_for(next(iter(prepared.each)))
        try:
            while why and time.monotonic() < end:
                time.sleep(DEVICE_LOOK_S)
                if cancelled():
                    ledger.close()
                    raise RunCancelled
                why = _lack(prepared, ledger, cores())
        finally:
            ledger.source.look_for(None)
    if why:
        ledger.close()
        raise ClusterError(why)


def _lack(prepared: Prepared, ledger: RunLedger, cores: int) -> str:
    """What is missing, and what to do; empty where nothing is."""
    threads = prepared.loaded.config.device.threads
    if threads > cores:
        return (
            f"one trial wants {threads} threads, no node of the cluster has more than {cores} cores\n"
            "  do: lower device.threads; for a cluster that starts nodes on demand, set limits.device_wait"
        )
    if not any(row.usable and row.backend in prepared.each for row in ledger.devices()):
        return (
            f"no node of the cluster has a device for the {prepared.where} backend that Ray knows of\n"
            "  do: start Ray on the machines that have some, or run without --address; for a cluster that starts nodes on demand, set "
            "limits.device_wait"
        )
    return ""
