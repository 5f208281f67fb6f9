"""Runs, rows and logs as the commands show them: read from the folders of runs alone; never imports ray."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import numpy as np
from typing_extensions import TypedDict

from ...compiler.errors import QdrunError
from ..fields import about
from ..query.formats import csv_lines, json_rows
from ..query.picking import columns_of
from ..query.run_table import RunTable
from ..query.table_file import TableFile, TableQuery, current_file, is_changed, is_damaged
from ..store import status
from ..store.attempts import STREAMS, Attempt, log_name, log_path, read_log
from ..store.files import escaped
from ..store.follower import Detail
from ..store.layout import TRIALS, RunFolder, each_run
from ..store.replay import DONE, Replay, Replayer, replay, run_state
from ..store.status import RunState
from ..store.summary import cut_segments
from ..store.trial_state import FINAL, TrialState
from ..text_grid import grid
from ..upkeep.labels import labels_of
from . import table
from .remarks import remarks_of
from .show import SHOWN_FIXED, SHOWN_PREFIXES, ListedRun, ShownRun, cell, is_found, results_text, varied
from .view import view_of

BAD = ("failed", "poisoned")
_MARK = re.compile(r"^:(?:actor_name|task_name|job_id):.*\n", re.MULTILINE)
"""Lines by which Ray finds out whose log it reads."""


class LogPart(TypedDict):
    """The output of one attempt, or of a worker process, on one stream."""

    trial: Annotated[str | None, about("its id; null for a worker")]
    attempt: Annotated[int | None, about("number of the attempt")]
    owner: Annotated[int | None, about("number of the owner of the run")]
    worker: Annotated[str | None, about("with --workers: device and number of the worker")]
    stream: Annotated[str, about("stdout, stderr, or error: the traceback of its row")]
    path: Annotated[str | None, about("the file; null for `error`")]
    text: Annotated[str, about("what was printed")]


class LogDocument(TypedDict):
    """The output of trials."""

    run: Annotated[str, about("its id")]
    logs: Annotated[list[LogPart], about("logs that are not empty")]


@dataclass(frozen=True)
class Table:
    """Rows of a run, as they were asked for. Large arrays are read from the journal when they are written, row by row.

    ``chosen``: whether columns were named; ``swept``: parameters that differ within the run; ``problems``: what is damaged; ``total``:
    number of rows, of which a limit may have left some out.
    """

    folder: RunFolder
    found: Replay
    state: str
    problems: list[str]
    columns: list[str]
    rows: RunTable
    chosen: bool
    swept: list[str] = field(default_factory=list)
    total: int = 0

    def head(self) -> dict[str, Any]:
        """The fields of the JSON document besides the rows."""
        head = {"run": self.folder.name, "state": self.state, "complete": self.found.complete}
        return head | {"columns": self.columns, "problems": self.problems}

    def parts(self) -> Iterator[RunTable]:
        """The rows with all of their arrays, so many at once as a row group has."""
        for part in table.parts_of(self.folder, self.found, self.rows):
            yield RunTable(part.data.select(self.columns), ()) if self.chosen else part

    def arrow(self) -> Any:
        """The rows as a ``pyarrow.Table``, with all of their arrays."""
        return table.arrow_of(self.folder, self.found, self.rows).select(self.columns)

    def write(self, form: str, out: str, escape_formulas: bool = False) -> None:
        """Write the rows to a file or URI, as ``parquet``, as ``arrow`` (the file format of Arrow IPC), or as ``lines`` gives them.

        Raises:
            StorageFull: no room.
            NoPlace: it cannot be written.
        """
        with table.writing(out) as stream:
            if form == "parquet":
                import pyarrow.parquet as pq

                pq.write_table(self.arrow(), stream)
            elif form == "arrow":
                import pyarrow as pa

                found = self.arrow()
                with pa.ipc.new_file(stream, found.schema) as writer:
                    writer.write_table(found)
            else:
                stream.writelines(line.encode() for line in self.lines(form, escape_formulas))

    def lines(self, form: str, escape_formulas: bool = False) -> Iterator[str]:
        """Yield the table as ``table``, ``csv`` or ``json``, in parts; the last ends with a newline. ``escape_formulas``: of CSV."""
        if form == "json":
            yield from json_rows(self.parts(), 1)
            yield "\n"
        elif form == "csv":
            yield from csv_lines(self.parts(), self.columns, escape_formulas)
        elif not self.chosen:
            yield results_text(self._shown(), self.swept) + "\n"
        else:
            yield grid(self.columns, [[_cell(name, row.get(name)) for name in self.columns] for row in self._shown()]) + "\n"

    def _shown(self) -> RunTable:
        """The rows; what descents have found is read, however large."""
        found = [name for name in self.rows.large() if is_found(name)]
        return table.filled(self.folder, self.found, self.rows, found)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "artifacts":
        return ", ".join(value)
    if name == "artifacts_folder" or "_file." in name:  # a path is of no use in part
        return str(value)
    return cell(name, value)


def table_of(
    folder: RunFolder,
    *,
    where: str | None = None,
    best: str | None = None,
    sort: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    shown: bool = False,
) -> Table:
    """The table of a run, finished or not.

    Args:
        folder: the run.
        where: a condition, see ``query.where``: keep the rows for which it holds.
        best: keep the finished trial with the smallest value of this column alone, or, for ``max:column``, with the largest.
        sort: order by this column, in the same words.
        columns: these alone; names, or patterns such as ``out.*``.
        limit: at most so many rows, the first ones.
        shown: the rows are for people: without ``columns``, they need only what ``results_text`` shows.

    Raises:
        NotFound: no such column.
        WhereError: the condition cannot be understood.
    """
    wanted = TableQuery(where, best, sort, columns and [name.strip() for name in columns], limit)
    whole = not columns or "*" in columns  # then what is damaged is said, too: the journal's way finds it
    repaired = _made_again(folder) if is_changed(folder) else []
    file = current_file(folder) if (columns or shown) and not repaired else None
    file = None if file is not None and whole and is_damaged(folder) else file
    picked = None if file is None else _from_file(folder, file, wanted)
    if picked is not None:
        return picked
    if file is not None and is_changed(folder, thorough=True):  # a page of it could not be read
        repaired = _made_again(folder)
    found, trials = table.read_run(folder)
    state = run_state(folder, found)
    rows = table.rows_of(folder, found, trials, run=state)
    kept = columns_of(wanted.columns, rows.names) if wanted.columns else rows.names
    some, total = wanted.picked(rows, dict.fromkeys([*kept, "trial"]) if wanted.columns else rows.data.schema.names)
    problems = [*repaired, *cut_segments(folder), *found.problems(folder)]
    return Table(folder, found, state, problems, kept, some, columns is not None, [] if columns else varied(rows), total)


def _made_again(folder: RunFolder) -> list[str]:
    """Write the table of a run again from its journal, as it is not what it was; says so."""
    said = "results.parquet is not as it was written, or gone"
    try:
        if replay(folder, Detail.SMALL).problems(folder):  # the file may have what the journal has lost
            return [f"{said}; the journal is damaged, too, so the file stays"]
        table.write_table(folder)
    except (OSError, QdrunError) as error:
        return [f"{said}; the rows are those of the journal, and the file stays: {str(error).splitlines()[0]}"]
    return [f"{said}; it was made again from the journal"]


def _from_file(folder: RunFolder, file: TableFile, wanted: TableQuery) -> Table | None:
    """The table from the Parquet file of a run that has ended; None where the file would give other values than the journal."""
    import pyarrow as pa

    params = [] if wanted.columns else [name for name in file.names if name.startswith("param.")]
    try:
        swept = varied(file.part(params)) if params and file.plain(params) else []
        shown = [name for name in file.names if name in (*SHOWN_FIXED, *swept) or name.startswith(SHOWN_PREFIXES)]
        kept = columns_of(wanted.columns, file.names) if wanted.columns else shown
        if not file.plain([*params, *wanted.names(file.names), *kept]):
            return None
        rows, total = wanted.picked(file, kept)
    except (OSError, pa.ArrowException):  # it is damaged: the journal has all of it
        return None
    return Table(folder, Replay(()), file.state, [], kept, rows, wanted.columns is not None, swept, total)


def listed(where: str, last: int, state: str | None = None, tags: Sequence[str] = ()) -> list[ListedRun]:
    """The ``last`` runs under ``where``, or of those in a state and with all of these tags, the latest first; no more of them are read than
    it takes.
    """
    found: list[ListedRun] = []
    runs = (folder for folder in each_run(where) if not tags or {*tags} <= {*labels_of(folder).tags})
    while len(found) < last and (some := list(islice(runs, last))):
        for folder, row in zip(some, status.statuses(some), strict=True):
            if state is None or row["state"] == state:
                found.append(_listed(folder, row))
    return found[:last]


def _listed(folder: RunFolder, row: RunState) -> ListedRun:
    counts, best, labels = row["counts"], row["best"], labels_of(folder)
    try:
        info = folder.info()
    except (OSError, ValueError):
        info = {}
    return {
        "id": row["id"],
        "folder": row["folder"],
        "name": str(info.get("name", "")),
        "created": info.get("created"),
        "state": row["state"],
        "trials": row["trials"],
        "finished": sum(counts.get(word, 0) for word in FINAL),
        "failed": sum(counts.get(word, 0) for word in BAD),
        "best": None if best is None else best["loss"],
        "tags": list(labels.tags),
        "note": labels.notes[-1].text if labels.notes else "",
    }


def states_of(where: str) -> list[ShownRun]:
    """The states of all runs under ``where``, oldest first."""
    return [_shown(state) for state in status.list_runs(where)]


def state_of(folder: RunFolder) -> ShownRun:
    """The state of a run, with what runs now, why trials wait, and warnings."""
    found = _shown(status.status(folder))
    found["warnings"] = remarks_of(folder)
    if found["state"] == "running":
        view = view_of(folder)
        found["lanes"] = view.lanes
        found["waiting"] = [{"count": group.count, "why": group.text} for group in view.reasons]
    return found


def _shown(state: RunState) -> ShownRun:
    return {**state, "lanes": [], "waiting": [], "warnings": []}


def logs_of(
    folder: RunFolder, trial: str | None = None, attempt: int | None = None, streams: Sequence[str] = STREAMS
) -> list[LogPart]:
    """The output of trials, and the traceback of each failed one; empty texts are left out.

    Args:
        folder: the run.
        trial: this one alone.
        attempt: this attempt instead of the last one of each trial.
        streams: which of stdout and stderr.
    """
    return list(LogFollower(folder, trial, attempt, streams, last=True).news())


def attempts_of(folder: RunFolder, trial: str) -> list[int]:
    """The numbers of the attempts of a trial that have begun."""
    return [tried.attempt.number for tried in replay(folder).trials[trial].attempts]


def worker_logs(folder: RunFolder, streams: Sequence[str] = STREAMS) -> list[LogPart]:
    """The output of worker processes outside of trials, with the stacks of crashes; empty texts are left out."""
    parts: list[LogPart] = []
    for device in folder.files.names("workers"):
        for worker in folder.files.names(f"workers/{device}"):
            for stream in streams:
                path = f"workers/{device}/{worker}/{stream}.log"
                data = folder.files.read(path) if folder.files.exists(path) else b""
                text = _MARK.sub("", data.decode("utf-8", "replace"))
                made = _part(None, stream, text, f"{folder.uri}/{path}", f"{device}/{worker}")
                parts += [made] if text else []
    return parts


def _part(tried: Attempt | None, stream: str, text: str, path: str | None, worker: str | None = None) -> LogPart:
    return {
        "trial": tried and tried.trial,
        "attempt": tried and tried.number,
        "owner": tried and tried.owner,
        "worker": worker,
        "stream": stream,
        "path": path,
        "text": text,
    }


def _traceback(state: TrialState, attempt: int | None) -> LogPart | None:
    record = {} if state.entry is None else state.entry.event  # slim: what is left out of it are the numbers
    error, number = record.get("error") or {}, int(record.get("attempt", 0))
    text = error.get("traceback") or (f"{error['type']}: {error['message']}" if error else "")
    if not text or (attempt is not None and attempt != number):
        return None
    owner = next((tried.attempt.owner for tried in state.attempts if tried.attempt.number == number), 1)
    return _part(Attempt(state.id, number, owner), "error", text, None)


class LogFollower:
    """Reads logs as they grow: each byte once. Texts are cut at line ends, so that no character is torn.

    ``last``: read once, all there is: without ``attempt`` of the last attempt of each trial.
    """

    def __init__(
        self, folder: RunFolder, trial: str | None, attempt: int | None, streams: Sequence[str], *, last: bool = False
    ) -> None:
        self.folder, self.trial, self.attempt, self.streams, self.last = folder, trial, attempt, tuple(streams), last
        self._read: dict[tuple[Attempt, str], int] = {}
        self._traced: set[str] = set()
        self._there: dict[str, int] | None = None  # logs of all trials, with their bytes, at the last look
        self._reader = Replayer(folder)
        self._state, self._again = self._reader.look(), 0.0

    def over(self) -> bool:
        """Whether no more can come: the trial has its row, or the run is not running."""
        self._look()
        if self.trial is not None and self._state.trials[self.trial].entry is not None:
            return True
        return run_state(self.folder, self._state) != "running"

    def _look(self) -> None:
        """Read what is new in the journal; of a large run less often: looking takes at most a tenth of the time."""
        now = time.monotonic()
        if now >= self._again:
            self._state = self._reader.look()
            self._again = now + 10 * (time.monotonic() - now)

    def news(self) -> Iterator[LogPart]:
        """The output since the last call, of all attempts that ``over`` has found."""
        over = self.last or run_state(self.folder, self._state) != "running"
        # in a bucket, to ask for each log of all trials would be a request each
        self._there = self.folder.files.below(TRIALS) if self.trial is None else None
        for state in self._states():
            for tried in state.attempts[-1:] if self.last and self.attempt is None else state.attempts:
                if self.attempt is None or tried.attempt.number == self.attempt:
                    yield from self._news(tried.attempt, whole=over or tried.status != "running")
            yield from self._trace(state)

    def _states(self) -> Iterator[TrialState]:
        """The trials that may have something: those with files, and those that failed; in the order of the sweep."""
        found = self._state
        if self.trial is not None:
            yield found.trials[self.trial]
            return
        wrong = np.flatnonzero(found.status > DONE).tolist()
        named = {path.split("/")[1] for path in self._there or ()}
        left = [place for place, name in enumerate(found.ids) if escaped(name) in named] if named else []
        yield from map(found.state_at, sorted({*wrong, *left}))

    def _trace(self, state: TrialState) -> Iterator[LogPart]:
        """Why a trial failed, once it has its row."""
        if state.entry is None or state.id in self._traced or self.streams != STREAMS:
            return
        self._traced.add(state.id)
        trace = _traceback(state, self.attempt)
        if trace is not None:
            yield trace

    def _news(self, tried: Attempt, *, whole: bool) -> Iterator[LogPart]:
        for stream in self.streams:
            start = self._read.get((tried, stream), 0)
            if self._there is not None and self._there.get(log_name(tried, stream), 0) <= start:
                continue
            data = read_log(self.folder, tried, stream, start)
            data = data if whole else data[: data.rfind(b"\n") + 1]
            if data:
                self._read[tried, stream] = start + len(data)
                yield _part(tried, stream, data.decode("utf-8", "replace"), log_path(self.folder, tried, stream))


__all__ = ["LogDocument", "LogFollower", "LogPart", "Table", "attempts_of", "listed", "logs_of", "state_of", "states_of"]
__all__ += ["table_of", "worker_logs"]
