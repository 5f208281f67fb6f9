"""Rows that were asked for: from rows, or from the Parquet table of a run that has ended, of which only the needed columns are read.

The journal is the truth about a run, and the table is made from it. While ``summary.current`` holds, the table is that of the journal.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..collector import paused
from ..regular_files import open_regular
from ..store.encoding import is_sealed
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from ..store.summary import summary_of, table_checksums, table_mark
from .picking import LARGEST, Row, best_row, column_of, columns_of, ordered
from .where import condition

MOST_BYTES = 256 << 20
"""Arrays of a larger file are read from the journal, row by row."""
PLACE = "place in the file"


@dataclass(frozen=True)
class TableFile:
    """The table of a run that has ended, open: a ``pyarrow.parquet.ParquetFile``, the state of the run, and the bytes of the file."""

    file: Any
    state: str
    bytes: int

    def rows(self, names: Sequence[str]) -> Any:
        """These columns, as a ``pyarrow.Table``."""
        return self.file.read(columns=list(names)).select(list(names))

    def taken(self, names: Sequence[str], places: Sequence[int]) -> list[Row]:
        """These columns of the rows at these places, in their order. Row groups that have none of them are not read."""
        import pyarrow as pa

        said = self.file.metadata
        counts = np.array([said.row_group(k).num_rows for k in range(said.num_row_groups)], dtype=np.int64)
        ends, wanted = np.cumsum(counts), np.array(places, dtype=np.int64)
        group_of_row = np.searchsorted(ends, wanted, side="right")
        groups = np.unique(group_of_row)
        left_out = np.zeros(len(counts), dtype=np.int64)  # rows before each group that are not read
        left_out[groups] = (ends - counts)[groups] - (np.cumsum(counts[groups]) - counts[groups])
        at = wanted - left_out[group_of_row]
        there = self.file.read_row_groups(groups.tolist(), columns=list(names)).select(list(names))
        # ``pyarrow.array`` and ``from_pandas`` would load pandas, which takes a fifth of a second
        index = pa.Array.from_buffers(pa.int64(), len(at), [None, pa.py_buffer(at)])
        return there.take(index).to_pylist()

    def plain(self, names: Sequence[str]) -> bool:
        """Whether columns come back as the values that they were made of: parameters of several types are in the file as JSON texts, or
        as lists of one item.
        """
        import pyarrow as pa

        kinds = {field.name: field.type for field in self.file.schema_arrow}  # which pyarrow makes anew each time
        for name in names:
            kind = kinds[name]
            if pa.types.is_list(kind) and self.bytes > MOST_BYTES:
                return False
            if name.startswith("param.") and (pa.types.is_list(kind) or pa.types.is_string(kind)):
                values = self.rows([name])[name]
                if pa.types.is_list(kind) or all(map(_is_json, values.unique().to_pylist())):
                    return False
        return True


def _is_json(text: str | None) -> bool:
    with suppress(ValueError, TypeError):
        json.loads(text or "null")
        return True
    return False


def current_file(folder: RunFolder) -> TableFile | None:
    """The table of a run on this machine, if the run has ended, nothing of its journal is damaged, and the table is that of the journal."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = summary_of(folder) if isinstance(folder.files, LocalFiles) else None
    if found is None or found["damaged_lines"] or not folder.files.exists("results.parquet"):
        return None
    try:
        open_regular(folder.table).close()
        file = pq.ParquetFile(folder.table, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None
    said = file.schema_arrow.metadata or {}
    if said.get(b"qdrun.run") != folder.name.encode() or said.get(b"qdrun.complete") != b"true":
        return None
    return TableFile(file, str(found["state"]), folder.files.sizes("").get("results.parquet", 0))


def finished_table(folder: RunFolder) -> Any | None:
    """All rows of a run that has ended, as a ``pyarrow.Table``; None where the file is not there, or not that of the journal."""
    import pyarrow as pa

    file = None if is_changed(folder) else current_file(folder)
    try:
        return None if file is None else file.file.read().replace_schema_metadata(None)
    except (OSError, pa.ArrowException):  # it is damaged: the journal has all of it
        return None


def is_changed(folder: RunFolder, *, thorough: bool = False) -> bool:
    """Whether the table of a run on this machine is not the file that was written with its summary: was damaged or removed.

    ``thorough``: read all of it, also where its time, its size and its footer are those of then.
    """
    if not isinstance(folder.files, LocalFiles) or summary_of(folder) is None:
        return False
    checksum, mark = table_checksums(folder)
    if mark and not thorough and mark == table_mark(folder):
        return False
    wanted, _, size = checksum.partition("-")
    try:
        with open_regular(folder.table) as stream:
            if size and os.fstat(stream.fileno()).st_size != int(size):
                return True
            digest = hashlib.file_digest(stream, "sha256")  # pyright: ignore[reportArgumentType]
            return bool(wanted) and digest.hexdigest() != wanted
    except OSError:
        return bool(wanted)


def is_damaged(folder: RunFolder) -> bool:
    """Whether the trials or the plan of a run are not as they were written, by their checksums; nothing of them is decoded."""
    lines = folder.files.read("trials.jsonl").splitlines()
    count = re.search(rb'"of":(\d+),"crc"', lines[-1]) if lines else None
    if count is None or int(count[1]) != len(lines) or not all(map(is_sealed, lines)):
        return True
    return folder.files.exists("plan.json") and not is_sealed(folder.files.read("plan.json"))


@dataclass(frozen=True)
class TableQuery:
    """Which rows and columns are asked for, see ``listing.table_of``."""

    where: str | None = None
    best: str | None = None
    sort: str | None = None
    columns: Sequence[str] | None = None
    limit: int | None = None

    def rows(self, rows: list[Row], names: Sequence[str]) -> list[Row]:
        """The rows that are asked for, in their order. Raises as ``listing.table_of``."""
        if self.where is not None:
            rows = list(filter(condition(self.where, lambda name: column_of(name, names)), rows))
        if self.sort is not None:
            rows = ordered(rows, self.sort, names)
        if self.best is not None:
            first = best_row(rows, self.best, names)
            rows = [] if first is None else [first]
        return rows

    def from_file(self, file: TableFile, needed: Sequence[str]) -> tuple[list[str], list[Row], int] | None:
        """The columns and the rows that are asked for, and the number of rows without ``limit``; None where the file would give other
        values than the journal. ``needed``: the columns where none are asked for. Raises as ``listing.table_of``.
        """
        import pyarrow as pa

        names = file.file.schema_arrow.names
        kept = columns_of(self.columns, names) if self.columns else list(needed)
        looked: dict[str, None] = {} if self.best is None else {"status": None}
        for word in (self.best, self.sort):
            looked |= {} if word is None else {column_of(word.removeprefix(LARGEST), names): None}
        if self.where is not None:
            condition(self.where, lambda name: looked.setdefault(column_of(name, names)) or name)
        if not file.plain([*looked, *kept]):
            return None
        try:
            places: Sequence[int] = range(file.file.metadata.num_rows)
            if looked:
                columns = [places, *(column.to_pylist() for column in file.rows(list(looked)).columns)]
                names_of_few = (PLACE, *looked)
                with paused():  # and not ``Table.to_pylist``: three times the time
                    few = [dict(zip(names_of_few, values)) for values in zip(*columns)]
                    places = [row[PLACE] for row in self.rows(few, names)]
            return kept, file.taken(kept, places[: self.limit]), len(places)
        except (OSError, pa.ArrowException):  # it is damaged: the journal has all of it
            return None


__all__ = ["TableFile", "TableQuery", "current_file", "finished_table", "is_changed", "is_damaged"]
