"""Writes random expressions: their source and, beside it, their type by the rules of the language."""

from __future__ import annotations

from .draw import Array, Choices, Form, Name, Place, Text, literal
from .scalars import I32, TYPES, U1, Type, meet

COMPARE = ("<", "<=", ">", ">=", "==", "!=")
EXACT = ("qd.floor({})", "qd.ceil({})", "qd.round({})", "qd.sqrt(qd.abs({}))", "qd.sqrt({})")
INEXACT = ("qd.sin({})", "qd.cos({})", "qd.tanh({})", "qd.exp({})", "qd.log({})", "qd.asin({})", "qd.acos({})", "qd.tan({})",
           "qd.rsqrt({})", "qd.exp(qd.sin({}))", "qd.log(qd.abs({}) + 1.5)", "qd.sinh({})", "qd.cosh({})", "qd.expm1({})",
           "qd.log1p({})", "qd.erf({})", "qd.erfc({})")  # fmt: skip


class Expressions:
    """Expressions over the names and arrays that can be read here."""

    def __init__(self, c: Choices, ip: Type, fp: Type) -> None:
        self.c, self.ip, self.fp = c, ip, fp
        self.scopes: list[list[Name]] = [[]]
        self.place = Place()
        self.nested = 0
        self.arrays: list[Array] = []
        self.structs: list[tuple[Array, Form]] = []
        self.functions: list[tuple[str, list[Type], Type]] = []
        self.constants: list[tuple[str, int | float]] = []

    # ---- names
    def names(self, kind: str, mutable: bool = False) -> list[Name]:
        """Names in scope: of reals, ints, truth values, vectors, matrices or structs."""
        out = []
        for n in (n for scope in self.scopes for n in scope):
            if mutable and not n.mutable:
                continue
            if kind == (
                "struct" if n.form else "mat" if n.shape else "real" if n.type.real else "bool" if n.type == U1 else "int"
            ):
                out.append(n)
        return out

    def readable(self, a: Array) -> list[str]:
        """Texts of the elements of an array that may be read here."""
        if not self.place.arrays:
            return []
        roles = self.place.roles
        role = "free" if roles is None else roles.get(a.name)
        if role is None:
            assert roles is not None
            role = roles[a.name] = "read"
        if role in ("free", "read"):
            if len(a.shape) == 1 and not a.element and self.place.functions and self.c.has("template", 0.1):
                return [f"at({a.name}, {self.index(a)})"]
            return [f"{a.name}[{self.index(a)}]"]
        return [f"{a.name}[{i}]" for i in self.place.own(a)] if role == "own" else []

    def index(self, a: Array) -> str:
        """An index of an array that lies in it."""
        return ", ".join(self.below(n) for n in a.shape) if a.shape else "None"

    def below(self, n: int) -> str:
        """A whole number in [0, n) as source."""
        if self.c.chance(0.3) or self.nested > 1:
            return str(self.c.number(0, n - 1))
        return f"({self.inner_int()}) % {n}"

    def inner_int(self) -> str:
        """A whole number inside of an index; indices nest twice at most."""
        self.nested += 1
        text = self.int_(2).text
        self.nested -= 1
        return text

    def element(self, want: str) -> Text | None:
        """An element, or a component of one, of an array of this kind."""
        c = self.c
        fitting = [a for a in self.arrays if want == ("real" if a.type.real else "bool" if a.type == U1 else "int")]
        if not fitting:
            return None
        a = c.pick(fitting)
        texts = self.readable(a)
        if not texts:
            return None
        text = c.pick(texts)
        return Text(text + self.component(a.element) if a.element else text, a.type)

    def component(self, shape: tuple[int, ...]) -> str:
        """``[k]`` or ``[i, j]``, or ``.x``, of a vector or matrix."""
        c = self.c
        if len(shape) == 1 and shape[0] <= 4 and c.has("swizzle", 0.3):
            return "." + "xyzw"[c.number(0, shape[0] - 1)]
        if c.has("dynamic", 0.3):
            return "[" + ", ".join(self.below(n) for n in shape) + "]"
        return "[" + ", ".join(str(c.number(0, n - 1)) for n in shape) + "]"

    # ---- by kind
    def scalar(self, t: Type, depth: int = 0) -> Text:
        """An expression of the kind of ``t``, not always of its type."""
        return self.real(depth) if t.real else self.bool_(depth) if t == U1 else self.int_(depth)

    def typed(self, t: Type, depth: int = 0) -> Text:
        """An expression of exactly this type."""
        e = self.scalar(t, depth)
        return (
            e
            if e.type == t and not e.literal
            else Text(f"qd.{t}({e.text})" if self.c.chance(0.5) else f"qd.cast({e.text}, qd.{t})", t)
        )

    def leaf(self, kind: str) -> Text:
        """A name or an element; a literal where there is none."""
        c = self.c
        names = self.names(kind)
        if names and c.chance(0.55):
            n = c.pick(names[-6:])
            return Text(n.name, n.type, n.static)
        mats = [n for n in self.names("mat") if n.type.real == (kind == "real")]
        if mats and kind != "bool" and c.chance(0.5):
            n = c.pick(mats)
            return Text(n.name + self.component(n.shape), n.type)
        structs = [
            (n, m) for n in self.names("struct") for m, (t, s) in n.form.members.items() if not s and t.real == (kind == "real")
        ]  # type: ignore[union-attr]
        if structs and kind != "bool" and c.chance(0.5):
            n, m = c.pick(structs)
            return Text(f"{n.name}.{m}", n.form.members[m][0])  # type: ignore[union-attr]
        if (found := self.element(kind)) is not None:
            return found
        if names:
            n = c.pick(names)
            return Text(n.name, n.type, n.static)
        return self.literal(kind)

    def literal(self, kind: str) -> Text:
        c = self.c
        if kind == "real":
            fitting = [n for n, v in self.constants if isinstance(v, float)]
            if fitting and c.chance(0.3):
                return Text(c.pick(fitting), self.fp, True)
            return Text(literal(c.real()), self.fp, True)
        if kind == "bool":
            return Text(c.pick(("True", "False")), U1, True)
        fitting = [n for n, v in self.constants if isinstance(v, int)]
        if fitting and c.chance(0.3):
            return Text(c.pick(fitting), self.ip, True)
        value = c.number(0, 100) if c.chance(0.8) else c.whole(self.ip)  # others are refused where their type cannot hold them
        return Text(literal(value), self.ip, True)

    def other(self, kind: str, depth: int) -> Text:
        """The second operand: sometimes a literal."""
        if self.c.chance(0.3):
            return self.literal(kind)
        return self.real(depth) if kind == "real" else self.int_(depth)

    def solid(self, kind: str, depth: int) -> Text:
        """An expression that is not made of literals alone, so that Python leaves it to the kernel."""
        e = self.real(depth) if kind == "real" else self.int_(depth)
        return Text(f"qd.cast({e.text}, qd.{e.type})", e.type) if e.literal else e

    def arithmetic(self, op: str, x: Text, y: Text) -> Text:
        t = meet(x.type, y.type)
        t = self.ip if t == U1 else t
        if op == "/" and not t.real:
            t = self.fp
        return Text(f"({x.text} {op} {y.text})", t)

    def int_(self, depth: int = 0) -> Text:
        """A whole number."""
        c = self.c
        if depth > 3 or c.chance(0.25 + 0.15 * depth):
            return self.leaf("int") if c.chance(0.8) else self.literal("int")
        kind = c.number(0, 15)
        d = depth + 1
        if kind <= 3:
            return self.arithmetic(c.pick(("+", "-", "*")), self.solid("int", d), self.other("int", d))
        if kind == 4 and c.has("bits"):
            x, y = self.solid("int", d), self.other("int", d)
            return Text(f"({x.text} {c.pick('&|^')} {y.text})", meet(x.type, y.type))
        if kind == 5 and c.has("division"):
            if c.chance(0.3):
                x, y = self.solid("int", d), self.other("int", d)
                return Text(f"qd.{c.pick(('raw_div', 'raw_mod'))}({x.text}, {y.text})", self.arithmetic("+", x, y).type)
            return self.arithmetic(c.pick(("//", "%")), self.solid("int", d), self.other("int", d))
        if kind == 6 and c.has("shift"):
            x, y = self.solid("int", d), self.int_(d) if c.chance(0.7) else Text(str(c.number(0, 7)), self.ip, True)
            if c.chance(0.2):
                return Text(f"qd.bit_shr({x.text}, {y.text})", x.type)
            return Text(f"({x.text} {c.pick(('<<', '>>'))} {y.text})", x.type)
        if kind == 7 and c.has("power"):
            x = self.solid("int", d)
            if c.chance(0.5):
                y = Text(str(c.number(0, 5)), self.ip, True)
                return Text(f"({x.text} ** {y.text})", meet(x.type, y.type))
            return self.arithmetic("**", x, self.leaf("int"))
        if kind == 8 and c.has("minmax"):
            x, y = self.solid("int", d), self.other("int", d)
            return Text(f"{c.pick(('min', 'max', 'qd.min', 'qd.max'))}({x.text}, {y.text})", meet(x.type, y.type))
        if kind == 9:
            x = self.solid("int", d)
            if c.chance(0.3) and x.type.kind == "i":
                return Text(f"abs({x.text})", x.type)
            return Text(f"({c.pick('-~')}{x.text})", x.type)
        if kind == 10 and c.has("ternary"):
            return self.ternary(self.int_(d), self.int_(d), d)
        if kind == 11 and c.has("cast"):
            t = c.pick(c.ints)
            x = self.scalar(c.type(), d)
            return Text(f"qd.{t}({x.text})" if c.chance(0.5) else f"qd.cast({x.text}, qd.{t})", t)
        if kind == 12 and c.has("bitcast"):
            return self.bitcast(d)
        if kind == 13 and c.has("bits"):
            return Text(f"qd.{c.pick(('popcnt', 'clz'))}({self.solid('int', d).text})", I32)
        if kind == 14 and c.has("boolop", 0.5):
            x, y = self.solid("int", d), self.solid("int", d)
            return Text(f"({x.text} {c.pick(('and', 'or'))} {y.text})", meet(x.type, y.type))
        if kind == 15 and c.has("u1"):
            return self.arithmetic(c.pick("+-*"), self.comparison(d), self.solid("int", d))
        return self.more("int", d)

    def more(self, kind: str, d: int) -> Text:
        """What both kinds of numbers can come from: functions, vectors, shapes, walrus."""
        c = self.c
        if self.functions and self.place.functions and c.has("func", 0.6):
            fitting = [f for f in self.functions if f[2].real == (kind == "real") and f[2] != U1]
            if fitting:
                return self.function(c.pick(fitting), d)
        mats = [n for n in self.names("mat") if n.type.real == (kind == "real")]
        if mats and c.has("vector", 0.7):
            n = c.pick(mats)
            if kind == "real" and c.has("algebra", 0.4):
                return Text(self.algebra(n), n.type)
            return Text(f"{n.name}.{c.pick(('sum()', 'norm_sqr()', 'min()', 'max()'))}", n.type)
        if kind == "int" and c.has("shape", 0.2) and self.place.arrays:
            sized = [a for a in self.arrays if a.shape]
            if sized:
                a = c.pick(sized)
                e = Text(f"{a.name}.shape[{c.number(0, len(a.shape) - 1)}]", self.ip, a.kind == "field")
                return Text(e.text, I32 if a.kind != "field" else self.ip, e.literal)
        return self.leaf(kind)

    def algebra(self, n: Name) -> str:
        """A number from a vector or matrix of reals; all of it is exact arithmetic but roots, which are rounded once."""
        c = self.c
        if len(n.shape) == 2:
            return c.pick(("{0}.determinant()", "{0}.trace()", "{0}.inverse()[0, 1]", "({0} @ {0}.transpose())[1, 0]")).format(
                n.name
            )
        return c.pick(
            ("{0}.norm()", "{0}.normalized().x", "{0}.dot({0})", "{0}.outer_product({0})[1, 0]", "{0}.norm_inv()")
        ).format(n.name)

    def function(self, f: tuple[str, list[Type], Type], d: int) -> Text:
        name, parameters, result = f
        return Text(f"{name}({', '.join(self.scalar(t, d + 1).text for t in parameters)})", result)

    def bitcast(self, d: int) -> Text:
        """Reals to integers only where no NaN can be: which NaN it is, is left open."""
        c = self.c
        t = c.pick(c.ints)
        same = [x for x in c.reals if x.bits == t.bits]
        if same and c.chance(0.5):
            c.features.add("bitcast of reals")
            e = self.typed(same[0], d)
            return Text(f"qd.bit_cast(nonan({e.text}), qd.{t})", t)
        other = TYPES[("u" if t.kind == "i" else "i") + str(t.bits)]
        return Text(f"qd.bit_cast({self.typed(other, d).text}, qd.{t})", t)

    def ternary(self, x: Text, y: Text, d: int) -> Text:
        cond = self.bool_(d)
        if x.literal and y.literal:
            x = Text(f"qd.{x.type}({x.text})", x.type)
        if self.c.chance(0.25):
            return Text(f"qd.select({cond.text}, {x.text}, {y.text})", meet(x.type, y.type))
        if cond.literal:
            cond = self.comparison(d)
        return Text(f"({x.text} if {cond.text} else {y.text})", meet(x.type, y.type))

    def real(self, depth: int = 0) -> Text:
        """A real number."""
        c = self.c
        if depth > 3 or c.chance(0.25 + 0.15 * depth):
            return self.leaf("real") if c.chance(0.8) else self.literal("real")
        kind = c.number(0, 13)
        d = depth + 1
        if kind <= 3:
            y = self.int_(d) if c.chance(0.15) else self.other("real", d)
            return self.arithmetic(c.pick(("+", "-", "*")), self.solid("real", d), y)
        if kind == 4:
            return self.arithmetic("/", self.solid("real", d), self.other("real", d))
        if kind == 5 and c.has("division"):
            if c.chance(0.3):
                x, y = self.solid("real", d), self.other("real", d)
                return Text(f"qd.{c.pick(('raw_div', 'raw_mod'))}({x.text}, {y.text})", meet(x.type, y.type))
            return self.arithmetic(c.pick(("//", "%")), self.solid("real", d), self.other("real", d))
        if kind == 6 and c.has("power"):
            x = self.solid("real", d)
            if c.mathematics and c.chance(0.3):
                return Text(f"(qd.abs({x.text}) ** {self.solid('real', d).text})", x.type)
            power = c.pick(("2", "3", "-1", "4", "0", "1", "0.5", "2.0"))
            return Text(f"({x.text} ** {power})", meet(x.type, self.fp) if "." in power else x.type)
        if kind == 7 and c.has("minmax"):
            x, y = self.solid("real", d), self.other("real", d)
            if c.chance(0.2):
                low = self.literal("real")
                return Text(f"qd.math.clamp({x.text}, {low.text}, {y.text})", meet(meet(x.type, low.type), y.type))
            return Text(f"{c.pick(('min', 'max', 'qd.min', 'qd.max'))}({x.text}, {y.text})", meet(x.type, y.type))
        if kind == 8:
            x = self.solid("real", d)
            return Text(f"(-{x.text})" if c.chance(0.6) else f"abs({x.text})", x.type)
        if kind == 9 and c.has("ternary"):
            return self.ternary(self.real(d), self.real(d), d)
        if kind == 10 and c.has("cast"):
            t = c.pick(c.reals)
            return Text(f"qd.{t}({self.scalar(c.type(), d).text})", t)
        if kind == 11 and c.mathematics:
            c.features.add("mathematics")
            x = self.solid("real", d)
            return Text(c.pick(INEXACT).format(x.text), x.type)
        if kind == 13 and c.has("random"):
            t = c.pick(c.reals)
            return Text(f"qd.random(qd.{t})", t)
        if kind == 12 and c.has("rounding"):
            x = self.solid("real", d)
            return Text(c.pick(EXACT).format(x.text), x.type)
        return self.more("real", d)

    def comparison(self, d: int) -> Text:
        c = self.c
        kind = c.pick(("int", "real"))
        x, y = self.solid(kind, d), self.other(c.pick(("int", "real", kind, kind)), d)
        if c.has("chain", 0.3):
            return Text(f"({x.text} {c.pick(COMPARE)} {y.text} {c.pick(COMPARE)} {self.other(kind, d).text})", U1)
        return Text(f"({x.text} {c.pick(COMPARE)} {y.text})", U1)

    def bool_(self, depth: int = 0) -> Text:
        """A truth value."""
        c = self.c
        d = depth + 1
        kind = c.number(0, 6)
        if kind == 0 and self.names("bool"):
            return self.leaf("bool")
        if depth <= 2 and kind == 1 and c.has("boolop"):
            return Text(f"({self.bool_(d).text} {c.pick(('and', 'or'))} {self.bool_(d).text})", U1)
        if depth <= 2 and kind == 2 and c.has("boolop"):
            x = self.bool_(d)
            return Text(f"(not {x.text})", U1, x.literal)
        if kind == 3:
            return Text(f"qd.{c.pick(('isnan', 'isinf'))}({self.solid('real', d + 1).text})", U1)
        return self.comparison(d)

    # ---- vectors and matrices
    def mat(self, shape: tuple[int, ...], t: Type, depth: int = 0) -> Text:
        """A vector or matrix of this shape; of the kind of ``t``."""
        c = self.c
        d = depth + 1
        names = [n for n in self.names("mat") if n.shape == shape and n.type.real == t.real]
        kind = c.number(0, 7) if depth < 2 else c.number(0, 1)
        if kind <= 1 and names:
            n = c.pick(names)
            return Text(n.name, n.type)
        if kind == 2:
            fitting = [a for a in self.arrays if a.element == shape and a.type.real == t.real]
            if fitting and (texts := self.readable(a := c.pick(fitting))):
                return Text(c.pick(texts), a.type)
        if kind == 3:
            x, y = self.mat(shape, t, d), self.mat(shape, t, d)
            return Text(f"({x.text} {c.pick('+-*')} {y.text})", meet(x.type, y.type))
        if kind == 4:
            x, y = self.mat(shape, t, d), self.solid("real" if t.real else "int", d + 1)
            return self.arithmetic(c.pick("+-*"), x, y)
        if kind == 5 and len(shape) == 1 and shape[0] <= 3 and c.has("matrix"):
            m, v = self.mat((shape[0], shape[0]), t, d), self.mat(shape, t, d)
            return Text(f"({m.text} @ {v.text})", meet(m.type, v.type))
        if kind == 6 and len(shape) == 2 and shape[0] == shape[1]:
            x = self.mat(shape, t, d)
            return Text(f"{x.text}.transpose()", x.type)
        if len(shape) == 2:
            rows = [[self.typed(t, 3).text for _ in range(shape[1])] for _ in range(shape[0])]
            return Text(f"qd.Matrix([{', '.join('[' + ', '.join(r) + ']' for r in rows)}])", t)
        return Text(f"qd.Vector([{', '.join(self.typed(t, 3).text for _ in range(shape[0]))}])", t)
