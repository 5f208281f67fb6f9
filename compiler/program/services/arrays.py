"""The ndarrays of a program, what of its memory was handed out, and how its gradients are cleared."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.threads import Living
from ...runtime.base import Allocation
from ..call import Key
from ..memory.memory_regions import ExportedMemory, MemoryRegion, PlacedArray, memory_base

_OF_TENSORS = frozenset(("fields", "gradients", "ndarrays"))


class ProgramArrays:
    """The arrays of a program.

    Attributes:
        alive, differentiable: the ndarrays that are alive, and those of them with a gradient or a dual.
        keys: the one key of each type of ndarrays: launchers compare keys by identity.
        shown: memory that was handed out, by the first of its regions.
        clearing: sets all gradients to zero; a number: how often that was done since one came or went.
    """

    def __init__(self) -> None:
        self.alive: Living[PlacedArray] = Living()
        self.differentiable: Living[PlacedArray] = Living()
        self.keys: dict[Key, Key] = {}
        self.shown: dict[MemoryRegion, ExportedMemory] = {}
        self.clearing: Callable[[], None] | int = 0

    def was_shown(self, memory: Allocation) -> bool:
        """Whether something that lies in an allocation was handed out."""
        return any(spot.base == memory_base(memory) for spot in self.shown)

    def changed(self, category: str) -> None:
        """Memory of a category was allocated or given back."""
        if category in _OF_TENSORS:
            self.clearing = 0
