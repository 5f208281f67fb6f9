"""Arrays in memory as runs of bytes: what one copy of rows takes, however the axes of an array are nested."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


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
