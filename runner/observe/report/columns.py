"""The table of trials as columns for the script of a report: parameters, results, gradients and facts, as far as the page has room."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...optimize.results import REPORTED, STOPPED
from ..table import Row
from .material import Material, swept_of, value_of
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
    every = [(run, place) for run in runs for place in range(len(run.trials))]
    places = picked(len(every), TRIALS)
    best = _best([run.rows[place] for run, place in every])
    if best is not None and best not in places:
        places = sorted([*places[1:], best])
    some = [every[place] for place in places]
    rows = [run.rows[place] for run, place in some]
    trials = [run.trials[place] for run, place in some]
    swept = [ReportColumn(name, "parameter", [value_of(trial, name) for trial in trials]) for name in swept_of(runs)]
    slopes = _slopes(rows, [column.name for column in swept if column.numeric])
    of_run = [ReportColumn(RUN, "fact", [run.folder.name for run, _ in some])] if len(runs) > 1 else []
    wanted = [
        ReportColumn("trial", "trial", [row["trial"] for row in rows]),
        *of_run,
        ReportColumn("status", "fact", [row["status"] for row in rows]),
        *swept,
        ReportColumn("loss", "result", [row["loss"] for row in rows]),
        ReportColumn("gradient_norm", "result", [row["gradient_norm"] for row in rows]),
        *slopes.columns,
        *(ReportColumn(name, "fact", [row[name] for row in rows], unit) for name, unit in FACTS),
        ReportColumn("device", "fact", [row["device"] for row in rows]),
        ReportColumn("error", "fact", [_error(row) for row in rows]),
        *_outputs(rows),
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


def _best(rows: Sequence[Row]) -> int | None:
    losses = [(row["loss"], place) for place, row in enumerate(rows) if row["status"] == "done" and row["loss"] is not None]
    finite = [pair for pair in losses if math.isfinite(pair[0])]
    return min(finite)[1] if finite else None


def _error(row: Row) -> str | None:
    if row["error_type"] is None and row["error"] is None:
        return row["failure"]
    return f"{row['error_type'] or row['failure'] or 'failed'}: {(str(row['error'] or '').splitlines() or [''])[0]}"


@dataclass(frozen=True)
class _Slopes:
    columns: Sequence[ReportColumn]
    gradients: Gradients


def _slopes(rows: Sequence[Row], swept: Sequence[str]) -> _Slopes:
    """The gradients by single numbers, and where they hold: at a swept parameter, or at what an optimisation has found."""
    found = _components(rows, "out.opt.", REPORTED)
    columns, gradients = list[ReportColumn](), Gradients()
    for name in found or swept:
        own = [_component(row, "grad.", name) for row in rows]
        at = f"out.opt.{name}" if found else name
        if found:
            columns.append(ReportColumn(at, "result", [_component(row, "out.opt.", name) for row in rows]))
        if any(value is not None for value in own):
            columns.append(ReportColumn(f"grad.{name}", "gradient", own))
            gradients[at] = f"grad.{name}"
    return _Slopes(columns, gradients)


def _components(rows: Sequence[Row], prefix: str, without: Sequence[str] = ()) -> list[str]:
    """The names below a prefix: of numbers, and of the first components of lists of numbers."""
    names: dict[str, None] = {}
    for row in rows:
        for key, value in row.items():
            name = key.removeprefix(prefix)
            if not key.startswith(prefix) or name in without:
                continue
            if _is_number(value):
                names[name] = None
            elif type(value) is list and value and all(map(_is_number, value)):
                names |= dict.fromkeys(f"{name}.{place}" for place in range(min(len(value), COMPONENTS)))
    return list(names)


def _component(row: Row, prefix: str, name: str) -> float | None:
    """A number of a row: ``grad.legs.1`` is its own column, or component 1 of the list ``grad.legs``."""
    value: Any = row.get(prefix + name)
    if value is None and name.rpartition(".")[2].isdecimal():
        head, _, place = name.rpartition(".")
        whole = row.get(prefix + head)
        value = whole[int(place)] if type(whole) is list and int(place) < len(whole) else None
    return value if _is_number(value) else None


def _outputs(rows: Sequence[Row]) -> list[ReportColumn]:
    """The outputs that are numbers; of an optimisation the steps and why it was over."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if name.startswith("out.") and _is_number(value))
    columns = [
        ReportColumn(name, "result", [_component(row, "", name) for row in rows])
        for name in names
        if not name.startswith("out.opt.")
    ]
    if "out.opt.stopped" in names:
        columns.append(ReportColumn("out.opt.steps", "result", [row.get("out.opt.steps") for row in rows]))
        columns.append(ReportColumn("out.opt.stopped", "fact", [_stopped(row.get("out.opt.stopped")) for row in rows]))
    return columns


def _stopped(number: float | None) -> str | None:
    return None if number is None else STOPPED[int(number)]


__all__ = ["ReportColumn", "TrialTable", "trial_table"]
