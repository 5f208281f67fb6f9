"""Random IR kernels for the reverse transform: loops to depth 3, ragged and data-dependent bounds, ifs, while, break, continue, return.

Everything is f64/i32 and runs on the interpreter. ``make(seed)`` gives the kernel and its memory.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import (
    Axis,
    Buffer,
    Const,
    Exit,
    If,
    Kernel,
    Local,
    Loop,
    Op,
    Operand,
    Place,
    Task,
)
from qdrun.compiler.ir.types import f64, i32
from qdrun.compiler.runtime.python.interpret import Memory

NX, NOUT, N_ITER = 10, 4, 2


def array(name: str, dtype, n: int, grad: bool = False) -> Place:
    place = Place(name, dtype, Buffer("field"), 1, (n,), (dtype.size,), elem_bytes=dtype.size)
    if grad:
        place.grad = Place(f"{name}.grad", dtype, Buffer("field"), 1, (n,), (dtype.size,), elem_bytes=dtype.size, is_grad=True)
    return place


@dataclass
class Program:
    kernel: Kernel
    x: Place
    out: Place
    own: Place
    n: Place
    start: Place

    def memory(self, seed: int) -> Memory:
        r = np.random.default_rng(seed + 7)
        start = np.concatenate([[0], np.cumsum(r.integers(0, 5, 7))]).astype(np.int32)
        arrays = {
            self.x: r.uniform(-1.5, 1.5, NX),
            self.out: np.zeros(NOUT),
            self.own: np.zeros(NOUT * N_ITER),
            self.n: r.integers(0, 5, 6).astype(np.int32),
            self.start: start,
            self.x.grad: np.zeros(NX),
            self.out.grad: r.uniform(0.5, 1.5, NOUT),
            self.own.grad: r.uniform(0.5, 1.5, NOUT * N_ITER),
        }
        return Memory.of(arrays)


class Gen:
    """One random kernel: a parallel task of N_ITER iterations."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.x, self.out = array("x", f64, NX, True), array("out", f64, NOUT, True)
        self.own = array("own", f64, NOUT * N_ITER, True)
        self.n, self.start = array("n", i32, 6), array("start", i32, 8)
        self.fvars: list[Local] = []
        self.ivars: list[Local] = []
        self.body: list = []
        self.b = StatementBuilder(self.body)
        self.grid = Op("index", (), i32)

    def make(self) -> Program:
        for _ in range(3):
            self.fvars.append(self.b.local(self.xload([self.grid]), "f"))
        self.ivars.append(self.b.local(const_i32(self.r.randrange(4)), "q"))
        self.block([self.grid], 0, self.r.randint(3, 6))
        for v in self.fvars:
            self.b.atomic("add", self.out, (self.small(self.grid, NOUT),), self.b.load(v))
        task = Task("body", self.body, [Axis(self.grid, const_i32(0), const_i32(N_ITER))])
        return Program(Kernel("random", [], [task]), self.x, self.out, self.own, self.n, self.start)

    def c(self, value: float) -> Const:
        return Const(value, f64)

    def small(self, x: Operand, n: int) -> Operand:
        return self.b.op("mod", x, const_i32(n))

    def xload(self, ints) -> Operand:
        return self.b.gload(self.x, (self.small(self.int_(ints), NX),))

    def int_(self, ints, depth: int = 0) -> Operand:
        r = self.r.random()
        if r < 0.35:
            return self.r.choice(ints)
        if r < 0.5 and self.ivars:
            return self.b.load(self.r.choice(self.ivars))
        if r < 0.65:
            return self.b.gload(self.n, (self.small(self.r.choice(ints), 6),))
        if r < 0.8 or depth > 1:
            return self.b.op("add", self.r.choice(ints), const_i32(self.r.randrange(4)))
        code = self.r.choice(("add", "sub", "mul", "min", "max"))
        return self.b.op(code, self.int_(ints, depth + 1), self.int_(ints, depth + 1))

    def cond(self, ints) -> Operand:
        if self.r.random() < 0.25:
            return self.b.op("lt", self.b.load(self.r.choice(self.fvars)), self.c(self.r.uniform(-1, 1)))
        return self.b.op("lt", self.small(self.int_(ints), self.r.randint(2, 5)), const_i32(self.r.randint(1, 3)))

    def float_(self, ints, depth: int = 0) -> Operand:
        r, b = self.r.random(), self.b

        def f() -> Operand:
            return self.float_(ints, depth + 1)

        if depth > 2 or r < 0.3:
            return b.load(self.r.choice(self.fvars)) if self.r.random() < 0.7 else self.xload(ints)
        if r < 0.5:
            return b.op(self.r.choice(("sin", "cos", "tanh")), f())
        if r < 0.55:
            a = f()
            return b.op("sqrt", b.op("add", b.op("mul", a, a), self.c(1.0)))
        if r < 0.6:
            return b.op("exp", b.op("sin", f()))
        if r < 0.65:
            return b.op("select", self.cond(ints), f(), f())
        if r < 0.7:
            return b.op("div", f(), b.op("add", b.op("sin", f()), self.c(2.5)))
        if r < 0.74:
            a = f()
            return b.op("log", b.op("add", b.op("mul", a, a), self.c(1.5)))
        if r < 0.8:
            return b.op("mul", f(), self.c(self.r.uniform(-1, 1)))
        return b.op(self.r.choice(("add", "sub", "mul", "min", "max")), f(), f())

    def block(self, ints, depth: int, size: int) -> None:
        nf, ni = len(self.fvars), len(self.ivars)
        for _ in range(size):
            self.stmt(list(ints), depth)
        del self.fvars[nf:], self.ivars[ni:]

    def stmt(self, ints, depth: int) -> None:
        r, b = self.r.random(), self.b
        if r < 0.25 and depth < 3:
            self.loop(ints, depth)
        elif r < 0.38:
            with b.if_(self.cond(ints)) as s:
                self.block(ints, depth, self.r.randint(1, 2))
                self.leave(depth)
            if self.r.random() < 0.5:
                with b.into(s.orelse):
                    self.block(ints, depth, 1)
                    if self.r.random() < 0.3:
                        self.leave(depth)
        elif r < 0.44 and depth:
            with b.if_(self.cond(ints)):
                self.leave(depth, 1.0)
        elif r < 0.52:
            b.store(self.r.choice(self.ivars), self.small(b.op("add", self.int_(ints), self.int_(ints)), 7))
        elif r < 0.58:
            self.fvars.append(b.local(self.float_(ints), "f"))
        elif r < 0.64:
            b.atomic("add", self.out, (self.small(self.int_(ints), NOUT),), self.float_(ints))
        elif r < 0.68:
            at = b.op("add", b.op("mul", self.grid, const_i32(NOUT)), self.small(self.int_(ints), NOUT))
            b.gstore(self.own, (at,), self.float_(ints))
        elif r < 0.82:
            v = self.r.choice(self.fvars)  # an accumulation, or a linear recurrence
            w = b.op("mul", b.load(self.r.choice(self.fvars)), self.c(0.5)) if self.r.random() < 0.6 else self.float_(ints)
            b.store(v, b.op("add", b.op("mul", b.load(v), self.c(self.r.choice((1.0, 0.5)))), w))
        else:
            v, e = self.r.choice(self.fvars), self.float_(ints)
            if self.r.random() < 0.6:
                b.store(v, b.op("sin", e))
            else:
                b.store(v, b.op("add", b.op("tanh", e), self.c(self.r.uniform(-1, 1))))

    def leave(self, depth: int, p: float = 0.4) -> None:
        if self.r.random() > p:
            return
        kinds = ["break", "continue"] * 4 * bool(depth) + ["return"]
        self.b.put(Exit(self.r.choice(kinds)))

    def loop(self, ints, depth: int) -> None:
        b, c = self.b, self.r.randrange(8)
        if c == 6:
            self.while_(ints, depth)
            return
        at = self.small(self.r.choice(ints), 6)
        lo: Operand = const_i32(0)
        hi: Operand = const_i32(self.r.randint(1, 5))
        step = 1
        if c == 1:
            hi = b.gload(self.n, (at,))
        elif c == 2:
            hi = b.op("sub", const_i32(4), self.small(self.r.choice(ints), 4))
        elif c == 3:
            lo = b.gload(self.start, (at,))
            hi = b.gload(self.start, (b.op("add", at, const_i32(1)),))
        elif c == 4:
            hi = self.small(b.load(self.r.choice(self.ivars)), 5)
        elif c == 5:
            hi = b.op("min", self.small(self.int_(ints), 7), const_i32(5))
        elif c == 7:
            lo, hi, step = const_i32(7), self.small(self.int_(ints), 5), -2
        with b.loop(lo, hi, step) as lp:
            self.block([*ints, lp.index], depth + 1, self.r.randint(1, 4))

    def while_(self, ints, depth: int) -> None:
        b = self.b
        left = b.local(const_i32(0), "w")
        loop = Loop(Op("index", (), i32), const_i32(0), None)
        b.put(loop)
        with b.into(loop.body):
            b.store(left, b.op("add", b.load(left), const_i32(1)))
            done = b.op("gt", b.load(left), self.small(self.int_(ints), 6))
            b.put(If(done, [Exit("break")]))
            self.block([*ints, b.load(left)], depth + 1, self.r.randint(1, 4))


def make(seed: int) -> Program:
    return Gen(seed).make()
