"""Random parallel loops that add to neighbours: offsets, periodic and clamped indices, guards, arguments as bounds, several arrays."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from irtools import arguments, field

from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Axis, Buffer, Const, Kernel, Op, Operand, Place, Task
from qdrun.compiler.ir.types import f64, i32
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

PAD = 4


@dataclass
class Scatter:
    """A kernel of one task, and what a launch gives it."""

    kernel: Kernel
    arrays: dict[Place, np.ndarray]
    scalars: dict[ArgDecl, int]
    extents: list[int]

    def run(self, kernel: Kernel) -> list[np.ndarray]:
        """Every array after a launch of a kernel that does the same."""
        arrays = {place: a.copy() for place, a in self.arrays.items()}
        run_kernel(kernel, Memory.of(arrays), self.scalars)
        return list(arrays.values())


class Draw:
    """Draws one kernel."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.axes: list[Axis] = []
        self.scalars: dict[ArgDecl, int] = {}
        rng = self.rng
        rank = rng.choice((1, 1, 2, 2, 2, 3, 4))
        most = (0, 30, 14, 7, 4)[rank]
        self.extents = [rng.choice((0, 1, 2, 3)) if rng.random() < 0.2 else rng.randint(most // 2, most) for _ in range(rank)]
        self.begins = [0 if rng.random() < 0.6 else rng.randint(0, 3) for _ in self.extents]
        self.args = [ArgDecl(f"n{k}", "scalar", i32) if rng.random() < 0.3 else None for k in range(len(self.extents))]
        self.t = ArgDecl("t", "scalar", i32)
        for arg, n in zip(self.args, self.extents):
            if arg is not None:
                self.scalars[arg] = n
        self.scalars[self.t] = 0

    def end(self, b: StatementBuilder, k: int) -> Operand:
        arg = self.args[k]
        return const_i32(self.extents[k]) if arg is None else b.op("arg", dtype=i32, attr=arg)

    def shape(self) -> tuple[int, ...]:
        return (2, *(n + 2 * PAD for n in self.extents))

    def scatter(self) -> Scatter:
        """The kernel."""
        rng, shape = self.rng, self.shape()
        prologue = StatementBuilder([])
        axes = [Axis(Op("index", (), i32), const_i32(begin), self.end(prologue, k)) for k, begin in enumerate(self.begins)]
        u, c, alpha = field("u", shape, f64), field("c", shape, f64), field("alpha", (), f64)
        g = Place("g", f64, Buffer("field"), len(shape), u.shape, u.strides)
        other = field("other", shape, f64)
        mask = field("mask", shape, i32)
        b = StatementBuilder([])
        index = [a.index for a in axes]
        t = b.op("arg", dtype=i32, attr=self.t)
        later = b.op("add", t, const_i32(1))
        centre = tuple(b.op("add", i, const_i32(PAD)) for i in index)
        value = b.gload(g, (later, *centre))
        if rng.random() < 0.5:
            b.gstore(g, (later, *centre), Const(0.0, f64))
        for _ in range(rng.randint(1, 6)):
            target = g if rng.random() < 0.7 else other
            self.add(b, target, t, index, value, (u, c, mask))
        if rng.random() < 0.5:
            b.atomic("add", alpha, (), b.op("mul", value, b.gload(u, (later, *centre))))
        if rng.random() < 0.2:
            b.gstore(c, (t, *centre), value) if rng.random() < 0.5 else b.atomic("add", c, (later, *centre), value)
        task = Task("t", b.block, axes, prologue.block)
        kernel = Kernel("k", arguments(task), [task])
        verify_kernel(kernel)
        real = np.random.default_rng(self.rng.randrange(1 << 30))
        arrays = {p: real.normal(size=p.shape) for p in (g, other, u, c, alpha)}
        arrays[mask] = real.integers(0, 2, size=shape).astype(np.int32)
        return Scatter(kernel, arrays, {a: v for a, v in self.scalars.items() if a in kernel.args}, self.extents)

    def add(self, b: StatementBuilder, target: Place, t: Op, index: list[Op], value: Op, read: tuple[Place, ...]) -> None:
        """One add, perhaps under conditions."""
        rng = self.rng
        if rng.random() < 0.35:
            cond = self.condition(b, t, index, read[2])
            with b.if_(cond) as s:
                self.add(b, target, t, index, value, read)
            if rng.random() < 0.3:
                with b.into(s.orelse):
                    self.add(b, target, t, index, value, read)
            return
        at = tuple(self.position(b, k, i) for k, i in enumerate(index))
        u, c, _ = read
        v: Operand = value
        if rng.random() < 0.5:
            v = b.op(
                "mul",
                v,
                b.gload(c, (t, *at))
                if rng.random() < 0.6
                else b.gload(u, (t, *(self.position(b, k, i) for k, i in enumerate(index)))),
            )
        if rng.random() < 0.2:
            local = b.local(v)
            with b.if_(b.op("lt", v, Const(0.0, f64))):
                b.store(local, b.op("neg", v))
            v = b.load(local)
        if rng.random() < 0.15:
            total = b.local(Const(0.0, f64))
            with b.loop(const_i32(0), const_i32(2)) as lp:
                b.store(total, b.op("add", b.load(total), b.gload(u, (lp.index, *at))))
            v = b.op("mul", v, b.load(total))
        b.atomic(rng.choice(("add", "add", "sub")), target, (t, *at), v)

    def condition(self, b: StatementBuilder, t: Op, index: list[Op], mask: Place) -> Op:
        rng = self.rng
        found = []
        for _ in range(rng.randint(1, 2)):
            k = rng.randrange(len(index))
            i, end = index[k], self.end(b, k)
            kind = rng.randrange(7)
            if kind == 0:
                found.append(b.op("gt", i, const_i32(rng.randint(0, 2))))
            elif kind == 1:
                found.append(b.op("lt", i, b.op("sub", end, const_i32(rng.randint(0, 2)))))
            elif kind == 2:
                found.append(b.op(rng.choice(("eq", "ne")), i, const_i32(rng.randint(0, 3))))
            elif kind == 3:
                found.append(b.op(rng.choice(("eq", "ne")), i, b.op("sub", end, const_i32(1))))
            elif kind == 4:
                found.append(b.op("le", const_i32(rng.randint(-1, 2)), i))
            elif kind == 5:
                found.append(b.op("ge", b.op("sub", end, const_i32(2)), b.op("mul", i, const_i32(1))))
            else:
                at = tuple(b.op("add", x, const_i32(PAD)) for x in index)
                found.append(b.op("ne", b.gload(mask, (t, *at)), const_i32(0)))
        return found[0] if len(found) == 1 else b.op(rng.choice(("and", "and", "or")), *found)

    def position(self, b: StatementBuilder, k: int, i: Op) -> Op:
        """An index along one axis, inside the array."""
        rng, end = self.rng, self.end(b, k)
        kind, o = rng.randrange(8), rng.randint(-3, 3)
        moved = b.op("add", i, const_i32(o)) if o else i
        if kind <= 2:
            out = moved
        elif kind == 3 and self.extents[k] > 0:
            out = b.op("mod", moved, end)
        elif kind == 4 and self.extents[k] > 0:
            back = b.op("sub", b.op("add", i, end), const_i32(abs(o)))
            out = b.op("mod", back, end)
        elif kind == 5:
            out = b.op("min", moved, b.op("sub", end, const_i32(1)))
        elif kind == 6:
            out = b.op("max", b.op("min", moved, b.op("sub", end, const_i32(1))), const_i32(0))
        else:
            wrapped = b.op("lt", i, b.op("sub", end, const_i32(1)))
            out = b.op("select", wrapped, b.op("add", i, const_i32(1)), const_i32(0))
        return b.op("add", out, const_i32(PAD))


def random_scatter(seed: int) -> Scatter:
    """The kernel of a seed."""
    return Draw(seed).scatter()
