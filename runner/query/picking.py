"""Which trial, which column: what users type, made exact, or refused with what there is."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...compiler.errors import QdrunError
from ..config.yaml_lines import did_you_mean
from ..store.layout import RunFolder
from .run_table import Array, Large, RunTable

LARGEST = "max:"


class NotFound(QdrunError, LookupError):
    """A run has no such trial or column."""


def trial_of(folder: RunFolder, word: str) -> str:
    """The id of the trial that begins with ``word``, or that has this place in the sweep (``@3``).

    Raises:
        NotFound: there is none, or more than one.
    """
    ids = folder.trial_ids()
    found = [name for place, name in enumerate(ids) if (word == f"@{place}" if word.startswith("@") else name.startswith(word))]
    if len(found) == 1 or word in found:
        return word if word in found else found[0]
    what = (
        f"has no trial `{word}`" if not found else f"has {len(found)} trials that begin with `{word}`: {', '.join(found[:5])}"
    )
    near = did_you_mean(word, ids) or f"`qdrun results {folder.uri}` lists them"
    raise NotFound(f"{folder.name} {what}\n  do: give an id, its beginning, or the place in the sweep as in @3; {near}")


def attempt_of(trial: str, number: int, there: Sequence[int]) -> int:
    """The number of an attempt, which must be one of those that have begun.

    Raises:
        NotFound: it is none of them.
    """
    if number in there:
        return number
    hint = f"its attempts: {', '.join(map(str, there))}" if there else "it has not begun"
    raise NotFound(f"trial {trial} has no attempt {number}\n  do: leave --attempt out, or name an existing one; {hint}")


def column_of(name: str, columns: Sequence[str]) -> str:
    """A column by its name, or by what stands after ``param.``, ``grad.``, ``out.``, where that is one column.

    A parameter goes before its gradient: that is how the table is headed.

    Raises:
        NotFound: there is none, or more than one.
    """
    if name in columns or f"param.{name}" in columns:
        return name if name in columns else f"param.{name}"
    found = [
        column for column in columns if column.partition(".")[2] == name and column.startswith(("param.", "grad.", "out."))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFound(f"`{name}` is {' or '.join(found)}\n  do: name one of them exactly")
    what = f"there is no column `{name}`"
    near = did_you_mean(name, columns) or f"the columns are: {', '.join(columns)}"
    raise NotFound(f"{what}\n  do: {near}")


def columns_of(names: Iterable[str], columns: Sequence[str]) -> list[str]:
    """Columns by their names, see ``column_of``, or by patterns such as ``out.*``; each once.

    Raises:
        NotFound: there is none of a name, or for a pattern.
    """
    found: list[str] = []
    for name in names:
        fitting = fnmatch.filter(columns, name) if any(mark in name for mark in "*?[") else [column_of(name, columns)]
        if not fitting:
            raise NotFound(f"no column fits `{name}`\n  do: the columns are: {', '.join(columns)}")
        found += fitting
    return list(dict.fromkeys(found))


def ordered(table: RunTable, by: str, names: Sequence[str]) -> Array:
    """The places of rows by a column, the smallest first; by ``max:column``, the largest first. Rows without a number or text come last.

    Raises:
        NotFound: no such column, or one of arrays.
    """
    name, reverse = column_of(by.removeprefix(LARGEST), names), by.startswith(LARGEST)
    numbers, there = table.numbers(name) or _ranks(name, table.column(name))
    have = np.flatnonzero(there & ~np.isnan(numbers))
    keys = numbers[have]
    order = len(keys) - 1 - np.argsort(keys[::-1], kind="stable")[::-1] if reverse else np.argsort(keys, kind="stable")
    rest = np.ones(len(table), bool)
    rest[have] = False
    return np.concatenate([have[order], np.flatnonzero(rest)])


def _ranks(name: str, values: Sequence[Any]) -> tuple[Array, Array]:
    """The ranks of values that are no numbers of one type, and where there are some; where some are texts, of all as texts."""
    if any(isinstance(value, list | dict | Large) for value in values):
        raise NotFound(f"`{name}` is an array in each row, which has no order\n  do: name a column of numbers")
    texts = any(isinstance(value, str) for value in values)
    found = [None if _is_missing(value) else str(value) if texts else value for value in values]
    ranks = {value: rank for rank, value in enumerate(sorted({value for value in found if value is not None}))}
    return np.array([ranks.get(value, -1) for value in found], np.int64), np.array([value is not None for value in found], bool)


def best_place(table: RunTable, by: str, names: Sequence[str]) -> int | None:
    """The place of the finished trial with the smallest value of a column, or with the largest, for ``max:column``; None when none has one.

    Raises:
        NotFound: no such column.
    """
    name = column_of(by.removeprefix(LARGEST), names)
    done = np.array([place for place, status in enumerate(table.column("status")) if status == "done"], np.int64)
    first = done[ordered(table.part([name], done), by, names)][:1]
    return None if not len(first) or _is_missing(table.part([name], first).column(name)[0]) else int(first[0])


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
