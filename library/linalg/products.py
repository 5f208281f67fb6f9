"""The kernels of the arithmetic of sparse matrices. Arrays of entries have one element more than there are entries."""

from __future__ import annotations

from ...compiler.face import Template, Tensor, cast, i32, kernel, static


@kernel
def multiply(begins: Tensor, columns: Tensor, values: Tensor, x: Tensor, out: Tensor) -> None:
    """``out`` = matrix times vector."""
    for row in out:
        total = cast(0, out.dtype)
        for entry in range(begins[row], begins[row + 1]):
            total += values[entry] * x[columns[entry]]
        out[row] = total


@kernel
def convert(x: Tensor, out: Tensor) -> None:
    """``out = x``, of another type."""
    for k in out:
        out[k] = cast(x[k], out.dtype)


@kernel
def scale(source: Tensor, out: Tensor, factor: Template) -> None:
    """``out = factor * source``, as far as ``out`` goes."""
    for entry in out:
        out[entry] = source[entry] * cast(factor, out.dtype)


@kernel
def combine(a: Tensor, b: Tensor, out: Tensor, factor: Template) -> None:
    """``out = a + factor * b``, of one pattern."""
    for entry in out:
        out[entry] = a[entry] + cast(factor, out.dtype) * b[entry]


@kernel
def join(a: Tensor, b: Tensor, out: Tensor, first: int, factor: Template) -> None:
    """The first entries of ``a``, and behind them ``factor`` times those of ``b``."""
    for k in out:
        if k < first:
            out[k] = a[k]
        else:
            out[k] = b[k - first] * cast(factor, out.dtype)


@kernel
def hadamard(
    rows: Tensor, columns: Tensor, values: Tensor, other_columns: Tensor, other: Tensor, begins: Tensor, out: Tensor
) -> None:
    """The entries of a matrix times those of another one, or times 0 where that has none."""
    for entry in range(out.shape[0] - 1):
        low, high = begins[rows[entry]], begins[rows[entry] + 1]
        end = high
        while low < high:
            middle = (low + high) // 2
            if other_columns[middle] < columns[entry]:
                low = middle + 1
            else:
                high = middle
        out[entry] = cast(0, out.dtype)
        if low < end and other_columns[low] == columns[entry]:
            out[entry] = values[entry] * other[low]


@kernel
def count_products(columns: Tensor, begins: Tensor, counts: Tensor) -> None:
    """How many entries of the second matrix each entry of the first one meets; behind them 0."""
    for entry in counts:
        counts[entry] = 0
        if entry < counts.shape[0] - 1:
            counts[entry] = begins[columns[entry] + 1] - begins[columns[entry]]


@kernel
def products(
    rows: Tensor,
    columns: Tensor,
    values: Tensor,
    other_columns: Tensor,
    other: Tensor,
    begins: Tensor,
    ends: Tensor,
    out_rows: Tensor,
    out_columns: Tensor,
    out: Tensor,
) -> None:
    """The triplets of a product of matrices; those of an entry of the first one end before ``ends``."""
    for entry in range(ends.shape[0] - 1):
        column = columns[entry]
        first = begins[column]
        to = ends[entry] - (begins[column + 1] - first)
        for k in range(first, begins[column + 1]):
            out_rows[to + k - first] = rows[entry]
            out_columns[to + k - first] = other_columns[k]
            out[to + k - first] = values[entry] * other[k]


@kernel
def split_triplets(triplets: Tensor, rows: Tensor, columns: Tensor, values: Tensor, vectors: Template) -> None:
    """The parts of triplets (row, column, value)."""
    for k in values:
        if static(vectors):
            rows[k] = cast(triplets[k][0], i32)
            columns[k] = cast(triplets[k][1], i32)
            values[k] = cast(triplets[k][2], values.dtype)
        else:
            rows[k] = cast(triplets[3 * k], i32)
            columns[k] = cast(triplets[3 * k + 1], i32)
            values[k] = cast(triplets[3 * k + 2], values.dtype)
