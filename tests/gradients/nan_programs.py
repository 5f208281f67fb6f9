"""Random kernels in which numbers go wrong where they are told to, and an oracle that knows where that is first.

A program is a tree of lines, loops and conditions inside one parallel loop. Each line reads an element of an array of its own, by the
indices around it; a *plant* in that array is what makes the line fail, in the kernel or in its gradient alone. The oracle walks the same
tree in Python, writes down every line that it passes with the value it read, and takes the derivatives of the lines from closed forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

N = 5
"""Iterations of the parallel loop."""

LINES = {
    "sqrt": "v = 0.5 * v + qd.sqrt({p})",
    "log": "v = 0.5 * v + 0.1 * qd.log({p})",
    "div": "v = 0.5 * v + 0.1 / {p}",
    "exp": "v = 0.5 * v + 0.01 * qd.exp({p})",
    "pow": "v = 0.5 * v + {p} ** 0.3",
    "asin": "v = 0.5 * v + qd.asin(0.5 * {p})",
    "mul": "v = 0.5 * v + {p} * {p} * 1e-3",
    "norm": "v = 0.5 * v + qd.Vector([{p}, 2.0 * {p}]).norm()",
    "masked": "v = 0.5 * v + qd.select({p} > 0.5, qd.log({p}), 0.1)",
    "guarded": "v += qd.sqrt({p}) if {p} > 0.5 else 0.1",
    "func": "v = root(v, {p})",
}
PLANTS = {
    "sqrt": (-1.0, 0.0), "log": (0.0, -2.0), "div": (0.0,), "exp": (1000.0,), "pow": (-1.0, 0.0), "asin": (3.0, 2.0),
    "mul": (1e200,), "norm": (0.0, 1e200), "masked": (0.0, -1.0), "guarded": (0.0, -1.0), "func": (-1.0, 0.0),
}  # fmt: skip
HEAD = """
import qdrun as qd

@qd.func
def root(v, p):
    return 0.5 * v + qd.sqrt(p)

@qd.kernel
def k(n: qd.i32):
    for i in range({N}):
        v = x[i]
"""


def value_of(kind: str, p: float) -> float:
    """What the line adds to half of ``v``, computed by numpy."""
    with np.errstate(all="ignore"):
        q = np.float64(p)
        if kind in ("masked", "guarded"):
            return float({"masked": np.log, "guarded": np.sqrt}[kind](q)) if p > 0.5 else 0.1
        return float({
            "sqrt": lambda: np.sqrt(q), "func": lambda: np.sqrt(q), "log": lambda: 0.1 * np.log(q), "div": lambda: 0.1 / q,
            "exp": lambda: 0.01 * np.exp(q), "pow": lambda: q**0.3, "asin": lambda: np.arcsin(0.5 * q),
            "mul": lambda: q * q * 1e-3, "norm": lambda: np.sqrt(q * q + (2 * q) * (2 * q)),
        }[kind]())  # fmt: skip


def slope_of(kind: str, p: float) -> float:
    """The derivative of that by ``p``; of a norm it is 0 at 0."""
    with np.errstate(all="ignore"):
        q = np.float64(p)
        if kind in ("masked", "guarded"):
            return float({"masked": 1 / q, "guarded": 0.5 / np.sqrt(q)}[kind]) if p > 0.5 else 0.0
        return float({
            "sqrt": lambda: 0.5 / np.sqrt(q), "func": lambda: 0.5 / np.sqrt(q), "log": lambda: 0.1 / q, "div": lambda: -0.1 / (q * q),
            "exp": lambda: 0.01 * np.exp(q), "pow": lambda: 0.3 * q**-0.7, "asin": lambda: 0.5 / np.sqrt(1 - 0.25 * q * q),
            "mul": lambda: 2e-3 * q, "norm": lambda: 5 * q / np.sqrt(5 * q * q) if q else 0.0,
        }[kind]())  # fmt: skip


@dataclass(eq=False)
class Line:
    kind: str
    number: int = 0  # of its array
    around: tuple[tuple[str, int], ...] = ()  # the loops around with their counts
    row: int = 0  # of its text, from 1


@dataclass(eq=False)
class Loop:
    how: str  # "literal", "argument" or "while"
    count: int
    body: list[Any]


@dataclass(eq=False)
class If:
    least: int  # of i
    body: list[Any]


@dataclass(eq=False)
class Program:
    body: list[Any]
    text: str
    lines: list[Line]

    def plants(self, draw: Any) -> dict[int, np.ndarray]:
        """Arrays of the lines, with a few elements in which something goes wrong."""
        arrays = {s.number: np.full((N, *(n for _, n in s.around)), 0.75) for s in self.lines}
        for _ in range(draw(st.integers(1, 3))):
            line = draw(st.sampled_from(self.lines))
            where = tuple(draw(st.integers(0, n - 1)) for n in arrays[line.number].shape)
            arrays[line.number][where] = draw(st.sampled_from(PLANTS[line.kind]))
        return arrays

    def trace(self, arrays: dict[int, np.ndarray], i: int) -> list[tuple[Line, tuple[int, ...], float]]:
        """The lines that iteration ``i`` passes, with the indices and what is read."""
        out: list[tuple[Line, tuple[int, ...], float]] = []

        def walk(body: list[Any], index: tuple[int, ...]) -> None:
            for s in body:
                if isinstance(s, Line):
                    out.append((s, index, float(arrays[s.number][index])))
                elif isinstance(s, Loop):
                    for t in range(s.count):
                        walk(s.body, (*index, t))
                elif i >= s.least:
                    walk(s.body, index)

        walk(self.body, (i,))
        return out

    def first_fault(self, arrays: dict[int, np.ndarray]) -> tuple[Line, tuple[int, ...]] | None:
        """The line and the indices of the first value that is not finite."""
        for i in range(N):
            for line, index, p in self.trace(arrays, i):
                if not math.isfinite(value_of(line.kind, p)):
                    return line, index
        return None

    def first_fault_of_gradient(self, arrays: dict[int, np.ndarray]) -> tuple[Line, tuple[int, ...]] | None:
        """The same of the adjoints: each iteration goes through its lines backwards."""
        for i in range(N):
            for line, index, p in reversed(self.trace(arrays, i)):
                if not math.isfinite(slope_of(line.kind, p)):
                    return line, index
        return None


def _write(body: list[Any], lines: list[Line], text: list[str], around: tuple[tuple[str, int], ...], indent: str) -> None:
    for s in body:
        if isinstance(s, Line):
            s.number, s.around = len(lines), around
            lines.append(s)
            text.append(indent + LINES[s.kind].format(p=f"p{s.number}[{', '.join(['i', *(n for n, _ in around)])}]"))
            s.row = len(text)
        elif isinstance(s, If):
            text.append(f"{indent}if i >= {s.least}:")
            _write(s.body, lines, text, around, indent + "    ")
        else:
            name = f"{'w' if s.how == 'while' else 't'}{len(around)}"  # the index of a loop is not assigned after it
            inside = indent + "    "
            if s.how == "while":
                text.append(f"{indent}{name} = 0")
                text.append(f"{indent}while {name} < n + {s.count - 2}:")
            else:
                bound = str(s.count) if s.how == "literal" else f"n + {s.count - 2}"
                text.append(f"{indent}for {name} in range({bound}):")
            _write(s.body, lines, text, (*around, (name, s.count)), inside)
            if s.how == "while":
                text.append(f"{inside}{name} += 1")


def write(tree: list[Any]) -> Program:
    """The program of a tree, with its text; each line gets an array of its own."""
    text, lines = HEAD.format(N=N).splitlines(), list[Line]()
    _write(tree, lines, text, (), "        ")
    text.append("        y[i] = v")
    return Program(tree, "\n".join(text) + "\n", lines)


@st.composite
def programs(draw: Any) -> Program:
    """A program; ``n`` is to be 2."""

    def body(depth: int) -> list[Any]:
        out: list[Any] = []
        for _ in range(draw(st.integers(1, 3))):
            what = draw(st.integers(0, 5)) if depth < 2 else 0
            if what <= 2:
                out.append(Line(draw(st.sampled_from(sorted(LINES)))))
            elif what <= 4:
                how = draw(st.sampled_from(("literal", "argument", "while")))
                out.append(Loop(how, draw(st.integers(2, 20 if depth == 0 else 4)), body(depth + 1)))
            else:
                out.append(If(draw(st.integers(1, N - 1)), body(depth + 1)))
        return out

    return write(body(0))
