"""Reductions and prefix sums.

A prefix sum works on segments of ``SEGMENT`` elements: their sums, the prefix sums of these, then the elements of each segment in order.
A result has the same bits on every backend, and for every number of threads. A minimum or a maximum of reals is NaN if one of them is, and
-0.0 is less than 0.0, whatever the order. On a GPU whose waves exchange values, blocks of threads take
tiles instead (``in_blocks``), where no derivative is asked for: sums of reals have other brackets there, and the same bits in each run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...compiler.extend import DType, identity, scratch
from ...compiler.face import (
    Template,
    Tensor,
    Vector,
    atomic_max,
    atomic_min,
    cast,
    current_program,
    func,
    i32,
    i64,
    kernel,
    max,
    min,
    static,
)
from . import in_blocks
from .arrays import differentiated, line, number, operation, typed
from .keys import ordered_type
from .look_back import messages, usable

SEGMENT = 256
"""Elements that one iteration takes in order."""

PART, COLUMNS = 4096, 16
"""Elements of which one iteration makes one on a CPU, and how many sums it has meanwhile."""


@kernel
def _reduce(x: Tensor, out: Tensor, op: Template, start: Template, axes: Template) -> None:
    for _ in range(1):
        out[0 if static(axes) else None] = start
    for i in x:
        if static(op == "add"):
            out[0 if static(axes) else None] += x[i]
        elif static(op == "min"):
            atomic_min(out[0 if static(axes) else None], x[i])
        else:
            atomic_max(out[0 if static(axes) else None], x[i])


@kernel
def _partial(x: Tensor, parts: Tensor, op: Template, start: Template, dtype: Template) -> None:
    """``parts`` = the elements of each ``PART`` combined: in ``COLUMNS``, which are the lanes of vector instructions."""
    for s in parts:
        _columns(x, parts, s, op, start, dtype)


@func
def _columns(x: Any, parts: Any, s: Any, op: Any, start: Any, dtype: Any) -> None:
    total = Vector([start for _ in range(COLUMNS)], dt=dtype)
    begin = cast(s, i64) * PART  # i64: neighbours in memory are neighbours for LLVM, too
    end = min(cast(x.shape[0], i64), begin + PART)
    rows = (end - begin) // COLUMNS
    for row in range(rows):
        for k in static(range(COLUMNS)):
            total[k] = _combined(total[k], x[begin + row * COLUMNS + k], op)
    for i in range(begin + rows * COLUMNS, end):
        total[0] = _combined(total[0], x[i], op)
    for step in static((8, 4, 2, 1)):
        for k in static(range(step)):
            total[k] = _combined(total[k], total[k + step], op)
    parts[s] = total[0]


@func
def _combined(a: Any, b: Any, op: Template) -> Any:
    if static(op == "min"):
        return min(a, b)
    if static(op == "max"):
        return max(a, b)
    return a + b


@kernel
def _segments(x: Tensor, sums: Tensor, op: Template, start: Template, dtype: Template) -> None:
    for s in sums:
        total = cast(start, dtype)
        for i in range(s * SEGMENT, min(x.shape[0], s * SEGMENT + SEGMENT)):
            total = _combined(total, x[i], op)
        sums[s] = total


@func
def _scan_part(x: Any, out: Any, begin: Any, end: Any, before: Any, op: Template, inclusive: Template) -> None:
    """The prefix sums of the elements begin to end - 1, in order, after those ``before`` them."""
    total = before
    for i in range(begin, end):
        if static(inclusive):
            total = _combined(total, x[i], op)
            out[i] = total
        else:
            out[i] = total
            total = _combined(total, x[i], op)


@kernel
def _scan(x: Tensor, before: Tensor, out: Tensor, op: Template, inclusive: Template) -> None:
    for s in before:
        _scan_part(x, out, s * SEGMENT, min(x.shape[0], s * SEGMENT + SEGMENT), before[s], op, inclusive)


@kernel
def _scan_one(x: Tensor, out: Tensor, op: Template, start: Template, dtype: Template, inclusive: Template) -> None:
    for _ in range(1):
        _scan_part(x, out, 0, x.shape[0], cast(start, dtype), op, inclusive)


@kernel
def _copy(x: Tensor, out: Tensor) -> None:
    for i in x:
        out[i] = x[i]


@cache
def _start(op: str, dtype: DType) -> float:
    """The number that changes nothing when it is combined with others: always the same object, by which launches are found."""
    code: Any = op
    return identity(code, dtype).item()


def reduce(x: Any, out: Any, op: str = "add") -> None:
    """``out`` = all elements of ``x`` combined. A sum has the same bits in each run.

    Args:
        x: one axis of numbers.
        out: one number of the same type, of the shape () or (1,); it is overwritten.
        op: "add", "min" or "max". The gradient of a minimum or a maximum goes to an element that has it.

    Raises:
        QdrunTypeError, QdrunValueError: other arrays, types or operations.
    """
    x, op = line(x, "reduce", "x"), operation(op, "reduce")
    out = typed(number(out, "reduce", "out"), "reduce", "out", x.dtype)
    start, n = _start(op, x.dtype), x.shape[0]
    if usable(n, x, out):
        blocks, (wide, _) = in_blocks.blocks_of(n), ordered_type(x.dtype, "reduce")
        parts, arrived = scratch("reduce.blocks", in_blocks.MOST_BLOCKS, wide), scratch("reduce.arrived", 1, i32)
        in_blocks.fold(x, parts, arrived, out, blocks, in_blocks.COMBINE[op], start, wide, len(out.shape))
        return
    if n > PART and current_program().device.on_host and not differentiated(x, out):
        parts = scratch("reduce.parts", -(-n // PART), x.dtype)
        _partial(x, parts, op, start, x.dtype)
        x = parts
    _reduce(x, out, op, start, len(out.shape))


def inclusive_scan(x: Any, out: Any, op: str = "add") -> None:
    """``out[i]`` = the elements ``x[0]`` to ``x[i]`` combined, in this order within segments of 256.

    Args:
        x: one axis of numbers.
        out: as many numbers of the same type; ``x`` itself to replace its elements.
        op: "add", "min" or "max".

    Raises:
        QdrunTypeError, QdrunValueError: other arrays, types or operations.
    """
    _scanned(x, out, op, True, "inclusive_scan")


def exclusive_scan(x: Any, out: Any, op: str = "add") -> None:
    """``out[i]`` = the elements before ``x[i]`` combined; ``out[0]`` is 0, the greatest or the least number of the type.

    Args:
        x: one axis of numbers.
        out: as many numbers of the same type; ``x`` itself to replace its elements.
        op: "add", "min" or "max".

    Raises:
        QdrunTypeError, QdrunValueError: other arrays, types or operations.
    """
    _scanned(x, out, op, False, "exclusive_scan")


def _scanned(x: Any, out: Any, op: str, inclusive: bool, what: str) -> None:
    x, op = line(x, what, "x"), operation(op, what)
    out = typed(line(out, what, "out", x.shape[0]), what, "out", x.dtype)
    if x is not out or usable(x.shape[0], x):
        scan(x, out, op, inclusive)
        return
    result = scratch("scan.result", x.shape[0], x.dtype, x)
    scan(x, result, op, inclusive)
    _copy(result, x)


def scan(x: Any, out: Any, op: str, inclusive: bool, level: int = 0) -> None:
    """A prefix sum of checked arrays. Blocks of threads read a tile before they write it: ``out`` may be ``x``."""
    start, n = _start(op, x.dtype), x.shape[0]
    if usable(n, x, out):
        (wide, bits), tiles = ordered_type(x.dtype, "scan"), in_blocks.tiles_of(n)
        left = messages("scan.left", tiles, words=bits.size // 4)
        in_blocks.scan(x, left, out, tiles, in_blocks.COMBINE[op], start, wide, bits, inclusive)
        return
    if n <= SEGMENT:
        _scan_one(x, out, op, start, x.dtype, inclusive)
        return
    count, lasting = -(-n // SEGMENT), op != "add"
    sums = scratch(f"scan.sums.{level}", count, x.dtype, x, lasting)
    before = scratch(f"scan.before.{level}", count, x.dtype, x, lasting)
    _segments(x, sums, op, start, x.dtype)
    scan(sums, before, op, False, level + 1)
    _scan(x, before, out, op, inclusive)


class PrefixSumExecutor:
    """``PrefixSumExecutor(length).run(x)`` replaces the elements of ``x`` by their inclusive prefix sums.

    Args:
        length: of the arrays.
    """

    def __init__(self, length: int) -> None:
        self.sorting_length = length

    def run(self, input_arr: Any) -> None:
        """Sum up, in place.

        Raises:
            QdrunTypeError, QdrunValueError: no array of numbers of this length.
        """
        x = line(input_arr, "PrefixSumExecutor.run", "input_arr", self.sorting_length)
        inclusive_scan(x, x)
