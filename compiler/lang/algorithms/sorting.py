"""Sorting by a radix sort, which is stable, and the order of a permutation.

A key becomes an unsigned number of the same order. Each pass orders by 8 bits of it: every segment counts its digits, the counts become
the places where the elements of a segment go, and each segment moves its elements in order. On GPUs, ``in_blocks`` does so with tiles.
"""

from __future__ import annotations

from typing import Any

from ...errors import QdrunTypeError
from ...frontend.library.functions import bit_cast, cast, isnan, min
from ...frontend.markers import static
from ...ir.types import DType, f32, f64, i32, i64, u32, u64
from ..data.tensor import Tensor
from ..data.types import Template
from ..function import func
from ..kernel import kernel
from . import in_blocks
from .arrays import different, line, scratch, typed
from .combine import _copy, scan

DIGITS = 256
_WIDE: dict[tuple[str, int], DType] = {
    ("f", 2): f32,
    ("f", 4): f32,
    ("f", 8): f64,
    **{("i", size): i32 for size in (1, 2, 4)},
    **{("u", size): u32 for size in (1, 2, 4)},
    ("i", 8): i64,
    ("u", 8): u64,
}
"""Kind and bytes of a key -> the type that it is ordered in."""


def ordered_type(dtype: DType, what: str) -> tuple[DType, DType]:
    """The type in which keys are ordered, and that of their bits.

    Raises:
        QdrunTypeError: keys of this type have no order.
    """
    wide = _WIDE.get((dtype.kind, dtype.size))
    if wide is None:
        raise QdrunTypeError(f"algorithms.{what}: keys of the type {dtype} are not sorted", hint="convert them to qd.i32")
    return wide, u64 if wide.size == 8 else u32


@func
def ordered(key: Any, wide: Any, bits: Any) -> Any:
    """The bits of a key as an unsigned number of the same order: -0.0 equals 0.0, and NaN comes last."""
    k = cast(key, wide)
    b = bit_cast(k, bits)
    if static(wide.is_real):
        sign = cast(1, bits) << static(8 * bits.size - 1)
        if k == 0:
            b = sign
        elif isnan(k):
            b = ~cast(0, bits)
        elif b >= sign:
            b = ~b
        else:
            b = b | sign
    elif static(wide.is_signed):
        b = b ^ (cast(1, bits) << static(8 * bits.size - 1))
    return b


@func
def _digit(b: Any, shift: Any, bits: Any) -> Any:
    return cast((b >> cast(shift, bits)) & cast(DIGITS - 1, bits), i32)


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
    bits: Template,
) -> None:
    for s in range(counts.shape[0] // DIGITS):
        for d in range(DIGITS):
            counts[s * DIGITS + d] = 0
        for i in range(s * segment, min(b.shape[0], s * segment + segment)):
            at = s * DIGITS + _digit(b[i], shift, bits)
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
        for i in range(s * segment, min(b.shape[0], s * segment + segment)):
            at = s * DIGITS + _digit(b[i], shift, bits)
            to = counts[at]
            counts[at] = to + 1
            to_b[to] = b[i]
            if static(first):
                to_index[to] = i
            else:
                to_index[to] = index[i]


@kernel
def _gather(x: Tensor, index: Tensor, out: Tensor) -> None:
    for i in index:
        out[i] = x[index[i]]


def argsort(keys: Any, order: Any) -> None:
    """``order`` = the indices of ``keys`` in ascending order of the keys; equal keys stay in their order. NaN comes last.

    The order has no derivative: ``gather(keys, order, out)`` has.

    Args:
        keys: one axis of numbers.
        order: as many i32; it is overwritten.

    Raises:
        QdrunTypeError, QdrunValueError: other arrays or types.
    """
    keys = line(keys, "argsort", "keys")
    order = typed(line(order, "argsort", "order", keys.shape[0]), "argsort", "order", i32)
    different("argsort", keys, order)
    sorted_order(keys, order, "argsort")


def sorted_order(keys: Any, order: Any, what: str) -> Any:
    """``argsort`` of checked arrays.

    Returns:
        The ordered bits of the sorted keys, until the next call.
    """
    (wide, bits), n = ordered_type(keys.dtype, what), keys.shape[0]
    tiles = in_blocks.tiles(n) if in_blocks.usable() else 0
    segment = max(1024, -(-n // 1024))
    counts = scratch("sort.counts", DIGITS * (tiles or -(-n // segment)), i32)
    begins = scratch("sort.begins", DIGITS * (tiles or 1), i32)
    here, there = (scratch(f"sort.bits.{k}", n, bits) for k in range(2))
    indices = [scratch(f"sort.index.{k}", n, i32) for k in range(2)]
    _prepare(keys, here, wide, bits)
    index = indices[1]
    for k in range(bits.size):
        to = order if k == bits.size - 1 else indices[k % 2]
        if tiles:
            in_blocks.count_digits(here, counts, 8 * k, bits)
            scan(counts, begins, "add", False)
            in_blocks.move(here, index, there, to, begins, 8 * k, k == 0, bits)
        else:
            _pass(here, index, there, to, counts, begins, 8 * k, segment, k == 0, bits)
        here, there, index = there, here, to
    return here


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
    x, index = line(x, "gather", "x", scalars=False), line(index, "gather", "index")
    out = typed(line(out, "gather", "out", index.shape[0], scalars=False), "gather", "out", x.dtype)
    if index.dtype.kind not in "iu":
        raise QdrunTypeError(f"algorithms.gather: `index` has the type {index.dtype}, not an integer type")
    if x.element_shape != out.element_shape:
        raise QdrunTypeError(f"algorithms.gather: elements of the shape {x.element_shape} and {out.element_shape}")
    different("gather", x, index, out)
    _gather(x, index, out)


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
