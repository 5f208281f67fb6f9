"""The adjoint of a shuffle: each lane gets the sum of what the lanes that read its value give.

The lane that a shuffle reads is most often an expression of the own lane's number alone. Then it is evaluated here for every lane, and the
adjoint is a few shuffles in the other direction: that of ``lane ^ m`` is ``lane ^ m``, that of ``lane + d`` is ``lane - d``, that of a
lane that all read is a sum. Other shuffles ask every lane in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir.builder import StatementBuilder, const_i64
from ..ir.meaning import evaluate, scalar
from ..ir.nodes import Const, Op, Operand, Task
from ..ir.ops import TABLE
from ..ir.types import i32, i64, u1, u64

MOST_CLASSES = 4
"""Shuffles of an adjoint, where their distances are known, before a tree or a search takes fewer."""


def group_of(shuffle: Op) -> tuple[int, bool]:
    """Threads of a subgroup, and whether every thread of the loop has an iteration; 0 where a shuffle does not say."""
    size, *rest = str(shuffle.attr or "0").split()
    return int(size), "whole" in rest


def in_memory(s: Op) -> bool:
    """Whether a shuffle or a vote goes through memory of the block."""
    return str(s.attr).endswith(" memory")


def attribute(size: int, whole: bool, memory: bool) -> str:
    """What ``group_of`` and ``in_memory`` read."""
    return f"{size}{' whole' * whole}{' memory' * memory}"


def splits_evenly(task: Task, shuffle: Op) -> bool:
    """Whether the lanes of a shuffle are known: blocks are a whole number of subgroups."""
    size, _ = group_of(shuffle)
    return size > 0 and task.block % size == 0


def sources(lane: Operand, size: int) -> tuple[int, ...] | None:
    """The lane that each lane reads, if it is an expression of the own lane's number alone."""
    known: dict[Op, Any] = {}

    def of(x: Operand) -> Any:
        if isinstance(x, Const):
            return scalar(x.value, x.dtype)
        if x not in known:
            known[x] = _of_op(x)
        return known[x]

    def _of_op(x: Op) -> Any:
        number = _masked_iteration(x, size)
        if number is not None:
            return np.arange(size) & number
        if x.op not in TABLE or not TABLE[x.op].pure or not x.args:
            return None
        args = [of(a) for a in x.args]
        return None if any(a is None for a in args) else evaluate(x.op, args, x.dtype)

    found = of(lane)
    if found is None:
        return None
    out = np.broadcast_to(np.asarray(found), (size,)).tolist()
    return tuple(int(v) for v in out) if all(0 <= v < size for v in out) else None


def _masked_iteration(x: Op, size: int) -> int | None:
    """``C`` of ``iter & C``, where that is a part of the lane's number."""
    if x.op != "and":
        return None
    for number, mask in (x.args, x.args[::-1]):
        if isinstance(number, Op) and number.op == "iter" and isinstance(mask, Const) and 0 <= int(mask.value) < size:
            return int(mask.value)
    return None


class Adjoint:
    """Writes the adjoint of one shuffle behind what a builder has.

    Args:
        b: the builder.
        shuffle: the primal's.
        lane: the lane that it reads, in the reverse kernel.
    """

    def __init__(self, b: StatementBuilder, shuffle: Op, lane: Operand) -> None:
        self.b, self.lane, self.attr = b, lane, shuffle.attr
        self.size, self.whole = group_of(shuffle)
        self.mine = b.cast(b.op("and", b.op("iter", dtype=i64), const_i64(self.size - 1)), i32)

    def of(self, g: Operand) -> Operand:
        """The adjoint of the value, from the adjoint of the result. A lane without an iteration gives nothing."""
        b = self.b
        if not self.whole:
            here = b.op("ballot", Const(True, u1), dtype=u64, attr=self.attr)
            g = b.op("select", self._bit(here), g, Const(0.0, g.dtype))
        table = sources(self.lane, self.size)
        if table is None:
            return self._searched(g)
        apart = min(_by_distance(table), _by_mask(table), key=len)
        if len(apart) > MOST_CLASSES:
            tile = _tile_of(table)
            return self._searched(g) if tile is None else self._summed(g, *tile)
        total: Operand | None = None
        for (how, by), lanes in apart.items():
            part = self._moved(g, how, by, lanes)
            total = part if total is None else b.op("add", total, part)
        assert total is not None
        return total

    def _from(self, value: Operand, lane: Operand) -> Operand:
        return self.b.op("shuffle", value, lane, dtype=value.dtype, attr=self.attr)

    def _bit(self, lanes: Operand) -> Operand:
        """Whether the bit of this lane is set."""
        b, one = self.b, Const(1, u64)
        bit = b.op("and", b.op("shr", lanes, b.cast(self.mine, u64)), one)
        return b.op("ne", bit, Const(0, u64))

    def _moved(self, g: Operand, how: str, by: int, lanes: int) -> Operand:
        """What the lanes at one distance give to those of ``lanes``."""
        b = self.b
        if by:
            other = b.op(how, self.mine, Const(by, i32))
            g = self._from(g, b.op("and", other, Const(self.size - 1, i32)))
        if lanes == (1 << self.size) - 1:
            return g
        return b.op("select", self._bit(Const(lanes, u64)), g, Const(0.0, g.dtype))

    def _summed(self, g: Operand, width: int, lane: int) -> Operand:
        """The sum of each ``width`` lanes, for lane ``lane`` of them."""
        b, step = self.b, 1
        while step < width:
            g = b.op("add", g, self._from(g, b.op("xor", self.mine, Const(step, i32))))
            step *= 2
        inside = b.op("and", self.mine, Const(width - 1, i32))
        return b.op("select", b.op("eq", inside, Const(lane, i32)), g, Const(0.0, g.dtype))

    def _searched(self, g: Operand) -> Operand:
        """Each lane in turn is asked which one it reads, and gives that one its adjoint."""
        b, zero = self.b, Const(0.0, g.dtype)
        total = b.local(zero, "lanes")
        with b.loop(const_i64(0), const_i64(self.size)) as each:
            other = b.cast(each.index, i32)
            reads = b.op("eq", self._from(self.lane, other), self.mine)
            part = b.op("select", reads, self._from(g, other), zero)
            b.store(total, b.op("add", b.load(total), part))
        return b.load(total)


Classes = Mapping[tuple[str, int], int]


def _by_distance(table: tuple[int, ...]) -> Classes:
    """For each distance from a lane to one that reads it: the bits of the lanes that are read from there."""
    out: dict[tuple[str, int], int] = {}
    for reader, lane in enumerate(table):
        key = "add", (reader - lane) % len(table)
        out[key] = out.get(key, 0) | 1 << lane
    return out


def _by_mask(table: tuple[int, ...]) -> Classes:
    """The same for the bits in which both differ."""
    out: dict[tuple[str, int], int] = {}
    for reader, lane in enumerate(table):
        key = "xor", reader ^ lane
        out[key] = out.get(key, 0) | 1 << lane
    return out


def _tile_of(table: tuple[int, ...]) -> tuple[int, int] | None:
    """The width of tiles whose lanes all read one lane, and that lane's number in the tile."""
    width = 2
    while width <= len(table):
        first = table[0]
        if first < width and all(lane == (reader & -width) + first for reader, lane in enumerate(table)):
            return width, first
        width *= 2
    return None
