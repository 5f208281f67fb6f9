"""The config that ``qdrun new sweep`` writes for a job: one parameter swept, the others listed with their defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ...jobs.base import Job
from ..study import target as targets
from ..study.trials import resolve
from .catalog import ExampleError

POINTS = 5
DEFAULT_JOB = "qdrun.jobs.mass_spring:MassSpring"


def sweep_text(name: str, job: str, folder: Path) -> str:
    """The text of ``folder/name.yaml``, a sweep of the job that a target names, relative to the working directory.

    Raises:
        TargetError: there is no such job.
        ExampleError: it has no parameter that can be swept around its default, or a parameter without a default.
    """
    found = targets.load(targets.resolve(job, Path.cwd()))
    missing = [key for key, field in found.Params.model_fields.items() if field.is_required()]
    if missing:
        raise ExampleError(
            f"{job} has no default for {', '.join(f'`{key}`' for key in missing)}, which a sweep needs\n"
            "  do: give the parameters defaults"
        )
    params = found.Params()
    key, (low, high) = _axis(job, found, params)
    file, _, cls = job.rpartition(":")
    shown = f"{os.path.relpath(file, folder)}:{cls}" if file.endswith(".py") else job
    gradients = [f"gradients: [{', '.join(found.gradients)}]", ""] if found.gradients else []
    return "\n".join(
        [
            f"# {POINTS} trials of {cls}: the loss of each, and its gradients.",
            *(f"#   {line}" for line in _commands(f"{name}.yaml")),
            "version: 1",
            f"name: {name.replace('_', '-')}",
            "",
            "job:",
            f"  target: {shown}",
            "  # params:    # the same in every trial; the defaults are",
            *_defaults(params),
            "",
            *gradients,
            "device: {backend: cpu, threads: 1}",
            "",
            "sweep:",
            "  params:    # every combination of the values is a trial",
            f"    {key}: {{linspace: [{low!r}, {high!r}, {POINTS}]}}",
            "",
            "# Each trial descends from its values, instead of running once, if this is not a comment:",
            "# optimize: {rule: lbfgs, steps: 30}",
            "",
            "storage: runs",
            "",
        ]
    )


def _commands(file: str) -> list[str]:
    """What can be done with the config, in order."""
    said = {
        f"qdrun plan   {file}": "what would run, and the memory it needs",
        f"qdrun check  {file}": "are the gradients right?",
        f"qdrun submit {file}": "run it",
        "qdrun results latest": "the table",
    }
    width = max(map(len, said)) + 4
    return [f"{command:{width}}{meaning}" for command, meaning in said.items()]


def _defaults(params: BaseModel) -> list[str]:
    """Each parameter with its default, as a comment."""
    rows = []
    for key, field in type(params).model_fields.items():
        value = (
            yaml.safe_dump(params.model_dump(mode="json")[key], default_flow_style=True, width=10_000).split("\n...")[0].strip()
        )
        rows.append((f"  #   {key}: {value}", " ".join((field.description or "").split())))
    width = max(len(text) for text, _ in rows) + 4
    return [f"{text:{width}}# {said}" if said else text for text, said in rows]


def _axis(target: str, job: type[Job[Any]], params: BaseModel) -> tuple[str, tuple[float, float]]:
    """The parameter to sweep, one with a gradient if there is one, and the least and the largest value."""
    names = [*job.gradients, *(key for key in type(params).model_fields if key not in job.gradients)]
    for name in names:
        value = getattr(params, name, None)
        key, number = (f"{name}.0", value[0]) if isinstance(value, list) and value else (name, value)
        if isinstance(number, float):
            for ends in _around(number):
                if all(_allowed(job, key, end) for end in ends):
                    return key, ends
    raise ExampleError(
        f"{target} has no parameter that is a float, so there is nothing to sweep\n  do: give it one with a default"
    )


def _around(value: float) -> list[tuple[float, float]]:
    """Ranges around a default, or beside it where the default is an end of what is allowed."""
    step = abs(value) / 10 or 0.1
    low, high = float(f"{value - step:.6g}"), float(f"{value + step:.6g}")
    return [(low, high), (value, high), (low, value)]


def _allowed(job: type[Job[Any]], key: str, value: float) -> bool:
    try:
        resolve(job, {}, {key: value})
    except ValidationError:
        return False
    return True
