"""Columns of values, one per trial: what is equal in many of them is there once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np
from pydantic_core import CoreConfig, SchemaValidator, core_schema, to_json

Array = np.ndarray[Any, Any]
Places = Sequence[int]
"""Places of trials in the sweep, in order: a ``range`` where they follow one another, else a tuple."""
ABSENT = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""The value of a row that does not have the column."""
_BASE64: Any = SchemaValidator(core_schema.bytes_schema(), CoreConfig(val_json_bytes="base64"))
"""Five times as fast as ``base64.b64decode``."""


def from_base64(text: str, dtype: str, shape: Sequence[int]) -> Array:
    """The array of bytes that are written as base64."""
    return np.frombuffer(_BASE64.validate_strings(text), dtype).reshape(shape)


def index_of(places: Places) -> slice | Array:
    """The index of places into arrays with an element for each trial; a range gives a view."""
    return slice(places.start, places.stop) if isinstance(places, range) else np.asarray(places, np.int64)


def array_of(places: Places) -> Array:
    """Places as an array."""
    return np.arange(places.start, places.stop) if isinstance(places, range) else np.asarray(places, np.int64)


def places_of(found: Array) -> Places:
    """The places of an array in rising order."""
    if len(found) and int(found[-1]) - int(found[0]) == len(found) - 1:
        return range(int(found[0]), int(found[-1]) + 1)
    return tuple(found.tolist())


def group_numbers(groups: Sequence[Places]) -> Array:
    """The number of the group of each place; -1 where it is in none."""
    found = np.full(max((group[-1] + 1 for group in groups if len(group)), default=0), -1, np.int32)
    for number, group in enumerate(groups):
        found[index_of(group)] = number
    return found


def ranges_of(places: Array) -> list[int]:
    """Places as half-open ranges, one after the other: 0, 1, 2, 7 are ``[0, 3, 7, 8]``."""
    ends = np.flatnonzero(np.diff(places) != 1)
    starts, stops = places[np.append(0, ends + 1)], places[np.append(ends, len(places) - 1)] + 1
    return np.stack([starts, stops], axis=1).ravel().tolist()


def places_in(ranges: Sequence[int]) -> Array:
    """The places of ``ranges_of``."""
    return np.concatenate([np.arange(a, b) for a, b in zip(ranges[::2], ranges[1::2], strict=True)])


class ValueColumn(Sequence[Any]):
    """Values of plain data, one per row.

    Args:
        values: the values; numbers, or arrays of one shape, may be an array of f64 or i64, (values, ..).
        places: of each row the place of its value; None: row k has value k.
    """

    __slots__ = ("places", "values")

    def __init__(self, values: Sequence[Any] | Array, places: Array | None = None) -> None:
        self.values, self.places = values, places

    @classmethod
    def shared(cls, value: Any, count: int) -> ValueColumn:
        """One value for all rows."""
        return cls([value], np.broadcast_to(np.int32(0), count))

    @classmethod
    def of(cls, column: Sequence[Any]) -> ValueColumn:
        """A column of a list, with one value where all rows have the same object."""
        if isinstance(column, ValueColumn):
            return column
        first = column[0] if len(column) else None
        alike = len(column) > 1 and all(value is first for value in column)
        return cls.shared(first, len(column)) if alike else cls(column)

    def __len__(self) -> int:
        return len(self.values) if self.places is None else len(self.places)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return self.take(np.arange(*place.indices(len(self)))).tolist()
        value = self.values[place if self.places is None else self.places[place]]
        return value.tolist() if isinstance(value, np.generic | np.ndarray) else value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return repr(self.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.tolist() == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def distinct(self) -> list[Any]:
        """The values, each at least once."""
        return self.values.tolist() if isinstance(self.values, np.ndarray) else list(self.values)

    def tolist(self) -> list[Any]:
        """The value of each row."""
        values = self.distinct()
        if self.places is None or self.is_shared:
            return values * (len(self) if self.is_shared else 1)
        return [values[place] for place in self.places.tolist()]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have one object."""
        return len(self.values) == 1

    def take(self, places: Array | Places) -> ValueColumn:
        """The values of some rows."""
        if isinstance(places, range) and self.places is None:
            return ValueColumn(self.values[places.start : places.stop])
        if self.places is None:
            at = places if isinstance(places, np.ndarray) else np.asarray(places, np.int64)
        else:
            at = self.places[places if isinstance(places, np.ndarray) else index_of(places)]
        if len(at) >= len(self.values) or self.is_shared:
            return ValueColumn(self.values, at)
        return ValueColumn(self.values[at] if isinstance(self.values, np.ndarray) else [self.values[k] for k in at.tolist()])

    def mapped(self, function: Callable[[list[Any]], Sequence[Any] | Array]) -> ValueColumn:
        """The column of what a function makes of the values, one of each."""
        return ValueColumn(function(self.distinct()), self.places)

    def distinct_numbers(self) -> Array | None:
        """``distinct`` as an array of f64 or i64, (values, ..); None where they are not all of one type and shape."""
        return self.values if isinstance(self.values, np.ndarray) else as_numbers(self.values)

    def numbers(self) -> Array | None:
        """The values of all rows as an array, (rows, ..), see ``distinct_numbers``."""
        found = self.distinct_numbers()
        return found if found is None or self.places is None else found[self.places]

    def all_differ(self) -> bool:
        """Whether no two rows are equal, as far as that can be told quickly."""
        numbers = self.distinct_numbers() if self.places is None else None
        if numbers is None or not numbers.size:
            return False
        return len(np.unique(numbers.reshape(len(numbers), -1)[:, 0])) == len(numbers)

    def codes(self) -> Array:
        """A number for each row, equal where values have the same text, keys in any order: 1 is neither 1.0 nor true."""
        if isinstance(self.values, np.ndarray):
            bits = np.ascontiguousarray(self.values).view(np.int64).reshape(len(self.values), -1)
            codes = np.unique(bits[:, 0] if bits.shape[1] == 1 else bits, axis=0, return_inverse=True)[1].reshape(-1)
        else:
            seen = dict[Any, int]()
            codes = np.array([seen.setdefault(_key(value), len(seen)) for value in self.values], np.int64)
        return codes if self.places is None else codes[self.places]


def joined(columns: Sequence[ValueColumn]) -> ValueColumn:
    """Columns one after the other."""
    if len(columns) == 1:
        return columns[0]
    if all(column.is_shared for column in columns):
        return repeated([column[0] for column in columns], [len(column) for column in columns])
    numbers = [column.numbers() for column in columns]
    known = [array for array in numbers if array is not None]
    if len(known) == len(numbers) and len({(array.dtype, array.shape[1:]) for array in known}) == 1:
        return ValueColumn(np.concatenate(known))
    return ValueColumn(list(chain.from_iterable(column.tolist() for column in columns)))


def repeated(values: Sequence[Any], counts: Sequence[int]) -> ValueColumn:
    """A column of values that so many rows each have, one after the other."""
    seen = dict[bytes, tuple[int, Any]]()
    places = [seen.setdefault(_text(value), (len(seen), value))[0] for value in values]
    distinct = [value for _, value in seen.values()]
    if len(distinct) == 1:
        return ValueColumn.shared(distinct[0], sum(counts))
    return ValueColumn(distinct, np.repeat(np.array(places, np.int32), counts))


def _text(value: Any) -> bytes:
    """The JSON text of a value: 1 is neither 1.0 nor true."""
    if value is ABSENT:
        return b""
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:  # a lone surrogate
        return json.dumps(value).encode()


def narrowed(values: list[Any]) -> ValueColumn:
    """A column with one value where all of them have the same text."""
    first = values[0]
    text = _text(first)
    same = all(value is first or _text(value) == text for value in values)
    return ValueColumn.shared(first, len(values)) if same else ValueColumn(values)


def columns_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, ValueColumn]:
    """The columns of rows as maps, ``ABSENT`` where a row does not have one."""
    names = dict.fromkeys(chain.from_iterable(dict.fromkeys(map(tuple, rows))))
    return {name: ValueColumn.of([row.get(name, ABSENT) for row in rows]) for name in names}


def flattened(values: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """The items of nested lists, and how deep all of them lie."""
    depth = 0
    while len(values) and {list} == set(map(type, values)):
        values, depth = list(chain.from_iterable(values)), depth + 1
    return values, depth


def as_numbers(values: Sequence[Any]) -> Array | None:
    """Numbers of one type, or arrays of them of one shape, as an array of f64 or i64; None of other values."""
    kinds = set(map(type, flattened(values)[0]))
    if kinds not in ({float}, {int}):
        return None
    try:
        return np.array(values, np.float64 if kinds == {float} else np.int64)
    except (OverflowError, ValueError):  # too large an integer; rows of several lengths
        return None


def _key(value: Any) -> Any:
    if type(value) is float and value and not math.isnan(value):
        return value
    if type(value) is str:
        return value
    if isinstance(value, dict):
        return "{", *sorted((key, _key(item)) for key, item in value.items())
    return ("[", *map(_key, value)) if isinstance(value, list) else (type(value), repr(value))


__all__ = ["ABSENT", "Array", "ValueColumn", "as_numbers", "columns_of_rows", "flattened", "joined", "narrowed"]
