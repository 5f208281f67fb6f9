"""The config of a sweep from Python: a job's class, and the keys of a config as keywords."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from pydantic import BaseModel

from ...compiler.errors import QdrunError
from ...compiler.runtime.cache import cache_dir
from ...jobs.base import Job
from ..config.written import config_text
from ..study.shipping import home_of
from ..study.target import TargetError, importable
from .cells import SESSION, session_now

FOLDER = "cells"
SECTIONS = ("params", "trials", "method")
"""Keys of `sweep` in a config; a map that has none of them is that of the swept parameters."""


class WrongArgument(QdrunError, TypeError):
    """Arguments of ``submit`` or ``plan`` that do not go together."""


@dataclass(frozen=True)
class ConfigSource:
    """Where ``prepare`` reads a config.

    Attributes:
        path: of the file; of a config without one, what errors call it.
        text: of a config without a file.
        root: where imports of the job begin; empty: as in a config.
        own: the code of the job is in the run folder alone.
    """

    path: Path
    text: str | None = None
    root: str = ""
    own: bool = False


def config_source(config: str | os.PathLike[str] | type[Job[Any]], keys: Mapping[str, Any]) -> ConfigSource:
    """The config of ``submit`` and ``plan``: a file, or a class with the keys of a config.

    Args:
        config: the file, or the class.
        keys: of the config; ``params`` are those of ``job``, and ``sweep`` may be the map of the swept parameters alone. Arrays, ranges
            and the instances of ``Params`` count as plain data. Those that are None are left out.

    Raises:
        WrongArgument: ``config`` is neither, or a file with keys.
        TargetError: workers cannot import the class; says what to do.
    """
    given = {name: value for name, value in keys.items() if value is not None}
    if not isinstance(config, type):
        if not isinstance(config, str | os.PathLike):
            raise WrongArgument(
                f"{config!r:.80} is neither a config nor the class of a job\n  do: give the class itself, or a path"
            )
        if given:
            raise WrongArgument(
                f"{', '.join(given)}: the config {os.fspath(config)} says that itself\n"
                f"  do: overrides=[..], as in overrides=['{next(iter(given))}=..']"
            )
        return ConfigSource(Path(config))
    if not issubclass(config, Job) or inspect.isabstract(config):
        raise WrongArgument(f"{config.__name__} is no job\n  do: derive it from qdrun.jobs.base.Job[Params]")
    target, root, own = _target(config)
    sweep = given.get("sweep")
    if isinstance(sweep, Mapping) and sweep and not any(name in sweep for name in SECTIONS):
        given["sweep"] = {"params": sweep}
    params = given.pop("params", {})
    data = {"version": 1, "name": _words(config.__name__), "job": {"target": target, "params": params}}
    return ConfigSource(Path(f"submit({config.__name__})"), config_text(_plain(data | given)), root, own)


def _target(job: type[Job[Any]]) -> tuple[str, str, bool]:
    """The target of a class, the root of its imports, and whether its file was made for this run.

    Raises:
        TargetError: workers cannot import it.
    """
    name, module = job.__qualname__, job.__module__
    if "." in name:
        raise TargetError(
            f"{job.__name__} is defined inside of `{name.rpartition('.')[0]}`, where workers cannot import it\n"
            "  do: define the class at the top of its file or cell"
        )
    main = sys.modules[SESSION]
    if module == SESSION and getattr(main, "__file__", None) is None and getattr(main, "__spec__", None) is None:
        return f"{_written(name)}:{name}", os.getcwd(), True
    if module == SESSION:
        return importable(f"{SESSION}:{name}"), "", False
    there = sys.modules.get(module)
    if getattr(there, name, None) is not job:
        raise TargetError(
            f"{module} has no such `{name}` any more: it was defined or imported again since\n  do: give the class that it has now"
        )
    home, file = home_of(module), getattr(there, "__file__", None)
    if home is not None and file is not None and (home[0] == home[1] or module.startswith("qdrun_job_")):
        return f"{file}:{name}", "", False  # one file: it travels as text
    return f"{module}:{name}", "" if home is None else str(home[1]), False


def _written(name: str) -> Path:
    """A file with a class of the session and what it uses. Its content goes into the run's folder, from which the run can be repeated."""
    text = session_now().module(name)
    folder = cache_dir() / FOLDER / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{_words(name)}.py"
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path


def _words(name: str) -> str:
    """``MassSpring`` as ``mass_spring``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _plain(value: Any) -> Any:
    """What a config can hold; other values are left to its model to refuse."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, PurePath) else value


__all__ = ["ConfigSource", "WrongArgument", "config_source"]
