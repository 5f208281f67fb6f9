"""Which instructions have been executed: their names, and all that the emulator knows."""

from __future__ import annotations

from .writing.lane_table import OPERATIONS
from .writing.special import HANDLERS

COVERAGE: set[str] = set()
"""The instructions of this process, without the names of their encodings."""


def line() -> str:
    """How many were executed, in words. Instructions on scalars and on memory are known by their forms, and not listed."""
    tables = OPERATIONS.keys() | HANDLERS.keys()
    known = len(COVERAGE & tables)
    return (
        f"emulator: {len(COVERAGE)} instructions executed, among them {known} of the {len(tables)} in the tables of the lanes"
    )
