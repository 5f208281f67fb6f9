"""Sparse fields from Python: writes that activate cells, and writes of whole arrays, which go to active cells alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from .tree import SNode


def activate(level: SNode, index: tuple[int, ...]) -> None:
    """Make the cell of a level active that an index lies in, counted from 0, and the cells above it."""
    for each in level.upward():
        flags: Any = each.flags
        if flags is None:
            continue
        where = _cell(level, each, index)
        if each.kind == "dynamic":
            rest, position = _split(each, where)
            _raise_to(flags, rest, position + 1)
        else:
            _raise_to(flags, where, 1)


def _raise_to(flags: Any, index: tuple[int, ...], least: int) -> None:
    """Let an element, of every trial that Python sees, be at least this."""
    form = flags._at(index)
    if int(np.min(flags._content[form])) < least:
        new = np.maximum(flags.to_numpy()[(..., *index)], least)
        if new.ndim == 0 or (new == new.flat[0]).all():
            flags[index] = int(new.flat[0])
        else:  # trials with lists of different lengths
            whole = flags.to_numpy()
            whole[(..., *index)] = new
            flags.from_numpy(whole)


def _cell(level: SNode, above: SNode, index: tuple[int, ...]) -> tuple[int, ...]:
    """The cell of a level above that a cell of ``level`` lies in."""
    mine, its = level.cells, above.cells
    return tuple(index[k] // (mine[axis] // its[axis]) for k, axis in enumerate(mine) if axis in its)


def _split(level: SNode, index: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The index of a list and the position in it, of an index of a dynamic level."""
    k = list(level.cells).index(level.axes[0])
    return (*index[:k], *index[k + 1 :]), index[k]


def active(level: SNode) -> np.ndarray:
    """Which cells of a level are active: truth values of its shape, in a batched program with the trials as first axis."""
    decides = next(each for each in level.upward() if each.flags is not None)
    flags: Any = decides.flags
    found, cells = flags.to_numpy(), decides.cells
    if decides.kind == "dynamic":
        k = list(cells).index(decides.axes[0]) - len(cells)  # from the end: trials come first
        extent = decides.extents[0]
        positions = np.arange(extent).reshape((extent, *(1,) * (-k - 1)))
        found = positions < np.expand_dims(found, k)
    else:
        found = found != 0
    trials = found.ndim - len(cells)
    for k, (axis, extent) in enumerate(level.cells.items()):
        if axis not in cells:
            found = np.expand_dims(found, trials + k)
        found = np.repeat(found, extent // cells.get(axis, 1), axis=trials + k)
    return found


def at_active(level: SNode, shape: tuple[int, ...], array: Any) -> np.ndarray:
    """An array for all elements of a field in ``level``, with zeros where they are not active."""
    new = np.asarray(array)
    shows = active(level)
    extra = new.ndim - shows.ndim
    if shows.ndim == len(shape) and extra >= 0 and new.shape[: len(shape)] != shape:
        return new  # another shape: refused where it is assigned
    if shows.ndim > len(shape) and new.shape[: len(shape)] == shape:
        new = np.broadcast_to(new, (shows.shape[0], *new.shape))
    shows = shows.reshape(shows.shape + (1,) * (new.ndim - shows.ndim))
    return np.where(shows, new, np.zeros((), new.dtype))
