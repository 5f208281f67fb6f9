"""Random kernels for plans: nests of loops with every kind of bound, gates around them, loops that only running can measure.

Every iteration of the parallel loop reads and writes its own elements of what has a gradient, so the gradient has the same bits whatever
the threads, and one forward launch moves all iterations at once for a difference.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from kernels import Writer
from program_case import compile_once

import qdrun as qd

ROWS = 256
UNARY = ("qd.sin({})", "qd.cos({})", "qd.tanh({})", "qd.exp(qd.sin({}))", "qd.sqrt({0} * {0} + 1.0)", "-({})")

# Bounds that can be known before the launch; {j} is an enclosing index, {c} a small literal.
KNOWN = (
    "{c}",
    "n",
    "cnt[i]",
    "n - i % 4",
    "start[i], start[i + 1]",
    "qd.min(n, {c})",
    "qd.max(cnt[{j} % 256], m)",
    "n // 2 + 1",
    "(n * 3 + i) % 5",
    "tab[cnt[i] % 8]",
    "cnt[order[i]]",
    "lens[i]",
    "{j} % 4",
    "{j} % 3, n",
    "n, 0, -1",
    "n, -2, -2",
    "0, n, 3",
    "m if i % 2 == 0 else cnt[i]",
    "wide[{j} % 4, i % 3]",
    "tab[{j} % 8] - {c}",
    "n * m % 7",
    "(cnt[i] + n) // 2",
    "qd.cast(long[i % 4], qd.i32)",
)
UNKNOWN = ("qd.cast(qd.abs(a) * 3.0, qd.i32)", "hops", "qd.cast(p[i % 16] * 4.0, qd.i32)")
GATES = (
    "g[i] > 0.2",
    "g[i] <= 0.5",
    "h[i] < 0.4",
    "cnt[i] >= 2",
    "g[i] > 0.1 and cnt[i] < 4",
    "g[i] > h[i]",
    "not (g[i] > 0.6)",
    "g[order[i]] > 0.3",
    "g[i] > s",
    "cnt[i] == 1 or h[i] > 0.9",
    "i % 3 == 0",
    "lens[i] > n",
    "g[i] > 2.0",
)


class PlanWriter(Writer):
    """Writes the body of one parallel iteration over its own elements x[i], w[i]; p, g and h have no gradient. Draws from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(None)
        self.random = random.Random(seed)
        self.vectors = ["v"]

    def pick(self, options: Any) -> Any:
        return self.random.choice(list(options))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def int_(self, depth: int = 0) -> str:
        return "hops" if self.number(0, 7) == 0 else super().int_(depth)

    def scalar(self, depth: int = 0) -> str:
        kind = self.number(0, 6 if depth < 3 else 2)
        if kind == 0:
            return self.pick(self.scalars)
        if kind == 1:
            constants = (
                f"p[({self.int_(1)}) % 16]",
                "qd.cast(low, qd.f64)",
                "0.2 * (far % 5)",
                f"{self.number(-9, 9) / 7:.3f}",
            )
            return self.pick(("x[i]", "w[i]", *constants))
        if kind == 2:
            return f"{self.pick(self.vectors)}[{self.number(0, 1)}]"
        if kind == 3:
            return self.pick(UNARY).format(self.scalar(depth + 1))
        if kind == 4:
            return f"({self.scalar(depth + 1)} if {self.cond()} else {self.scalar(depth + 1)})"
        return f"({self.scalar(depth + 1)} {self.pick('+-*')} {self.scalar(depth + 1)})"

    def vector(self, depth: int = 0) -> str:
        kind = self.number(0, 2 if depth < 2 else 1)
        if kind == 0:
            return self.pick(self.vectors)
        if kind == 1:
            return f"qd.Vector([{self.scalar(2)}, {self.scalar(2)}])"
        return f"({self.vector(depth + 1)} {self.pick('+-')} 0.5 * {self.vector(depth + 1)})"

    def stmt(self, depth: int, loops: int) -> None:
        kind = self.number(0, 9)
        if kind <= 2 and loops < 3:
            self.loop(depth, loops)
        elif kind == 3:
            self.put(depth, f"if {self.cond()}:")
            self.block(depth + 1, loops, self.number(1, 2))
            if self.number(0, 1):
                self.put(depth, "else:")
                self.block(depth + 1, loops, self.number(1, 2))
        elif kind == 4 and loops:
            self.put(depth, f"if {self.cond()}:")
            self.put(depth + 1, self.pick(("break", "continue")))
        elif kind == 5:
            self.put(depth, f"{self.pick(self.vectors)}[{self.number(0, 1)}] += qd.sin({self.scalar(1)})")
        elif kind == 6:
            self.put(depth, f"{self.pick(self.vectors)} = 0.4 * {self.vector()}")
        elif kind == 7:
            self.put(depth, self.other())
        elif kind == 8:
            name = self.pick(self.scalars)
            self.put(depth, f"{name} = 0.5 * {name} + {self.scalar(1)}")
        else:
            self.put(depth, f"{self.pick(self.scalars)} = qd.sin({self.scalar()})")

    def loop(self, depth: int, loops: int) -> None:
        known = len(self.ints)
        kind = self.number(0, 9)
        if kind == 0:
            name = self.fresh("left")
            self.put(depth, f"{name} = {self.pick(('n', 'cnt[i]', '3', 'n + 2'))}")
            self.put(depth, f"while {name} > 0:")
            self.put(depth + 1, f"{name} -= {self.number(1, 2)}")
        else:
            name = self.fresh("j")
            bound = self.pick(UNKNOWN if kind == 1 else KNOWN).format(j=self.pick(self.ints), c=self.number(0, 6))
            self.put(depth, f"for {name} in range({bound}):")
            self.ints.append(name)
        name = self.pick(self.scalars)
        step = self.pick(UNARY[:3]).format(f"{name} + {self.scalar(2)}") if self.number(0, 4) else self.scalar(1)
        self.put(depth + 1, f"{name} = {step} + 0.1 * x[i]")
        if self.number(0, 2) == 0:
            self.put(depth + 1, self.other())
            self.put(depth + 1, f"{name} = {name} + qd.cast(low, qd.f64) * qd.sin({name} * (hops + far % 3))")
        self.block(depth + 1, loops + 1, self.number(1, 2))
        del self.ints[known:]

    def other(self) -> str:
        """A change of a variable of another type, through which no gradient flows: f32 has no differences to compare with."""
        low = f"low = qd.sin(low + qd.cast(p[({self.int_()}) % 16], qd.f32))"
        return self.pick((low, f"far = far * 3 + ({self.int_()})", f"hops = ({self.int_()} + hops) % 5"))


HEAD = "@qd.kernel\ndef k(n: qd.i32, m: qd.i32, s: qd.f64, lens: qd.types.ndarray(dtype=qd.i32, ndim=1)):\n"
LOOPS = (
    ("for i in range(256):",),
    ("for i in x:",),
    ("for i in range(n * 20):",),
    ("for h1, h2 in qd.ndrange(16, 16):", "    i = h1 * 16 + h2"),
    ("qd.loop_config(serialize=True)", "for i in range(256):"),
)
FIRST = (
    "a = x[i]",
    "b = w[i] + 0.2",
    "v = qd.Vector([a * b, 0.3])",
    "hops = 2",
    "low = qd.cast(p[i % 16], qd.f32)",
    "far = qd.cast(i, qd.i64)",
)
LAST = "y[i] += a + 0.7 * b + v[0] - 0.3 * v[1]"


def plan_kernel(seed: int) -> str:
    """Source of a kernel ``k(n, m, s, lens)`` over the fields of ``PlanCase``: one top-level loop, or two."""
    writer = PlanWriter(seed)
    for _ in range(2 if writer.number(0, 5) == 0 else 1):
        _task(writer)
    return HEAD + "\n".join(writer.lines) + "\n"


def _task(writer: PlanWriter) -> None:
    for line in LOOPS[0] if writer.number(0, 1) else writer.pick(LOOPS[1:]):
        writer.put(1, line)
    depth = 2
    for _ in range(writer.number(0, 2)):
        writer.put(depth, f"if {writer.pick(GATES)}:")
        if writer.number(0, 3) == 0:
            writer.put(depth + 1, "y[i] += 0.25 * x[i]")
            writer.put(depth, "else:")
        depth += 1
    for line in FIRST:
        writer.put(depth, line)
    late = writer.number(0, 3) == 0
    if late:
        writer.put(depth, f"if {writer.pick((*GATES, 'a > 0.0'))}:")
    for _ in range(writer.number(1, 4)):
        writer.stmt(depth + late, 0)
    if late:
        writer.put(depth + 1, "a = a * 1.5")
    writer.put(depth, LAST)


class PlanCase:
    """One random kernel in a program of its own, with inputs drawn from ``seed``."""

    def __init__(self, source: str, seed: int, **options: Any) -> None:
        options = {"arch": qd.cpu, "cpu_max_num_threads": 1, "cpu_lanes": 1, **options}
        self.program = qd.init(default_fp=qd.f64, offline_cache=False, **options)
        r = self.random = np.random.default_rng(seed)
        self.x, self.w, self.y = (qd.field(qd.f64, shape=ROWS, needs_grad=True) for _ in range(3))
        for t in (self.x, self.w):
            t.from_numpy(r.uniform(-1.2, 1.2, ROWS))
        arrays = _draw(r)
        self.data: dict[str, Any] = {n: qd.field(_DTYPES[a.dtype.type], shape=a.shape) for n, a in arrays.items()}
        self.lens = qd.ndarray(qd.i32, ROWS)
        self.fill(arrays, r.integers(0, 6, ROWS).astype(np.int32))
        self.args = (int(r.integers(0, 9)), int(r.integers(0, 6)), float(r.uniform(0, 1)), self.lens)
        self.weights = r.uniform(0.5, 1.5, ROWS)
        self.k = self.another(source)

    def another(self, source: str) -> Any:
        """A kernel over the same fields."""
        return compile_once(source, {"x": self.x, "w": self.w, "y": self.y, **self.data})["k"]

    def fill(self, arrays: dict[str, np.ndarray], lens: np.ndarray) -> None:
        """Set everything that bounds and gates are made of."""
        for name, values in arrays.items():
            self.data[name].from_numpy(values)
        self.lens.from_numpy(lens)

    def redraw(self, seed: int) -> None:
        """Change everything that bounds and gates are made of, in one of several ways."""
        r = np.random.default_rng(seed)
        way = seed % 3
        if way == 0:
            self.fill(_draw(r), r.integers(0, 9, ROWS).astype(np.int32))
        elif way == 1:
            for name in ("cnt", "g"):
                for i in r.integers(0, ROWS, 5).tolist():
                    self.data[name][i] = 11 if name == "cnt" else float(r.uniform(0, 1))
            self.lens[int(r.integers(0, ROWS))] = 13
        else:
            compile_once(CHANGE, {**self.data})["change"](self.lens)

    def values(self) -> np.ndarray:
        """What each iteration wrote, weighted."""
        self.y.fill(0.0)
        self.k(*self.args)
        return self.y.to_numpy() * self.weights

    def seed(self) -> None:
        """Gradients before a reverse launch."""
        for t in (self.x, self.w):
            t.grad.fill(0.0)
        self.y.grad.from_numpy(self.weights)

    def gradient(self, launch: Callable[[], object] | None = None) -> np.ndarray:
        """From reverse mode; ``launch`` in place of ``k.grad(*args)``."""
        self.seed()
        (launch or (lambda: self.k.grad(*self.args)))()
        return np.concatenate([t.grad.to_numpy() for t in (self.x, self.w)])

    def differences(self, h: float) -> np.ndarray:
        """Central differences: an iteration depends on its own elements alone, so all move at once."""
        out = []
        for t in (self.x, self.w):
            at = t.to_numpy().copy()
            ends = []
            for step in (h, -h):
                t.from_numpy(at + step)
                ends.append(self.values())
            t.from_numpy(at)
            out.append((ends[0] - ends[1]) / (2 * h))
        return np.concatenate(out)

    def close(self) -> None:
        self.program.close()


CHANGE = """
@qd.kernel
def change(lens: qd.types.ndarray(dtype=qd.i32, ndim=1)):
    for i in cnt:
        cnt[i] = (cnt[i] * 5 + i) % 8
        g[i] = 1.0 - g[i]
        lens[i] = 7 - lens[i]
"""


def _draw(r: np.random.Generator) -> dict[str, np.ndarray]:
    reals = {"p": r.uniform(-1, 1, 16), "g": r.uniform(0, 1, ROWS), "h": r.uniform(0, 1, ROWS).astype(np.float32)}
    counts = {
        "cnt": r.integers(0, 6, ROWS),
        "start": np.concatenate([[0], np.cumsum(r.integers(0, 6, ROWS))]),
        "tab": r.integers(0, 7, 8),
        "order": r.permutation(ROWS),
        "wide": r.integers(0, 5, (4, 3)),
    }
    return {**reals, **{name: values.astype(np.int32) for name, values in counts.items()}, "long": r.integers(0, 6, 4)}


_DTYPES = {np.float64: qd.f64, np.float32: qd.f32, np.int32: qd.i32, np.int64: qd.i64}
