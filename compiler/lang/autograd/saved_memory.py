"""Copies of a program's fields and ndarrays on the host, for functions that run launches several times from one state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...program.memory.device_arrays import NearArray, put_content
from ...runtime.mirror import reading, store

if TYPE_CHECKING:
    from ...program.program import Program
    from ...runtime.base import Allocation


@dataclass(eq=False)
class SavedMemory:
    """A copy of what a program's fields and ndarrays, and the arrays given from outside, hold."""

    own: list[tuple[Allocation, np.ndarray]]
    outside: list[tuple[Any, np.ndarray]] = field(default_factory=list)

    @staticmethod
    def of(program: Program, outside: list[Any]) -> SavedMemory:
        """Copy what a program holds now, and these arrays."""
        held = [a for a in program.device.allocations() if a.category in ("fields", "gradients", "ndarrays")]
        return SavedMemory([(a, reading(a.mirror, a.view).copy()) for a in held], [(a, a.copy()) for a in outside])

    def put_back(self) -> None:
        """Write the copies back."""
        for allocation, content in self.own:
            if not allocation.freed:
                store(allocation.mirror, allocation.view, content)
        for array, content in self.outside:
            if not array.readonly if isinstance(array, NearArray) else array.flags.writeable:
                put_content(array, content)
