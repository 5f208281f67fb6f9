"""Random structured kernels for property tests: nested loops, ifs, integers and floats, memory, exits. Every one terminates."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from qdrun.compiler.errors import QdrunError
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Assert, Axis, Buffer, Const, Exit, Kernel, Local, Op, Operand, Place, Print, Task
from qdrun.compiler.ir.types import f32, i32, u1
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

N = 4
INT_OPS = "add sub mul floordiv mod cdiv crem min max and or xor shl sar shr".split()
FLOAT_OPS = "add sub mul div min max".split()
CONSTS = {i32: (0, 1, -1, 2, 3, 7), f32: (0.0, -0.0, 1.0, -1.5, 0.1, 2.0), u1: (True, False)}


@dataclass
class Program:
    """A kernel (with exits) and the places that it touches."""

    kernel: Kernel
    places: list[Place]
    scalar: ArgDecl
    seed: int

    def memory(self) -> Memory:
        """Fresh memory with the same content every time."""
        rng = np.random.default_rng(self.seed)
        memory = Memory({p.buffer.owner: (N,) for p in self.places if isinstance(p.buffer.owner, ArgDecl)})
        memory.fill(self.kernel)
        for p in self.places:
            if p in self._used():
                memory.array(p)[...] = rng.integers(-3, 4, memory.extents(p)) * (0.5 if p.dtype is f32 else 1)
        return memory

    def _used(self) -> set[Place]:
        from qdrun.compiler.ir.walk import kernel_places

        bases = {id(p.buffer) for p in kernel_places(self.kernel)}
        return {p for p in self.places if id(p.buffer) in bases and p in kernel_places(self.kernel)}

    def outcome(self, kernel: Kernel) -> object:
        """What running a version of the kernel leaves behind: memory, printed lines, the error if there is one."""
        memory = self.memory()
        try:
            prints, error = run_kernel(kernel, memory, {self.scalar: 3}).prints, None
        except QdrunError as e:
            prints, error = None, type(e)
        arrays = []
        for p in sorted(self._used(), key=lambda p: p.name):
            array = memory.array(p).copy()
            if p.dtype is f32:
                array[np.isnan(array)] = np.nan  # which NaN it is may depend on the order of operands
            arrays.append((p.name, array.tobytes()))
        return arrays, prints, error


def places() -> list[Place]:
    """Fields alone, two interleaved components, an ndarray argument, a scalar field."""
    pair = Buffer("field")
    decl = ArgDecl("a", "ndarray", f32, 1)
    return [
        Place("xf", f32, Buffer("field"), 1, (N,), (4,)),
        Place("xi", i32, Buffer("field"), 1, (N,), (4,)),
        Place("v0", f32, pair, 1, (N,), (8,), offset=0),
        Place("v1", f32, pair, 1, (N,), (8,), offset=4),
        Place("a", f32, Buffer("arg", decl), 1, None, None, elem_bytes=4),
        Place("s", f32, Buffer("field"), 0, (), ()),
    ]


class _Generator:
    def __init__(self, seed: int, size: int, exits: bool) -> None:
        self.rng = random.Random(seed)
        self.left = size
        self.exits = exits
        self.places = places()
        self.scalar = ArgDecl("n", "scalar", i32)
        self.task = Task("t", [])
        if self.rng.random() < 0.5:
            self.task.axes = [Axis(Op("index", (), i32), const_i32(0), const_i32(3))]
        self.b = StatementBuilder(self.task.body)
        self.values: list[list[Operand]] = [[a.index for a in self.task.axes]]
        self.locals: list[list[Local]] = [[]]
        self.loops = 0

    def program(self, seed: int) -> Program:
        self.values[0].append(self.b.op("arg", dtype=i32, attr=self.scalar))
        for dtype in (i32, f32, u1):
            self.locals[0].append(self.b.local(self.const(dtype), "v"))
        while self.left > 0:
            self.statement()
        for place in self.places[:3]:
            self.b.gstore(place, self.index(place), self.value(place.dtype))
        args = [self.scalar, *(p.buffer.owner for p in self.places if isinstance(p.buffer.owner, ArgDecl))]
        return Program(Kernel("k", args, [self.task]), self.places, self.scalar, seed)

    def const(self, dtype) -> Const:
        return Const(self.rng.choice(CONSTS[dtype]), dtype)

    def value(self, dtype) -> Operand:
        """A value in scope or a literal."""
        known = [v for scope in self.values for v in scope if v.dtype is dtype]
        return self.rng.choice(known[-6:]) if known and self.rng.random() < 0.8 else self.const(dtype)

    def keep(self, value: Operand) -> None:
        self.values[-1].append(value)

    def index(self, place: Place) -> tuple[Operand, ...]:
        if place.ndim == 0:
            return ()
        if self.task.axes and self.rng.random() < 0.4:
            return (self.task.axes[0].index,)
        if self.rng.random() < 0.5:
            return (const_i32(self.rng.randrange(N)),)
        return (self.b.op("mod", self.value(i32), const_i32(N)),)

    def statement(self) -> None:
        self.left -= 1
        kinds = ["compute"] * 5 + ["store", "load", "load", "gload", "gload", "gstore", "atomic", "declare", "effect"]
        if len(self.values) < 4:
            kinds += ["branch", "branch", "loop", "endless"]
        getattr(self, self.rng.choice(kinds))()

    def compute(self) -> None:
        b, pick = self.b, self.rng.choice
        kind = pick("int int float float compare logic select cast unary".split())
        if kind == "int":
            self.keep(b.op(pick(INT_OPS), self.value(i32), self.value(i32)))
        elif kind == "float":
            self.keep(b.op(pick(FLOAT_OPS), self.value(f32), self.value(f32)))
        elif kind == "compare":
            dtype = pick((i32, f32, u1))
            self.keep(b.op(pick("lt le gt ge eq ne".split()), self.value(dtype), self.value(dtype)))
        elif kind == "logic":
            self.keep(b.op(pick(("and", "or", "xor")), self.value(u1), self.value(u1)))
        elif kind == "select":
            dtype = pick((i32, f32, u1))
            self.keep(b.op("select", self.value(u1), self.value(dtype), self.value(dtype)))
        elif kind == "cast":
            source, target = self.rng.sample((i32, f32, u1), 2)
            self.keep(b.op("cast", self.value(source), dtype=target))
        else:
            code, dtype = pick((("neg", i32), ("neg", f32), ("not", u1), ("abs", f32), ("bitnot", i32), ("floor", f32)))
            self.keep(b.op(code, self.value(dtype)))

    def _local(self) -> Local:
        return self.rng.choice([x for scope in self.locals for x in scope])

    def declare(self) -> None:
        self.locals[-1].append(self.b.local(self.value(self.rng.choice((i32, f32, u1)))))

    def store(self) -> None:
        local = self._local()
        self.b.store(local, self.value(local.dtype))

    def load(self) -> None:
        self.keep(self.b.load(self._local()))

    def gload(self) -> None:
        place = self.rng.choice(self.places)
        self.keep(self.b.gload(place, self.index(place)))

    def gstore(self) -> None:
        place = self.rng.choice(self.places)
        self.b.gstore(place, self.index(place), self.value(place.dtype))

    def atomic(self) -> None:
        place = self.rng.choice(self.places)
        old = self.b.atomic(self.rng.choice(("add", "sub", "min", "max")), place, self.index(place), self.value(place.dtype))
        if self.rng.random() < 0.3:
            self.keep(old)

    def effect(self) -> None:
        if self.rng.random() < 0.3:
            self.b.put(Print(("p ", self.value(i32))))
        elif self.rng.random() < 0.1:
            self.b.put(Assert(self.value(u1), "no"))

    def block(self, block: list, statements: int) -> None:
        with self.b.into(block):
            self.values.append([])
            self.locals.append([])
            for _ in range(statements):
                self.statement()
            self.values.pop()
            self.locals.pop()

    def branch(self) -> None:
        with self.b.if_(self.value(u1)) as s:
            self.block(s.then, self.rng.randrange(0, 5))
            if self.exits and self.rng.random() < 0.3:
                kinds = ["return", "continue", "break"] if self.loops else ["return", "continue"]
                self.b.put(Exit(self.rng.choice(kinds)))
        if self.rng.random() < 0.5:
            self.block(s.orelse, self.rng.randrange(0, 4))
            if self.exits and self.rng.random() < 0.2:
                s.orelse.append(Exit("break" if self.loops else "return"))

    def loop(self) -> None:
        end = self.b.op("mod", self.value(i32), const_i32(4)) if self.rng.random() < 0.5 else const_i32(self.rng.randrange(4))
        with self.b.loop(const_i32(0), end) as lp:
            self._body(lp)

    def _body(self, lp) -> None:
        self.loops += 1
        self.values.append([lp.index])
        self.block(lp.body, self.rng.randrange(1, 6))
        self.values.pop()
        self.loops -= 1

    def endless(self) -> None:
        if not self.exits:
            return self.loop()
        counter = self.b.local(const_i32(0), "c")
        with self.b.loop(const_i32(0), None) as lp:
            now = self.b.load(counter)
            with self.b.if_(self.b.op("ge", now, const_i32(self.rng.randrange(4)))):
                self.b.put(Exit("break"))
            self.b.store(counter, self.b.op("add", now, const_i32(1)))
            self._body(lp)


def generate(seed: int, size: int = 30, exits: bool = False) -> Program:
    """The random program of a seed; about ``size`` statements."""
    return _Generator(seed, size, exits).program(seed)


def programs(exits: bool = False, most: int = 60) -> st.SearchStrategy[Program]:
    """Programs for hypothesis; a failing one shrinks by its size."""
    return st.builds(generate, st.integers(0, 2**32), st.integers(1, most), st.just(exits))
