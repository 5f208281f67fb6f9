"""Loads single solvers of Genesis' engine without Genesis: its package, torch, meshes and viewers are replaced by names that do nothing.

Of Genesis only the modules of ``REAL`` run, unchanged. Everything else that they import is a ``Stub``.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

REAL = (
    *("genesis.engine.solvers.sph_solver", "genesis.engine.solvers.pbd_solver", "genesis.engine.solvers.mpm_solver"),
    *("genesis.engine.solvers.fem_solver", "genesis.engine.solvers.sf_solver", "genesis.engine.couplers.legacy_coupler"),
    *("genesis.engine.materials.MPM.elastic", "genesis.engine.materials.MPM.elasto_plastic"),
    *("genesis.engine.materials.MPM.snow", "genesis.engine.materials.MPM.sand", "genesis.engine.materials.FEM.elastic"),
    *("genesis.utils.geom", "genesis.engine.boundaries.boundaries", "genesis.engine.boundaries"),
)
FOREIGN = ("torch", "numba", "igl", "trimesh", "pydantic", "pydantic_core")


class _Uses(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Stub()


class Stub(metaclass=_Uses):
    """A name that takes every use: a base class, a decorator, a function, an object; false, and nothing in it."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        pass

    def __init_subclass__(cls, **kw: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name.startswith("_qd"):
            raise AttributeError(name)
        return Stub()

    def __call__(self, *args: Any, **kw: Any) -> Any:
        return Stub()

    def model_post_init(self, *args: Any) -> None:
        """Of pydantic: what ``super()`` finds in a material."""

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, item: Any) -> Any:
        return Stub()


class Solver:
    """Stands for Genesis' base class of solvers: the attributes that kernels read are set by a case."""

    is_built = True

    def __init__(self, *args: Any) -> None:
        pass

    def build(self) -> None:
        pass

    dt = property(lambda self: self._substep_dt)
    substep_dt = property(lambda self: self._substep_dt)
    sim = property(lambda self: self._sim)
    entities = property(lambda self: self._entities)


class _Module(ModuleType):
    """A module of stubs. Its classes that are annotations of kernels are templates."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self.__name__.endswith("array_class"):
            return importlib.import_module("quadrants").template()
        return type(name, (Stub,), {})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, clone: Path) -> None:
        self._clone = clone

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in REAL:
            base = self._clone.joinpath(*fullname.split("."))
            package = base.is_dir()
            file = base / "__init__.py" if package else base.with_suffix(".py")
            places = [str(base)] if package else None
            return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=places)
        if fullname.split(".", maxsplit=1)[0] in ("genesis", *FOREIGN):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


def install(clone: Path, qd: Any) -> None:
    """Make ``import genesis.engine.solvers.sph_solver`` work: reals are f64. ``clone``: of Genesis' repository."""
    sys.meta_path.insert(0, _Finder(clone))
    gs = importlib.import_module("genesis")
    vector, matrix = qd.types.vector, qd.types.matrix
    names: dict[str, Any] = {"qd_float": qd.f64, "qd_int": qd.i32, "qd_bool": qd.u1, "np_float": np.float64, "np_int": np.int32}
    names |= {f"qd_vec{n}": vector(n, qd.f64) for n in (2, 3, 4, 6)} | {f"qd_ivec{n}": vector(n, qd.i32) for n in (2, 3, 4)}
    names |= {f"qd_mat{n}": matrix(n, n, qd.f64) for n in (3, 4)} | {"EPS": 1e-12, "IntEnum": enum.IntEnum}
    for name, value in names.items():
        setattr(gs, name, value)
    for name in ("array_class", "sdf", "geom"):  # ``from genesis.utils import array_class`` finds the module
        importlib.import_module(f"genesis.utils.{name}")
    importlib.import_module("genesis.engine.solvers.base_solver").__dict__["Solver"] = Solver
