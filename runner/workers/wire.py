"""The wire format of calls and news: plain tuples, lists and dicts, which pickle in a tenth of the time of objects.

Ray pickles by cloudpickle, which looks in Python at every object that is not of a builtin type: 20 us for each trial of a lease, as much
as all else that the runner does for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..store.columns import BatchRows, StoredColumn
from .spec import BatchColumns, BatchEnd, BatchSpec, LeaseNews, TrialEnd, TrialSpec

Row = tuple[Any, ...]


def packed(batches: Iterable[BatchSpec]) -> list[Row]:
    """The batches of a call; a trial is a tuple as any."""
    return [(batch.lease, list(map(tuple, batch.trials)), *batch[2:-1], _plain(batch.together)) for batch in batches]


def unpacked(rows: Iterable[Row]) -> tuple[BatchSpec, ...]:
    """The batches again."""
    made = [BatchSpec(row[0], tuple(map(TrialSpec._make, row[1])), *row[2:]) for row in rows]
    return tuple([batch._replace(together=BatchColumns(*batch.together)) if batch.together else batch for batch in made])


def packed_news(news: LeaseNews) -> Row:
    """The news of the batches of a call."""
    ends = [(end.lease, list(map(tuple, end.ends)), *end[2:-1], list(map(_packed_rows, end.rows))) for end in news.ends]
    return ends, news.running, news.seconds


def _packed_rows(rows: BatchRows) -> Row:
    named = [{name: tuple(column) for name, column in found.items()} for found in (rows.columns, rows.gradients, rows.outputs)]
    return rows.trials, rows.attempts, rows.shared, named, rows.best


def _unpacked_rows(row: Row) -> BatchRows:
    trials, attempts, shared, named, best = row
    columns, gradients, outputs = ({name: StoredColumn(*column) for name, column in found.items()} for found in named)
    return BatchRows(trials, attempts, shared, columns, gradients, outputs, best)


def _plain(together: BatchColumns | None) -> Row | None:
    return None if together is None else tuple(together)


def unpacked_news(row: Row) -> LeaseNews:
    """The news again."""
    ends = [
        BatchEnd._make((end[0], tuple(map(TrialEnd._make, end[1])), *end[2:-1], tuple(map(_unpacked_rows, end[-1]))))
        for end in row[0]
    ]
    return LeaseNews(tuple(ends), row[1], row[2])


__all__ = ["Row", "packed", "packed_news", "unpacked", "unpacked_news"]
