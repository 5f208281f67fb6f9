"""Submit, schedule, run, collect. From Python: ``from qdrun.runner import submit, load``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Results, load, plan, submit

__all__ = ["Results", "load", "plan", "submit"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..compiler.versions import new_enough

    with new_enough():
        from . import api
    return getattr(api, name)
