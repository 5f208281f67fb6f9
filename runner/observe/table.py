"""The rows of a run, from its plan and its journal; works mid-run, and never imports ray."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

import numpy as np

from ..collector import paused
from ..query.run_table import (
    ERRORS,
    FIXED,
    NUMBERS,
    Column,
    Large,
    Row,
    RunTable,
    as_arrow,
    as_column,
    codes_of,
    columns_of,
    depth_of,
    in_order,
    is_json,
    is_shared,
    nested,
    of_numbers,
    offsets_of,
    values_of,
)
from ..query.table_file import MIXED
from ..store.columns import ARRAYS, decoded
from ..store.encoding import Damaged
from ..store.files import StorageDenied, StorageFull, open_files
from ..store.follower import EVENTS, Detail, Event, EventReader, JournalEntry, shape_of
from ..store.interface import why_of
from ..store.layout import NoPlace, RunFolder
from ..store.replay import RUNNING, STATUSES, Block, Replay, replay, run_state
from ..store.summary import Hashing, keep, unfinished_word
from ..study.plan import PlannedBytes
from ..study.trial_file import TrialList
from ..study.trial_list import Trial, Trials
from ..value_columns import ABSENT, ValueColumn, columns_of_rows, repeated

PREFIXES = {"grad": "gradients", "out": "outputs"}
GROUP_NUMBERS, GROUP_ROWS = 1 << 20, 4096
"""Limits of a row group of the Parquet table: numbers in arrays (at least one row), and rows."""
Array = np.ndarray[Any, Any]


def rows(folder: RunFolder) -> list[Row]:
    """One row per trial of the run, finished or not, in the order of the sweep, with all arrays."""
    with paused():
        found, trials = read_run(folder)
        return list(each_row(folder, found, rows_of(folder, found, trials)))


def read_run(folder: RunFolder) -> tuple[Replay, Sequence[Trial]]:
    """What the journal of a run says, with small arrays, and the trials; none where some are damaged, see ``rows_of``."""
    listed = folder.found_trials()
    if listed.problems or not listed.trials:
        return replay(folder, Detail.SMALL), ()
    return replay(folder, Detail.SMALL, trials=listed.trials.ids), listed.trials


def rows_of(folder: RunFolder, found: Replay, trials: Sequence[Trial] = (), run: str = "") -> RunTable:
    """The table of a run that was replayed; with as much of gradients and outputs as that has, ``Large`` where it is the shape.

    Trials that ended in batches, or have no row, are columns of the journal; the others make a row each. Of a trial whose parameters are
    damaged the row says ``damaged``, and what the journal has of it. A damaged plan costs the planned bytes of trials without a row, and is
    added to ``found.wrong``.

    Args:
        folder: the run.
        found: what its journal says.
        trials: where they are known.
        run: the state of the run, where it is known.
    """
    planned, unfinished = _planned(folder, found), unfinished_word(run or run_state(folder, found))
    listed = TrialList(Trials.of(trials), []) if trials else folder.found_trials()
    strays = [] if trials else list(map(_stray, found.strays))
    made = Trials.of([*listed.trials, *strays]) if strays else listed.trials
    columns: dict[str, Any] = {"trial": made.ids[:], "index": _integers(made.indices)}
    columns |= {"replicate": _integers(made.replicates), "seed": _integers(made.seeds[:])} | _parameters(made)
    columns |= {"status": _statuses(found, listed.damaged, unfinished, len(made))}
    parts, own = [_of_blocks(found), _of_unended(found, planned)], np.ones(len(made), bool)
    for part in parts:
        own[part.places] = False
    parts.append(_of_rows(found, np.flatnonzero(own), made.ids, planned))
    order = np.argsort(np.concatenate([part.places for part in parts]))
    of_events = dict.fromkeys(chain.from_iterable(part.columns for part in parts))
    known = {name: as_column(values, name) for name, values in columns.items()}
    known |= {name: in_order([part.column(name) for part in parts], order, name) for name in of_events}
    return RunTable.of_columns(known, uneven=made.uneven is not None)


def _integers(values: Sequence[int]) -> Array | Sequence[int]:
    """Integers as an array of i64; as they are where they need more bits."""
    try:
        return np.arange(values.start, values.stop, values.step) if isinstance(values, range) else np.asarray(values, np.int64)
    except OverflowError:
        return values


def _stray(name: str) -> Trial:
    """A trial of which ``trials.jsonl`` has lost the line."""
    return Trial(id=name, index=-1, replicate=0, seed=0, swept={}, params={})


def _parameters(trials: Trials) -> dict[str, Sequence[Any]]:
    """The parameters of trials as columns with dotted names."""
    plain = all(isinstance(c.values, np.ndarray) or dict not in map(type, c.values) for c in trials.columns.values())
    if trials.uneven is None and plain:
        return {f"param.{name}": column for name, column in trials.columns.items()}
    if trials.uneven is None:
        parts = {
            name: columns_of_rows([flat({name: value}, "param.") for value in column.distinct()])
            for name, column in trials.columns.items()
        }
        even = not any(ABSENT in column.values for part in parts.values() for column in part.values())
        if even and not any("." in name for name in trials.columns):  # no name is quoted, see `flat`
            places = {name: column.places for name, column in trials.columns.items()}
            return {name: ValueColumn(one.tolist(), places[of]) for of, part in parts.items() for name, one in part.items()}
    rows = [flat(trial.params, "param.") for trial in trials]
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain.from_iterable(rows))}


@dataclass(frozen=True)
class _Piece:
    """Columns of some trials, and the places of these in the table."""

    places: Array
    columns: dict[str, Column]

    def column(self, name: str) -> Column:
        """A column; without values where it is not there."""
        return self.columns[name] if name in self.columns else as_column([None] * len(self.places))


def _statuses(found: Replay, damaged: Collection[str], unfinished: str, count: int) -> ValueColumn:
    """The status of each trial that is shown; ``damaged`` of those that ``trials.jsonl`` does not have."""
    words = [unfinished or status if code <= RUNNING else status for code, status in enumerate(STATUSES)]
    shown = np.full(count, len(words), np.int32)
    shown[: len(found.status)] = found.status
    lost = {name for one in found.damage for name in one.trials if unfinished and not found.has_row(name)}
    for name in {*damaged, *lost} & found.places.keys() if damaged or lost else ():
        shown[found.places[name]] = len(words)
    words, used = [*words, "damaged"], np.flatnonzero(np.bincount(shown))
    return ValueColumn.shared(words[used[0]], count) if len(used) == 1 else ValueColumn(words, shown)


def _of_blocks(found: Replay) -> _Piece:
    """The trials that ended well in batches: columns as the journal has them, and what the trials of a batch share."""
    blocks = sorted(found.blocks(), key=lambda block: block.places[0])  # mostly the order of the sweep: nothing is moved
    if not blocks:
        return _Piece(np.zeros(0, np.int64), {})
    places, counts = np.concatenate([block.places for block in blocks]), [len(block.rows) for block in blocks]
    shared = [_shared(block.event) for block in blocks]
    names = dict.fromkeys(chain.from_iterable(shared))
    columns: dict[str, Column] = {
        name: as_column(repeated([row.get(name) for row in shared], counts), name) for name in names if name not in _OF_TRIAL
    }
    each = [_arrays_of(block) for block in blocks]
    for name in dict.fromkeys(chain.from_iterable(each)):
        found_here = [part.get(name) for part in each]
        arrays = [array for array in found_here if isinstance(array, np.ndarray)]
        if len(arrays) == len(each) and len({array.shape[1:] for array in arrays}) == 1:
            columns[name] = of_numbers(np.concatenate(arrays))
        else:
            chunks = [_chunk(array, count) for array, count in zip(found_here, counts, strict=True)]
            columns[name] = in_order(chunks, np.arange(len(places)), name)
    return _Piece(places, columns)


_OF_TRIAL = ("trial", "index", "replicate", "seed", "status")


def _shared(event: Event) -> Row:
    """What all trials of a batch have in common."""
    return {"attempts": 1} | _values({name: value for name, value in event.items() if name not in ARRAYS})


def _chunk(array: Array | Large | None, count: int) -> Column:
    """A column of one block: of numbers, of an array that was left in the journal, or of nothing."""
    return of_numbers(array) if isinstance(array, np.ndarray) else as_column(ValueColumn.shared(array, count))


def _arrays_of(block: Block) -> dict[str, Array | Large]:
    """What the trials of a block have each their own of, but for parameters; of what was left in the journal, the shape."""
    event = block.event
    named = dict(event["columns"])
    named |= {f"{prefix}.{name}": column for prefix, kind in PREFIXES.items() for name, column in event.get(kind, {}).items()}
    return {
        name: decoded(column)[block.rows].astype(np.float64, copy=False) if "data" in column else Large(column["shape"][1:])
        for name, column in named.items()
    }


def _of_unended(found: Replay, planned: PlannedBytes) -> _Piece:
    """The trials that wait, or run for the first time."""
    places, devices = np.flatnonzero(found.unended()), dict[int, Any]()
    for event, running in found.begun():
        devices |= dict.fromkeys(running.tolist(), event.get("device"))
    listed: list[int] = places.tolist()
    columns = {"attempts": [int(place in devices) for place in listed], "device": list(map(devices.get, listed))}
    if planned:
        columns["planned_bytes"] = [planned[place] for place in listed]
    return _Piece(places, {name: as_column(values, name) for name, values in columns.items()})


def _of_rows(found: Replay, places: Array, ids: Sequence[str], planned: PlannedBytes) -> _Piece:
    """Trials with a line of their own, or that were tried again."""
    table = []
    for place in map(int, places):
        name = ids[place]
        state = found.state_at(place) if place < len(found.ids) else found.strays[name]
        row = {"attempts": len(state.attempts)} | _values({} if state.entry is None else state.entry.event, planned[place])
        if not row.get("device") and state.attempts:  # it has not ended, died without a word, or has no program
            row["device"] = state.attempts[-1].place.get("device")
        table.append(row)
    return _Piece(places, {name: column for name, column in columns_of(table).items() if name not in _OF_TRIAL})


def _planned(folder: RunFolder, found: Replay) -> PlannedBytes:
    try:
        return PlannedBytes(folder.plan(found.ids))
    except Damaged as error:
        found.wrong.append(str(error).partition("\n")[0].removeprefix(f"{folder.uri}/"))
        return PlannedBytes()


def each_row(folder: RunFolder, found: Replay, table: RunTable) -> Iterator[Row]:
    """The rows with the arrays that they have left in the journal, one after the other."""
    for part in parts_of(folder, found, table):
        yield from part.rows()


def parts_of(folder: RunFolder, found: Replay, table: RunTable) -> Iterator[RunTable]:
    """The table in parts of a row group each, at least one, with the arrays that it has left in the journal."""
    large, lines = table.large(), EventReader(folder)
    for start, end in _groups(table):
        yield filled(folder, found, table[start:end], large, lines)


def filled(
    folder: RunFolder, found: Replay, table: RunTable, names: Iterable[str], lines: EventReader | None = None
) -> RunTable:
    """The table with the arrays of these columns that it has left in the journal."""
    lines, made = lines or EventReader(folder), dict[str, Column]()
    for name in names:
        prefix, _, of = name.partition(".")
        values, trials = table.column(name), table.column("trial")
        for place, value in enumerate(values):
            if isinstance(value, Large):
                values[place] = numbers(lines.at(_entry(found, trials[place]))[PREFIXES[prefix]][of])
        made[name] = as_column(values, name)
    return table.replaced(made) if made else table


def _entry(found: Replay, name: str) -> JournalEntry:
    """The line that has the row of a trial."""
    state = found.strays.get(name) or found.trials[name]
    assert state.entry is not None
    return state.entry


def row_of(trial: Trial, event: Event) -> Row:
    """The row of a trial by the event that ends it; ``attempts`` counts those that were used."""
    row: Row = dict.fromkeys((*FIXED, *ERRORS)) | {"trial": trial.id, "index": trial.index, "replicate": trial.replicate}
    row |= {"seed": trial.seed, "status": event["status"], "attempts": event["attempt"]}
    return row | flat(trial.params, "param.") | _values(event)


def flat(params: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters with dotted names. A key that has the name of a nested one is quoted, as in ``{"a.b": 1, "a": {"b": 2}}``."""
    inner = {name: flat(value, f"{prefix}{name}.") for name, value in params.items() if isinstance(value, dict)}
    taken, values = set(chain.from_iterable(inner.values())), dict[str, Any]()
    for name, value in params.items():
        key = prefix + name
        values |= inner[name] if name in inner else {f"{prefix}{json.dumps(name)}" if key in taken else key: value}
    return values


def _values(event: Event, planned: int | None = None) -> Row:
    """What a row has from the event that ends its trial. ``planned``: its bytes, where the event does not say."""
    row: Row = {"planned_bytes": planned}
    for name in ("loss", "gradient_norm"):
        if event.get(name) is not None:
            row[name] = float(event[name])
    for name in ("failure", "seconds", "planned_bytes", "used_bytes", "device", "launched", "checks", "code"):
        if event.get(name) is not None:
            row[name] = event[name]
    if row["planned_bytes"] and row.get("used_bytes") is not None:
        row["used_of_planned"] = row["used_bytes"] / row["planned_bytes"]
    if event.get("error"):
        row |= {"error_type": event["error"]["type"], "error": event["error"]["message"]}
    if event.get("artifacts"):
        row |= {"artifacts": event["artifacts"]["names"], "artifacts_folder": event["artifacts"]["path"]}
    for prefix, kind in PREFIXES.items():
        for name, value in event.get(kind, {}).items():  # large ones lie in files of their own: a column says which
            if isinstance(value, dict) and "file" in value:
                row[f"{prefix}_file.{name}"] = value["file"]
            else:
                row[f"{prefix}.{name}"] = Large(value["shape"]) if isinstance(value, dict) else numbers(value)
    return row | {f"{name}.{kind}": value for name in ("planned", "used") for kind, value in event.get(name, {}).items()}


def numbers(value: Any) -> Any:
    """Numbers as the journal keeps them, back as floats: ``"NaN"`` and the infinities included."""
    if type(value) is not list:
        return float(value)
    return value if {float}.issuperset(map(type, value)) else [numbers(item) for item in value]


def batches_of(folder: RunFolder, found: Replay, table: RunTable) -> Iterator[Any]:
    """The table as record batches of one schema, at least one, with all arrays; those of one are in memory at once."""
    large = table.large()
    types = {name: nested(max(map(depth_of, table.column(name)), default=0)) for name in large}
    mixed = [name for name in table.mixed() if name not in large]  # all of their values say what a file has
    table = table.replaced({name: as_arrow(table.data.column(name), name) for name in mixed}) if mixed else table
    for part in parts_of(folder, found, table):
        yield part.batch(types)


def _groups(table: RunTable) -> Iterator[tuple[int, int]]:
    """The rows of each row group, by the numbers that are in them."""
    sizes = sum(
        (_sizes(table.data.column(name)) for name in table.names if name.startswith(NUMBERS)), np.zeros(len(table), np.int64)
    )
    start, ends = 0, np.cumsum(sizes)
    while start < len(table):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + GROUP_NUMBERS, side="right")))
        yield start, (start := min(end, start + GROUP_ROWS, len(table)))
    if not len(table):
        yield 0, 0


def _sizes(column: Column) -> Array:
    """The numbers in each value of a column."""
    if is_shared(column):
        return _sizes(column.dictionary)[codes_of(column)]
    if is_json(column):
        shapes = [
            value if isinstance(value, Large) else () if value is None else shape_of(value) for value in values_of(column)
        ]
        return np.fromiter(map(math.prod, shapes), np.int64, len(column))
    sizes = np.ones(len(column), np.int64)
    ends = np.arange(len(column) + 1)
    while hasattr(column, "flatten"):
        ends, column = offsets_of(column)[ends], column.values
        sizes = np.diff(ends)
    return sizes


def write_parquet(folder: RunFolder, path: str | os.PathLike[str] | None = None) -> str:
    """Rebuild the Parquet table of the run from its journal, atomically; returns its path. In its folder, a run's summary, too.
    Raises as ``write_table``.
    """
    write_table(folder, path)
    return folder.table if path is None else os.fspath(path)


def write_table(folder: RunFolder, path: str | os.PathLike[str] | None = None, trials: Sequence[Trial] = ()) -> RunTable:
    """As ``write_parquet``; gives the table, ``Large`` where arrays are left in the journal. ``trials``: of the run, where they are known.

    The file says in its metadata whether the run had ended (``qdrun.complete``) and how (``qdrun.state``), and has checksums of its
    pages. It is written in row groups: what is in memory at once are the arrays of one group, and all numbers that are single or in small
    arrays.

    Raises:
        StorageFull: no room; an older table stays as it was.
        OSError: the table cannot be written; an older one stays as it was.
    """
    with paused():
        sizes = folder.files.sizes(EVENTS)
        found = replay(folder, Detail.SMALL, trials=Trials.of(trials).ids if trials else None)
        table = rows_of(folder, found, trials)
        state = found.finished["state"] if found.finished else "unfinished"
        said = {"qdrun.run": folder.name, "qdrun.complete": json.dumps(found.complete), "qdrun.state": str(state)}
        said[MIXED] = json.dumps(table.mixed())
        with folder.files.writing("results.parquet") if path is None else writing(path) as stream:
            hashing = Hashing(stream)
            _stream(hashing, batches_of(folder, found, table), said)
        if path is None:
            keep(folder, sizes, found, hashing.checksum)
        return table


def _stream(stream: Any, batches: Iterator[Any], said: dict[str, str]) -> None:
    import pyarrow.parquet as pq

    first = next(batches)
    with pq.ParquetWriter(stream, first.schema.with_metadata(said), write_page_checksum=True) as writer:
        for batch in chain((first,), batches):
            writer.write_batch(batch.replace_schema_metadata(said))


def arrow(folder: RunFolder) -> Any:
    """The table of a run as a ``pyarrow.Table``: made in parts, so that arrays are in memory as Arrow has them alone."""
    with paused():
        found, trials = read_run(folder)
        return arrow_of(folder, found, rows_of(folder, found, trials))


def arrow_of(folder: RunFolder, found: Replay, table: RunTable) -> Any:
    """Rows as a ``pyarrow.Table`` with all arrays."""
    import pyarrow as pa

    return pa.Table.from_batches(batches_of(folder, found, table) if table.large() else [table.batch()])


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A stream into a file that is written whole, with the folders that it needs, at a path or a URI.

    Raises:
        StorageFull: no room; an older file stays as it was.
        NoPlace: it cannot be written.
    """
    target = os.fspath(path)
    where, slash, name = target.rpartition("/")
    try:
        with open_files(where or slash or ".").writing(name) as stream:
            yield stream
    except OSError as error:
        if isinstance(error, StorageFull) and not isinstance(error, StorageDenied):
            raise
        raise NoPlace(
            f"cannot write {target}: {why_of(error)}\n  do: name a file in a folder in which you may write"
        ) from error


def write_file(path: str | os.PathLike[str], data: bytes) -> str:
    """Write a file whole at a path or a URI; gives it back as text. Raises as ``writing``."""
    with writing(path) as stream:
        stream.write(data)
    return os.fspath(path)
