"""The versions of the memory of a program: how often each array was written."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...codegen.abi import CTX_LAUNCHES
from ...ir.nodes import Buffer
from ...runtime.base import Allocation
from .memory_regions import EXTERNAL, memory_base, memory_of

Stored = tuple[object, int]
"""The base of some memory, and the offset of one scalar-valued array in it."""


class DataVersions:
    """The versions of a program's memory.

    Attributes:
        from_python: writes from Python so far, by the base of the memory: of fields by the offsets of their components, of other
            memory under None. Those of memory of the device end with it.
        kernels: what each kernel stores to, with its memory, and its context, in which it counts its launches.
        generation: counts the changes of ``kernels``.
        changes: counts new kernels, and memory that is handed out: what has no version then, or is written by more.
    """

    def __init__(self) -> None:
        self.from_python: dict[object, dict[int | None, ctypes.c_int64]] = {}
        self.kernels: list[tuple[dict[Stored, Allocation], np.ndarray]] = []
        self.changes = ctypes.c_int64(0)
        self.generation = 0

    def writes(self, base: object, offset: int | None = None) -> ctypes.c_int64:
        """The counter of the writes from Python to a component of a field, or to a base. Native launchers read it, too."""
        known = self.from_python.get(base)
        if known is None:
            known = self.from_python.setdefault(base, {})
        found = known.get(offset)
        return known.setdefault(offset, ctypes.c_int64(0)) if found is None else found

    def freed(self, memory: Allocation) -> None:
        """Memory of the device is given back: nothing asks for its versions any more. Destructors call this in any thread."""
        self.from_python.pop(memory.serial, None)

    def enter(self, context: np.ndarray, owners: Mapping[Buffer, Allocation], stores: Iterable[tuple[Buffer, int]]) -> None:
        """A kernel that counts its launches in its context, and what it stores to.

        Args:
            context: its launch context.
            owners: the memory behind its field buffers.
            stores: field buffers with the offsets of components.
        """
        stored = {(memory_base(owners[b]), offset): owners[b] for b, offset in stores}
        if stored:
            self.kernels.append((stored, context))
            self.generation += 1
            self.changes.value += 1

    def leave(self, context: np.ndarray) -> None:
        """A kernel is closed. Its launches are counted as writes from Python from now on, so that no version falls."""
        for stored in [to for to, at in self.kernels if at is context]:
            for what, memory in stored.items():
                if memory.category == EXTERNAL or not memory.freed:
                    self.writes(*what).value += int(context[CTX_LAUNCHES])
            self.kernels[:] = [one for one in self.kernels if one[1] is not context]
            self.changes.value += 1
        self.generation += 1

    def wrote(self, tensor: Any) -> None:
        """Python is about to write to a field or an ndarray."""
        for count in self.writes_to(tensor):
            count.value += 1

    def writes_to(self, tensor: Any) -> list[ctypes.c_int64]:
        """The counters of the writes from Python to a field or an ndarray."""
        base = memory_base(memory_of(tensor))
        if hasattr(tensor, "_memory"):  # an ndarray
            return [self.writes(base)]
        return [self.writes(base, place.offset) for place in tensor._places]  # others in the same memory have not changed

    def counters(self, base: object, offset: int) -> list[ctypes.c_int64]:
        """The counters of the writes to an array: those of the kernels that store to it, and Python's. The memory is the program's."""
        at = 8 * CTX_LAUNCHES
        kernels = [ctypes.c_int64.from_buffer(context.data, at) for to, context in self.kernels if (base, offset) in to]
        return [*kernels, self.writes(base), self.writes(base, offset)]


def stored_keys(tensor: Any) -> list[Stored]:
    """The keys of a field or an ndarray."""
    base = memory_base(memory_of(tensor))
    return [(base, 0)] if hasattr(tensor, "_memory") else [(base, place.offset) for place in tensor._places]
