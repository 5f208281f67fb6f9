"""Records the provenance of a run in its folder: source files, inputs, git state, package versions and the command line.

``provenance.json`` describes the run, ``source/`` holds the job's file and the modules that it imports, which workers import from there
(``jobcode.store``), ``inputs/`` the files that its parameters name, and ``source.diff`` the uncommitted changes. ``kept.py`` reads all of
it to run trials again. A resume compares the checksums of the files that trials read.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...jobs.base import Job
from ..jobcode import store
from ..jobcode.modules import ImportKind, JobCode
from ..jobcode.store import SOURCE
from ..store.files import Files
from ..study.plan import Prepared
from ..study.target import Target, code_of
from .inputs import RecordedFile, contents, keep, recorded

FILE, DIFF = "provenance.json", "source.diff"
DIFF_BYTES, GIT_S = 4 << 20, 5.0
_VARIABLES = ("QD_", "QDRUN_", "OMP_NUM_THREADS")
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


class GitState(BaseModel):
    """The repository that holds the job's file. ``dirty``: it has changes that are not committed, see ``source.diff``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: str
    commit: str
    branch: str
    dirty: bool


class Provenance(BaseModel):
    """The provenance of a run.

    Attributes:
        command: the command line.
        directory: the working directory.
        python, platform: versions.
        packages: versions of the installed packages by name.
        qdrun: SHA-256 of the source files of this package, whose version says less while it is developed.
        variables: environment variables that influence the run; none with a token, key or password in its name.
        target: of the job.
        root: the folder in which imports of the job began; paths of ``sources`` are relative to it.
        sources: the copied files, without those that may only be imported by a computed name.
        code: the digest of all of them, see ``jobcode``.
        inputs: the files that the parameters of trials name, and those that jobs were built from.
        git: None: the job's file is in no repository, or git cannot be run.
        notes: what could not be kept, and why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: tuple[str, ...]
    directory: str
    python: str
    platform: str
    packages: dict[str, str]
    qdrun: str = ""
    variables: dict[str, str]
    target: str
    root: str = ""
    sources: tuple[RecordedFile, ...] = ()
    code: str = ""
    inputs: tuple[RecordedFile, ...] = ()
    git: GitState | None = None
    notes: tuple[str, ...] = ()


def record(files: Files, prepared: Prepared, job: type[Job[Any]], more: Mapping[str, bytes] = {}) -> None:
    """Write the provenance of a new run into its folder. Durable: workers import the code from there, whatever happens to this machine.

    ``more``: further files of the run, by path.

    Raises:
        StorageFull: no room.
    """
    inputs, notes = keep(files, prepared.inputs, contents(prepared, job))
    for path, data in (files_of(prepared.target, inputs, notes) | dict(more)).items():
        files.put(path, data)


def record_data(files: Files, prepared: Prepared, names: Iterable[str]) -> None:
    """Add the files that a job was built from (``Job.data``), and the modules that it has imported by computed names, to the provenance
    of its run. They are known once it is planned.

    Raises:
        InputMissing: one of them has disappeared meanwhile.
        StorageFull: no room.
    """
    made = provenance_of(files)
    known = set() if made is None else {one.path for one in made.inputs}
    found = recorded(prepared.inputs, [name for name in dict.fromkeys(names) if name not in known])
    if made is None:
        return
    code = code_of(prepared.target, files.root)
    sources = _sources(code) if made.code == code.digest else made.sources
    if len(sources) > len(made.sources):
        store.save(files, code)
    elif not found:
        return
    kept, notes = keep(files, prepared.inputs, found, made.inputs)
    made = made.model_copy(update={"sources": sources, "inputs": (*made.inputs, *kept), "notes": (*made.notes, *notes)})
    files.put(FILE, _document(made), durable=False)


def provenance_of(files: Files) -> Provenance | None:
    """The provenance of a run; None where it was not written down, or is damaged."""
    try:
        return Provenance.model_validate_json(files.read(FILE))
    except (FileNotFoundError, ValueError):
        return None


def inputs_of(files: Files) -> tuple[RecordedFile, ...]:
    """The files that the trials of a run read, as they were when it was made; none where that is not known."""
    found = provenance_of(files)
    return found.inputs if found is not None else ()


def files_of(target: Target, inputs: Sequence[RecordedFile] = (), notes: Sequence[str] = ()) -> dict[str, bytes]:
    """The files that describe where a run comes from, by their paths in the run folder.

    Args:
        target: of the job.
        inputs: see ``Provenance``.
        notes: see ``Provenance``.
    """
    code = code_of(target)
    notes, out = [*notes, *code.notes], store.documents(code)
    root = Path(target.import_root or os.getcwd())
    git = _git_state(Path(target.file).parent if target.file else root, notes, out)
    made = Provenance(
        command=tuple(sys.argv),
        directory=os.getcwd(),
        python=sys.version.split()[0],
        platform=platform.platform(),
        packages=packages(),
        qdrun=own_digest(),
        variables={name: value for name, value in sorted(os.environ.items()) if _told(name)},
        target=target.text,
        root=str(root),
        sources=_sources(code),
        code=code.digest,
        inputs=tuple(inputs),
        git=git,
        notes=tuple(notes),
    )
    return {FILE: _document(made), **out}


def _document(made: Provenance) -> bytes:
    return json.dumps(made.model_dump(), indent=1).encode()


def packages() -> dict[str, str]:
    """Versions by name, from the names of the folders that installers leave: reading each package's metadata takes a second."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                name, dash, version = entry.removesuffix(".dist-info").partition("-")
                if dash and entry.endswith(".dist-info"):
                    found.setdefault(name.replace("_", "-"), version)
    return dict(sorted(found.items()))


def _told(name: str) -> bool:
    return (name.startswith(_VARIABLES) or name.endswith("_VISIBLE_DEVICES")) and not any(
        word in name.upper() for word in _SECRET
    )


@cache
def own_digest() -> str:
    """SHA-256 of the source files of this package. Takes a twentieth of a second."""
    found, package = hashlib.sha256(), Path(__file__).resolve().parents[2]
    for folder in ("compiler", "library", "jobs", "runner"):
        for path in sorted((package / folder).rglob("*.py")):
            found.update(f"{path.relative_to(package).as_posix()}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def _sources(code: JobCode) -> tuple[RecordedFile, ...]:
    rows = {one.path: one for one in list(code.modules.values()) if one.found is not ImportKind.spare}
    return tuple(RecordedFile(path=path, origin=one.origin, sha256=one.sha256) for path, one in rows.items())


def _git_state(folder: Path, notes: list[str], out: dict[str, bytes]) -> GitState | None:
    """The state of the repository around a folder; its uncommitted changes go to ``out``."""
    status = _git(folder, "status", "--porcelain=v2", "--branch")
    found = _git(folder, "rev-parse", "--show-toplevel") if status is not None else None
    if status is None or found is None:
        notes.append("no git state: the job's file is in no repository, or git cannot be run")
        return None
    lines = status.decode(errors="replace").splitlines()
    said = dict(line.removeprefix("# branch.").split(" ", 1) for line in lines if line.startswith("# branch."))
    dirty = any(not line.startswith("#") for line in lines)
    if dirty and (changes := _git(folder, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")):
        if len(changes) > DIFF_BYTES:
            notes.append(f"{DIFF} is cut off after {DIFF_BYTES >> 20} MiB")
        out[DIFF] = changes[:DIFF_BYTES]
    root = found.decode(errors="replace").strip()
    return GitState(root=root, commit=said.get("oid", ""), branch=said.get("head", ""), dirty=dirty)


def _git(folder: Path, *words: str) -> bytes | None:
    """The output of git, None if it fails. Hooks, pagers and filters are off, so that a foreign repository cannot run commands."""
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "diff.external="]
    quiet: Mapping[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(["git", *safe, "-C", str(folder), *words], timeout=GIT_S, env=environment, check=False, **quiet)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


__all__ = [
    "DIFF",
    "FILE",
    "SOURCE",
    "GitState",
    "Provenance",
    "files_of",
    "inputs_of",
    "own_digest",
    "packages",
    "provenance_of",
    "record",
    "record_data",
]
