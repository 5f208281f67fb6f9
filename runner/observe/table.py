"""The rows of a run, from its plan and its journal; works mid-run, and never imports ray."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import IO, Any

import numpy as np

from ..collector import paused
from ..store.columns import decoded, unnamed_event
from ..store.encoding import Damaged, plain
from ..store.files import StorageDenied, StorageFull, open_files
from ..store.follower import EVENTS, Detail, Event, EventReader, shape_of
from ..store.interface import why_of
from ..store.layout import NoPlace, RunFolder
from ..store.replay import Block, Replay, replay, run_state
from ..store.summary import Hashing, keep, shown_status, unfinished_word
from ..study.plan import planned_bytes
from ..study.trial_file import TrialList
from ..study.trial_list import Trial, Trials
from .arrow_columns import ArrowRows, column_of, fixed_type, in_order, of_numbers, plain_array

FIXED = (
    *("trial", "index", "replicate", "seed", "status", "loss", "gradient_norm", "seconds"),
    *("planned_bytes", "used_bytes", "used_of_planned", "attempts", "device", "launched", "checks"),
)
ERRORS = ("failure", "error_type", "error")
PREFIXES = (("grad", "gradients"), ("out", "outputs"))
GROUP_NUMBERS, GROUP_ROWS = 1 << 20, 4096
"""Limits of a row group of the Parquet table: numbers in arrays (at least one row), and rows."""
Row = dict[str, Any]


class Large(tuple[int, ...]):
    """The shape of an array that a row has left in the journal; ``each_row`` reads it."""

    def __str__(self) -> str:
        return f"[{'x'.join(map(str, self))}]"


def rows(folder: RunFolder) -> list[Row]:
    """One row per trial of the run, finished or not, in the order of the sweep, with all arrays."""
    return rows_of(folder, replay(folder, Detail.FULL))


def rows_of(folder: RunFolder, found: Replay, trials: Sequence[Trial] = (), run: str = "") -> list[Row]:
    """The rows of a run that was replayed; with as much of gradients and outputs as that has, ``Large`` where it is the shape.

    Of a trial whose parameters are damaged the row says ``damaged``, and what the journal has of it. A damaged plan costs the planned
    bytes of trials without a row, and is added to ``found.wrong``.

    Args:
        folder: the run.
        found: what its journal says.
        trials: where they are known.
        run: the state of the run, where it is known.
    """
    planned, unfinished = _planned(folder, found), unfinished_word(run or run_state(folder, found))
    listed = TrialList(list(trials), []) if trials else folder.found_trials()
    table = []
    for trial in (*listed.trials, *map(_stray, () if trials else found.strays)):
        state = found.trials.get(trial.id) or found.strays[trial.id]
        row = _waiting(trial, planned.get(trial.id))
        row |= {"status": shown_status(state, unfinished), "attempts": len(state.attempts)}
        if state.entry is not None:
            _end(row, state.entry.event)
        if trial.id in listed.damaged or trial.id in found.strays:
            row["status"] = "damaged"
        if not row["device"] and state.attempts:  # it has not ended, died without a word, or has no program
            row["device"] = state.attempts[-1].place.get("device")
        table.append(row)
    return table


def _planned(folder: RunFolder, found: Replay) -> dict[str, int | None]:
    try:
        return planned_bytes(folder.plan())
    except Damaged as error:
        found.wrong.append(str(error).partition("\n")[0].removeprefix(f"{folder.uri}/"))
        return {}


def _stray(name: str) -> Trial:
    """A trial of which ``trials.jsonl`` has lost the line."""
    return Trial(id=name, index=-1, replicate=0, seed=0, swept={}, params={})


def each_row(folder: RunFolder, found: Replay, table: Iterable[Row]) -> Iterator[Row]:
    """The rows with the arrays that they have left in the journal, one after the other."""
    lines = EventReader(folder)
    for row in table:
        if Large not in map(type, row.values()):
            yield row
            continue
        state = found.trials.get(row["trial"]) or found.strays[row["trial"]]
        assert state.entry is not None
        event = lines.at(state.entry)
        yield row | {
            f"{prefix}.{name}": numbers(value)
            for prefix, kind in PREFIXES
            for name, value in event.get(kind, {}).items()
            if not isinstance(value, dict)
        }


def row_of(trial: Trial, event: Event) -> Row:
    """The row of a trial by the event that ends it; ``attempts`` counts those that were used."""
    row = _waiting(trial, None)
    row |= {"status": event["status"], "attempts": event["attempt"]}
    _end(row, event)
    return row


_EMPTY: Row = dict.fromkeys((*FIXED, *ERRORS))


def _waiting(trial: Trial, planned: int | None) -> Row:
    row = _EMPTY.copy()
    row["trial"], row["index"], row["replicate"], row["seed"] = trial.id, trial.index, trial.replicate, trial.seed
    row["status"], row["planned_bytes"], row["attempts"] = "waiting", planned, 0
    row |= flat(trial.params, "param.")
    return row


def flat(params: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters with dotted names. A key that has the name of a nested one is quoted, as in ``{"a.b": 1, "a": {"b": 2}}``."""
    inner = {name: flat(value, f"{prefix}{name}.") for name, value in params.items() if isinstance(value, dict)}
    taken, values = set(chain.from_iterable(inner.values())), dict[str, Any]()
    for name, value in params.items():
        key = prefix + name
        values |= inner[name] if name in inner else {f"{prefix}{json.dumps(name)}" if key in taken else key: value}
    return values


def _end(row: Row, event: Event) -> None:
    row["failure"] = event.get("failure")
    for name in ("loss", "gradient_norm"):
        if event.get(name) is not None:
            row[name] = float(event[name])
    for name in ("seconds", "planned_bytes", "used_bytes", "device", "launched", "checks"):
        row[name] = event[name] if event.get(name) is not None else row[name]
    if row["planned_bytes"] and row["used_bytes"] is not None:
        row["used_of_planned"] = row["used_bytes"] / row["planned_bytes"]
    if event.get("error"):
        row |= {"error_type": event["error"]["type"], "error": event["error"]["message"]}
    if event.get("code"):
        row["code"] = event["code"]
    if event.get("artifacts"):
        row |= {"artifacts": event["artifacts"]["names"], "artifacts_folder": event["artifacts"]["path"]}
    for prefix, kind in PREFIXES:
        for name, value in event.get(kind, {}).items():  # large ones lie in files of their own: a column says which
            if isinstance(value, dict) and "file" in value:
                row[f"{prefix}_file.{name}"] = value["file"]
            else:
                row[f"{prefix}.{name}"] = Large(value["shape"]) if isinstance(value, dict) else numbers(value)
    for name in ("planned", "used"):
        for kind, value in event.get(name, {}).items():
            row[f"{name}.{kind}"] = value


def numbers(value: Any) -> Any:
    """Numbers as the journal keeps them, back as floats: ``"NaN"`` and the infinities included."""
    if type(value) is not list:
        return float(value)
    return value if {float}.issuperset(map(type, value)) else [numbers(item) for item in value]


def columns(table: Sequence[Row]) -> list[str]:
    """The names of all columns: the fixed ones, parameters, gradients, outputs, bytes by kind, and the error at the end."""
    seen = dict.fromkeys(name for names in dict.fromkeys(map(tuple, table)) for name in names)  # most rows have equal ones
    groups = ("param.", "grad.", "grad_file.", "out.", "out_file.", "planned.", "used.", "artifacts")
    named = [name for prefix in groups for name in seen if name.startswith(prefix)]
    return [*FIXED, *named, *ERRORS]


def arrow_table(table: Sequence[Row]) -> Any:
    """The rows as a ``pyarrow.Table``: scalars as columns, arrays as list columns."""
    import pyarrow as pa

    return pa.Table.from_batches(_batches(table, lambda rows: rows))


def _batches(table: Sequence[Row], whole: Callable[[Sequence[Row]], Iterable[Row]]) -> Iterator[Any]:
    """The rows as record batches of one schema, at least one. ``whole`` gives rows with all of their arrays; it is called in order."""
    import pyarrow as pa

    names = columns(table)
    arrays = {name: depth for name in names if name.startswith(("grad.", "out.")) and (depth := _depth_of(table, name))}
    light = {name: _column([row.get(name) for row in table], name) for name in names if name not in arrays}
    schema = pa.schema([(name, _nested(arrays[name]) if name in arrays else light[name].type) for name in names])
    for start, end in _groups(table, arrays):
        group = list(whole(table[start:end]))
        found = []
        for name in names:
            if name in arrays:
                values = [row.get(name) for row in group]
                values = [value if value is None else _wrap(value, arrays[name]) for value in values]
                found.append(pa.array(values, type=schema.field(name).type))
            else:
                found.append(light[name].slice(start, end - start))
        yield pa.record_batch(found, schema=schema)


def _depth_of(table: Sequence[Row], name: str) -> int:
    values = (row.get(name) for row in table)
    return max((len(value) if isinstance(value, Large) else _depth(value) for value in values if value is not None), default=0)


def _nested(depth: int) -> Any:
    import pyarrow as pa

    kind = pa.float64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def _groups(table: Sequence[Row], arrays: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The rows of each row group, by the numbers that are in them."""
    start = held = 0
    for at, row in enumerate(table):
        values = [row.get(name) for name in arrays]
        size = sum(math.prod(value if isinstance(value, Large) else shape_of(value)) for value in values if value is not None)
        if at > start and (held + size > GROUP_NUMBERS or at - start >= GROUP_ROWS):
            yield start, at
            start, held = at, 0
        held += size
    yield start, len(table)


def _column(values: list[Any], name: str) -> Any:
    import pyarrow as pa

    if (fixed := fixed_type(name)) is not None:
        return plain_array(values, fixed)
    kinds = set(map(type, values)) - {type(None)}
    flat_reals = kinds == {list} and {float} == set(map(type, chain.from_iterable(value or () for value in values)))
    depth = max((_depth(value) for value in values if value is not None), default=0) if list in kinds and not flat_reals else 0
    if depth:
        values = [value if value is None else _wrap(value, depth) for value in values]
    elif len(kinds) > 1 and not kinds <= {int, float}:
        return _as_text(values)
    try:
        return plain_array(values)
    except (pa.ArrowException, OverflowError, UnicodeError):  # values that no one type holds: kept as JSON text
        return _as_text(values)


def _as_text(values: list[Any]) -> Any:
    import pyarrow as pa

    return plain_array([value if value is None else json.dumps(value) for value in values], pa.string())


def _depth(value: Any) -> int:
    if not isinstance(value, list):
        return 0
    return 1 + max([_depth(item) for item in value if isinstance(item, list)], default=0)


def _wrap(value: Any, depth: int) -> Any:
    missing = depth - _depth(value)
    for _ in range(missing):
        value = [value]
    return value


def write_parquet(folder: RunFolder, path: str | os.PathLike[str] | None = None) -> str:
    """Rebuild the Parquet table of the run from its journal, atomically; returns its path. In its folder, a run's summary, too.
    Raises as ``write_table``.
    """
    write_table(folder, path)
    return folder.table if path is None else os.fspath(path)


def write_table(folder: RunFolder, path: str | os.PathLike[str] | None = None, trials: Sequence[Trial] = ()) -> Sequence[Row]:
    """As ``write_parquet``; gives the rows, ``Large`` where arrays are left in the journal. ``trials``: of the run, where they are known.

    The file says in its metadata whether the run had ended (``qdrun.complete``) and how (``qdrun.state``), and has checksums of its
    pages. It is written in row groups: what is in memory at once are the scalars of all rows, and the arrays of one group; of trials that
    ended well in batches, the columns.

    Raises:
        StorageFull: no room; an older table stays as it was.
        OSError: the table cannot be written; an older one stays as it was.
    """
    with paused():
        sizes = folder.files.sizes(EVENTS)
        found, made, group_rows = _of_batches(folder, trials)
        table = rows_of(folder, found, trials) if made is None else made
        state = found.finished["state"] if found.finished else "unfinished"
        said = {"qdrun.run": folder.name, "qdrun.complete": json.dumps(found.complete), "qdrun.state": str(state)}
        batches = _batches(table, lambda group: each_row(folder, found, group)) if made is None else made.slices(group_rows)
        with folder.files.writing("results.parquet") if path is None else writing(path) as stream:
            hashing = Hashing(stream)
            _stream(hashing, batches, said)
        if path is None:
            keep(folder, sizes, found, hashing.checksum)
        return table


def _of_batches(folder: RunFolder, trials: Sequence[Trial]) -> tuple[Replay, ArrowRows | None, int]:
    """The run, the table made of the columns of its batches, and the rows of a group of that.

    There is no table where there are no batches, or something is damaged, or left in the journal, or the columns of batches do not fit
    those of single trials.
    """
    listed = Trials.of(trials or folder.found_trials().trials)
    found = replay(folder, Detail.SMALL, trials=listed.ids if trials else None)
    blocks = [] if found.wrong or found.strays or found.damage else found.blocks()
    if not blocks:
        return found, None, 0
    alone = np.ones(len(listed), bool)
    alone[np.concatenate([block.places for block in blocks])] = False
    others = rows_of(folder, found, [listed[place] for place in np.flatnonzero(alone).tolist()]) if alone.any() else []
    if any(Large in map(type, row.values()) for row in others):
        return found, None, 0
    return found, _joined(listed, found, blocks, others), _group_rows(blocks)


def _joined(trials: Trials, found: Replay, blocks: Sequence[Block], others: Sequence[Row]) -> ArrowRows | None:
    """One table of the columns of batches and the rows of other trials; None where their types differ."""
    import pyarrow as pa

    firsts = [_first_row(trials, block) for block in blocks]
    parts, counts = [_columns_of(block) for block in blocks], [len(block.rows) for block in blocks]
    block_of_row = of_numbers(np.repeat(np.arange(len(counts)), counts))
    own_places = np.array([found.places[row["trial"]] for row in others], np.int64)
    places = np.concatenate([*(block.places for block in blocks), own_places])
    names, order = columns(sorted((*firsts, *others), key=lambda row: row["index"])), np.argsort(places)
    own: dict[str, list[Any]] = {
        "trial": trials.ids,
        "index": trials.indices,
        "replicate": trials.replicates,
        "seed": trials.seeds,
    }
    own |= _parameters(trials)
    arrays: dict[str, Any] = {}
    for name in names:
        if name in own:
            arrays[name] = _column(own[name], name)
            continue
        if any(name in part for part in parts):
            chunks = [part[name] if name in part else pa.nulls(count) for part, count in zip(parts, counts, strict=True)]
        else:  # what the trials of a block share
            chunks = [_column([first.get(name) for first in firsts], name).take(block_of_row)]
        if others:
            depth = _depth_of(others, name) if name.startswith(("grad.", "out.")) else 0
            values = [row.get(name) for row in others]
            values = [value if value is None or not depth else _wrap(value, depth) for value in values]
            chunks.append(pa.array(values, type=_nested(depth)) if depth else _column(values, name))
        arrays[name] = in_order(chunks, order, fixed_type(name))
        if arrays[name] is None:
            return None
    return ArrowRows(pa.record_batch(list(arrays.values()), names=list(arrays)))


def _parameters(trials: Trials) -> dict[str, list[Any]]:
    """The parameters of trials as columns with dotted names."""
    if trials.uneven is None and not any(dict in map(type, column) for column in trials.columns.values()):
        return {f"param.{name}": column for name, column in trials.columns.items()}
    rows = [flat(trial.params, "param.") for trial in trials]
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain.from_iterable(rows))}


def _first_row(trials: Trials, block: Block) -> Row:
    row = _waiting(trials[int(block.places[0])], None) | {"status": "done", "attempts": 1}
    _end(row, unnamed_event(block.event, int(block.rows[0])))
    return row


def _columns_of(block: Block) -> dict[str, Any]:
    """The columns in which the trials of a block have values of their own, but for parameters."""
    event = block.event
    named = dict(event["columns"])
    named |= {f"{prefix}.{name}": column for prefix, kind in PREFIXES for name, column in event.get(kind, {}).items()}
    return {name: of_numbers(decoded(column)[block.rows].astype(np.float64)) for name, column in named.items()}


def _group_rows(blocks: Sequence[Block]) -> int:
    """Rows of a row group of a table of batches."""
    events = [block.event for block in blocks]
    numbers = [
        sum(math.prod(column["shape"][1:]) for _, kind in PREFIXES for column in event.get(kind, {}).values())
        for event in events
    ]
    return max(1, min(GROUP_ROWS, GROUP_NUMBERS // max(1, *numbers)))


def _stream(stream: Any, batches: Iterator[Any], said: dict[str, str]) -> None:
    import pyarrow.parquet as pq

    first = next(batches)
    with pq.ParquetWriter(stream, first.schema.with_metadata(said), write_page_checksum=True) as writer:
        for batch in chain((first,), batches):
            writer.write_batch(batch.replace_schema_metadata(said))


def arrow(folder: RunFolder) -> Any:
    """The table of a run as a ``pyarrow.Table``: made in parts, so that arrays are in memory as Arrow has them alone."""
    import pyarrow as pa

    with paused():
        found, made, _ = _of_batches(folder, ())
        if made is not None:
            return pa.Table.from_batches([made.batch])
        return pa.Table.from_batches(_batches(rows_of(folder, found), lambda group: each_row(folder, found, group)))


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


def as_json(table: list[Row]) -> list[Row]:
    """The rows as strict JSON can hold them."""
    return [plain(row) for row in table]


def csv_lines(table: Iterable[Row], names: Sequence[str], escape_formulas: bool = False) -> Iterator[str]:
    """Yield the rows as CSV with a header, line by line. Arrays are JSON strings, missing values are empty.

    Args:
        table: the rows.
        names: of the columns.
        escape_formulas: put ``'`` before strings that a spreadsheet would run as a formula.
    """
    yield _csv_line(names)
    for row in table:
        values = [_csv_cell(row.get(name)) for name in names]
        yield _csv_line([_escaped(v) for v in values] if escape_formulas else values)


def _csv_cell(value: Any) -> Any:
    return "" if value is None else json.dumps(plain(value)) if isinstance(value, list | dict) else value


def _escaped(value: Any) -> Any:
    """Escape a formula as OWASP's page "CSV Injection" advises. Numbers are left alone: a sign is theirs."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value


def _csv_line(values: Sequence[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\r\n").writerow(values)  # Python before 3.11.9 quotes the characters of this alone
    return stream.getvalue().removesuffix("\r\n") + "\n"


def best(table: Sequence[Row]) -> Row | None:
    """The finished trial with the smallest loss."""
    ended = zip(column_of(table, "status"), column_of(table, "loss"), strict=True)
    losses = [(loss, place) for place, (status, loss) in enumerate(ended) if status == "done"]
    return table[min(losses)[1]] if losses else None
