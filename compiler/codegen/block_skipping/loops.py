"""Emits the loop of a task that skips inactive blocks; its iterations are numbered cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...ir.nodes import Local, Op, Place
from ..llvm import memory
from ..llvm.task_emitter import TaskEmitter
from ..sums.partial_sums import PartialSums
from .tiling import RUN, Tiling


@dataclass(frozen=True, slots=True)
class _CellRange:
    """A part of a cell, in registers.

    Attributes:
        number: of the first iteration of the cell.
        first: its indices.
        stop: the number that ends the part.
    """

    number: str
    first: list[str]
    stop: str


@dataclass(frozen=True, slots=True)
class _CellRow:
    """Cells or iterations one after another along the fast axis.

    Attributes:
        number: of the first iteration of the first.
        corner: its indices.
        stop: the number that ends the row, or the part of the cell around.
    """

    number: str
    corner: list[str]
    stop: str


class _Tiles:
    """Emits the loops of one task. ``it``: the slot with the number of the next iteration."""

    def __init__(self, e: TaskEmitter, unset: list[Local], cells: Tiling, sums: PartialSums) -> None:
        self.e, self.unset, self.cells, self.it, self.sums = e, unset, cells, e.slot("i64"), sums
        self.fast = cells.order[-1]
        e.module.declare("llvm.smin.i64", "declare i64 @llvm.smin.i64(i64, i64)")

    def run(self) -> None:
        """The loop over the iterations of a chunk."""
        e = self.e
        e.put(f"store i64 %begin, ptr {self.it}")
        inside, out = e.label("some"), e.label("done")
        e.branch(e.t("icmp slt i64 %begin, %end"), inside, out)
        e.at(inside)
        self.cells_of(0, _CellRange("0", ["0"] * len(self.cells.extents), "%end"))
        e.jump(out)
        e.at(out)

    def cells_of(self, depth: int, around: _CellRange) -> None:
        """The cells of a level in a part of a cell of the level above, which has some iterations left."""
        if depth == len(self.cells.levels):
            self.iterations(around)
            return
        e, level, each = self.e, self.cells.levels[depth], prod(self.cells.levels[depth].size)
        above = self.cells.levels[depth - 1].size if depth else self.cells.extents
        row, body, passed, ended, out = (e.label(name) for name in ("row", "cell", "passed", "ended", "cells"))
        e.jump(row)
        e.at(row)
        line = self._row(around, above, level.size)
        count = e.slot("i64")
        e.put(f"store i64 0, ptr {count}")
        e.jump(body)
        e.at(body)
        done = e.t(f"load i64, ptr {count}")
        e.put(f"store i64 {self._add(done, 1)}, ptr {count}")
        number = self._add(line.number, self._times(done, each))
        here = list(line.corner)
        here[self.fast] = self._add(here[self.fast], self._times(done, level.size[self.fast]))
        behind = self._add(number, each)
        self._set_indices(here)
        for test in level.tests:
            for s in self.cells.slices[test]:
                e.statement(s)
            on = e.label("on")
            e.branch(e.operand(test, False), on, passed)
            e.at(on)
        self.cells_of(depth + 1, _CellRange(number, here, self._less(behind, line.stop)))
        e.jump(passed)
        e.at(passed)
        e.put(f"store i64 {self._less(behind, line.stop)}, ptr {self.it}")
        e.branch(e.t(f"icmp slt i64 {behind}, {line.stop}"), body, ended)
        e.at(ended)
        e.branch(e.t(f"icmp slt i64 {line.stop}, {around.stop}"), row, out)
        e.at(out)

    def iterations(self, around: _CellRange) -> None:
        """The iterations of a part of a smallest cell, row by row."""
        e, cells = self.e, self.cells
        size = cells.levels[-1].size if cells.levels else cells.extents
        row, run, body, ended, out = (e.label(name) for name in ("row", "run", "iteration", "ended", "iterations"))
        e.jump(row)
        e.at(row)
        line = self._row(around, size, (1,) * len(size))
        length = e.t(f"sub nsw i64 {line.stop}, {line.number}")
        count = e.slot("i64")
        e.put(f"store i64 0, ptr {count}")
        e.jump(run)
        e.at(run)
        run_ends = length if cells.flags is None else self._run(cells.flags, line, length, count, run, ended)
        e.jump(body)
        e.at(body)
        done = e.t(f"load i64, ptr {count}")
        here = self._along(line, done)
        flat = here[0]
        for x, n in zip(here[1:], cells.extents[1:]):
            flat = self._add(self._times(flat, n), x)
        e.iteration = (flat, False)  # as without cells: it decides random numbers
        self.sums.begin()
        self._body()
        self.sums.combine(e.t(f"sub nsw i64 {self._add(line.number, done)}, %begin"))
        following = self._add(done, 1)
        e.put(f"store i64 {following}, ptr {count}")
        more = e.t(f"icmp slt i64 {following}, {run_ends}")
        if cells.ends is not None:
            more = e.t(f"and i1 {more}, {e.operand(cells.ends, False)}")
        if cells.flags is None:
            e.branch(more, body, ended)
        else:
            ran = e.label("ran")
            e.branch(more, body, ran)
            e.at(ran)
            e.branch(e.t(f"icmp slt i64 {following}, {length}"), run, ended)
        e.at(ended)
        e.put(f"store i64 {line.stop}, ptr {self.it}")
        e.branch(e.t(f"icmp slt i64 {line.stop}, {around.stop}"), row, out)
        e.at(out)

    def _run(self, flags: Op, line: _CellRow, length: str, count: str, run: str, ended: str) -> str:
        """Pass over the next iterations of a row while no flag of ``RUN`` is set; gives where those end that are left. No memory but that
        of flags is touched for inactive elements: it may never have been written to.
        """
        e = self.e
        wide, skip, on = (e.label(name) for name in ("wide", "skip", "on"))
        done = e.t(f"load i64, ptr {count}")
        behind = self._add(done, RUN)
        end = self._less(behind, length)
        e.branch(e.t(f"icmp sle i64 {behind}, {length}"), wide, on)
        e.at(wide)
        self._along(line, done)
        for s in self.cells.slices[flags]:
            e.statement(s)
        assert isinstance(flags.attr, Place)
        ptr, _ = memory.address(e, flags.attr, flags.args)
        e.module.declare("or.i32", f"declare i32 @llvm.vector.reduce.or.v{RUN}i32(<{RUN} x i32>)")
        found = e.t(f"load <{RUN} x i32>, ptr {ptr}, align 4")
        some = e.t(f"call i32 @llvm.vector.reduce.or.v{RUN}i32(<{RUN} x i32> {found})")
        e.branch(e.t(f"icmp ne i32 {some}, 0"), on, skip)
        e.at(skip)
        e.put(f"store i64 {behind}, ptr {count}")
        e.branch(e.t(f"icmp slt i64 {behind}, {length}"), run, ended)
        e.at(on)
        return end

    def _along(self, line: _CellRow, done: str) -> list[str]:
        """Set the indices to those so far along a row."""
        here = list(line.corner)
        here[self.fast] = self._add(here[self.fast], done)
        self._set_indices(here)
        return here

    def _body(self) -> None:
        """One iteration: what the cells around have decided is not asked again."""
        e, cells = self.e, self.cells
        for x in self.unset:
            e.reset(x)
        for s in e.task.body:
            if s is not cells.cond or cells.cond in cells.rest:
                e.statement(s)
                continue
            found = "true"
            for test in cells.rest:
                found = e.t(f"and i1 {found}, {e.operand(test, False)}")
            e.values[cells.cond] = (found, False)

    def _row(self, around: _CellRange, extents: Sequence[int], size: Sequence[int]) -> _CellRow:
        """From iteration ``it`` to the end of the row. ``extents``: of the cell around; ``size``: of what the row consists of."""
        e, each, counts = self.e, prod(size), [n // m for n, m in zip(extents, size)]
        now = e.t(f"load i64, ptr {self.it}")
        which = e.t(f"udiv i64 {e.t(f'sub i64 {now}, {around.number}')}, {each}")
        number, left = self._add(around.number, self._times(which, each)), which
        inside = ["0"] * len(size)
        for axis in reversed(self.cells.order):
            if axis == self.cells.order[0]:
                inside[axis] = left
            else:
                inside[axis] = e.t(f"urem i64 {left}, {counts[axis]}")
                left = e.t(f"udiv i64 {left}, {counts[axis]}")
        corner = [self._add(a, self._times(b, m)) for a, b, m in zip(around.first, inside, size)]
        ahead = self._times(e.t(f"sub i64 {counts[self.fast]}, {inside[self.fast]}"), each)
        return _CellRow(number, corner, self._less(self._add(number, ahead), around.stop))

    def _set_indices(self, indices: Sequence[str]) -> None:
        """Give the axes, which begin at 0, their indices of one iteration."""
        e = self.e
        for axis, wide in zip(e.task.axes, indices):
            d = axis.index.dtype
            e.wide[axis.index] = wide
            flag = "nuw" if d.kind == "u" else "nsw"
            e.values[axis.index] = (wide if d.bits == 64 else e.t(f"trunc {flag} i64 {wide} to {e.ty(d, False)}"), False)

    def _add(self, a: str, b: str | int) -> str:
        return self.e.t(f"add nsw i64 {a}, {b}")

    def _times(self, a: str, n: int) -> str:
        return a if n == 1 else self.e.t(f"mul nsw i64 {a}, {n}")

    def _less(self, a: str, b: str) -> str:
        return self.e.t(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")


def run_tiles(e: TaskEmitter, unset: list[Local], cells: Tiling, sums: PartialSums) -> None:
    """The iterations [begin, end) of a task in the order of its cells. ``unset``: locals that each iteration resets."""
    _Tiles(e, unset, cells, sums).run()
