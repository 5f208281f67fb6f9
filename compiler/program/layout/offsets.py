"""Computes the sizes, offsets and strides of a layout tree. Pure functions of the tree, which use no memory.

A node's cell is a record of its children in the order in which they were placed; a node is a row-major array of cells. So fields in one
``dense`` are interleaved (an array of structures), and a field with its own ``dense`` is contiguous.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, Union

from ...errors import QdrunRuntimeError, QdrunSyntaxError, QdrunTypeError, QdrunValueError
from ...ir.types import DType

CHILD_ALIGNMENT = 64
PLANES = -1
"""The axis of a field's components when each component has a plane of its own (``qd.Layout.SOA``)."""
BLOCKS = -2
"""The axis of the blocks of a level with a budget."""
AXIS_NAMES = "ijklmnopqrstuvwxyz"
"""The letters of axes in an ``order``. There may be more axes; they have numbers alone."""


class Order(Enum):
    """The layout of the components of an element: adjacent (AOS), or each in its own plane (SOA). Exported as ``qd.Layout``."""

    AOS = 1
    SOA = 2
    NULL = 3


@dataclass(eq=False)
class Leaf:
    """One placed tensor: ``components`` adjacent values of ``dtype``."""

    owner: object
    name: str
    dtype: DType
    components: int

    @property
    def size(self) -> int:
        """Bytes in one cell."""
        return self.components * self.dtype.size


@dataclass(eq=False)
class Dense:
    """A row-major array of cells over some axes. The root is a ``Dense`` without axes."""

    axes: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()
    children: list[Union[Leaf, Dense]] = field(default_factory=list)


@dataclass(frozen=True)
class LeafPlacement:
    """The location of a leaf: the address of component k at index (i0, ..) is ``offset + k * size + sum(i * stride)``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Layout:
    """The bytes that a tree takes, the placement of each of its leaves, and where each child of the root begins."""

    nbytes: int
    placements: dict[Leaf, LeafPlacement]
    starts: tuple[int, ...] = ()

    def used(self) -> list[int]:
        """Bytes of each child of the root that hold numbers; the rest are gaps."""
        out = [0] * len(self.starts)
        for leaf, placement in self.placements.items():
            out[bisect_right(self.starts, placement.offset) - 1] += prod(placement.shape) * leaf.size
        return out


Levels = tuple[tuple[int, int, int], ...]
"""(axis, extent, stride) of each level above a leaf, outermost first."""


def extents(shape: Any, what: str) -> tuple[int, ...]:
    """A shape as a tuple of integers. ``what``: whose, for the message.

    Raises:
        QdrunTypeError: it is neither an integer nor a sequence of integers.
    """
    try:
        return tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        hint = "write shape=4 or shape=(4, 3); integers that are computed with / are real, // keeps them whole"
        raise QdrunTypeError(f"the shape of {what} is an integer or a tuple of integers, not {shape!r}", hint=hint) from None


def permutation(layout: Any, ndim: int) -> tuple[int, ...] | None:
    """A layout as a checked tuple: the axis at each level of nesting, outermost first; None for the order of the axes.

    Raises:
        QdrunValueError: it is no permutation of ``range(ndim)``.
    """
    if layout is None:
        return None
    try:
        order = tuple(operator.index(axis) for axis in layout)
    except TypeError as e:
        raise QdrunValueError(f"layout={layout!r} is not a tuple of axes") from e
    if len(order) != ndim:
        raise QdrunValueError(f"layout has {len(order)} entries but shape has {ndim} dimensions; they must match")
    if sorted(order) != list(range(ndim)):
        raise QdrunValueError(f"layout={order!r} is not a permutation of range({ndim})")
    return None if order == tuple(range(ndim)) else order


def nesting(extents: tuple[int, ...], order: str | None) -> tuple[int, ...] | None:
    """The axes of an ``order`` as numbers.

    Raises:
        QdrunRuntimeError: it does not name each axis once.
    """
    if order is None:
        return None
    if not isinstance(order, str) or len(extents) > len(AXIS_NAMES) or sorted(order) != list(AXIS_NAMES[: len(extents)]):
        few = len(extents) <= len(AXIS_NAMES)
        raise QdrunRuntimeError(
            f"order={order!r} does not name the axes of shape {extents}; do: "
            + (f"order={AXIS_NAMES[: len(extents)]!r}" if few else f"layout={tuple(range(len(extents)))}, axes by number")
        )
    return tuple(AXIS_NAMES.index(letter) for letter in order)


def lowest(offset: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """An ``offset=`` as a checked tuple, the lowest index of each axis; None when every axis begins at 0.

    Raises:
        QdrunSyntaxError: it has not one entry for each axis.
        QdrunTypeError: an entry that is no integer.
        QdrunValueError: the indices do not fit 32 bits.
    """
    if offset is None:
        return None
    try:
        out = tuple(map(operator.index, offset)) if isinstance(offset, (tuple, list)) else (operator.index(offset),)
    except TypeError as e:
        raise QdrunTypeError(f"offset={offset!r} is not an integer or a tuple of integers") from e
    if len(out) != len(shape):
        raise QdrunSyntaxError(f"offset={offset!r} has {len(out)} entries but shape {shape} has {len(shape)}; they must match")
    if any(begin < -(2**31) or begin + extent > 2**31 - 1 for begin, extent in zip(out, shape)):
        raise QdrunValueError(f"offset={offset!r} with shape {shape} leads to indices beyond 32 bits")
    return out if any(out) else None


def inverse(layout: tuple[int, ...]) -> tuple[int, ...]:
    """The level of nesting of each axis."""
    return tuple(layout.index(axis) for axis in range(len(layout)))


def in_memory_order(shape: tuple[int, ...], layout: tuple[int, ...] | None) -> tuple[int, ...]:
    """The extents in the order in which the axes are nested in memory."""
    return shape if layout is None else tuple(shape[axis] for axis in layout)


def row_major(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The strides of a row-major array, ``size``: bytes of one number."""
    out = [size] * len(shape)
    for k in range(len(shape) - 1, 0, -1):
        out[k - 1] = out[k] * shape[k]
    return tuple(out)


def round_up(value: int, to: int) -> int:
    """The smallest multiple of ``to`` that is not below ``value``."""
    return -(-value // to) * to


def alignment(node: Leaf | Dense) -> int:
    """The alignment that a node needs: that of its widest type."""
    if isinstance(node, Leaf):
        return node.dtype.size
    return max((alignment(c) for c in node.children), default=1)


def cell_offsets(node: Dense, align: int = 1) -> tuple[list[int], int]:
    """The offset of each child in a cell, and the size of the cell; children start at multiples of ``align``."""
    offsets, end = [], 0
    for child in node.children:
        begin = round_up(end, max(align, alignment(child)))
        offsets.append(begin)
        end = begin + total_size(child)
    return offsets, round_up(end, alignment(node))


def total_size(node: Leaf | Dense) -> int:
    """Bytes of a node: all its cells."""
    if isinstance(node, Leaf):
        return node.size
    size = cell_offsets(node)[1]
    for extent in node.extents:
        size *= extent
    return size


def layout(root: Dense, align: int = CHILD_ALIGNMENT) -> Layout:
    """Lay a tree out. Each child of the root starts on a cache line of its own.

    Args:
        root: of the tree.
        align: children of the root start at multiples of it.
    """
    placements: dict[Leaf, LeafPlacement] = {}
    offsets, size = cell_offsets(root, align)
    for child, offset in zip(root.children, offsets):
        _visit(child, offset, (), placements)
    return Layout(size, placements, tuple(offsets))


def _visit(node: Leaf | Dense, offset: int, levels: Levels, placements: dict[Leaf, LeafPlacement]) -> None:
    if isinstance(node, Leaf):
        placements[node] = _placement(node, offset, levels)
        return
    offsets, stride = cell_offsets(node)
    here = _own_levels(node, stride)
    for child, inside in zip(node.children, offsets):
        _visit(child, offset + inside, (*levels, *here), placements)


def is_blocked(node: Leaf | Dense, levels: Levels = ()) -> bool:
    """Whether an axis of a leaf is split over levels that are not adjacent in memory, so that its elements have no single stride."""
    if isinstance(node, Leaf):
        return any(_merged(levels, axis) is None for axis in {axis for axis, _, _ in levels})
    _, stride = cell_offsets(node)
    return any(is_blocked(child, (*levels, *_own_levels(node, stride))) for child in node.children)


def _own_levels(node: Dense, stride: int) -> Levels:
    """A node's axes as levels; ``stride``: bytes of its cell."""
    here: list[tuple[int, int, int]] = []
    for axis, extent in zip(reversed(node.axes), reversed(node.extents)):
        here.insert(0, (axis, extent, stride))
        stride *= extent
    return tuple(here)


def _placement(leaf: Leaf, offset: int, levels: Levels) -> LeafPlacement:
    """Merge the levels of each axis; indices are in the order of the axes' letters."""
    merged = [_merged(levels, axis) for axis in sorted({axis for axis, _, _ in levels})]
    known = [found for found in merged if found is not None]
    assert len(known) == len(merged), f"`{leaf.name}` is in a blocked layout"
    return LeafPlacement(tuple(e for e, _ in known), tuple(s for _, s in known), offset)


def _merged(levels: Levels, axis: int) -> tuple[int, int] | None:
    """The extent and the stride of an axis over all its levels; None: it is split into blocks."""
    rest = [(extent, stride) for a, extent, stride in levels if a == axis]
    while len(rest) > 1:
        (inner, inner_stride), (outer, outer_stride) = rest.pop(), rest.pop()
        if inner == 1:
            rest.append((outer, outer_stride))
        elif outer == 1 or outer_stride == inner * inner_stride:
            rest.append((outer * inner, inner_stride))
        else:
            return None
    return rest[0]
