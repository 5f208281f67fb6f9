"""Finds the files that a job consists of, from its ``import`` statements; nothing is imported.

Every module that is not installed counts, wherever it lies: beside the job, on ``PYTHONPATH``, in an editable package. Where some file
imports modules by computed names, the other Python files of the job's folder and of its packages are taken, too.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from ...compiler.errors import QdrunError
from .modules import ELSEWHERE, ImportKind, JobCode, Module
from .places import OURS, find, is_installed, is_users, suffix_of

CODE_BYTES = 64 << 20
"""All files of a job together."""
SPARE_BYTES, SPARE_FILES, MOST_SEEN = 4 << 20, 500, 5000
COMPUTES = re.compile(
    rb"\b(import_module|__import__|exec|eval|runpy|pkgutil|ImportString|find_loader|load_module|entry_points|resolve_name)\b"
)
"""Words of a file that may import modules by computed names."""
NOT_LISTED = frozenset({*sys.stdlib_module_names, OURS})
"""Python's own modules, and this package, whose versions a run knows otherwise."""
NEVER = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})


class TooMuchCode(QdrunError):
    """A job has more code than a run can keep."""


def gather(
    root: str, file: str | None = None, source: str | None = None, module: str | None = None, entry: str = ""
) -> JobCode:
    """The code of a job as it is on disk now.

    Args:
        root: the folder in which its imports begin.
        file: its own one.
        source: the text of that.
        module: of a job without one.
        entry: the name of the module that its file becomes.

    Raises:
        TooMuchCode: its files are larger than ``CODE_BYTES``.
    """
    return _Gather(root).run(file, source, module, entry)


class _Gather:
    def __init__(self, root: str) -> None:
        self.root, self.modules, self.notes = root, dict[str, Module](), dict[str, str]()
        self.namespaces: dict[str, list[str]] = {}
        self.installed: set[str] = set()
        self._specs: dict[str, ModuleSpec | None] = {}
        self._waiting: list[tuple[Module, ImportKind]] = []
        self._paths: dict[str, str] = {}
        self._bytes = 0

    def run(self, file: str | None, source: str | None, module: str | None, entry: str) -> JobCode:
        if file is not None and source is not None:
            data = source.encode()
            self._take(Module(entry, self._path(entry, file), file, data), ImportKind.named)
        elif module is not None:
            self._named(module, ImportKind.named)
        self._follow()
        if any(COMPUTES.search(one.data) for one in self.modules.values() if one.is_source):
            for name in self._spares():
                self._named(name, ImportKind.spare)
            self._follow()
        if file is not None:
            self._under_its_own_name(entry, file)
        made = JobCode.of(self.root, self.modules.values(), self.namespaces, self.notes.values())
        made.installed = frozenset(self.installed)
        return made

    def _under_its_own_name(self, entry: str, file: str) -> None:
        """A job's file may be imported by others under its natural name, then as a module of its own, as in Python."""
        name, one = Path(file).stem, self.modules[entry]
        spec = self._spec(name) if name.isidentifier() else None
        if name not in self.modules and spec is not None and spec.origin == file:
            self.modules[name] = Module(name, one.path, file, one.data, found=ImportKind.spare)

    # ---- from names to modules
    def _follow(self) -> None:
        while self._waiting:
            one, found = self._waiting.pop()
            for name in _names(one):
                self._named(name, found)

    def _named(self, name: str, found: ImportKind) -> None:
        """Take a module that is named, and the packages that it is in."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            above = ".".join(parts[:count])
            spec = self._spec(above)
            if spec is None or not is_users(spec):
                if count == 1 and spec is not None and spec.has_location and spec.origin and above not in NOT_LISTED:
                    self.installed.add(above)
                return
            known = self.modules.get(above)
            if known is not None:
                if known.found is ImportKind.spare and found is ImportKind.named:
                    self._take(Module(above, known.path, known.origin, known.data, known.package), found, again=True)
                continue
            if spec.origin is None or spec.loader is None:
                self.namespaces[above] = list(spec.submodule_search_locations or ())
                continue
            data = _read(spec.origin)
            if data is not None:
                package = spec.submodule_search_locations is not None
                path = self._path(above, spec.origin)
                self._take(Module(above, path, spec.origin, data, package, found), found)

    def _take(self, one: Module, found: ImportKind, *, again: bool = False) -> None:
        self._bytes += 0 if again else len(one.data)
        if self._bytes > CODE_BYTES:
            raise TooMuchCode(
                f"the job imports more than {CODE_BYTES >> 20} MiB of files that are not installed; {one.origin} is beyond that\n"
                "  do: install what is large as a package (`pip install`, not editable)"
            )
        self.modules[one.name] = one
        if one.is_source:
            self._waiting.append((one, found))

    def _spec(self, name: str) -> ModuleSpec | None:
        if name not in self._specs:
            above = name.rpartition(".")[0]
            package = self._spec(above) if above else None
            try:
                if above and (package is None or package.submodule_search_locations is None):
                    found = None
                else:
                    found = find(name, self.root, list(package.submodule_search_locations or ()) if package else None)
            except (ImportError, ValueError, AttributeError, KeyError):
                found = None
            self._specs[name] = found
            if not above and (found is None or not is_users(found)):
                self._note_hidden(name, found)
        return self._specs[name]

    def _note_hidden(self, name: str, found: ModuleSpec | None) -> None:
        """Say that a file beside the job is not the module that its ``import`` finds."""
        beside = [os.path.join(self.root, f"{name}.py"), os.path.join(self.root, name, "__init__.py")]
        mine = next((path for path in beside if os.path.isfile(path)), None)
        if mine is None or found is None or (found.origin and os.path.realpath(found.origin) == os.path.realpath(mine)):
            return
        where = found.origin if found.has_location else "Python's own module"
        self.notes[name] = (
            f"`import {name}` finds the installed {where}, not {mine} beside the job\n"
            f"  do: give that file another name, if the job means it"
        )

    def _path(self, name: str, origin: str) -> str:
        """The place of a file among kept sources: as below the root."""
        inside = bool(self.root) and origin.startswith(os.path.join(self.root, ""))
        path = Path(origin).relative_to(self.root).as_posix() if inside else ""
        if not path and name and not self.modules:
            path = Path(origin).name  # the job's own file
        if not path or self._paths.setdefault(path, origin) != origin:
            tail = "/__init__" if Path(origin).name.startswith("__init__.") else ""
            path = f"{ELSEWHERE}/{name.replace('.', '/')}{tail}{suffix_of(origin)}"
        self._paths[path] = origin
        return path

    # ---- modules that may be imported by computed names
    def _spares(self) -> Iterator[str]:
        tops = {name.partition(".")[0] for name in (*self.modules, *self.namespaces)}
        homes: dict[str, str] = {self.root: ""} if _is_folder_of_job(self.root) else {}
        for top in sorted(tops):
            spec = self._spec(top)
            for place in (spec.submodule_search_locations or ()) if spec is not None else ():
                homes.setdefault(place, f"{top}.")
        room, files, seen = SPARE_BYTES, SPARE_FILES, 0
        for home, prefix in homes.items():
            for path in _python_files(home):
                seen += 1
                if seen > MOST_SEEN or files <= 0:
                    return
                parts = path.relative_to(home).with_suffix("").parts
                parts = parts[:-1] if parts[-1] == "__init__" else parts
                name = prefix + ".".join(parts)
                if not name.strip(".") or name in self.modules or not all(part.isidentifier() for part in parts):
                    continue
                try:
                    room -= path.stat().st_size
                except OSError:
                    continue
                if room < 0:
                    self.notes[""] = f"{path} and other files beside the job are not kept: more than {SPARE_BYTES >> 20} MiB"
                    return
                files -= 1
                yield name.rstrip(".")


def _is_folder_of_job(root: str) -> bool:
    """Whether the other files of a folder may belong to the job: not those of a home folder, or of one that everybody uses."""
    shared = {os.sep, "/tmp", os.path.expanduser("~")}
    return bool(root) and root not in shared and not is_installed(os.path.join(root, "x"))


def _python_files(home: str) -> Iterator[Path]:
    for folder, folders, files in os.walk(home):
        folders[:] = sorted(name for name in folders if _may_hold_modules(folder, name))
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _may_hold_modules(folder: str, name: str) -> bool:
    if not name.isidentifier() or name in NEVER:
        return False
    return not any(os.path.exists(os.path.join(folder, name, mark)) for mark in ("pyvenv.cfg", "run.json"))


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def _names(one: Module) -> list[str]:
    """The modules that a file names in ``import`` statements, wherever they stand, and in calls with a constant name."""
    try:
        tree = ast.parse(one.data)
    except (SyntaxError, ValueError):
        return []
    package = one.name if one.package else one.name.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base is not None:
                found += [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")] if base else []
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            value = node.args[0].value
            if called in ("import_module", "__import__") and isinstance(value, str) and value and not value.startswith("."):
                found.append(value)
    return list(dict.fromkeys(found))


def _absolute(node: ast.ImportFrom, package: str) -> str | None:
    """The full name of the module of a ``from .. import``; None: it leads out of the package."""
    if not node.level:
        return node.module
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return None
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def read_again(one: Module) -> bytes | None:
    """The bytes that the file of a module has now; None: it is gone."""
    return _read(one.origin)


__all__ = ["CODE_BYTES", "TooMuchCode", "gather", "read_again"]
