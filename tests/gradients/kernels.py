"""Random kernels as Python source, drawn by hypothesis so that a failing one shrinks.

Loops to depth 3 with literal, argument, field, falling and vector-dependent bounds, while with break, continue, ifs, local
vectors and matrices, atomics on a field, an ndarray argument with a gradient, an inlined function.
"""

from __future__ import annotations

import hashlib
import linecache
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

import qdrun as qd

OPS = ("+", "-", "*")
UNARY = (
    "qd.sin({})",
    "qd.cos({})",
    "qd.tanh({})",
    "qd.exp(qd.sin({}))",
    "qd.sqrt({0} * {0} + 1.0)",
    "qd.abs({}) + 0.1",
    "-({})",
)
TWO = ("qd.min({}, {})", "qd.max({}, {})", "({}) / (qd.sin({}) + 2.5)", "qd.atan2({}, 2.0 + qd.cos({}))", "soft({}, {})")


def compile_source(source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run source so that ``inspect`` finds it. Equal sources have one file name, so their kernels are compiled once."""
    filename = f"<random kernel {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    space = {"qd": qd, **names}
    exec(compile(source, filename, "exec"), space)
    return space


@dataclass
class Writer:
    """Writes one kernel body. ``scalars``, ``vectors``, ``ints`` are the names in scope."""

    draw: Any
    lines: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=lambda: ["a", "b"])
    vectors: list[str] = field(default_factory=lambda: ["w"])
    ints: list[str] = field(default_factory=lambda: ["i"])
    count: int = 0

    def pick(self, options):
        return self.draw(st.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # ---- expressions
    def int_(self, depth: int = 0) -> str:
        kind = self.number(0, 3 if depth < 2 else 1)
        if kind == 0:
            return self.pick(self.ints)
        if kind == 1:
            return str(self.number(0, 5))
        if kind == 2:
            return f"cnt[({self.int_(depth + 1)}) % 6]"
        return f"({self.int_(depth + 1)} {self.pick(OPS)} {self.int_(depth + 1)})"

    def scalar(self, depth: int = 0) -> str:
        kind = self.number(0, 8 if depth < 3 else 2)
        if kind == 0:
            return self.pick(self.scalars)
        if kind == 1:
            return self.pick((f"x[({self.int_(1)}) % 8]", f"c[({self.int_(1)}) % 5]", f"{self.number(-9, 9) / 7:.3f}"))
        if kind == 2:
            return f"{self.pick(self.vectors)}[{self.number(0, 1)}]"
        if kind == 3:
            return self.pick(UNARY).format(self.scalar(depth + 1))
        if kind == 4:
            return self.pick(TWO).format(self.scalar(depth + 1), self.scalar(depth + 1))
        if kind == 5:
            return f"({self.scalar(depth + 1)} if {self.cond()} else {self.scalar(depth + 1)})"
        if kind == 6:
            return self.pick(("{}.dot({})", "({} + 2.0 * {}).norm_sqr()")).format(
                self.pick(self.vectors), self.pick(self.vectors)
            )
        return f"({self.scalar(depth + 1)} {self.pick(OPS)} {self.scalar(depth + 1)})"

    def vector(self, depth: int = 0) -> str:
        kind = self.number(0, 4 if depth < 2 else 1)
        if kind == 0:
            return self.pick(self.vectors)
        if kind == 1:
            return f"v[({self.int_(1)}) % 4]"
        if kind == 2:
            return f"qd.Vector([{self.scalar(2)}, {self.scalar(2)}])"
        if kind == 3:
            return f"(qd.Matrix([[0.6, {self.scalar(3)}], [-0.3, 0.5]]) @ {self.vector(depth + 1)})"
        return f"({self.vector(depth + 1)} {self.pick(('+', '-'))} 0.5 * {self.vector(depth + 1)})"

    def cond(self) -> str:
        if self.number(0, 3) == 0:
            return f"{self.pick(self.scalars)} < {self.number(-9, 9) / 8}"
        text = f"({self.int_()}) % {self.number(2, 4)} < {self.number(1, 2)}"
        return f"{text} {self.pick(('and', 'or'))} {self.pick(self.scalars)} > 0.05" if self.number(0, 4) == 0 else text

    # ---- statements
    def block(self, depth: int, loops: int, size: int) -> None:
        before = len(self.scalars), len(self.vectors), len(self.ints)
        for _ in range(size):
            self.stmt(depth, loops)
        for names, n in zip((self.scalars, self.vectors, self.ints), before):
            del names[n:]

    def stmt(self, depth: int, loops: int) -> None:
        kind = self.number(0, 9)
        if kind in (0, 1) and loops < 3:
            self.loop(depth, loops)
        elif kind == 2:
            self.put(depth, f"if {self.cond()}:")
            self.block(depth + 1, loops, self.number(1, 2))
            if self.number(0, 1):
                self.put(depth, "else:")
                self.block(depth + 1, loops, 1)
        elif kind == 3 and loops:
            self.put(depth, f"if {self.cond()}:")
            self.put(depth + 1, self.pick(("break", "continue")))
        elif kind == 4:
            name = self.fresh("s")
            self.put(depth, f"{name} = {self.scalar()}")
            self.scalars.append(name)
        elif kind == 5:
            self.put(depth, f"{self.pick(self.vectors)} = 0.4 * {self.vector()}")
        elif kind == 6:
            self.put(depth, f"y[({self.int_()}) % 3] += {self.scalar()}")
        elif kind == 7:
            name = self.pick(self.scalars)
            self.put(depth, f"{name} = 0.5 * {name} + {self.scalar(1)}")
        elif kind == 8:
            self.put(depth, f"{self.pick(self.vectors)}[{self.number(0, 1)}] += qd.sin({self.scalar(1)})")
        else:
            self.put(depth, f"{self.pick(self.scalars)} = qd.sin({self.scalar()})")

    def loop(self, depth: int, loops: int) -> None:
        known = len(self.ints)
        if self.number(0, 4) == 0:
            name = self.fresh("left")
            self.put(depth, f"{name} = {self.number(1, 4)}")
            self.put(depth, f"while {name} > 0:")
            self.put(depth + 1, f"{name} -= 1")
        else:
            name = self.fresh("j")
            bounds = (
                str(self.number(0, 4)),
                "n",
                f"cnt[({self.pick(self.ints)}) % 6]",
                f"n - ({self.pick(self.ints)}) % 4",
                f"({self.pick(self.ints)}) % 3, n",
                f"qd.min(n, {self.number(1, 4)})",
                f"({self.int_()}) // 2 % 4",
                "n // 2 + 1",
            )
            self.put(depth, f"for {name} in range({self.pick(bounds)}):")
            self.ints.append(name)
        self.block(depth + 1, loops + 1, self.number(1, 3))
        del self.ints[known:]


HEAD = """
@qd.func
def soft(p, q):
    r = p
    if q > 0.2:
        r = p * q
    return qd.tanh(r)

@qd.kernel
def k(n: qd.i32, c: qd.types.ndarray(dtype=qd.f64, ndim=1)):
    for i in range(ROWS):
        a = x[i % 8]
        b = c[i % 5] + 0.2
        w = v[i % 4]
"""
TAIL = """
        y[i % 3] += a + 0.7 * b + w[0] - 0.3 * w[1]
"""


@st.composite
def kernel_sources(draw: Any, rows: int = 3) -> str:
    """Source of a kernel ``k(n, c)`` over fields x (8), v (4 x 2), y (3) and cnt (6), with ``rows`` parallel iterations."""
    w = Writer(draw)
    for _ in range(w.number(2, 6)):
        w.stmt(2, 0)
    return HEAD.replace("ROWS", str(rows)) + "\n".join(w.lines) + TAIL
