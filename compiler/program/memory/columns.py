"""The content of fields as columns with a row for each trial: written and read between launches, run after run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...runtime.native.launch_ir import F_SLOW
from ...runtime.runs import runs_of, unpacked


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
        self._field, self._flags = field, program.admission.flags
        self._whole, self._trials, self._mirror = field._all, field._trials, field._mirror
        self._counts = program.data.writes_to(field)
        self._runs = None if self._mirror is None or not self._trials.batched else runs_of(self._whole)
        self._orders: tuple[np.ndarray, np.ndarray] | None = None  # of a group's numbers: from those in memory, and to them
        self._sent: np.ndarray | None = None  # what a device gets; kept, as the pages of new memory cost more than the copy
        if self._runs is not None:
            places = unpacked(np.arange(self._whole[0].size), self._whole[0]).ravel()
            self._orders = None if (np.diff(places) == 1).all() else (places, np.argsort(places))
        self.dtype: np.dtype[Any] = self._whole.dtype
        self.shape: tuple[int, ...] = tuple(field.shape)

    def write(self, values: np.ndarray) -> None:
        """Write the field.

        Args:
            values: (B, ...) in a batched program, else of the field's shape. One of the field's shape goes to every trial.
        """
        if not self._direct or (self._trials.batched and values.shape == self.shape):
            self._field.from_numpy(values)
            return
        for count in self._counts:
            count.value += 1
        if self._mirror is None:
            self._trials.assign(self._whole, values)
        else:
            self._mirror.assign(self._whole, unpacked(self._grouped(values), self._whole))

    @property
    def _direct(self) -> bool:
        """Whether the memory is read and written here: no launches are recorded, and its runs are known if it is a device's."""
        return not self._flags[F_SLOW] and (self._mirror is None or self._runs is not None)

    def _grouped(self, values: np.ndarray) -> np.ndarray:
        """A column as it lies in a device's memory. Padding repeats the last trial."""
        missing = self._trials.padded - self._trials.count
        rows = np.concatenate([values, np.repeat(values[-1:], missing, 0)]) if missing else values
        groups = np.ascontiguousarray(rows, self.dtype).reshape(len(self._whole), -1)
        if self._orders is None:
            return groups
        if self._sent is None:
            self._sent = np.empty_like(groups)
        return np.take(groups, self._orders[1], axis=1, out=self._sent, mode="clip")  # twice as fast as an assignment of axes

    def _copy(self) -> np.ndarray:
        """A copy of memory of the host, or of what is not ``_direct``."""
        if not self._direct:
            return self._field.to_numpy()
        return self._trials.columns(self._whole.copy())

    def _copy_in(self, block: np.ndarray) -> np.ndarray:
        """What a device has copied to the start of a block, as a column."""
        groups = block[: self._whole.nbytes].view(self.dtype).reshape(len(self._whole), -1)
        if self._orders is not None:
            groups = np.take(groups, self._orders[0], axis=1)
        return groups.reshape(-1, *self._whole.shape[2:])[: self._trials.count]


def read_columns(columns: Sequence[Column]) -> list[np.ndarray]:
    """Copies of fields of one program: of each (B, ...) in a batched program, else of the field's shape. Waits for launches.

    A device's memory crosses the bus at once, into one block of the host: such a block takes large pages, which cost less.
    """
    far = [c for c in columns if c._mirror is not None and c._direct]
    if not far:
        return [c._copy() for c in columns]
    block, link = np.empty(sum(c._whole.nbytes for c in far), np.uint8), far[0]._mirror.link
    with link.lock:
        if any(c._mirror.shared for c in far):
            link.settle()
        link.download_rows(block.ctypes.data, [(c._mirror.device_address(c._whole), c._runs) for c in far])
    link.arrived()
    out, at = list[np.ndarray](), 0
    for c in columns:
        out.append(c._copy_in(block[at:]) if c in far else c._copy())
        at += c._whole.nbytes if c in far else 0
    return out
