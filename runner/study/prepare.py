"""From a config to a sweep that can be planned: its job, its backend and its trials are found and checked. Nothing is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...jobs.base import Job
from ..config.model import Loaded, load_config
from ..ledger.inventory import Found
from .backend_choice import chosen
from .devices import AUTO, ChosenDevice, places_of_auto, places_of_cluster, require_device
from .inputs import check_inputs
from .plan import Prepared
from .target import Target, TargetError, load, resolve
from .trials import check_optimize, make_trials, wanted_gradients


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
    place = require_device(loaded, local=local, backend=backend) if elsewhere is None else ChosenDevice("cpu")
    gradients = wanted_gradients(loaded, job)
    trials = make_trials(loaded, job)
    check_inputs(loaded, job, trials, local=local)
    check_optimize(loaded, job, gradients, trials)
    there, places = None, places_of_auto(loaded, local=local) if backend is None else []
    if elsewhere is not None:  # last: it takes seconds
        there = elsewhere(loaded)
        places = places_of_cluster(loaded, there)
        place = places[0]
    prepared = Prepared(loaded=loaded, target=target, place=place, gradients=gradients, trials=trials)
    return _first_to_end(prepared, job, places, there) if len(places) > 1 else prepared, job


def _first_to_end(
    prepared: Prepared, job: type[Job[Any]], places: Sequence[ChosenDevice], there: Sequence[Found] | None
) -> Prepared:
    """With the backend on which the sweep is predicted to end first."""
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
