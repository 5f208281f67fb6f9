"""The rows of a run, from its plan and its journal; works mid-run, and never imports ray."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from typing import Any

from ..plan import planned_bytes
from ..trials import Trial
from .files import StorageFull, open_files
from .journal import EVENTS, Event, plain, read
from .layout import NoPlace, RunFolder
from .replay import Replay, replay
from .summary import keep, shown_status, unfinished_word

FIXED = (
    *("trial", "index", "replicate", "seed", "status", "loss", "gradient_norm", "seconds"),
    *("planned_bytes", "used_bytes", "used_of_planned", "attempts", "device"),
)
ERRORS = ("failure", "error_type", "error")
Row = dict[str, Any]


def rows(folder: RunFolder) -> list[Row]:
    """One row for each trial of the run, in the order of the sweep, finished or not."""
    trials = folder.trials()
    return rows_of(folder, replay(folder, trials=[trial.id for trial in trials], slim=False), trials)


def rows_of(folder: RunFolder, found: Replay, trials: Sequence[Trial] = ()) -> list[Row]:
    """The rows of a run that was replayed; with gradients and outputs when that was not ``slim``. ``trials``: where they are known."""
    planned, unfinished = planned_bytes(folder.plan()), unfinished_word(folder, found)
    table = []
    for trial in trials or folder.trials():
        row, state = _waiting(trial, planned.get(trial.id)), found.trials[trial.id]
        row |= {"status": shown_status(state, unfinished), "attempts": len(state.attempts)}
        if state.entry is not None:
            _end(row, state.entry.event)
        if not row["device"] and state.attempts:  # it has not ended, died without a word, or has no program
            row["device"] = state.attempts[-1].place.get("device")
        table.append(row)
    return table


def _waiting(trial: Trial, planned: int | None) -> Row:
    row: Row = dict.fromkeys((*FIXED, *ERRORS))
    row |= {"trial": trial.id, "index": trial.index, "replicate": trial.replicate, "seed": trial.seed}
    row |= {"status": "waiting", "planned_bytes": planned, "attempts": 0}
    return row | {f"param.{name}": value for name, value in flat(trial.params).items()}


def flat(params: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters with dotted names."""
    values: dict[str, Any] = {}
    for name, value in params.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values


def _end(row: Row, event: Event) -> None:
    row["failure"] = event.get("failure")
    for name in ("loss", "gradient_norm"):
        if event.get(name) is not None:
            row[name] = float(event[name])
    for name in ("seconds", "planned_bytes", "used_bytes", "device"):
        row[name] = event[name] if event.get(name) is not None else row[name]
    if row["planned_bytes"] and row["used_bytes"] is not None:
        row["used_of_planned"] = row["used_bytes"] / row["planned_bytes"]
    if event.get("error"):
        row |= {"error_type": event["error"]["type"], "error": event["error"]["message"]}
    for prefix, kind in (("grad", "gradients"), ("out", "outputs")):
        for name, value in event.get(kind, {}).items():  # large ones lie in files of their own: a column says which
            large = isinstance(value, dict)
            row[f"{prefix}_file.{name}" if large else f"{prefix}.{name}"] = value["file"] if large else numbers(value)
    row |= {f"planned.{kind}": value for kind, value in event.get("planned", {}).items()}
    row |= {f"used.{kind}": value for kind, value in event.get("used", {}).items()}


def numbers(value: Any) -> Any:
    """Numbers as the journal keeps them, back as floats: ``"NaN"`` and the infinities included."""
    return [numbers(item) for item in value] if isinstance(value, list) else float(value)


def columns(table: list[Row]) -> list[str]:
    """The names of all columns: the fixed ones, parameters, gradients, outputs, bytes by kind, and the error at the end."""
    seen = dict.fromkeys(name for row in table for name in row)
    groups = ("param.", "grad.", "grad_file.", "out.", "out_file.", "planned.", "used.")
    named = [name for prefix in groups for name in seen if name.startswith(prefix)]
    return [*FIXED, *named, *ERRORS]


def arrow_table(table: list[Row]) -> Any:
    """The rows as a ``pyarrow.Table``: scalars as columns, arrays as list columns."""
    import pyarrow as pa

    data = {name: _column([row.get(name) for row in table], name) for name in columns(table)}
    return pa.table(data)


def _column(values: list[Any], name: str) -> Any:
    import pyarrow as pa

    fixed = {"index": pa.int64(), "replicate": pa.int64(), "seed": pa.int64(), "attempts": pa.int64(), "loss": pa.float64()}
    fixed |= {"gradient_norm": pa.float64()}
    fixed |= {"planned_bytes": pa.int64(), "used_bytes": pa.int64()}
    fixed |= {"used_of_planned": pa.float64(), "seconds": pa.float64()}
    fixed |= dict.fromkeys(("trial", "status", "device", "failure", "error_type", "error"), pa.string())
    if name in fixed:
        return pa.array(values, type=fixed[name])
    depth = max((_depth(value) for value in values if value is not None), default=0)
    if depth:
        values = [value if value is None else _wrap(value, depth) for value in values]
    elif not _one_type(values):
        return _as_text(values)
    try:
        return pa.array(values, from_pandas=False)
    except (pa.ArrowException, OverflowError, UnicodeError):  # values that no one type holds: kept as JSON text
        return _as_text(values)


def _as_text(values: list[Any]) -> Any:
    import pyarrow as pa

    return pa.array([value if value is None else json.dumps(value) for value in values], type=pa.string())


def _depth(value: Any) -> int:
    return 1 + max((_depth(item) for item in value), default=0) if isinstance(value, list) else 0


def _wrap(value: Any, depth: int) -> Any:
    missing = depth - _depth(value)
    for _ in range(missing):
        value = [value]
    return value


def _one_type(values: list[Any]) -> bool:
    kinds = {type(value) for value in values if value is not None}
    return len(kinds) <= 1 or kinds <= {int, float}


def write_parquet(folder: RunFolder, path: str | os.PathLike[str] | None = None) -> str:
    """Rebuild the Parquet table of the run from its journal, atomically; returns its path. In its folder, a run's summary, too.

    The file says in its metadata whether the run had ended (``qdrun.complete``) and how (``qdrun.state``).

    Raises:
        StorageFull: no room; an older table stays as it was.
        OSError: the table cannot be written; an older one stays as it was.
    """
    import pyarrow.parquet as pq

    sizes = folder.files.sizes(EVENTS)
    events = read(folder)
    found = replay(folder, events=events)
    state = found.finished["state"] if found.finished else "unfinished"
    said = {"qdrun.run": folder.name, "qdrun.complete": json.dumps(found.complete), "qdrun.state": str(state)}
    stream = io.BytesIO()
    pq.write_table(arrow_table(rows_of(folder, found)).replace_schema_metadata(said), stream)
    if path is None:
        folder.files.put("results.parquet", stream.getvalue())
        keep(folder, sizes, events, found)
        return folder.table
    return write_file(path, stream.getvalue())


def write_file(path: str | os.PathLike[str], data: bytes) -> str:
    """Write a file whole, with the folders that it needs, at a path or a URI; gives it back as text.

    Raises:
        StorageFull: no room; an older file stays as it was.
        NoPlace: it cannot be written.
    """
    target = os.fspath(path)
    where, slash, name = target.rpartition("/")
    try:
        open_files(where or slash or ".").put(name, data)
    except StorageFull:
        raise
    except OSError as error:
        raise NoPlace(
            f"cannot write {target}: {error.strerror or error}\n  do: name a file in a folder in which you may write"
        ) from error
    return target


def as_json(table: list[Row]) -> list[Row]:
    """The rows as strict JSON can hold them."""
    return [plain(row) for row in table]


def as_csv(table: list[Row], named: Sequence[str] | None = None) -> str:
    """The rows as CSV with a header; arrays are JSON texts, missing values are empty. ``named``: these columns alone."""
    stream = io.StringIO()
    names = columns(table) if named is None else named
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in table:
        values = [row.get(name) for name in names]
        writer.writerow(["" if v is None else json.dumps(plain(v)) if isinstance(v, list | dict) else v for v in values])
    return stream.getvalue()


def to_pandas(table: list[Row]) -> Any:
    """The rows as a ``pandas.DataFrame``; pandas must be installed."""
    return arrow_table(table).to_pandas()


def best(table: list[Row]) -> Row | None:
    """The finished trial with the smallest loss."""
    done = [row for row in table if row["status"] == "done"]
    return min(done, key=lambda row: row["loss"], default=None)
