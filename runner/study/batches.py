"""Groups trials into batches: trials that differ only in inputs, the size of batches, and the reasons why others run one by one.

A batch is requested, leased, launched and recorded as one. Its bytes are exact for every number of trials, so that its size
follows from the memory of the devices and from how many batches keep all of their lanes busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel
from typing_extensions import TypedDict

from ...jobs.base import Job
from ...jobs.core.batch import BatchPlan, BatchSession, batch_plan
from ...jobs.core.inputs import located
from ...jobs.core.optimizer import OptimizerSpec
from ...jobs.planning.groups import found_of, group_key, why_not_batched
from ..config.optimize_section import OptimizeSection
from ..config.values import INTERPRETER
from ..fields import about
from ..optimize.descent import section_data
from ..optimize.points import optimizer_of
from ..packing import Claim, DeviceSpec, Pool
from ..user_lines import described
from .devices import emulated
from .plan import PlannedGroup, Prepared, all_reals, all_same, built_on, planned_for
from .trial_list import Trial, Trials

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
        trials: their ids, in the order of the sweep.
        example: the label of one of them.
        size: trials of one batch, at most; 1: one by one.
        plans: the memory of batches, by class of devices.
        why: why they run one by one; empty where they do not.
    """

    trials: tuple[str, ...]
    example: str
    size: int = 1
    plans: Mapping[str, BatchPlan] = field(default_factory=dict)
    why: str = ""

    def data(self) -> BatchGroupData:
        """The group as plain data."""
        return {
            "trials": len(self.trials),
            "example": self.example,
            "size": self.size,
            "why": self.why or None,
            "width": self.width,
            "batches": len(chunks(self.trials, self.size, self.width)),
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
    if why_not(prepared, job, group, prepared.trials.named[group.trials[0]]):
        return 1.0
    wanted, sizes = prepared.loaded.config.batch, [len(names) for names in _alike(prepared, job, group.trials)]
    most = wanted if isinstance(wanted, int) else MOST_ON_GPU
    return sum(size * min(size, most) for size in sizes) / sum(sizes)


def compile_batch(prepared: Prepared, job: type[Job[Any]], trial: Trial) -> None:
    """Compile the kernels of the batches that a trial belongs to: they are the same for any number of trials."""
    config = prepared.loaded.config
    params = located(job.Params.model_validate(trial.params), prepared.inputs)
    how: dict[str, Any] = {"backend": prepared.backend, "device": prepared.place.device, "threads": config.device.threads}
    how |= {"debug": config.debug, "optimizer": _optimizer(prepared, trial, params)}
    with BatchSession.open(job, params, 1, wanted=prepared.gradients, **how) as session:
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
    trials, out = prepared.trials.named, []
    for shape in planned:
        why = why_not(prepared, job, shape, trials[shape.trials[0]])
        if why:
            out.append(BatchGroup(shape.trials, shape.example, why=why))
            continue
        try:
            plans = _plans(prepared, job, trials[shape.trials[0]], threads, arch)
        except (Exception, SystemExit) as error:  # a user's code, or what it asks for
            out.append(BatchGroup(shape.trials, shape.example, why=f"a batch cannot be planned: {described(error)}"))
            continue
        for names in _alike(prepared, job, shape.trials):
            out.append(_sized(prepared, names, trials[names[0]].label, plans, pools, devices))
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
    data = section_data(config.optimize, prepared.gradients, trial.params)
    section = None if data is None else OptimizeSection.model_validate(data)
    return optimizer_of(section, params, debug=config.debug is not None)


def _alike(prepared: Prepared, job: type[Job[Any]], trials: Sequence[str]) -> list[tuple[str, ...]]:
    """The trials of a shape in groups that differ in inputs alone."""
    files, found = prepared.inputs, dict[str, list[str]]()
    places, columns = prepared.trials.picked(trials)
    first = located(job.Params.model_validate(prepared.trials.params(places[0])), files)
    inputs = found_of(job, first, prepared.gradients).inputs
    same = [all_reals(column) if name in inputs else all_same(column) for name, column in columns.items()]
    if all(same):
        return [tuple(trials)]  # as in most sweeps: no key is needed
    for name, place in zip(trials, places, strict=True):
        params = located(job.Params.model_validate(prepared.trials.params(place)), files)
        found.setdefault(group_key(job, params, wanted=prepared.gradients), []).append(name)
    return [tuple(names) for names in found.values()]


def _sized(
    prepared: Prepared,
    names: tuple[str, ...],
    example: str,
    plans: Mapping[str, BatchPlan],
    pools: Sequence[Pool],
    devices: Sequence[DeviceSpec],
) -> BatchGroup:
    """A group with the size of its batches: as many trials as fit on each device, and no more than keep all lanes busy."""
    if len(names) == 1:
        return BatchGroup(names, example, why="no other trial differs from it in inputs alone")
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
    most = min(most, len(names))
    if isinstance(wanted, int):
        size = most = min(wanted, most)
    else:
        lanes = sum(device.lanes for device in here) * ROUNDS if on_host else len(here) * GPU_ROUNDS
        width = max(plan.width for plan in plans.values())
        busy = width * math.ceil(len(names) / (max(1, lanes) * width))
        most = min(most, MOST_ON_CPU if on_host else MOST_ON_GPU)
        size = min(busy, most)
    if size < 2:
        return BatchGroup(names, example, why="two of them do not fit into the memory of a device")
    budget = prepared.loaded.config.budget_bytes
    if budget is not None and _share(plans, size) > budget:
        size = most  # more trials share the adstack heap, which has a row for each worker
    if budget is not None and _share(plans, size) > budget:
        why = f"`memory_budget` is {budget:,} bytes, a trial of a batch takes {_share(plans, size):,}"
        return BatchGroup(names, example, why=why)
    return BatchGroup(names, example, size, plans)


def _share(plans: Mapping[str, BatchPlan], size: int) -> int:
    """Bytes of one trial in a batch of so many, on the device where it takes most."""
    return max(-(-plan.bytes(size) // size) for plan in plans.values())


def chunks(names: Sequence[str], size: int, width: int = 1) -> list[tuple[str, ...]]:
    """Trials in batches of nearly equal size, which is a multiple of ``width`` where there are several and they are not smaller."""
    count = math.ceil(len(names) / size)
    each = math.ceil(len(names) / count)
    if count > 1:
        each = min(size, width * math.ceil(each / width))
    return [tuple(names[start : start + each]) for start in range(0, len(names), each)]


class Batches:
    """The batches of a run.

    Args:
        groups: of the sweep.
        seconds: that one batch may take.
    """

    def __init__(self, groups: Sequence[BatchGroup] = (), seconds: float | None = None) -> None:
        self.groups = groups
        self._seconds = seconds
        self._of = {name: index for index, group in enumerate(groups) if group.size > 1 for name in group.trials}
        self._claims: dict[tuple[int, int], Mapping[str, Claim]] = {}

    def has(self, name: str) -> bool:
        """Whether a trial is to run with others."""
        return name in self._of

    def of(self, names: Sequence[str], alone: Iterable[str] = ()) -> list[tuple[str, ...]]:
        """Trials as they are to run, in the order of their first ones. ``alone``: those that run by themselves."""
        single, together = set(alone), dict[int, list[str]]()
        order: dict[str, tuple[str, ...] | int] = {}
        for name in names:
            index = self._of.get(name)
            if index is None or name in single:
                order[name] = (name,)
            else:
                if index not in together:
                    order[name] = index
                together.setdefault(index, []).append(name)
        out: list[tuple[str, ...]] = []
        for one in order.values():
            if isinstance(one, tuple):
                out.append(one)
            else:
                out += chunks(together[one], self.groups[one].size, self.groups[one].width)
        return out

    def claims(self, batch: tuple[str, ...]) -> Mapping[str, Claim]:
        """The claims of a batch, by class of devices: equal batches have the same object."""
        index, size = self._of[batch[0]], len(batch)
        if (index, size) not in self._claims:
            plans = self.groups[index].plans
            made = {kind: Claim.of([(plan.bytes(size), 1.0)], self._seconds) for kind, plan in plans.items()}
            self._claims[index, size] = made
        return self._claims[index, size]


def columns_of(names: Sequence[str], trials: Trials) -> tuple[Mapping[str, Any], dict[str, list[Any]], list[int]]:
    """A batch as columns: the parameters of its first trial, those that are not the same in all of them, and their seeds."""
    places, columns = trials.picked(names)
    inputs = {name: column.tolist() for name, column in columns.items() if not all_same(column)}
    return trials.params(places[0]), inputs, [trials.seeds[place] for place in places]


__all__ = ["BatchGroup", "Batches", "chunks", "columns_of", "compile_batch", "groups_of", "why_not"]
