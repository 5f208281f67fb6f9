"""The share of the instructions that the emulator knows which programs have executed."""

from __future__ import annotations

from collections.abc import Mapping

from .listing import WAITS
from .writing.lane_table import OPERATIONS
from .writing.special import HANDLERS


def line(executed: Mapping[str, int]) -> str:
    """A sentence about what was executed.

    Args:
        executed: how often each instruction was executed, by its name without the encoding (``EmulatedMachine.executed``).
    """
    of_lanes = OPERATIONS.keys() | HANDLERS.keys()
    done = executed.keys() - WAITS
    return (
        f"emulator: {sum(executed.values()):,} instructions of waves executed, {len(done)} different ones;"
        f" of the {len(of_lanes)} in the tables of the lanes, {len(done & of_lanes)}"
    )
