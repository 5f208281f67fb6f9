"""Writes a whole random program: a Python file with fields, functions, kernels, and ``main()``, which launches them and gives results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .draw import Array, Choices, Form, Name, Place, literal
from .scalars import F32, I32, TYPES, U1, Type
from .statements import Statements

HELPERS = """
@qd.func
def grid(v):
    w = qd.floor(qd.math.clamp(v, -50.0, 50.0)) + 0.0
    return w


@qd.func
def at(x: qd.template(), i):
    return x[i]


@qd.func
def pair(a, b):
    c = b
    if a > b:
        c = b * 2
    return a, c


@qd.func
def nonan(v):
    r = v
    if qd.isnan(r):
        r = 0.0
    return r
"""


@dataclass(frozen=True)
class Program:
    """A program: its file, what it is made of, and whether its last bits may differ between machines."""

    text: str
    features: frozenset[str]
    inexact: bool = False
    differentiable: bool = False


class Writer(Statements):
    """Writes the kernels and functions of one program."""

    def __init__(self, c: Choices, ip: Type, fp: Type) -> None:
        super().__init__(c, ip, fp)
        self.forms: list[Form] = []
        self.everything: list[Array] = []
        self.struct_fields: list[tuple[Array, Form]] = []
        self.wholes: list[str] = []  # ndarrays of which kernels get a part
        self.main: list[str] = []
        self.reducers: list[Name] = []
        self.counters: list[str] = []  # of loops that the device counts

    # ---- declarations
    def compose(self) -> str:
        c = self.c
        self.declarations()
        self.lines += HELPERS.splitlines()
        if "func" in c.on:
            for _ in range(c.number(1, 2)):
                self.func()
        if "reference" in c.on:
            for real in (False, True):
                self.reference_func(real)
        for _ in range(c.pick((1, 1, 2, 3))):
            self.kernel()
        counters = [f"{name} = qd.field(qd.i32, shape=())" for name in self.counters]
        return "\n".join([*self.lines, "", "", *counters, *self.finish()]) + "\n"

    def declarations(self) -> None:
        c = self.c
        for _ in range(c.number(0, 2)):
            name, value = c.fresh("C").upper(), c.pick((c.number(-4, 9), float(c.number(-9, 9)) / 4))
            self.constants.append((name, value))
            self.lines.append(f"{name} = {value!r}")
        if "struct" in c.on:
            self.struct()
        for k in range(c.number(2, 5)):
            self.array(k)
        if self.forms:
            form = self.forms[0]
            name, n = c.fresh("sf"), c.number(2, 6)
            self.struct_fields.append((Array(name, I32, (n,)), form))
            self.lines.append(f"{name} = {form.name}.field(shape=({n},))")
            zeros = ", ".join(f'"{m}": np.zeros(({n},) + {s})' for m, (_, s) in form.members.items())
            self.main.append(f"{name}.from_numpy({{{zeros}}})")

    def array(self, k: int) -> None:
        """A field, an ndarray or a numpy array with its first content."""
        c = self.c
        t = U1 if "u1" in c.on and k == 3 else c.type() if k else c.pick(c.ints)
        shape = c.pick(((c.number(1, 6),), (c.number(7, 40),), (8,), (c.number(1, 4), c.number(2, 5)), ()))
        element: tuple[int, ...] = ()
        if t != U1 and c.has("vector", 0.3):
            element = (2, 2) if c.has("matrix", 0.4) else (c.number(2, 3),)
        kind = "ndarray" if shape and c.has("ndarray", 0.4) else "field"
        if kind == "field" and shape and not element and c.has("numpy", 0.3):
            kind = "numpy"
        layout = ""
        if kind == "field" and shape and c.has("layout", 0.5):
            layout = "qd.Layout.SOA" if element else "(1, 0)" if len(shape) == 2 else ""
        a = Array(c.fresh("x"), t, shape, element, kind, t.real and t.bits > 16 and c.chance(0.4), layout)
        self.everything.append(a)
        content = c.data(a)
        if kind == "numpy" and c.has("views", 0.5):
            content = f"np.asfortranarray({content})" if len(shape) == 2 else f"np.repeat({content}, 2)[::-2]"
        if kind == "field":
            self.lines.append(f"{a.name} = {_maker(a, 'field')}")
            self.main.append(f"{a.name}.from_numpy({content})")
        elif kind == "numpy":
            self.main.append(f"{a.name} = {content}")
        elif len(shape) == 1 and c.has("parts", 0.5):
            before, after = c.number(0, 3), c.number(0, 3)
            whole = replace(a, name=f"{a.name}w", shape=(before + shape[0] + after,))
            around = ((before, after), *((0, 0) for _ in element))
            self.main += [f"{whole.name} = {_maker(whole, 'ndarray')}", f"{whole.name}.from_numpy(np.pad({content}, {around}))"]
            self.main.append(f"{a.name} = {whole.name}[{before}:{before + shape[0]}]")
            self.wholes.append(whole.name)
        else:
            self.main += [f"{a.name} = {_maker(a, 'ndarray')}", f"{a.name}.from_numpy({content})"]

    def struct(self) -> None:
        c = self.c
        name = c.fresh("S")
        members: dict[str, tuple[Type, tuple[int, ...]]] = {"a": (c.pick(c.reals), ()), "b": (c.pick(c.ints), ())}
        if "vector" in c.on:
            members["c"] = (c.pick(c.reals), (2,))
        self.forms.append(Form(name, members))
        lines = ["", "", "@qd.dataclass", f"class {name}:"]
        lines += [f"    {m}: {_type(t, s)}" for m, (t, s) in members.items()]
        lines += ["", "    @qd.func", "    def push(self, d):", "        self.a = self.a * 0.5 + d", "        self.b += 1", ""]
        self.lines += lines

    # ---- functions
    def func(self) -> None:
        """A function of numbers; it may have several returns."""
        c = self.c
        name = c.fresh("f")
        types = [c.pick((*c.ints, *c.reals)) for _ in range(c.number(1, 3))]
        result = c.pick((*c.ints, *c.reals))
        parameters = [c.fresh("p") for _ in types]
        given = ", ".join(f"{p}: qd.{t}" for p, t in zip(parameters, types))
        self.lines += ["", "", "@qd.func", f"def {name}({given}) -> qd.{result}:"]
        before = self.place
        self.place = Place(functions=c.has("nested"), arrays=False, roles={})
        self.scopes, self.left = [[Name(p, t) for p, t in zip(parameters, types)]], c.number(1, 4)
        while self.left > 0:
            self.statement(1)
        if c.has("early"):
            self.put(1, f"if {self.bool_().text}:")
            self.put(2, f"return {self.scalar(result).text}")
        self.put(1, f"return {self.scalar(result).text}")
        self.place, self.scopes = before, [[]]
        self.functions.append((name, types, result))

    def reference_func(self, real: bool) -> None:
        c = self.c
        name = c.fresh("r")
        e = f"r {c.pick('+-*')} v" if c.chance(0.5) else f"v {c.pick('+-*')} 2"
        self.lines += ["", "", "@qd.func", f"def {name}(r: qd.template(), v):", f"    r = {e}"]
        if c.chance(0.5):
            self.lines += ["    if r > v:", "        r -= 1"]
        self.references.append((name, real))

    # ---- kernels
    def kernel(self) -> None:
        """A kernel with scalar and array parameters, tasks, perhaps a result; and its launch in ``main``."""
        c = self.c
        name = c.fresh("k")
        scalars = [(c.fresh("n"), c.pick((*c.ints, *c.reals))) for _ in range(c.number(0, 2))]
        arrays = [a for a in self.everything if a.kind != "field"]
        fields = [a for a in self.everything if a.kind == "field"]
        templates = [a for a in fields if c.has("template", 0.15)]
        vectors = [(c.fresh("w"), c.pick((*c.ints, *c.reals)), c.pick(((2,), (3,), (2, 2))))] if c.has("vectors", 0.5) else []
        records = [(c.fresh("q"), f) for f in self.forms if c.has("records", 0.5)]
        given = [f"{n}: qd.{t}" for n, t in scalars] + [f"{n}: {_type(t, s)}" for n, t, s in vectors]
        given += [f"{n}: {f.name}" for n, f in records]
        given += [f"{a.name}: {_argument(a)}" for a in arrays] + [f"{a.name}: qd.template()" for a in templates]
        staged = c.has("stages")
        result = c.pick((*c.ints, *c.reals)) if not staged and c.has("returns", 0.6) else None
        decorator = "@qd.kernel(graph=True)" if staged else "@qd.kernel"
        oriented = c.has("oriented", 0.5)
        d = 2 if oriented else 1
        self.lines += ["", ""]
        if oriented:
            self.lines += [
                "@qd.data_oriented",
                f"class O{name}:",
                "    def __init__(self):",
                f"        self.m = {c.number(-3, 9)}",
                "",
            ]
            self.lines += [
                f"    {decorator}",
                f"    def {name}(self, {', '.join(given)}){f' -> qd.{result}' if result else ''}:",
            ]
        else:
            self.lines += [decorator, f"def {name}({', '.join(given)}){f' -> qd.{result}' if result else ''}:"]
        self.arrays, self.structs = self.everything, self.struct_fields
        self.scopes = [[Name(n, t, mutable=False) for n, t in scalars]]
        self.scopes[0] += [Name(n, t, shape, mutable=False) for n, t, shape in vectors]
        self.scopes[0] += [Name(n, I32, mutable=False, form=f) for n, f in records]
        if oriented:
            self.scopes[0].append(Name("self.m", self.ip, mutable=False, static=True))
        counter = self.counted(d) if staged else ""
        for _ in range(0 if staged else c.number(1, 3)):
            self.task(d)
        if result:
            self.place = Place(roles=None, loops=3)
            self.put(d, f"return {self.scalar(result).text}")
        for suffix in ("", "b") if c.has("again", 0.4) else ("",):
            values = [self.value(t) for _, t in scalars] + [self.vector_value(t, s) for _, t, s in vectors]
            values += [f"{f.name}({', '.join(self.vector_value(t, s) for t, s in f.members.values())})" for _, f in records]
            values += [a.name for a in (*arrays, *templates)]
            if staged:
                self.main.append(f'{counter}.from_numpy(np.array({c.number(1, 3)}, "int32"))')
            call = f"{f'O{name}().' if oriented else ''}{name}({', '.join(values)})"
            self.main.append(f'out["{name}{suffix}"] = {call}' if result else call)

    def counted(self, d: int) -> str:
        """A loop that the device counts, with tasks in it and perhaps another one; its counter."""
        c = self.c
        counter, given = c.fresh("g"), [*self.scopes[0]]
        self.counters.append(counter)
        self.put(d, f"while qd.graph.do_while({counter}):")
        for _ in range(c.number(1, 2)):
            self.task(d + 1)
        if c.chance(0.4):
            self.scopes = [[*given]]  # variables of one stage have no value in another
            inner = c.fresh("g")
            self.counters.append(inner)
            self.put(d + 1, f"{inner}[None] = {c.number(1, 3)}")
            self.put(d + 1, f"while qd.graph.do_while({inner}):")
            self.task(d + 2)
            self.put(d + 2, f"{inner}[None] -= 1")
            self.scopes = [[*given]]
        if c.chance(0.4):
            self.put(d + 1, "with qd.graph.parallel_context():")
            self.put(d + 2, "with qd.graph.parallel():")
            self.parallel(d + 3)
        self.put(d + 1, f"{counter}[None] -= 1")
        self.scopes = [[*given]]
        return counter

    def vector_value(self, t: Type, shape: tuple[int, ...]) -> str:
        if not shape:
            return self.value(t)
        rows = [f"[{', '.join(self.value(t) for _ in range(shape[-1]))}]" for _ in range(shape[0] if len(shape) == 2 else 1)]
        return f"qd.Vector({rows[0]}, qd.{t})" if len(shape) == 1 else f"qd.Matrix([{', '.join(rows)}], qd.{t})"

    def value(self, t: Type) -> str:
        return repr(self.c.whole(t)) if not t.real else repr(float(self.c.number(-20, 20)) / 4)

    def task(self, d: int) -> None:
        c = self.c
        kind = c.number(0, 9)
        if kind <= 1 and c.has("toplevel"):
            return self.top(d)
        if kind == 2 and c.has("serial"):
            return self.serial(d)
        self.parallel(d)

    def top(self, d: int) -> None:
        """Statements outside of loops: one thread."""
        self.place, self.left = Place(roles=None, loops=3), self.c.number(1, 5)
        for _ in range(self.left):
            self.statement(d)

    def serial(self, d: int) -> None:
        """A loop that is told to run in order: anything goes."""
        c = self.c
        self.put(d, "qd.loop_config(serialize=True)")
        i = c.fresh("i")
        self.place = Place(roles=None)
        text, _ = self.span(known=True)
        self.put(d, f"for {i} in range({text}):")
        self.left = c.number(2, 8)
        breaks = c.chance(0.4) and "," not in text
        self.body(d + 1, Place(roles=None, loops=1, breakable=breaks, continuable=True), [Name(i, I32, mutable=False)], 5)

    def parallel(self, d: int) -> None:
        """A loop whose iterations run in any order."""
        c = self.c
        self.place = Place(roles=None, loops=3)
        header, indices, own = self.header()
        total = ""
        if c.has("reduction", 0.3):
            total = c.fresh("sum")
            self.put(d, f"{total} = {c.pick(('0', '1', '-3'))}")
        self.put(d, f"for {', '.join(i.name for i in indices)} in {header}:")
        before = self.scopes
        self.scopes = [[replace(n, mutable=False) for scope in before for n in scope]]
        self.left = c.number(3, 14)
        self.body(d + 1, Place(roles={}, own=own, loops=0, continuable=True), indices, 7)
        if total:
            self.scopes.append(indices)
            self.put(d + 1, f"{total} += {self.safe_int()}")
            self.scopes.pop()
        self.scopes = before
        if total:
            self.scopes[0].append(Name(total, self.ip, mutable=False))

    def safe_int(self) -> str:
        """A whole number of names only: what a loop may read of arrays is settled by its body."""
        self.place = Place(roles={}, arrays=False)
        return f"qd.{self.ip}({self.int_(1).text})"

    def header(self) -> tuple[str, list[Name], Callable[[Array], list[str]]]:
        """What a parallel loop runs over, its indices, and the elements that an iteration has for itself."""
        c = self.c
        i, k = c.fresh("i"), c.fresh("i")
        one, two = [Name(i, I32, mutable=False)], [Name(i, I32, mutable=False), Name(k, I32, mutable=False)]
        kind = c.number(0, 9)
        over = [a for a in self.arrays if a.shape and a.kind != "numpy"]
        if kind == 0 and c.has("ndrange"):
            n, m, low = c.number(1, 4), c.number(1, 9), c.number(-2, 2)
            shifted = c.chance(0.4)
            axis = f"({low}, {low + m})" if shifted else str(m)
            base = f"{k} - ({low})" if shifted else k
            return (
                f"qd.ndrange({n}, {axis})",
                two,
                self.owner({2: (f"{i}, {base}", (n, m)), 1: (f"{i} * {m} + {base}", (n * m,))}),
            )
        if kind == 1 and over and c.has("structfor"):
            a = c.pick(over)
            names = one if len(a.shape) == 1 else two
            return a.name, names, self.owner({len(a.shape): (", ".join(n.name for n in names), a.shape)})
        if kind == 2 and over and c.has("grouped"):
            a = c.pick(over)
            vector = Name(i, I32, (len(a.shape),), mutable=False)
            return f"qd.grouped({a.name})", [vector], self.owner({len(a.shape): (i, a.shape)})
        if kind == 3 and c.has("falling"):
            high, low = c.number(2, 9), c.number(-2, 1)
            return f"range({high}, {low}, {c.pick((-1, -2, -3))})", one, self.owner({1: (f"{i} - ({low + 1})", (high - low,))})
        if kind == 4 and c.has("loops"):
            low, most = c.number(-3, 3), c.number(1, 9)
            return (
                f"range({low}, {low} + ({self.int_(2).text}) % {most})",
                one,
                self.owner({1: (f"{i} - ({low})", (most,))}),
            )
        if kind == 5 and c.has("range64"):
            n = c.number(1, 9)
            return f"range(qd.i64({n}))", [Name(i, TYPES["i64"], mutable=False)], self.owner({1: (i, (n,))})
        n = c.pick((1, 3, 5, 8, 17, 37, c.number(1, 40)))
        step = c.pick((1, 1, 1, 2, 3))
        header = f"range({n})" if step == 1 else f"range(0, {n}, {step})"
        return header, one, self.owner({1: (i, (n,))})

    def owner(self, ways: dict[int, tuple[str, tuple[int, ...]]]) -> Callable[[Array], list[str]]:
        """For each array the elements that are an iteration's own: ``ways`` has an index and its extents by the number of axes."""

        def own(a: Array) -> list[str]:
            for axes, (index, extents) in ways.items():
                if len(a.shape) >= axes and all(n >= e for n, e in zip(a.shape, extents)):
                    rest = a.shape[axes:]
                    return [", ".join([index, *(self.below(n) for n in rest)])]
            return []

        return own

    # ---- main
    def finish(self) -> list[str]:
        lines = ["def main():", "    out = {}", *("    " + line for line in self.main)]
        for a in self.everything:
            lines.append(f'    out["{a.name}"] = {a.name}' + (".to_numpy()" if a.kind != "numpy" else ""))
        for name in (*self.wholes, *(a.name for a, _ in self.struct_fields)):
            lines.append(f'    out["{name}"] = {name}.to_numpy()')
        return [*lines, "    return out"]


def _type(t: Type, shape: tuple[int, ...]) -> str:
    if not shape:
        return f"qd.{t}"
    return f"qd.types.{'vector' if len(shape) == 1 else 'matrix'}({', '.join(map(str, shape))}, qd.{t})"


def _maker(a: Array, what: str) -> str:
    more = f", layout={a.layout}" if a.layout else ""
    if not a.element:
        return f"qd.{what}(qd.{a.type}, shape={a.shape}{more})"
    kind = "Vector" if len(a.element) == 1 else "Matrix"
    return f"qd.{kind}.{what}({', '.join(map(str, a.element))}, qd.{a.type}, shape={a.shape}{more})"


def _argument(a: Array) -> str:
    return f"qd.types.ndarray(dtype={_type(a.type, a.element)}, ndim={len(a.shape)})"


def generate(seed: int, index: int) -> Program:
    """The program of this number: the same for the same seed."""
    c = Choices.of(f"{seed}:{index}")
    ip, fp = TYPES["i64"] if c.chance(0.12) else I32, TYPES["f64"] if c.chance(0.2) else F32
    options = {n: t.name for n, t, d in (("default_ip", ip, I32), ("default_fp", fp, F32)) if t != d}
    body = Writer(c, ip, fp).compose()
    text = f"import numpy as np\nimport qdrun as qd\n\nOPTIONS = {options!r}\n\n{body}"
    return Program(text, frozenset(c.features), "mathematics" in c.features)


__all__ = ["Program", "generate", "literal"]
