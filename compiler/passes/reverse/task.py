"""Reverse mode of one task: IR in, IR out. No side effect of the primal survives in the output.

For a block B, ``forward(B)`` computes its values and ``backward(B)`` accumulates adjoints, reading those values. An ``if`` needs no
stack: its condition is a value. A loop is a ``checkpoint.LoopDriver``: forward sweep, then for each segment from the last: refill, and for
each iteration from the last: restore the tape, ``forward(body)`` (the last replay), ``backward(body)``.

Adjoints live in locals, one a variable and one a value that is used in an inner block; inside one block they are plain values.
A store ``v = s`` gives ``adj(s) += adj(v); adj(v) = 0``; a load gives ``adj(v) += adj(load)``. Where other iterations may store to the
element, too, the adjoint is exchanged with zero: one of them takes it.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ...ir.builder import StatementBuilder, const_i64
from ...ir.nodes import (
    Assert,
    Block,
    ClaimRow,
    Const,
    GlobalStore,
    If,
    Loc,
    Local,
    LocalStore,
    Loop,
    Op,
    Operand,
    Place,
    Stmt,
    Task,
)
from ...ir.walk import atomic_of
from ...tape.bounds.row_predicates import around_stacks
from ..dependence.collisions import shared_stores
from .checkpoint import LoopDriver, Record, down
from .copies import Env, at, copy_plain, index_at
from .derivatives import multiplies, rules_of, zero_stays_zero
from .final_values import CLAIMS
from .segments import driver_of
from .slices import Slicer

ZERO, ONE = const_i64(0), const_i64(1)
_ZERO_FACTOR = (
    "a factor of `{0}[..] *= value` is zero, and its gradient divides by it; do: {1}multiply in a variable, in a serial loop, and store the"
    " product once"
)
_IN_A_TAPE = "launch its loop as a kernel of its own in a qd.ad.Tape, which keeps the other factors; or "


class Reverse:
    """Builds the reverse body of a task, given its slices. ``drivers`` lists the loops with backward work, in program order."""

    def __init__(self, task: Task, slices: Slicer, segmented: bool = False, marks: bool = False) -> None:
        self.task, self.slices, self._segmented = task, slices, segmented
        self._zero = -0.0  # x + -0.0 is x, whatever x is: the addition goes
        self.activity = self.slices.activity
        self.drivers: dict[Loop, LoopDriver] = {}
        self._env: Env = {}  # value of the primal -> its copy in the current last replay
        self._records: dict[Loop, Record] = {}
        self._site: dict[Local, Operand] = {}  # exit local -> the exit site of the iteration being reversed
        self._adjoint: dict[Op | Local, Local] = {}
        self._pending: dict[Op, Operand] = {}  # adjoint of a value whose uses so far are all in its own block
        self._home: dict[Op, int] = {}  # value -> the block that defines it
        self._level = 0
        self._shared = shared_stores(task)
        stacked = {s for s, info in self.slices.info.items() if info.tape}
        self._around = around_stacks(task, stacked) if stacked else None  # where an iteration needs an adstack row
        body: Block = []
        self.b = StatementBuilder(body)
        self.b.marks = marks
        self._forward(task.body)
        self._backward(task.body)
        zeros: Block = [LocalStore(v, Const(self._zero, v.dtype)) for v in self._adjoint.values()]
        self.body = zeros + body

    # ---- forward
    def _forward(self, block: Block) -> None:
        keep = self.slices.keep
        if self._around and block is self._around.block:
            self.b.put(ClaimRow(self._around.loc))
        for s in block:
            self.b.loc = getattr(s, "loc", None)
            if isinstance(s, Loop) and s in self.slices.info:
                driver = self.drivers[s] = driver_of(s, self.slices.info[s], len(self.drivers), self._segmented)
                self._records[s] = driver.forward(self.b, self._env)
            elif isinstance(s, If) and id(s) in keep:
                new = If(self._cond(s))
                self.b.put(new)
                for source, target in ((s.then, new.then), (s.orelse, new.orelse)):
                    with self.b.into(target):
                        self._forward(source)
            elif id(s) in keep:
                copy_plain(self.b, [s], self._env, keep)

    def _cond(self, s: If) -> Operand:
        if s.site and s.site_local in self._site:
            return self.b.op("eq", self._site[s.site_local], Const(s.site, s.site_local.dtype))
        return at(self._env, s.cond)

    # ---- adjoints
    def _adj(self, x: Op | Local) -> Local:
        if x not in self._adjoint:
            self._adjoint[x] = Local(x.dtype, "adj")
        return self._adjoint[x]

    def _bump(self, local: Local, value: Operand) -> None:
        self.b.store(local, self.b.op("add", self.b.load(local), value))

    def _give(self, x: Operand | Local, value: Operand) -> None:
        """Add ``value`` to the adjoint of ``x``."""
        if not self.activity.is_varied(x) or isinstance(x, Const):
            return
        if isinstance(x, Op) and self._home.get(x) == self._level:
            before = self._pending.get(x)
            self._pending[x] = value if before is None else self.b.op("add", before, value)
        else:
            self._bump(self._adj(x), value)

    def _take(self, s: Op) -> Operand | None:
        """The adjoint of a value, complete when its own statement is reached; None when nothing contributed."""
        total = self._pending.pop(s, None)
        if s in self._adjoint:
            outer = self.b.load(self._adjoint[s])
            self.b.store(self._adjoint[s], Const(self._zero, s.dtype))
            total = outer if total is None else self.b.op("add", total, outer)
        return total

    # ---- backward
    def _backward(self, block: Block) -> None:
        previous, self._level = self._level, id(block)
        if self._around and block is self._around.block and block is not self.task.body:
            self.b.put(ClaimRow(self._around.loc))  # the forward claim stands in another block
        for s in block:
            if isinstance(s, Op):
                self._home[s] = id(block)
        for s in reversed(block):
            if self.activity.is_active(s):
                self.b.loc = _adjoint(getattr(s, "loc", None))
                self._backward_stmt(s)
        self._level = previous

    def _backward_stmt(self, s: Stmt) -> None:
        match s:
            case Loop():
                self._backward_loop(s)
            case If():
                new = If(self._cond(s))
                self.b.put(new)
                for source, target in ((s.then, new.then), (s.orelse, new.orelse)):
                    with self.b.into(target):
                        self._backward(source)
            case LocalStore():
                value = self.b.load(self._adj(s.local))
                self.b.store(self._adj(s.local), Const(self._zero, s.local.dtype))
                self._give(s.value, value)
            case GlobalStore():
                index, grad = tuple(at(self._env, i) for i in s.index), _grad(s.place)
                zero = Const(0.0, grad.dtype)
                if s in self._shared and self.activity.is_varied(s.value):
                    self._give(s.value, self.b.atomic("xchg", grad, index, zero))
                else:
                    self._give(s.value, self.b.gload(grad, index))
                    self.b.gstore(grad, index, zero)
            case Op(op="atomic"):
                self._backward_atomic(s)
            case Op():
                self._backward_op(s)

    def _backward_atomic(self, s: Op) -> None:
        place, code = atomic_of(s)
        index = tuple(at(self._env, i) for i in s.args[:-1])
        if code in CLAIMS:
            self._claim(s, place, index)
            return
        varies = self.activity.is_varied(s.args[-1])
        g: Operand = self.b.gload(_grad(place), index)
        if code == "mul":
            if varies:
                self._give_factor(s, g, self.b.gload(place, index))
            if s not in self.activity.finals.deferred:  # d(y * c) = c * dy, whatever y was
                self.b.atomic("mul", _grad(place), index, at(self._env, s.args[-1]))
            return
        self._give(s.args[-1], self.b.op("neg", g) if code == "sub" else g)

    def _claim(self, s: Op, place: Place, index: tuple[Operand, ...]) -> None:
        """A minimum or maximum: if its value is what the element holds at the end, it takes the element's adjoint."""
        b, value = self.b, at(self._env, s.args[-1])
        final = b.gload(place, index)
        both_nan = b.op("and", b.op("ne", value, value), b.op("ne", final, final))
        share = b.local(Const(0.0, place.dtype), "share")
        with b.if_(b.op("or", b.op("eq", value, final), both_nan)):
            b.store(share, b.atomic("xchg", _grad(place), index, Const(0.0, place.dtype)))
        self._give(s.args[-1], b.load(share))

    def _give_factor(self, s: Op, g: Operand, final: Operand) -> None:
        """A product: its factor gets the adjoint times the other factors, which are the final content over the factor."""
        b, factor, zero = self.b, at(self._env, s.args[-1]), Const(0.0, s.dtype)
        possible = b.op("or", b.op("ne", factor, zero), b.op("eq", g, zero))
        in_a_tape = _IN_A_TAPE if s in self.activity.finals.inline else ""
        b.put(Assert(possible, _ZERO_FACTOR.format(atomic_of(s)[0].name, in_a_tape)))
        self._give(s.args[-1], zero_stays_zero(b, g, b.op("mul", g, b.op("div", final, factor))))

    def _backward_op(self, s: Op) -> None:
        g = self._take(s)
        if g is None:
            return
        args = tuple(at(self._env, a) for a in s.args)
        if s.op == "load":
            assert isinstance(s.attr, Local)
            self._bump(self._adj(s.attr), g)
        elif s.op == "gload":
            assert isinstance(s.attr, Place)
            self.b.atomic("add", _grad(s.attr), args, g)
        else:
            result = self._env.get(s)
            for operand, rule in zip(s.args, rules_of(s), strict=True):
                if rule is not None and self.activity.is_varied(operand):
                    value = rule(self.b, g, args, result)
                    if s in self.activity.masked and multiplies(s):
                        value = zero_stays_zero(self.b, g, value)
                    self._give(operand, value)

    # ---- loops
    def _backward_loop(self, s: Loop) -> None:
        driver, rec, b = self.drivers[s], self._records[s], self.b
        if not driver.stacks:
            with down(b, rec.n) as k:
                self._reverse_iteration(s, rec, k)
            return
        n, seg = b.op("add", rec.n, rec.pad), driver.param("S")
        driver.enter_backward(b, rec, n)
        with down(b, driver.segments(b, rec, n)) as below:
            m = b.op("add", below, rec.skipped)
            base = b.op("mul", m, seg)
            start = b.op("max", base, rec.pad)
            end = b.op("min", n, b.op("add", base, seg))
            with b.if_(b.op("lt", end, n)):  # the forward sweep taped the last segment
                driver.refill(b, self._env, rec, m, (start, end, n))
            with driver.backwards(b, b.op("sub", end, start)) as k:
                iteration = b.op("add", start, k)
                driver.restore(b, "tape", b.op("sub", iteration, base))
                self._reverse_iteration(s, rec, b.op("sub", iteration, rec.pad))

    def _reverse_iteration(self, s: Loop, rec: Record, k: Operand) -> None:
        b = self.b
        for v, value in rec.invariants.items():
            b.store(v, value)
        self._env[s.index] = index_at(b, s, rec.begin, k)
        if s.exit:
            assert rec.site is not None
            is_last = b.op("eq", k, b.op("sub", rec.n, ONE))
            self._site[s.exit] = b.op("select", is_last, rec.site, Const(0, s.exit.dtype), dtype=s.exit.dtype)
        self._forward(s.body)
        self._backward(s.body)
        if s.exit:
            del self._site[s.exit]


@functools.lru_cache(maxsize=4096)
def _adjoint(loc: Loc | None) -> Loc | None:
    """The source location of a statement's adjoint."""
    return None if loc is None else replace(loc, mode="gradient")


def _grad(place: Place) -> Place:
    assert place.grad is not None
    return place.grad
