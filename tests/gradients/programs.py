"""Random kernels as Python source, of several top-level loops and statements and of many types, drawn by hypothesis so that they shrink.

What ``kernels.py`` leaves out: a second float type ``F`` (f32, or f64 in the twin that differences can check), i64, ndarrays of vectors,
matrices, nested functions with returns, ``while True``, static unrolls, casts, integer arithmetic in conditions, loops over fields and
several axes, temporaries that cross from one top-level loop to the next. Inputs: x, v, c, cv, fm, lo; outputs: y, yv, za, zb.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
"""What hypothesis finds unhealthy in tests that compile each example."""

UNARY = ("qd.sin({})", "qd.cos({})", "qd.tanh({})", "qd.exp(qd.sin({}))", "qd.sqrt({0} * {0} + 1.0)", "qd.abs({}) + 0.1", "-({})",
         "qd.log({0} * {0} + 1.5)", "({0} * {0} + 0.3) ** 1.7", "({}) ** 2", "qd.sin({}) ** 3", "1.0 / (qd.cos({}) + 2.5)",
         "qd.rsqrt({0} * {0} + 0.5)", "qd.floor(2.0 * qd.sin({0})) * 0.2", "(qd.sin({0}) % 0.7)", "qd.asin(0.5 * qd.sin({0}))",
         "qd.acos(0.5 * qd.cos({0}))", "qd.tan(0.5 * qd.sin({0}))", "fa({0}, 0.3)")  # fmt: skip
TWO = ("qd.min({}, {})", "qd.max({}, {})", "({}) / (qd.sin({}) + 2.5)", "qd.atan2({}, 2.0 + qd.cos({}))", "fa({}, {})",
       "qd.select({} > 0.1, {}, 0.2)", "(qd.sin({0}) * {0} + 0.4 * qd.cos({1}))", "2.0 ** qd.sin({0} + {1})")  # fmt: skip
LOW = ("qd.sin({})", "({0}) * ({0})", "qd.tanh({})", "qd.sqrt({0} * {0} + qd.cast(1.0, F))", "-({})", "qd.abs({})")
INT = ("({} + {})", "({} - {})", "({} * {})", "qd.min({}, {})", "qd.max({}, {})", "({} & {})", "({} | {})", "({} ^ {})",
       "({} // 3 + {})", "({} % 4 - {} % 3)", "(({} << 2) - {})", "(({} >> 1) + {})", "({} // ({} % 3 + 1))",
       "({} if {} > 1 else 2)")  # fmt: skip
COMPARE = ("<", "<=", ">", ">=", "==", "!=")


@dataclass
class Scope:
    """The names that may be read, by type."""

    reals: list[str] = field(default_factory=list)
    lows: list[str] = field(default_factory=list)
    vecs: list[str] = field(default_factory=list)
    mats: list[str] = field(default_factory=list)
    ints: list[str] = field(default_factory=list)
    longs: list[str] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)  # loop indices, arguments and temporaries: not assigned to

    def mark(self) -> tuple[int, ...]:
        return tuple(len(x) for x in self._lists())

    def reset(self, mark: tuple[int, ...]) -> None:
        for names, n in zip(self._lists(), mark):
            del names[n:]

    def _lists(self) -> tuple[list[str], ...]:
        return self.reals, self.lows, self.vecs, self.mats, self.ints, self.longs

    def free(self, names: list[str]) -> list[str]:
        return [n for n in names if n not in self.fixed]


class Expressions:
    """Draws expressions over a scope. ``globals`` is False inside functions, which see their parameters only."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.s = Scope()
        self.globals = True
        self.extra: list[str] = []  # reads of what an earlier top-level loop stored
        self.calls: tuple[str, ...] = ("fa", "fb")  # the functions that may be called here

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def literal(self) -> str:
        return f"{self.number(-9, 9) / 7:.3f}"

    def int_(self, depth: int = 0) -> str:
        kind = self.number(0, 5 if depth < 2 else 1)
        if kind == 0 and self.s.ints:
            return self.pick(self.s.ints)
        if kind == 2 and self.globals:
            return f"cnt[({self.int_(depth + 1)}) % 6]"
        if kind == 3:
            return f"qd.cast(({self.long(depth + 1)}) % 7, qd.i32)"
        if kind >= 4:
            return self.pick(INT).format(self.int_(depth + 1), self.int_(depth + 1))
        return str(self.number(0, 5))

    def long(self, depth: int = 0) -> str:
        kind = self.number(0, 3 if depth < 2 else 1)
        if kind == 0 and self.s.longs:
            return self.pick(self.s.longs)
        if kind == 1 and self.globals:
            return f"big[({self.int_(2)}) % 4]"
        if kind == 2:
            return self.pick(("({} + {})", "({} - 3 * {})", "({} // 5 - {})", "({} ^ {})")).format(
                self.long(depth + 1), self.long(depth + 1)
            )
        return f"qd.cast({self.int_(max(depth, 1))}, qd.i64)"

    def load(self) -> str:
        at = f"({self.int_(1)})"
        return self.pick((f"x[{at} % 8]", f"c[{at} % 5]", *(e.format(at) for e in self.extra)))

    def real(self, depth: int = 0) -> str:
        kind = self.number(0, 12 if depth < 3 else 3)
        if kind in (0, 1) and self.s.reals:
            return self.pick(self.s.reals)
        if kind == 2 and self.globals:
            return self.load()
        if kind == 3 or depth >= 3:
            choices = [*(f"{n}[{self.number(0, 1)}]" for n in self.s.vecs[-2:]), *(f"{n}[0, 1]" for n in self.s.mats[-1:])]
            return self.pick([*choices, self.literal(), *self.s.reals[-2:]])
        if kind in (4, 5):
            return self.pick(UNARY if "fa" in self.calls else UNARY[:-1]).format(self.real(depth + 1))
        if kind in (6, 7):
            two = TWO if "fa" in self.calls else [t for t in TWO if "fa(" not in t]
            return self.pick(two).format(self.real(depth + 1), self.real(depth + 1))
        if kind == 8:
            return f"({self.real(depth + 1)} if {self.cond()} else {self.real(depth + 1)})"
        if kind == 9:
            return f"qd.cast({self.low(depth + 1)}, qd.f64)"
        if kind == 10 and self.s.vecs:
            return self.of_vectors(depth)
        if kind == 11:
            return f"(0.125 * ({self.int_(1)} % 9) * {self.real(depth + 1)})"
        return f"({self.real(depth + 1)} {self.pick('+-*')} {self.real(depth + 1)})"

    def of_vectors(self, depth: int) -> str:
        """A scalar made of vectors or matrices."""
        forms = [
            "{0}.dot({1})",
            "({0} + 2.0 * {1}).norm_sqr()",
            "({0} - {1}).norm(1e-2)",
            "{0}[({2}) % 2]",
            "({0} * {1}).sum()",
        ]
        if self.s.mats:
            forms += [f"({self.pick(self.s.mats)} @ {{0}}).dot({{1}})", f"{self.pick(self.s.mats)}[({{2}}) % 2, 1]"]
            forms += [f"{self.pick(self.s.mats)}.determinant()", f"{self.pick(self.s.mats)}.trace()"]
        if "fb" in self.calls:
            forms += ["fb({0}, {2})[0]"]
        return self.pick(forms).format(self.pick(self.s.vecs), self.pick(self.s.vecs), self.int_(1))

    def low(self, depth: int = 0) -> str:
        """An expression of type F."""
        kind = self.number(0, 5 if depth < 3 else 1)
        if kind == 0 and self.s.lows:
            return self.pick(self.s.lows)
        if kind <= 1:
            return f"lo[({self.int_(1)}) % 4]" if self.globals else f"qd.cast({self.literal()}, F)"
        if kind == 2:
            return f"qd.cast({self.real(depth + 1)}, F)"
        if kind == 3:
            return self.pick(LOW).format(self.low(depth + 1))
        return f"({self.low(depth + 1)} {self.pick('+-*')} {self.low(depth + 1)})"

    def vec(self, depth: int = 0) -> str:
        kind = self.number(0, 9 if depth < 2 else 2)
        if kind == 0 and self.s.vecs:
            return self.pick(self.s.vecs)
        if kind == 1 and self.globals:
            return self.pick((f"v[({self.int_(1)}) % 4]", f"cv[({self.int_(1)}) % 3]"))
        if kind <= 2 or depth >= 2:
            return f"qd.Vector([{self.real(2)}, {self.real(2)}])"
        if kind == 3:
            return f"({self.mat(depth + 1)} @ {self.vec(depth + 1)})"
        if kind == 4:
            return f"qd.sin({self.vec(depth + 1)})"
        if kind == 5:
            return f"qd.max({self.vec(depth + 1)}, {self.vec(depth + 1)})"
        if kind == 6:
            return f"({self.vec(depth + 1)} if {self.cond()} else {self.vec(depth + 1)})"
        if kind == 7 and "fb" in self.calls:
            return f"fb({self.vec(depth + 1)}, {self.int_(1)})"
        if kind == 8 and self.s.vecs:
            return f"{self.pick(self.s.vecs)}.yx"
        return f"({self.vec(depth + 1)} {self.pick('+-*')} 0.5 * {self.vec(depth + 1)})"

    def mat(self, depth: int = 0) -> str:
        kind = self.number(0, 6 if depth < 2 else 1)
        if kind == 0 and self.s.mats:
            return self.pick(self.s.mats)
        if kind == 1 and self.globals:
            return f"fm[({self.int_(1)}) % 2]"
        if kind == 2:
            return f"(0.5 * {self.mat(depth + 1)} @ {self.mat(depth + 1)})"
        if kind == 3:
            return f"{self.mat(depth + 1)}.transpose()"
        if kind == 4:
            return f"({self.mat(depth + 1)} {self.pick('+-')} {self.mat(depth + 1)})"
        return f"qd.Matrix([[0.6, {self.real(3)}], [{self.real(3)}, 0.5]])"

    def cond(self, depth: int = 0) -> str:
        kind = self.number(0, 9 if depth < 2 else 5)
        if kind <= 2:
            return f"({self.int_()}) % {self.number(2, 4)} {self.pick(COMPARE)} {self.number(0, 2)}"
        if kind == 3:
            return f"({self.long()}) {self.pick(COMPARE)} ({self.long()})"
        if kind in (4, 5):
            return f"{self.real(2)} {self.pick('<>')} {self.number(-9, 9) / 8}"
        if kind == 6:
            return f"not ({self.cond(depth + 1)})"
        if kind == 7:
            return f"0 < ({self.int_()}) % 4 <= {self.number(1, 3)}"
        if kind == 8:
            return f"{self.low(2)} < {self.real(2)}"
        return f"({self.cond(depth + 1)} {self.pick(('and', 'or'))} {self.cond(depth + 1)})"


class Statements(Expressions):
    """Draws statements into ``lines``."""

    def __init__(self, draw: Any) -> None:
        super().__init__(draw)
        self.lines: list[str] = []
        self.count = 0
        self.outputs: list[str] = []  # statements that may be written out, with {} for an index, a real and a vector
        self.returns = ""  # how a function returns: a format with one expression

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, depth: int, loops: int, size: int, leave: bool) -> None:
        mark = self.s.mark()
        for _ in range(size):
            self.stmt(depth, loops, leave)
        self.s.reset(mark)

    def stmt(self, depth: int, loops: int, leave: bool) -> None:
        """One statement. ``leave``: whether break and continue may stand here."""
        kind = self.number(0, 11)
        if kind in (0, 1) and loops < 3:
            self.loop(depth, loops)
        elif kind == 2:
            self.branch(depth, loops, leave)
        elif kind == 3 and leave:
            self.put(depth, f"if {self.cond()}:")
            self.put(depth + 1, self.pick(("break", "continue")))
        elif kind == 3 and self.returns:
            self.put(depth, f"if {self.cond()}:")
            self.put(depth + 1, self.returns.format(self.real(), self.vec()))
        elif kind in (4, 5):
            self.declare(depth)
        elif kind == 6 and self.outputs:
            self.put(depth, self.pick(self.outputs).format(self.int_(), self.real(), self.vec()))
        else:
            self.assign(depth)

    def branch(self, depth: int, loops: int, leave: bool) -> None:
        """An if, with up to two further arms."""
        self.put(depth, f"if {self.cond()}:")
        self.block(depth + 1, loops, self.number(1, 2), leave)
        if self.number(0, 2) == 0:
            self.put(depth, f"elif {self.cond()}:")
            self.block(depth + 1, loops, 1, leave)
        if self.number(0, 1):
            self.put(depth, "else:")
            self.block(depth + 1, loops, 1, leave)

    def declare(self, depth: int) -> None:
        """A new variable."""
        kind = self.number(0, 6)
        s = self.s
        name = self.fresh("t")
        text, names = (
            (self.real(), s.reals) if kind <= 2 else (self.low(), s.lows) if kind == 3 else (self.vec(), s.vecs) if kind == 4
            else (self.mat(), s.mats) if kind == 5 else (self.long(), s.longs)
        )  # fmt: skip
        self.put(depth, f"{name} = {text}")
        names.append(name)

    def assign(self, depth: int) -> None:
        """A change of a variable that keeps it of moderate size."""
        s, kind = self.s, self.number(0, 12)
        reals, lows, vecs, mats, ints, longs = (s.free(x) for x in (s.reals, s.lows, s.vecs, s.mats, s.ints, s.longs))
        if kind == 0 and vecs:
            self.put(depth, f"{self.pick(vecs)} = 0.4 * {self.vec()}")
        elif kind == 1 and vecs:
            self.put(depth, f"{self.pick(vecs)}[{self.pick((0, 1, f'({self.int_(1)}) % 2'))}] += qd.sin({self.real(1)})")
        elif kind == 2 and mats:
            self.put(depth, f"{self.pick(mats)} = 0.5 * {self.mat()}")
        elif kind == 3 and mats:
            self.put(depth, f"{self.pick(mats)}[{self.number(0, 1)}, ({self.int_(1)}) % 2] = qd.tanh({self.real(1)})")
        elif kind == 4 and lows:
            self.put(depth, f"{self.pick(lows)} = qd.sin({self.low()})")
        elif kind == 5 and ints:
            name = self.pick(ints)
            self.put(depth, f"{name} = ({name} * {self.number(1, 3)} + {self.int_()}) % 7")
        elif kind == 6 and longs:
            name = self.pick(longs)
            self.put(depth, f"{name} = ({name} * 3 + {self.long()}) % 1000003")
        elif kind == 7 and len(reals) > 1:
            self.put(depth, "{0}, {1} = 0.9 * {1}, qd.sin({0})".format(*reals[-2:]))
        elif kind == 8 and reals:
            self.put(depth, f"{self.pick(reals)} *= qd.cos({self.real(1)})")
        elif kind == 9 and reals:
            self.put(depth, f"{self.pick(reals)} /= qd.sin({self.real(1)}) + 2.5")
        elif kind in (10, 11) and reals:
            name = self.pick(reals)
            self.put(depth, f"{name} = 0.5 * {name} + {self.real(1)}")
        elif reals:
            self.put(depth, f"{self.pick(reals)} = qd.sin({self.real()})")
        else:
            self.put(depth, "pass")

    def loop(self, depth: int, loops: int) -> None:
        """A loop of one of five forms around a block."""
        mark, kind = self.s.mark(), self.number(0, 7)
        if kind == 0:
            name = self.fresh("left")
            self.put(depth, f"{name} = {self.number(1, 4)}")
            self.put(depth, f"while {name} > 0{self.pick(('', f' and {self.real(2)} < 1.0'))}:")
            self.put(depth + 1, f"{name} -= 1")
        elif kind == 1:
            name = self.fresh("tries")
            self.put(depth, f"{name} = 0")
            self.put(depth, "while True:")
            self.put(depth + 1, f"{name} += 1")
            self.put(depth + 1, f"if {name} > {self.pick((1, 3, f'({self.int_(1)}) % 4'))} or {self.cond()}:")
            self.put(depth + 2, "break")
        elif kind == 2:
            name = self.fresh("u")
            self.put(depth, f"for {name} in qd.static(range({self.number(1, 3)})):")
            self.bind(name)
            self.block(depth + 1, loops + 1, self.number(1, 2), False)
            self.s.reset(mark)
            return
        else:
            name = self.fresh("j")
            self.put(depth, f"for {name} in range({self.bound()}):")
            self.bind(name)
        if self.returns and self.number(0, 3) == 0:
            self.put(depth + 1, f"if {self.cond()}:")
            self.put(depth + 2, self.returns.format(self.real(), self.vec()))
        self.block(depth + 1, loops + 1, self.number(1, 3), True)
        self.s.reset(mark)

    def bind(self, name: str) -> None:
        self.s.ints.append(name)
        self.s.fixed.add(name)

    def bound(self) -> str:
        """What stands in ``range(..)``."""
        known = self.pick(self.s.ints) if self.s.ints else "2"
        bounds = [str(self.number(0, 4)), f"({known}) % 4", f"({self.int_()}) // 2 % 4", f"4, ({known}) % 3, -2"]
        bounds += [f"qd.cast(({self.long(1)}) % 4, qd.i32)"]
        if self.globals:
            bounds += ["n", f"cnt[({known}) % 6]", f"n - ({known}) % 4", f"({known}) % 3, n", "n // 2 + 1", "qd.min(n, 3)"]
        return self.pick(bounds)


class KernelWriter(Statements):
    """Draws two functions and a kernel of several top-level loops and statements."""

    def function(self, head: str, returns: str, scope: Scope) -> None:
        self.s, self.globals, self.returns = scope, False, returns
        self.calls = ("fa",) if head.startswith("fb") else ()
        self.lines += ["@qd.func", f"def {head}:"]
        for name in (*scope.reals, *scope.vecs):
            self.put(1, f"{name} = 1.0 * {name}_")
        scope.fixed |= {*scope.ints}
        self.block(1, 1, self.number(1, 3), False)
        self.put(1, returns.format(self.real(), self.vec()))
        self.lines.append("")

    def kernel(self) -> str:
        self.function("fa(p_, q_)", "return {0}", Scope(reals=["p", "q"]))
        self.function("fb(g_, m)", "return {1}", Scope(vecs=["g"], ints=["m"]))
        self.globals, self.calls, self.returns = True, ("fa", "fb"), ""
        self.lines += ["@qd.kernel", "def k(n: qd.i32, c: qd.types.ndarray(dtype=qd.f64, ndim=1),"]
        self.lines += ["      cv: qd.types.ndarray(dtype=qd.types.vector(2, qd.f64), ndim=1), s0: qd.f64):"]
        top = Scope(reals=["s0"], ints=["n"], fixed={"n", "s0"})
        fresh_fields = ["zb", "za"]
        for number in range(self.number(1, 3)):
            if self.number(0, 2) == 0:
                self.serial(top)
            self.parallel(top, fresh_fields, last=number == 0)
        return "\n".join(self.lines) + "\n"

    def serial(self, top: Scope) -> None:
        """Statements outside of any loop: one task, and a temporary that later loops may read."""
        self.s, self.outputs = top, []
        name = self.fresh("tmp")
        self.put(1, f"{name} = {self.real(1)}")
        if self.number(0, 1):
            self.put(1, f"if {self.cond()}:")
            self.put(2, f"{name} = 0.5 * {name} + {self.real(1)}")
        if self.number(0, 2) == 0:
            left = self.fresh("left")
            self.put(1, f"{left} = {self.number(1, 4)}")
            self.put(1, f"while {left} > 0:")
            self.put(2, f"{left} -= 1")
            self.put(2, f"{name} = qd.sin({name} + {self.real(2)})")
        top.reals.append(name)
        top.fixed.add(name)
        if self.number(0, 2) == 0:
            self.put(1, f"y[{self.number(0, 2)}] += {self.real(1)}")

    def parallel(self, top: Scope, fields: list[str], last: bool) -> None:
        """A top-level loop with its own locals. It may store to one field that no earlier loop has read."""
        head = self.pick(
            ("range(3)", "range(n % 3 + 1)", "za", "qd.ndrange(2, 2)", "range(1, 4)", "qd.grouped(za)", "range(3)")
        )
        index = "i, i2" if "ndrange" in head else "iv" if "grouped" in head else "i"
        total = self.fresh("sum") if self.number(0, 4) == 0 else ""
        if total:
            self.put(1, f"{total} = 0.0")
        if self.number(0, 7) == 0:
            self.put(1, "qd.loop_config(serialize=True)")
        self.put(1, f"for {index} in {head}:")
        if index == "iv":
            self.put(2, "i = iv[0]")
        for text in ("a = x[i % 8]", "b = c[i % 5] + 0.2 * s0", "w = v[i % 4]", "lf = lo[i % 4]", "q = (i * 5 + n) % 7"):
            self.put(2, text)
        s = self.s = Scope([*top.reals, "a", "b"], ["lf"], ["w"], [], [*top.ints, "i", "q"], [], {*top.fixed, "i", "i2", "n"})
        if index == "i, i2":
            s.ints.append("i2")
        self.outputs = ["y[({0}) % 3] += {1}", "y[({0}) % 3] -= 0.5 * {1}", "yv[({0}) % 2] += {2}"]
        for _ in range(self.number(1, 5)):
            self.stmt(2, 0, False)
        self.put(2, "y[i % 3] += a + 0.7 * b + w[0] - 0.3 * w[1] + qd.cast(lf, qd.f64)")
        if total:
            self.put(2, f"{total} += 0.3 * a * b")
            top.reals.append(total)
            top.fixed.add(total)
        if fields and index != "i, i2" and self.number(0, 1):
            name = fields.pop()
            self.put(2, f"{name}[i] = {self.real(1)}")
            if self.number(0, 1):
                self.put(2, f"{name}[i] {self.pick('+-')}= {self.real(1)}")
            self.extra = [*self.extra, f"{name}[{{}} % 4]"]


@st.composite
def program_sources(draw: Any) -> str:
    """Source of a kernel ``k(n, c, cv, s0)`` over fields x (8), v (4 vectors), fm (2 matrices), lo (4 of F), cnt (6), big (4 of i64),
    outputs y (3), yv (2 vectors), za and zb (4)."""
    return KernelWriter(draw).kernel()


def check_part(check: Callable[[str, int], None], part: int, parts: int, examples: int, **options: Any) -> None:
    """Check random programs of one part of a long test, as ``-n 2`` shares them: ``QDRUN_SEED`` and the part choose which."""
    first = int(os.environ.get("QDRUN_SEED", "0")) * parts

    @seed(first + part)
    @settings(max_examples=examples, deadline=None, suppress_health_check=CHECKS, database=None, **options)
    @given(program_sources(), st.integers(0, 10**6))
    def run(source: str, inputs: int) -> None:
        check(source, inputs)

    run()
