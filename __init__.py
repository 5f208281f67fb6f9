"""qdrun: differentiable simulations in bulk. ``import qdrun as qd`` gives the kernel language.

The names live in ``compiler/face.py``, which is imported when the first of them is used: the commands of the runner that run no kernel
do not pay for the compiler. Those that are modules (``qdrun.math``) can be imported, too: ``compiler/modules`` has a package for each.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiler.face import *  # noqa: F403
    from .library import algorithms as algorithms
    from .library import linalg as linalg

_LIBRARY = ("algorithms", "linalg")
"""Modules that are written in the language, in ``library``."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .compiler.versions import compare_loaded, new_enough

    with new_enough():
        face = importlib.import_module(".compiler.face", __name__)
    compare_loaded()
    try:
        value = importlib.import_module(f".library.{name}", __name__) if name in _LIBRARY else getattr(face, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; see docs/language.md for what there is") from None
    globals()[name] = value
    return value


class _Refusing:
    """The last finder of modules: names the modules of the peer that this version does not have."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Nothing that can be imported."""
        package, _, module = name.partition(".")
        if package == __name__ and module:
            importlib.import_module(".compiler.refused", __name__).refuse_module(module)


if not any(type(finder).__qualname__ == _Refusing.__qualname__ for finder in sys.meta_path):  # not again by a reload
    sys.meta_path.append(_Refusing())
_PLACES: list[str] = globals()["__path__"]
_MODULES = os.path.join(os.path.dirname(__file__), "compiler", "modules")
if _MODULES not in _PLACES:
    _PLACES.append(_MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LIBRARY, *dir(importlib.import_module(".compiler.face", __name__))})
