"""Random kernels that do nasty things to memory: every kind of store and atomic, read and written at shared and own elements, in order and
in parallel. A gradient is right, or refused.
"""

from __future__ import annotations

import random

HEAD = "@qd.kernel\ndef k(n: qd.i32):\n"


class Writer:
    """Writes one kernel over x, y (4), s (0-D), v (4 vectors of 2), grid (4 x 4), plain (4, no gradient) and integers c (4)."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0
        self.variables: list[str] = []
        self.ints: list[str] = []

    def source(self) -> str:
        """The kernel."""
        for _ in range(self.r.randint(1, 2)):
            if self.r.random() < 0.25:
                self.put(1, "qd.loop_config(serialize=True)")
            if self.r.random() < 0.25:
                self.put(1, "for i, k in qd.ndrange(4, 2):")
                self.ints = ["i", "k"]
            else:
                self.put(1, f"for i in range({self.r.choice(('4', '3', 'n'))}):")
                self.ints = ["i"]
            self.block(2, 0, self.r.randint(1, 3))
        return HEAD + "\n".join(self.lines) + "\n"

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    # ---- expressions
    def index(self) -> str:
        kind = self.r.random()
        if kind < 0.75:
            return self.r.choice(self.ints)
        if kind < 0.85:
            return f"c[{self.r.choice(self.ints)}]"
        return f"({self.r.choice(self.ints)} + 1) % 4" if kind < 0.9 else str(self.r.randrange(4))

    def place(self) -> str:
        kind = self.r.random()
        if kind < 0.45:
            return f"{'y' if kind < 0.3 else 'x'}[{self.index()}]"
        if kind < 0.6:
            return "s[None]"
        return f"v[{self.index()}][{self.r.randrange(2)}]" if kind < 0.8 else f"grid[{self.index()}, {self.index()}]"

    def value(self, depth: int = 0) -> str:
        kind = self.r.random()
        if depth > 2 or kind < 0.35:
            return self.place()
        if kind < 0.45 and self.variables:
            return self.r.choice(self.variables)
        if kind < 0.6:
            return self.r.choice((f"{self.r.randint(-9, 9) / 7:.3f}", f"plain[{self.index()}]"))
        two = self.value(depth + 1), self.value(depth + 1)
        if kind < 0.75:
            return f"({two[0]} {self.r.choice('+-*')} {two[1]})"
        if kind < 0.88:
            return f"qd.{self.r.choice(('sin', 'tanh', 'cos'))}({two[0]})"
        if kind < 0.94:
            return f"qd.{self.r.choice(('min', 'max'))}({two[0]}, {two[1]})"
        return f"({two[0]} if {self.condition()} else {two[1]})"

    def condition(self) -> str:
        if self.r.random() < 0.6:
            return f"{self.r.choice(self.ints)} % {self.r.randint(2, 3)} == {self.r.randrange(2)}"
        return f"{self.value(2)} > {self.r.randint(-5, 9) / 8}"

    # ---- statements
    def block(self, depth: int, loops: int, size: int) -> None:
        known = len(self.variables)
        for _ in range(size):
            self.statement(depth, loops)
        del self.variables[known:]

    def statement(self, depth: int, loops: int) -> None:
        kind = self.r.random()
        if kind < 0.16:
            self.put(depth, f"{self.place()} = {self.value()}")
        elif kind < 0.34:
            self.put(depth, f"{self.place()} {self.r.choice(('+=', '-='))} {self.value()}")
        elif kind < 0.42:
            self.put(depth, f"{self.place()} *= {self.r.choice((self.value(), '1.5'))}")
        elif kind < 0.54:
            self.put(depth, f"qd.atomic_{self.r.choice(('min', 'max'))}({self.place()}, {self.value()})")
        elif kind < 0.7:
            old = f"qd.atomic_{self.r.choice(('add', 'min', 'max', 'mul'))}({self.place()}, {self.value()})"
            name = self.fresh("t")
            self.put(depth, f"{name} = {old if kind < 0.58 else self.value()}")
            self.variables.append(name)
        elif kind < 0.76 and self.variables:
            self.put(depth, f"{self.r.choice(self.variables)} {self.r.choice(('=', '+=', '*='))} {self.value()}")
        elif kind < 0.8:
            self.put(depth, f"plain[{self.index()}] {self.r.choice(('=', '+='))} {self.value()}")
        elif kind < 0.9:
            self.put(depth, f"if {self.condition()}:")
            self.block(depth + 1, loops, self.r.randint(1, 2))
            if self.r.random() < 0.4:
                self.put(depth, "else:")
                self.block(depth + 1, loops, 1)
        elif loops < 2:
            name = self.fresh("j")
            self.put(depth, f"for {name} in range({self.r.choice(('3', '2', 'n', '0'))}):")
            self.ints.append(name)
            self.block(depth + 1, loops + 1, self.r.randint(1, 2))
            self.ints.remove(name)
        else:
            self.put(depth, f"{self.place()} += {self.value()}")
