"""Where every place of a layout tree lies: sizes, offsets and strides. Pure functions of the tree, no memory is touched.

A node's cell is a record of its children in the order in which they were placed; a node is a row-major array of cells. So what is
placed in one ``dense`` is interleaved (an array of structures) and what has a ``dense`` of its own is contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from ..errors import QdrunRuntimeError
from ..ir.types import DType

CHILD_ALIGNMENT = 64
AXIS_NAMES = "ijklmnop"


@dataclass(eq=False)
class Leaf:
    """One placed tensor: ``components`` values of ``dtype``, side by side."""

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
class Spot:
    """Where a leaf lies: the address of component k at index (i0, ..) is ``offset + k * size + sum(i * stride)``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Layout:
    """The bytes that a tree takes, and the spot of each of its leaves."""

    nbytes: int
    spots: dict[Leaf, Spot]


Levels = tuple[tuple[int, int, int], ...]
"""(axis, extent, stride) of each level above a leaf, outermost first."""


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


def layout(root: Dense) -> Layout:
    """Lay a tree out. Each child of the root starts on a cache line of its own.

    Raises:
        QdrunRuntimeError: an axis is split over levels that are not adjacent in memory (a blocked layout).
    """
    spots: dict[Leaf, Spot] = {}
    offsets, size = cell_offsets(root, CHILD_ALIGNMENT)
    for child, offset in zip(root.children, offsets):
        _visit(child, offset, (), spots)
    return Layout(size, spots)


def _visit(node: Leaf | Dense, offset: int, levels: Levels, spots: dict[Leaf, Spot]) -> None:
    if isinstance(node, Leaf):
        spots[node] = _spot(node, offset, levels)
        return
    offsets, stride = cell_offsets(node)
    here: list[tuple[int, int, int]] = []
    for axis, extent in zip(reversed(node.axes), reversed(node.extents)):
        here.insert(0, (axis, extent, stride))
        stride *= extent
    for child, inside in zip(node.children, offsets):
        _visit(child, offset + inside, (*levels, *here), spots)


def _spot(leaf: Leaf, offset: int, levels: Levels) -> Spot:
    """Merge the levels of each axis; indices are in the order of the axes' letters."""
    axes = sorted({axis for axis, _, _ in levels})
    merged = [_merge(leaf, axis, [(e, s) for a, e, s in levels if a == axis]) for axis in axes]
    return Spot(tuple(e for e, _ in merged), tuple(s for _, s in merged), offset)


def _merge(leaf: Leaf, axis: int, levels: list[tuple[int, int]]) -> tuple[int, int]:
    """One extent and one stride for the levels of an axis, outermost first."""
    while len(levels) > 1:
        (inner, inner_stride), (outer, outer_stride) = levels.pop(), levels.pop()
        if inner == 1:
            levels.append((outer, outer_stride))
        elif outer == 1 or outer_stride == inner * inner_stride:
            levels.append((outer * inner, inner_stride))
        else:
            raise QdrunRuntimeError(
                f"`{leaf.name}`: axis {AXIS_NAMES[axis]} is split into {outer} blocks of {inner}, and blocked layouts are not available; "
                f"do: use one dense level of {outer * inner} for this axis"
            )
    return levels[0]
