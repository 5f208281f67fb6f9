"""Accesses to places that lie in blocks (``ir.nodes.CellBlocks``) become accesses to the blocks.

All stages before know such a place by its index alone, so what they prove of its elements holds. A cell without a block is read in block 0,
which holds zeros, and written in the last block, which nothing reads.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.builder import StatementBuilder
from ..ir.nodes import Block, CellBlocks, Const, GlobalStore, Kernel, Op, Operand, Place, Task
from ..ir.types import i32
from ..ir.verify import verified
from ..ir.walk import atomic_of, index_of, inner_blocks, place_of, places_of
from .clone import clone_kernel


@verified()
def in_blocks(kernel: Kernel) -> Kernel:
    """The kernel with accesses to blocks, where it has places in levels with a budget."""
    if not any([place.pool for task in kernel.tasks for place in places_of(task)]):
        return kernel
    out, made = clone_kernel(kernel), _Blocks()
    for task in out.tasks:
        made.task(task)
    return out


def _pool(s: object) -> CellBlocks | None:
    place = place_of(s) if isinstance(s, (Op, GlobalStore)) else None
    return None if place is None else place.pool


class _Blocks:
    def __init__(self) -> None:
        self._places: dict[Place, Place] = {}

    def task(self, task: Task) -> None:
        """Rewrite one task."""
        self._block(task.prologue)
        self._block(task.body)

    def _block(self, block: Block) -> None:
        """Blocks of cells do not change while a task runs: of one cell each is looked up once in a block of statements."""
        out = StatementBuilder([])
        known: dict[tuple[object, ...], tuple[Op, tuple[Operand, ...]]] = {}
        for s in block:
            for inner in inner_blocks(s):
                self._block(inner)
            pool = _pool(s)
            if pool is not None:
                assert isinstance(s, (Op, GlobalStore))
                out.loc = s.loc
                self._access(out, s, pool, known)
            out.block.append(s)
        block[:] = out.block

    def _access(
        self,
        b: StatementBuilder,
        s: Op | GlobalStore,
        pool: CellBlocks,
        known: dict[tuple[object, ...], tuple[Op, tuple[Operand, ...]]],
    ) -> None:
        index = index_of(s)
        key = (pool.slots, pool.sizes, *(x if isinstance(x, Op) else x.value for x in index))
        if key not in known:
            cells = [cell_of(b, x, n) for x, n in zip(index, pool.sizes)]
            inside = [_rest(b, x, c, n) for x, c, n in zip(index, cells, pool.sizes)]
            known[key] = b.op("gload", *(cells[k] for k in pool.axes), dtype=i32, attr=pool.slots), tuple(inside)
        slot, inside = known[key]
        if isinstance(s, Op) and s.op == "gload":
            assert isinstance(s.attr, Place)
            s.args, s.attr = (slot, *inside), self._of(s.attr)
            return
        there = b.op("select", b.op("gt", slot, Const(0, i32)), slot, Const(pool.blocks - 1, i32))
        if isinstance(s, GlobalStore):
            s.place, s.index = self._of(s.place), (there, *inside)
        else:
            place, code = atomic_of(s)
            s.args, s.attr = (there, *inside, *s.args[place.ndim :]), (self._of(place), code)

    def _of(self, place: Place) -> Place:
        """The place as an array of blocks."""
        if place not in self._places:
            pool = place.pool
            assert pool is not None and place.strides is not None
            shape, strides = (pool.blocks, *pool.sizes), (pool.stride, *place.strides)
            self._places[place] = replace(
                place, ndim=place.ndim + 1, shape=shape, strides=strides, pool=None, grad=None, dual=None
            )
        return self._places[place]


def cell_of(b: StatementBuilder, x: Operand, size: int) -> Operand:
    """``x // size`` of an index, which is not negative."""
    if size == 1:
        return x
    if isinstance(x, Const):
        return Const(x.value // size, x.dtype)
    if size & (size - 1) == 0:
        return b.op("shr", x, Const(size.bit_length() - 1, x.dtype))
    return b.op("floordiv", x, Const(size, x.dtype))


def _rest(b: StatementBuilder, x: Operand, cell: Operand, size: int) -> Operand:
    """``x % size``, where ``cell`` is ``x // size``."""
    if size == 1:
        return Const(0, x.dtype)
    if isinstance(x, Const):
        return Const(x.value % size, x.dtype)
    if size & (size - 1) == 0:
        return b.op("and", x, Const(size - 1, x.dtype))
    return b.op("sub", x, b.op("mul", cell, Const(size, cell.dtype)))
