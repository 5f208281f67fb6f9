"""The files of live values in a run's folder: written by workers while trials run, read by anyone.

``workers/<device>/w<number>/live/000001.jsonl``: each line has points of one attempt, or of the trials of a batch, as JSON with a checksum:
``trials``, ``attempts``, ``step`` and ``t`` of each point, and for each name a column (``store.columns``) with the shape (points,), or
(points, trials) for a batch. NaN: not logged at that point. The files are no part of the journal: losing them loses no row.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import to_json

from ...jobs.core.watch import StepValues
from ..store.columns import decoded, encoded
from ..store.encoding import NewLines, sealed, unsealed
from ..store.layout import RunFolder

FOLDER = "live"
WORKERS = "workers"
_FILE = re.compile(rf"^{WORKERS}/.+/{FOLDER}/\d+\.jsonl$")


class Logged(NamedTuple):
    """Points of one attempt, or of those of a batch: ``values`` are (points,), or (points, trials)."""

    trials: tuple[str, ...]
    attempts: tuple[int, ...]
    step: np.ndarray
    t: np.ndarray
    values: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, trials: Sequence[str], attempts: Sequence[int], points: Sequence[StepValues]) -> Logged:
        """Points as arrays. Of a batch a number is that of all trials."""
        names = dict.fromkeys(name for point in points for name in point.values)
        values = {name: _column([point.values.get(name, np.nan) for point in points], len(trials)) for name in names}
        steps, times = np.array([point.step for point in points], np.int64), np.array([point.t for point in points])
        return cls(tuple(trials), tuple(attempts), steps, times, values)

    def line(self) -> bytes:
        """The line of a file."""
        columns = {"step": self.step, "t": self.t}
        line: dict[str, Any] = {"trials": self.trials, "attempts": self.attempts}
        line |= {name: encoded(column)._asdict() for name, column in columns.items()}
        line["values"] = {name: encoded(column)._asdict() for name, column in self.values.items()}
        return sealed(to_json(line), looked_through=True) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Logged:
        """The points of a line.

        Raises:
            ValueError: it is damaged.
        """
        try:
            found = unsealed(line)
            values = {str(name): decoded(column) for name, column in found["values"].items()}
            return cls(tuple(found["trials"]), tuple(found["attempts"]), decoded(found["step"]), decoded(found["t"]), values)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"not a line of live values: {error}") from error

    def each(self) -> Iterator[tuple[str, int, Logged]]:
        """Each trial with its attempt and its own points; those at which it has logged nothing are left out."""
        for row, (trial, attempt) in enumerate(zip(self.trials, self.attempts, strict=True)):
            own = {name: column[:, row] if column.ndim == 2 else column for name, column in self.values.items()}
            some = ~np.isnan(np.stack(list(own.values()))).all(axis=0) if own else np.zeros(len(self.step), bool)
            if some.any():
                columns = {name: column[some] for name, column in own.items()}
                yield trial, attempt, Logged((trial,), (attempt,), self.step[some], self.t[some], columns)


def _column(rows: Sequence[Any], trials: int) -> np.ndarray:
    """The values of a name at all points as an array; of a batch each row is an array of all trials, or a number for all."""
    if trials > 1:
        return np.stack([np.broadcast_to(np.asarray(row, np.float64), trials) for row in rows])
    return np.array([row if type(row) is float else float(np.reshape(row, ())) for row in rows])


class LiveReader:
    """Reads the files of a run again and again: ``news`` gives what was written since the last call."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._lines = folder, NewLines(folder.files)

    def news(self) -> list[Logged]:
        """The new lines. A line that is still being written waits; a damaged one is left out."""
        found = list[Logged]()
        for path, size in sorted(self._folder.files.below(WORKERS).items()):
            for line in self._lines.of(path, size) if _FILE.match(path) else ():
                try:
                    found.append(Logged.read(line))
                except ValueError:
                    continue
        return found


@dataclass(frozen=True)
class Series:
    """The live values of one trial, by step.

    Attributes:
        step: (points,), whole numbers.
        t: (points,), seconds since 1970.
        values: by name (points,); NaN where the name was not logged.
    """

    step: np.ndarray
    t: np.ndarray
    values: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.step)

    def __getitem__(self, name: str) -> np.ndarray:
        """The values of a name."""
        return self.values[name]

    def column(self, name: str) -> np.ndarray:
        """As ``self[name]``; NaN everywhere for a name that was never logged."""
        return self.values[name] if name in self.values else np.full(len(self.step), np.nan)


def series(found: Sequence[Logged]) -> dict[str, Series]:
    """The live values of each trial. From the first step of an attempt on, they are those of that attempt."""
    tries = defaultdict[str, dict[int, list[Logged]]](dict)
    for block in found:
        for trial, attempt, own in block.each():
            tries[trial].setdefault(attempt, []).append(own)
    return {trial: _joined([_sorted(own[number]) for number in sorted(own)]) for trial, own in tries.items()}


def _sorted(parts: Sequence[Logged]) -> Series:
    """The points of one attempt in the order of their steps; of two points of one step each value is that of the later one."""
    steps, times = np.concatenate([part.step for part in parts]), np.concatenate([part.t for part in parts])
    order = np.lexsort((times, steps))
    steps, times = steps[order], times[order]
    last = np.append(steps[1:] != steps[:-1], True)
    group = np.cumsum(np.concatenate([[0], last[:-1]]))
    values = {}
    for name in dict.fromkeys(name for part in parts for name in part.values):
        column = np.concatenate([part.values.get(name, np.full(len(part.step), np.nan)) for part in parts])[order]
        given = ~np.isnan(column)
        values[name] = np.full(int(last.sum()), np.nan)
        values[name][group[given]] = column[given]
    return Series(steps[last], times[last], values)


def _joined(attempts: Sequence[Series]) -> Series:
    """The points of all attempts: an attempt that goes on replaces what earlier ones had from its first step on."""
    out, *later = attempts
    for one in later:
        kept = out.step < one.step[0]
        names = dict.fromkeys([*out.values, *one.values])
        values = {name: np.concatenate([out.column(name)[kept], one.column(name)]) for name in names}
        out = Series(np.concatenate([out.step[kept], one.step]), np.concatenate([out.t[kept], one.t]), values)
    return out


def live_values(folder: RunFolder) -> dict[str, Series]:
    """The live values of a run, finished or not, by trial: of those trials that have logged some."""
    return series(LiveReader(folder).news())


__all__ = ["FOLDER", "LiveReader", "Logged", "Series", "live_values", "series"]
