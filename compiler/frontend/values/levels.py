"""Levels of the layout tree inside kernels: which of their cells are active.

A pointer or bitmasked level has a flag for each cell, a dynamic level a length for each cell of the level above. An active cell lies in
active cells, so the lowest level with activity on the way to a field decides. Inactive cells hold zeros: a read needs no test. A store to
a cell activates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import QdrunTypeError
from ...ir.nodes import Const, Op, Operand, Place
from ...ir.types import i32, u1
from ...passes.pools import cell_of
from .budget import LeafRef, PoolRef

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

Index = tuple[Operand, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LevelRef:
    """A level of the layout tree as kernels see it.

    Attributes:
        name: the first field in it, for messages.
        kind: "dense", "pointer", "bitmasked" or "dynamic".
        axes: the letters of the axes of an index, by number: those of this level and of the levels above.
        extents: the number of cells along each axis.
        above: the level above; None above the root.
        flags: 1 for each active cell of a pointer or bitmasked level; of a dynamic level, the length for each cell of the level above.
        visited: where a loop that changes ``flags`` keeps them as they were at its begin.
        below: the fields and activities in the level and below it; empty where nothing is sparse.
        pools: those of this level and of the levels below it.
    """

    name: str
    kind: str
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    above: LevelRef | None
    flags: Place | None
    visited: Place | None
    below: tuple[LeafRef, ...] = ()
    pools: tuple[PoolRef, ...] = ()

    def upward(self) -> Iterator[LevelRef]:
        """This level and those above it."""
        level: LevelRef | None = self
        while level is not None:
            yield level
            level = level.above

    @property
    def parent(self) -> Parent:
        """``level.parent`` inside a kernel."""
        return Parent(self.above)

    @property
    def deciding(self) -> LevelRef | None:
        """The lowest level with activity, here or above; None: every cell is active."""
        return next((level for level in self.upward() if level.flags is not None), None)


class Parent:
    """``x.parent`` or ``level.parent`` in a kernel: called, it gives ``first``, or the n-th level from there upwards."""

    def __init__(self, first: LevelRef | None) -> None:
        self._first = first

    def __qd_lower__(self, b: FrontBuilder, n: int = 1) -> LevelRef:
        """A call inside a kernel."""
        del b
        return self(n)

    def __call__(self, n: int = 1) -> LevelRef:
        """The level.

        Raises:
            QdrunTypeError: there is none so far up.
        """
        found = [] if self._first is None or not isinstance(n, int) or n < 1 else list(self._first.upward())[n - 1 : n]
        if not found:
            raise QdrunTypeError(f"parent({n}) leads beyond the root", hint="x.parent() is the level that holds the field")
        return found[0]


def cell(b: FrontBuilder, level: LevelRef, axes: Sequence[int], extents: Sequence[int], index: Index) -> Index:
    """The cell of ``level`` that an index of a level or a field below it lies in. ``axes``, ``extents``: those of the index."""
    out: list[Operand] = []
    for axis, count in zip(level.axes, level.extents):
        k = axes.index(axis)
        out.append(cell_of(b, index[k], extents[k] // count))
    return tuple(out)


def is_active(b: FrontBuilder, level: LevelRef, index: Index) -> Operand | None:
    """Whether a cell of ``level`` is active; None: it always is."""
    decides = level.deciding
    if decides is None or decides.flags is None:
        return None
    where = cell(b, decides, level.axes, level.extents, index)
    if decides.kind != "dynamic":
        return b.op("ne", b.gload(decides.flags, where), Const(0, i32))
    rest, position = split(decides, where)
    return b.op("lt", b.cast(position, i32), b.gload(decides.flags, rest))


def visited(b: FrontBuilder, level: LevelRef, index: Index) -> tuple[Operand | None, list[Op]]:
    """Whether a loop over ``level`` runs for a cell: the test of each level with activity on the way to it, from the top, although the
    lowest one decides: loops leave out what an inactive cell above holds. None: always. Also the loads that it asks by, one for each.
    """
    deciding = [each for each in level.upward() if each.flags is not None]
    coarse = [each for each, below in zip(deciding[1:], deciding) if each.extents != below.extents or each.axes != below.axes]
    cond: Operand | None = None
    with b.into([]) as found:
        for each in (*coarse[::-1], *deciding[:1]):
            test = is_active(b, each, cell(b, each, level.axes, level.extents, index))
            assert test is not None
            cond = test if cond is None else b.op("select", cond, test, Const(False, u1))
    b.block.extend(found)
    return cond, [s for s in found if isinstance(s, Op) and s.op == "gload"]


def split(level: LevelRef, index: Index) -> tuple[Index, Operand]:
    """The index of a list and the position in it, of an index of a dynamic level."""
    assert level.above is not None
    own = next(k for k, axis in enumerate(level.axes) if axis not in level.above.axes)
    return (*index[:own], *index[own + 1 :]), index[own]


def activate(b: FrontBuilder, level: LevelRef, index: Index) -> None:
    """Make a cell of ``level`` active, and the cells above that it lies in."""
    for each in level.upward():
        if each.flags is None:
            continue
        if b.known_active(each.flags, level.extents, index):
            return
        b.pools.update((pool.flags, pool) for pool in each.pools if pool.flags is each.flags)
        where = cell(b, each, level.axes, level.extents, index)
        if each.kind == "dynamic":
            rest, position = split(each, where)
            b.atomic("max", each.flags, rest, b.op("add", b.cast(position, i32), Const(1, i32)))
        else:
            b.gstore(each.flags, where, Const(1, i32))


def deactivate(b: FrontBuilder, level: LevelRef, index: Index) -> None:
    """End the activity of a cell of ``level``, or of the list in a cell above a dynamic level, and of all below; their numbers become 0."""
    assert level.flags is not None
    owner = level.above if level.kind == "dynamic" else level
    assert owner is not None
    b.pools.update((pool.flags, pool) for pool in level.pools)
    b.forget_active({leaf.places[0] for leaf in level.below if leaf.hidden} | {level.flags})
    for leaf in level.below:
        if leaf.places[0] is not level.visited and leaf.places[0] is not level.flags:
            _clear(b, leaf, owner, index, ())
    for pool in level.pools:  # a block that is used again begins with zeros
        for leaf in pool.gradients:
            _clear(b, leaf, owner, index, ())
    b.gstore(level.flags, index, Const(0, i32))


def _clear(b: FrontBuilder, leaf: LeafRef, owner: LevelRef, index: Index, inside: Index) -> None:
    """Write zeros to what a field has in a cell: a loop over each axis that has more than one element there."""
    if len(inside) == len(leaf.axes):
        for place in leaf.places:
            b.gstore(place, inside, b.cast(Const(0, i32), place.dtype))
        return
    axis, extent = leaf.axes[len(inside)], leaf.extents[len(inside)]
    if axis not in owner.axes:
        first, size = Const(0, i32), extent
    else:
        k = owner.axes.index(axis)
        size = extent // owner.extents[k]
        first = index[k] if size == 1 else b.op("mul", index[k], Const(size, index[k].dtype))
    if size == 1:
        _clear(b, leaf, owner, index, (*inside, first))
        return
    with b.loop(Const(0, i32), Const(size, i32)) as loop:
        at = b.op("add", b.cast(first, i32), loop.index)
        _clear(b, leaf, owner, index, (*inside, at))
