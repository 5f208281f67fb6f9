"""What picks elements, or puts them together: compaction, distinct values, sums of runs."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...compiler.extend import DType, Function, scratch
from ...compiler.face import QdrunFitError, Template, Tensor, cast, current_program, func, i32, kernel, max, min, static
from . import in_blocks
from .arrays import different, differentiated, line, no_gradient, number, typed
from .combine import scan
from .keys import ordered_type, unordered
from .look_back import messages, usable
from .sorting import ordered_bits, sorted_bits

CHUNK = 4096
"""Elements that one iteration looks at on a CPU."""


@func
def _flag(flags: Any, i: Any) -> Any:
    return flags[i] != 0


@func
def _element(x: Any, i: Any) -> Any:
    return x[i]


@func
def _is_head(b: Any, i: Any) -> Any:
    """Whether an element differs from the one before it."""
    return i == 0 or b[i] != b[max(i - 1, 0)]


@cache
def _key_of(dtype: DType, wide: DType, bits: DType) -> Function:
    """A func of an array of ordered bits and an index: the key."""

    @func
    def key_at(b: Any, i: Any) -> Any:
        return cast(unordered(b[i], wide, bits), dtype)

    return key_at


@func
def _of(f: Any, x: Any, i: Any) -> Any:
    return f(x, i)


@kernel
def _mark(picks: Tensor, ones: Tensor, chosen: Template) -> None:
    for i in picks:
        ones[i] = cast(_of(chosen, picks, i), i32)


@kernel
def _chosen(ones: Tensor, places: Tensor, index: Tensor, count: Tensor, axes: Template) -> None:
    for i in ones:
        if ones[i] != 0:
            index[places[i]] = i
    for _ in range(1):
        last = ones.shape[0] - 1
        count[0 if static(axes) else None] = places[last] + ones[last]


@kernel
def _take(x: Tensor, index: Tensor, count: Tensor, out: Tensor, value: Template, axes: Template) -> None:
    for i in index:
        if i < count[0 if static(axes) else None]:
            out[i] = _of(value, x, index[i])


@kernel
def _count_chunks(picks: Tensor, counts: Tensor, chosen: Template) -> None:
    for s in counts:
        total = 0
        for i in range(s * CHUNK, min(picks.shape[0], s * CHUNK + CHUNK)):
            total += cast(_of(chosen, picks, i), i32)
        counts[s] = total


@kernel
def _take_chunks(
    x: Tensor,
    picks: Tensor,
    before: Tensor,
    counts: Tensor,
    out: Tensor,
    count: Tensor,
    chosen: Template,
    value: Template,
    axes: Template,
) -> None:
    """Without a branch for each element, which would be mispredicted: what is not chosen is overwritten by what is."""
    for s in before:
        i, at, stop = s * CHUNK, before[s], before[s] + counts[s]
        while at < stop:
            out[at] = _of(value, x, i)
            at += cast(_of(chosen, picks, i), i32)
            i += 1
    for _ in range(1):
        last = before.shape[0] - 1
        count[0 if static(axes) else None] = before[last] + counts[last]


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
    _chosen(ones, places, index, count, len(count.shape))
    return places


def _pick(x: Any, picks: Any, out: Any, count: Any, chosen: Function, value: Function) -> None:
    """``out`` = ``value(x, i)`` of all i for which ``chosen(picks, i)``, in their order, and ``count`` = how many they are."""
    n, axes = picks.shape[0], len(count.shape)
    if usable(n, x, picks, out):
        tiles = in_blocks.tiles_of(n)
        in_blocks.pick(x, picks, messages("choose.left", tiles), out, count, tiles, chosen, value, axes)
    elif current_program().device.on_host and not differentiated(x, picks, out):
        counts, before = (scratch(f"choose.{k}", -(-n // CHUNK), i32) for k in ("counts", "before"))
        _count_chunks(picks, counts, chosen)
        scan(counts, before, "add", False)
        _take_chunks(x, picks, before, counts, out, count, chosen, value, axes)
    else:
        ones, index = scratch("choose.ones", n, i32), scratch("choose.index", n, i32, lasting=True)
        _mark(picks, ones, chosen)
        _indices(ones, index, count)
        _take(x, index, count, out, value, axes)


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
        raise QdrunFitError(f"algorithms.compact: elements of the shape {x.element_shape} and {out.element_shape}")
    count = number(count, "compact", "count", i32)
    different("compact", x, flags, out, count)
    _pick(x, flags, out, count, _flag, _element)


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
    b = sorted_bits(x, "unique")
    _pick(b, b, out, count, _is_head, _key_of(x.dtype, *ordered_type(x.dtype, "unique")))


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
    _mark(ordered_bits(keys, what), ones, _is_head)
    run = scratch("choose.run", n, i32, lasting=True)
    _runs(ones, _indices(ones, index, count), run)
    _take(keys, index, count, out_keys, _element, len(count.shape))
    _add_runs(values, run, sums)
