"""What a sweep will hold in memory, known before anything runs: one job is built for each shape, none is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..jobs.base import Job, MemoryPlan
from .config import Loaded, load_config
from .devices import require_device
from .target import Target, TargetError, load, resolve
from .trials import Trial, make_trials, wanted_gradients


class PlannedGroup(BaseModel):
    """Trials of one shape and their common plan; ``plan`` is None where building the job failed, and ``error`` says why."""

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
    backend: str
    gradients: tuple[str, ...]
    trials: tuple[Trial, ...]

    def spec(self, trial: Trial) -> dict[str, Any]:
        """What a worker needs to run ``trial``, as plain data."""
        config = self.loaded.config
        return {
            "target": self.target.model_dump(),
            "trial": trial.id,
            "params": trial.params,
            "gradients": list(self.gradients),
            "seed": trial.seed,
            "backend": self.backend,
            "threads": config.device.threads,
            "memory_limit_bytes": config.limits.memory,
        }


def prepare(path: os.PathLike[str], *, local: bool = True) -> tuple[Prepared, type[Job[Any]]]:
    """Load a config, its job, its device and its trials; start nothing.

    Args:
        path: the YAML file.
        local: the trials will run on this machine, so its devices and cores must suffice.

    Raises:
        ConfigError: anything in the config is wrong, each problem with its line.
    """
    loaded = load_config(Path(path))
    document, config = loaded.document, loaded.config
    try:
        target = resolve(config.job.target, loaded.folder)
        job = load(target)
    except TargetError as error:
        raise document.error(document.problem(("job", "target"), str(error), allowed=error.allowed)) from error
    backend = require_device(loaded, local=local)
    gradients = wanted_gradients(loaded, job)
    trials = tuple(make_trials(loaded, job))
    return Prepared(loaded=loaded, target=target, backend=backend, gradients=gradients, trials=trials), job


def make_plan(prepared: Prepared, job: type[Job[Any]]) -> list[PlannedGroup]:
    """Plan one trial of each shape. A job that cannot be built gives a group with an error; the others are planned as well."""
    shapes: dict[str, list[Trial]] = {}
    for trial in prepared.trials:
        params = job.Params.model_validate(trial.params)
        shapes.setdefault(json.dumps(job.shape_key(params), sort_keys=True), []).append(trial)
    return [_plan_group(prepared, job, group) for group in shapes.values()]


def _plan_group(prepared: Prepared, job: type[Job[Any]], group: list[Trial]) -> PlannedGroup:
    first = group[0]
    names, example = tuple(trial.id for trial in group), first.label
    try:
        made = job(job.Params.model_validate(first.params), wanted=prepared.gradients, seed=first.seed)
        with made.opened(backend=prepared.backend, threads=prepared.loaded.config.device.threads) as opened:
            return PlannedGroup(trials=names, example=example, plan=opened.plan())
    except (
        Exception,
        SystemExit,
    ) as error:  # a user's code: shown by `plan`, and met again, as the trial's own error, by `submit`
        return PlannedGroup(trials=names, example=example, plan=None, error=f"{type(error).__name__}: {error}")


def planned_bytes(groups: list[PlannedGroup]) -> dict[str, int | None]:
    """Planned bytes of each trial by id; None where its job could not be built."""
    return {name: group.plan.bytes if group.plan else None for group in groups for name in group.trials}


def at_once(groups: list[PlannedGroup], *, cores: int, threads: int, memory_bytes: int, max_concurrent: int | None) -> int:
    """How many of the largest trials run together on a machine with ``cores`` and ``memory_bytes``; 0 when one does not fit."""
    largest = max((group.plan.bytes for group in groups if group.plan), default=0)
    by_memory = memory_bytes // largest if largest else cores
    slots = min(cores // threads, by_memory)
    return slots if max_concurrent is None else min(slots, max_concurrent)
