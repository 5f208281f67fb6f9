"""How a call and its news travel: as plain tuples, lists and dicts, which pickle in a tenth of the time that objects take.

Ray pickles by cloudpickle, which looks in Python at every object that is not of a builtin type: 20 us for each trial of a lease, as much
as all else that the runner does for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .spec import BatchEnd, BatchSpec, LeaseNews, TrialEnd, TrialSpec

Row = tuple[Any, ...]


def packed(batches: Iterable[BatchSpec]) -> list[Row]:
    """The batches of a call; a trial is a tuple as any."""
    return [(batch.lease, list(map(tuple, batch.trials)), *batch[2:]) for batch in batches]


def unpacked(rows: Iterable[Row]) -> tuple[BatchSpec, ...]:
    """The batches again."""
    return tuple([BatchSpec(row[0], tuple(map(TrialSpec._make, row[1])), *row[2:]) for row in rows])


def packed_news(news: LeaseNews) -> Row:
    """What has happened to the batches of a call."""
    ends = [(end.lease, list(map(tuple, end.ends)), *end[2:]) for end in news.ends]
    return ends, news.running, news.seconds


def unpacked_news(row: Row) -> LeaseNews:
    """The news again."""
    ends = [BatchEnd(end[0], tuple(map(TrialEnd._make, end[1])), *end[2:]) for end in row[0]]
    return LeaseNews(tuple(ends), row[1], row[2])


__all__ = ["Row", "packed", "packed_news", "unpacked", "unpacked_news"]
