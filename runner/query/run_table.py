"""The table of a run in memory: a ``pyarrow.RecordBatch``, of which every view is a slice. Rows are made when they are asked for.

A column is an array of numbers, texts or lists; a dictionary array, of values that many trials share; or a dictionary of ``binary``, the
JSON of values that no one type of Arrow gives back as they are.

pyarrow is imported when a table is made: it takes a seventh of a second, and ``submit`` and ``status`` start without it. Arrays are made of
buffers where they can be: ``pyarrow.array`` loads pandas where that is installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np

from ..value_columns import ValueColumn, as_numbers, flattened

Row = dict[str, Any]
Array = np.ndarray[Any, Any]
Column = Any
"""A ``pyarrow.Array``."""
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


class RunTable(Sequence[Row]):
    """Rows of a run.

    Attributes:
        data: its columns, a ``pyarrow.RecordBatch``.
        partial: columns that a row leaves out where it has no value; with ``uneven`` parameters are among them.
    """

    def __init__(self, data: Any, partial: Iterable[str] | None = None, *, uneven: bool = False) -> None:
        kinds = tuple(prefix for prefix in GROUPS if uneven or prefix != "param.")
        names = (name for name in data.schema.names if name == "code" or name.startswith(kinds))
        self.data, self.partial = data, frozenset(names if partial is None else partial)

    @classmethod
    def of_columns(cls, columns: Mapping[str, Column], uneven: bool = False) -> RunTable:
        """The table of columns, in the order of files. ``uneven``: rows may lack parameters."""
        import pyarrow as pa

        seen = [name for name in columns if name not in (*FIXED, *ERRORS)]
        grouped = [name for prefix in GROUPS for name in seen if name.startswith(prefix)]
        names = [*FIXED, *grouped, *ERRORS, *(name for name in seen if not name.startswith(GROUPS))]
        count = max(map(len, columns.values()), default=0)
        made = [columns[name] if name in columns else as_column([None] * count, name) for name in names]
        return cls(pa.record_batch(made, names=names), uneven=uneven)

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> RunTable:
        """The table of rows that were made one by one."""
        return rows if isinstance(rows, RunTable) else cls.of_columns(columns_of(rows), uneven=True)

    @property
    def names(self) -> list[str]:
        """The columns of the table as files have it."""
        return [name for name in self.data.schema.names if name != "code"]

    def __len__(self) -> int:
        return self.data.num_rows

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> RunTable: ...
    def __getitem__(self, place: int | slice) -> Row | RunTable:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            return RunTable(self.data.slice(start, max(0, stop - start)), self.partial)
        at = range(len(self))[place]
        return next(iter(self[at : at + 1]))

    def __iter__(self) -> Iterator[Row]:
        return self.rows()

    def take(self, places: Array) -> RunTable:
        """The rows at these places, in their order."""
        return RunTable(self.data.take(of_numbers(np.asarray(places, np.int64))), self.partial)

    def part(self, names: Iterable[str], places: Array | None = None) -> RunTable:
        """These columns, of the rows at these places, in their order; None: of all."""
        some = RunTable(self.data.select(list(names)), self.partial)
        return some if places is None else some.take(places)

    def replaced(self, columns: Mapping[str, Column]) -> RunTable:
        """The same with other columns of these names."""
        import pyarrow as pa

        names = self.data.schema.names
        made = [columns.get(name, column) for name, column in zip(names, self.data.columns, strict=True)]
        return RunTable(pa.record_batch(made, names=names), self.partial)

    def rows(self) -> Iterator[Row]:
        """The rows, one after the other."""
        names = self.data.schema.names
        for start in range(0, len(self), AT_ONCE):
            values = [values_of(column) for column in self.data.slice(start, AT_ONCE).columns]
            some = [name for name, of in zip(names, values, strict=True) if name in self.partial and None in of]
            for one in zip(*values, strict=True):
                row = dict(zip(names, one, strict=True))
                for name in some:
                    if row[name] is None:
                        del row[name]
                yield row

    def column(self, name: str) -> list[Any]:
        """The values of a column; None for all where there is no such column."""
        return values_of(self.data.column(name)) if name in self.data.schema.names else [None] * len(self)

    def mapped(self, name: str, function: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """What a function makes of the values of a column; it is called with those that rows share once."""
        column = self.data.column(name)
        if not is_shared(column) or len(column.dictionary) > len(column):
            return function(values_of(column))
        made = function(values_of(column.dictionary))
        return [made[code] for code in codes_of(column).tolist()]

    def numbers(self, name: str) -> tuple[Array, Array] | None:
        """The numbers of a column, and where there are some; None where it has other values."""
        return numbers_of(self.data.column(name))

    def is_constant(self, name: str) -> bool:
        """Whether a column certainly has one value, seen without making it; False with a NaN, which equals nothing."""
        column = self.data.column(name)
        if is_shared(column):
            return len(column.dictionary) == 1
        return column.slice(1).equals(column.slice(0, max(0, len(column) - 1)))

    def mixed(self) -> list[str]:
        """The columns with values that no one type of Arrow gives back; arrays that were left in the journal count by their depth."""
        found = {name: values_of(column.dictionary) for name, column in self._json()}
        depths = {name: {depth_of(value) for value in values if value is not None} for name, values in found.items()}
        return [name for name, values in found.items() if Large not in map(type, values) or len(depths[name]) > 1]

    def large(self) -> list[str]:
        """The columns that have arrays which were left in the journal."""
        return [name for name, column in self._json() if Large in map(type, values_of(column.dictionary))]

    def _json(self) -> list[tuple[str, Column]]:
        return [
            (name, column) for name, column in zip(self.data.schema.names, self.data.columns, strict=True) if is_json(column)
        ]

    def batch(self, types: Mapping[str, Any] | None = None) -> Any:
        """The table as files have it, a ``pyarrow.RecordBatch``. ``types``: of columns whose values do not say it, see ``as_arrow``."""
        import pyarrow as pa

        made = [as_arrow(self.data.column(name), name, (types or {}).get(name)) for name in self.names]
        return pa.record_batch(made, names=self.names)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """The columns of rows that were made one by one."""
    names = dict.fromkeys(chain.from_iterable(dict.fromkeys(map(tuple, rows))))
    return {name: as_column([row.get(name) for row in rows], name) for name in names}


def column_of(table: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a column of rows; None where a row has none."""
    return table.column(name) if isinstance(table, RunTable) else [row.get(name) for row in table]


def is_shared(column: Column) -> bool:
    """Whether it is a dictionary array."""
    return hasattr(column, "dictionary")


def is_json(column: Column) -> bool:
    """Whether its values are there as JSON."""
    import pyarrow as pa

    return (column.type.value_type if is_shared(column) else column.type) == pa.binary()


def fixed_type(name: str) -> Any:
    """The type of a column that every table has; that of nothing for others, whose values decide."""
    import pyarrow as pa

    if name in INTEGERS or name in REALS:
        return pa.int64() if name in INTEGERS else pa.float64()
    return pa.string() if name in (*FIXED, *ERRORS, "code") else pa.null()


def as_column(values: Sequence[Any] | Array, name: str = "") -> Column:
    """Values as a column that gives the same ones back."""
    import pyarrow as pa

    if isinstance(values, ValueColumn):
        made = as_column(values.values, name)
        return made if values.places is None else coded(values.places, made)
    if isinstance(values, np.ndarray) and values.size:
        return of_numbers(values)
    values = values if isinstance(values, list) else list(values)
    kinds = set(map(type, values))
    if np.ndarray in kinds:
        return as_column([value.tolist() if isinstance(value, np.ndarray) else value for value in values], name)
    there = [value for value in values if value is not None] if type(None) in kinds else values
    if not there:
        return pa.nulls(len(values), fixed_type(name))
    try:
        if kinds <= {str, type(None)}:
            return of_texts(values)
        real = name in REALS and kinds <= {float, int, type(None)}
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
        if (len(kinds) == 1 and kinds <= {float, int, str, bool}) or (not kinds and name.startswith(NUMBERS)):
            return pa.array(values, type=nested(depth) if kinds <= {float} else None, from_pandas=False)
    except (pa.ArrowException, OverflowError, UnicodeError):  # too large an integer, half a character
        pass
    return as_json(values)


def as_json(values: Sequence[Any]) -> Column:
    """Values as JSON, equal ones once; ``Large`` as the journal says it: only there is a value a map."""
    known = {id(value): value for value in values}  # of many rows one object
    said = {key: json.dumps({"shape": value} if isinstance(value, Large) else value) for key, value in known.items()}
    places = {text: place for place, text in enumerate(dict.fromkeys(said.values()))}
    return coded(np.array([places[said[id(value)]] for value in values]), of_texts(list(places)).cast("binary"))


def coded(codes: Array, values: Column) -> Column:
    """A dictionary array: of each row the place of its value."""
    import pyarrow as pa

    if is_shared(values):
        codes, values = codes_of(values)[codes], values.dictionary
    return pa.DictionaryArray.from_arrays(of_numbers(np.asarray(codes, np.int32)), values)


def codes_of(column: Column) -> Array:
    """Of each row of a dictionary array the place of its value."""
    found = numbers_of(column.indices)
    assert found is not None
    return found[0]


def decoded(column: Column) -> Column:
    """A column without a dictionary. One value and numbers need no ``pyarrow.compute``, which takes 30 ms to load."""
    import pyarrow as pa

    if not is_shared(column):
        return column
    if len(column.dictionary) == 1:
        return pa.repeat(column.dictionary[0], len(column))
    numbers = numbers_of(column)
    return column.dictionary_decode() if numbers is None else of_numbers(numbers[0], None if numbers[1].all() else numbers[1])


def nested(depth: int) -> Any:
    """The type of arrays of real numbers with so many dimensions."""
    import pyarrow as pa

    kind = pa.float64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def as_arrow(column: Column, name: str = "", wanted: Any = None) -> Any:
    """A column as files have it: each row its value. Values of several types get one: arrays of fewer dimensions lists of one item, others
    JSON texts.
    """
    if is_json(column):
        used, codes = np.unique(codes_of(column), return_inverse=True)
        values = values_of(column.dictionary.take(of_numbers(used)))
        made = as_column(values, name)
        fits = not is_json(made) and wanted in (None, made.type)
        return (made if fits else _as_file(values, name, wanted)).take(of_numbers(codes))
    made = decoded(column)
    return made if wanted in (None, made.type) else made.cast(wanted)


def _as_file(values: list[Any], name: str, wanted: Any) -> Any:
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


def numbers_of(column: Column) -> tuple[Array, Array] | None:
    """The numbers of an Arrow array, 0 where there is none, and where there are some; None for other types."""
    import pyarrow as pa

    if is_shared(column):
        found = numbers_of(column.dictionary)
        return None if found is None else (found[0][codes_of(column)], found[1][codes_of(column)])
    types = {pa.float64(): np.float64, pa.int64(): np.int64, pa.int32(): np.int32}
    if column.type not in types:
        return None
    size, start = len(column), column.offset
    valid = np.ones(size, bool)
    bits, data = column.buffers()
    if column.null_count:
        valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=start + size, bitorder="little")[start:].astype(bool)
    width = np.dtype(types[column.type]).itemsize
    numbers = np.frombuffer(data, types[column.type], size, start * width) if size else np.zeros(0, types[column.type])
    return numbers if valid.all() else np.where(valid, numbers, 0), valid


def flat_numbers(column: Column) -> Array | None:
    """All numbers of an Arrow array of numbers or of lists of them; None of others."""
    import pyarrow as pa

    column = decoded(column)
    while pa.types.is_list(column.type):
        column = column.flatten()
    found = numbers_of(column)
    return None if found is None else found[0][found[1]]


def offsets_of(column: Column) -> Array:
    """Where the lists of an Arrow array begin in ``column.values``, and where the last one ends."""
    ends = column.offsets
    return np.frombuffer(ends.buffers()[1], np.int32, len(ends), ends.offset * 4)


def values_of(column: Column) -> list[Any]:
    """The values of a column as Python has them."""
    import pyarrow as pa

    if is_shared(column):
        codes = codes_of(column)
        if len(column.dictionary) > len(codes):
            return values_of(column.dictionary.take(of_numbers(codes)))
        values = values_of(column.dictionary)
        return values * len(codes) if len(values) == 1 else [values[code] for code in codes.tolist()]
    found = numbers_of(column)
    if found is not None and found[1].all():
        return found[0].tolist()
    if is_json(column):
        loaded = map(json.loads, column.to_pylist())
        return [Large(value["shape"]) if isinstance(value, dict) else value for value in loaded]
    if pa.types.is_list(column.type) and len(column) and not column.null_count:
        inner, widths = column.flatten(), np.diff(offsets_of(column))
        if (widths == widths[0]).all() and widths[0]:
            items, width = values_of(inner), int(widths[0])
            return [items[k : k + width] for k in range(0, len(items), width)]
    return column.to_pylist()


def in_order(chunks: Sequence[Column], order: Array, name: str) -> Column:
    """Parts of a column as one column in another order: the k-th value is the ``order[k]``-th of the parts, one after the other."""
    import pyarrow as pa

    filled = [chunk for chunk in chunks if len(chunk)]
    if len(filled) > 1 and any(map(is_json, filled)):
        whole = as_column(list(chain.from_iterable(map(values_of, filled))), name)
    else:
        plain = filled if len(filled) == 1 else list(map(decoded, filled))
        kinds = {chunk.type for chunk in plain if chunk.type != pa.null()}
        if len(kinds) > 1:
            whole = as_column(list(chain.from_iterable(map(values_of, plain))), name)
        else:
            kind = kinds.pop() if kinds else fixed_type(name)
            typed = [chunk if chunk.type == kind else pa.nulls(len(chunk), kind) for chunk in plain]
            whole = typed[0] if len(typed) == 1 else pa.concat_arrays(typed) if typed else pa.nulls(0, kind)
    return whole if np.array_equal(order, np.arange(len(order))) else whole.take(of_numbers(order))


__all__ = ["ERRORS", "FIXED", "Large", "RunTable", "as_arrow", "as_column", "column_of", "columns_of", "in_order", "values_of"]
