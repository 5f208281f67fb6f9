"""Induction variables in closed form: a value that follows from the iteration number need not be kept.

A local that every iteration changes by the same amount, ``i = i + step``, is ``i0 + k * step`` at the entry of iteration k. To say so at
the top of the body makes it no state of the loop; to say what it is behind the loop makes nothing outside wait for the loop. Integers wrap,
so both are the same bits. Sums of reals are not: ``t += dt`` rounds at each step, and stays state.
"""

from __future__ import annotations

from ...ir.builder import StatementBuilder
from ...ir.nodes import Block, Const, If, Local, LocalStore, Loop, Op, Operand, Task
from ...ir.ops import TABLE
from ...ir.types import DType, i64
from ...ir.walk import Written, walk
from ..clone import clone_task
from .copies import trip_count

_LEAVES = frozenset(("arg", "shape", "iter", "seed", "param"))
Steps = tuple[tuple[Operand, bool], ...]
"""The value that was added to a counter since the start of the iteration; ``True``: subtracted."""


def restated(task: Task) -> Task | None:
    """A copy of a lowered task in which counters are given by the iteration, wherever that can be seen; None when there are none."""
    if not any(_counters(s) for s in walk(task.body) if isinstance(s, Loop)):
        return None
    new = clone_task(task)
    return new if _Restater(new).block(new.body) else None


def _counters(loop: Loop) -> list[Local]:
    """The integers that a loop stores a sum to."""
    sums = (
        s for s in walk(loop.body) if isinstance(s, LocalStore) and isinstance(s.value, Op) and s.value.op in ("add", "sub")
    )
    return [v for v in dict.fromkeys(s.local for s in sums) if v.dtype.is_int and v.dtype.kind != "b"]


class _Restater:
    def __init__(self, task: Task) -> None:
        self._written = Written(task.body)

    def block(self, block: Block) -> bool:
        """Restate the counters of the loops of a block, the innermost first. Edits it; whether anything changed."""
        changed, out = False, Block()
        for s in block:
            after: Block = []
            if isinstance(s, If):
                changed |= self.block(s.then) | self.block(s.orelse)
            elif isinstance(s, Loop):
                changed |= self.block(s.body)
                before, after = self.loop(s)
                changed |= bool(before)
                out += before
            out.append(s)
            out += after
        block[:] = out
        return changed

    def loop(self, loop: Loop) -> tuple[Block, Block]:
        """Restate the counters of one loop at the top of its body; what goes before the loop and behind it."""
        before: Block = []
        after: Block = []
        top: Block = []
        counters = [v for v in _counters(loop) if _spans(loop, v.dtype)]
        if not counters:
            return before, after
        hoist = _Hoist(loop, StatementBuilder(before))
        for v, steps in _InductionWalk(loop, counters, self._written).found():
            if not all(hoist.possible(x) for x, _ in steps):
                continue
            first, step = hoist.b.load(v), _total(hoist, steps, v.dtype)
            b = StatementBuilder(top)
            b.store(v, _after(b, first, step, _number(b, loop, v.dtype)))
            if loop.exit is None and loop.end is not None:
                b = StatementBuilder(after)
                b.store(v, _after(b, first, step, b.cast(trip_count(b, loop.begin, loop.end, loop.step), v.dtype)))
        loop.body[:0] = top
        return before, after


def _spans(loop: Loop, dtype: DType) -> bool:
    """Whether the number of an iteration, modulo the type's range, can be had from the loop's index."""
    return loop.end is not None or dtype.bits <= loop.index.dtype.bits


def _number(b: StatementBuilder, loop: Loop, dtype: DType) -> Operand:
    """The number of the current iteration, from 0, as ``dtype`` (it wraps)."""
    if abs(loop.step) != 1:
        return b.cast(b.op("floordiv", _distance(b, loop, i64), Const(loop.step, i64)), dtype)
    distance = _distance(b, loop, dtype)
    return distance if loop.step == 1 else b.op("neg", distance)


def _distance(b: StatementBuilder, loop: Loop, dtype: DType) -> Operand:
    index = b.cast(loop.index, dtype)
    if isinstance(loop.begin, Const) and loop.begin.value == 0:
        return index
    return b.op("sub", index, b.cast(loop.begin, dtype))


def _after(b: StatementBuilder, first: Operand, step: Operand, count: Operand) -> Operand:
    if isinstance(step, Const) and step.value == 1:
        return b.op("add", first, count)
    return b.op("add", first, b.op("mul", step, count))


def _total(hoist: _Hoist, steps: Steps, dtype: DType) -> Operand:
    """The increment of an iteration, as a value from before the loop."""
    if all(isinstance(x, Const) for x, _ in steps):
        whole = sum(-int(x.value) if minus else int(x.value) for x, minus in steps if isinstance(x, Const))
        return _wrapped(whole, dtype)
    total: Operand = Const(0, dtype)
    for x, minus in steps:
        total = hoist.b.op("sub" if minus else "add", total, hoist.value(x))
    return total


def _wrapped(value: int, dtype: DType) -> Const:
    whole = value & ((1 << dtype.bits) - 1)
    return Const(whole - (1 << dtype.bits) if dtype.kind == "i" and whole >> (dtype.bits - 1) else whole, dtype)


class _InductionWalk:
    """Follows locals through one iteration that another one follows."""

    def __init__(self, loop: Loop, counters: list[Local], written: Written) -> None:
        self._loop, self._written = loop, written
        self._now: dict[Local, Steps | None] = dict.fromkeys(counters, ())
        self._values: dict[Op, tuple[Local, Steps]] = {}
        stores = [s.value for s in walk(loop.body) if isinstance(s, LocalStore) and s.local is loop.exit]
        self._may_continue = not all(isinstance(x, Const) and x.value >= 0 for x in stores)

    def found(self) -> list[tuple[Local, Steps]]:
        """The locals to which every path adds the same, and what it adds."""
        self._follow(self._loop.body)
        return [(v, steps) for v, steps in self._now.items() if steps]

    def _follow(self, block: Block) -> None:
        for s in block:
            if isinstance(s, Op):
                self._op(s)
            elif isinstance(s, LocalStore):
                if s.local in self._now:
                    local, steps = self._values.get(s.value, (None, None)) if isinstance(s.value, Op) else (None, None)
                    self._now[s.local] = steps if local is s.local else None
            elif isinstance(s, If) and self._leaves(s):
                self._follow(s.orelse)
            elif isinstance(s, If) and self._falls_through(s):
                self._follow(s.then)
            elif isinstance(s, (If, Loop)):
                for inner in (s.then, s.orelse) if isinstance(s, If) else (s.body,):
                    self._now.update((v, None) for v in self._written(inner) if isinstance(v, Local) and v in self._now)

    def _op(self, s: Op) -> None:
        if s.op == "load" and isinstance(s.attr, Local):
            now = self._now.get(s.attr)
            if now is not None:
                self._values[s] = s.attr, now
        elif s.op in ("add", "sub"):
            x, y = s.args
            if isinstance(x, Op) and x in self._values:
                local, steps = self._values[x]
                self._values[s] = local, (*steps, (y, s.op == "sub"))
            elif isinstance(y, Op) and y in self._values and s.op == "add":
                local, steps = self._values[y]
                self._values[s] = local, (*steps, (x, False))

    def _leaves(self, s: If) -> bool:
        """An arm that leaves the loop: an iteration that another one follows took the other arm."""
        return s.site > 0 and s.site_local is not None and s.site_local is self._loop.exit

    def _falls_through(self, s: If) -> bool:
        """``if exit == 0``, in a loop without ``continue``: true in every iteration that another one follows."""
        c = s.cond
        if self._may_continue or not isinstance(c, Op) or c.op != "eq" or self._loop.exit is None:
            return False
        x, y = c.args
        return isinstance(x, Op) and x.op == "load" and x.attr is self._loop.exit and isinstance(y, Const) and y.value == 0


class _Hoist:
    """Values that are the same in every iteration, computed before the loop."""

    def __init__(self, loop: Loop, b: StatementBuilder) -> None:
        self.b = b
        self._inside = {s for s in walk(loop.body) if isinstance(s, Op)}
        self._indices = {s.index for s in (loop, *walk(loop.body)) if isinstance(s, Loop)}
        self._stored = {s.local for s in walk(loop.body) if isinstance(s, LocalStore)}
        self._made: dict[Op, Op] = {}
        self._possible: dict[Op, bool] = {}

    def possible(self, x: Operand) -> bool:
        """Whether ``x`` does not depend on the iteration."""
        if isinstance(x, Const):
            return True
        if x in self._indices:
            return False
        if x not in self._inside:
            return True
        if x not in self._possible:
            if x.op == "load":
                self._possible[x] = x.attr not in self._stored
            else:
                self._possible[x] = x.op in _LEAVES or (TABLE[x.op].pure and all(map(self.possible, x.args)))
        return self._possible[x]

    def value(self, x: Operand) -> Operand:
        """``x``, which is ``possible``, before the loop."""
        if isinstance(x, Const) or x not in self._inside:
            return x
        if x not in self._made:
            self._made[x] = self.b.op(x.op, *map(self.value, x.args), dtype=x.dtype, attr=x.attr)
        return self._made[x]
