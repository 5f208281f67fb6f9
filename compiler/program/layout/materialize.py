"""Gives memory to a layout tree: one buffer for fields and one for gradients, for everything that was placed since the last time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ...errors import OutOfMemory, QdrunRuntimeError
from ...ir.nodes import Buffer, CellBlocks, Place
from ...ir.trials import ONE, TRIAL_ALIGNMENT, TrialLayout, trial_bytes
from ...runtime.base import Allocation
from .leaf import TreeLeaf
from .offsets import BLOCKS, CHILD_ALIGNMENT, Dense, Layout, Leaf, LeafPlacement, is_blocked, layout, total_size
from .tree import Root, SNode, leaves_of, levels_of

Allocate = Callable[[int, str], Allocation]
CATEGORIES = ("fields", "gradients")


def _tree(node: SNode | TreeLeaf, category: str, per_trial: bool | None) -> Dense | Leaf | None:
    """The layout tree of what belongs to a category, or None when nothing does."""
    if not isinstance(node, SNode):
        own = CATEGORIES[0] if node.role == "" else CATEGORIES[1]
        components = 1 if node.planar else node.components
        mine = own == category and per_trial in (None, node.per_trial)
        return Leaf(node, node.name, node.dtype, components) if mine else None
    children = [t for t in (_tree(c, category, per_trial) for c in node.children) if t is not None]
    return Dense(node.axes, node.extents, children) if children else None


def _trees(node: SNode | TreeLeaf, category: str, per_trial: bool | None) -> Iterator[Dense | Leaf]:
    """The layout trees of a child of the root. A dense child has one. Of a child with sparse levels, or with axes that are split into
    blocks, each level that holds fields has one, in which the cells of all blocks lie as one array, and each activity has one: loops read
    it alone.
    """
    whole = _tree(node, category, per_trial)
    if not isinstance(node, SNode) or not (_has_sparse(node) or (whole is not None and is_blocked(whole))):
        found = [whole]
    else:
        found = []
        for level in levels_of(node):
            leaves = [c for c in level.children if isinstance(c, TreeLeaf)]
            groups = [[leaf for leaf in leaves if not leaf.hidden], *([leaf] for leaf in leaves if leaf.hidden)]
            for group in groups:
                members = [t for t in (_tree(c, category, per_trial) for c in group) if t is not None]
                if members:
                    axes = _array_of(group[0])
                    found.append(Dense(tuple(axes), tuple(axes.values()), members))
    yield from (t for t in found if t is not None)


def _array_of(leaf: TreeLeaf) -> dict[int, int]:
    """The axes of the array in which a leaf of a sparse tree lies, outermost first: all cells, or blocks."""
    level = leaf.level
    assert level is not None
    order: dict[int, int] = {}
    for up in reversed([*level.upward()]):
        for axis, extent in zip(up.axes, up.extents):
            order[axis] = order.get(axis, 1) * extent
    pool = None if leaf.hidden else level.pool
    if pool is None:
        return order
    assert pool.blocks is not None
    return {BLOCKS: pool.blocks.count + 2} | {a: n // pool.cells.get(a, 1) for a, n in order.items()}


def _count_blocks(level: SNode) -> None:
    """Find out how many cells the budget of a level is enough for.

    Raises:
        QdrunRuntimeError: for none.
    """
    blocks, cells = level.blocks, level.cells
    assert blocks is not None and level.budget is not None
    blocks.block_bytes = 0
    for below in levels_of(level):
        leaves = [c for c in below.children if isinstance(c, TreeLeaf) and not c.hidden]
        for category in CATEGORIES:
            members = [t for t in (_tree(c, category, None) for c in leaves) if t is not None]
            blocks.block_bytes += total_size(Dense((0,), (prod(below.shape) // prod(cells.values()),), members))
    if not blocks.block_bytes:
        return
    blocks.count = min(level.budget // blocks.block_bytes - 2, prod(cells.values()))
    if blocks.count < 1:
        raise QdrunRuntimeError(
            f"the budget of `{level.name}`, {level.budget:,} bytes, is not enough for one active cell: each takes"
            f" {blocks.block_bytes:,} bytes, and two more are needed for inactive ones\n"
            f"  do: give pointer(.., budget=) at least {3 * blocks.block_bytes:,} bytes"
        )


def _has_sparse(node: SNode) -> bool:
    """Whether a level or one below it has inactive cells."""
    return any(level.kind != "dense" for level in levels_of(node))


def pending_layout(pending: Sequence[SNode | TreeLeaf], category: str, per_trial: bool | None = None) -> Layout:
    """The layout of what waits for memory of one category (``fields`` or ``gradients``).

    Args:
        pending: levels and leaves, each of which begins on a cache line.
        category: of memory.
        per_trial: of a batched program, the layout of what each trial has its own of, or of what they share; None: it is not batched.
    """
    trees = [t for c in pending for t in _trees(c, category, per_trial)]
    return layout(Dense(children=trees), TRIAL_ALIGNMENT if per_trial else CHILD_ALIGNMENT)


def _waiting(root: Root, part: SNode | None) -> list[SNode | TreeLeaf]:
    """What waits for memory: under the root, or in a tree of its own."""
    return root.pending if part is None else list(part.children)


def own_shapes(root: Root, part: SNode | None = None) -> list[tuple[int, ...]]:
    """The shapes of what waits for memory that each trial of a batch has its own part of. ``part``: see ``materialize``."""
    pending = _waiting(root, part)
    if not root.trials.batched or not pending:
        return []
    leaves = [f for c in pending for f in (leaves_of(c) if isinstance(c, SNode) else (c,))]
    return [f.level.shape for f in leaves if f.per_trial and f.level is not None]


def materialize(root: Root, allocate: Allocate, free: Callable[[Allocation], None], part: SNode | None = None) -> None:
    """Give memory to everything that was placed since the last time. Does nothing when nothing was.

    Args:
        root: of the tree.
        allocate: gives memory of a category.
        free: takes it back.
        part: a tree of its own, which gets memory of its own; None: what waits under the root.

    Raises:
        OutOfMemory: from ``allocate``; names the largest field. What was allocated before it is given back with ``free``.
    """
    pending = _waiting(root, part)
    if not pending:
        return
    _place_along(pending)
    pending = _waiting(root, part)  # a 0-D gradient is a child of the root itself
    for level in (level for c in pending if isinstance(c, SNode) for level in levels_of(c)):
        if level.blocks is not None:
            _count_blocks(level)
    found: list[tuple[Layout, int, Allocation]] = []
    for category, per_trial in _parts(root):
        placed = pending_layout(pending, category, per_trial)
        each = trial_bytes(placed.nbytes) if per_trial else 0
        nbytes = root.trials.bytes(each) if per_trial else placed.nbytes
        try:
            found += [(placed, each, allocate(nbytes, category))] if nbytes else []
        except OutOfMemory as error:
            for _, _, allocation in found:
                free(allocation)
            raise OutOfMemory(f"{error}\n{_largest(placed, root.trials if per_trial else ONE)}", error.smallest) from error
    for holder in pending:
        root.done.add(holder)
    for placed, each, allocation in found:
        buffer = Buffer("field", allocation)
        if allocation.mirror is not None:
            allocation.mirror.split(*_blocks(placed, each, root.trials))
        for leaf, placement in sorted(placed.placements.items(), key=_settles_late):
            _settle(leaf, placement, buffer, allocation, each)


def _settles_late(pair: tuple[Leaf, LeafPlacement]) -> bool:
    """Whether a leaf may need the places of activities."""
    owner: Any = pair[0].owner
    return not owner.hidden


def _parts(root: Root) -> Iterator[tuple[str, bool | None]]:
    """The kinds of memory of a program: category, and what ``pending_layout`` takes."""
    for category in CATEGORIES:
        yield from [(category, True), (category, False)] if root.trials.batched else [(category, None)]


def _blocks(placed: Layout, each: int, trials: TrialLayout) -> tuple[Sequence[int], Sequence[int]]:
    """The parts of a mirror: children of the root, or groups of trials."""
    if not each:
        return placed.starts, placed.used()
    starts = range(0, trials.bytes(each), trials.width * each)
    return starts, [trials.width * sum(placed.used())] * len(starts)


def _largest(found: Layout, trials: TrialLayout) -> str:
    """The field that takes most of a layout, and what to do."""
    sizes = {leaf: prod(placement.shape) * leaf.size for leaf, placement in found.placements.items()}
    leaf = max(sizes, key=lambda leaf: sizes[leaf])
    shape = found.placements[leaf].shape
    of = f" for each of {trials.padded:,} trials" if trials.batched else ""
    less = "give it a smaller shape or type" + (", run fewer trials (batch=..)" if trials.batched else "")
    return (
        f"  the largest is `{leaf.name}` of shape {shape} and type {leaf.dtype}: {sizes[leaf]:,} of {found.nbytes:,} bytes{of}\n"
        f"  do: {less}, or close programs that are not needed"
    )


def _place_along(pending: list[SNode | TreeLeaf]) -> None:
    """Give a place beside their field to the gradients that were asked for and that the user placed nowhere."""
    found = [f for c in pending for f in (leaves_of(c) if isinstance(c, SNode) else (c,))]
    for f in found:
        if f.level is not None:
            f.level.place(*(g for g in f.along if g.level is None))


def _settle(leaf: Leaf, placement: LeafPlacement, buffer: Buffer, allocation: Allocation, each: int) -> None:
    """Hand a field its places and its numpy view. ``each``: bytes that each trial has in the memory; 0: it has no trials."""
    field: Any = leaf.owner
    step = leaf.dtype.size  # from one component to the next
    shape, strides = placement.shape, placement.strides
    level: SNode = field.level
    pool = None if field.hidden or level.pool is None else _pool_of(level.pool, level, strides[0])
    if field.planar:
        step, shape, strides = strides[0], shape[1:], strides[1:]
    places = []
    for c in range(field.components):
        name = leaf.name if not field.element else f"{leaf.name}_{c}"
        where = (len(shape), shape, strides) if pool is None else (len(level.shape), level.shape, strides[1:])
        place = Place(name, leaf.dtype, buffer, *where, placement.offset + c * step)
        place.is_grad, place.trial_bytes, place.pool = field.role == "grad", each, pool
        places.append(place)
    element_strides = tuple(step * int(np.prod(field.element[a + 1 :])) for a in range(len(field.element)))
    form, steps, dtype = shape + field.element, strides + element_strides, leaf.dtype.numpy
    if each:
        view = field._root.trials.view(allocation.view, dtype, each, placement.offset, form, steps)
    else:
        view = np.ndarray(form, dtype, allocation.view.data, placement.offset, steps)
    field.settle(tuple(places), view)


def _pool_of(pool: SNode, level: SNode, stride: int) -> CellBlocks:
    """How the fields of a level lie in blocks. ``pool``: the level with the budget; ``stride``: bytes of a block."""
    assert pool.blocks is not None
    cells = level.cells
    sizes = tuple(n // pool.cells.get(a, 1) for a, n in cells.items())
    return CellBlocks(
        pool.blocks.slots._places[0], sizes, tuple(list(cells).index(a) for a in pool.cells), pool.blocks.count + 2, stride
    )
