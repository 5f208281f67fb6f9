"""Writes random statements. Parallel loops have no races: each says once what it does with an array (reads it, owns its elements, or
updates it by atomics that commute)."""

from __future__ import annotations

from dataclasses import replace

from .draw import Array, Choices, Form, Name, Place, Text
from .expressions import Expressions
from .scalars import I32, I64, U1, Type, meet

AUGMENT = ("+=", "-=", "*=")
ATOMICS = {
    "add": ("add", "sub"),
    "min": ("min",),
    "max": ("max",),
    "mul": ("mul",),
    "and": ("and",),
    "or": ("or",),
    "xor": ("xor",),
}


class Statements(Expressions):
    """Writes blocks of statements into ``lines``."""

    def __init__(self, c: Choices, ip: Type, fp: Type) -> None:
        super().__init__(c, ip, fp)
        self.lines: list[str] = []
        self.left = 0
        self.references: list[tuple[str, bool]] = []

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def bind(self, name: Name) -> Name:
        self.scopes[-1].append(name)
        return name

    def block(self, depth: int, most: int = 4) -> None:
        """Some statements in a scope of their own."""
        self.scopes.append([])
        for _ in range(self.c.number(1, most)):
            self.statement(depth)
        self.scopes.pop()

    def statement(self, depth: int) -> None:
        """One statement, perhaps with blocks in it."""
        c = self.c
        self.left -= 1
        kind = c.number(0, 19)
        if depth < 6 and self.left > 0:
            if kind <= 2:
                return self.if_(depth)
            if kind == 3 and c.has("loops") and self.place.loops < 3:
                return self.for_(depth)
            if kind == 4 and c.has("while") and self.place.loops < 3:
                return self.while_(depth)
            if kind == 5 and c.has("static"):
                return self.static(depth)
        if kind == 6 and self.place.breakable and c.has("break"):
            return self.leave(depth, "break")
        if kind == 7 and self.place.continuable and c.has("continue"):
            return self.leave(depth, "continue")
        if kind <= 11 and self.place.arrays:
            return self.store(depth)
        if kind == 12 and self.names("struct", mutable=True) and c.has("struct"):
            return self.store_member(depth)
        if kind == 13 and c.has("reference") and self.references and self.place.functions:
            return self.by_reference(depth)
        if kind <= 15:
            return self.declare(depth)
        return self.assign(depth)

    # ---- control flow
    def if_(self, depth: int) -> None:
        c = self.c
        self.put(depth, f"if {self.bool_().text}:")
        self.block(depth + 1, 3)
        if c.chance(0.25):
            self.put(depth, f"elif {self.bool_().text}:")
            self.block(depth + 1, 2)
        if c.chance(0.4):
            self.put(depth, "else:")
            self.block(depth + 1, 2)

    def leave(self, depth: int, word: str) -> None:
        self.put(depth, f"if {self.bool_().text}:")
        self.put(depth + 1, word)

    def inner(self, breakable: bool = True) -> Place:
        return replace(self.place, loops=self.place.loops + 1, breakable=breakable, continuable=True)

    def body(self, depth: int, place: Place, names: list[Name], most: int = 3) -> None:
        """The body of a loop with its indices."""
        before, self.place = self.place, place
        self.scopes.append(names)
        self.block(depth, most)
        self.scopes.pop()
        self.place = before

    def span(self, known: bool = False) -> tuple[str, Type]:
        """The arguments of a short ``range``, and the type of its index. ``known``: it begins at a literal."""
        c = self.c
        end = f"({self.int_(2).text}) % {c.number(1, 5)}"
        kind = c.number(0, 6)
        if kind == 6 and c.has("range64"):
            return f"qd.i64({end})", I64
        if kind == 5 and not known and c.has("falling"):
            return f"{end}, {c.number(-3, 1)}, {c.pick(('-1', '-2'))}", self._index(end)
        if kind == 4:
            return f"{c.number(-3, 3)}, {end}", self._index(end)
        if kind == 3:
            return f"{c.number(-2, 4)}, {c.number(-1, 5)}, {c.number(1, 3)}", I32
        return (end, self._index(end)) if kind == 2 else (str(c.number(0, 4)), I32)

    def _index(self, _: str) -> Type:
        return I32  # or i64, where an end has 64 bits: what needs the exact type casts

    def for_(self, depth: int) -> None:
        """A loop that one thread runs."""
        c = self.c
        i = c.fresh("j")
        if c.has("ndrange", 0.3):
            k = c.fresh("j")
            self.put(depth, f"for {i}, {k} in qd.ndrange({c.number(1, 3)}, ({self.int_(2).text}) % 3):")
            return self.body(depth + 1, self.inner(False), [Name(i, I32, mutable=False), Name(k, I32, mutable=False)], 2)
        text, t = self.span()
        self.put(depth, f"for {i} in range({text}):")
        self.body(depth + 1, self.inner(), [Name(i, t, mutable=False)])

    def while_(self, depth: int) -> None:
        c = self.c
        count = c.fresh("left")
        self.put(depth, f"{count} = {c.number(1, 5)}")
        if c.has("endless", 0.4):
            self.put(depth, "while True:")
            self.put(depth + 1, f"{count} -= 1")
            self.put(depth + 1, f"if {count} < 0{' or ' + self.bool_().text if c.chance(0.4) else ''}:")
            self.put(depth + 2, "break")
            return self.body(depth + 1, self.inner(), [Name(count, self.ip, mutable=False)])
        self.put(depth, f"while {count} > 0{' and ' + self.bool_().text if c.chance(0.4) else ''}:")
        self.put(depth + 1, f"{count} -= 1")
        self.body(depth + 1, self.inner(), [Name(count, self.ip, mutable=False)])

    def static(self, depth: int) -> None:
        c = self.c
        k = c.fresh("s")
        over = c.pick((f"range({c.number(1, 3)})", "(1, -2)", "(0.5, 3.0)", f"range({c.number(-1, 1)}, {c.number(1, 3)})"))
        self.put(depth, f"for {k} in qd.static({over}):")
        place = replace(self.place, breakable=False, continuable=False)
        self.body(depth + 1, place, [Name(k, self.fp if "." in over else self.ip, mutable=False, static=True)], 2)

    # ---- variables
    def declare(self, depth: int) -> None:
        """A new variable."""
        c = self.c
        t = c.type()
        name = c.fresh("v")
        kind = c.number(0, 8)
        if kind == 0 and c.has("vector"):
            n = c.number(2, 3)
            e = self.mat((n,), t if t != U1 else c.pick(c.ints))
            self.put(depth, f"{name} = {e.text}")
            self.bind(Name(name, e.type, (n,)))
            return
        if kind == 1 and c.has("matrix"):
            e = self.mat((2, 2), t if t != U1 else c.pick(c.ints))
            self.put(depth, f"{name} = {e.text}")
            self.bind(Name(name, e.type, (2, 2)))
            return
        if kind == 2 and self.structs and c.has("struct"):
            if self.new_struct(depth, name):
                return
        if kind == 6 and self.place.functions and c.has("pairs"):
            x, y, other = self.typed(t if t != U1 else self.ip), self.typed(c.pick(c.ints)), c.fresh("v")
            self.put(depth, f"{name}, {other} = pair({x.text}, {y.text})")
            self.bind(Name(name, x.type))
            self.bind(Name(other, y.type))
            return
        if kind == 3 and c.has("tuple"):
            x, y = self.typed(t), self.scalar(c.type())
            other = c.fresh("v")
            self.put(depth, f"{name}, {other} = {x.text}, {y.text}")
            self.bind(Name(name, x.type))
            self.bind(Name(other, y.type))
            return
        if kind == 5 and c.has("walrus"):
            e, other = self.typed(t), c.fresh("v")
            self.put(depth, f"{name} = ({other} := {e.text})")
            self.bind(Name(name, e.type))
            self.bind(Name(other, e.type))
            return
        if kind == 4 and c.has("annotated"):
            self.put(depth, f"{name}: qd.{t} = {self.scalar(t).text}")
            self.bind(Name(name, t))
            return
        e = self.typed(t) if c.chance(0.6) else self.scalar(t)
        self.put(depth, f"{name} = {e.text}")
        self.bind(Name(name, e.type))

    def new_struct(self, depth: int, name: str) -> bool:
        c = self.c
        a, form = c.pick(self.structs)
        texts = self.readable(a)
        if texts and c.chance(0.6):
            self.put(depth, f"{name} = {c.pick(texts)}")
        else:
            values = [self.member(t, s) for t, s in form.members.values()]
            self.put(depth, f"{name} = {form.name}({', '.join(values)})")
        self.bind(Name(name, I32, form=form))
        return True

    def member(self, t: Type, shape: tuple[int, ...]) -> str:
        return self.mat(shape, t, 1).text if shape else self.scalar(t, 2).text

    def store_member(self, depth: int) -> None:
        c = self.c
        n = c.pick(self.names("struct", mutable=True))
        assert n.form is not None
        if c.has("method", 0.4):
            self.put(depth, f"{n.name}.push({self.scalar(c.pick(c.reals), 2).text})")
            return
        m, (t, shape) = c.pick(list(n.form.members.items()))
        if shape and c.chance(0.5):
            self.put(depth, f"{n.name}.{m}{self.component(shape)} = {self.scalar(t, 1).text}")
        else:
            self.put(depth, f"{n.name}.{m} {c.pick(('=', '+=')) if t != U1 else '='} {self.member(t, shape)}")

    def assign(self, depth: int) -> None:
        """A new value for a variable."""
        c = self.c
        kind = c.pick(("int", "real", "int", "real", "bool", "mat"))
        names = self.names(kind, mutable=True)
        if not names:
            return self.declare(depth)
        n = c.pick(names)
        if kind == "mat":
            return self.assign_mat(depth, n)
        if kind == "bool":
            self.put(depth, f"{n.name} = {self.bool_().text}")
        elif c.has("augmented", 0.5):
            op = c.pick(
                ("+=", "-=", "*=", "/=") if kind == "real" else ("+=", "-=", "*=", "//=", "%=", "^=", "|=", "&=", "<<=", ">>=")
            )
            self.put(depth, f"{n.name} {op} {self.scalar(n.type, 1).text}")
        else:  # sometimes of another kind: a variable keeps its type
            t = c.type() if c.has("cast", 0.3) else n.type
            self.put(depth, f"{n.name} = {self.scalar(t).text}")

    def assign_mat(self, depth: int, n: Name) -> None:
        c = self.c
        kind = c.number(0, 3)
        if kind == 0:
            self.put(depth, f"{n.name} {c.pick(('=', '+=', '-='))} {self.mat(n.shape, n.type).text}")
        elif kind == 1 and len(n.shape) == 1 and c.has("swizzle"):
            two = c.pick(("xy", "yx"))
            self.put(depth, f"{n.name}.{two} = {n.name}.{two[::-1]}")
        elif kind == 2 and len(n.shape) == 2 and c.has("slice"):
            self.put(depth, f"{n.name}[{c.pick((':, 0', '1, :'))}] = {self.mat((2,), n.type, 1).text}")
        else:
            op = c.pick(("=", *AUGMENT))
            self.put(depth, f"{n.name}{self.component(n.shape)} {op} {self.scalar(n.type, 1).text}")

    def by_reference(self, depth: int) -> None:
        """A call of a function that changes its argument."""
        c = self.c
        name, real = c.pick(self.references)
        targets = [n.name for n in self.names("real" if real else "int", mutable=True)]
        if not targets:
            return self.declare(depth)
        value = (self.real(2) if real else self.int_(2)).text
        self.put(depth, f"{name}({c.pick(targets)}, {value})")

    # ---- arrays
    def store(self, depth: int) -> None:
        """A write to an array, as this loop may."""
        c = self.c
        roles = self.place.roles
        everything = [*self.arrays, *(a for a, _ in self.structs)]
        if not everything:
            return self.declare(depth)
        a = c.pick(everything)
        form = next((f for s, f in self.structs if s is a), None)
        if roles is None:
            return self.write(depth, a, form, f"{a.name}[{self.index(a)}]", shared=False)
        role = roles.get(a.name)
        if role is None:
            role = roles[a.name] = self.choose_role(a, form)
        if role == "own":
            return self.write(depth, a, form, f"{a.name}[{c.pick(self.place.own(a))}]", shared=False)
        if role.startswith("atomic:") and form is None:
            return self.atomic(depth, a, role[7:])
        return self.assign(depth)

    def choose_role(self, a: Array, form: Form | None) -> str:
        c = self.c
        can_own = bool(self.place.own(a))
        if form is not None or a.type == U1 or (a.type.real and not a.grid):
            return "own" if can_own else "read"
        if "atomic" not in c.on or (can_own and c.chance(0.5)):
            return "own" if can_own else "read"
        if a.type.real:
            return "atomic:" + c.pick(("add", "add", "min", "max"))
        return "atomic:" + c.pick(("add", "add", *ATOMICS))

    def write(self, depth: int, a: Array, form: Form | None, where: str, shared: bool) -> None:
        """A store to an element that nobody else touches."""
        c = self.c
        if form is not None:
            return self.write_struct(depth, form, where)
        if a.element and c.chance(0.5):
            where += self.component(a.element)
        elif a.element:
            e = self.mat(a.element, a.type)
            value = f"grid({e.text})" if a.grid else e.text
            return self.put(depth, f"{where} {c.pick(('=', '+=', '-=')) if not a.grid else '='} {value}")
        e = self.scalar(a.type if not c.has("cast", 0.2) else c.type())
        if a.grid:
            return self.put(depth, f"{where} = grid({e.text})")
        if a.type == U1:
            return self.put(depth, f"{where} = {e.text}")
        kind = c.number(0, 5)
        if kind == 0 and c.has("atomic"):
            name = c.fresh("v")
            codes = ("add", "sub", "min", "max", "mul") + (() if a.type.real else ("and", "or", "xor"))
            code = c.pick(codes)
            self.put(depth, f"{name} = qd.atomic_{code}({where}, {compared(code, self.scalar(a.type).text, a.type)})")
            self.bind(Name(name, a.type))
        elif kind <= 2 and c.has("augmented"):
            ops = ("+=", "-=", "*=", "/=") if a.type.real else ("+=", "-=", "*=", "//=", "%=", "^=", "|=", "&=", "<<=", ">>=")
            self.put(depth, f"{where} {c.pick(ops)} {self.scalar(a.type).text}")
        else:
            self.put(depth, f"{where} = {e.text}")

    def write_struct(self, depth: int, form: Form, where: str) -> None:
        c = self.c
        c.features.add("struct")
        names = [n.name for n in self.names("struct") if n.form is form]
        if names and c.chance(0.5):
            return self.put(depth, f"{where} = {c.pick(names)}")
        m, (t, shape) = c.pick(list(form.members.items()))
        self.put(depth, f"{where}.{m} {c.pick(('=', '+=')) if t != U1 else '='} {self.member(t, shape)}")

    def atomic(self, depth: int, a: Array, code: str) -> None:
        """An update of an element that other iterations may update, too, in any order."""
        c = self.c
        c.features.add("atomic")
        where = f"{a.name}[{self.index(a)}]" + (self.component(a.element) if a.element else "")
        e = self.scalar(a.type)
        value = e.text if not a.type.real else f"grid({e.text})" if code == "add" else f"nonan(grid({e.text}))"
        code = c.pick(ATOMICS[code])
        op = {"add": "+=", "sub": "-=", "mul": "*=", "and": "&=", "or": "|=", "xor": "^="}.get(code)
        if op and c.chance(0.6):
            self.put(depth, f"{where} {op} {value}")
        else:
            self.put(depth, f"qd.atomic_{code}({where}, {compared(code, value, a.type)})")


def compared(code: str, value: str, t: Type) -> str:
    """The operand of an atomic: a minimum or a maximum compares integers of one type, as others are refused where their order differs."""
    return f"qd.cast({value}, qd.{t.name})" if code in ("min", "max") and not t.real else value


__all__ = ["I64", "Statements", "Text", "meet"]
