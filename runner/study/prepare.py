"""From a config to a sweep that can be planned: its job, its backend and its trials are found and checked. Nothing is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
from pydantic import BaseModel

from ...jobs.base import Job
from ...jobs.core.inputs import InputFiles, paths_in, takes_files
from ..config.model import Loaded, load_config
from ..config.yaml_lines import KeyPath
from ..ledger.inventory import Found
from .backend_choice import chosen
from .devices import AUTO, ChosenDevice, places_of_auto, places_of_cluster, places_together, require_device
from .plan import Prepared
from .target import ARRAYS, Target, TargetError, input_files, load, resolve
from .trial_list import Trials
from .trials import Trial, check_optimize, make_trials, wanted_gradients


def prepare(
    path: os.PathLike[str],
    *,
    local: bool = True,
    overrides: Sequence[str] = (),
    debug: bool = False,
    backend: str | None = None,
    cluster: Callable[[Loaded], Sequence[Found]] | None = None,
    text: str | None = None,
    root: str = "",
    copies: Mapping[str, str] | None = None,
    target: Target | None = None,
    trials: Sequence[Trial] | None = None,
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
        root: the folder in which imports of the job's module begin; empty: the working directory, or that of the job's file.
        copies: see ``InputFiles``.
        target: the job whose code a run keeps, instead of the files that the config names.
        trials: those of an earlier run; None: those of the config.

    Raises:
        ConfigError: anything in the config is wrong, each problem with its line.
        ClusterError: of ``cluster``.
    """
    loaded = load_config(Path(path), overrides, text)
    if debug and loaded.config.debug is None:
        loaded = load_config(Path(path), [*overrides, "debug=true"], text)
    target, job = load_job(loaded, root, target)
    inputs = input_files({"folder": str(loaded.folder), "copies": copies or {}})
    device = loaded.config.device
    elsewhere = cluster if backend is None and device.backends == AUTO and device.id is None else None
    place = require_device(loaded, local=local, backend=backend) if elsewhere is None else ChosenDevice("cpu")
    beside = tuple(other for other in places_together(loaded, local=local) if other.backend != place.backend)
    gradients = wanted_gradients(loaded, job)
    trials = make_trials(loaded, job) if trials is None else Trials.of(trials)
    check_inputs(loaded, job, trials, inputs, local=local)
    check_optimize(loaded, job, gradients, trials)
    there, places = None, places_of_auto(loaded, local=local) if backend is None else []
    if elsewhere is not None:  # last: it takes seconds
        there = elsewhere(loaded)
        places = places_of_cluster(loaded, there)
        place = places[0]
    made = {"loaded": loaded, "target": target, "place": place, "gradients": gradients, "trials": trials, "inputs": inputs}
    prepared = Prepared(**made, beside=beside)
    return _first_to_end(prepared, job, places, there) if len(places) > 1 else prepared, job


def _first_to_end(
    prepared: Prepared, job: type[Job[Any]], places: Sequence[ChosenDevice], there: Sequence[Found] | None
) -> Prepared:
    """With the backend on which the sweep is predicted to end first."""
    place, choice = chosen(prepared, job, places, there)
    return prepared.model_copy(update={"place": place, "choice": choice})


def load_job(loaded: Loaded, root: str = "", target: Target | None = None) -> tuple[Target, type[Job[Any]]]:
    """The job of a config. ``root``, ``target``: see ``prepare``.

    Raises:
        ConfigError: its target names no job.
    """
    try:
        target = target or resolve(loaded.config.job.target, loaded.folder, root)
        job = load(target)
        check_params(job.Params)
        return target, job
    except TargetError as error:
        document = loaded.document
        raise document.error(document.problem(("job", "target"), str(error), allowed=error.allowed)) from error


def check_params(model: type[BaseModel], prefix: str = "") -> None:
    """Check that a config can hold the parameters of a job, by the names of their fields.

    Args:
        model: of the parameters.
        prefix: of the names in messages.

    Raises:
        TargetError: a parameter is a numpy array, or is known by another name than that of its field.
    """
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    for name, field in model.model_fields.items():
        parts, whose = list(_parts(field.annotation)), f"parameter `{prefix}{name}` of {model.__name__}"
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        if np.ndarray in parts or isinstance(default, np.ndarray):
            raise TargetError(f"{whose} is a numpy array, which a config cannot hold\n  do: {ARRAYS}")
        if (field.alias or field.validation_alias) and not by_name:
            raise TargetError(
                f"{whose} has an alias, and configs and tables know parameters by the names of their fields\n"
                "  do: leave out alias=, or add populate_by_name=True to model_config"
            )
        for part in parts:
            if isinstance(part, type) and issubclass(part, BaseModel) and part is not model:
                check_params(part, f"{prefix}{name}.")


def _parts(annotation: Any) -> Iterator[Any]:
    """The classes that an annotation is made of."""
    origin = get_origin(annotation)
    yield annotation if origin is None else origin
    for part in get_args(annotation):
        yield from _parts(part)


def check_inputs(
    loaded: Loaded, job: type[Job[Any]], trials: Sequence[Trial], inputs: InputFiles, *, local: bool = True
) -> None:
    """Check that the input files of trials exist.

    Args:
        loaded: the config.
        job: its job.
        trials: the trials of the config.
        inputs: where the files lie.
        local: they run on this machine; otherwise absolute paths are not checked.

    Raises:
        ConfigError: files are missing or cannot be read, each with the line that names it.
    """
    problems = {}
    for trial, name, path in named_paths(job, trials):
        where, key = inputs.find(path), (name, path)
        if key in problems or (path.is_absolute() and not local):
            continue
        why = "is not there" if not where.exists() else "" if os.access(where, os.R_OK) else "cannot be read"
        if why:
            hint = f"write the path of a file; relative ones begin in the config's folder, {loaded.folder}"
            problems[key] = loaded.document.problem(_place(loaded, trial, name), f"`{path}` {why}: {where}", hint=hint)
    if problems:
        raise loaded.document.error(*problems.values())


def named_paths(job: type[Job[Any]], trials: Sequence[Trial]) -> Iterator[tuple[Trial, str, Path]]:
    """The paths among the parameters of trials, each with its trial and the dotted name of the parameter."""
    if takes_files(job.Params):
        for trial in trials:
            for name, path in paths_in(job.Params.model_validate(trial.params)):
                yield trial, name, path


def _place(loaded: Loaded, trial: Trial, name: str) -> KeyPath:
    """The key of the config that sets a path."""
    sweep = loaded.config.sweep
    swept = next((key for key in trial.swept if name == key or name.startswith(f"{key}.")), None)
    if swept is None or sweep is None:
        return ("job", "params", *name.split("."))
    if sweep.table is not None:
        return ("sweep", "table", "file")
    if sweep.trials is not None:
        return ("sweep", "trials", sweep.trials.index(trial.swept), swept)
    return ("sweep", "params", swept)
