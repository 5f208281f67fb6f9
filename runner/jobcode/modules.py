"""The modules of a job as data: their names, where they were, and their bytes. A set of them has a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import ModuleType
from typing import Any

ENTRY = "qdrun_job_"
"""The module of a job's file is called so, followed by a digest of its path and its source."""
SOURCE, STUBS = "source", "imports"
"""The folder of the modules, in a run and where its code is laid out; and that of their stubs."""
ELSEWHERE = "elsewhere"
"""The folder, among kept sources, of modules that lie outside the root of imports."""


class ImportKind(StrEnum):
    """How a module was found: it is ``named`` by an import statement, was ``imported`` while the job was planned, or may be imported by
    a name that is computed (``spare``).
    """

    named = "named"
    imported = "imported"
    spare = "spare"


@dataclass(frozen=True)
class Module:
    """A file of the job.

    Attributes:
        name: by which it is imported; ``qdrun_job_<digest>`` for the job's own file.
        path: below the kept sources.
        origin: the user's path, which errors name.
        data: its bytes: source, or machine code of an extension module.
        package: it is an ``__init__``.
        found: see ``ImportKind``.
    """

    name: str
    path: str
    origin: str
    data: bytes
    package: bool = False
    found: ImportKind = ImportKind.named

    @property
    def sha256(self) -> str:
        """The checksum of its bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def is_source(self) -> bool:
        """Whether it is text; an extension module, or one without its source, is loaded by Python from a file."""
        return self.path.endswith(".py")

    def about(self) -> dict[str, Any]:
        """As plain data, without its bytes."""
        said = {"name": self.name, "path": self.path, "origin": self.origin, "sha256": self.sha256}
        return said | {"package": self.package, "found": self.found.value}


@dataclass
class JobCode:
    """All modules of a job that are not installed.

    Attributes:
        root: the folder in which imports begin.
        modules: by name. It may grow while the job is planned: modules that are imported then are added as ``ImportKind.imported``.
        namespaces: folders of packages without an ``__init__``, by name.
        notes: what a user should know of it.
        digest: of the modules that were found before anything was imported; the name of this version of the code.
        installed: the names of installed packages that it imports.
        live: of kept code, checksums of what it used and the run does not keep, see ``live``.
        loaded: what was imported of it in this process, while it is not the code that the process imports from.
        aside: modules of it whose names the user's program uses for its own.
    """

    root: str
    modules: dict[str, Module] = field(default_factory=dict)
    namespaces: dict[str, list[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    digest: str = ""
    installed: frozenset[str] = field(default=frozenset(), compare=False)
    live: dict[str, dict[str, str]] = field(default_factory=dict, compare=False)
    loaded: dict[str, ModuleType] = field(default_factory=dict, repr=False, compare=False)
    aside: dict[str, ModuleType] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, root: str, modules: Iterable[Module], namespaces: Mapping[str, list[str]] = {}, notes: Iterable[str] = ()
    ) -> JobCode:
        """The code of these modules."""
        made = {one.name: one for one in modules}
        text = "\n".join(f"{name}\0{one.path}\0{one.sha256}" for name, one in sorted(made.items()))
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]
        return cls(root, made, dict(namespaces), tuple(notes), digest)

    def add(self, module: Module) -> None:
        """Add a module that was imported while the job is planned."""
        self.modules.setdefault(module.name, module)

    def document(self) -> bytes:
        """The list of its modules, without their bytes."""
        modules = [one.about() for _, one in sorted(list(self.modules.items()))]
        said = {"digest": self.digest, "root": self.root, "namespaces": self.namespaces, "modules": modules}
        return json.dumps(said, indent=1).encode()


def changes(then: JobCode, now: JobCode) -> list[str]:
    """How the named modules of a job differ, as text: edited, removed, added."""
    before, after = (
        {_called(one): one for one in code.modules.values() if one.found is ImportKind.named} for code in (then, now)
    )
    known = {_called(one): one for one in then.modules.values()}
    out = []
    for name, one in sorted(before.items()):
        if name not in after:
            out.append(f"{one.origin} is gone, or not imported any more")
        elif after[name].sha256 != one.sha256:
            moved = "" if after[name].origin == one.origin else f" (now {after[name].origin})"
            out.append(f"{one.origin} was edited{moved}")
    for name, one in sorted(after.items()):
        if name not in before and (name not in known or known[name].sha256 != one.sha256):
            out.append(f"{one.origin} was added")
    return out


def _called(module: Module) -> str:
    """The name under which two versions of a module are the same one; that of a job's own file depends on its text."""
    return ENTRY if module.name.startswith(ENTRY) else module.name


__all__ = ["ELSEWHERE", "ENTRY", "SOURCE", "STUBS", "ImportKind", "JobCode", "Module", "changes"]
