"""What launches, copies and allocations do while a graph is recorded."""

from __future__ import annotations

from ..errors import QdrunRuntimeError


class Unrecordable(QdrunRuntimeError):
    """Something cannot be part of the graph that is being recorded."""
