"""The code of a run in its folder, and on the machine of a process that runs it.

``code/<digest>.json`` lists the modules of a version of the code, whose files are in ``source/``, or, of a later version, in
``code/<digest>/``. ``code.json`` names the versions. A process reads all of it and compares checksums. Extension modules, and stubs
for the processes that a job starts, are laid out in the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ...compiler.errors import QdrunError
from ...compiler.runtime.cache import cache_dir
from ..store.files import Files
from .imports import IMPORTS, exclusive
from .live import live_of
from .modules import ENTRY, SOURCE, STUBS, ImportKind, JobCode, Module

CODE, VERSIONS = "code", "code.json"
USED = f"{CODE}/used"
"""Has a file for each module that was imported by a computed name."""
KEPT = "kept"
"""As the home of a job: files beside its modules are those of the kept copy."""
STUB = """from qdrun.runner.jobcode.store import become
become(__name__, {place!r})
"""
"""A module of a job for the processes that it starts: Python gives them the path of this one, and nothing else."""


class NotKept(QdrunError, LookupError):
    """A run folder has not what it takes to run it again."""


@dataclass(frozen=True)
class Versions:
    """The versions of a run's code by their digests: all of them, the first one first, and the one that the run uses now."""

    all: tuple[str, ...] = ()
    current: str = ""

    def label(self, digest: str) -> str:
        """What rows say of a version: nothing of the first one."""
        return "" if digest in self.all[:1] else digest[:12]


def versions(files: Files) -> Versions:
    """The versions of a run's code; none of a run that an older qdrun has made.

    Raises:
        NotKept: the folder has several, and does not say any more which one is in use.
    """
    try:
        said = json.loads(files.read(VERSIONS))
        return Versions(tuple(map(str, said["versions"])), str(said["current"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        found = [name.removesuffix(".json") for name in files.names(CODE) if name.endswith(".json")]
        if len(found) > 1:
            raise NotKept(
                f"{files.root.rstrip('/')}/{VERSIONS} is not there, or damaged: it says which of {len(found)} versions of its "
                "code the run uses\n  do: submit it again"
            ) from error
        return Versions((found[0],), found[0]) if found else Versions()


def documents(code: JobCode, known: Versions = Versions()) -> dict[str, bytes]:
    """The files of a run folder that keep code, as its current version, by their paths."""
    made = known.all if code.digest in known.all else (*known.all, code.digest)
    folder = SOURCE if code.digest == made[0] else f"{CODE}/{code.digest}"
    out = {f"{folder}/{one.path}": one.data for one in list(code.modules.values())}
    said = json.loads(code.document()) | {"folder": folder, "live": live_of(code)}
    out[f"{CODE}/{code.digest}.json"] = json.dumps(said, indent=1).encode()
    return out | {VERSIONS: json.dumps({"versions": list(made), "current": code.digest}).encode()}


def save(files: Files, code: JobCode) -> None:
    """Write code into the folder of a run, as its current version.

    Raises:
        StorageFull: no room.
    """
    for path, data in documents(code, versions(files)).items():
        files.put(path, data)


def read(files: Files, digest: str) -> JobCode:
    """A version of the code of a run, as its folder has it.

    Raises:
        NotKept: a file is not there, or not as it was written.
    """
    where = f"{files.root.rstrip('/')}/{CODE}/{digest}.json"
    try:
        said = json.loads(files.read(f"{CODE}/{digest}.json"))
        rows, folder = list(said["modules"]), str(said["folder"])
        found = {path: _checked(files, folder, row) for row in rows if (path := str(row["path"]))}
        return _code_of(said, found)
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise NotKept(f"{where} is not there, or damaged: it says which code the run has\n  do: submit it again") from error


def _code_of(said: dict[str, Any], found: dict[str, bytes]) -> JobCode:
    modules = [
        Module(row["name"], row["path"], row["origin"], found[row["path"]], bool(row["package"]), ImportKind(row["found"]))
        for row in said["modules"]
    ]
    made = JobCode.of(str(said["root"]), modules, {name: list(places) for name, places in said["namespaces"].items()})
    made.live = said.get("live") or {}
    made.digest = str(said["digest"])  # modules that were imported while the job was planned are no part of it
    return made


def _checked(files: Files, folder: str, row: dict[str, Any]) -> bytes:
    path = f"{folder}/{row['path']}"
    try:
        data = files.read(path)
    except FileNotFoundError:
        data = b""
    if hashlib.sha256(data).hexdigest() != row["sha256"]:
        raise NotKept(
            f"{files.root.rstrip('/')}/{path} is not as it was written\n"
            f"  do: put {row['origin']} there, as it was when the run was made"
        )
    return data


# ---- on this machine
def lay_out(code: JobCode, home: str = "") -> Path:
    """Write code to the user's cache, where Python finds its extension modules, and the processes of a job its modules; that folder.

    ``home``: see ``load_from``, or ``KEPT``. Without a cache it is a folder of this process.
    """
    key = hashlib.sha256(f"{code.digest}\0{home}".encode()).hexdigest()[:32]
    try:
        place = cache_dir() / "kept" / f"code-{key}"
        _lay_out(code, home, place)
        os.utime(place)  # the last use, see ``upkeep.caches``
    except (OSError, RuntimeError):  # read-only, full, or no home folder
        place = Path(tempfile.mkdtemp(prefix="qdrun-code-"))
        _lay_out(code, home, place)
    return place


def _lay_out(code: JobCode, home: str, place: Path) -> None:
    modules = list(code.modules.values())
    for one in modules:
        written(place / SOURCE / one.path, one.data)
    said = json.loads(code.document()) | {"home": home}
    written(place / VERSIONS, json.dumps(said).encode())
    for top in {name.partition(".")[0] for name in (*code.modules, *code.namespaces)}:
        written(place / STUBS / f"{top}.py", STUB.format(place=str(place)).encode())


def written(path: Path, data: bytes) -> None:
    """Write a file as a whole, unless it is there."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    os.replace(partial, path)


def home_of(home: str, place: Path) -> str:
    """The folder in which files beside modules are found, of what ``lay_out`` is told."""
    return str(place / SOURCE) if home == KEPT else os.path.abspath(home) if home else ""


def become(name: str, place: str) -> None:
    """Put a job's module into the place of the stub that is being imported, in a process that a job has started."""
    with exclusive():
        del sys.modules[name]
        imported(name, place)


def imported(name: str, place: str) -> ModuleType:
    """Import a module from code that ``lay_out`` has written."""
    folder = Path(place)
    said = json.loads((folder / VERSIONS).read_bytes())
    IMPORTS.sole = True
    with exclusive():
        if IMPORTS.code is None or IMPORTS.code.digest != said["digest"]:
            found = {row["path"]: (folder / SOURCE / row["path"]).read_bytes() for row in said["modules"]}
            home = home_of(said["home"], folder)
            IMPORTS.activate(_code_of(said, found), frozen=True, home=home, place=place)
        return importlib.import_module(name)


__all__ = [
    "CODE",
    "ENTRY",
    "KEPT",
    "SOURCE",
    "USED",
    "VERSIONS",
    "NotKept",
    "Versions",
    "documents",
    "home_of",
    "imported",
    "lay_out",
    "read",
    "save",
    "versions",
    "written",
]
