"""From a prepared config to a run that can begin: plans within the time limit, claims by class of devices, workers' specs, the state."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...jobs.base import Job
from ..ledger.client import LedgerClient
from ..ledger.inventory import Found, kind_of, local
from ..ledger.memory import host
from ..plan import PlannedGroup, Prepared, opened, planned_for, shapes
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from ..store.owner import Owner
from ..trials import Trial
from ..work.spec import WorkerSpec
from . import messages as m
from .book import Inside, Outside
from .elastic import Claims, Points, claim_of, curve
from .failures import Rules
from .parts import Work
from .planning import Hung, each_within
from .runner import Runner
from .state import State
from .workers import RayWorkers, Workers

Planned = tuple[PlannedGroup, Points]


def plan_all(prepared: Prepared, job: type[Job[Any]], limit_s: float | None = None) -> list[Planned]:
    """Plan one trial of each shape, and with ``memory_budget: auto`` its curve.

    A job that cannot be planned, or takes longer than ``limit_s`` seconds to build, gives a group with an error; its trials meet it again.
    """
    groups = shapes(prepared, job)
    planned = each_within(lambda group: _plan(prepared, job, group), groups, limit_s)
    out: list[Planned] = []
    for group, found in zip(groups, planned, strict=True):
        if isinstance(found, KeyboardInterrupt):
            raise found
        if isinstance(found, BaseException):
            kind = "Timeout: planning this shape" if isinstance(found, Hung) else type(found).__name__
            names = tuple(trial.id for trial in group)
            found = PlannedGroup(trials=names, example=group[0].label, plan=None, error=f"{kind}: {found}"), ()
        out.append(found)
    return out


def _plan(prepared: Prepared, job: type[Job[Any]], group: Sequence[Trial]) -> Planned:
    other, config = planned_for(prepared, None), prepared.loaded.config
    with opened(prepared, job, group[0], config.budget_bytes) as made:
        plan = made.plan(**({} if other is None else {"arch": other}))
        points = curve(made, plan, other) if config.elastic else ()
    return PlannedGroup(trials=tuple(trial.id for trial in group), example=group[0].label, plan=plan), points


def devices_of(prepared: Prepared) -> list[Found]:
    """The devices of this machine that the trials may run on: those of their backend, or the one that the config names."""
    config, wanted = prepared.loaded.config.device, prepared.place.device
    if isinstance(wanted, str) and wanted.partition(":")[0] == "emulated":
        total, free = host()
        kind = kind_of(prepared.backend, "emulated", config.threads)
        name = f"{prepared.backend}:{wanted}"
        return [Found(name, "", prepared.backend, kind=kind, pool="ram", total=total, free=free, lanes=config.slots or 1)]
    rows = [row for row in local(config.threads, config.slots) if row.backend == prepared.backend and row.usable]
    if config.min_memory is not None and prepared.backend != "cpu":
        rows = [row for row in rows if row.capacity >= config.min_memory]
    if wanted is not None:
        rows = [row for row in rows if _is(row, wanted)]
    most = config_lanes(prepared, rows)
    return [replace(row, lanes=min(row.lanes, most)) for row in rows]


def config_lanes(prepared: Prepared, rows: Sequence[Found]) -> int:
    """The most lanes of one device: ``limits.max_concurrent`` over so many devices."""
    most = prepared.loaded.config.limits.max_concurrent
    return 1 << 20 if most is None else max(1, -(-most // max(1, len(rows))))


def _is(row: Found, wanted: int | str) -> bool:
    if isinstance(wanted, int):
        return row.index == wanted
    name = wanted.lower()
    return row.uuid.lower().startswith(name) or row.pci.lower().endswith(name)


def claims_of(prepared: Prepared, planned: Sequence[Planned], kinds: Iterable[str]) -> Claims:
    """The claims of all trials; equal for all classes of devices of the backend, which the plan is made for."""
    names = sorted(set(kinds))
    seconds = prepared.loaded.config.limits.timeout_s
    made = []
    for group, points in planned:
        claim = claim_of(group.plan, points, seconds)
        made.append((group.trials, dict.fromkeys(names, claim)))
    return Claims(made)


def rules_of(prepared: Prepared, trials: int) -> Rules:
    """The limits of a config as the state machine takes them."""
    limits = prepared.loaded.config.limits
    retries = limits.retries
    return Rules(retries.infra, retries.oom, retries.crash, limits.timeout_s, limits.failures_allowed(trials))


def specs_of(prepared: Prepared, folder: RunFolder, owner: Owner, found: Sequence[Found]) -> dict[str, WorkerSpec]:
    """What a worker is, by device; of a device with a process for each lane, with one lane."""
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
            which=named if named is not None else (None if row.backend == "cpu" else row.uuid or row.index),
            uuid=row.uuid,
            pci=row.pci,
            lanes=1 if row.backend == "cpu" else row.lanes,
            job=shared,
        )
        for row in found
    }


def numbered(spec: WorkerSpec, worker: m.Worker, lanes: int) -> WorkerSpec:
    """The spec of one worker of a device: each has a number that none before it had."""
    return replace(spec, number=1 + worker.slot + lanes * worker.generation)


def inside_of(prepared: Prepared, planned: Sequence[Planned], claims: Claims, kinds: Mapping[str, str]) -> Inside:
    """What the runner needs to know of the trials. ``kinds``: the class of each device."""
    elastic = prepared.loaded.config.elastic

    def budget(launch: m.Launch) -> int | None:
        """Fewer bytes than the plan without a budget: the trial is planned into what it was granted."""
        fastest = claims.fastest(launch.trials[0], kinds.get(launch.worker.device, ""))
        smaller = elastic and fastest is not None and launch.bytes < fastest * len(launch.trials)
        return launch.bytes // len(launch.trials) if smaller else None

    bytes_ = {name: group.plan.bytes if group.plan else None for group, _ in planned for name in group.trials}
    trials = {trial.id: trial for trial in prepared.trials}
    return Inside(trials, prepared.own_spec, bytes_, budget, too_large(prepared, planned))


def run_trials(
    prepared: Prepared,
    planned: Sequence[Planned],
    outside: Callable[[Workers], Outside],
    ledger: LedgerClient,
    *,
    folder: RunFolder,
    owner: Owner,
    work: Sequence[Work] | None = None,
    before: Mapping[str, int] | None = None,
) -> str:
    """Run the trials of a run, or what ``resume`` leaves of them, on the devices of a ledger; the state of the run.

    Args:
        prepared: the config.
        planned: of ``plan_all``.
        outside: where the run writes and what it shows, once there are workers.
        ledger: which the run has joined.
        folder: of the run.
        owner: the claim on it.
        work: of a run that goes on: trials that are to run.
        before: trials that ended earlier, by status.

    Raises:
        OwnerLost: another process has taken the run over.
    """
    found = {row.id: row for row in ledger.devices() if row.usable and row.backend == prepared.backend}
    kinds = {name: row.kind for name, row in found.items()}
    claims = claims_of(prepared, planned, kinds.values())
    specs = specs_of(prepared, folder, owner, list(found.values()))
    workers = RayWorkers(
        folder.name, lambda worker: numbered(specs[worker.device], worker, found[worker.device].lanes), ledger.options
    )
    inside = inside_of(prepared, planned, claims, kinds)
    return Runner(state_of(prepared, claims, work, before), inside, outside(workers)).run()


def state_of(
    prepared: Prepared, claims: Claims, work: Sequence[Work] | None = None, before: Mapping[str, int] | None = None
) -> State:
    """The state of a new run, or of one that goes on with ``work``, after trials that ended ``before``."""
    todo = [Work(trial.id) for trial in prepared.trials] if work is None else work
    return State(todo, rules_of(prepared, len(prepared.trials)), claims, before=before)


def too_large(prepared: Prepared, planned: Sequence[Planned]) -> dict[str, str]:
    """Trials whose plan is larger than the config allows, each with the arithmetic: they are not started."""
    why = {}
    for group, _ in planned:
        for name, limit in prepared.byte_limits.items():
            if group.plan is not None and limit is not None and group.plan.bytes > limit:
                text = f"the plan needs {group.plan.bytes} bytes, {name} is {limit}; the trial was not started"
                why |= dict.fromkeys(group.trials, text)
    return why


def kinds_of(ledger: LedgerClient, backend: str) -> dict[str, str]:
    """The classes of the devices of a backend, by device."""
    return {row.id: row.kind for row in ledger.devices() if row.usable and row.backend == backend}


def user() -> str:
    """Whose share a run counts against."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
