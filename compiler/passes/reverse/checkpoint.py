"""The loop driver of a reverse program: one compiled nest that serves every checkpoint plan.

Launch parameters of a loop: C1, C2, S, D1 (see ``tape/levels.py``). Iterations are numbered j' = j + pad, so that blocks of D1 and
segments of S end where the loop ends. ``ck1`` holds a state every d iterations (d starts at D1 and doubles when ck1 is full:
thinning), ``ck2`` one every S iterations of the current block, ``tape`` one an iteration of the current segment.
The forward sweep tapes the last segment itself, so a loop that fits one segment is never refilled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...ir.builder import StatementBuilder, const_i64
from ...ir.nodes import Const, Local, Loop, Op, Operand, Overflow, Stack, StackPut
from ...ir.ops import POSITIVE
from ...ir.types import i64
from .copies import Env, at, copy_plain, index_at, layer, trip_count
from .slices import Keep, LoopInfo

ZERO, ONE = const_i64(0), const_i64(1)


@dataclass
class Record:
    """The results of a loop's forward phase as values: count, exit site, spacing, pad, entry values of the invariants.

    ``skipped``: the segments that lie in the pad, whole.
    """

    begin: Operand
    invariants: dict[Local, Operand]
    n: Operand = ZERO
    d: Operand = ZERO
    pad: Operand = ZERO
    skipped: Operand = ZERO
    site: Operand | None = None


@dataclass
class LoopDriver:
    """The stacks of one loop and the code that fills and reads them. ``number`` names its parameters."""

    loop: Loop
    info: LoopInfo
    number: int
    stacks: dict[str, Stack] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.info.tape:
            self.stacks = {
                kind: Stack(self.loop, kind, tuple(locals_), f"{kind}.{self.number}")  # type: ignore[arg-type]
                for kind, locals_ in (("ck1", self.info.ck), ("ck2", self.info.ck), ("tape", self.info.tape))
            }

    def param(self, name: str) -> Op:
        """A launch parameter of this loop: C1, C2, S or D1."""
        return Op("param", (), i64, f"{name}.{self.number}")

    def params(self) -> list[str]:
        """The names of this loop's launch parameters."""
        return [f"{p}.{self.number}" for p in ("C1", "C2", "S", "D1")] if self.stacks else []

    # ---- state in and out
    def save(self, b: StatementBuilder, kind: str, slot: Operand) -> None:
        """Write the current values of the stack's locals into a slot."""
        stack = self.stacks[kind]
        b.put(StackPut(stack, slot, tuple(b.load(v) for v in stack.locals)))

    def restore(self, b: StatementBuilder, kind: str, slot: Operand) -> None:
        """Read a slot back into the locals."""
        stack = self.stacks[kind]
        for k, v in enumerate(stack.locals):
            b.store(v, b.op("stack_get", slot, dtype=v.dtype, attr=(stack, k)))

    # ---- forward
    def forward(self, b: StatementBuilder, env: Env) -> Record:
        """Emit the forward sweep (if one is needed) and return what it records."""
        s = self.loop
        begin = at(env, s.begin)
        rec = Record(begin, {v: b.load(v) for v in self.info.inv})
        trips = None if s.end is None else trip_count(b, begin, at(env, s.end), s.step)
        if not self.info.sweep:
            assert trips is not None
            rec.n = trips
            return rec
        sweep, rec.n = self.swept(b, env, begin, trips)
        if sweep:
            rec.d, rec.pad, rec.skipped = b.load(sweep.d), sweep.pad, sweep.skipped
        rec.site = b.load(s.exit) if s.exit else None
        return rec

    def swept(self, b: StatementBuilder, env: Env, begin: Operand, trips: Operand | None) -> tuple[Sweep | None, Operand]:
        """Emit the forward sweep: its bookkeeping, if it keeps anything, and the number of iterations."""
        s = self.loop
        exact = trips is not None and s.exit is None
        n = None if exact else b.local(ZERO, "n")
        if s.exit:
            b.store(s.exit, Const(0, s.exit.dtype))
        sweep = Sweep(self, b, trips if exact else None) if self.stacks else None
        new = Loop(Op("index", (), i64, None, s.loc), ZERO, trips, exit=s.exit, loc=s.loc)
        b.put(new)
        with b.into(new.body):
            if sweep:
                sweep.step(new.index)
            if n:
                b.store(n, b.op("add", new.index, ONE))
            self.iteration(b, env, begin, new.index, self.info.keep_fwd)
        return sweep, b.load(n) if n else trips or ZERO

    def iteration(
        self, b: StatementBuilder, env: Env, begin: Operand, number: Operand, keep: Keep, exit: Local | None = None
    ) -> None:
        """Copy the statements ``keep`` of the body for an iteration. ``exit``: see ``copy_plain``."""
        with layer(env, self.loop) as inner:
            inner[self.loop.index] = index_at(b, self.loop, begin, number)
            copy_plain(b, self.loop.body, inner, keep, exit)

    # ---- backward
    def enter_backward(self, b: StatementBuilder, rec: Record, n: Operand) -> None:
        """Before the loop over the segments of the iterations up to ``n``."""

    @contextmanager
    def backwards(self, b: StatementBuilder, n: Operand) -> Iterator[Operand]:
        """``with``: a loop over the iterations of a segment; gives n - 1 to 0."""
        with down(b, n) as index:
            yield index

    def segments(self, b: StatementBuilder, rec: Record, n: Operand) -> Operand:
        """The number of segments for the iterations up to ``n``, without those in the pad. Without checkpoints there is no division."""
        count = b.local(b.op("min", n, ONE), "segments")
        seg = self.param("S")
        with b.if_(b.op("gt", self.param("C1"), ZERO)):
            b.store(count, b.op("sub", divided_up(b, n, seg), rec.skipped))
        return b.load(count)

    def restart(
        self, b: StatementBuilder, rec: Record, position: tuple[Operand, Operand], span: tuple[Operand, Operand, Operand]
    ) -> tuple[Operand, Operand, Operand]:
        """Restore the state that a refill starts from. ``position``: block of the segment, and its number there; ``span`` as in ``refill``.

        Returns:
            Start of the block, its first iteration that is not in the pad, and whether the segment is the block's last.
        """
        block, number_in_block = position
        b2, hi2, n = span
        b1 = b.op("mul", block, rec.d)
        head = b.op("max", b1, rec.pad)
        whole = b.op("eq", hi2, b.op("min", n, b.op("add", b1, rec.d)))
        with b.if_(b.op("or", whole, b.op("eq", b2, head))) as from_block:
            self.restore(b, "ck1", block)
        with b.into(from_block.orelse):
            self.restore(b, "ck2", b.op("sub", number_in_block, ONE))
        for v, value in rec.invariants.items():
            b.store(v, value)
        return b1, head, whole

    def refill(self, b: StatementBuilder, env: Env, rec: Record, m: Operand, span: tuple[Operand, Operand, Operand]) -> None:
        """Recompute the tape of segment ``m``. span: start and end of the segment, end of the loop.

        The last segment of a block of checkpoints is refilled first: that run starts at the block's checkpoint and fills ck2 on its way.
        """
        b2, hi2, _ = span
        seg = self.param("S")
        b1, head, whole = self.restart(b, rec, divided(b, m, quotient_of(b, rec.d, seg)), span)
        start = b.op("select", whole, head, b2)
        first, rest = divided(b, b.op("sub", start, b1), seg)
        slot, number = b.local(rest, "slot"), b.local(first, "seg")
        with b.loop(start, hi2) as run:
            j = run.index
            here = b.load(slot)
            at_segment = b.op("and", b.op("eq", here, ZERO), b.op("and", whole, b.op("gt", j, head)))
            with b.if_(at_segment):
                self.save(b, "ck2", b.op("sub", b.load(number), ONE))
            with b.if_(b.op("ge", j, b2)):
                self.save(b, "tape", here)
            with _advanced(b, slot, here, seg):
                b.store(number, b.op("add", b.load(number), ONE))
            with b.if_(b.op("lt", j, b.op("sub", hi2, ONE))):
                self.iteration(b, env, rec.begin, b.op("sub", j, rec.pad), self.info.keep_refill, self.loop.exit)


@contextmanager
def down(b: StatementBuilder, n: Operand) -> Iterator[Op]:
    """``with``: a loop whose index runs from n - 1 to 0."""
    with b.loop(b.op("sub", n, ONE), const_i64(-1), -1) as lp:
        yield lp.index


def quotient_of(b: StatementBuilder, x: Operand, y: Operand) -> Operand:
    """Quotient of numbers of a plan: the divisor is a spacing or a length, at least 1 wherever there are checkpoints."""
    return b.op("cdiv", x, y, attr=POSITIVE)


def divided(b: StatementBuilder, x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Quotient and remainder of numbers that are not negative."""
    quotient = quotient_of(b, x, y)
    return quotient, b.op("sub", x, b.op("mul", quotient, y))


def divided_up(b: StatementBuilder, x: Operand, y: Operand) -> Operand:
    """Their quotient, rounded up."""
    return quotient_of(b, b.op("add", x, b.op("sub", y, ONE)), y)


@contextmanager
def _advanced(b: StatementBuilder, slot: Local, here: Operand, seg: Operand) -> Iterator[None]:
    """Next slot; ``with``: what happens at the end of a segment, where the slots begin again."""
    after = b.op("add", here, ONE)
    b.store(slot, after)
    with b.if_(b.op("eq", after, seg)):
        b.store(slot, ZERO)
        yield


class Sweep:
    """The bookkeeping of a forward sweep. No division in the loop: slot and segment are counted."""

    def __init__(self, driver: LoopDriver, b: StatementBuilder, trips: Operand | None) -> None:
        self.driver, self.b = driver, b
        self.c1, self.c2, self.seg = driver.param("C1"), driver.param("C2"), driver.param("S")
        d1 = driver.param("D1")
        self.count = b.local(ZERO, "count")
        self.d = b.local(d1, "d")
        self.slot = b.local(ZERO, "slot")
        self.number = b.local(ZERO, "seg")
        self.pad = self.first = self.skipped = ZERO
        pad, first = b.local(ZERO, "pad"), b.local(ZERO, "first")
        # With no checkpoints (C1 = 0) the whole loop is one segment and nothing is divided.
        with b.if_(b.op("gt", self.c1, ZERO)):
            if trips is not None:
                # Number the iterations so that the last block and segment are full, and tape only the last segment.
                end = b.op("mul", divided_up(b, trips, d1), d1)
                shift = b.op("sub", end, trips)
                b.store(pad, shift)
                b.store(first, b.op("sub", end, self.seg))
                number, slot = divided(b, shift, self.seg)
                b.store(self.slot, slot)
                b.store(self.number, number)
            driver.save(b, "ck1", ZERO)
            b.store(self.count, ONE)
        if trips is not None:
            self.pad, self.first, self.skipped = b.load(pad), b.load(first), b.load(self.number)

    def step(self, j: Op) -> None:
        """At the entry of iteration j: checkpoint at the start of a segment, tape, advance."""
        b, here = self.b, self.b.load(self.slot)
        with b.if_(b.op("and", b.op("eq", here, ZERO), b.op("gt", j, ZERO))):
            self.segment_start(j)
        with b.if_(b.op("ge", b.op("add", j, self.pad), self.first)):
            self.driver.save(b, "tape", here)
        with _advanced(b, self.slot, here, self.seg):
            self.next_segment()

    def next_segment(self) -> None:
        """A segment has ended: number the next one in its block."""
        b = self.b
        following = b.op("add", b.load(self.number), ONE)
        wraps = b.op("eq", b.op("mul", following, self.seg), b.load(self.d))
        b.store(self.number, b.op("select", wraps, ZERO, following))

    def segment_start(self, j: Operand) -> None:
        """Keep the state at iteration j, where a segment starts."""
        b = self.b
        with b.if_(b.op("eq", self.c1, ZERO)) as one_level:
            b.put(Overflow(self.driver.loop, self.driver.number))
        with b.into(one_level.orelse):
            block_start = b.op("eq", b.load(self.number), ZERO)
            with b.if_(b.op("and", block_start, b.op("eq", b.load(self.count), self.c1))):
                self._thin(j)
            with b.if_(b.op("eq", b.load(self.number), ZERO)) as at_block:
                self.driver.save(b, "ck1", b.load(self.count))
                b.store(self.count, b.op("add", b.load(self.count), ONE))
            with b.into(at_block.orelse):
                self.driver.save(b, "ck2", b.op("sub", b.load(self.number), ONE))

    def _thin(self, j: Operand) -> None:
        """ck1 is full: drop every second state and double the spacing, or report that ck2 cannot hold a longer block."""
        b, stack = self.b, self.driver.stacks["ck1"]
        twice = b.op("mul", b.load(self.d), const_i64(2))
        limit = b.op("mul", b.op("add", self.c2, ONE), self.seg)
        with b.if_(b.op("gt", twice, limit)):
            b.put(Overflow(self.driver.loop, self.driver.number))
        half = b.op("sar", b.op("add", self.c1, ONE), ONE)
        with b.loop(ONE, half) as keep:
            source = b.op("mul", keep.index, const_i64(2))
            words = tuple(b.op("stack_get", source, dtype=v.dtype, attr=(stack, k)) for k, v in enumerate(stack.locals))
            b.put(StackPut(stack, keep.index, words))
        b.store(self.count, half)
        b.store(self.d, twice)
        # with an odd C1 this iteration is now in the middle of a block
        _, position = divided(b, b.op("add", j, self.pad), twice)
        b.store(self.number, quotient_of(b, position, self.seg))
