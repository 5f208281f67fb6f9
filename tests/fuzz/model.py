"""A second meaning of a program: its text, run by a small interpreter of Python that shares nothing with the compiler.

``run(text)`` executes a program's file with a ``qd`` of its own. Kernels and functions are interpreted statement by statement on typed
values; parallel loops run in order. What the model does not know is ``Unsupported``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from .functions import Arithmetic, is_python
from .scalars import F32, F64, I32, I64, TYPES, U1, Type, make, type_of
from .values import (
    Element,
    Mat,
    MatType,
    Member,
    Parts,
    Struct,
    StructTensor,
    StructType,
    Tensor,
    Unsupported,
    Var,
    like,
    of_type,
    rounded,
    scalar_type,
    typed,
)

OPS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "BitAnd": "&", "BitOr": "|",
    "BitXor": "^", "LShift": "<<", "RShift": ">>", "MatMult": "@", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==",
    "NotEq": "!=", "USub": "-", "UAdd": "+", "Invert": "~", "Not": "not",
}  # fmt: skip
ATOMIC = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
OF_ATOMIC = {code: op for op, code in ATOMIC.items()} | {"min": "min", "max": "max"}
SWIZZLE = "xyzw"


class _Leave(Exception):
    def __init__(self, kind: str, value: Any = None) -> None:
        super().__init__(kind)
        self.kind, self.value = kind, value


class Function:
    """A kernel or a func of a program; ``owner`` is the object that it is a method of."""

    def __init__(self, machine: Machine, fn: Any, kernel: bool, owner: Any = None) -> None:
        self.machine, self.fn, self.kernel, self.owner = machine, fn, kernel, owner
        self.tree = machine.trees[fn.__qualname__]

    def __get__(self, owner: Any, _: Any = None) -> Function:
        return self if owner is None else Function(self.machine, self.fn, self.kernel, owner)

    def __call__(self, *args: Any) -> Any:
        """A launch."""
        given = ([self.owner] if self.owner is not None else []) + list(args)
        out = self.machine.call(self, [_argument(self, k, a) for k, a in enumerate(given)])
        if out is None:
            return None
        annotation = self.fn.__annotations__.get("return")
        out = tuple(map(of_type, out, annotation.__args__)) if isinstance(out, tuple) else of_type(rounded(out), annotation)
        return _python(out)


def _python(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_python, x))
    return np.array([i for i in x.items]).reshape(x.shape) if isinstance(x, Mat) else x


def _argument(f: Function, k: int, value: Any) -> Any:
    name = f.tree.args.args[k].arg
    kind = f.fn.__annotations__.get(name)
    if isinstance(value, np.ndarray) and not isinstance(kind, (Type, MatType)):
        out = Tensor(type_of(value.dtype.type()), value.shape, ())
        out.data = value
        return _argument_array(out)
    if isinstance(value, (list, tuple, np.ndarray)):
        return of_type(np.array(value).reshape(-1).tolist(), kind)
    return of_type(value, kind) if isinstance(kind, (Type, MatType, StructType)) else value


class Machine:
    """The interpreter of one program, for its default types."""

    def __init__(self, text: str, options: dict[str, Any], budget: int = 400_000) -> None:
        self.trees: dict[str, ast.FunctionDef] = {}
        self._find(ast.parse(text).body, "")
        ip, fp = (TYPES[options.get(n, d)] for n, d in (("default_ip", "i32"), ("default_fp", "f32")))
        self.a = Arithmetic(ip, fp)
        self.table = self.a.table()
        self.left = budget
        self.scopes: list[dict[str, Var]] = []
        self.globals: dict[str, Any] = {}

    def _find(self, body: list[ast.stmt], prefix: str) -> None:
        for s in body:
            if isinstance(s, ast.FunctionDef):
                self.trees[prefix + s.name] = s
            elif isinstance(s, ast.ClassDef):
                self._find(s.body, f"{prefix}{s.name}.")

    # ---- names
    def lookup(self, name: str) -> Var | None:
        return next((s[name] for s in reversed(self.scopes) if name in s), None)

    def inside(self, body: list[ast.stmt], names: dict[str, Any] | None = None) -> None:
        """A block with a scope of its own."""
        self.scopes.append({n: Var(v) for n, v in (names or {}).items()})
        try:
            self.block(body)
        finally:
            self.scopes.pop()

    def block(self, body: list[ast.stmt]) -> None:
        for s in body:
            self.left -= 1
            if self.left < 0:
                raise Unsupported("too long")
            getattr(self, "s_" + type(s).__name__, self.unknown)(s)

    def unknown(self, node: ast.AST) -> Any:
        raise Unsupported(type(node).__name__)

    # ---- calls
    def call(self, f: Function, args: list[Any]) -> Any:
        """Run a function on evaluated arguments; what it returns."""
        before, self.scopes = self.scopes, [{}]
        outer, self.globals = self.globals, f.fn.__globals__
        try:
            for p, value in zip(f.tree.args.args, args, strict=True):
                self.scopes[0][p.arg] = value if isinstance(value, (Var, Element, Parts, Member)) else Var(value)
            self.block(f.tree.body)
        except _Leave as leave:
            return leave.value
        finally:
            self.scopes, self.globals = before, outer
        return None

    def inline(self, f: Function, nodes: list[ast.expr], owner: Any = None) -> Any:
        """A call of a func in a kernel."""
        args: list[Any] = [owner] if owner is not None else [f.owner] if f.owner is not None else []
        stored = {n.id for n in ast.walk(f.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for p, node in zip(f.tree.args.args[len(args) :], nodes, strict=True):
            kind = f.fn.__annotations__.get(p.arg)
            if kind == "template":
                args.append(self.reference(node))
                continue
            value = self.expr(node)
            value = of_type(rounded(value), kind) if kind is not None else rounded(value)
            args.append(rounded(self.a.scalar(value)) if p.arg in stored and is_python(value) else value)
        out = self.call(f, args)
        early = any(isinstance(n, ast.Return) for s in f.tree.body if not isinstance(s, ast.Return) for n in ast.walk(s))
        kind = f.fn.__annotations__.get("return")
        if kind is not None and out is not None:
            return of_type(self.a.scalar(out) if is_python(out) else out, kind)
        return rounded(self.a.scalar(out) if is_python(out) else out) if early and out is not None else out

    def e_Call(self, node: ast.Call) -> Any:
        f = self.expr(node.func)
        if isinstance(f, Function):
            return self.inline(f, [*node.args, *(k.value for k in node.keywords)])
        if isinstance(f, _Method):
            return self.inline(f.function, node.args, f.owner)
        if isinstance(f, str) and f.startswith("atomic_"):
            return self.atomic(f[7:], self.reference(node.args[0]), self.expr(node.args[1]))
        args = [self.expr(x) for x in node.args]
        named = {k.arg: self.expr(k.value) for k in node.keywords if k.arg}
        if f is range:
            return range(*args) if all(map(is_python, args)) else _Range(*args)
        if isinstance(f, Type):
            return self.a.cast(args[0], f)
        if isinstance(f, MatType):
            return of_type(args[0] if len(args) == 1 else args, f)
        if isinstance(f, StructType):
            values = dict(zip(f.members, args)) | named
            return Struct(f, {n: of_type(values.get(n, 0), t) for n, t in f.members.items()})
        if isinstance(f, str) and f in ("ndrange", "grouped", "static"):
            return {"ndrange": lambda: _Nd(args), "grouped": lambda: _Grouped(args[0]), "static": lambda: args[0]}[f]()
        try:
            return self.table[f](*args, **named)
        except KeyError:
            if callable(f) and not isinstance(f, str) and f not in (min, max):
                return f(*args, **named)
            raise Unsupported(f"a call of {f}") from None

    def atomic(self, code: str, target: Any, value: Any) -> Any:
        """Update a target; the old content."""
        old = target.get()
        if code not in OF_ATOMIC:
            raise Unsupported(code)
        target.set(self._combined(OF_ATOMIC[code], old, value))
        return old

    def _combined(self, op: str, old: Any, value: Any) -> Any:
        """The update is computed in the type of what is updated."""
        if isinstance(old, Mat):
            items = value.items if isinstance(value, Mat) else (value,) * len(old.items)
            return Mat(old.shape, tuple(self._combined(op, o, v) for o, v in zip(old.items, items, strict=True)))
        t = type_of(old)
        if t == U1:
            raise Unsupported("an atomic on a truth value")
        return self.a.apply(op, old, typed(self.a.scalar(value), t), t)

    # ---- references
    def reference(self, node: ast.expr) -> Any:
        """What an expression names, to be written."""
        if isinstance(node, ast.Name):
            found = self.lookup(node.id)
            return found if found is not None else self.expr(node)
        if isinstance(node, ast.Attribute):
            owner = self.reference(node.value)
            if isinstance(owner, StructTensor) or (isinstance(owner, Var) and isinstance(owner.value, StructTensor)):
                return (owner.value if isinstance(owner, Var) else owner).members[node.attr]
            if isinstance(owner, Element) and isinstance(owner.tensor, StructTensor):
                return owner.member(node.attr)
            value = owner.get() if hasattr(owner, "get") else owner
            if isinstance(value, Struct):
                return Member(owner, node.attr)
            if isinstance(value, Mat):
                where = tuple(SWIZZLE.index(c) for c in node.attr)
                return Parts(owner, where, None if len(where) == 1 else (len(where),))
            return self.expr(node)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        return self.expr(node)

    def _item(self, node: ast.Subscript) -> Any:
        owner = self.reference(node.value)
        value = owner.get() if isinstance(owner, (Var, Element, Member, Parts)) else owner
        if isinstance(value, (Tensor, StructTensor)):
            return Element(value, self.index(node.slice))
        if isinstance(value, Mat):
            where, shape = _positions(
                value.shape, [self.expr(n) if not isinstance(n, ast.Slice) else self.slice(n) for n in _parts(node.slice)]
            )
            return Parts(owner, where, shape)
        raise Unsupported("a target")

    def slice(self, node: ast.Slice) -> slice:
        return slice(*(None if n is None else int(self.expr(n)) for n in (node.lower, node.upper, node.step)))

    def index(self, node: ast.expr) -> tuple[int, ...]:
        out: list[int] = []
        for n in _parts(node):
            value = self.expr(n)
            if value is None:
                continue
            for x in value.items if isinstance(value, Mat) else (value,):
                x = rounded(self.a.scalar(x))
                out.append(int(typed(x, I64 if scalar_type(x).bits == 64 or scalar_type(x).name == "u32" else I32)))
        return tuple(out)

    # ---- expressions
    def expr(self, node: ast.expr) -> Any:
        return getattr(self, "e_" + type(node).__name__, self.unknown)(node)

    def e_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def e_Name(self, node: ast.Name) -> Any:
        found = self.lookup(node.id)
        if found is not None:
            return found.get()
        if node.id in self.globals:
            return self.globals[node.id]
        import builtins

        return getattr(builtins, node.id)

    def e_Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(map(self.expr, node.elts))

    def e_List(self, node: ast.List) -> list[Any]:
        return list(map(self.expr, node.elts))

    def e_BinOp(self, node: ast.BinOp) -> Any:
        return self.a.binary(OPS[type(node.op).__name__], self.expr(node.left), self.expr(node.right))

    def e_UnaryOp(self, node: ast.UnaryOp) -> Any:
        return self.a.unary(OPS[type(node.op).__name__], self.expr(node.operand))

    def e_Compare(self, node: ast.Compare) -> Any:
        left, out = self.expr(node.left), None
        for op, right_node in zip(node.ops, node.comparators):
            right = self.expr(right_node)
            one = self.a.compare(OPS[type(op).__name__], left, right)
            both = is_python(out) and is_python(one)
            out = one if out is None else (out and one) if both else self._logical("and", out, one)
            left = right
        return out

    def _logical(self, name: str, x: Any, y: Any) -> Any:
        from .values import elementwise

        op = "&" if name == "and" else "|"
        return elementwise(lambda a, b: self.a.apply(op, self.a.truth(a), self.a.truth(b), U1), x, y)

    def e_BoolOp(self, node: ast.BoolOp) -> Any:
        name = "and" if isinstance(node.op, ast.And) else "or"
        left = self.expr(node.values[0])
        for right_node in node.values[1:]:
            if is_python(left):
                if bool(left) == (name == "or"):
                    return left
                left = self.expr(right_node)
                continue
            right = self.expr(right_node)
            if isinstance(left, Mat) or (
                scalar_type(left) == U1 and not isinstance(right, Mat) and scalar_type(self.a.scalar(right)) == U1
            ):
                left = self._logical(name, left, right)
            else:
                cond = rounded(self.a.truth(left))
                left = self.a.choose(cond, right, left) if name == "and" else self.a.choose(cond, left, right)
        return left

    def e_IfExp(self, node: ast.IfExp) -> Any:
        cond = self.expr(node.test)
        if is_python(cond):
            return self.expr(node.body if cond else node.orelse)
        x, y = self.expr(node.body), self.expr(node.orelse)
        if isinstance(x, Struct):
            return rounded(x if self.a.truth(cond) else y)
        return self.a.choose(cond, x, y)

    def e_NamedExpr(self, node: ast.NamedExpr) -> Any:
        self._assign(node.target, self.expr(node.value))
        return self.expr(node.target)

    def e_Subscript(self, node: ast.Subscript) -> Any:
        value = self.expr(node.value)
        if isinstance(value, (Tensor, StructTensor)):
            return Element(value, self.index(node.slice)).get()
        if isinstance(value, Mat):
            parts = [self.slice(n) if isinstance(n, ast.Slice) else self.expr(n) for n in _parts(node.slice)]
            where, shape = _positions(value.shape, parts)
            items = tuple(value.items[k] for k in where)
            return items[0] if shape is None else Mat(shape, items)
        return value[self.expr(node.slice)]

    def e_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.expr(node.value)
        if isinstance(owner, Mat) and all(c in SWIZZLE for c in node.attr):
            items = tuple(owner.items[SWIZZLE.index(c)] for c in node.attr)
            return items[0] if len(items) == 1 else Mat((len(items),), items)
        if isinstance(owner, Mat):
            return owner.shape[0] if node.attr == "n" else self.a_method(owner, node.attr)
        if isinstance(owner, Struct):
            if node.attr in owner.items:
                return owner.items[node.attr]
            return _Method(owner.type.methods[node.attr], self.reference(node.value))
        if isinstance(owner, Tensor) and node.attr == "shape" and not owner.known:
            return tuple(make(n, I32) for n in owner.shape)
        return getattr(owner, node.attr)

    def a_method(self, m: Mat, name: str) -> Callable[..., Any]:
        return self.a.method(m, name)

    # ---- statements
    def s_Expr(self, s: ast.Expr) -> None:
        self.expr(s.value)

    def s_Pass(self, s: ast.Pass) -> None:
        pass

    def s_Assign(self, s: ast.Assign) -> None:
        value = self.expr(s.value)
        for target in s.targets:
            self._assign(target, value)

    def s_AnnAssign(self, s: ast.AnnAssign) -> None:
        assert s.value is not None
        value = self.expr(s.value)
        kind = self.expr(s.annotation)
        self._assign(s.target, of_type(self.a.scalar(value) if is_python(value) else value, kind))

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.items if isinstance(value, Mat) else value
            for t, v in zip(target.elts, parts, strict=True):
                self._assign(t, v)
            return
        if isinstance(target, ast.Name):
            found = self.lookup(target.id)
            if found is None:
                value = self.a.scalar(value) if is_python(value) else value
                self.scopes[-1][target.id] = Var(rounded(value))
                return
            found.set(self.a.scalar(value) if is_python(value) else value)
            return
        value = self.a.build(value) if isinstance(value, (list, tuple)) else value
        self.reference(target).set(value)

    def s_AugAssign(self, s: ast.AugAssign) -> None:
        op = OPS[type(s.op).__name__]
        target = self.reference(s.target)
        value = self.expr(s.value)
        if target.shared and op in ATOMIC:
            self.atomic(ATOMIC[op], target, value)
        else:
            target.set(self.a.binary(op, target.get(), value))

    def s_If(self, s: ast.If) -> None:
        cond = self.expr(s.test)
        self.inside(s.body if (cond if is_python(cond) else self._holds(cond)) else s.orelse)

    def _holds(self, cond: Any) -> bool:
        return bool(rounded(self.a.truth(cond)))

    def s_While(self, s: ast.While) -> None:
        if isinstance(s.test, ast.Call) and isinstance(s.test.func, ast.Attribute) and s.test.func.attr == "do_while":
            return self._counted(ast.Subscript(s.test.args[0], ast.Constant(None), ast.Load()), s.body)
        while self._holds(self.expr(s.test)):
            self.left -= 1
            if self.left < 0:
                raise Unsupported("too long")
            try:
                self.inside(s.body)
            except _Leave as leave:
                if leave.kind == "return":
                    raise
                if leave.kind == "break":
                    break

    def _counted(self, counter: ast.expr, body: list[ast.stmt]) -> None:
        """A loop that the device counts: once, and again while the number is not zero."""
        while True:
            self.inside(body)
            if not self._holds(self.expr(counter)):
                break

    def s_With(self, s: ast.With) -> None:
        self.block(s.body)  # sections that may overlap: in their order

    def s_For(self, s: ast.For) -> None:
        for value in _iterate(self, self.expr(s.iter), s.iter):
            names: dict[str, Any] = {}
            if isinstance(s.target, ast.Name):
                names[s.target.id] = value[0] if isinstance(value, list) and len(value) == 1 else value
            else:
                names |= dict(zip([t.id for t in s.target.elts], value, strict=True))  # type: ignore[attr-defined]
            try:
                self.inside(s.body, names)
            except _Leave as leave:
                if leave.kind == "return":
                    raise
                if leave.kind == "break":
                    break

    def s_Break(self, s: ast.Break) -> None:
        raise _Leave("break")

    def s_Continue(self, s: ast.Continue) -> None:
        raise _Leave("continue")

    def s_Return(self, s: ast.Return) -> None:
        raise _Leave("return", None if s.value is None else self.expr(s.value))


class _Range:
    def __init__(self, *args: Any) -> None:
        self.args = args


class _Nd:
    def __init__(self, axes: list[Any]) -> None:
        self.axes = axes


class _Grouped:
    def __init__(self, over: Any) -> None:
        self.over = over


class _Method:
    def __init__(self, function: Function, owner: Any) -> None:
        self.function, self.owner = function, owner


def _parts(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _positions(shape: tuple[int, ...], index: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Flat positions of components, and the shape of what they make; None: one component."""
    index = [*index, *[slice(None)] * (len(shape) - len(index))]
    axes = [list(range(n))[i] if isinstance(i, slice) else [int(i)] for i, n in zip(index, shape)]
    if any(not 0 <= k < n for axis, n in zip(axes, shape) for k in axis):
        raise Unsupported("a component out of range")
    where = tuple(p[0] if len(shape) == 1 else p[0] * shape[1] + p[1] for p in product(*axes))
    out = tuple(len(axis) for axis, i in zip(axes, index) if isinstance(i, slice))
    return where, out or None


def _bounds(m: Machine, over: Any) -> tuple[range, Type]:
    args = [rounded(m.a.scalar(x)) for x in over.args]
    step = int(args[2]) if len(args) == 3 else 1
    begin, end = (make(0, m.a.ip), args[0]) if len(args) == 1 else args[:2]
    t = I64 if any(scalar_type(x).bits == 64 for x in (begin, end)) else I32
    return range(int(typed(begin, t)), int(typed(end, t)), step), t


def _axis(m: Machine, over: Any) -> tuple[range, Type]:
    if isinstance(over, range):
        return over, I64 if m.a.ip.bits == 64 else I32
    if isinstance(over, tuple):
        return _bounds(m, _Range(*over))
    return _bounds(m, over if isinstance(over, _Range) else _Range(over))


def _iterate(m: Machine, over: Any, node: ast.expr) -> Iterator[Any]:
    static = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "static"
    if static:
        if isinstance(over, _Nd):
            yield from product(*(r for r, _ in (_axis(m, a) for a in over.axes)))
            return
        yield from over
        return
    grouped = isinstance(over, _Grouped)
    over = over.over if isinstance(over, _Grouped) else over
    if isinstance(over, (Tensor, StructTensor)):
        axes = [(range(n), I32) for n in over.shape]
    else:
        axes = [_axis(m, a) for a in over.axes] if isinstance(over, _Nd) else [_axis(m, over)]
    for position in product(*(r for r, _ in axes)):
        values = [make(p, t) for p, (_, t) in zip(position, axes)]
        yield Mat((len(values),), tuple(values)) if grouped else values


class Qd(SimpleNamespace):
    """What a program knows as ``qd``."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(**TYPES)
        self.Layout = SimpleNamespace(SOA="soa", AOS="aos")
        self.math = SimpleNamespace(
            clamp="clamp", mix="mix", sign="sign", pi=float(np.pi), e=float(np.e), inf=float("inf"), nan=float("nan")
        )
        self.types = SimpleNamespace(
            vector=lambda n, t: MatType((n,), t), matrix=lambda n, m, t: MatType((n, m), t),
            struct=lambda **members: StructType(members, {}), ndarray=lambda *a, **k: "array",
        )  # fmt: skip
        self.field = lambda t, shape=(), **_: MatType((), t).field(shape)
        self.ndarray = lambda t, shape=(), **_: _argument_array(MatType((), t).field(shape))
        self.Vector = _Maker("Vector", lambda n, t: MatType((n,), t))
        self.Matrix = _Maker("Matrix", lambda n, m, t: MatType((n, m), t))
        self.kernel = lambda fn=None, **_: (lambda f: Function(machine, f, True)) if fn is None else Function(machine, fn, True)
        self.func = lambda fn: Function(machine, fn, False)
        self.data_oriented = lambda cls=None, **_: cls if cls is not None else (lambda c: c)
        self.dataclass = lambda cls: StructType(
            dict(cls.__annotations__), {n: f for n, f in vars(cls).items() if isinstance(f, Function)}
        )
        self.template = lambda: "template"
        self.loop_config = lambda **_: None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return name  # a function of the language


class _Maker(str):
    """``qd.Vector``: a function of kernels, and in Python what makes fields."""

    def __new__(cls, name: str, make_type: Callable[..., MatType]) -> _Maker:
        out = super().__new__(cls, name)
        out.field = lambda *a, shape=(), **_: make_type(*a).field(shape)  # type: ignore[attr-defined]
        out.ndarray = lambda *a, shape=(), **_: _argument_array(make_type(*a).field(shape))  # type: ignore[attr-defined]
        return out

    def __call__(self, rows: Any, t: Type) -> Mat:
        return of_type(rows, MatType(np.shape(rows), t))


def _argument_array(t: Tensor) -> Tensor:
    """An array that comes with a launch: its extents are values, not literals."""
    t.known = False
    return t


def run(text: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a program's ``main()`` returns, by the model."""
    machine = Machine(text, options)
    space: dict[str, Any] = {"qd": Qd(machine), "np": np, "__name__": "model"}
    body = "\n".join("" if line.startswith("import qdrun") else line for line in text.splitlines())
    exec(compile(body, "<model>", "exec", dont_inherit=True), space)
    with np.errstate(all="ignore"):
        return space["main"]()


__all__ = ["F32", "F64", "Machine", "Unsupported", "like", "run"]
