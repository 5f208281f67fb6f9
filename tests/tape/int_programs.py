"""Random kernels whose loop bounds come from counters, branches, fields and enclosing indices; and the largest counts that a run finds."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import qdrun as qd
from qdrun.compiler.compile import pipeline
from qdrun.compiler.frontend.signature import LowerOptions
from qdrun.compiler.passes.reverse.gradient import reverse_kernel
from qdrun.compiler.tape.bounds.bounds import max_trips

ROWS = 5
HEAD = "def make(qd, x, y, lengths, start, n):\n    @qd.kernel\n    def k():\n"
PLAIN = "def run(x, y, lengths, start, n, seen):\n"


@dataclass
class Writer:
    """Writes a kernel and, line by line, the plain Python that counts the iterations of each loop."""

    rng: random.Random
    breaks: bool
    kernel: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["i"])
    loops: int = 0
    left: int = 14

    def line(self, depth: int, text: str, plain: str | None = None) -> None:
        self.kernel.append("    " * (depth + 2) + text)
        self.plain.append("    " * depth + (plain or text))

    def value(self, depth: int = 2) -> str:
        pick = self.rng.randrange(9 if depth else 3)
        if pick < 2:
            return self.rng.choice(self.names)
        if pick < 3:
            return self.rng.choice(["n[None]", "n[None]", str(self.rng.randrange(-2, 6))])
        a, b = self.value(depth - 1), self.value(depth - 1)
        if pick == 3:
            return f"lengths[({a}) % {ROWS}]"
        if pick == 4:
            return f"start[({a}) % {ROWS} + 1] - start[({a}) % {ROWS}]"
        if pick == 5:
            return f"{self.rng.choice(['min', 'max'])}({a}, {b})"
        if pick == 6:
            return f"(({a}) {self.rng.choice(['//', '%'])} {self.rng.randrange(1, 5)})"
        return f"({a} {self.rng.choice(['+', '-'])} {b})"

    def cond(self) -> str:
        return f"{self.value(1)} {self.rng.choice(['<', '<=', '==', '!=', '>'])} {self.value(1)}"

    def block(self, depth: int, loop: bool) -> None:
        known = list(self.names)
        for _ in range(self.rng.randrange(1, 4)):
            self.left -= 1
            pick = self.rng.randrange(10)
            if pick < 3 or self.left < 0:
                self.assign(depth)
            elif pick < 5:
                self.line(depth, f"if {self.cond()}:")
                self.block(depth + 1, loop)
                if self.rng.random() < 0.5:
                    self.line(depth, "else:")
                    self.block(depth + 1, loop)
            elif pick == 5 and loop and self.breaks:
                self.line(depth, f"if {self.cond()}:")
                self.line(depth + 1, self.rng.choice(["break", "continue"]))
            elif depth < 6:
                self.loop(depth)
        self.assign(depth)
        self.names = known

    def assign(self, depth: int) -> None:
        v = self.rng.choice(["c", "d"])
        by = self.rng.choice(["1", "2", "-1", "n[None]", "i"])
        options = [f"{v} = {v} + {by}", f"{v} += {by}", f"{v} = {self.value(1)}", f"{v} = {v} // 2"]
        self.line(depth, self.rng.choice(options))

    def loop(self, depth: int) -> None:
        number, index = self.loops, f"j{self.loops}"
        self.loops += 1
        end = f"({self.value()}) % {self.rng.randrange(2, 6)}" if self.rng.random() < 0.5 else f"min({self.value()}, 4)"
        begin = self.rng.choice(["0", "0", "1", f"({self.value(1)}) % 3"])
        step = self.rng.choice(["", "", ", 2"])
        self.line(depth, f"for {index} in range({begin}, {end}{step}):")
        self.plain.insert(-1, "    " * depth + f"seen[{number}] = max(seen.get({number}, 0), len(range({begin}, {end}{step})))")
        self.names.append(index)
        self.line(depth + 1, "v = qd.sin(v) + 0.1", "pass")
        self.block(depth + 1, True)
        self.names.remove(index)


def compare(seed: int, breaks: bool) -> list[tuple[int, int | None, str]]:
    """Of each loop that keeps something: the largest count of a run, the planned one, and where that comes from."""
    w = Writer(random.Random(seed), breaks)
    w.line(1, "for i in x:", f"for i in range({ROWS}):")
    w.line(2, "v = x[i]", "pass")
    w.line(2, "c = 0")
    w.line(2, "d = i")
    w.names += ["c", "d"]
    w.block(2, False)
    w.line(2, "y[i] = v", "pass")
    source = HEAD + "\n".join(w.kernel) + "\n    return k\n"
    rng = random.Random(seed + 1)
    with qd.init(default_fp=qd.f64, offline_cache=False):
        x, y = (qd.field(qd.f64, shape=ROWS, needs_grad=True) for _ in range(2))
        lengths, start, n = qd.field(qd.i32, shape=ROWS), qd.field(qd.i32, shape=ROWS + 1), qd.field(qd.i32, shape=())
        total = 0
        for k in range(ROWS):
            lengths[k] = rng.randrange(-1, 6)
            total += rng.randrange(0, 4)
            start[k + 1] = total
        n[None] = rng.randrange(0, 5)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.py"
            path.write_text(source)
            names: dict = {}
            exec(compile(source, str(path), "exec"), names)
            kernel = names["make"](qd, x, y, lengths, start, n)
            qd.current_program().materialize()
            primal = pipeline.simplified(pipeline.lowered(kernel.source, {}, LowerOptions()))
        seen: dict[int, int] = {}
        plain: dict = {}
        exec(PLAIN + "\n".join(w.plain), plain)
        plain["run"](x, y, lengths, start, n, seen)
        lines = {k + 1: text for k, text in enumerate(source.splitlines())}
        out = []
        for task in reverse_kernel(primal, unroll=0).sizing:  # each loop once
            for s in task.region.all_loops():
                text = lines[s.range.loc.line].strip()
                number = int(text.split()[1].removeprefix("j"))
                trips = max_trips(s.range, s.nest, Host())
                out.append((seen.get(number, 0), trips.count, f"{trips.source}: {text}\n{source}"))
        return out


class Host:
    """Fields only."""

    def scalar(self, arg):
        raise AssertionError(arg)

    def extent(self, arg, axis):
        raise AssertionError(arg)

    def array(self, place):
        import numpy as np

        return np.ndarray(place.shape, place.dtype.numpy, place.buffer.owner.view.data, place.offset, place.strides)
