"""qdrun: differentiable simulations in bulk. ``import qdrun as qd`` gives the kernel language.

The names live in ``compiler/face.py``, which is imported when the first of them is used: the commands of the runner that run no kernel
do not pay for the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiler.face import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    face = importlib.import_module(".compiler.face", __name__)
    try:
        value = getattr(face, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; see docs/language.md for what there is") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(importlib.import_module(".compiler.face", __name__))})
