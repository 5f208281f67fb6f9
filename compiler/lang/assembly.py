"""What kernels write the entries of a sparse matrix to: ``A[i, j] += value``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ..frontend.library.functions import cast, min
from ..frontend.markers import atomic_add, static
from ..ir.types import i32
from .data.element_types import NdarrayType
from .function import func

_NUMBERS = NdarrayType(None, 1)


@dataclass(eq=False)
class Assembly:
    """The arrays of a builder or of a matrix, as kernels see them: ``A[i, j] += v`` is ``A.values[A.entry(i, j)] += v``.

    The last element of ``rows``, ``columns`` and ``values`` takes what has no place.

    Attributes:
        rows: of each triplet of a builder, or of each entry of a matrix.
        columns: as many.
        values: as many.
        begins: of a matrix: the first entry of each row, and behind the last row the number of entries.
        counts: of a builder: triplets. Of a matrix: values that had no entry.
        fixed: whether it is a matrix.
    """

    rows: _NUMBERS  # type: ignore[reportInvalidTypeForm]
    columns: _NUMBERS  # type: ignore[reportInvalidTypeForm]
    values: _NUMBERS  # type: ignore[reportInvalidTypeForm]
    begins: _NUMBERS  # type: ignore[reportInvalidTypeForm]
    counts: _NUMBERS  # type: ignore[reportInvalidTypeForm]
    fixed: Final[bool]
    has_entries: ClassVar[bool] = True

    @func
    def entry(self, i: Any, j: Any) -> Any:
        """Where the value of row i and column j goes: to a new triplet of a builder, to an entry of a matrix."""
        place = self.values.shape[0] - 1
        if static(self.fixed):
            if 0 <= i < self.begins.shape[0] - 1:
                low, high = self.begins[i], self.begins[i + 1]
                end = high
                while low < high:  # the first column that is not below j
                    middle = (low + high) // 2
                    if self.columns[middle] < j:
                        low = middle + 1
                    else:
                        high = middle
                if low < end and self.columns[low] == j:
                    place = low
            if place == self.values.shape[0] - 1:
                atomic_add(self.counts[0], 1)
        else:
            place = min(atomic_add(self.counts[0], 1), place)
            self.rows[place] = cast(i, i32)
            self.columns[place] = cast(j, i32)
        return place
