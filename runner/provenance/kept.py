"""Runs from the folder of an earlier one alone: its sources and inputs are laid out on this machine, and compared with their checksums."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...compiler.errors import QdrunError
from ...compiler.runtime.cache import cache_dir
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from ..study.input_files import input_files
from .inputs import INPUTS, RecordedFile, digest
from .record import SOURCE, Provenance, own_digest, packages, provenance_of

OPTIONS = "QD_"
"""Environment variables that change what kernels compute begin so."""
SHOWN = 8


class NotKept(QdrunError, LookupError):
    """A run folder has not what it takes to run it again."""


@dataclass(frozen=True)
class Kept:
    """The code and the inputs of a run, on this machine.

    Attributes:
        provenance: of the run.
        root: the folder in which imports begin.
        target: of the job, as a config names it.
        copies: of inputs, see ``InputFiles``.
    """

    provenance: Provenance
    root: Path
    target: str
    copies: Mapping[str, str]


def kept(folder: RunFolder) -> Kept:
    """The code and the inputs that a run folder keeps. Sources are copied to the user's cache, as Python writes beside modules.

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
    root = place / SOURCE
    for one in found.sources:
        data = _checked(folder, f"{SOURCE}/{one.path}", one)
        _written(root / one.path, data)
    with suppress(FileNotFoundError):
        os.utime(place)  # the last use, see ``upkeep.caches``
    return Kept(found, root, _target(folder, found, root), {one.path: _input(folder, one, place) for one in found.inputs})


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


def _written(path: Path, data: bytes) -> None:
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    os.replace(partial, path)


def _target(folder: RunFolder, found: Provenance, root: Path) -> str:
    """The target of the kept copy. A module that was installed, and so has none, is that of this machine."""
    where, _, name = found.target.rpartition(":")
    if not where.endswith(".py"):
        return found.target
    path = next((one.path for one in found.sources if one.origin == where), None)
    if path is None:
        raise NotKept(
            f"{folder.uri} keeps no copy of the job's file {where}: {'; '.join(found.notes)}\n  do: submit the file again"
        )
    return f"{root / path}:{name}"


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
            _written(place / path, folder.files.read(path))
    with suppress(OSError):
        if digest(here).hex() == one.sha256:
            return str(here)
    raise NotKept(f"{folder.uri}/{one.kept} is not as it was written\n  do: put {one.origin} there, as the run has read it")


def check_imports(kept: Kept) -> None:
    """Check that Python finds the kept copy of each module of the job, and no other.

    Raises:
        NotKept: an import finds another file with other content.
    """
    for one in kept.provenance.sources:
        name = one.path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        if kept.target.startswith(str(kept.root / one.path)) or not all(part.isidentifier() for part in name.split(".")):
            continue
        module = sys.modules.get(name)
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name) if module is None else module.__spec__
            origin = None if spec is None else spec.origin
            if origin is None or _same(Path(origin), one.sha256):
                continue
            raise NotKept(
                f"`import {name}` finds {origin}, which is not what the run has imported: {one.origin}, kept as {kept.root / one.path}\n"
                "  do: run the command in another folder, without PYTHONPATH, or in another environment"
            )


def _same(path: Path, sha256: str) -> bool:
    """Whether a file has that content; not, where it is gone."""
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    return False


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


__all__ = ["Kept", "NotKept", "check_imports", "differences", "kept", "options_as_then"]
