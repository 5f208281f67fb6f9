"""Writes random programs that can be differentiated: real inputs that are only read, outputs that are only added to, and between them
loops, branches, functions, arrays that one task writes and the next reads.

The file names its parts: ``INPUTS``, ``BETWEEN``, ``OUTPUTS``, ``CALLS`` (kernels with arguments) and ``fill()``.
"""

from __future__ import annotations

from dataclasses import replace

from .draw import Array, Choices, Name, Place, Text
from .program import Program, Writer, _argument, _maker
from .scalars import F32, F64, I32, I64, Type
from .stencil import write_stencil

ONE = ("qd.sin({})", "qd.cos({})", "qd.tanh({})", "qd.exp(qd.sin({}))", "qd.sqrt({0} * {0} + 1.0)", "qd.abs({}) + 0.1", "-({})",
       "qd.log({0} * {0} + 1.5)", "({0} * {0} + 0.3) ** 1.7", "({}) ** 2", "qd.sin({}) ** 3", "1.0 / (qd.cos({}) + 2.5)",
       "qd.rsqrt({0} * {0} + 0.5)", "qd.floor(2.0 * qd.sin({0})) * 0.2", "(qd.sin({0}) % 0.7)", "qd.asin(0.5 * qd.sin({0}))",
       "qd.acos(0.5 * qd.cos({0}))", "qd.tan(0.5 * qd.sin({0}))", "qd.math.clamp({}, -0.8, 0.9)", "qd.sinh(qd.sin({}))",
       "qd.cosh(qd.sin({}))", "qd.expm1(qd.sin({}))", "qd.log1p({0} * {0})", "qd.erf({})", "qd.erfc({})",
       "qd.raw_mod(qd.sin({0}), 0.7)")  # fmt: skip
TWO = ("qd.min({}, {})", "qd.max({}, {})", "({}) / (qd.sin({}) + 2.5)", "qd.atan2({}, 2.0 + qd.cos({}))",
       "qd.select({} > 0.1, {}, 0.2)", "(qd.sin({0}) * {0} + 0.4 * qd.cos({1}))", "2.0 ** qd.sin({0} + {1})",
       "qd.math.mix({}, {}, 0.3)", "({} + {})", "({} - {})", "({} * {})", "({} + 0.5 * {})")  # fmt: skip
HELPERS = """

@qd.func
def soft(p, q):
    r = p
    if q > 0.2:
        r = p * q
    return qd.tanh(r)


@qd.func
def bent(p, q):
    A = qd.Matrix([[2.0 + qd.sin(p), 0.3 * qd.sin(q), 0.1], [0.2, 1.3 + 0.3 * qd.cos(q), 0.1 * qd.sin(p)], [0.0, 0.1, 4.0]])
    U, S, V = qd.svd(A)
    R, T = qd.polar_decompose(A)
    w, Q = qd.sym_eig(A)
    B = A.inverse() @ R
    return qd.tanh(S[0, 0] * U[0, 1] * V[1, 0] + T[0, 1] + w[0] * Q[0, 1] ** 2 + B[0, 0])


@qd.func
def at(x: qd.template(), i):
    return x[i]


@qd.func
def pull(r: qd.template(), v):
    r = 0.7 * r + qd.sin(v)
"""


class SmoothWriter(Writer):
    """Writes kernels whose gradients exist."""

    def __init__(self, c: Choices, real: Type) -> None:
        super().__init__(c, I32, real)
        self.t = real
        self.inputs: list[Array] = []
        self.between: list[Array] = []
        self.outputs: list[Array] = []
        self.whole: list[Array] = []
        self.calls: list[str] = []
        self.fill: list[str] = []
        self.written: set[str] = set()

    def compose(self) -> str:
        c = self.c
        for k in range(c.number(1, 3)):
            self.make(self.inputs, k)
        for k in range(c.number(1, 2)):
            self.make(self.outputs, k)
        for _ in range(c.number(0, 2)):
            self.between.append(self.real_array(c.fresh("z"), (8,), (), "field"))
        for n in (6, 4)[: c.number(1, 2)]:
            a = Array(c.fresh("n"), c.pick((I32, I32, I64)), (n,), (), "field")
            self.whole.append(a)
            self.lines.append(f"{a.name} = {_maker(a, 'field')}")
            values = ", ".join(str(c.number(0, 5)) for _ in range(n))
            self.fill.append(f'{a.name}.from_numpy(np.array([{values}], "{a.type.numpy.name}"))')
        self.lines += HELPERS.splitlines()
        self.functions.append(("soft", [self.t, self.t], self.t))
        for _ in range(c.pick((1, 1, 1, 2))):
            self.kernel()
        if c.has("stencil"):
            write_stencil(self)
        names = {
            n: ", ".join(a.name for a in arrays)
            for n, arrays in (("INPUTS", self.inputs), ("BETWEEN", self.between), ("OUTPUTS", self.outputs))
        }
        tail = [f"{n} = [{text}]" for n, text in names.items()] + [f"CALLS = [{', '.join(self.calls)}]"]
        filled = [f"    {line}" for line in self.fill] or ["    pass"]
        return "\n".join([*self.lines, "", "", "def fill():", *filled, "", "", *tail]) + "\n"

    def real_array(self, name: str, shape: tuple[int, ...], element: tuple[int, ...], kind: str) -> Array:
        a = Array(name, self.t, shape, element, kind)
        self.lines.append(f"{name} = {_maker(a, kind)[:-1]}, needs_grad=True, needs_dual=True)")
        return a

    def make(self, to: list[Array], k: int) -> None:
        """An input or an output, and what inputs hold."""
        c = self.c
        first = to is self.inputs
        element = c.pick(((), (), (2,), (2, 2))) if k else ()
        shape = c.pick(((8,), (5,), (4,), (3, 2))) if first or k else c.pick(((3,), (), (2,)))
        kind = "ndarray" if shape and c.chance(0.3) else "field"
        a = self.real_array(c.fresh("x" if first else "y"), shape, element, kind)
        to.append(a)
        if first:
            count = 1
            for n in shape + element:
                count *= n
            values = ", ".join(f"{c.rng.uniform(-1.2, 1.2):.5f}" for _ in range(count))
            self.fill.append(f'{a.name}.from_numpy(np.array([{values}], "{self.t.numpy.name}").reshape({shape + element}))')

    # ---- kernels
    def begin_kernel(self) -> None:
        """The head of a kernel, and a call of it."""
        c = self.c
        name = c.fresh("k")
        arrays = [a for a in (*self.inputs, *self.outputs) if a.kind == "ndarray"]
        given = [f"m: qd.i32, s: qd.{self.t}", *(f"{a.name}: {_argument(a)}" for a in arrays)]
        self.lines += ["", "", "@qd.kernel", f"def {name}({', '.join(given)}):"]
        values = [str(c.number(0, 6)), f"{c.rng.uniform(-1, 1):.4f}", *(a.name for a in arrays)]
        self.calls.append(f"({name}, ({', '.join(values)}))")

    def kernel(self) -> None:
        c = self.c
        self.begin_kernel()
        self.structs = []
        self.scopes = [[Name("m", I32, mutable=False), Name("s", self.t, mutable=False)]]
        for _ in range(c.pick((1, 1, 2, 3))):
            self.arrays = [*self.inputs, *self.whole, *(z for z in self.between if z.name in self.written)]
            if c.chance(0.2):
                self.serial_part()
            self.parallel_part()

    def serial_part(self) -> None:
        """Statements outside of any loop: a temporary that later loops read."""
        c = self.c
        self.place = Place(roles={}, loops=3)
        t = c.fresh("t")
        self.put(1, f"{t} = {self.real(1).text}")
        self.scopes[0].append(Name(t, self.t))
        if c.chance(0.5):
            self.put(1, f"if {self.bool_(1).text}:")
            self.put(2, f"{t} = 0.5 * {t} + {self.real(1).text}")
        if c.chance(0.4):
            left = c.fresh("left")
            self.put(1, f"{left} = {c.number(1, 4)}")
            self.put(1, f"while {left} > 0:")
            self.put(2, f"{left} -= 1")
            self.put(2, f"{t} = qd.sin({t} + {self.real(2).text})")
        self.scopes[0][-1] = replace(self.scopes[0][-1], mutable=False)

    def parallel_part(self) -> None:
        c = self.c
        i = c.fresh("i")
        n = c.pick((3, 5, 8, 1))
        header = c.pick((f"range({n})", f"range({n})", f"range(m % {n} + 1)", f"range(-1, {n - 1})"))
        self.put(1, f"for {i} in {header}:")
        before = self.scopes
        own = f"{i} + 1" if "-1," in header else i
        self.scopes = [[replace(x, mutable=False) for scope in before for x in scope], [Name(i, I32, mutable=False)]]
        self.place = Place(roles={}, continuable=False)
        self.put(2, f"a = {self.load()}")
        self.put(2, f"b = {self.load()} + 0.2 * s")
        self.scopes[-1] += [Name("a", self.t), Name("b", self.t)]
        self.left = c.number(2, 9)
        while self.left > 0:
            self.statement(2)
        self.add(2, "a + 0.7 * b")
        fresh = [z for z in self.between if z.name not in self.written and z not in self.arrays]
        if fresh and c.chance(0.7):
            z = fresh[0]
            self.written.add(z.name)
            self.put(2, f"{z.name}[{own}] = {self.real(1).text}")
        self.scopes = before

    def load(self) -> str:
        a = self.c.pick(self.inputs)
        return f"{a.name}[{self.index(a)}]" + (self.component(a.element) if a.element else "")

    def add(self, depth: int, value: str) -> None:
        """An output gets a number."""
        c = self.c
        y = c.pick(self.outputs)
        where = f"{y.name}[{self.index(y)}]" + (self.component(y.element) if y.element else "")
        self.put(depth, f"{where} {c.pick(('+=', '+=', '-='))} {value}")

    # ---- what differs from other programs
    def statement(self, depth: int) -> None:
        c = self.c
        self.left -= 1
        kind = c.number(0, 15)
        if depth < 6 and self.left > 0:
            if kind <= 1:
                return self.if_(depth)
            if kind <= 4 and self.place.loops < 3:
                c.features.add("loops")
                return self.for_(depth)
            if kind == 5 and self.place.loops < 3:
                c.features.add("while")
                return self.while_(depth)
            if kind == 6 and c.has("static"):
                return self.static(depth)
        if kind == 7 and self.place.breakable:
            return self.leave(depth, c.pick(("break", "continue")))
        if kind == 8:
            return self.add(depth, self.real().text)
        if kind <= 10:
            return self.declare(depth)
        return self.assign(depth)

    def for_(self, depth: int) -> None:
        c = self.c
        i = c.fresh("j")
        whole = self.int_(2).text
        ends = ("m", str(c.number(0, 6)), f"({whole}) % {c.number(2, 6)}", f"m - ({whole}) % 4", f"({whole}) % 3, m",
                f"m, {c.number(-2, 3)}, -1",
                f"0, m, {c.number(1, 3)}", f"qd.min(m, {c.number(1, 5)})")  # fmt: skip
        self.put(depth, f"for {i} in range({c.pick(ends)}):")
        self.body(depth + 1, self.inner(), [Name(i, I32, mutable=False)])

    def static(self, depth: int) -> None:
        k = self.c.fresh("s")
        self.put(depth, f"for {k} in qd.static(range({self.c.number(1, 3)})):")
        self.body(depth + 1, replace(self.place, breakable=False, continuable=False), [Name(k, I32, mutable=False)], 2)

    def declare(self, depth: int) -> None:
        c = self.c
        name = c.fresh("v")
        kind = c.number(0, 5)
        if kind == 0:
            self.put(depth, f"{name} = {self.int_(1).text} % 7")
            self.bind(Name(name, I32))
        elif kind == 1 and c.has("vector"):
            shape = (2, 2) if c.has("matrix", 0.3) else (2,)
            self.put(depth, f"{name} = {self.mat(shape, self.t).text}")
            self.bind(Name(name, self.t, shape))
        else:
            self.put(depth, f"{name} = {self.typed(self.t).text}")
            self.bind(Name(name, self.t))

    def assign(self, depth: int) -> None:
        c = self.c
        kind = c.pick(("real", "real", "real", "mat", "int"))
        names = self.names(kind, mutable=True)
        if not names:
            return self.declare(depth)
        n = c.pick(names)
        if kind == "int":
            self.put(depth, f"{n.name} = ({self.int_(1).text}) % 11")
        elif kind == "mat":
            if c.chance(0.5):
                self.put(depth, f"{n.name} = 0.4 * {self.mat(n.shape, n.type).text}")
            else:
                self.put(depth, f"{n.name}{self.component(n.shape)} {c.pick(('=', '+='))} qd.sin({self.real(2).text})")
        elif c.chance(0.15):
            self.put(depth, f"pull({n.name}, {self.real(2).text})")
        else:
            form = c.pick(
                (
                    "{0} = 0.5 * {0} + {1}",
                    "{0} = qd.sin({1})",
                    "{0} += 0.3 * {1}",
                    "{0} *= qd.cos({1})",
                    "{0} = {1}",
                    "{0} -= 0.2 * {0} * {1}",
                )
            )
            self.put(depth, form.format(n.name, self.real(1).text))

    def literal(self, kind: str) -> Text:
        if kind == "real":
            return Text(f"{self.c.rng.uniform(-1.3, 1.3):.3f}".replace("-0.000", "0.1"), self.fp, True)
        return super().literal(kind)

    def int_(self, depth: int = 0) -> Text:
        """A whole number; none of a real, whose steps no difference would see."""
        c = self.c
        if depth > 2 or c.chance(0.4):
            return self.leaf("int") if c.chance(0.7) else Text(str(c.number(0, 5)), I32, True)
        x, y = self.int_(depth + 1), self.int_(depth + 1)
        form = c.pick(("({} + {})", "({} - {})", "({} * {})", "qd.min({}, {})", "qd.max({}, {})", "({} // 3 + {})", "({} % 4 - {} % 3)",
                       "({} if {} > 1 else 2)", "({} // (abs({}) % 3 + 1))"))  # fmt: skip
        return Text(f"qd.i32({form.format(x.text, y.text)})", I32)

    def real(self, depth: int = 0) -> Text:
        c = self.c
        if depth > 2 or c.chance(0.25 + 0.2 * depth):
            e = self.leaf("real") if c.chance(0.85) else self.literal("real")
            return e
        d = depth + 1
        kind = c.number(0, 9)
        if kind <= 3:
            return Text(f"({c.pick(ONE).format(self.solid('real', d).text)})", self.t)
        if kind <= 7:
            return Text(f"({c.pick(TWO).format(self.solid('real', d).text, self.real(d).text)})", self.t)
        if kind == 8:
            return Text(f"({self.solid('real', d).text} if {self.bool_(d).text} else {self.real(d).text})", self.t)
        if c.chance(0.4):
            function = c.pick(("soft", "soft", "bent"))
            return Text(f"{function}({self.real(d).text}, {self.real(d).text})", self.t)
        mats = [n for n in self.names("mat") if len(n.shape) == 1]
        if mats:
            return Text(
                f"{c.pick(mats).name}.{c.pick(('sum()', 'norm_sqr()', 'norm(0.1)', 'dot(qd.Vector([0.5, -0.7]))'))}", self.t
            )
        return self.leaf("real")

    def bool_(self, depth: int = 0) -> Text:
        c = self.c
        if c.chance(0.3):
            return Text(f"{self.solid('real', 3).text} < {c.number(-9, 9) / 8}", F32)
        text = f"({self.int_(2).text}) % {c.number(2, 4)} < {c.number(1, 2)}"
        return Text(f"({text} {c.pick(('and', 'or'))} {self.solid('real', 3).text} > 0.05)" if c.chance(0.2) else text, F32)


def generate_smooth(seed: int, index: int) -> Program:
    """The differentiable program of this number."""
    c = Choices.of(f"{seed}:{index}:smooth")
    c.ints, c.edge = [I32], False
    real = F32 if c.chance(0.12) else F64
    body = SmoothWriter(c, real).compose()
    options = {} if real == F32 else {"default_fp": "f64"}
    text = f"import numpy as np\nimport qdrun as qd\n\nOPTIONS = {options!r}\n\n{body}"
    return Program(text, frozenset({*c.features, "gradient"}), True, True)
