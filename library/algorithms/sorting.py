"""Sorting by a radix sort, which is stable, and the order of a permutation.

A key becomes an unsigned number of the same order. Each pass orders by 8 bits of it: every segment counts its digits, the counts become
the places where the elements of a segment go, and each segment moves its elements in order. On GPUs, ``radix`` does so with tiles.
"""

from __future__ import annotations

from typing import Any

from ...compiler.extend import DType, begin_of, scratch
from ...compiler.face import QdrunFitError, QdrunTypeError, Template, Tensor, i32, kernel, static
from ...compiler.face import min as lesser
from . import radix
from .arrays import different, differentiated, line, typed
from .combine import _copy
from .keys import DIGITS, digit_of, ordered, ordered_type
from .look_back import messages, usable

PARTS = 64
"""Segments at most, of at least 4,096 elements: more of them have more counts to add up than work to share."""


@kernel
def _prepare(keys: Tensor, b: Tensor, wide: Template, bits: Template) -> None:
    for i in keys:
        b[i] = ordered(keys[i], wide, bits)


@kernel
def _pass(
    b: Tensor,
    index: Tensor,
    to_b: Tensor,
    to_index: Tensor,
    counts: Tensor,
    begins: Tensor,
    shift: int,
    segment: int,
    first: Template,
    with_index: Template,
    bits: Template,
) -> None:
    for s in range(counts.shape[0] // DIGITS):
        for d in range(DIGITS):
            counts[s * DIGITS + d] = 0
        for i in range(s * segment, lesser(b.shape[0], s * segment + segment)):
            at = s * DIGITS + digit_of(b[i], shift, bits)
            counts[at] = counts[at] + 1
    for d in range(DIGITS):
        total = 0
        for s in range(counts.shape[0] // DIGITS):
            count = counts[s * DIGITS + d]
            counts[s * DIGITS + d] = total
            total += count
        begins[d] = total
    for _ in range(1):
        total = 0
        for d in range(DIGITS):
            count = begins[d]
            begins[d] = total
            total += count
    for s in range(counts.shape[0] // DIGITS):
        for d in range(DIGITS):
            counts[s * DIGITS + d] = counts[s * DIGITS + d] + begins[d]
        for i in range(s * segment, lesser(b.shape[0], s * segment + segment)):
            at = s * DIGITS + digit_of(b[i], shift, bits)
            to = counts[at]
            counts[at] = to + 1
            to_b[to] = b[i]
            if static(with_index and first):
                to_index[to] = i
            elif static(with_index):
                to_index[to] = index[i]


@kernel
def _gather(x: Tensor, index: Tensor, out: Tensor) -> None:
    for i in index:
        out[i] = x[index[i]]


@kernel
def _shift(order: Tensor, begin: int) -> None:
    for i in order:
        order[i] += begin


def argsort(keys: Any, order: Any) -> None:
    """``order`` = the indices of ``keys`` in ascending order of the keys; equal keys stay in their order. NaN comes last.

    The indices of a field with an offset begin there, as in kernels.

    The order has no derivative: ``gather(keys, order, out)`` has.

    Args:
        keys: one axis of numbers.
        order: as many i32; it is overwritten.

    Raises:
        QdrunTypeError, QdrunValueError: other arrays or types.
    """
    begin, keys = begin_of(keys), line(keys, "argsort", "keys")
    order = typed(line(order, "argsort", "order", keys.shape[0]), "argsort", "order", i32)
    different("argsort", keys, order)
    sorted_order(keys, order, "argsort")
    if begin:
        _shift(order, begin)


def sorted_order(keys: Any, order: Any, what: str) -> None:
    """``argsort`` of checked arrays."""
    _sort(keys, order, what)


def sorted_bits(keys: Any, what: str) -> Any:
    """The ordered bits of the sorted keys, until the next call."""
    return _sort(keys, None, what)


def _sort(keys: Any, order: Any, what: str) -> Any:
    """Sort the bits of keys, and their indices, if ``order`` is an array. Returns the bits."""
    (wide, bits), n = ordered_type(keys.dtype, what), keys.shape[0]
    if usable(n):
        return _sort_in_blocks(keys, order, n, wide, bits)
    segment = max(4096, -(-n // PARTS))
    counts = scratch("sort.counts", DIGITS * -(-n // segment), i32)
    begins = scratch("sort.begins", DIGITS, i32)
    here, there = (scratch(f"sort.bits.{k}", n, bits) for k in range(2))
    indices = [scratch(f"sort.index.{k}", n if order is not None else 1, i32) for k in range(2)]
    _prepare(keys, here, wide, bits)
    index = indices[1]
    for k in range(bits.size):
        to = order if order is not None and k == bits.size - 1 else indices[k % 2]
        _pass(here, index, there, to, counts, begins, 8 * k, segment, k == 0, order is not None, bits)
        here, there, index = there, here, to
    return here


def _sort_in_blocks(keys: Any, order: Any, n: int, wide: DType, bits: DType) -> Any:
    """The same with tiles. A tape sees a copy of the keys' bits, as the kernels have no gradient."""
    if differentiated(keys):
        keys, wide = ordered_bits(keys, "argsort"), bits
    tiles = radix.tiles_of(n, bits)
    counts, begins = (scratch(f"sort.{x}", DIGITS * bits.size, i32) for x in ("digits", "before"))
    left = messages("sort.left", tiles, DIGITS)
    radix.count(keys, counts, begins, scratch("sort.arrived", 1, i32), min(tiles, radix.MOST_BLOCKS), wide, bits)
    indices = [scratch(f"sort.index.{k}", n if order is not None else 1, i32) for k in range(2)]
    index = indices[1]
    for k in range(bits.size):
        last = k == bits.size - 1
        moved = scratch(f"sort.bits.{(k + 1) % 2}", n, bits)
        to = order if order is not None and last else indices[k % 2]
        write = order is None or not last
        radix.move(keys, index, moved, to, begins, left, tiles, 8 * k, k == 0, write, order is not None, wide, bits)
        keys, index = moved, to
    return keys


def ordered_bits(keys: Any, what: str) -> Any:
    """The bits by which keys are ordered, until the next call."""
    wide, bits = ordered_type(keys.dtype, what)
    out = scratch("sort.bits.0", keys.shape[0], bits)
    _prepare(keys, out, wide, bits)
    return out


def gather(x: Any, index: Any, out: Any) -> None:
    """``out[i] = x[index[i]]``, for all i. Its gradient adds what ``out`` has to the elements of ``x`` that it was read from.

    Args:
        x: one axis, of any elements.
        index: one axis of integers in the range of ``x``.
        out: as many elements of the type of ``x``; it is overwritten.

    Raises:
        QdrunTypeError, QdrunValueError: other arrays or types.
    """
    given, x, index = x, line(x, "gather", "x", scalars=False), line(index, "gather", "index")
    out = typed(line(out, "gather", "out", index.shape[0], scalars=False), "gather", "out", x.dtype)
    if index.dtype.kind not in "iu":
        raise QdrunTypeError(f"algorithms.gather: `index` has the type {index.dtype}, not an integer type")
    if x.element_shape != out.element_shape:
        raise QdrunFitError(f"algorithms.gather: elements of the shape {x.element_shape} and {out.element_shape}")
    different("gather", x, index, out)
    _gather(given if begin_of(given) else x, index, out)


def parallel_sort(keys: Any, values: Any = None) -> None:
    """Sort keys in place, in ascending order, and values with them; equal keys stay in their order. NaN comes last.

    Gradients go back to where the elements were. For that an open tape keeps the order of each call: 4 bytes for each key.

    Args:
        keys: one axis of numbers.
        values: as many elements of any type.

    Raises:
        QdrunTypeError, QdrunValueError: other arrays or types.
    """
    keys = line(keys, "parallel_sort", "keys")
    n = keys.shape[0]
    arrays = [keys] if values is None else [keys, line(values, "parallel_sort", "values", n, scalars=False)]
    different("parallel_sort", *arrays)
    order = scratch("sort.order", n, i32, lasting=True)
    sorted_order(keys, order, "parallel_sort")
    for array in arrays:
        moved = scratch("sort.moved", n, array.dtype, array)
        _gather(array, order, moved)
        _copy(moved, array)
