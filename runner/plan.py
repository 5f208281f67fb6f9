"""What a sweep will hold in memory, known before anything runs: one job is built for each shape, none is run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from ..jobs.base import Job, MemoryPlan
from .config import Loaded, load_config
from .descent import section_data
from .devices import AUTO, Place, emulated, places_of_auto, places_of_cluster, require_device
from .ledger.inventory import Found
from .target import Target, TargetError, load, resolve
from .trials import Trial, check_optimize, make_trials, wanted_gradients
from .user_lines import described

T = TypeVar("T")
TRIED = 4
"""Trials of one shape that are built until one of them can be: values of floats are no part of a shape, and `build` may refuse some."""


class PlannedGroup(BaseModel):
    """Trials of one shape and their common plan, which is that of the first one.

    ``plan`` is None where the job could not be built for any trial that was tried; ``error`` says why, with the user's line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: tuple[str, ...]
    example: str
    plan: MemoryPlan | None
    error: str = ""


class Prepared(BaseModel):
    """A config that is right, with everything that follows from it: target, trials, gradients, and the memory plans."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    loaded: Loaded
    target: Target
    place: Place
    gradients: tuple[str, ...]
    trials: tuple[Trial, ...]
    choice: Any = None  # a ``choice.Choice``, where ``device.backend: auto`` had several to choose from

    @property
    def backend(self) -> str:
        """The kind of device that the trials run on."""
        return self.place.backend

    @property
    def arch(self) -> str:
        """What their programs are opened for: the backend, or the interpreter."""
        return self.place.arch

    @property
    def byte_limits(self) -> dict[str, int | None]:
        """What the plan of a trial must not exceed, by the name of the key in the config."""
        config = self.loaded.config
        return {"limits.memory": config.limits.memory, "memory_budget": config.budget_bytes}

    @property
    def resolved(self) -> dict[str, Any]:
        """The config as it was understood, as plain data: defaults filled in, overrides applied."""
        config = self.loaded.config
        data = config.model_dump(mode="json", by_alias=True, exclude_none=True) | {
            "gradients": list(self.gradients),
            "job": {"target": self.target.text, "params": config.job.params},
        }
        data["device"]["backend"] = self.arch
        if config.optimize is not None:
            data["optimize"] = section_data(config.optimize, self.gradients, self.trials[0].params)
        return data | ({"overrides": list(self.loaded.overrides)} if self.loaded.overrides else {})

    def spec(self, trial: Trial) -> dict[str, Any]:
        """What a worker needs to run ``trial``, as plain data."""
        return self.shared_spec() | self.own_spec(trial)

    def shared_spec(self) -> dict[str, Any]:
        """The part of ``spec`` that all trials have in common."""
        config = self.loaded.config
        return {
            "target": self.target.model_dump(),
            "gradients": list(self.gradients),
            "backend": self.arch,
            "device": self.place.device,
            "threads": config.device.threads,
            "memory_limit_bytes": config.limits.memory,
            "memory_budget_bytes": config.budget_bytes,
            "debug": None if config.debug is None else config.debug.model_dump(),
        }

    def own_spec(self, trial: Trial) -> dict[str, Any]:
        """The part of ``spec`` that is the trial's own."""
        optimize = section_data(self.loaded.config.optimize, self.gradients, trial.params)
        return {"trial": trial.id, "params": trial.params, "seed": trial.seed, "optimize": optimize}


def prepare(
    path: os.PathLike[str],
    *,
    local: bool = True,
    overrides: Sequence[str] = (),
    debug: bool = False,
    backend: str | None = None,
    cluster: Callable[[Loaded], Sequence[Found]] | None = None,
    text: str | None = None,
) -> tuple[Prepared, type[Job[Any]]]:
    """Load a config, its job, its device and its trials; start nothing.

    Args:
        path: the YAML file.
        local: the trials will run on this machine, so its devices and cores must suffice.
        overrides: of keys of the config, see ``load_config``.
        debug: in debug mode; the checks are those of the config, or the usual ones.
        backend: what ``auto`` has become before; None: that is decided now.
        text: of the config, instead of what lies at ``path`` now.
        cluster: the devices where the trials will run, if not here; asked for where ``auto`` is to be decided.

    Raises:
        ConfigError: anything in the config is wrong, each problem with its line.
        ClusterError: of ``cluster``.
    """
    loaded = load_config(Path(path), overrides, text)
    if debug and loaded.config.debug is None:
        loaded = load_config(Path(path), [*overrides, "debug=true"], text)
    target, job = load_job(loaded)
    device = loaded.config.device
    elsewhere = cluster if backend is None and device.backends == AUTO and device.id is None else None
    place = require_device(loaded, local=local, backend=backend) if elsewhere is None else Place("cpu")
    gradients = wanted_gradients(loaded, job)
    trials = tuple(make_trials(loaded, job))
    check_optimize(loaded, job, gradients, trials)
    there, places = None, places_of_auto(loaded, local=local) if backend is None else []
    if elsewhere is not None:  # last: it takes seconds
        there = elsewhere(loaded)
        places = places_of_cluster(loaded, there)
        place = places[0]
    prepared = Prepared(loaded=loaded, target=target, place=place, gradients=gradients, trials=trials)
    return _first_to_end(prepared, job, places, there) if len(places) > 1 else prepared, job


def _first_to_end(prepared: Prepared, job: type[Job[Any]], places: Sequence[Place], there: Sequence[Found] | None) -> Prepared:
    """With the backend on which the sweep is predicted to end first."""
    from .choice import chosen  # it plans, with what is in this file

    place, choice = chosen(prepared, job, places, there)
    return prepared.model_copy(update={"place": place, "choice": choice})


def load_job(loaded: Loaded) -> tuple[Target, type[Job[Any]]]:
    """The job of a config.

    Raises:
        ConfigError: its target names no job.
    """
    try:
        target = resolve(loaded.config.job.target, loaded.folder)
        return target, load(target)
    except TargetError as error:
        document = loaded.document
        raise document.error(document.problem(("job", "target"), str(error), allowed=error.allowed)) from error


def learns_frames(prepared: Prepared) -> bool:
    """Whether the first shape is planned with its machine code: on a GPU that is here it says how large the frames of the kernels are,
    which the process of a worker takes of the device, see ``MemoryPlan.footprint``.
    """
    return prepared.backend != "cpu" and prepared.place.present and not emulated(prepared.place.device)


def make_plan(prepared: Prepared, job: type[Job[Any]], arch: str | None = None) -> list[PlannedGroup]:
    """Plan one trial of each shape. A job that cannot be planned gives a group with an error; the others are planned as well.

    Args:
        prepared: what ``prepare`` gave.
        job: the class, too.
        arch: plan for this backend, which need not be there, instead of the config's.
    """
    learns = learns_frames(prepared) and arch in (None, prepared.backend)
    return [
        _plan_group(prepared, job, group, arch, machine_code=learns and k == 0) for k, group in enumerate(shapes(prepared, job))
    ]


def shapes(prepared: Prepared, job: type[Job[Any]]) -> list[list[Trial]]:
    """The trials in groups that need equal memory, see ``Job.shape_key``."""
    groups: dict[str, list[Trial]] = {}
    for trial in prepared.trials:
        params = job.Params.model_validate(trial.params)
        groups.setdefault(json.dumps(job.shape_key(params), sort_keys=True), []).append(trial)
    return list(groups.values())


def _plan_group(
    prepared: Prepared, job: type[Job[Any]], group: list[Trial], arch: str | None, machine_code: bool
) -> PlannedGroup:
    other = planned_for(prepared, arch)

    def plan_of(trial: Trial) -> MemoryPlan:
        with opened(prepared, job, trial, prepared.loaded.config.budget_bytes, arch, machine_code=machine_code) as made:
            return made.plan(**({} if other is None else {"arch": other}))

    try:
        trial, plan = first_that_works(group, plan_of)
    except (
        Exception,
        SystemExit,
    ) as error:  # a user's code: shown by `plan`, and met again, as the trial's own error, by `submit`
        return group_of(group, group[0], None, described(error))
    return group_of(group, trial, plan)


def group_of(group: Sequence[Trial], example: Trial, plan: MemoryPlan | None, error: str = "") -> PlannedGroup:
    """The planned group of trials of one shape; ``example`` is the one that was planned, and comes first."""
    names = (example.id, *(trial.id for trial in group if trial.id != example.id))
    return PlannedGroup(trials=names, example=example.label, plan=plan, error=error)


def first_that_works(group: Sequence[Trial], work: Callable[[Trial], T]) -> tuple[Trial, T]:
    """The first trial of one shape with which ``work`` succeeds, and what it returns.

    Up to ``TRIED`` trials, spread evenly, are tried while their errors differ. Equal errors of the first two end the search, as does a
    lack of memory, which is that of the shape.

    Raises:
        BaseException: what ``work`` raised for the first trial, when it raised for all that were tried.
    """
    count = min(TRIED, len(group))
    picked = [group[k * (len(group) - 1) // max(1, count - 1)] for k in range(count)]
    order = [picked[0], picked[-1], *picked[1:-1]][:count]
    first: BaseException | None = None
    for trial in order:
        try:
            return trial, work(trial)
        except (Exception, SystemExit) as error:
            same = first is not None and (type(error), str(error)) == (type(first), str(first))
            first = first or error
            if same or isinstance(error, MemoryError):
                break
    assert first is not None
    raise first


def planned_for(prepared: Prepared, arch: str | None) -> str | None:
    """The backend to plan for where the program of ``opened`` is of another one; None where it is its own."""
    wanted = arch or prepared.backend
    return None if wanted == _built_on(prepared, wanted) else wanted


def _built_on(prepared: Prepared, wanted: str) -> str:
    """The backend on which a job is built to be planned: the trials' own where this machine has it, else the CPU."""
    return wanted if wanted == prepared.backend and prepared.place.present else "cpu"


def opened(
    prepared: Prepared,
    job: type[Job[Any]],
    trial: Trial,
    budget: int | None,
    arch: str | None = None,
    *,
    threads: int | None = None,
    machine_code: bool = True,
) -> AbstractContextManager[Job[Any]]:
    """A trial's job, built in a program of its own as a worker would build it, with this ``memory_budget``.

    Without ``limits.memory``, so that all of it is seen. ``arch``: the backend that it is planned for, None for that of the trials.
    ``threads``: of the CPU, None for those of the config. ``machine_code``: see ``Job.opened``.
    """
    made = job(job.Params.model_validate(trial.params), wanted=prepared.gradients, seed=trial.seed)
    config, backend = prepared.loaded.config, _built_on(prepared, arch or prepared.backend)
    own = backend == prepared.backend
    other = planned_for(prepared, arch)
    return made.opened(
        backend=prepared.arch if own else backend,
        device=prepared.place.device if own else None,
        threads=threads or config.device.threads,
        memory_budget_bytes=budget,
        arch=other,
        machine_code=machine_code,
        debug=config.debug,
    )


def planned_bytes(groups: list[PlannedGroup]) -> dict[str, int | None]:
    """Planned bytes of each trial by id; None where its job could not be built."""
    return {name: group.plan.bytes if group.plan else None for group in groups for name in group.trials}


def footprints(groups: list[PlannedGroup]) -> dict[str, int | None]:
    """What the trial's device has less while it runs, by id, see ``MemoryPlan.footprint``."""
    return {name: group.plan.footprint if group.plan else None for group in groups for name in group.trials}
