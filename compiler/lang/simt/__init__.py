"""``qd.simt``: what the threads of a GPU do together."""

from __future__ import annotations

from ...refused import REFUSED, Refused
from . import block


def __getattr__(name: str) -> Refused:
    if f"simt.{name}" in REFUSED:
        return Refused(f"simt.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["block"]
