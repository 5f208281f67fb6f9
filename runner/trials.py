"""Trials: a point of the sweep with its resolved parameters, a stable id, and a seed of its own."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..jobs.base import Job
from .config import Loaded, explain
from .sweep import Point, SweepError, expand
from .yaml_lines import ConfigError, KeyPath, Problem, did_you_mean, dotted

MAX_PROBLEMS = 8


class Trial(BaseModel):
    """One run of the job. ``params`` are all parameters, defaults included; ``swept`` only what the sweep sets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    index: int
    replicate: int
    seed: int
    swept: dict[str, Any]
    params: dict[str, Any]

    @property
    def label(self) -> str:
        """The trial named after its parameters, for people."""
        parts = [f"{name}={short(value)}" for name, value in self.swept.items()]
        parts += [f"replicate={self.replicate}"] if self.replicate else []
        return ",".join(parts)[:120] or "base"


def short(value: Any) -> str:
    """A value in few characters."""
    text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, list | dict) else str(value)
    return text if len(text) <= 24 else text[:21] + "..."


def trial_id(params: dict[str, Any], replicate: int) -> str:
    """Twelve hexadecimal digits that depend on the resolved parameters and the replicate number, and on nothing else."""
    canonical = json.dumps([params, replicate], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def trial_seed(sweep_seed: int, identity: str) -> int:
    """The seed of one trial, from the seed of the sweep and the trial's id: below 2**63."""
    return int.from_bytes(hashlib.sha256(f"{sweep_seed}:{identity}".encode()).digest()[:8], "little") >> 1


def wanted_gradients(loaded: Loaded, job: type[Job[Any]]) -> tuple[str, ...]:
    """The gradients that the config asks for, all of the job's when it does not say.

    Raises:
        ConfigError: the job has no gradient of that name, or a name stands twice.
    """
    wanted = loaded.config.gradients
    if wanted is None:
        return job.gradients
    problems = []
    for index, name in enumerate(wanted):
        here: KeyPath = ("gradients", index)
        if name not in job.gradients:
            hint = did_you_mean(name, job.gradients)
            problems.append(
                loaded.document.problem(here, f"the job has no gradient `{name}`", allowed=job.gradients, hint=hint)
            )
        elif name in wanted[:index]:
            problems.append(loaded.document.problem(here, f"`{name}` stands twice"))
    if problems:
        raise loaded.document.error(*problems)
    return tuple(wanted)


def make_trials(loaded: Loaded, job: type[Job[Any]]) -> list[Trial]:
    """Expand the sweep and validate the parameters of every trial.

    Raises:
        ConfigError: the sweep is wrong, or a parameter is unknown, of the wrong type or out of its range.
    """
    config = loaded.config
    try:
        points = expand(config.sweep)
    except SweepError as error:
        problem = loaded.document.problem(("sweep", *error.path), error.what, allowed=error.allowed, hint=error.hint)
        raise loaded.document.error(problem) from error
    seed = config.sweep.seed if config.sweep is not None else 0
    trials: dict[str, Trial] = {}
    problems: dict[str, Problem] = {}
    for index, point in enumerate(points):
        try:
            params = resolve(job, config.job.params, point.values)
        except ValidationError as error:
            problems |= {problem.path: problem for problem in _problems(loaded, job, error, point, index)}
            if len(problems) >= MAX_PROBLEMS:
                break
            continue
        identity = trial_id(params, point.replicate)
        if identity in trials:
            what = f"two trials are equal: {json.dumps(point.values)} and {json.dumps(trials[identity].swept)}"
            raise loaded.document.error(
                loaded.document.problem(("sweep",), what, hint="use `repeat` to run the same trial again")
            )
        numbers = {"index": index, "replicate": point.replicate, "seed": trial_seed(seed, identity)}
        trials[identity] = Trial(id=identity, swept=point.values, params=params, **numbers)
    if problems:
        raise loaded.document.error(*problems.values())
    return list(trials.values())


def resolve(job: type[Job[Any]], base: dict[str, Any], swept: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a trial as plain data: ``base`` with the swept values set, checked strictly, defaults filled in.

    Raises:
        pydantic.ValidationError: they are not the job's parameters.
    """
    values = copy.deepcopy(base)
    for name, value in swept.items():
        *outer, last = name.split(".")
        here = values
        for part in outer:
            inner = here.setdefault(part, {})
            here = inner if isinstance(inner, dict) else here
        here[last] = value
    return job.Params.model_validate_json(json.dumps(values), strict=True).model_dump(mode="json")


def _problems(loaded: Loaded, job: type[Job[Any]], error: ValidationError, point: Point, index: int) -> Iterable[Problem]:
    for item in error.errors(include_url=False):
        what, allowed, hint = explain(item, job.Params)
        name = dotted(tuple(part for part in item["loc"] if isinstance(part, str)))
        swept = next((key for key in point.values if name == key or name.startswith(key + ".")), None)
        if item["type"] == "extra_forbidden":
            what = f"the job has no parameter `{name}`"
        elif item["type"] == "missing":
            what, hint = f"the job needs the parameter `{name}`", f"add `{name}` to job.params or to the sweep"
        yield loaded.document.problem(_place(loaded, item["loc"], swept, index), what, allowed=allowed, hint=hint)


def _place(loaded: Loaded, location: tuple[int | str, ...], swept: str | None, index: int) -> KeyPath:
    sweep = loaded.config.sweep
    if swept is None or sweep is None:
        return ("job", "params", *location)
    if sweep.method == "list":
        return ("sweep", "trials", index // sweep.repeat, swept)
    return ("sweep", "params", swept)


__all__ = ["ConfigError", "Trial", "make_trials", "resolve", "short", "trial_id", "trial_seed", "wanted_gradients"]
