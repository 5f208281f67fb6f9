"""Values of a sweep that come from files: rows of numpy arrays, columns of Parquet and CSV tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy import load

from .axes import MOST

TABLES, ARRAYS = (".parquet", ".csv"), (".npy", ".npz")


class PointFileError(ValueError):
    """A file has no such values; ``allowed`` holds the names that it has, ``hint`` what to do."""

    def __init__(self, what: str, allowed: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(what)
        self.what, self.allowed, self.hint = what, allowed, hint


def values_of(path: Path, column: str | None = None) -> list[Any]:
    """The values in a file, as numbers, texts and lists of them.

    Args:
        path: of the file, ``.npy``, ``.npz``, ``.parquet`` or ``.csv``. The first axis of an array counts the values.
        column: of a table, or the array of an ``.npz``; None: the only one.

    Raises:
        PointFileError: it cannot be read, has no such column, has no values, or more than a sweep may have.
    """
    if path.suffix in TABLES:
        found = columns_of(path, None if column is None else {column: column})
        name = _only(path, column, tuple(found))
        return found[name]
    return _checked(path, _array(path, column))


def columns_of(path: Path, columns: Mapping[str, str] | None = None) -> dict[str, list[Any]]:
    """The columns of a table.

    Args:
        path: of a ``.parquet`` or ``.csv`` file.
        columns: which ones, by the parameters that they become; None: all of them.

    Raises:
        PointFileError: as of ``values_of``; or an entry is empty.
    """
    table = _table(path)
    wanted, known = {name: name for name in table.column_names} if columns is None else columns, tuple(table.column_names)
    for column in wanted.values():
        if column not in known:
            raise PointFileError(f"{path} has no column `{column}`", known)
        if table.column(column).null_count:
            empty = table.column(column).is_null().to_pylist().index(True)
            raise PointFileError(f"row {empty} of {path} has no `{column}`", hint="fill it, or leave the row out")
    return {name: _checked(path, table.column(column).to_pylist()) for name, column in wanted.items()}


def _only(path: Path, column: str | None, names: tuple[str, ...]) -> str:
    if column is not None and column in names:
        return column
    if column is not None:
        raise PointFileError(f"{path} has no `{column}`", names)
    if len(names) != 1:
        raise PointFileError(f"{path} has {len(names)} columns, and nothing says which one", names, "add column: name")
    return names[0]


def _checked(path: Path, values: list[Any]) -> list[Any]:
    if not 1 <= len(values) <= MOST:
        raise PointFileError(f"{path} has {len(values)} values; a sweep has 1 to {MOST}")
    return values


def _array(path: Path, name: str | None) -> list[Any]:
    """The rows of an array. No code is loaded with it."""
    if path.suffix not in ARRAYS:
        raise PointFileError(f"`{path.name}` is no file of values", (*ARRAYS, *TABLES), "save an array with numpy.save")
    if path.suffix == ".npy" and name is not None:
        raise PointFileError(f"{path} is one array and has no `{name}`", hint="leave `column` out")
    try:
        found = load(path, allow_pickle=False)
        array: np.ndarray = found if path.suffix == ".npy" else found[_only(path, name, tuple(found.files))]
    except PointFileError:
        raise
    except Exception as error:  # of zip files, headers, pickles
        raise _unreadable(path, error) from error
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise PointFileError(f"{path} has {array.dtype} of shape {array.shape}; values are numbers along a first axis")
    return array.tolist()


def _table(path: Path) -> Any:
    if path.suffix not in TABLES:
        raise PointFileError(f"`{path.name}` is no table", TABLES)
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        from pyarrow import csv

        return csv.read_csv(path)
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> PointFileError:
    if isinstance(error, FileNotFoundError):
        return PointFileError(f"{path} is not there", hint="relative paths begin in the folder of the config")
    return PointFileError(f"{path} cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


__all__ = ["PointFileError", "columns_of", "values_of"]
