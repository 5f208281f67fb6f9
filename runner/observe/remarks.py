"""Warnings about the results of a run: gradients that are zero in every trial, and optimisation runs that lowered no loss.

``remarks.json`` in the run's folder keeps them when the run has ended, so that ``status``, ``results`` and the report repeat them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...compiler.errors import QdrunError
from ...jobs.planning.gradient_notes import GradientNote, causes_of, warnings_of
from ..optimize.results import STOPPED
from ..query.run_table import Large, Row, RunTable, column_of, flat_numbers
from ..store.encoding import Damaged, document, read_document
from ..store.layout import RunFolder
from ..study.trials import counted

REMARKS = "remarks.json"
GRADIENT = "grad."
HISTORY = "out.opt.history"
SAMPLE = 200
BEHIND = tuple(STOPPED.index(word) for word in ("interrupted", "behind"))
"""Optimisation runs that something else ended say nothing about their steps."""


def keep_remarks(folder: RunFolder, rows: Sequence[Row], told: Iterable[str] = ()) -> None:
    """Write the remarks on a run that has ended.

    Args:
        folder: of the run.
        rows: its table.
        told: warnings that trials have given while they ran.

    A store that takes no file costs the remarks.
    """
    if not rows:  # the run is lost, or its table waits for room
        return
    with suppress(OSError, ValueError, KeyError, Damaged, QdrunError):
        groups, optimize = folder.plan(), folder.config().get("optimize") or {}
        found = [*warnings_of(groups), *told, *zeros(rows, causes_of(groups)), *_fruitless(rows, optimize.get("learning_rate"))]
        kept = list(dict.fromkeys([*remarks_of(folder), *found] if told else found))
        if kept or folder.files.exists(REMARKS):
            folder.files.put(REMARKS, document({"remarks": kept}, indent=1), durable=False)


def remarks_of(folder: RunFolder) -> list[str]:
    """The remarks on a run, each in one line; before its end, those of its plan."""
    try:
        return [str(text) for text in read_document(folder.files.read(REMARKS))["remarks"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    try:
        return warnings_of(folder.plan())
    except (OSError, ValueError, Damaged):
        return []


def zeros(rows: Sequence[Row], notes: Mapping[str, GradientNote]) -> list[str]:
    """A remark for each gradient that is exactly zero in every trial that is done, or that is so in its first or last elements."""
    done = [place for place, status in enumerate(column_of(rows, "status")) if status == "done"]
    rows = RunTable.of(rows)
    names = rows.names
    found: dict[str, list[str]] = {}
    parts: list[str] = []
    trials = counted(len(done), "trial")
    where = f"in {'all ' if len(done) > 1 else 'the '}{trials}"
    for name in (name.removeprefix(GRADIENT) for name in names if name.startswith(GRADIENT)):
        note = notes.get(name)
        if (note is None or note.connected) and _is_zero(rows, GRADIENT + name, done):
            found.setdefault("" if note is None else note.why, []).append(f"`{name}`")
        elif (dead := _dead_elements(rows, GRADIENT + name, done)) is not None:
            parts.append(
                f"the gradient of `{name}` is exactly 0 {where} in {dead}: no kernel reads them, "
                "or nothing that the objective depends on; do: look at the ranges of the loops that read it"
            )
    return parts + [
        f"the gradient of {', '.join(own)} is exactly 0 {where}: "
        + (why or "a minimum, or a branch or a limit that no trial leaves; do: `qdrun check CONFIG`, or start elsewhere")
        for why, own in found.items()
    ]


def _dead_elements(rows: RunTable, name: str, done: Sequence[int]) -> str | None:
    """The elements, as text, at one end of a vector whose gradient is zero there in all of these rows."""
    few = rows.part([name], np.array(done[:SAMPLE], np.int64)).column(name)
    found = _dead_of(few)
    if found is None or len(done) <= SAMPLE:
        return found
    column = rows.column(name)  # of many rows, which takes time: only where the first ones say that it may be so
    return found if _dead_of([column[place] for place in done]) == found else None


def _dead_of(values: Sequence[Any]) -> str | None:
    values = [value for value in values if value is not None]
    if not values or any(isinstance(value, Large) or not isinstance(value, list | np.ndarray) for value in values):
        return None
    arrays = [np.asarray(value) for value in values]
    if len({array.shape for array in arrays}) > 1 or arrays[0].ndim != 1:
        return None
    dead = np.flatnonzero(~np.array(arrays, dtype=bool).any(axis=0))
    size = arrays[0].size
    together = 0 < dead.size < size and dead[-1] - dead[0] + 1 == dead.size
    if not together or not (dead[0] == 0 or dead[-1] == size - 1):
        return None
    return f"element {dead[0]} of {size}" if len(dead) == 1 else f"elements {dead[0]} to {dead[-1]} of {size}"


def _is_zero(rows: RunTable, name: str, done: Sequence[int]) -> bool:
    """Whether a column is zero in all of these rows, and some row has a number. Arrays that are in the journal only are not."""
    some = rows.part([name], np.array(done, np.int64))
    numbers = flat_numbers(some.data.column(name))
    if numbers is not None:
        return bool(len(numbers)) and not numbers.any()
    values = [value for value in some.column(name) if value is not None]
    if any(isinstance(value, Large) for value in values):
        return False
    arrays = [np.asarray(value, dtype=np.float64) for value in values]
    return any(array.size for array in arrays) and not any(array.any() for array in arrays)


def _fruitless(rows: Sequence[Row], rate: Any) -> list[str]:
    """The remark that no optimisation run has lowered its loss. ``rate``: the learning rate; None: the rule has none."""
    tried, better, worse = 0, 0, 0
    columns = (column_of(rows, name) for name in ("status", HISTORY, "out.opt.stopped"))
    for status, history, stopped in zip(*columns, strict=True):
        if not isinstance(history, list) or len(history) < 2 or (stopped is not None and int(stopped) in BEHIND):
            continue
        if status not in ("done", "failed"):
            continue
        tried += 1
        later = [value for value in history[1:] if isinstance(value, float) and math.isfinite(value)]
        better += bool(later) and min(later) < history[0]
        worse += not later or min(later) > history[0]
    if not tried or better:
        return []
    said = f"no optimisation run lowered its loss ({counted(tried, 'run')})"
    if worse and isinstance(rate, Mapping):
        return [f"{said}: every step of learning_rate {', '.join(rate)} overshoots; do: a schedule with smaller rates"]
    if worse and rate is not None:
        return [f"{said}: every step of learning_rate {rate:g} overshoots; do: optimize.learning_rate: {rate / 100:g} or less"]
    if worse:
        return [f"{said}; do: `qdrun check CONFIG` compares the gradients with finite differences"]
    return [f"{said}: it stays the same, as at a minimum or with gradients of 0; do: start elsewhere, or `qdrun check CONFIG`"]


__all__ = ["REMARKS", "keep_remarks", "remarks_of", "zeros"]
