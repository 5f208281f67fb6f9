"""The pattern of a sparse matrix: which entries there are, in compressed rows. It is built from triplets where the program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compiler.extend import DType, make_ndarray, recorded_by, scratch
from ...compiler.face import (
    Ndarray,
    Program,
    QdrunRuntimeError,
    QdrunValueError,
    Template,
    Tensor,
    cast,
    current_program,
    i32,
    i64,
    kernel,
)
from ..algorithms import argsort, inclusive_scan


@dataclass(frozen=True, eq=False)
class Pattern:
    """The entries of a matrix, by rows and then columns.

    Attributes:
        shape: rows and columns of the matrix.
        nnz: entries.
        rows: of each entry, i32; the arrays of entries have one element more, for values without an entry.
        columns: of each entry, i32.
        begins: the first entry of each row, and ``nnz``, i32.
    """

    shape: tuple[int, int]
    nnz: int
    rows: Ndarray
    columns: Ndarray
    begins: Ndarray

    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows and the columns of the entries."""
        return self.rows.to_numpy()[: self.nnz].astype(int), self.columns.to_numpy()[: self.nnz].astype(int)

    def same(self, other: Pattern) -> bool:
        """Whether both have the same entries."""
        if self is other:
            return True
        if self.shape != other.shape or self.nnz != other.nnz:
            return False
        return all(
            np.array_equal(getattr(self, name).to_numpy()[: self.nnz], getattr(other, name).to_numpy()[: self.nnz])
            for name in ("rows", "columns")
        )


@kernel
def _keys(rows: Tensor, columns: Tensor, count: Tensor, keys: Tensor, faults: Tensor, n: int, m: int, dtype: Template) -> None:
    for _ in range(1):
        faults[0] = 0
    for k in keys:
        keys[k] = cast(n, dtype) * cast(m, dtype)
        if k < count[0]:
            if 0 <= rows[k] and rows[k] < n and 0 <= columns[k] and columns[k] < m:
                keys[k] = cast(rows[k], dtype) * cast(m, dtype) + cast(columns[k], dtype)
            else:
                faults[0] += 1


@kernel
def _heads(keys: Tensor, order: Tensor, heads: Tensor, n: int, m: int, dtype: Template) -> None:
    for k in order:
        key = keys[order[k]]
        heads[k] = 0
        if key != cast(n, dtype) * cast(m, dtype):
            if k == 0:
                heads[k] = 1
            elif keys[order[k - 1]] != key:
                heads[k] = 1


@kernel
def _entries(
    keys: Tensor,
    order: Tensor,
    heads: Tensor,
    numbers: Tensor,
    rows: Tensor,
    columns: Tensor,
    runs: Tensor,
    m: int,
    dtype: Template,
) -> None:
    for k in order:
        if heads[k] != 0:
            key, entry = keys[order[k]], numbers[k] - 1
            rows[entry] = cast(key // cast(m, dtype), i32)
            columns[entry] = cast(key % cast(m, dtype), i32)
            runs[entry] = k


@kernel
def _row_begins(rows: Tensor, begins: Tensor, runs: Tensor, nnz: int, triplets: int) -> None:
    for row in begins:
        low, high = 0, nnz
        while low < high:
            middle = (low + high) // 2
            if rows[middle] < row:
                low = middle + 1
            else:
                high = middle
        begins[row] = low
    for _ in range(1):
        runs[nnz] = triplets


@kernel
def sum_runs(triplets: Tensor, order: Tensor, runs: Tensor, values: Tensor) -> None:
    """The value of each entry: the sum of its triplets, in the order of the triplets."""
    for entry in range(values.shape[0] - 1):
        total = cast(0, values.dtype)
        for k in range(runs[entry], runs[entry + 1]):
            total += triplets[order[k]]
        values[entry] = total


@dataclass(frozen=True, eq=False)
class Sorted:
    """Triplets in the order of the entries: entry e is the sum of the triplets ``order[runs[e]]`` to ``order[runs[e + 1] - 1]``."""

    pattern: Pattern
    order: Ndarray
    runs: Ndarray


def sort_triplets(shape: tuple[int, int], rows: Any, columns: Any, count: int | None, what: str) -> Sorted:
    """The pattern of triplets; it waits for the device.

    Args:
        shape: of the matrix.
        rows: i32, one of each triplet.
        columns: as many.
        count: how many of them there are; None: all.
        what: the operation, for messages.

    Raises:
        QdrunValueError: a triplet lies outside of the matrix.
    """
    program, (n, m), length = current_program(), shape, rows.shape[0]
    count = length if count is None else count
    dtype = i32 if n * m < 1 << 31 else i64
    with recorded_by(program, None):
        keys, heads = scratch("linalg.keys", length, dtype), scratch("linalg.heads", length, i32)
        number, faults = scratch("linalg.count", 1, i32), scratch("linalg.faults", 1, i32)
        order, numbers = make_ndarray(i32, length, ()), scratch("linalg.numbers", length, i32)
        number.fill(count)
        _keys(rows, columns, number, keys, faults, n, m, dtype)
        argsort(keys, order)
        _heads(keys, order, heads, n, m, dtype)
        inclusive_scan(heads, numbers)
        outside = int(faults.to_numpy()[0])
        if outside:
            raise QdrunValueError(
                f"{what}: {outside} of {count} triplets lie outside of the {n} x {m} matrix\n  do: rows 0 to {n - 1}, columns 0 to {m - 1}"
            )
        nnz = int(numbers[length - 1])
        found = [make_ndarray(i32, nnz + 1, ()) for _ in range(3)]
        pattern = Pattern(shape, nnz, found[0], found[1], make_ndarray(i32, n + 1, ()))
        _entries(keys, order, heads, numbers, *found, m, dtype)
        _row_begins(pattern.rows, pattern.begins, found[2], nnz, count)
    return Sorted(pattern, order, found[2])


def vector_like(length: int, dtype: DType, *like: Any) -> Ndarray:
    """A new ndarray of one axis. It has a gradient or a dual if one of ``like`` has."""
    grad, dual = any(a.has_grad() for a in like), any(a.has_dual() for a in like)
    return make_ndarray(dtype, length, (), grad, needs_dual=dual)


def refuse_trials(program: Program, what: str) -> None:
    """Refuse a batched program.

    Raises:
        QdrunRuntimeError: it is one.
    """
    if program.batch.layout.batched:
        raise QdrunRuntimeError(
            f"{what} in a batched program: the entries of each trial would be others\n"
            "  do: qd.linalg.MatrixFreeCG with a kernel for the product, which solves all trials at once"
        )


__all__ = ["Pattern", "Sorted", "refuse_trials", "sort_triplets", "sum_runs", "vector_like"]
