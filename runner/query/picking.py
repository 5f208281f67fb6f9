"""Which trial, which column: what users type, made exact, or refused with what there is."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

from ...compiler.errors import QdrunError
from ..config.yaml_lines import did_you_mean
from ..store.layout import RunFolder

Row = dict[str, Any]
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


def ordered(rows: Iterable[Row], by: str, columns: Sequence[str]) -> list[Row]:
    """Rows by a column, the smallest first; by ``max:column``, the largest first. Rows without a number or text there come last.

    Raises:
        NotFound: no such column, or one of arrays.
    """
    name = column_of(by.removeprefix(LARGEST), columns)
    rows = list(rows)
    if any(isinstance(row.get(name), list | dict) for row in rows):
        raise NotFound(f"`{name}` is an array in each row, which has no order\n  do: name a column of numbers")
    have = [row for row in rows if row.get(name) is not None and row[name] == row[name]]
    text = any(isinstance(row[name], str) for row in have)
    have.sort(key=lambda row: str(row[name]) if text else row[name], reverse=by.startswith(LARGEST))
    return have + [row for row in rows if row.get(name) is None or row[name] != row[name]]


def best_row(rows: Iterable[Row], by: str, columns: Sequence[str]) -> Row | None:
    """The finished trial with the smallest value of a column, or with the largest, for ``max:column``; None when none has one.

    Raises:
        NotFound: no such column.
    """
    name = column_of(by.removeprefix(LARGEST), columns)
    done = ordered((row for row in rows if row["status"] == "done"), by, columns)
    first = next(iter(done), None)
    return first if first is not None and first.get(name) is not None and first[name] == first[name] else None
