"""Programs that import Quadrants or Taichi by name: modules under these names that give the names of ``qd``, and an import hook."""

from __future__ import annotations

import atexit
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ...errors import QdrunImportError
from .report import MISSING
from .windows import session

PACKAGE = __name__.partition(".")[0]
NAMES = ("quadrants", "taichi")
OWN = f"{PACKAGE}.compat"
TAICHI_VERSION = (1, 7, 4)
"""``taichi.__version__``: the version whose programs are run."""


class Facade(ModuleType):
    """A module whose names are those of ``qd``. That of Taichi has names of Taichi's, too."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # what `from quadrants import *` takes
            return [n for n in dir(self) if not n.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            value = _name_of(self.__name__, name)
        except AttributeError:
            MISSING[f"{self.__name__}.{name}"] += 1
            raise
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *dir(importlib.import_module(PACKAGE))})


def _taichi_names() -> dict[str, Any]:
    return importlib.import_module(".taichi_names", __package__).NAMES


def _inner_module(inner: str) -> dict[str, Any]:
    """What ``taichi.lang.impl`` has besides the names of ``taichi``."""
    return importlib.import_module(".taichi_inner", __package__).INNER.get(inner.removeprefix("lang."), {})


def _modules() -> frozenset[str]:
    return importlib.import_module(".taichi_inner", __package__).MODULES


def _is_inner(name: str) -> bool:
    """Whether ``taichi.lang`` or one of its modules is meant."""
    return name == "taichi.lang" or (name.startswith("taichi.lang.") and name.removeprefix("taichi.lang.") in _modules())


def _name_of(facade: str, name: str) -> Any:
    top, _, inner = facade.partition(".")
    if top == "taichi":
        own = _inner_module(inner)
        if name in own:
            return own[name]
        if name in _taichi_names():
            return _taichi_names()[name]
        if name == "lang" or (inner == "lang" and name in _modules()):
            return importlib.import_module(f"{facade}.{name}")
    return getattr(importlib.import_module(PACKAGE), name)


def facade(name: str, spec: ModuleSpec | None) -> Facade:
    """A module of this name with the names of ``qd``, and with ``install`` and ``uninstall`` if it is ``qdrun.compat``."""
    made = Facade(name, "The names of qdrun.")
    made.__spec__, made.__path__ = spec, list((spec.submodule_search_locations if spec else None) or [])  # type: ignore[attr-defined]
    if name == "taichi":
        made.__dict__["__version__"] = TAICHI_VERSION
    if name == OWN:
        made.__dict__.update(install=install, uninstall=uninstall)
    return made


class _Loader:
    """Gives a facade, or the module of ours that a submodule is."""

    def __init__(self) -> None:
        self._own: dict[str, ModuleSpec | None] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of a name that the finder took."""
        if spec.name in NAMES or _is_inner(spec.name):
            return facade(spec.name, spec)
        top, _, inner = spec.name.partition(".")
        extra = _taichi_names().get(inner) if top == "taichi" else None
        found = extra if isinstance(extra, ModuleType) else _own_module(spec.name)
        self._own[spec.name] = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run. A module of ours keeps its own spec, which importlib has replaced."""
        spec = module.__spec__
        if spec is not None and spec.name in self._own:
            module.__spec__ = self._own.pop(spec.name)


def _own_module(name: str) -> ModuleType:
    """The module of ours that a submodule of a facade is.

    Raises:
        ModuleNotFoundError: there is none.
    """
    own = f"{PACKAGE}.{_inner(name)}"
    try:
        return importlib.import_module(own)
    except ModuleNotFoundError as error:
        if error.name is None or not own.startswith(error.name):
            raise
        MISSING[name] += 1
        raise ModuleNotFoundError(f"no module named {name!r}: qdrun has no {own}", name=name) from None


def _inner(name: str) -> str:
    """``math`` of ``quadrants.math`` and of ``qdrun.compat.math``; empty for other names and for the packages themselves."""
    for top in (*NAMES, OWN):
        if name.startswith(f"{top}."):
            return name[len(top) + 1 :]
    return ""


class _Finder:
    """Finds the packages that are installed, and the submodules of facades."""

    def __init__(self) -> None:
        self.installed: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a name under one of ours."""
        inner = _inner(name)
        taken = name in self.installed or (inner and (name.startswith(OWN) or name.partition(".")[0] in self.installed))
        if not taken or inner.startswith("__"):
            return None
        return ModuleSpec(name, _Loader(), is_package=name in (*NAMES, "taichi.lang"))  # type: ignore[arg-type]


_FINDER = _Finder()


def begin() -> None:
    """Let the submodules of ``qdrun.compat`` be found."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)  # type: ignore[arg-type]


def install(names: Sequence[str] = NAMES, frames: int | None = None, save: str | None = None) -> None:
    """Make ``import quadrants`` and ``import taichi`` give the names of ``qd``, also where these packages are installed.

    Args:
        names: "quadrants", "taichi" or both.
        frames: end the program after so many frames of its windows, which have no screen.
        save: a folder where each frame is saved.

    Raises:
        QdrunImportError: another name, or the package has been imported already.
    """
    for name in names:
        if name not in NAMES:
            raise QdrunImportError(f"qdrun.compat.install: {name!r} is not one of {', '.join(map(repr, NAMES))}")
        if name in sys.modules and not isinstance(sys.modules[name], Facade):
            raise QdrunImportError(
                f"qdrun.compat.install: `{name}` has been imported already\n  do: call install() before anything imports it"
            )
    begin()
    if frames is not None or save is not None:
        session.begin(session.Session(frames, save))
    atexit.unregister(session.report_at_exit)
    atexit.register(session.report_at_exit)
    _FINDER.installed.update(names)


def uninstall() -> None:
    """Undo ``install``: what is imported afterwards is the installed package. Modules that have been imported keep what they have."""
    for name in list(sys.modules):
        if name.partition(".")[0] in _FINDER.installed:
            del sys.modules[name]
    _FINDER.installed.clear()
