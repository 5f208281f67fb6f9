"""Where modules are found: installed packages first, then what the user has put on the path, then the job's folder; never in the
directory in which a command happens to be given.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

OURS = __name__.partition(".")[0]
INSTALLED = frozenset({"site-packages", "dist-packages"})
ALSO = f"_{OURS}_finds_jobs"
"""An attribute of the finder of ``imports``: it does not ask itself."""
STUBS: set[str] = set()
"""Folders of ``sys.path`` that are there for the processes of one job, see ``jobcode.store``: no other job imports from them."""


def _first_entry() -> str:
    """The entry that Python has put at the front of its path by itself: the working directory, or the folder of a command."""
    if sys.flags.safe_path or not sys.path:
        return "-"
    script = sys.argv[0] if sys.argv else ""
    if script.endswith(".py") and os.path.isfile(script) and not script.endswith("__main__.py"):
        return "-"  # a script of the user's, who has chosen its folder
    return sys.path[0]


_FIRST, _HERE = _first_entry(), os.getcwd()


def search_path() -> list[str]:
    """``sys.path`` without the working directory and the folder of the command, unless the user has put them there."""
    named = [os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    loose = "" in os.environ.get("PYTHONPATH", "x").split(os.pathsep)
    out = []
    for place, entry in enumerate(sys.path):
        by_itself = entry == "" or (place == 0 and entry == _FIRST) or (loose and entry == _HERE)
        if not by_itself or (entry != "" and os.path.abspath(entry) in named):
            out.append(entry)
    return out


def unsafe_path() -> list[str]:
    """The entries of ``sys.path`` that ``search_path`` leaves out."""
    kept = set(search_path())
    return [entry or os.getcwd() for entry in sys.path if entry not in kept]


@cache
def _libraries() -> tuple[str, ...]:
    names = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found = [*names, *site.getsitepackages(), site.getusersitepackages()]
    return tuple(sorted({os.path.join(form, "") for path in found for form in (path, os.path.realpath(path))}))


@cache
def _is_target(folder: str) -> bool:
    """Whether an installer has filled a folder, as ``pip install --target`` does."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python, or to a package that an installer has put there (and not as editable)."""
    if not file or not os.path.isabs(file):
        return True  # built in, or frozen
    if file.startswith(_libraries()) or not INSTALLED.isdisjoint(Path(file).parts) or ".zip/" in file or ".egg/" in file:
        return True
    return any(entry and file.startswith(os.path.join(entry, "")) and _is_target(entry) for entry in sys.path)


def find(name: str, root: str, within: Sequence[str] | None = None) -> ModuleSpec | None:
    """The module that a job's ``import`` of a name finds, without importing anything.

    Args:
        name: its full name.
        root: the folder of the job.
        within: the folders of the package that it belongs to; None: a name without a dot.
    """
    if within is not None:
        return _inside(name, list(within))
    path = [entry for entry in search_path() if entry != root and entry not in STUBS]
    script = [] if not _is_script_folder(path, root) else [path.pop(0)]
    found = _ask(name, path)
    if found is not None and found.loader is not None and found.origin is not None:
        return found
    mine = PathFinder.find_spec(name, [root]) if root else None
    if mine is not None and found is not None and mine.loader is None:  # parts of one package without an `__init__`
        places = [*(found.submodule_search_locations or ()), *(mine.submodule_search_locations or ())]
        mine.submodule_search_locations = list(dict.fromkeys(places))
        return mine
    return mine or found or (PathFinder.find_spec(name, script) if script else None)


def _inside(name: str, folders: list[str]) -> ModuleSpec | None:
    """A module of a package, which need not be imported: Python asks a package without an `__init__` for the folders of the one above."""
    found = PathFinder.find_spec(name.rpartition(".")[2], folders)
    if found is None or found.loader is not None:
        return PathFinder.find_spec(name, folders) if found is not None else None
    made = ModuleSpec(name, None, is_package=True)
    made.submodule_search_locations = list(found.submodule_search_locations or ())
    return made


def _is_script_folder(path: list[str], root: str) -> bool:
    """Whether the first entry is the folder of the user's script: the job's own folder comes before it."""
    script = sys.argv[0] if sys.argv else ""
    return bool(path) and bool(script) and path[0] == os.path.dirname(os.path.realpath(script)) and path[0] != root


def _ask(name: str, path: list[str]) -> ModuleSpec | None:
    """Ask all finders of this process, in their order; that of Python's path is given ``path``."""
    for finder in list(sys.meta_path):
        if hasattr(finder, ALSO):
            continue
        is_path = finder is PathFinder
        found: Any = PathFinder.find_spec(name, path) if is_path else finder.find_spec(name, None)
        if found is not None:
            return found
    return None


def is_users(spec: ModuleSpec) -> bool:
    """Whether a module is the user's own code: not installed, and not of this package."""
    if spec.name.partition(".")[0] == OURS:
        return False
    if spec.loader is None or spec.origin is None:
        places = list(spec.submodule_search_locations or ())
        return any(not is_installed(os.path.join(place, "x")) for place in places)
    return spec.has_location and not is_installed(spec.origin)


def root_of(module: str, root: str) -> str:
    """The folder that has a user's module, or its outermost package; ``root`` where it has none. ``root``: see ``find``."""
    try:
        spec = find(module.partition(".")[0], root)
    except (ImportError, ValueError):
        return root
    if spec is None or not is_users(spec):
        return root
    places = list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))
    return os.path.dirname(places[-1]) if places else root


def suffix_of(file: str) -> str:
    """The suffix by which Python loads a file."""
    return next((one for one in importlib.machinery.all_suffixes() if file.endswith(one)), "")


def drop_unsafe_entries() -> None:
    """Take the working directory and the folder of the command off ``sys.path``, in a process that runs nothing but our commands."""
    kept = search_path()
    sys.path[:] = kept


def clean_variable() -> None:
    """Take empty parts out of ``PYTHONPATH``: Python reads them as the working directory of each process that is started."""
    found = os.environ.get("PYTHONPATH")
    if found and "" in found.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in found.split(os.pathsep) if part)


__all__ = [
    "ALSO",
    "OURS",
    "STUBS",
    "clean_variable",
    "drop_unsafe_entries",
    "find",
    "is_installed",
    "is_users",
    "root_of",
    "search_path",
    "suffix_of",
    "unsafe_path",
]
