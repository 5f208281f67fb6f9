"""Rows that were asked for: from rows, or from the Parquet table of a run that has ended, of which only the needed columns are read.

The journal is the truth about a run, and the table is made from it. While ``summary.current`` holds, the table is that of the journal.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..regular_files import open_regular
from ..store.encoding import is_sealed
from ..store.files import LocalFiles
from ..store.layout import RunFolder
from ..store.summary import summary_of, table_checksums, table_mark
from ..study.trial_file import is_complete
from .picking import LARGEST, best_place, column_of, ordered
from .run_table import Array, RunTable
from .where import Condition

MOST_BYTES = 256 << 20
"""Arrays of a larger file are read from the journal, row by row."""
MIXED = "qdrun.mixed"
"""In the metadata of the file: the columns whose values have several types. They are JSON texts there, or lists of one item."""


@dataclass(frozen=True)
class TableFile:
    """The table of a run that has ended, open: a ``pyarrow.parquet.ParquetFile``, the state of the run, the bytes of the file, and the
    columns whose values have several types, which it does not give back.
    """

    file: Any
    state: str
    bytes: int
    mixed: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The columns of the table."""
        return self.file.schema_arrow.names

    def __len__(self) -> int:
        return self.file.metadata.num_rows

    def part(self, names: Iterable[str], places: Array | None = None) -> RunTable:
        """These columns, of the rows at these places, in their order; None: of all. Row groups that have none of them are not read."""
        import pyarrow as pa

        said, wanted = self.file.metadata, list(names)
        counts = np.array([said.row_group(k).num_rows for k in range(said.num_row_groups)], dtype=np.int64)
        groups = (
            np.arange(len(counts)) if places is None else np.unique(np.searchsorted(np.cumsum(counts), places, side="right"))
        )
        found = self.file.read_row_groups(groups.tolist(), columns=wanted)
        chunks = {name: found.column(name).chunks for name in wanted}
        columns = [pa.concat_arrays(chunks[name]) if chunks[name] else pa.nulls(0) for name in wanted]
        made = RunTable(pa.record_batch(columns, names=wanted))
        if places is None:
            return made
        first = np.cumsum(counts) - counts  # rows before each group, and of those the rows that are not read
        left_out = first[groups] - (np.cumsum(counts[groups]) - counts[groups])
        of_row = np.searchsorted(groups, np.searchsorted(np.cumsum(counts), places, side="right"))
        return made.take(places - left_out[of_row] if len(places) else places)

    def plain(self, names: Iterable[str]) -> bool:
        """Whether columns come back as the values that they were made of, and without filling the memory."""
        import pyarrow as pa

        kinds = {field.name: field.type for field in self.file.schema_arrow}  # which pyarrow makes anew each time
        return not any(name in self.mixed or (pa.types.is_list(kinds[name]) and self.bytes > MOST_BYTES) for name in names)


def current_file(folder: RunFolder) -> TableFile | None:
    """The table of a run on this machine, if the run has ended, nothing of its journal is damaged, and the table is that of the journal."""
    found = summary_of(folder) if isinstance(folder.files, LocalFiles) else None
    if found is None or found["damaged_lines"] or not folder.files.exists("results.parquet"):
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        open_regular(folder.table).close()
        file = pq.ParquetFile(folder.table, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None
    said = file.schema_arrow.metadata or {}
    if said.get(b"qdrun.run") != folder.name.encode() or said.get(b"qdrun.complete") != b"true":
        return None
    if MIXED.encode() not in said:  # an older qdrun wrote it
        return None
    mixed = frozenset(json.loads(said[MIXED.encode()]))
    return TableFile(file, str(found["state"]), folder.files.sizes("").get("results.parquet", 0), mixed)


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
    if not is_complete(folder.files.read("trials.jsonl")):
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

    def names(self, names: Sequence[str]) -> list[str]:
        """The columns that must be read to know which rows are asked for. Raises as ``listing.table_of``."""
        looked = [column_of(word.removeprefix(LARGEST), names) for word in (self.best, self.sort) if word is not None]
        looked += ["status"] if self.best is not None else []
        return list(dict.fromkeys([*looked, *(self._condition(names).names if self.where is not None else ())]))

    def _condition(self, names: Sequence[str]) -> Condition:
        return Condition(self.where or "", lambda name: column_of(name, names))

    def picked(self, source: RunTable | TableFile, kept: Iterable[str]) -> tuple[RunTable, int]:
        """These columns of the rows that are asked for, in their order, and the number of rows without ``limit``. Raises as
        ``listing.table_of``.
        """
        names, places = source.names, np.arange(len(source))
        if self.where is self.sort is self.best is None:
            return source.part(kept, places[: self.limit] if self.limit else None), len(places)
        table = source.part(dict.fromkeys(["trial", *self.names(names)]))
        if self.where is not None:
            places = self._condition(names).places(table)
        if self.sort is not None:
            places = places[ordered(table.take(places), self.sort, names)]
        if self.best is not None:
            first = best_place(table.take(places), self.best, names)
            places = places[:0] if first is None else places[first : first + 1]
        return source.part(kept, places[: self.limit]), len(places)


__all__ = ["MIXED", "TableFile", "TableQuery", "current_file", "finished_table", "is_changed", "is_damaged"]
