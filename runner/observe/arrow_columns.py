"""Columns of the table as Arrow arrays. They are made of buffers where they can be: ``pyarrow.array`` loads pandas where that is installed,
and looks at one value after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np

Row = dict[str, Any]
Array = np.ndarray[Any, Any]
INTEGERS = ("index", "replicate", "seed", "attempts", "planned_bytes", "used_bytes")
REALS = ("loss", "gradient_norm", "used_of_planned", "seconds")
TEXTS = ("trial", "status", "device", "launched", "checks", "code", "failure", "error_type", "error")


def fixed_type(name: str) -> Any:
    """The type of a column that every table has; None for others, whose values decide."""
    import pyarrow as pa

    return pa.int64() if name in INTEGERS else pa.float64() if name in REALS else pa.string() if name in TEXTS else None


def plain_array(values: Sequence[Any], wanted: Any = None) -> Any:
    """Values of one type, some of which may be None, as an Arrow array. ``wanted``: its type; None: that of the values.

    Raises:
        pyarrow.ArrowException, OverflowError, UnicodeError: no one type holds them.
    """
    import pyarrow as pa

    kinds = set(map(type, values))
    if kinds == {float} and wanted in (None, pa.float64()):
        return of_numbers(np.array(values, dtype=np.float64))
    if kinds == {int} and wanted in (None, pa.int64()):
        return of_numbers(np.array(values, dtype=np.int64))
    if kinds == {str} and wanted in (None, pa.string()):
        return _of_texts(values)
    if kinds <= {type(None)}:
        return pa.nulls(len(values), pa.null() if wanted is None else wanted)
    if kinds == {list} and wanted is None and {float} == set(map(type, inner := list(chain.from_iterable(values)))):
        ends = np.zeros(len(values) + 1, dtype=np.int32)
        np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
        return pa.ListArray.from_arrays(of_numbers(ends), of_numbers(np.array(inner, dtype=np.float64)))
    return pa.array(values, type=wanted, from_pandas=False)


def of_numbers(array: Array) -> Any:
    """An array of numbers, trials first, as an Arrow array; of several dimensions as lists."""
    import pyarrow as pa

    types = {"f8": pa.float64(), "i8": pa.int64(), "i4": pa.int32()}
    flat = np.ascontiguousarray(array).reshape(-1)
    out = pa.Array.from_buffers(types[flat.dtype.str[1:]], len(flat), [None, pa.py_buffer(flat)])
    for depth in range(array.ndim - 1, 0, -1):
        ends = np.arange(math.prod(array.shape[:depth]) + 1, dtype=np.int32) * array.shape[depth]
        out = pa.ListArray.from_arrays(of_numbers(ends), out)
    return out


def _of_texts(values: Sequence[str]) -> Any:
    import pyarrow as pa

    data = [value.encode() for value in values]
    ends = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, data), np.int64, len(data)), out=ends[1:])
    if ends[-1] >= 1 << 31:
        raise pa.ArrowCapacityError("texts of more than 2 GiB")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def in_order(chunks: Iterable[Any], order: Array, wanted: Any = None) -> Any | None:
    """Chunks of a column as one array in another order; None where their types differ. ``wanted``: the type, if they are all empty."""
    import pyarrow as pa

    found = list(chunks)
    types = {chunk.type for chunk in found if chunk.type != pa.null()}
    if len(types) > 1:
        return None
    kind = types.pop() if types else wanted if wanted is not None else pa.null()
    typed = [pa.nulls(len(chunk), kind) if chunk.type != kind else chunk for chunk in found]
    return pa.concat_arrays(typed).take(of_numbers(order))


class ArrowRows(Sequence[Row]):
    """The rows of a table whose columns are in memory: a row is made when it is asked for.

    Args:
        batch: a ``pyarrow.RecordBatch``.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.names: list[str] = batch.schema.names

    def __len__(self) -> int:
        return self.batch.num_rows

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        return {name: column[place].as_py() for name, column in zip(self.names, self.batch.columns, strict=True)}

    def column(self, name: str) -> list[Any]:
        """The values of a column; None for all where there is no such column."""
        return self.batch.column(name).to_pylist() if name in self.names else [None] * len(self)

    def is_constant(self, name: str) -> bool:
        """Whether a column certainly has one value, seen without making it; False with a NaN, which equals nothing."""
        column = self.batch.column(name)
        return column.slice(1).equals(column.slice(0, max(0, len(column) - 1)))

    def slices(self, rows: int) -> Iterator[Any]:
        """Record batches of so many rows."""
        for start in range(0, max(1, len(self)), rows):
            yield self.batch.slice(start, rows)


def column_of(table: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a column of rows; None where a row has none."""
    return table.column(name) if isinstance(table, ArrowRows) else [row.get(name) for row in table]


__all__ = ["ArrowRows", "column_of", "fixed_type", "in_order", "of_numbers", "plain_array"]
