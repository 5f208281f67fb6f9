"""The content of a field as a column with a row for each trial: written and read between launches, run after run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...runtime.native.launch_ir import F_SLOW


class Column:
    """All of a field, with what takes long to look up kept from one run to the next.

    Args:
        program: of the field; it stays open as long as the column is used, and nothing records launches in it now.
        field: of numbers, placed.

    Attributes:
        dtype: of its numbers.
        shape: of the field.
    """

    def __init__(self, program: Any, field: Any) -> None:
        program.materialize()
        self._field, self._flags = field, program.flags
        self._whole, self._trials, self._near = field._all, field._trials, field._mirror is None
        self._counts = program.data.writes_to(field)
        self.dtype: np.dtype[Any] = self._whole.dtype
        self.shape: tuple[int, ...] = tuple(field.shape)

    def write(self, values: np.ndarray) -> None:
        """Write the field.

        Args:
            values: (B, ...) in a batched program, else of the field's shape. One of the field's shape goes to every trial.
        """
        if not self._near or self._flags[F_SLOW] or (self._trials is not None and values.shape == self.shape):
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
        if not self._near or self._flags[F_SLOW]:
            return self._field.to_numpy()
        return self._whole.copy() if self._trials is None else self._trials.columns(self._whole)
