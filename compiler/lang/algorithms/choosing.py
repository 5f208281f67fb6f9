"""What picks elements, or puts them together: compaction, distinct values, sums of runs."""

from __future__ import annotations

from typing import Any

from ...errors import QdrunTypeError
from ...frontend.library.functions import cast, max, min
from ...frontend.markers import static
from ...ir.types import i32
from ...program.program import current_program
from ..data.tensor import Tensor
from ..data.types import Template
from ..kernel import kernel
from .arrays import different, line, no_gradient, number, scratch, typed
from .combine import SEGMENT, scan
from .sorting import _gather, ordered_bits, sorted_order


@kernel
def _flagged(flags: Tensor, ones: Tensor) -> None:
    for i in flags:
        ones[i] = cast(flags[i] != 0, i32)


@kernel
def _chosen(ones: Tensor, places: Tensor, index: Tensor, count: Tensor, axes: Template) -> None:
    for i in ones:
        if ones[i] != 0:
            index[places[i]] = i
    for _ in range(1):
        last = ones.shape[0] - 1
        count[0 if static(axes) else None] = places[last] + ones[last]


@kernel
def _chosen_in_order(ones: Tensor, places: Tensor, index: Tensor, count: Tensor, axes: Template) -> None:
    """The same on a CPU, without a branch for each element, which would be mispredicted: what is not chosen is overwritten by what is."""
    for s in range((ones.shape[0] - 1) // SEGMENT + 1):
        i = s * SEGMENT
        last = min(ones.shape[0], i + SEGMENT) - 1
        at, stop = places[i], places[last] + ones[last]
        while at < stop:
            index[at] = i
            at += ones[i]
            i += 1
    for _ in range(1):
        last = ones.shape[0] - 1
        count[0 if static(axes) else None] = places[last] + ones[last]


@kernel
def _gather_first(x: Tensor, index: Tensor, count: Tensor, out: Tensor, axes: Template) -> None:
    for i in x:
        if i < count[0 if static(axes) else None]:
            out[i] = x[index[i]]


@kernel
def _heads(b: Tensor, ones: Tensor) -> None:
    for i in b:
        ones[i] = cast(i == 0 or b[i] != b[max(i - 1, 0)], i32)


@kernel
def _runs(ones: Tensor, places: Tensor, run: Tensor) -> None:
    for i in ones:
        run[i] = places[i] + ones[i] - 1


@kernel
def _add_runs(values: Tensor, run: Tensor, sums: Tensor) -> None:
    for i in sums:
        sums[i] = cast(0, sums.dtype)
    for i in values:
        sums[run[i]] += values[i]


def _indices(ones: Any, index: Any, count: Any) -> Any:
    """The indices of the ones, in ascending order, and how many there are.

    Returns:
        The place of each of them among those.
    """
    places = scratch("choose.places", ones.shape[0], i32)
    scan(ones, places, "add", False)
    (_chosen_in_order if current_program().device.on_host else _chosen)(ones, places, index, count, len(count.shape))
    return places


def compact(x: Any, flags: Any, out: Any, count: Any) -> None:
    """``out`` = the elements of ``x`` with a flag that is not 0, in their order, and ``count`` = how many they are.

    Other elements of ``out`` stay as they are. The gradient goes to the elements that were picked; an open tape keeps their indices, 4
    bytes for each element of ``x``.

    Args:
        x: one axis, of any elements.
        flags: as many numbers.
        out: as many elements of the type of ``x``.
        count: one i32, of the shape () or (1,).

    Raises:
        QdrunTypeError, QdrunValueError: other arrays or types.
    """
    x = line(x, "compact", "x", scalars=False)
    n = x.shape[0]
    flags = line(flags, "compact", "flags", n)
    out = typed(line(out, "compact", "out", n, scalars=False), "compact", "out", x.dtype)
    if x.element_shape != out.element_shape:
        raise QdrunTypeError(f"algorithms.compact: elements of the shape {x.element_shape} and {out.element_shape}")
    count = number(count, "compact", "count", i32)
    different("compact", x, flags, out, count)
    ones, index = scratch("choose.ones", n, i32), scratch("choose.index", n, i32, lasting=True)
    _flagged(flags, ones)
    _indices(ones, index, count)
    _gather_first(x, index, count, out, len(count.shape))


def unique(x: Any, out: Any, count: Any) -> None:
    """``out`` = the distinct values of ``x`` in ascending order, and ``count`` = how many they are. All NaN are one value.

    Other elements of ``out`` stay as they are.

    Args:
        x: one axis of numbers.
        out: as many numbers of the same type.
        count: one i32, of the shape () or (1,).

    Raises:
        QdrunTypeError: other types; ``x`` has a gradient in a tape, or a dual in forward mode.
        QdrunValueError: other shapes.
    """
    x = line(x, "unique", "x")
    n = x.shape[0]
    out = typed(line(out, "unique", "out", n), "unique", "out", x.dtype)
    count = number(count, "unique", "count", i32)
    different("unique", x, out, count)
    no_gradient("unique", "equal elements have one place", "use argsort and gather", x, out)
    order = scratch("sort.order", n, i32)
    ones, index, moved = scratch("choose.ones", n, i32), scratch("choose.index", n, i32), scratch("unique.moved", n, x.dtype)
    _heads(sorted_order(x, order, "unique"), ones)
    _indices(ones, index, count)
    _gather(x, order, moved)
    _gather_first(moved, index, count, out, len(count.shape))


def reduce_by_key(keys: Any, values: Any, out_keys: Any, sums: Any, count: Any) -> None:
    """``sums`` = the sum of the values of each run of equal neighbouring keys, ``out_keys`` = its key, ``count`` = how many runs there are.

    Elements of ``sums`` beyond ``count`` are 0, those of ``out_keys`` stay as they are. Sums of reals are added in any order. The gradient
    of a sum goes to all values of its run; an open tape keeps the number of each element's run, 4 bytes for each element.

    Args:
        keys: one axis of numbers.
        values: as many numbers.
        out_keys: as many numbers of the type of ``keys``.
        sums: as many numbers of the type of ``values``.
        count: one i32, of the shape () or (1,).

    Raises:
        QdrunTypeError: other types; ``keys`` has a gradient in a tape, or a dual in forward mode.
        QdrunValueError: other shapes.
    """
    what = "reduce_by_key"
    keys = line(keys, what, "keys")
    n = keys.shape[0]
    values = line(values, what, "values", n)
    out_keys = typed(line(out_keys, what, "out_keys", n), what, "out_keys", keys.dtype)
    sums = typed(line(sums, what, "sums", n), what, "sums", values.dtype)
    count = number(count, what, "count", i32)
    different(what, keys, values, out_keys, sums, count)
    no_gradient(what, "keys only say what belongs together", "give keys without a gradient", keys, out_keys)
    ones, index = scratch("choose.ones", n, i32), scratch("choose.index", n, i32)
    _heads(ordered_bits(keys, what), ones)
    run = scratch("choose.run", n, i32, lasting=True)
    _runs(ones, _indices(ones, index, count), run)
    _gather_first(keys, index, count, out_keys, len(count.shape))
    _add_runs(values, run, sums)
