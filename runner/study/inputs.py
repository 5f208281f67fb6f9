"""The input files of trials (see ``jobs.inputs``): checked before the start.

Their checksums are recorded in the run's provenance, so that a resume detects changes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...jobs.base import Job
from ...jobs.inputs import absolute, paths_in, takes_files
from ..config.model import Loaded
from ..config.yaml_lines import KeyPath
from .provenance import RecordedFile
from .trials import Trial


def check_inputs(loaded: Loaded, job: type[Job[Any]], trials: Sequence[Trial], *, local: bool = True) -> None:
    """Check that the input files of trials exist.

    Args:
        loaded: the config.
        job: its job.
        trials: the trials of the config.
        local: they run on this machine; otherwise absolute paths are not checked.

    Raises:
        ConfigError: files are missing or cannot be read, each with the line that names it.
    """
    problems = {}
    for trial, name, path in _named(job, trials):
        where, key = absolute(path, loaded.folder), (name, path)
        if key in problems or (path.is_absolute() and not local):
            continue
        why = "is not there" if not where.exists() else "" if os.access(where, os.R_OK) else "cannot be read"
        if why:
            hint = f"write the path of a file; relative ones begin in the config's folder, {loaded.folder}"
            problems[key] = loaded.document.problem(_place(loaded, trial, name), f"`{path}` {why}: {where}", hint=hint)
    if problems:
        raise loaded.document.error(*problems.values())


def contents(loaded: Loaded, job: type[Job[Any]], trials: Sequence[Trial]) -> tuple[RecordedFile, ...]:
    """The present checksums of the input files of trials; files on other machines are left out."""
    paths = dict.fromkeys(path for _, _, path in _named(job, trials))
    found = [(path, absolute(path, loaded.folder)) for path in paths]
    return tuple(
        RecordedFile(path=str(path), origin=str(where), sha256=_digest(where).hex()) for path, where in found if where.exists()
    )


def changed(loaded: Loaded, before: Sequence[RecordedFile]) -> list[str]:
    """The files, as the config names them, that do not hold what they did."""
    now = {one.path: absolute(Path(one.path), loaded.folder) for one in before}
    return [one.path for one in before if not now[one.path].exists() or _digest(now[one.path]).hex() != one.sha256]


def _named(job: type[Job[Any]], trials: Sequence[Trial]) -> Iterator[tuple[Trial, str, Path]]:
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
    if sweep.method == "list" and sweep.trials is not None:
        return ("sweep", "trials", sweep.trials.index(trial.swept), swept)
    return ("sweep", "params", swept)


def _digest(path: Path) -> bytes:
    """The SHA-256 of a file, or of the names and contents of all files below a folder."""
    if path.is_dir():
        digest = hashlib.sha256()
        for below in sorted(one for one in path.rglob("*") if one.is_file()):
            digest.update(f"{below.relative_to(path).as_posix()}\0".encode(errors="surrogateescape"))
            digest.update(_digest(below))
        return digest.digest()
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


__all__ = ["changed", "check_inputs", "contents"]
