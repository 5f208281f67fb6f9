"""Finds the loops that can skip inactive blocks: one test, uniform over a block (a *cell*), guards the whole body.

Loops over sparse fields are such loops, because all elements of a block share one flag. Their iterations are numbered cell by cell, and
inactive cells are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from ...ir.alias import Aliases
from ...ir.nodes import Block, ClaimRow, Const, If, LocalStore, Op, Operand, Place, Task
from ...ir.ops import TABLE
from ...ir.types import i32
from ...ir.walk import cooperates, written_places

_WORTH = 4
"""Iterations of a cell for which a test of it pays."""
RUN = 256
"""Flags that are tested at once where those of single iterations lie side by side."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Cells into which the cells above (or all iterations) are divided.

    Attributes:
        size: iterations of a cell along each axis.
        tests: operations that all are true in a cell, or nothing happens in it.
    """

    size: tuple[int, ...]
    tests: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """How the iterations of a task are numbered.

    Attributes:
        extents: iterations along each axis.
        cond: nothing happens in an iteration for which it is false.
        levels: from the largest cells to the smallest. A cell of the last has its iterations in the order of ``order``.
        order: the axes; the last runs fastest.
        rest: the tests of single iterations, which ``cond`` has besides.
        ends: one of them that is false for all that follow along the last of ``order``, too.
        flags: the load of one of them that asks for one of the flags that lie side by side along the last of ``order``; None: none does.
        slices: what each test and ``flags`` are computed from, in order.
    """

    extents: tuple[int, ...]
    cond: Op
    levels: tuple[Cells, ...]
    order: tuple[int, ...]
    rest: tuple[Op, ...]
    ends: Op | None
    flags: Op | None
    slices: dict[Op, list[Op]]


def tiling(task: Task) -> Tiling | None:
    """The cells of a parallel task; None: it has none of which leaving out would pay."""
    if not task.parallel or cooperates(task):
        return None
    if not all(isinstance(a.begin, Const) and a.begin.value == 0 and isinstance(a.end, Const) for a in task.axes):
        return None
    extents = tuple(int(a.end.value) for a in task.axes if isinstance(a.end, Const))
    cond = _deciding(task)
    if cond is None or min(extents) < 1:
        return None
    steps = _ChangeRates(task)
    levels: list[Cells] = []
    rest: list[Op] = []
    ends: tuple[Op, int] | None = None
    for test in _parts(cond):
        size = steps.size(test, extents)
        above = levels[-1].size if levels else extents
        if size is None or prod(size) < _WORTH or any(n % m for n, m in zip(above, size)):
            axis = None if size is None else steps.ends(test)
            ends = ends or (None if axis is None else (test, axis))
            rest.append(test)
        elif levels and size == above:
            levels[-1] = Cells(size, (*levels[-1].tests, test))
        else:
            levels.append(Cells(size, (test,)))
    last = len(extents) - 1 if ends is None else ends[1]
    inner = levels[-1].size if levels else extents
    flags = next((x for x in map(steps.flag, rest) if x is not None), None) if ends is None and inner[last] >= RUN else None
    if not levels and ends is None and flags is None:
        return None
    order = (*(k for k in range(len(extents)) if k != last), last)
    slices = {test: steps.slice(test) for level in levels for test in level.tests}
    if flags is not None:
        slices[flags] = steps.slice(flags)
    return Tiling(extents, cond, tuple(levels), order, tuple(rest), ends and ends[0], flags, slices)


def _deciding(task: Task) -> Op | None:
    """The one value under which everything that a body does is done."""
    reduced = {r.local for r in task.reductions}
    found: Op | None = None
    for s in task.body:
        if isinstance(s, If):
            if s.orelse or not isinstance(s.cond, Op) or (found is not None and s.cond is not found):
                return None
            found = s.cond
        elif isinstance(s, LocalStore):
            if s.local in reduced:
                return None
        elif isinstance(s, Op):
            if not (TABLE[s.op].pure or s.op in ("load", "gload")):
                return None
        elif not isinstance(s, ClaimRow):
            return None
    return found


def _parts(cond: Op) -> list[Op]:
    """The tests of which a condition asks that all are true."""
    if cond.op == "select" and isinstance(cond.args[2], Const) and not cond.args[2].value:
        return [x for part in cond.args[:2] if isinstance(part, Op) for x in _parts(part)]
    return [cond]


class _ChangeRates:
    """How often values that a body computes before it decides anything change along the axes."""

    def __init__(self, task: Task) -> None:
        self._axes = {a.index: k for k, a in enumerate(task.axes)}
        self._body: Block = task.body
        self._written = Aliases(written_places(task.body))
        self._known: dict[Op, dict[int, int] | None] = {}

    def size(self, test: Op, extents: Sequence[int]) -> tuple[int, ...] | None:
        """The largest cells in which a value is one; None: memory that the task writes decides, or variables."""
        found = self._of(test)
        return None if found is None else tuple(gcd(found.get(k, n), n) for k, n in enumerate(extents))

    def ends(self, test: Op) -> int | None:
        """The axis along which a test is true first and false then, ``index < n``; None: there is none."""
        if test.op != "lt" or not isinstance(test.args[0], Op):
            return None
        axis = self._axes.get(test.args[0])
        bound = self._operand(test.args[1])
        return axis if bound is not None and axis is not None and axis not in bound else None

    def flag(self, test: Op) -> Op | None:
        """The load of a test of a flag, ``flags[.., k] != 0``, if k is the index of the last axis, and i32 flags lie side by side there."""
        x, last = test.args[0] if test.op == "ne" else None, len(self._axes) - 1
        if not (isinstance(x, Op) and x.op == "gload" and isinstance(x.attr, Place) and x.attr.dtype is i32):
            return None
        zero, strides = test.args[1], x.attr.strides or ()
        uses = [k for k, at in enumerate(x.args) if last in (self._operand(at) or {})]
        if not (isinstance(zero, Const) and zero.value == 0 and self._of(x) is not None and len(uses) == 1 and strides):
            return None
        at = x.args[uses[0]]
        return x if isinstance(at, Op) and self._axes.get(at) == last and strides[uses[0]] == x.dtype.size else None

    def slice(self, test: Op) -> list[Op]:
        """The operations that a value is computed by, in the order of the body."""
        wanted, left = {test}, [test]
        while left:
            new = [x for x in left.pop().args if isinstance(x, Op) and x not in wanted]
            wanted.update(new)
            left += new
        return [s for s in self._body if isinstance(s, Op) and s in wanted]

    def _of(self, x: Op) -> dict[int, int] | None:
        """For each axis that a value depends on, the least number of indices after which it may change."""
        if x not in self._known:
            self._known[x] = self._compute(x)
        return self._known[x]

    def _operand(self, x: Operand) -> dict[int, int] | None:
        return {} if isinstance(x, Const) else self._of(x)

    def _compute(self, x: Op) -> dict[int, int] | None:
        if x in self._axes:
            return {self._axes[x]: 1}
        if x.op == "gload":
            if not isinstance(x.attr, Place) or self._written.of(x.attr):
                return None
        elif not TABLE[x.op].pure or x.op in ("index", "iter"):
            return None
        found = [self._operand(a) for a in x.args]
        divided = self._divided(x)
        if divided is not None:
            return divided
        out: dict[int, int] = {}
        for part in found:
            if part is None:
                return None
            for axis, step in part.items():
                out[axis] = gcd(out.get(axis, 0), step)
        return out

    def _divided(self, x: Op) -> dict[int, int] | None:
        """``index // n``, and that divided again."""
        by = x.args[1] if x.op in ("shr", "floordiv") else None
        if not isinstance(by, Const) or not isinstance(x.args[0], Op) or by.value < (x.op == "floordiv"):
            return None
        quotient = self._quotient(x)
        return None if quotient is None else {quotient[0]: quotient[1]}

    def _quotient(self, x: Operand) -> tuple[int, int] | None:
        """The axis and the divisor, where a value is the index of an axis divided by a literal."""
        if not isinstance(x, Op):
            return None
        if x in self._axes:
            return self._axes[x], 1
        if x.op not in ("shr", "floordiv") or not isinstance(x.args[1], Const):
            return None
        inner, by = self._quotient(x.args[0]), int(x.args[1].value)
        return None if inner is None or by < 0 else (inner[0], inner[1] * (1 << by if x.op == "shr" else by))
