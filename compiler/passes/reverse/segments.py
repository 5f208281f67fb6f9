"""The loop driver for GPUs: the stacks and parameters of ``checkpoint.LoopDriver``, with a loop over segments around one over iterations.

What happens at the start of a segment stands between the two loops, so that an iteration does nothing but its body and, where it is
taped, one put: on a GPU the bookkeeping of an iteration costs more than a short body does. The price is code: the sweep and the refill
hold a copy of the body for iterations that are taped and one for those that are not. Inside a segment 32 bits count: no plan of a GPU
has 2^31 slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...ir.builder import StatementBuilder
from ...ir.nodes import Const, Loop, Op, Operand, Overflow
from ...ir.types import i32, i64
from ...ir.walk import walk
from .checkpoint import ONE, ZERO, LoopDriver, Record, Sweep, divided, divided_up, quotient_of
from .copies import Env
from .slices import Keep, LoopInfo

_POSITION = ((ONE, "per_block"), (ZERO, "block"), (ZERO, "in_block"))

MOST_STATEMENTS = 256
"""Statements of a body that gets copies of its own: the bookkeeping of a longer one costs little beside it."""


def driver_of(loop: Loop, info: LoopInfo, number: int, segmented: bool) -> LoopDriver:
    """The driver of a loop: ``segmented`` asks for loops over segments, where they pay."""
    kept = [s for s in walk(loop.body) if id(s) in info.keep_fwd or id(s) in info.keep_refill]
    pays = len(kept) <= MOST_STATEMENTS and not any(isinstance(s, Loop) for s in kept)
    return (SegmentedDriver if segmented and info.tape and pays else LoopDriver)(loop, info, number)


class SegmentedDriver(LoopDriver):
    """The stacks of one loop whose body holds no loop that a sweep must run."""

    # ---- forward
    def swept(self, b: StatementBuilder, env: Env, begin: Operand, trips: Operand | None) -> tuple[Sweep, Operand]:
        if trips is not None and self.loop.exit is None:
            return self._bounded(b, env, begin, trips), trips
        return self._open(b, env, begin, trips)

    def _bounded(self, b: StatementBuilder, env: Env, begin: Operand, trips: Operand) -> Sweep:
        """The count is known and holds: all segments but the last run without a tape."""
        sweep, seg = Sweep(self, b, trips), self.param("S")
        shift = b.load(sweep.slot)
        whole = b.local(ZERO, "whole")  # segments before the last
        with b.if_(b.op("gt", self.param("C1"), ZERO)) as checkpoints:
            before = b.op("sub", quotient_of(b, sweep.first, seg), sweep.skipped)
            b.store(whole, b.op("max", before, ZERO))
        with b.into(checkpoints.orelse), b.if_(b.op("gt", trips, seg)):
            b.put(Overflow(self.loop, self.number))
        count = b.load(whole)
        with b.loop(ZERO, b.op("add", count, ONE)) as segments:
            low = b.op("sub", b.op("mul", segments.index, seg), shift)
            start = b.op("max", low, ZERO)
            self._enter(b, sweep, start, segments.index)
            with b.if_(b.op("lt", segments.index, count)) as early:
                self._run(b, env, begin, (start, b.op("add", low, seg)), self.info.keep_fwd)
            with b.into(early.orelse):
                self._run(b, env, begin, (start, trips), self.info.keep_fwd, low)
        return sweep

    def _open(self, b: StatementBuilder, env: Env, begin: Operand, trips: Operand | None) -> tuple[Sweep, Operand]:
        """An exit ends it: every segment may be the last, so all are taped. Returns the count, too."""
        s, n, seg = self.loop, b.local(ZERO, "n"), self.param("S")
        assert s.exit is not None
        b.store(s.exit, Const(0, s.exit.dtype))
        sweep = Sweep(self, b, None)
        last = None if trips is None else divided_up(b, trips, seg)
        outer = Loop(Op("index", (), i64, None, s.loc), ZERO, last, exit=s.exit, loc=s.loc)
        b.put(outer)
        with b.into(outer.body):
            start = b.op("mul", outer.index, seg)
            self._enter(b, sweep, start, outer.index)
            end = b.op("add", start, seg)
            end = end if trips is None else b.op("min", end, trips)
            inner = Loop(Op("index", (), i64, None, s.loc), start, end, exit=s.exit, loc=s.loc)
            b.put(inner)
            with b.into(inner.body):
                self.save(b, "tape", b.op("sub", inner.index, start))
                b.store(n, b.op("add", inner.index, ONE))
                self.iteration(b, env, begin, inner.index, self.info.keep_fwd)
        return sweep, b.load(n)

    def _enter(self, b: StatementBuilder, sweep: Sweep, start: Operand, number: Operand) -> None:
        """Before each segment but the first: count it, and keep a checkpoint."""
        with b.if_(b.op("gt", number, ZERO)):
            sweep.next_segment()
            sweep.segment_start(start)

    def _run(
        self,
        b: StatementBuilder,
        env: Env,
        begin: Operand,
        span: tuple[Operand, Operand],
        keep: Keep,
        tape: Operand | None = None,
    ) -> None:
        """The iterations of a span; ``tape``: they are put on the tape, this one (an iteration's number) in slot 0."""
        start, end = span
        slot = None if tape is None else b.op("sub", start, tape)
        with b.loop(Const(0, i32), b.cast(b.op("sub", end, start), i32)) as run:
            t = b.cast(run.index, i64)
            if slot is not None:
                self.save(b, "tape", b.op("add", slot, t))
            self.iteration(b, env, begin, b.op("add", start, t), keep, self.loop.exit)

    # ---- backward
    @contextmanager
    def backwards(self, b: StatementBuilder, n: Operand) -> Iterator[Operand]:
        """See ``LoopDriver.backwards``.

        The 64-bit number is beside the count: LLVM sees an address that moves by the same bytes each time.
        """
        number = b.local(b.op("sub", n, ONE), "k")
        with b.loop(Const(0, i32), b.cast(n, i32)):
            now = b.load(number)
            b.store(number, b.op("sub", now, ONE))
            yield now

    def enter_backward(self, b: StatementBuilder, rec: Record, n: Operand) -> None:
        """The position of the last segment: its block and its number in it. Both are counted down, without further divisions."""
        seg = self.param("S")
        self._per_block, self._block, self._number = (b.local(start, name) for start, name in _POSITION)
        with b.if_(b.op("gt", self.param("C1"), ZERO)):
            per_block = quotient_of(b, rec.d, seg)
            last = b.op("sub", divided_up(b, n, seg), ONE)
            block, number = divided(b, last, per_block)
            for local, value in zip((self._per_block, self._block, self._number), (per_block, block, number)):
                b.store(local, value)

    def _step_back(self, b: StatementBuilder) -> tuple[Operand, Operand]:
        """Block and number of the segment before the last reversed one."""
        before = b.op("sub", b.load(self._number), ONE)
        wraps = b.op("lt", before, ZERO)
        number = b.op("select", wraps, b.op("sub", b.load(self._per_block), ONE), before)
        block = b.op("select", wraps, b.op("sub", b.load(self._block), ONE), b.load(self._block))
        b.store(self._number, number)
        b.store(self._block, block)
        return block, number

    def refill(self, b: StatementBuilder, env: Env, rec: Record, m: Operand, span: tuple[Operand, Operand, Operand]) -> None:
        """See ``LoopDriver.refill``. Iterations are numbered from the loop's first one here, without the pad."""
        b2, hi2, _ = span
        seg = self.param("S")
        block, number_in_block = self._step_back(b)
        b1, head, whole = self.restart(b, rec, (block, number_in_block), span)
        first = b.op("select", b.op("eq", block, ZERO), rec.skipped, ZERO)  # the pad lies in the first block
        with b.loop(b.op("select", whole, first, number_in_block), number_in_block) as segments:
            low = b.op("add", b1, b.op("mul", segments.index, seg))
            with b.if_(b.op("gt", segments.index, first)):
                self.save(b, "ck2", b.op("sub", segments.index, ONE))
            ends = b.op("max", low, head), b.op("add", low, seg)
            self._run(b, env, rec.begin, self._shifted(b, rec, *ends), self.info.keep_refill)
        last = b.op("sub", hi2, ONE)
        base = b.op("sub", b.op("mul", m, seg), rec.pad)
        start, end = self._shifted(b, rec, b2, last)
        self._run(b, env, rec.begin, (start, end), self.info.keep_refill, base)
        self.save(b, "tape", b.op("sub", end, base))

    def _shifted(self, b: StatementBuilder, rec: Record, start: Operand, end: Operand) -> tuple[Operand, Operand]:
        return b.op("sub", start, rec.pad), b.op("sub", end, rec.pad)
