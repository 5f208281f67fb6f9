"""Reductions of a parallel loop: a partial result for each chunk of iterations, and in a chunk of reals ``WAYS`` of them.

The iteration with number n of a chunk combines what it has with number ``n % WAYS``; these are combined in halves when the chunk ends,
and the chunks' results in the order of the chunks. So the bits follow from the loop alone, whatever the threads and lanes are, and no
addition waits for the last one.

An iteration starts with a value that changes nothing, and stores what it has to a buffer, so that LLVM makes vectors of the loop. The
buffer goes into the partial results as vectors of ``WAYS``. Where a loop skips iterations there is no buffer: each combines what it has
at once. Integers have one result for a chunk: they are the same in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...ir.nodes import Const, Local, Reduction
from ..abi import WAYS
from ..llvm import arith, memory
from ..llvm.emitter import Emitter
from ..llvm.in_order import counting, nothing
from ..llvm.target import const_text, highest, lowest, memory_type
from ..llvm.task_emitter import TaskEmitter

MAX_CHUNKS = 512
_NUMBERS = 2048
"""Numbers in all buffers, about."""


def identity(r: Reduction) -> str:
    """The literal that a partial result starts as."""
    d = r.local.dtype
    value: int | float = 0 if r.code == "add" else highest(d) if r.code == "min" else lowest(d)
    return const_text(Const(float(value) if d.is_real else value, d))


def differs(e: Emitter, r: Reduction, value: str) -> str:
    """Whether a partial result is not the identity (i1): then some iteration has updated the element, so it exists."""
    how = "fcmp une" if r.local.dtype.is_real else "icmp ne"
    return e.t(f"{how} {e.ty(r.local.dtype, False)} {value}, {identity(r)}")


class PartialSums:
    """The partial results of a chunk. ``most``: the iterations that buffers hold; 0: there are no buffers."""

    def __init__(self, e: TaskEmitter, buffered: bool) -> None:
        self._e = e
        self._reals = [r for r in e.task.reductions if r.local.dtype.is_real]
        self.most = max(WAYS, _NUMBERS // len(self._reals) // WAYS * WAYS) if buffered and self._reals else 0
        self._results: dict[Local, str] = {}
        self._buffers: dict[Local, str] = {}
        room = self.most + max(WAYS, e.lanes)
        for r in e.task.reductions:
            d, v = r.local.dtype, e.lanes > 1
            if r not in self._reals:
                e.put(f"store {e.ty(d, v)} {e.lit(identity(r), d, v)}, ptr {e.local(r.local)}")
                continue
            self._results[r.local] = result = e.slot(f"<{WAYS} x {e.ty(d, False)}>")
            e.put(f"store <{WAYS} x {e.ty(d, False)}> splat ({e.ty(d, False)} {identity(r)}), ptr {result}")
            if self.most:
                self._buffers[r.local] = e.slot(f"[{room} x {e.ty(d, False)}]")

    def begin(self) -> None:
        """An iteration, or one for each lane, begins with nothing."""
        e, v = self._e, self._e.lanes > 1
        for r in self._reals:
            e.put(f"store {e.ty(r.local.dtype, v)} {self._none(r, v)}, ptr {e.local(r.local)}")

    def _none(self, r: Reduction, v: bool) -> str:
        e, d = self._e, r.local.dtype
        return nothing(e, d, v) if r.code == "add" else e.lit(identity(r), d, v)

    def keep(self, number: str) -> None:
        """At the end of an iteration, or of one for each lane: store what it has. ``number``: in what the buffers hold."""
        e, v = self._e, self._e.lanes > 1
        for r in self._reals:
            d = r.local.dtype
            at = e.t(f"getelementptr {e.ty(d, False)}, ptr {self._buffers[r.local]}, i64 {number}")
            value = e.t(f"load {e.ty(d, v)}, ptr {e.local(r.local)}")
            e.put(f"store {e.ty(d, v)} {value}, ptr {at}, align {d.size}{e.access}")

    def combine(self, number: str) -> None:
        """At the end of an iteration of a loop without buffers: combine what it has. ``number``: in its chunk."""
        e = self._e
        for r in self._reals:
            d, ty = r.local.dtype, e.ty(r.local.dtype, False)
            way = e.t(f"and i64 {number}, {WAYS - 1}")
            at = e.t(f"getelementptr {ty}, ptr {self._results[r.local]}, i64 {way}")
            new = arith.binary(e, r.code, d, False, e.t(f"load {ty}, ptr {at}"), e.t(f"load {ty}, ptr {e.local(r.local)}"))
            e.put(f"store {ty} {new}, ptr {at}")

    def flush(self, count: str) -> None:
        """Combine the contents of the buffers, of ``count`` iterations."""
        if not self._buffers:
            return
        e = self._e
        vectors = e.t(f"udiv i64 {e.t(f'add i64 {count}, {WAYS - 1}')}, {WAYS}")
        with _vectors(e, WAYS):
            for r in self._reals:
                ty, buffer = e.ty(r.local.dtype, True), self._buffers[r.local]
                behind = e.t(f"getelementptr {e.ty(r.local.dtype, False)}, ptr {buffer}, i64 {count}")
                e.put(f"store {ty} {self._none(r, True)}, ptr {behind}, align {r.local.dtype.size}")
            with counting(e, vectors) as k:
                for r in self._reals:
                    ty, result = e.ty(r.local.dtype, True), self._results[r.local]
                    at = e.t(f"getelementptr {ty}, ptr {self._buffers[r.local]}, i64 {k}")
                    more = e.t(f"load {ty}, ptr {at}, align {r.local.dtype.size}")
                    new = arith.binary(e, r.code, r.local.dtype, True, e.t(f"load {ty}, ptr {result}"), more)
                    e.put(f"store {ty} {new}, ptr {result}")

    def store(self, chunk: str, partials: str) -> None:
        """When the chunk with this number ends: its results, lanes in order or ways in halves, go to their places."""
        e = self._e
        for k, r in enumerate(self._e.task.reductions):
            d = r.local.dtype
            value = self._halves(r) if r in self._reals else self._lanes(r)
            word = e.t(f"add i64 {chunk}, {k * MAX_CHUNKS}")
            memory.write(e, d, value, e.t(f"getelementptr i64, ptr {partials}, i64 {word}"), "uniform", d.size)

    def _halves(self, r: Reduction) -> str:
        e, d = self._e, r.local.dtype
        ty, n = e.ty(d, False), WAYS
        value = e.t(f"load <{n} x {ty}>, ptr {self._results[r.local]}")
        while n > 1:
            n //= 2
            low, high = arith.halves(e, d, value, n)
            with _vectors(e, n):
                value = arith.binary(e, r.code, d, True, low, high)
        return e.t(f"extractelement <1 x {ty}> {value}, i64 0")

    def _lanes(self, r: Reduction) -> str:
        e, d, v = self._e, r.local.dtype, self._e.lanes > 1
        value = e.t(f"load {e.ty(d, v)}, ptr {e.local(r.local)}")
        if v:
            lanes = [e.t(f"extractelement {e.ty(d, True)} {value}, i64 {n}") for n in range(e.lanes)]
            value = lanes[0]
            for x in lanes[1:]:
                value = arith.binary(e, r.code, d, False, value, x)
        return value


@contextmanager
def _vectors(e: Emitter, lanes: int) -> Iterator[None]:
    """Inside the block, varying values have so many elements."""
    before, e.lanes = e.lanes, lanes
    try:
        yield
    finally:
        e.lanes = before


def combine_partials(e: TaskEmitter, k: int, r: Reduction, chunks: str) -> None:
    """In the entry: fold the chunks' results in order, then into the place."""
    d = r.local.dtype
    ty, mem = e.ty(d, False), memory_type(d)
    total, number, body, out = e.slot(ty), e.slot("i64"), e.label("fold"), e.label("folded")
    first = e.t(f"getelementptr i64, ptr %partials, i64 {k * MAX_CHUNKS}")
    e.put(f"store {ty} {e.t(f'load {mem}, ptr {first}')}, ptr {total}")
    e.put(f"store i64 1, ptr {number}")
    e.branch(e.t(f"icmp sgt i64 {chunks}, 1"), body, out)
    e.at(body)
    n = e.t(f"load i64, ptr {number}")
    part = e.t(f"load {mem}, ptr {e.t(f'getelementptr i64, ptr {first}, i64 {n}')}")
    new = arith.binary(e, r.code, d, False, e.t(f"load {ty}, ptr {total}"), part)
    e.put(f"store {ty} {new}, ptr {total}")
    n = e.t(f"add i64 {n}, 1")
    e.put(f"store i64 {n}, ptr {number}")
    e.branch(e.t(f"icmp slt i64 {n}, {chunks}"), body, out)
    e.at(out)
    whole, done = e.t(f"load {ty}, ptr {total}"), e.label("combined")
    if not r.sure:
        exists = e.label("exists")
        e.branch(differs(e, r, whole), exists, done)
        e.at(exists)
    ptr, _ = memory.address(e, r.place, r.index)
    memory.update(e, r.code, r.place, ptr, [whole])
    e.jump(done)
    e.at(done)
