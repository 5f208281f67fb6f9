"""Imports the modules of a job from the bytes that its run keeps. Errors, tracebacks and kernels name the user's own files.

One finder stands in front of all others of this process. It knows the code of one job at a time (``activate``). In a process of a run
that only has kept code, every other file of the user's is refused: an edit would bring a second version into the same table.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from io import StringIO
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .closure import read_again
from .modules import ENTRY, SOURCE, STUBS, ImportKind, JobCode, Module
from .places import ALSO, OURS, find, is_users, unsafe_path
from .places import STUBS as STUBS_ON_PATH

_lock = threading.RLock()
_here = threading.local()
"""``loading``: this thread imports the code of a job."""


class KeptLoader(SourceFileLoader):
    """Loads a module from bytes. ``path`` is where files beside it are found; its code names the user's own file."""

    def __init__(self, module: Module, path: str) -> None:
        super().__init__(module.name, path)
        self._module = module

    def get_data(self, path: str) -> bytes:
        """The kept bytes; of another file those on disk."""
        return self._module.data if path == self.path else super().get_data(path)

    def get_source(self, fullname: str) -> str:
        """The kept text."""
        return importlib.util.decode_source(self._module.data)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the kept text: nothing is read or written beside the file. Kernels and tracebacks take their lines from there, too."""
        text, file = self.get_source(fullname), self._module.origin
        # Without a time, the lines are not compared with the file, which may be edited from now on.
        linecache.cache[file] = len(text), None, StringIO(text).readlines(), file
        return compile(text, file, "exec", dont_inherit=True)


class Imports:
    """The finder.

    Attributes:
        code: of the job whose modules are imported now; None: none.
        frozen: the code is that of a run's folder, and does not grow.
        sole: this process runs nothing but the job.
    """

    def __init__(self) -> None:
        self.code: JobCode | None = None
        self.frozen = self.sole = False
        self._home, self._binaries, self._stubs, self._used = "", "", "", list[str]()
        setattr(self, ALSO, True)

    # ---- what Python asks
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """The module of a name: a kept one, else an installed one; see the module."""
        code, top = self.code, name.partition(".")[0]
        if code is None or top == OURS or getattr(_here, "asks", False):
            return None
        if name in code.modules:
            return self._kept(code.modules[name])
        if name in code.namespaces:
            return self._namespace(name, code)
        if top in sys.stdlib_module_names or (path is None and name in sys.modules):
            return None
        _here.asks = True
        try:
            return self._other(name, path, code)
        finally:
            _here.asks = False

    def _other(self, name: str, path: Sequence[str] | None, code: JobCode) -> ModuleSpec | None:
        """A module that is not kept (yet)."""
        spec = find(name, "" if self.frozen else code.root, path)
        if spec is None:
            if path is None and (self.sole or self.loading):
                self._refuse_directory(name, code)
            return None
        if not is_users(spec) or spec.origin is None or spec.loader is None:
            return spec if path is None and spec.origin is not None else None
        if self.frozen:
            if self.sole or self.loading or not _is_main():
                self._refuse(name, spec.origin)
            return None
        if type(spec.loader) is SourceFileLoader and self._belongs(spec.origin, code):
            return self._captured(name, spec, code)
        return None

    def _belongs(self, origin: str, code: JobCode) -> bool:
        """Whether an import is the job's: it is loaded, or planned in a thread, or the file lies in its folder."""
        return self.loading or not _is_main() or origin.startswith(os.path.join(code.root, ""))

    def _captured(self, name: str, spec: ModuleSpec, code: JobCode) -> ModuleSpec | None:
        origin = str(spec.origin)
        made = Module(name, "", origin, b"", spec.submodule_search_locations is not None, ImportKind.imported)
        data = read_again(made)
        if data is None:
            return None
        inside = origin.startswith(os.path.join(code.root, ""))
        tail = "/__init__.py" if made.package else ".py"
        place = Path(origin).relative_to(code.root).as_posix() if inside else f"elsewhere/{name.replace('.', '/')}{tail}"
        module = Module(name, place, origin, data, made.package, ImportKind.imported)
        code.add(module)
        return self._kept(module)

    def _kept(self, one: Module) -> ModuleSpec | None:
        if one.found is ImportKind.spare:
            self._used.append(one.name)
        if not one.is_source:
            return self._binary(one)
        file = self._file(one)
        spec = importlib.util.spec_from_file_location(
            one.name,
            file,
            loader=KeptLoader(one, file),
            submodule_search_locations=[os.path.dirname(file)] if one.package else None,
        )
        if spec is not None:
            spec.cached = None
        return spec

    def _binary(self, one: Module) -> ModuleSpec | None:
        """An extension module, from its own place as long as it is the kept one: it may load libraries beside it."""
        place = one.origin
        if self._binaries and read_again(one) != one.data:
            place = os.path.join(self._binaries, one.path)
        kind = SourcelessFileLoader if one.path.endswith(".pyc") else ExtensionFileLoader
        return importlib.util.spec_from_file_location(one.name, place, loader=kind(one.name, place))

    def _file(self, one: Module) -> str:
        """``__file__`` of a module: where the files beside it are."""
        inside = one.origin.startswith(os.path.join(self.code.root, "")) if self.code is not None else False
        return os.path.join(self._home, one.path) if self._home and (inside or self._home == self._binaries) else one.origin

    def _namespace(self, name: str, code: JobCode) -> ModuleSpec:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = list(code.namespaces[name])
        return spec

    @staticmethod
    def _refuse(name: str, origin: str) -> None:
        raise ImportError(
            f"the run keeps no copy of {origin}, so `import {name}` could find another version in each process\n"
            f"  do: name it in an import statement of the job (`import {name}`, also inside of a function), or install its package",
            name=name,
        )

    def _refuse_directory(self, name: str, code: JobCode) -> None:
        """Say why a module of the working directory, of a folder above the job's, or one that was added to the job's, is not found."""
        spec = find(name, code.root) if self.frozen else None
        if spec is not None and spec.origin is not None and is_users(spec):
            self._refuse(name, spec.origin)
        working = dict.fromkeys((*unsafe_path(), os.getcwd()), "in the working directory")
        above = dict.fromkeys(map(str, Path(code.root).parents), "above the job's folder")
        for place, where in (above | working).items():
            path = next((path for end in (".py", "") if os.path.exists(path := os.path.join(place, name + end))), None)
            if path is not None:
                raise ModuleNotFoundError(
                    f"No module named {name!r}: {path} lies {where}, from which jobs import nothing\n"
                    f"  do: put it beside the job, or its folder into PYTHONPATH ({place}), or install it",
                    name=name,
                )

    @property
    def loading(self) -> bool:
        """Whether this thread imports the code of a job."""
        return getattr(_here, "loading", False)

    # ---- which job
    def activate(self, code: JobCode, *, frozen: bool, home: str, place: str) -> None:
        """Take the modules of another job off ``sys.modules``, and put those of this one there as far as they were loaded before."""
        if self.code is code:
            return
        self.release()
        self.code, self.frozen, self._home = code, frozen, home
        self._binaries = os.path.join(place, SOURCE) if place else ""
        self._show_to_children(os.path.join(place, STUBS) if place else "")
        sys.modules.update(code.loaded)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        importlib.invalidate_caches()

    def release(self) -> None:
        """Find no modules of a job any more: the run is over, and this process may have other things to do."""
        if self.code is not None:
            self.code.loaded = {name: module for name, module in list(sys.modules.items()) if _is_kept(module, self.code)}
            for name in self.code.loaded:
                del sys.modules[name]
        self.code, self.frozen = None, False
        self._show_to_children("")

    def _show_to_children(self, stubs: str) -> None:
        """Have processes that this one starts with ``multiprocessing`` find the modules of this job alone: they get its path."""
        if self._stubs and self._stubs in sys.path:
            sys.path.remove(self._stubs)
        STUBS_ON_PATH.discard(self._stubs)
        self._stubs = stubs
        if stubs:
            STUBS_ON_PATH.add(stubs)
            sys.path.extend([] if stubs in sys.path else [stubs])

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the job at the end of the block."""
        try:
            yield
        finally:
            self.release()

    def used(self) -> list[str]:
        """The spare modules that were imported since the last call."""
        found, self._used = self._used, []
        return found

    @contextmanager
    def own_modules(self) -> Iterator[None]:
        """While the block runs, names that the job's code has are its modules; afterwards those of the user's program are there again.

        Raises:
            OtherModule: the program has a module of that name from another file.
        """
        code = self.code
        assert code is not None
        aside = {
            name: module
            for name in (*code.modules, *code.namespaces)
            if (module := sys.modules.get(name)) is not None and not _is_kept(module, code) and not name.startswith(ENTRY)
        }
        for name, module in aside.items():
            theirs, mine = getattr(module, "__file__", None), code.modules.get(name)
            if mine is not None and theirs and os.path.realpath(theirs) != os.path.realpath(mine.origin):
                raise OtherModule(
                    f"the job imports `{name}` from {mine.origin}, and this process has loaded {theirs} under that name\n"
                    f"  do: give one of the files another name, or submit the config with `qdrun submit`"
                )
        for name in aside:
            del sys.modules[name]
        sys.modules.update(code.aside)
        before, _here.loading = getattr(_here, "loading", False), True
        try:
            yield
        finally:
            _here.loading = before
            for name, module in aside.items():
                if name in sys.modules:
                    code.aside[name] = sys.modules[name]
                sys.modules[name] = module


class OtherModule(ImportError):
    """A name of the job's modules is taken by another module of this process."""


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_kept(module: Any, code: JobCode) -> bool:
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    if isinstance(loader, KeptLoader):
        return True
    name = getattr(spec, "name", "")
    if name.partition(".")[0] in code.namespaces and getattr(module, "__file__", None) is None:
        try:
            places = list(getattr(module, "__path__", ()))
            return places == code.namespaces.get(name, places)
        except KeyError:  # of Python: the package above it was released
            return False
    return name in code.modules and not code.modules[name].is_source


IMPORTS = Imports()
"""Of this process."""


def load_from(code: JobCode, name: str, *, frozen: bool = False, home: str = "", place: str = "") -> ModuleType:
    """Import a module of a job from its code.

    Args:
        code: of the job.
        name: of the module.
        frozen: refuse the user's files that the code does not have.
        home: a folder that is laid out like the root of the job, in which files beside the modules are found; empty: the user's own.
        place: where kept code lies as files, see ``store.lay_out``.

    Raises:
        OtherModule: see ``Imports.own_modules``.
        BaseException: what the module raises.
    """
    with _lock:
        IMPORTS.activate(code, frozen=frozen, home=home, place=place)
        with IMPORTS.own_modules():
            return importlib.import_module(name)


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold imports of jobs off: several lanes of a worker may import one, and none must see a half-imported module."""
    with _lock:
        yield


__all__ = ["IMPORTS", "Imports", "KeptLoader", "OtherModule", "exclusive", "load_from"]
