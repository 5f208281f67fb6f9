"""Rows of a batch as columns: one line of the journal for all of its trials that ended well, one for all that began.

The event ``rows`` has the trials with the numbers of their attempts, ``columns`` with a row for each of them, and what is the same for all;
``begun`` has the trials alone, and where they run. In the journal ``at`` has their places in the sweep, as ranges, and ``attempts`` is one
number where all are equal; older journals name the ``trials``. ``expanded`` makes ``ended`` and ``started`` events, one per trial. A column
is base64 of its bytes: bits stay as they are, and no number is parsed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..value_columns import array_of, from_base64, places_in, ranges_of

Event = dict[str, Any]
Array = np.ndarray[Any, Any]
ROWS, BEGUN = "rows", "begun"
ARRAYS = ("gradients", "outputs")
LINE_BYTES = 4 << 20
"""Maximum bytes of columns in one line of the journal (unless it has one row): a damaged line loses all of its rows."""


class StoredColumn(NamedTuple):
    """One number or array per trial: numpy's type and shape, with the trials as first axis, and its bytes as base64."""

    dtype: str
    shape: list[int]
    data: str


class BatchRows(NamedTuple):
    """Trials of a batch that succeeded.

    Attributes:
        trials: their ids; in the runner their places in the sweep.
        attempts: the numbers of their attempts.
        shared: the parts that all records have in common.
        columns: ``loss``, and ``gradient_norm`` if there are gradients.
        gradients, outputs: columns by name.
        best: index of the smallest loss, and that loss.
    """

    trials: Sequence[Any]
    attempts: tuple[int, ...]
    shared: dict[str, Any]
    columns: dict[str, StoredColumn]
    gradients: dict[str, StoredColumn]
    outputs: dict[str, StoredColumn]
    best: tuple[int, float]

    def event(self) -> Event:
        """The fields of the event ``rows``."""
        named = {name: getattr(self, name) for name in ("columns", *ARRAYS)}
        arrays = {name: {key: column._asdict() for key, column in found.items()} for name, found in named.items()}
        return who(self.trials, self.attempts) | self.shared | arrays

    def outputs_of(self, row: int) -> dict[str, Any]:
        """The outputs of one trial, as its record would have them."""
        return {name: decoded(column._asdict())[row].tolist() for name, column in self.outputs.items()}


def encoded(array: Array) -> StoredColumn:
    """An array as a column."""
    array = np.asarray(array)
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return StoredColumn(plain.dtype.str, list(array.shape), base64.b64encode(plain.tobytes()).decode("ascii"))


def decoded(column: Mapping[str, Any]) -> Array:
    """The array of a column, as the journal has it."""
    return from_base64(column["data"], column["dtype"], column["shape"])


def made(
    trials: Sequence[Any],
    attempts: tuple[int, ...],
    shared: dict[str, Any],
    losses: Array,
    norms: Array | None,
    gradients: Mapping[str, Array],
    outputs: Mapping[str, Array],
) -> Iterator[BatchRows]:
    """The rows of a batch, in as many parts as lines are needed."""
    bytes_each = sum(array.nbytes for array in (*gradients.values(), *outputs.values())) // max(1, len(trials)) + 16
    step = max(1, LINE_BYTES // bytes_each)
    for start in range(0, len(trials), step):
        part = slice(start, start + step)
        columns = {"loss": losses} | ({} if norms is None else {"gradient_norm": norms})
        at = int(np.argmin(losses[part]))
        named = [{name: encoded(array[part]) for name, array in found.items()} for found in (columns, gradients, outputs)]
        yield BatchRows(trials[part], attempts[part], shared, *named, best=(at, float(losses[start + at])))


def who(trials: Sequence[Any], attempts: Sequence[int]) -> Event:
    """What an event of a batch says of its trials, known by id or by place, and of their attempts."""
    if isinstance(trials[0], str):
        return {"trials": list(trials), "attempts": list(attempts)}
    equal = attempts.count(attempts[0]) == len(attempts)
    return {"at": ranges_of(array_of(trials)), "attempts": attempts[0] if equal else list(attempts)}


def named_at(names: Sequence[str], places: Mapping[str, int]) -> Array:
    """The places of trials; of one that has none, -1."""
    return np.fromiter((places.get(name, -1) for name in names), np.int64, len(names))


def attempts_of(event: Event, count: int) -> Array:
    """The numbers of the attempts of an event of a batch of ``count`` trials."""
    return np.broadcast_to(np.array(event["attempts"], np.int32), count)


def names_of(event: Event, ids: Sequence[str]) -> list[str]:
    """The trials of an event of a batch. ``ids``: of the run; a place that has none, as its line is lost, is ``line-<number>``."""
    if "trials" in event:
        return list(event["trials"])
    places: list[int] = places_in(event["at"]).tolist()
    return [ids[place] if place < len(ids) else f"line-{place + 1}" for place in places]


def expanded(event: Event, ids: Sequence[str] = ()) -> list[Event]:
    """An event of a batch as the events of its trials, any other as it is. Of an array that was left in the journal, the shape.

    ``ids``: of the run, see ``names_of``.
    """
    kind = event["event"]
    if kind not in (ROWS, BEGUN):
        return [event]
    beside = ("trials", "at", "attempts", "columns", *ARRAYS)
    names = names_of(event, ids)
    shared = {name: value for name, value in event.items() if name not in beside}
    shared["event"] = "ended" if kind == ROWS else "started"
    scalars = [[name, decoded(column).tolist()] for name, column in event.get("columns", {}).items()]
    named = [name for name in ARRAYS if event.get(name)]
    arrays = {name: {key: _values(column) for key, column in event[name].items()} for name in named}
    out = []
    for row, (trial, attempt) in enumerate(zip(names, attempts_of(event, len(names)).tolist(), strict=True)):
        one = {**shared, "trial": trial, "attempt": attempt}
        for name, values in scalars:
            one[name] = values[row]
        for name, found in arrays.items():
            one[name] = {key: values[row] if type(values) is list else values for key, values in found.items()}
        out.append(one)
    return out


def _values(column: Mapping[str, Any]) -> list[Any] | dict[str, Any]:
    """The values of all trials, as lists; the shape of one where they were left in the journal."""
    return decoded(column).tolist() if "data" in column else {"shape": list(column["shape"][1:])}


__all__ = [
    "ARRAYS",
    "BEGUN",
    "ROWS",
    "BatchRows",
    "StoredColumn",
    "attempts_of",
    "decoded",
    "encoded",
    "expanded",
    "made",
    "named_at",
    "names_of",
    "places_in",
    "ranges_of",
    "who",
]
