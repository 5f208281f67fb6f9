"""The functions of the language as the model knows them: of scalars, of vectors and matrices, methods."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from .scalars import COMPARE, I32, REAL, ROUNDINGS, TRANSCENDENTAL, TYPES, U1, Type, binary, cast, libm, meet, round_away, wrap
from .values import Lit, Mat, Tensor, Unsupported, elementwise, folded, of_type, rounded, scalar_type, typed

BITS = ("&", "|", "^", "<<", ">>")
PYTHON = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "**": lambda a, b: a**b, "&": lambda a, b: a & b,
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
}  # fmt: skip


def is_python(x: Any) -> bool:
    return isinstance(x, (bool, int, float)) and not isinstance(x, np.generic)


class Arithmetic:
    """Operators and functions, for the default types of a program."""

    def __init__(self, ip: Type, fp: Type) -> None:
        self.ip, self.fp = ip, fp

    # ---- scalars
    def scalar(self, x: Any) -> Any:
        """A literal or a typed value."""
        if not is_python(x):
            if isinstance(x, (Lit, np.generic)):
                return x
            raise Unsupported(f"{type(x).__name__} as a number")
        if isinstance(x, bool):
            return Lit(x, U1)
        if isinstance(x, float):
            return Lit(x, self.fp)
        for t in (self.ip, TYPES["i64"], TYPES["u64"]):
            if t.limits[0] <= x <= t.limits[1]:
                return Lit(x, t)
        raise Unsupported("a literal of more than 64 bits")

    def convert(self, x: Any, t: Type) -> Any:
        """A promotion: a literal stays one."""
        if isinstance(x, Lit):
            if t == U1:
                return Lit(x.value != 0, U1)
            return Lit(float(x.value), t) if t.real else Lit(int(wrap(int(x.value), t)), t)
        return cast(x, t)

    def number_type(self, *args: Any) -> Type:
        t = reduce(meet, map(scalar_type, args))
        return self.ip if t == U1 else t

    def real_type(self, *args: Any) -> Type:
        t = self.number_type(*args)
        return t if t.real else self.fp

    def truth(self, x: Any) -> Any:
        x = self.scalar(x)
        return Lit(x.value != 0, U1) if isinstance(x, Lit) else np.bool_(x != 0)

    def binary(self, op: str, x: Any, y: Any) -> Any:
        if is_python(x) and is_python(y):
            return PYTHON[op](x, y)
        if op == "@":
            return self.matmul(x, y)
        return elementwise(lambda a, b: self._binary(op, self.scalar(a), self.scalar(b)), self.vector(x), self.vector(y))

    def vector(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            raise Unsupported("a field as a number")
        return self.build(x) if isinstance(x, (list, tuple)) else x

    def _binary(self, op: str, a: Any, b: Any) -> Any:
        if op == "**":
            return self._power(a, b)
        if op in ("<<", ">>"):
            t = self.ip if scalar_type(a) == U1 else scalar_type(a)
        elif op in BITS:
            t = meet(scalar_type(a), scalar_type(b))
        else:
            t = self.real_type(a, b) if op == "/" else self.number_type(a, b)
        if op in BITS and (scalar_type(a).real or scalar_type(b).real):
            raise Unsupported("bits of reals")
        return self.apply(op, self.convert(a, t), self.convert(b, t), t)

    def apply(self, op: str, a: Any, b: Any, t: Type) -> Any:
        """An operation on two values of one type."""
        if isinstance(a, Lit) and isinstance(b, Lit) and (op in REAL or not t.real):
            return folded(op, a, b, t)
        a, b = typed(a, t), typed(b, t)
        if t == U1 and op in ("&", "|", "^"):
            return np.bool_({"&": a & b, "|": a | b, "^": a ^ b}[op])
        return binary(op, a, b, t)

    def _power(self, a: Any, b: Any) -> Any:
        t = self.number_type(a, b)
        a = self.convert(a, t)
        if isinstance(a, Lit) and isinstance(b, Lit):
            raise Unsupported("a power of literals")
        if isinstance(b, Lit) and float(b.value).is_integer() and abs(b.value) <= 64:
            return self._whole_power(a, int(b.value), t)
        if isinstance(b, Lit) and b.value == 0.5:
            return self.real("sqrt", a)
        if t.real and not isinstance(b, Lit) and (float(b).is_integer() or b == 0.5):
            raise Unsupported("a whole exponent, or a half, that the compiler may know, and then multiplies out")
        return binary("**", typed(a, t), typed(b, t), t)

    def _whole_power(self, a: Any, n: int, t: Type) -> Any:
        if n < 0 and not t.real:
            raise Unsupported("a negative power")
        result, square, rest = None, a, abs(n)
        while rest:
            if rest & 1:
                result = square if result is None else binary("*", result, square, t)
            rest >>= 1
            if rest:
                square = binary("*", square, square, t)
        if result is None:
            return typed(1, t)
        return binary("/", typed(1, t), result, t) if n < 0 else result

    def unary(self, op: str, x: Any) -> Any:
        if is_python(x):
            return {"-": lambda v: -v, "+": lambda v: +v, "~": lambda v: ~v, "not": lambda v: not v}[op](x)
        return elementwise(lambda a: self._unary(op, self.scalar(a)), x)

    def _unary(self, op: str, a: Any) -> Any:
        if op == "not":
            t = self.truth(a)
            return Lit(not t.value, U1) if isinstance(t, Lit) else np.bool_(not t)
        if op == "~":
            t = scalar_type(a)
            a = typed(a, t)
            return np.bool_(not a) if t == U1 else wrap(~int(a), t)
        t = self.number_type(a)
        a = self.convert(a, t)
        if op == "+":
            return a
        if isinstance(a, Lit):
            return Lit(-a.value if t.real else int(wrap(-a.value, t)), t)
        return -a if t.real else wrap(-int(a), t)

    def compare(self, op: str, x: Any, y: Any) -> Any:
        if is_python(x) and is_python(y):
            return bool(COMPARE[op](x, y))
        return elementwise(lambda a, b: self._compare(op, self.scalar(a), self.scalar(b)), self.vector(x), self.vector(y))

    def _compare(self, op: str, a: Any, b: Any) -> Any:
        t = meet(scalar_type(a), scalar_type(b))
        a, b = self.convert(a, t), self.convert(b, t)
        if isinstance(a, Lit) and isinstance(b, Lit):
            return Lit(bool(COMPARE[op](a.value, b.value)), U1)
        return np.bool_(COMPARE[op](typed(a, t), typed(b, t)))

    def choose(self, cond: Any, x: Any, y: Any) -> Any:
        """``x if cond else y`` of a condition that is known at run time only: in the type in which the two meet."""

        def one(c: Any, a: Any, b: Any) -> Any:
            a, b, c = self.scalar(a), self.scalar(b), self.truth(c)
            t = meet(scalar_type(a), scalar_type(b))
            a, b = self.convert(a, t), self.convert(b, t)
            if isinstance(c, Lit):
                return a if c.value else b
            return typed(a, t) if c else typed(b, t)

        return elementwise(one, cond, x, y)

    # ---- functions of one value
    def real(self, name: str, x: Any) -> Any:
        """A real function; integers are taken as the default real type."""

        def one(a: Any) -> Any:
            a = self.scalar(a)
            t = self.real_type(a)
            if isinstance(a, Lit):
                raise Unsupported("a function of a literal")
            return self._real(name, cast(a, t), t)

        return elementwise(one, x)

    def _real(self, name: str, a: Any, t: Type) -> Any:
        with np.errstate(all="ignore"):
            if name == "sqrt":
                return np.sqrt(a)
            if name == "rsqrt":
                return t.numpy.type(1) / np.sqrt(a)
            if t.bits == 16:
                return cast(libm(name, np.float32(a)), t)
            return libm(name, a)

    def rounding(self, f: Callable[[Any], Any], x: Any, dtype: Any = None) -> Any:
        def one(a: Any) -> Any:
            a = self.scalar(a)
            if isinstance(a, Lit):
                raise Unsupported("a rounded literal")
            return f(a) if scalar_type(a).real else a

        out = elementwise(one, x)
        return out if dtype is None else self.cast(out, dtype)

    def cast(self, x: Any, dtype: Any) -> Any:
        t = {int: self.ip, float: self.fp, bool: U1}.get(dtype, dtype)
        return elementwise(lambda a: typed(self.scalar(a), t), x)

    def abs(self, x: Any) -> Any:
        def one(a: Any) -> Any:
            a = self.scalar(a)
            if isinstance(a, Lit):
                return Lit(abs(a.value), a.type)
            t = scalar_type(a)
            return a if t.kind in "ub" else np.abs(a) if t.real else wrap(abs(int(a)), t)

        return elementwise(one, x)

    def sign(self, x: Any) -> Any:
        def one(a: Any) -> Any:
            a = self.scalar(a)
            t = self.real_type(a)
            a = typed(a, t)
            return t.numpy.type(int(a > 0) - int(a < 0))

        return elementwise(one, x)

    def test(self, f: Callable[[Any], Any], x: Any) -> Any:
        def one(a: Any) -> Any:
            a = rounded(self.scalar(a))
            return np.bool_(f(a)) if scalar_type(a).real else np.bool_(False)

        return elementwise(one, x)

    def bits(self, f: Callable[[int, int], int], x: Any) -> Any:
        def one(a: Any) -> Any:
            a = self.scalar(a)
            t = self.number_type(a)
            if t.real:
                raise Unsupported("bits of a real")
            return wrap(f(int(typed(a, t)) & ((1 << t.bits) - 1), t.bits), I32)

        return elementwise(one, x)

    def bit_cast(self, x: Any, t: Type) -> Any:
        x = rounded(self.scalar(x))
        if scalar_type(x).bits != t.bits:
            raise Unsupported("bit_cast of another width")
        return np.frombuffer(x.tobytes(), t.numpy)[0]

    # ---- functions of several
    def two(self, op: str, x: Any, y: Any, real: bool = False) -> Any:
        def one(a: Any, b: Any) -> Any:
            a, b = self.scalar(a), self.scalar(b)
            t = self.real_type(a, b) if real else self.number_type(a, b)
            return self.apply(op, self.convert(a, t), self.convert(b, t), t)

        return elementwise(one, self.vector(x), self.vector(y))

    def many(self, op: str, *args: Any) -> Any:
        if len(args) == 1:
            args = args[0].items if isinstance(args[0], Mat) else tuple(args[0])
        return reduce(lambda a, b: self.two(op, a, b), args)

    def atan2(self, x: Any, y: Any) -> Any:
        def one(a: Any, b: Any) -> Any:
            a, b = self.scalar(a), self.scalar(b)
            t = self.real_type(a, b)
            if isinstance(a, Lit) and isinstance(b, Lit):
                raise Unsupported("a function of literals")
            wide = typed(a, t), typed(b, t)
            if t.bits == 16:
                return cast(libm("atan2", *map(np.float32, wide)), t)
            return libm("atan2", *wide)

        return elementwise(one, x, y)

    def clamp(self, x: Any, low: Any, high: Any) -> Any:
        return self.two("min", high, self.two("max", low, x))

    def mix(self, x: Any, y: Any, a: Any) -> Any:
        return self.binary("+", self.binary("*", x, self.binary("-", 1.0, a)), self.binary("*", y, a))

    # ---- vectors and matrices
    def build(self, rows: Any, dtype: Any = None) -> Mat:
        rows = [r.items if isinstance(r, Mat) else r for r in rows]
        nested = isinstance(rows[0], (list, tuple))
        shape = (len(rows), len(rows[0])) if nested else (len(rows),)
        items = [self.scalar(x) for r in rows for x in (r if nested else (r,))]
        t = reduce(meet, map(scalar_type, items))
        return (
            Mat(shape, tuple(self.convert(x, t) for x in items))
            if dtype is None
            else of_type(Mat(shape, tuple(items)), _mat(shape, dtype))
        )

    def sum(self, items: Any) -> Any:
        return reduce(lambda a, b: self.binary("+", a, b), items)

    def inner(self, x: Any, y: Any) -> Any:
        return self.sum([self.binary("*", a, b) for a, b in zip(x, y, strict=True)])

    def matmul(self, x: Mat, y: Mat) -> Any:
        rows = [x.items] if len(x.shape) == 1 else [x.row(i).items for i in range(x.shape[0])]
        columns = [y.items] if len(y.shape) == 1 else [y.items[j :: y.shape[1]] for j in range(y.shape[1])]
        if x.shape[-1] != y.shape[0]:
            raise Unsupported("shapes differ")
        items = tuple(self.inner(r, c) for r in rows for c in columns)
        shape = x.shape[:-1] + y.shape[1:]
        return Mat(shape, items) if shape else items[0]

    def cross(self, x: Mat, y: Mat) -> Any:
        def minor(i: int, j: int) -> Any:
            return self.binary("-", self.binary("*", x.items[i], y.items[j]), self.binary("*", x.items[j], y.items[i]))

        return minor(0, 1) if x.shape == (2,) else Mat((3,), (minor(1, 2), minor(2, 0), minor(0, 1)))

    def method(self, m: Mat, name: str) -> Callable[..., Any]:
        """``m.name`` as a function."""
        table: dict[str, Callable[..., Any]] = {
            "sum": lambda: self.sum(m.items),
            "norm_sqr": lambda: self.inner(m.items, m.items),
            "dot": lambda y: self.inner(m.items, y.items),
            "frobenius_inner": lambda y: self.inner(m.items, y.items),
            "min": lambda: reduce(lambda a, b: self.apply("min", a, b, scalar_type(a)), m.items),
            "max": lambda: reduce(lambda a, b: self.apply("max", a, b, scalar_type(a)), m.items),
            "any": lambda: reduce(lambda a, b: self.apply("|", a, b, U1), map(self.truth, m.items)),
            "all": lambda: reduce(lambda a, b: self.apply("&", a, b, U1), map(self.truth, m.items)),
            "cast": lambda t: self.cast(m, t),
            "cross": lambda y: self.cross(m, y),
            "outer_product": lambda y: Mat(m.shape + y.shape, tuple(self.binary("*", a, b) for a in m.items for b in y.items)),
            "transpose": lambda: self.transpose(m),
            "norm": lambda: self.real("sqrt", self.inner(m.items, m.items)),
            "determinant": lambda: self.binary("-", *(self.binary("*", m.items[i], m.items[j]) for i, j in ((0, 3), (1, 2)))),
            "trace": lambda: self.sum([m.items[i * m.shape[1] + i] for i in range(m.shape[0])]),
        }
        if name not in table:
            raise Unsupported(f"the method {name}")
        return table[name]

    def transpose(self, m: Mat) -> Mat:
        if len(m.shape) == 1:
            return Mat((1, *m.shape), m.items)
        rows, columns = m.shape
        return Mat((columns, rows), tuple(m.items[i * columns + j] for j in range(columns) for i in range(rows)))

    def table(self) -> dict[Any, Callable[..., Any]]:
        """What a call of a name or of ``qd.name`` does; names stand for themselves, Python's own functions for theirs."""
        out: dict[Any, Callable[..., Any]] = {
            **{n: (lambda x, n=n: self.real(n, x)) for n in (*TRANSCENDENTAL, "sqrt", "rsqrt") if n not in ("atan2", "pow")},
            **{n: (lambda x, dtype=None, f=f: self.rounding(f, x, dtype)) for n, f in ROUNDINGS.items()},
            "round": lambda x, dtype=None: self.rounding(round_away, x, dtype),
            "abs": self.abs,
            "sign": self.sign,
            "min": lambda *a: self.many("min", *a),
            "max": lambda *a: self.many("max", *a),
            "pow": lambda x, y: self.binary("**", x, y),
            "atan2": self.atan2,
            "raw_div": lambda x, y: self.two("raw_div", x, y),
            "raw_mod": lambda x, y: self.two("raw_mod", x, y),
            "bit_shr": lambda x, y: elementwise(self._shift_right, x, y),
            "select": self.choose,
            "cast": self.cast,
            "bit_cast": self.bit_cast,
            "isnan": lambda x: self.test(np.isnan, x),
            "isinf": lambda x: self.test(np.isinf, x),
            "popcnt": lambda x: self.bits(lambda a, n: a.bit_count(), x),
            "clz": lambda x: self.bits(lambda a, n: n - a.bit_length(), x),
            "clamp": self.clamp,
            "mix": self.mix,
            "Vector": self.build,
            "Matrix": self.build,
        }
        foreign = {builtins.min: "min", builtins.max: "max", builtins.abs: "abs", builtins.round: "round", builtins.pow: "pow"}
        out |= {f: out[n] for f, n in foreign.items()} | {math.sqrt: out["sqrt"], builtins.sum: self._sum}
        return out | {t: (lambda x, t=t: self.cast(x, t)) for t in (int, float, bool)}

    def _sum(self, x: Any) -> Any:
        return self.sum(x.items if isinstance(x, Mat) else x)

    def _shift_right(self, a: Any, b: Any) -> Any:
        a = rounded(self.scalar(a))
        t = scalar_type(a)
        return binary("shr", a, typed(self.scalar(b), t), t)


def _mat(shape: tuple[int, ...], dtype: Type) -> Any:
    from .values import MatType

    return MatType(shape, dtype)
