"""Arrays in memory as runs of bytes: what one copy of rows takes, however the axes of an array are nested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_PARTS = 256


class Runs(NamedTuple):
    """Equal runs of bytes: how many, bytes from the start of one to that of the next, bytes of one."""

    rows: int
    step: int
    nbytes: int


def order_of(array: np.ndarray) -> tuple[int, ...]:
    """The axes, outermost in memory first."""
    return tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def runs_of(array: np.ndarray) -> Runs | None:
    """The contiguous runs of an array's memory; None: its elements have no uniform distance."""
    nbytes, rows, step = array.itemsize, 1, 0
    for axis in reversed(order_of(array)):
        extent, stride = array.shape[axis], array.strides[axis]
        if extent == 1:
            continue
        if rows == 1 and stride == nbytes:
            nbytes *= extent
        elif rows == 1 and stride > nbytes:
            rows, step = extent, stride
        elif rows > 1 and stride == rows * step:
            rows *= extent
        else:
            return None
    return Runs(rows, step, nbytes)


def elements_of(array: np.ndarray) -> Runs | None:
    """The elements of an array one by one, each a run; None: they have several distances from each other."""
    runs = runs_of(array)
    if runs is not None and runs.rows == 1:
        runs = Runs(runs.nbytes // array.itemsize, array.itemsize, array.itemsize)
    return runs if runs is not None and runs.nbytes == array.itemsize else None


def parts_of(array: np.ndarray, lead: int = 0) -> list[np.ndarray] | None:
    """An array as parts with ``elements_of``. The first ``lead`` axes stay, and are not looked at. None: more than ``MOST_PARTS``."""
    if elements_of(array[(0,) * lead]) is not None:
        return [array]
    whole = slice(None)
    axes = sorted((axis for axis in range(lead, array.ndim) if array.shape[axis] > 1), key=lambda axis: array.shape[axis])
    split = [
        [array[(*[whole] * axis, k)] for k in range(array.shape[axis])] for axis in axes if array.shape[axis] <= MOST_PARTS
    ]
    for parts in split:
        if elements_of(parts[0][(0,) * lead]) is not None:
            return parts
    found = [parts_of(part, lead) for part in split[0]] if split else [None]
    flat = [part for parts in found for part in parts or ()]
    return None if any(parts is None for parts in found) or len(flat) > MOST_PARTS else flat


def packed(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The content of ``array``, of the shape of ``like``, as the runs of ``like`` follow each other; no copy of what ``unpacked`` gave."""
    return np.ascontiguousarray(array.transpose(order_of(like)), like.dtype)


def unpacked(content: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The result of ``packed``, or memory that was copied run by run, in the shape of ``like``."""
    order = order_of(like)
    return content.reshape([like.shape[axis] for axis in order]).transpose(np.argsort(order))


def tile_of(array: np.ndarray, value: np.ndarray) -> bytes | None:
    """The bytes that repeat when ``value`` is everywhere in a dense array; None where they do not."""
    if value.ndim == 0:
        return value.astype(array.dtype).tobytes()
    if array.flags.c_contiguous and value.shape == array.shape[array.ndim - value.ndim :]:
        return np.ascontiguousarray(value, array.dtype).tobytes()
    return None


def numbers_of(array: np.ndarray, value: np.ndarray, lead: int = 0) -> list[tuple[np.ndarray, bytes]] | None:
    """A number or an element that is written everywhere: parts with ``elements_of``, each with its number. None: too many."""
    numbers = [(array[(..., *at)], value[at].astype(array.dtype).tobytes()) for at in np.ndindex(value.shape)]
    found = [(parts_of(part, lead), number) for part, number in numbers]
    return None if any(parts is None for parts, _ in found) else [(part, n) for parts, n in found for part in parts or ()]


def spans_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Rising numbers as first and last of each run without a gap."""
    out: list[tuple[int, int]] = []
    for k in numbers:
        if out and out[-1][1] == k - 1:
            out[-1] = out[-1][0], k
        else:
            out.append((k, k))
    return out
