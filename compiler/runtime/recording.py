"""The protocol of launches, copies and allocations during the recording of a graph."""

from __future__ import annotations

from ..errors import QdrunRuntimeError


class Unrecordable(QdrunRuntimeError):
    """An operation cannot be part of the graph that is being recorded."""
