"""Sparse fields from Python: writes that activate cells, and writes of whole arrays, which go to active cells alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import QdrunRuntimeError
from ...frontend.values.budget import used_up
from ...ir.nodes import CellBlocks
from .tree import SNode


def activate(level: SNode, index: tuple[int, ...]) -> None:
    """Make the cell of a level active that an index lies in, counted from 0, and the cells above it.

    Raises:
        QdrunRuntimeError: a budget is used up.
    """
    for each in level.upward():
        if each.blocks is not None:
            _take_block(each, _cell(level, each, index))
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


def _take_block(level: SNode, cell: tuple[int, ...]) -> None:
    """Give a cell of a level with a budget a block, if it has none.

    Raises:
        QdrunRuntimeError: the budget is used up.
    """
    blocks = level.blocks
    assert blocks is not None
    slots: Any = blocks.slots
    free: Any = blocks.free
    if slots[cell]:
        return
    used = int(free[0])
    if used >= blocks.count:
        raise QdrunRuntimeError(used_up(level.name, level.budget or 0, blocks.count, blocks.block_bytes, "1"))
    slots[cell] = int(free[used + 1]) or used + 1
    free[0] = used + 1


def joined(found: np.ndarray, slots: np.ndarray, pool: CellBlocks, shape: tuple[int, ...]) -> np.ndarray:
    """All elements of something that lies in blocks. ``found``: its blocks; ``shape``: of all elements."""
    n = len(shape)
    slots = slots.reshape([size // m for size, m in zip(shape, pool.sizes)])
    order = [x for k in range(n) for x in (k, n + k)]
    out = found[slots].transpose(*order, *range(2 * n, found.ndim + n - 1))
    return np.ascontiguousarray(out).reshape(shape + found.shape[1 + n :])


def parted(array: np.ndarray, slots: np.ndarray, pool: CellBlocks, shape: tuple[int, ...]) -> np.ndarray:
    """The blocks in which all elements have been given: the reverse of ``joined``."""
    n, counts = len(shape), [size // m for size, m in zip(shape, pool.sizes)]
    parts = array.reshape(*(x for pair in zip(counts, pool.sizes) for x in pair), *array.shape[n:])
    parts = parts.transpose(*range(0, 2 * n, 2), *range(1, 2 * n, 2), *range(2 * n, parts.ndim))
    out = np.zeros((pool.blocks, *pool.sizes, *array.shape[n:]), array.dtype)
    slots = slots.reshape(counts)
    out[slots[slots > 0]] = parts[slots > 0]
    return out


def in_blocks(level: SNode, index: tuple[int, ...]) -> tuple[int, ...]:
    """Where an element of a field in a level lies in its blocks."""
    pool = level.pool
    assert pool is not None and pool.blocks is not None
    slots: Any = pool.blocks.slots
    sizes = (n // pool.cells.get(axis, 1) for axis, n in level.cells.items())
    return (int(slots[_cell(level, pool, index)]), *(i % n for i, n in zip(index, sizes)))


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
