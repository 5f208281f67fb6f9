"""The table of a run in memory: one column per name, as Arrow has them. Rows are made when they are asked for.

pyarrow is imported when a table is made: it takes a seventh of a second, and ``submit`` and ``status`` start without it. Arrays are made of
buffers where they can be: ``pyarrow.array`` and ``to_numpy`` load pandas where that is installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np

from ..value_columns import ValueColumn, as_numbers, flattened

Row = dict[str, Any]
Array = np.ndarray[Any, Any]
Column = Any
"""A ``pyarrow.Array``; a ``ValueColumn`` of parameters, where values that are equal are there once; or a list, of values that no one type
of Arrow gives back as they are."""
FIXED = (
    *("trial", "index", "replicate", "seed", "status", "loss", "gradient_norm", "seconds"),
    *("planned_bytes", "used_bytes", "used_of_planned", "attempts", "device", "launched", "checks"),
)
ERRORS = ("failure", "error_type", "error")
INTEGERS = ("index", "replicate", "seed", "attempts", "planned_bytes", "used_bytes")
REALS = ("loss", "gradient_norm", "used_of_planned", "seconds")
GROUPS = ("param.", "grad.", "grad_file.", "out.", "out_file.", "planned.", "used.", "artifacts")
NUMBERS = ("grad.", "out.")
AT_ONCE = 4096


class Large(tuple[int, ...]):
    """The shape of an array that a row has left in the journal; ``each_row`` reads it."""

    def __str__(self) -> str:
        return f"[{'x'.join(map(str, self))}]"


def column_names(names: Iterable[str]) -> list[str]:
    """The names of all columns: the fixed ones, parameters, gradients, outputs, bytes by kind, and the error at the end."""
    seen = list(dict.fromkeys(names))
    return [*FIXED, *(name for prefix in GROUPS for name in seen if name.startswith(prefix)), *ERRORS]


class RunTable(Sequence[Row]):
    """Rows of a run as columns.

    Attributes:
        columns: by name, all of one length.
        partial: columns that a row leaves out where it has no value.
    """

    def __init__(self, columns: Mapping[str, Column], count: int, uneven: bool = False) -> None:
        self.columns, self._count = columns, count
        kinds = [prefix for prefix in GROUPS if uneven or prefix != "param."]
        self.partial = [name for name in columns if name == "code" or name.startswith(tuple(kinds))]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> RunTable:
        """The table of rows that were made one by one."""
        if isinstance(rows, RunTable):
            return rows
        names = dict.fromkeys(chain.from_iterable(dict.fromkeys(map(tuple, rows))))
        found = [
            *column_names(names),
            *(name for name in names if name not in (*FIXED, *ERRORS) and not name.startswith(GROUPS)),
        ]
        return cls({name: as_column([row.get(name) for row in rows], name) for name in found}, len(rows), uneven=True)

    @property
    def names(self) -> list[str]:
        """The columns of the table as files have it."""
        return [name for name in self.columns if name != "code"]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> RunTable: ...
    def __getitem__(self, place: int | slice) -> Row | RunTable:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            size = max(0, stop - start)
            return self._like({name: _slice(column, start, size) for name, column in self.columns.items()}, size)
        at = range(len(self))[place]
        return next(iter(self[at : at + 1]))

    def __iter__(self) -> Iterator[Row]:
        return self.rows()

    def _like(self, columns: Mapping[str, Column], count: int) -> RunTable:
        made = RunTable(columns, count)
        made.partial = [name for name in self.partial if name in columns]
        return made

    def take(self, places: Array) -> RunTable:
        """The rows at these places, in their order."""
        at, index = places.tolist(), of_numbers(np.asarray(places, np.int64))
        cut = lambda c: [c[k] for k in at] if isinstance(c, list) else c.take(places if isinstance(c, ValueColumn) else index)  # noqa: E731
        return self._like({name: cut(column) for name, column in self.columns.items()}, len(at))

    def only(self, names: Iterable[str]) -> RunTable:
        """These columns."""
        return self._like({name: self.columns[name] for name in names}, len(self))

    def replaced(self, name: str, column: Column) -> RunTable:
        """The same with another column of this name."""
        return self._like({**self.columns, name: column}, len(self))

    def complete(self) -> RunTable:
        """The same, where each row has each column."""
        made = RunTable(self.columns, len(self))
        made.partial = []
        return made

    def rows(self) -> Iterator[Row]:
        """The rows, one after the other."""
        names = list(self.columns)
        for start in range(0, len(self), AT_ONCE):
            part = self[start : start + AT_ONCE]
            values = [values_of(part.columns[name]) for name in names]
            some = [name for name, column in zip(names, values, strict=True) if name in self.partial and None in column]
            for one in zip(*values, strict=True):
                row = dict(zip(names, one, strict=True))
                for name in some:
                    if row[name] is None:
                        del row[name]
                yield row

    def column(self, name: str) -> list[Any]:
        """The values of a column; None for all where there is no such column."""
        return values_of(self.columns[name]) if name in self.columns else [None] * len(self)

    def numbers(self, name: str) -> tuple[Array, Array] | None:
        """The numbers of a column, and where there are some; None where it has other values."""
        column = self.columns[name]
        if isinstance(column, ValueColumn):
            found = column.numbers()
            return None if found is None or found.ndim > 1 else (found, np.ones(len(found), bool))
        return None if isinstance(column, list) else numbers_of(column)

    def is_constant(self, name: str) -> bool:
        """Whether a column certainly has one value, seen without making it; False with a NaN, which equals nothing."""
        column = self.columns[name]
        if isinstance(column, ValueColumn):
            return column.is_shared
        return not isinstance(column, list) and column.slice(1).equals(column.slice(0, max(0, len(column) - 1)))

    def is_mixed(self, name: str) -> bool:
        """Whether a column has values that no one type of Arrow gives back."""
        column = self.columns[name]
        if isinstance(column, ValueColumn):
            return isinstance(as_column(column.values, name), list)
        if not isinstance(column, list) or Large not in map(type, column):
            return isinstance(column, list)
        return len({depth_of(value) for value in column if value is not None}) > 1

    def large(self) -> list[str]:
        """The columns that have arrays which were left in the journal."""
        return [name for name, column in self.columns.items() if isinstance(column, list) and Large in map(type, column)]

    def batch(self, types: Mapping[str, Any] | None = None) -> Any:
        """The table as a ``pyarrow.RecordBatch``. ``types``: of columns whose values do not say it, see ``as_arrow``."""
        import pyarrow as pa

        made = [as_arrow(self.columns[name], name, (types or {}).get(name)) for name in self.names]
        return pa.record_batch(made, names=self.names)


def _slice(column: Column, start: int, size: int) -> Column:
    if isinstance(column, ValueColumn):
        return column.take(np.arange(start, start + size))
    return column[start : start + size] if isinstance(column, list) else column.slice(start, size)


def column_of(table: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a column of rows; None where a row has none."""
    return table.column(name) if isinstance(table, RunTable) else [row.get(name) for row in table]


def fixed_type(name: str) -> Any:
    """The type of a column that every table has; None for others, whose values decide."""
    import pyarrow as pa

    if name in INTEGERS or name in REALS:
        return pa.int64() if name in INTEGERS else pa.float64()
    return pa.string() if name in (*FIXED, *ERRORS, "code") else None


def as_column(values: Sequence[Any] | Array, name: str = "") -> Column:
    """Values as an Arrow array, if that gives the same ones back; else as a list."""
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.size:
        return of_numbers(values)
    values = values if isinstance(values, list) else list(values)
    there = [value for value in values if value is not None]
    if not there:
        return pa.nulls(len(values), fixed_type(name) or pa.null())
    real = name in REALS and set(map(type, there)) <= {float, int}
    numbers = as_numbers(list(map(float, there)) if real else there)
    if numbers is not None and len(there) == len(values) and (numbers.ndim == 1 or numbers.dtype.kind == "f"):
        return of_numbers(numbers)
    if numbers is not None and numbers.ndim == 1:
        valid = np.array([value is not None for value in values])
        filled = np.zeros(len(values), numbers.dtype)
        filled[valid] = numbers
        return of_numbers(filled, valid)
    inner, depth = flattened(there)
    kinds = set(map(type, inner))
    if len(kinds) > 1 or not kinds <= {float, int, str, bool} or (depth and not kinds and not name.startswith(NUMBERS)):
        return values
    try:
        if depth == 0 and kinds == {str}:
            return of_texts(values)
        return pa.array(values, type=nested(depth) if kinds <= {float} else None, from_pandas=False)
    except (pa.ArrowException, OverflowError, UnicodeError):  # too large an integer, half a character
        return values


def nested(depth: int) -> Any:
    """The type of arrays of real numbers with so many dimensions."""
    import pyarrow as pa

    kind = pa.float64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def as_arrow(column: Column, name: str = "", wanted: Any = None) -> Any:
    """A column as a ``pyarrow.Array``, also where Arrow does not give the same values back, see ``as_file``."""
    if isinstance(column, ValueColumn):
        made = as_arrow(as_column(column.values, name), name, wanted)
        return made if column.places is None else _at(made, column.places)
    made = as_column(column, name) if isinstance(column, list) else column
    if isinstance(made, list) or (isinstance(column, list) and wanted is not None and made.type != wanted):
        return as_file(column, name, wanted)
    return made if wanted is None or made.type == wanted else made.cast(wanted)


def _at(values: Any, places: Array) -> Any:
    """The values of an Arrow array at these places. Numbers and a single text need no ``pyarrow.compute``, which takes 40 ms to load."""
    import pyarrow as pa

    found = numbers_of(values)
    if found is not None:
        valid = found[1][places]
        return of_numbers(found[0][places], None if valid.all() else valid)
    if len(values) > 1 or values.type != pa.string() or values.null_count:
        return values.take(of_numbers(np.asarray(places, np.int64)))
    text, count = values[0].as_py().encode(), len(places)
    if len(text) * count >= 1 << 31:
        raise OverflowError("texts of more than 2 GiB")
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])


def as_file(values: list[Any], name: str, wanted: Any = None) -> Any:
    """Values of several types as a file has them: arrays of fewer dimensions get lists of one item, other values become JSON texts."""
    import pyarrow as pa

    depth = max((depth_of(value) for value in values if value is not None), default=0)
    if name.startswith(NUMBERS):
        wanted = nested(depth) if wanted is None else wanted
        while nested(depth) != wanted:
            depth += 1
    wrapped = [value if value is None else _wrapped(value, depth) for value in values]
    if depth or set(map(type, values)) <= {int, float, type(None)}:
        try:
            return pa.array(wrapped, type=wanted, from_pandas=False)
        except (pa.ArrowException, OverflowError, UnicodeError):
            pass
    return of_texts([value if value is None else json.dumps(value) for value in wrapped])


def depth_of(value: Any) -> int:
    """The number of dimensions of an array as lists."""
    if isinstance(value, Large):
        return len(value)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def _wrapped(value: Any, depth: int) -> Any:
    for _ in range(depth - depth_of(value)):
        value = [value]
    return value


def of_numbers(array: Array, valid: Array | None = None) -> Any:
    """An array of numbers, trials first, as an Arrow array; of several dimensions as lists. ``valid``: which have a value; None: all."""
    import pyarrow as pa

    types = {"f8": pa.float64(), "i8": pa.int64(), "i4": pa.int32()}
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    out = pa.Array.from_buffers(types[flat.dtype.str[1:]], len(flat), [bits, pa.py_buffer(flat)])
    for depth in range(array.ndim - 1, 0, -1):
        ends = np.arange(math.prod(array.shape[:depth]) + 1, dtype=np.int32) * array.shape[depth]
        out = pa.ListArray.from_arrays(of_numbers(ends), out)
    return out


def of_texts(values: Sequence[str | None]) -> Any:
    """Strings, some of which may be None, as an Arrow array. Raises ``UnicodeError``, and ``OverflowError`` beyond 2 GiB."""
    import pyarrow as pa

    valid = np.array([value is not None for value in values]) if None in values else None
    texts = [value or "" for value in values]
    joined = "".join(texts)
    if joined.isascii():
        data, sizes = joined.encode(), map(len, texts)
    else:
        parts = [text.encode() for text in texts]
        data, sizes = b"".join(parts), map(len, parts)
    ends = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(sizes, np.int64, len(values)), out=ends[1:])
    if ends[-1] >= 1 << 31:
        raise OverflowError("texts of more than 2 GiB")
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(values), [bits, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)])


def numbers_of(column: Any) -> tuple[Array, Array] | None:
    """The numbers of an Arrow array, 0 where there is none, and where there are some; None for other types."""
    import pyarrow as pa

    types = {pa.float64(): np.float64, pa.int64(): np.int64, pa.int32(): np.int32}
    if column.type not in types:
        return None
    size, start = len(column), column.offset
    valid = np.ones(size, bool)
    bits, data = column.buffers()
    if column.null_count:
        valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=start + size, bitorder="little")[start:].astype(bool)
    numbers = (
        np.frombuffer(data, types[column.type], size, start * np.dtype(types[column.type]).itemsize) if size else np.zeros(0)
    )
    return numbers if valid.all() else np.where(valid, numbers, 0), valid


def flat_numbers(column: Any) -> Array | None:
    """All numbers of an Arrow array of numbers or of lists of them; None of others."""
    import pyarrow as pa

    while pa.types.is_list(column.type):
        column = column.flatten()
    found = numbers_of(column)
    return None if found is None else found[0][found[1]]


def offsets_of(column: Any) -> Array:
    """Where the lists of an Arrow array begin in ``column.values``, and where the last one ends."""
    ends = column.offsets
    return np.frombuffer(ends.buffers()[1], np.int32, len(ends), ends.offset * 4)


def values_of(column: Column) -> list[Any]:
    """The values of a column as Python has them."""
    import pyarrow as pa

    if isinstance(column, list | ValueColumn) or not len(column):
        return list(column)
    found = numbers_of(column)
    if found is not None and found[1].all():
        return found[0].tolist()
    if pa.types.is_list(column.type) and not column.null_count:
        inner, widths = column.flatten(), np.diff(offsets_of(column))
        if (widths == widths[0]).all() and widths[0]:
            items, width = values_of(inner), int(widths[0])
            return [items[k : k + width] for k in range(0, len(items), width)]
    return column.to_pylist()


def in_order(chunks: Sequence[Column], order: Array, name: str) -> Column:
    """Parts of a column as one column in another order: the k-th value is the ``order[k]``-th of the parts, one after the other."""
    import pyarrow as pa

    filled, moved = [chunk for chunk in chunks if len(chunk)], not np.array_equal(order, np.arange(len(order)))
    if len(filled) == 1 and isinstance(filled[0], ValueColumn):
        return filled[0].take(order) if moved else filled[0]
    chunks = [as_arrow(chunk, name) if isinstance(chunk, ValueColumn) else chunk for chunk in chunks]
    types = {chunk.type for chunk in chunks if not isinstance(chunk, list) and chunk.type != pa.null()}
    if len(types) > 1 or any(isinstance(chunk, list) for chunk in chunks):
        values = list(chain.from_iterable(map(values_of, chunks)))
        return as_column([values[place] for place in order.tolist()], name)
    kind = types.pop() if types else fixed_type(name) or pa.null()
    typed = [pa.nulls(len(chunk), kind) if chunk.type != kind else chunk for chunk in chunks if len(chunk) or len(chunks) == 1]
    whole = typed[0] if len(typed) == 1 else pa.concat_arrays(typed) if typed else pa.nulls(0, kind)
    return whole.take(of_numbers(order)) if moved else whole


__all__ = ["ERRORS", "FIXED", "Large", "RunTable", "as_column", "column_names", "column_of", "in_order", "values_of"]
