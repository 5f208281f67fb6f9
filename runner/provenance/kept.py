"""Runs from the folder of an earlier one alone: its sources and inputs are laid out on this machine, and compared with their checksums."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...compiler.runtime.cache import cache_dir
from ..jobcode import store
from ..jobcode.modules import ENTRY, JobCode, Module
from ..jobcode.store import NotKept, written
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from ..study.target import input_files
from .inputs import INPUTS, RecordedFile, digest
from .record import SOURCE, Provenance, own_digest, packages, provenance_of

OPTIONS = "QD_"
"""Environment variables that change what kernels compute begin so."""
SHOWN = 8


@dataclass(frozen=True)
class KeptCode:
    """The code and the inputs of a run, on this machine.

    Attributes:
        provenance: of the run.
        code: of the job.
        label: what rows say of that code, see ``jobcode.store.Versions``.
        copies: of inputs, see ``InputFiles``.
    """

    provenance: Provenance
    code: JobCode
    label: str
    copies: Mapping[str, str]


def kept(folder: RunFolder, label: str | None = None) -> KeptCode:
    """The code and the inputs that a run folder keeps.

    ``label``: of a version of the code, as the rows have it; None: the current one.

    Raises:
        NotKept: the folder keeps none, lacks some, or has others than those of its run.
    """
    found = provenance_of(folder.files)
    if found is None:
        raise NotKept(
            f"{folder.uri} has no provenance.json, or a damaged one: it does not say what was run\n"
            f"  do: `qdrun resume {folder.uri}` runs trials that have no row, from the job's present file"
        )
    place = cache_dir() / "kept" / f"{folder.name}-{hashlib.sha256(found.model_dump_json().encode()).hexdigest()[:16]}"
    code, said = kept_code(folder, found, label)
    copies = {one.path: _input(folder, one, place) for one in found.inputs}
    with suppress(FileNotFoundError):
        os.utime(place)  # the last use, see ``upkeep.caches``
    return KeptCode(found, code, said, copies)


def kept_code(folder: RunFolder, found: Provenance, label: str | None = None) -> tuple[JobCode, str]:
    """The code of a run, and its label. ``label``: see ``kept``.

    Raises:
        NotKept: the folder lacks it.
    """
    known = store.versions(folder.files)
    if not known.all:
        return _listed(folder, found), ""
    digest = next((one for one in known.all if known.label(one) == label), known.current if label is None else "")
    if not digest:
        raise NotKept(
            f"{folder.uri} has no code `{label}`; it has {', '.join(known.label(one) or 'the first' for one in known.all)}\n"
            "  do: give one of these"
        )
    return store.read(folder.files, digest), known.label(digest)


def _listed(folder: RunFolder, found: Provenance) -> JobCode:
    """The code of a run that was made before its modules were listed by their names: they are those of the paths."""
    where = found.target.rpartition(":")[0]
    if where.endswith(".py") and not any(one.origin == where for one in found.sources):
        raise NotKept(
            f"{folder.uri} keeps no copy of the job's file {where}: {'; '.join(found.notes)}\n  do: submit the file again"
        )
    modules = []
    for one in found.sources:
        data = _checked(folder, f"{SOURCE}/{one.path}", one)
        parts = one.path.removesuffix(".py").split("/")
        package = parts[-1] == "__init__"
        name = ENTRY + one.sha256[:16] if one.origin == where else ".".join(parts[:-1] if package else parts)
        modules.append(Module(name, one.path, one.origin, data, package))
    known = {one.name for one in modules}
    above = {name.rpartition(".")[0] for name in known if "." in name} - known
    return JobCode.of(found.root, modules, {name: [os.path.join(found.root, *name.split("."))] for name in above})


def _checked(folder: RunFolder, path: str, one: RecordedFile) -> bytes:
    try:
        data = folder.files.read(path)
    except FileNotFoundError:
        data = b""
    if hashlib.sha256(data).hexdigest() != one.sha256:
        raise NotKept(
            f"{folder.uri}/{path} is not as it was written\n  do: put {one.origin} there, as it was when the run was made"
        )
    return data


def _input(folder: RunFolder, one: RecordedFile, place: Path) -> str:
    """The path of an input on this machine: its copy, or, where it was too large for one, where it was."""
    if not one.kept:
        with suppress(OSError):
            if digest(input_files({}).find(one.origin)).hex() == one.sha256:
                return one.origin
        raise NotKept(
            f"the run has read {one.path}, which was too large to be copied, and {one.origin} is not, or no more, what it was\n"
            "  do: put it there again"
        )
    here = Path(os.path.abspath(folder.uri), one.kept) if isinstance(folder.files, LocalFiles) else place / one.kept
    if not isinstance(folder.files, LocalFiles):
        for path in folder.files.below(f"{INPUTS}/{one.kept.split('/')[1]}"):
            written(place / path, folder.files.read(path))
    with suppress(OSError):
        if digest(here).hex() == one.sha256:
            return str(here)
    raise NotKept(f"{folder.uri}/{one.kept} is not as it was written\n  do: put {one.origin} there, as the run has read it")


@contextmanager
def options_as_then(then: Provenance) -> Iterator[None]:
    """Environment variables that change what kernels compute are as they were when the run was made."""
    before = {name: os.environ[name] for name in os.environ if name.startswith(OPTIONS)}
    now = {name: value for name, value in then.variables.items() if name.startswith(OPTIONS)}
    for name in before:
        del os.environ[name]
    os.environ.update(now)
    try:
        yield
    finally:
        for name in now:
            os.environ.pop(name, None)
        os.environ.update(before)


def differences(then: Provenance) -> list[str]:
    """What is other here than where the run was made, as text: this package, Python, other packages that the run had."""
    now, found = packages(), list[str]()
    if then.qdrun and then.qdrun != own_digest():
        found.append("the source files of qdrun")
    if then.python != (version := sys.version.split()[0]):
        found.append(f"Python {then.python} -> {version}")
    other = {name: now.get(name, "none") for name, version in then.packages.items() if now.get(name) != version}
    first = sorted(other, key=lambda name: (name not in DECISIVE, name))
    found += [f"{name} {then.packages[name]} -> {other[name]}" for name in first[:SHOWN]]
    return found + ([f"{len(other) - SHOWN} other packages"] if len(other) > SHOWN else [])


DECISIVE = ("numpy", "llvmlite", "ray", "scipy", "torch")
"""Packages whose version may change numbers; they are named first."""


__all__ = ["KeptCode", "NotKept", "differences", "kept", "kept_code", "options_as_then"]
