"""The table of trials as columns for the script of a report: parameters, results, gradients and facts, as far as the page has room."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ...optimize.results import REPORTED, STOPPED
from ...query.run_table import RunTable
from .material import Material, column_in, swept_of, values_of
from .page import clean
from .thinning import picked

TRIALS, CELLS = 10_000, 200_000
"""Maximum number of trials in the page, and of numbers, or as much text."""
CHOICES, DIGITS, LETTERS = 50, 7, 80
"""A column of so few different values is written as numbers of these. Digits of a number, letters of a text."""
COMPONENTS = 8
"""So many components of an array that an optimisation has found have a column."""
RUN = "run id"
"""The column that tells trials of several runs apart; no parameter has a space in its name."""
Values = list[Any]
Gradients = dict[str, str]
FACTS = (("seconds", "s"), ("planned_bytes", "bytes"), ("used_bytes", "bytes"), ("attempts", ""))


@dataclass(frozen=True)
class ReportColumn:
    """One column of the table.

    Attributes:
        name: as in the table of ``qdrun results``, without ``param.`` in front of a swept parameter.
        role: ``trial``, ``parameter``, ``result``, ``gradient`` or ``fact``.
        values: of each trial; None where it has none.
        unit: ``bytes``, ``s``, or nothing.
    """

    name: str
    role: str
    values: Values
    unit: str = ""

    @property
    def numeric(self) -> bool:
        """Whether all of its values are numbers, and there is one."""
        some = [value for value in self.values if value is not None]
        return bool(some) and all(_is_number(value) for value in some)

    def data(self) -> dict[str, Any]:
        """The column as JSON: ``values``, or ``choices`` with ``codes`` into them. What is not finite is a text."""
        written = [_written(value) for value in self.values]
        choices = list(dict.fromkeys(written))
        data: dict[str, Any] = {
            "name": clean(self.name, LETTERS),
            "role": self.role,
            "unit": self.unit,
            "numeric": self.numeric,
        }
        if len(choices) > CHOICES:
            return data | {"values": written}
        places = {choice: place for place, choice in enumerate(choices)}
        return data | {"choices": choices, "codes": [places[value] for value in written]}

    def cells(self) -> int:
        """The room that it takes in the page, in numbers; a text counts as one for every ten letters."""
        if len({str(value) for value in self.values}) <= CHOICES:
            return len(self.values) // 4  # they are written as short numbers
        return sum(1 + min(len(value), LETTERS) // 10 if isinstance(value, str) else 1 for value in self.values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value if value is None else str(value).lower()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, int) and abs(value) < 1 << 53 else clean(value, LETTERS)


@dataclass(frozen=True)
class TrialTable:
    """The table of a report.

    Attributes:
        places: the index of each trial in the table, counted through all runs.
        columns: those that there is room for.
        gradients: for a column of values, the column of the derivatives of the loss by it.
        left_out: the names of columns without room.
    """

    places: Sequence[int]
    columns: Sequence[ReportColumn]
    gradients: Gradients
    left_out: Sequence[str]

    def data(self, swept: Sequence[str]) -> dict[str, Any]:
        """The table as JSON; ``swept`` are the names of parameters."""
        names = {column.name for column in self.columns}
        return {
            "columns": [column.data() for column in self.columns],
            "swept": [clean(name, LETTERS) for name in swept if name in names],
            "gradients": {clean(at, LETTERS): clean(name, LETTERS) for at, name in self.gradients.items() if name in names},
        }

    def place_of(self, before: int = 0) -> Callable[[int], int | None]:
        """The function that gives the place of a trial in the table by its index in its run, which has so many trials ``before`` it."""
        known = {index: place for place, index in enumerate(self.places)}
        return lambda index: known.get(before + index)


def trial_table(runs: Sequence[Material]) -> TrialTable:
    """The table of one run, or of several one after the other: all trials, or ``TRIALS`` of them with the best one, evenly spread."""
    counts = [len(run.trials) for run in runs]
    places = picked(sum(counts), TRIALS)
    best = _best(runs)
    if best is not None and best not in places:
        places = sorted([*places[1:], best])
    table = _SomeRows.of(runs, places)
    every = {name: [value for run in runs for value in values_of(run.trials, name)] for name in swept_of(runs)}
    swept = [ReportColumn(name, "parameter", [values[place] for place in places]) for name, values in every.items()]
    slopes = _slopes(table, [column.name for column in swept if column.numeric])
    names = [run.folder.name for run, count in zip(runs, counts, strict=True) for _ in range(count)] if len(runs) > 1 else []
    wanted = [
        ReportColumn("trial", "trial", table.column("trial")),
        *([ReportColumn(RUN, "fact", [names[place] for place in places])] if names else []),
        ReportColumn("status", "fact", table.column("status")),
        *swept,
        *(ReportColumn(name, "result", table.column(name)) for name in ("loss", "gradient_norm")),
        *slopes.columns,
        *(ReportColumn(name, "fact", table.column(name), unit) for name, unit in FACTS),
        ReportColumn("device", "fact", table.column("device")),
        ReportColumn("error", "fact", list(map(_error, *map(table.column, ("error_type", "error", "failure"))))),
        *_outputs(table),
    ]
    kept, left_out, room = list[ReportColumn](), list[str](), CELLS
    for column in wanted:
        if all(value is None for value in column.values):
            continue
        if column.cells() <= room:
            room -= column.cells()
            kept.append(column)
        else:
            left_out.append(column.name)
    return TrialTable(places, kept, slopes.gradients, left_out)


@dataclass(frozen=True)
class _SomeRows:
    """Rows of the tables of several runs, one after the other."""

    parts: Sequence[RunTable]
    names: Sequence[str]

    @classmethod
    def of(cls, runs: Sequence[Material], places: Sequence[int]) -> _SomeRows:
        """``places``: counted through all runs, in rising order."""
        at, before, parts = np.asarray(places, np.int64), 0, list[RunTable]()
        for run in runs:
            parts.append(run.rows.take(at[(at >= before) & (at < before + len(run.rows))] - before))
            before += len(run.rows)
        return cls(parts, list(dict.fromkeys(chain.from_iterable(part.names for part in parts))))

    def column(self, name: str) -> Values:
        """The values of a column; None where a run has none."""
        return list(chain.from_iterable(part.column(name) for part in self.parts))

    def component(self, name: str) -> Values:
        """Numbers: ``grad.legs.1`` is its own column, or component 1 of the lists of ``grad.legs``; None where there is none."""
        values, (head, _, place) = self.column(name), name.rpartition(".")
        if place.isdecimal() and head in self.names:
            k = int(place)
            lists = (whole[k] if type(whole) is list and k < len(whole) else None for whole in self.column(head))
            values = [one if value is None else value for value, one in zip(values, lists, strict=True)]
        return [value if _is_number(value) else None for value in values]


def _best(runs: Sequence[Material]) -> int | None:
    rows = zip(column_in(runs, "loss"), column_in(runs, "status"), strict=True)
    losses = [(loss, place) for place, (loss, status) in enumerate(rows) if status == "done" and loss is not None]
    finite = [pair for pair in losses if math.isfinite(pair[0])]
    return min(finite)[1] if finite else None


def _error(kind: str | None, message: str | None, failure: str | None) -> str | None:
    if kind is None and message is None:
        return failure
    return f"{kind or failure or 'failed'}: {(str(message or '').splitlines() or [''])[0]}"


@dataclass(frozen=True)
class _Slopes:
    columns: Sequence[ReportColumn]
    gradients: Gradients


def _slopes(table: _SomeRows, swept: Sequence[str]) -> _Slopes:
    """The gradients by single numbers, and where they hold: at a swept parameter, or at what an optimisation has found."""
    found = _components(table, "out.opt.", REPORTED)
    columns, gradients = list[ReportColumn](), Gradients()
    for name in found or swept:
        own = table.component(f"grad.{name}")
        at = f"out.opt.{name}" if found else name
        if found:
            columns.append(ReportColumn(at, "result", table.component(at)))
        if any(value is not None for value in own):
            columns.append(ReportColumn(f"grad.{name}", "gradient", own))
            gradients[at] = f"grad.{name}"
    return _Slopes(columns, gradients)


def _components(table: _SomeRows, prefix: str, without: Sequence[str] = ()) -> list[str]:
    """The names below a prefix: of numbers, and of the first components of lists of numbers."""
    found = list[str]()
    for name in (name.removeprefix(prefix) for name in table.names if name.startswith(prefix)):
        values = [] if name in without else table.column(prefix + name)
        sizes = [len(value) for value in values if type(value) is list and all(map(_is_number, value))]
        found += [name] if any(map(_is_number, values)) else []
        found += [f"{name}.{place}" for place in range(min(max(sizes, default=0), COMPONENTS))]
    return found


def _outputs(table: _SomeRows) -> list[ReportColumn]:
    """The outputs that are numbers; of an optimisation the steps and why it was over."""
    names = [name for name in table.names if name.startswith("out.") and any(map(_is_number, table.column(name)))]
    columns = [ReportColumn(name, "result", table.component(name)) for name in names if not name.startswith("out.opt.")]
    if "out.opt.stopped" in names:
        columns.append(ReportColumn("out.opt.steps", "result", table.column("out.opt.steps")))
        columns.append(ReportColumn("out.opt.stopped", "fact", list(map(_stopped, table.column("out.opt.stopped")))))
    return columns


def _stopped(number: float | None) -> str | None:
    return None if number is None else STOPPED[int(number)]


__all__ = ["ReportColumn", "TrialTable", "trial_table"]
