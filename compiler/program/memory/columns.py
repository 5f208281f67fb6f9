"""The content of a field as a column with a row for each trial: written and read between launches, run after run."""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory_regions import memory_base, memory_of


class Column:
    """All of a field, with what takes long to look up kept from one run to the next.

    Args:
        program: of the field; it stays open as long as the column is used.
        field: of numbers, placed.
    """

    def __init__(self, program: Any, field: Any) -> None:
        program.materialize()
        self._program, self._field = program, field
        self._whole, self._trials = field._all, field._trials
        base = memory_base(memory_of(field))
        self._counts = [program.data.writes((base, place.offset)) for place in field._places]

    def write(self, values: np.ndarray) -> None:
        """Write the field.

        Args:
            values: (B, ...) of the field's type in a batched program, else of the field's shape.
        """
        if self._field._mirror is not None or self._program.records():
            self._field.from_numpy(values)
            return
        for count in self._counts:
            count.value += 1
        if self._trials is None:
            self._whole[...] = values
        else:
            self._trials.assign(self._whole, values)

    def read(self) -> np.ndarray:
        """A copy of the field: (B, ...) in a batched program, else of the field's shape. Waits for launches."""
        if self._field._mirror is not None or self._program.records():
            return self._field.to_numpy()
        return self._whole.copy() if self._trials is None else self._trials.columns(self._whole)
