"""Groups trials into batches: trials that differ only in inputs, the size of batches, and the reasons why others run one by one.

A batch is requested, leased, launched and recorded as one. Its bytes are exact for every number of trials, so that its size
follows from the memory of the devices and from how many batches keep all of their lanes busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel
from typing_extensions import TypedDict

from ...jobs.base import Job
from ...jobs.core.batch import BatchPlan, BatchSession, batch_plan
from ...jobs.core.inputs import located
from ...jobs.core.optimizer import OptimizerSpec
from ...jobs.planning.batch_plan import SMALL
from ...jobs.planning.groups import found_of, group_key, why_not_batched
from ..config.optimize_section import OptimizeSection
from ..config.values import INTERPRETER
from ..fields import about
from ..optimize.points import optimizer_of
from ..packing import Claim, DeviceSpec, Pool
from ..user_lines import described
from ..value_columns import Places, array_of, group_numbers, places_of
from .devices import emulated
from .plan import PlannedGroup, Prepared, all_reals, all_same, built_on, planned_for
from .trial_list import Trial

MOST_ON_CPU, MOST_ON_GPU = 1024, 1 << 17
"""Trials of a batch, at most, if the config does not say: more are not faster, and a batch that is lost runs again."""
ROUNDS = 4
"""Minimum number of batches per lane: lanes that finish early take the remaining ones."""
GPU_ROUNDS = 2
"""On a GPU one batch fills the device; while it runs, another one is prepared."""


class BatchGroupData(TypedDict):
    """Trials that run in batches of a given size, or one by one."""

    trials: Annotated[int, about("number of trials")]
    example: Annotated[str, about("the label of one of them")]
    size: Annotated[int, about("largest number of trials in a batch; 1: no batches")]
    why: Annotated[str | None, about("the reason why they are not batched")]
    width: Annotated[int, about("trials of a group, which lie side by side in memory")]
    batches: Annotated[int, about("number of batches")]
    bytes: Annotated[dict[str, int], about("of a batch of that size, by device class")]


@dataclass(frozen=True)
class BatchGroup:
    """Trials that may run in one program, or (``why``) each in its own.

    Attributes:
        places: theirs in the sweep.
        example: the label of one of them.
        size: trials of one batch, at most; 1: one by one.
        plans: the memory of batches, by class of devices.
        why: why they run one by one; empty where they do not.
    """

    places: Places
    example: str
    size: int = 1
    plans: Mapping[str, BatchPlan] = field(default_factory=dict)
    why: str = ""

    def data(self) -> BatchGroupData:
        """The group as plain data."""
        return {
            "trials": len(self.places),
            "example": self.example,
            "size": self.size,
            "why": self.why or None,
            "width": self.width,
            "batches": len(chunks(self.places, self.size, self.width)),
            "bytes": {kind: plan.bytes(self.size) for kind, plan in self.plans.items()},
        }

    @property
    def width(self) -> int:
        """Trials that lie side by side in memory: of any part of them all is allocated."""
        return max((plan.width for plan in self.plans.values()), default=1)


def why_not(prepared: Prepared, job: type[Job[Any]], group: PlannedGroup, trial: Trial) -> str:
    """Why the trials of a shape run one by one; empty where they may run in batches. ``trial``: one of them."""
    config = prepared.loaded.config
    if config.batch == "off":
        return "`batch: off`"
    if config.batch == 1:
        return "`batch: 1`"
    if group.plan is None:
        return "they cannot be planned"
    if config.optimize is not None and config.optimize.rule == "levenberg_marquardt":
        return "`levenberg_marquardt` runs a batch for the Jacobian of each trial"
    if config.elastic:
        return "`memory_budget: auto` chooses the bytes of each trial"
    if prepared.trials.uneven is not None:
        return "the trials have parameters of different names"
    if prepared.arch == INTERPRETER:
        return "the interpreter runs one trial at a time"
    if prepared.beside:
        return "`device.together` shares them out among several backends"
    params = located(job.Params.model_validate(trial.params), prepared.inputs)
    return why_not_batched(job, params, wanted=prepared.gradients, memory_budget_bytes=config.budget_bytes)


def side_by_side(prepared: Prepared, job: type[Job[Any]], group: PlannedGroup) -> float:
    """Trials of a shape that run at once in batches, the mean over its trials, if memory sets no limit; 1: they run one by one."""
    if why_not(prepared, job, group, prepared.trials[group.first]):
        return 1.0
    wanted, sizes = prepared.loaded.config.batch, [len(places) for places in _alike(prepared, job, group.places)]
    most = wanted if isinstance(wanted, int) else MOST_ON_GPU
    return sum(size * min(size, most) for size in sizes) / sum(sizes)


def compile_batch(prepared: Prepared, job: type[Job[Any]], trial: Trial) -> None:
    """Compile the kernels of the batches that a trial belongs to: they are the same for any number of trials from ``SMALL`` on."""
    config = prepared.loaded.config
    params = located(job.Params.model_validate(trial.params), prepared.inputs)
    how: dict[str, Any] = {"backend": prepared.backend, "device": prepared.place.device, "threads": config.device.threads}
    how |= {"debug": config.debug, "optimizer": _optimizer(prepared, trial, params)}
    with BatchSession.open(job, params, SMALL, wanted=prepared.gradients, **how) as session:
        session.job.plan()


def groups_of(
    prepared: Prepared,
    job: type[Job[Any]],
    planned: Iterable[PlannedGroup],
    threads: Mapping[str, int | None],
    pools: Sequence[Pool],
    devices: Sequence[DeviceSpec],
    arch: str | None = None,
) -> list[BatchGroup]:
    """The groups of a sweep, with the sizes of their batches. Compiles and runs nothing.

    Args:
        prepared: the config.
        job: its class.
        planned: its shapes.
        threads: of the CPU, by class of devices.
        pools: memory.
        devices: of the run.
        arch: the backend to plan for; None: that of the config.
    """
    trials, out = prepared.trials, []
    for shape in planned:
        first = trials[shape.first]
        why = why_not(prepared, job, shape, first)
        if why:
            out.append(BatchGroup(shape.places, shape.example, why=why))
            continue
        try:
            plans = _plans(prepared, job, first, threads, arch)
        except (Exception, SystemExit) as error:  # a user's code, or what it asks for
            out.append(BatchGroup(shape.places, shape.example, why=f"a batch cannot be planned: {described(error)}"))
            continue
        for places in _alike(prepared, job, shape.places):
            out.append(_sized(prepared, places, trials[places[0]].label, plans, pools, devices))
    return out


def _plans(
    prepared: Prepared, job: type[Job[Any]], trial: Trial, threads: Mapping[str, int | None], arch: str | None
) -> dict[str, BatchPlan]:
    params = located(job.Params.model_validate(trial.params), prepared.inputs)
    other = {"backend": built_on(prepared, arch or prepared.backend), "arch": planned_for(prepared, arch)}
    if emulated(prepared.place.device):  # as for a device that is not here
        other = {"backend": "cpu", "arch": arch or prepared.backend}
    spec = _optimizer(prepared, trial, params)
    found = {
        count: batch_plan(job, params, wanted=prepared.gradients, threads=count, optimizer=spec, **other)
        for count in set(threads.values())
    }
    return {kind: found[count] for kind, count in threads.items()}


def _optimizer(prepared: Prepared, trial: Trial, params: BaseModel) -> OptimizerSpec | None:
    """The optimiser of the batches of a config, which runs in their programs."""
    config = prepared.loaded.config
    data = prepared.descent(trial.params)
    section = None if data is None else OptimizeSection.model_validate(data)
    return optimizer_of(section, params, debug=config.debug is not None)


def _alike(prepared: Prepared, job: type[Job[Any]], places: Places) -> list[Places]:
    """The trials of a shape in groups that differ in inputs alone."""
    trials, files, found = prepared.trials, prepared.inputs, dict[str, list[int]]()
    columns = trials.columns_at(places)
    first = located(job.Params.model_validate(trials.params(places[0])), files)
    inputs = found_of(job, first, prepared.gradients).inputs
    same = [all_reals(column) if name in inputs else all_same(column) for name, column in columns.items()]
    if all(same):
        return [places]  # as in most sweeps: no key is needed
    for place in places:
        params = located(job.Params.model_validate(trials.params(place)), files)
        found.setdefault(group_key(job, params, wanted=prepared.gradients), []).append(place)
    return [places_of(np.array(own)) for own in found.values()]


def _sized(
    prepared: Prepared,
    places: Places,
    example: str,
    plans: Mapping[str, BatchPlan],
    pools: Sequence[Pool],
    devices: Sequence[DeviceSpec],
) -> BatchGroup:
    """A group with the size of its batches: as many trials as fit on each device, and no more than keep all lanes busy."""
    if len(places) == 1:
        return BatchGroup(places, example, why="no other trial differs from it in inputs alone")
    wanted, capacity = prepared.loaded.config.batch, {pool.id: pool.capacity for pool in pools}
    here = [device for device in devices if device.kind in plans]
    on_host = prepared.backend == "cpu"
    fit = []
    for device in here:
        room = capacity[device.pool] - device.process_bytes
        together = 1 if isinstance(wanted, int) else device.lanes if on_host else GPU_ROUNDS
        fit.append(plans[device.kind].max_batch(max(0, room // together)))
    # a device that has no room for two would make all others run one by one
    most = min((count for count in fit if count > 1), default=1)
    most = min([most, *(plan.most for plan in plans.values() if plan.most is not None)])
    most = min(most, len(places))
    if isinstance(wanted, int):
        size = most = min(wanted, most)
    else:
        lanes = sum(device.lanes for device in here) * ROUNDS if on_host else len(here) * GPU_ROUNDS
        width = max(plan.width for plan in plans.values())
        busy = width * math.ceil(len(places) / (max(1, lanes) * width))
        most = min(most, MOST_ON_CPU if on_host else MOST_ON_GPU)
        size = min(busy, most)
    if size < 2:
        return BatchGroup(places, example, why="two of them do not fit into the memory of a device")
    budget = prepared.loaded.config.budget_bytes
    if budget is not None and _share(plans, size) > budget:
        size = most  # more trials share the adstack heap, which has a row for each worker
    if budget is not None and _share(plans, size) > budget:
        why = f"`memory_budget` is {budget:,} bytes, a trial of a batch takes {_share(plans, size):,}"
        return BatchGroup(places, example, why=why)
    return BatchGroup(places, example, size, plans)


def _share(plans: Mapping[str, BatchPlan], size: int) -> int:
    """Bytes of one trial in a batch of so many, on the device where it takes most."""
    return max(-(-plan.bytes(size) // size) for plan in plans.values())


def chunks(places: Places, size: int, width: int = 1) -> list[Places]:
    """Trials in batches of nearly equal size, which is a multiple of ``width`` where there are several and they are not smaller."""
    count = math.ceil(len(places) / size)
    each = math.ceil(len(places) / count)
    if count > 1:
        each = min(size, width * math.ceil(each / width))
    return [places[start : start + each] for start in range(0, len(places), each)]


class Batches:
    """The batches of a run.

    Args:
        groups: of the sweep.
        seconds: that one batch may take.
    """

    def __init__(self, groups: Sequence[BatchGroup] = (), seconds: float | None = None) -> None:
        self.groups = groups
        self._seconds = seconds
        self._of = group_numbers([group.places for group in groups])
        self._claims: dict[tuple[int, int], Mapping[str, Claim]] = {}

    def has(self, place: int) -> bool:
        """Whether a trial is to run with others."""
        return place < len(self._of) and self._of[place] >= 0 and self.groups[self._of[place]].size > 1

    def of(self, places: Places, alone: Iterable[int] = ()) -> list[Places]:
        """Trials as they are to run, in the order of their first ones. ``alone``: those that run by themselves."""
        rows, single = array_of(places), list(alone)
        numbers = self._of[rows] if self.groups else np.full(len(rows), -1)
        if single:
            numbers[np.isin(rows, single)] = -1
        out = list[tuple[int, Places]]()
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            if number < 0 or self.groups[number].size < 2:
                out += [(k, (place,)) for k, place in zip(at.tolist(), rows[at].tolist(), strict=True)]
            else:
                group = self.groups[number]
                out += [(int(at[0]), batch) for batch in chunks(places_of(rows[at]), group.size, group.width)]
        return [batch for _, batch in sorted(out, key=lambda one: one[0])]

    def claims(self, batch: Places) -> Mapping[str, Claim]:
        """The claims of a batch, by class of devices: equal batches have the same object."""
        index, size = int(self._of[batch[0]]), len(batch)
        if (index, size) not in self._claims:
            plans = self.groups[index].plans
            made = {kind: Claim.of([(plan.bytes(size), 1.0)], self._seconds) for kind, plan in plans.items()}
            self._claims[index, size] = made
        return self._claims[index, size]


__all__ = ["BatchGroup", "Batches", "chunks", "compile_batch", "groups_of", "why_not"]
