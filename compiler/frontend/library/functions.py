"""Functions that work inside kernels and from Python, and ``lookup``: the lowering of any Python callable that kernels know.

An ``Intrinsic`` is one object for both sides. Called from Python it computes with numbers, numpy arrays and host vectors; the front
end finds its lowering with ``lookup``. A callable from elsewhere offers its lowering as an attribute ``__qd_lower__``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import QdrunTypeError
from ...ir.nodes import Const, Operand
from ...ir.ops import round_away
from ...ir.types import DType, i32, u1
from ..source.keywords import positional, signature
from ..values import matrix, ops, rng
from ..values.values import Arg, MatrixValue, Value
from . import linalg, methods, traced

if TYPE_CHECKING:
    from ..state.builder import FrontBuilder

Lowering = Callable[..., Any]


class Intrinsic:
    """A function with two bodies: ``host`` for Python, ``lower(b, *values)`` for kernels. ``parameters``: see ``keywords.signature``."""

    def __init__(self, name: str, host: Callable[..., Any], lower: Lowering, doc: str, parameters: str = "x") -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc
        self.__signature__ = signature(parameters)
        self.host = host
        self.__qd_lower__ = lower

    def __call__(self, *args: Any, **kw: Any) -> Any:
        """Compute now; with traced arguments, emit."""
        if kw:
            args = tuple(positional(self, args, kw)[0])
        b = traced.builder_of(args)
        if b is not None:
            return traced.call(b, self.__qd_lower__, args, {})
        out = self.host(*args)
        wrap = next((a.__qd_wrap__ for a in args if hasattr(a, "__qd_wrap__")), None)
        if isinstance(out, tuple):
            return tuple(_finished(x, wrap) for x in out)
        return _finished(out, wrap)

    def __repr__(self) -> str:
        return f"<qdrun function {self.__name__}>"


def _finished(x: Any, wrap: Callable[[Any], Any] | None) -> Any:
    """Numpy scalars become Python numbers, arrays what the arguments were."""
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and not x.shape):
        return x.item()
    return wrap(x) if wrap is not None and isinstance(x, np.ndarray) else x


def _lower_real(code: str) -> Lowering:
    """A real function of one argument; integers are taken as ``default_fp``."""

    def one(b: FrontBuilder, p: Operand) -> Operand:
        return ops.emit(b, code, ops.cast_scalar(b, p, ops.real_type(b, p)))

    return lambda b, x: ops.elementwise(lambda p: one(b, p), ops.as_value(b, x))


def real_function(name: str, host: Callable[..., Any], doc: str) -> Intrinsic:
    """The function of kernels that is the operation of this name. ``host``: what it is outside of kernels."""
    return Intrinsic(name, host, _lower_real(name), doc)


sin = real_function("sin", np.sin, "Sine of an angle in radians, element by element. Integers are taken as reals.")
cos = real_function("cos", np.cos, "Cosine of an angle in radians, element by element.")
tan = real_function("tan", np.tan, "Tangent of an angle in radians, element by element.")
asin = real_function("asin", np.arcsin, "Inverse sine, in [-pi/2, pi/2].")
acos = real_function("acos", np.arccos, "Inverse cosine, in [0, pi].")
sinh = real_function("sinh", np.sinh, "Hyperbolic sine.")
cosh = real_function("cosh", np.cosh, "Hyperbolic cosine.")
tanh = real_function("tanh", np.tanh, "Hyperbolic tangent.")
exp = real_function("exp", np.exp, "e to the power x.")
expm1 = real_function("expm1", np.expm1, "exp(x) - 1, without the cancellation near 0.")
log = real_function("log", np.log, "Natural logarithm.")
log1p = real_function("log1p", np.log1p, "log(1 + x), without the cancellation near 0.")
erf = real_function(
    "erf",
    np.vectorize(math.erf, otypes=[float]),
    "The error function: 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x.",
)
erfc = real_function("erfc", np.vectorize(math.erfc, otypes=[float]), "1 - erf(x), without the cancellation for a large x.")
sqrt = real_function("sqrt", np.sqrt, "Square root.")
rsqrt = real_function("rsqrt", lambda x: 1.0 / np.sqrt(x), "1 / sqrt(x).")


def _lower_rounding(code: str) -> Lowering:
    """floor, ceil, round, trunc: integers are their own result; ``dtype`` casts it."""

    def lower(b: FrontBuilder, x: Arg, dtype: Any = None) -> Value:
        def one(p: Operand) -> Operand:
            return p if p.dtype.is_int else ops.emit(b, code, p)

        out = ops.elementwise(one, ops.as_value(b, x))
        return out if dtype is None else ops.cast(b, out, ops.as_dtype(b, dtype))

    return lower


def _host_rounding(f: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda x, dtype=None: f(x) if dtype is None else cast(f(x), dtype)


def _rounding(name: str, f: Callable[[Any], Any], doc: str) -> Intrinsic:
    return Intrinsic(
        name, _host_rounding(f), _lower_rounding(name), f"{doc} The result is real unless ``dtype`` is given.", "x dtype="
    )


floor = _rounding("floor", np.floor, "The largest whole number that is not above x.")
ceil = _rounding("ceil", np.ceil, "The smallest whole number that is not below x.")
round = _rounding("round", round_away, "The nearest whole number; of two, the one away from zero.")
trunc = _rounding("trunc", np.trunc, "x without its fraction.")


abs = Intrinsic("abs", np.abs, ops.absolute, "The absolute value; its gradient at 0 is 0.")


sign = Intrinsic("sign", lambda x: np.sign(x) * 1.0, _lower_real("sgn"), "-1.0, 0.0 or 1.0 by the sign of x; NaN for a NaN.")


def _lower_two(code: str, real: bool = False) -> Lowering:
    """A binary operation on numbers of one type."""
    return lambda b, x, y: ops.of_one_type(b, code, x, y, real)


atan2 = Intrinsic(
    "atan2", np.arctan2, _lower_two("atan2", real=True), "The angle of the point (x2, x1), in [-pi, pi].", "x1 x2"
)
pow = Intrinsic("pow", lambda x, y: x**y, lambda b, x, y: ops.binary(b, "**", x, y), "``base ** exponent``.", "base exponent")


def _lower_many(code: str) -> Lowering:
    """The lowering of min and max of any number of values; of one matrix, its components; ties go to the later operand."""
    two = _lower_two(code)

    def lower(b: FrontBuilder, *args: Any) -> Value:
        values = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        if len(values) == 1:
            only = ops.as_value(b, values[0])
            values = only.items if isinstance(only, MatrixValue) else (only,)
        if not values:
            raise QdrunTypeError(f"{code}() needs at least one value")
        return reduce(lambda x, y: two(b, x, y), values)

    return lower


def _host_many(two: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *args: reduce(two, args[0] if len(args) == 1 else args)


max = Intrinsic(
    "max",
    _host_many(np.maximum),
    _lower_many("max"),
    "The largest of any number of values, element by element; NaN if one is.",
    "*args",
)
min = Intrinsic(
    "min",
    _host_many(np.minimum),
    _lower_many("min"),
    "The smallest of any number of values, element by element; NaN if one is.",
    "*args",
)


def _lower_raw_div(b: FrontBuilder, x: Arg, y: Arg) -> Value:
    def one(p: Operand, q: Operand) -> Operand:
        dtype = ops.number_type(b, p, q)
        code = "div" if dtype.is_real else "cdiv"
        return ops.emit(b, code, ops.cast_scalar(b, p, dtype), ops.cast_scalar(b, q, dtype))

    return ops.elementwise(one, ops.as_value(b, x), ops.as_value(b, y))


def _host_raw_div(x: Any, y: Any) -> Any:
    return int(x / y) if isinstance(x, int) and isinstance(y, int) else x / y


raw_div = Intrinsic("raw_div", _host_raw_div, _lower_raw_div, "Division as in C: integers round towards zero.", "x1 x2")
raw_mod = Intrinsic(
    "raw_mod", np.fmod, _lower_two("crem"), "The remainder as in C, with the sign of x1; of reals it is exact.", "x1 x2"
)
select = Intrinsic(
    "select",
    lambda cond, x, y: np.where(cond, x, y)[()],
    ops.select,
    "``x1`` where ``cond`` holds, else ``x2``, element by element; both are evaluated.",
    "cond x1 x2",
)


def _numpy_type(dtype: Any) -> np.dtype:
    return dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)


def _host_cast(x: Any, dtype: Any) -> Any:
    if hasattr(x, "cast"):
        return x.cast(dtype)
    return np.asarray(x).astype(_numpy_type(dtype))[()]


def _lower_cast(b: FrontBuilder, x: Arg, dtype: Any) -> Value:
    return ops.convert_value(b, x, ops.as_dtype(b, dtype))


def _lower_bit_cast(b: FrontBuilder, x: Arg, dtype: Any) -> Operand:
    target, value = ops.as_dtype(b, dtype), ops.to_operand(b, x)
    if target.bits != value.dtype.bits:
        raise QdrunTypeError(f"bit_cast keeps the number of bits: {value.dtype} cannot become {target}")
    return value if target is value.dtype else b.op("bitcast", value, dtype=target)


def _host_bit_cast(x: Any, dtype: Any) -> Any:
    width = _numpy_type(dtype).itemsize
    kind = "f" if isinstance(x, (float, np.floating)) else "i"
    return np.array(x, f"{kind}{width}").view(_numpy_type(dtype))[()]


cast = Intrinsic("cast", _host_cast, _lower_cast, "``obj`` as ``dtype``, element by element.", "obj dtype")
bit_cast = Intrinsic(
    "bit_cast", _host_bit_cast, _lower_bit_cast, "The bits of a scalar read as another type of the same width.", "obj dtype"
)


def _lower_bits(code: str) -> Lowering:
    """The lowering of popcnt and clz: an i32 count."""

    def lower(b: FrontBuilder, x: Arg) -> Value:
        def one(p: Operand) -> Operand:
            if not p.dtype.is_int:
                raise QdrunTypeError(f"{code} takes integers, not {p.dtype}")
            return b.op(code, ops.cast_scalar(b, p, ops.number_type(b, p)), dtype=i32)

        return ops.elementwise(one, ops.as_value(b, x))

    return lower


def _lower_ffs(b: FrontBuilder, x: Arg) -> Value:
    def one(p: Operand) -> Operand:
        if not p.dtype.is_int:
            raise QdrunTypeError(f"ffs takes integers, not {p.dtype}")
        p = ops.cast_scalar(b, p, ops.number_type(b, p))
        below = b.op("sub", p, Const(1, p.dtype))  # wraps for 0 and the least number, as it is meant to
        found = b.op("popcnt", b.op("xor", p, below), dtype=i32)
        return b.op("select", b.op("eq", p, Const(0, p.dtype)), Const(0, i32), found)

    return ops.elementwise(one, ops.as_value(b, x))


popcnt = Intrinsic("popcnt", lambda x: int(x & 0xFFFFFFFF).bit_count(), _lower_bits("popcnt"), "How many bits are set.")
clz = Intrinsic("clz", lambda x: 32 - int(x & 0xFFFFFFFF).bit_length(), _lower_bits("clz"), "How many high bits are zero.")
ffs = Intrinsic("ffs", lambda x: (x & -x).bit_length(), _lower_ffs, "1 + the position of the lowest set bit; 0 for 0.")


def _lower_class(code: str) -> Lowering:
    def one(b: FrontBuilder, p: Operand) -> Operand:
        return ops.emit(b, code, p) if p.dtype.is_real else Const(False, u1)

    return lambda b, x: ops.elementwise(lambda p: one(b, p), ops.as_value(b, x))


isnan = Intrinsic("isnan", np.isnan, _lower_class("isnan"), "Whether x is not a number.")
isinf = Intrinsic("isinf", np.isinf, _lower_class("isinf"), "Whether x is infinite.")


def _host_random(dtype: Any = float) -> Any:
    kind, generator = _numpy_type(dtype), np.random.default_rng()
    if kind.kind == "f":
        return float(generator.random())
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return kind.type(generator.integers(low, high, dtype=kind, endpoint=True))


def _host_randn(dtype: Any = float) -> float:
    return float(np.random.default_rng().standard_normal())


random = Intrinsic(
    "random", _host_random, rng.lower_random, "A uniform draw: [0, 1) for reals, all values for integers.", "dtype="
)
randn = Intrinsic("randn", _host_randn, rng.lower_randn, "A draw of the standard normal distribution.", "dt=")


def _lower_default(dtype: type) -> Lowering:
    def lower(b: FrontBuilder, x: Arg = 0) -> Value:
        return ops.cast(b, x, ops.as_dtype(b, dtype))

    return lower


def _lower_round(b: FrontBuilder, x: Arg, digits: Any = None) -> Value:
    """Python's ``round(x)`` inside a kernel: real, as ``qd.round``."""
    if digits is not None and not isinstance(digits, DType):
        raise QdrunTypeError("round(x, digits) is not available in kernels", hint="scale the value: round(x * 100) / 100")
    return _lower_rounding("round")(b, x, digits)


def _lower_whole(code: str) -> Lowering:
    """``math.floor`` and ``math.ceil`` give integers."""
    return lambda b, x: ops.cast(b, _lower_rounding(code)(b, x), b.default_ip)


def _lower_sum(b: FrontBuilder, x: Any, start: Any = 0) -> Any:
    items = x.items if isinstance(x, MatrixValue) else tuple(x)
    return reduce(
        lambda p, q: ops.binary(b, "+", p, q), items if ops.is_number(start) and start == 0 and items else (start, *items)
    )


def _lower_truth(name: str) -> Lowering:
    """``any`` and ``all`` of a vector, a matrix or a list."""

    def lowering(b: FrontBuilder, x: Any) -> Operand:
        x = matrix.build(b, x) if isinstance(x, (list, tuple)) else x
        if not isinstance(x, MatrixValue):
            raise QdrunTypeError(f"{name}() takes a vector, a matrix or a list, not {ops.describe_value(x)}")
        return methods.METHODS[name](b, x)

    return lowering


def _lower_log_base(b: FrontBuilder, x: Arg, base: Arg | None = None) -> Value:
    out = _lower_real("log")(b, x)
    return out if base is None else ops.binary(b, "/", out, _lower_real("log")(b, base))


def _lower_square(b: FrontBuilder, x: Arg) -> Value:
    return ops.binary(b, "*", x, x)


FOREIGN: dict[Any, Lowering] = {
    builtins.min: _lower_many("min"),
    builtins.max: _lower_many("max"),
    builtins.abs: ops.absolute,
    builtins.pow: pow.__qd_lower__,
    builtins.round: _lower_round,
    builtins.sum: _lower_sum,
    builtins.any: _lower_truth("any"),
    builtins.all: _lower_truth("all"),
    int: _lower_default(int),
    float: _lower_default(float),
    bool: _lower_default(bool),
    math.floor: _lower_whole("floor"),
    math.ceil: _lower_whole("ceil"),
    math.trunc: _lower_whole("trunc"),
    math.log: _lower_log_base,
    math.pow: lambda b, x, y: ops.binary(b, "**", ops.cast(b, x, b.default_fp) if ops.is_number(x) else x, y),
    math.fabs: ops.absolute,
    math.atan2: atan2.__qd_lower__,
    math.fmod: _lower_two("crem"),
    math.isnan: isnan.__qd_lower__,
    math.isinf: isinf.__qd_lower__,
    **{
        getattr(math, name): _lower_real(name)
        for name in "sin cos tan asin acos sinh cosh tanh exp expm1 log1p erf erfc sqrt".split()
    },
    **{getattr(np, name): _lower_real(name) for name in "sin cos tan sinh cosh tanh exp expm1 log log1p sqrt".split()},
    **{getattr(np, name): _lower_rounding(name) for name in "floor ceil round trunc".split()},
    np.arcsin: _lower_real("asin"),
    np.arccos: _lower_real("acos"),
    np.arctan2: atan2.__qd_lower__,
    np.abs: ops.absolute,
    np.sign: sign.__qd_lower__,
    np.minimum: _lower_two("min"),
    np.maximum: _lower_two("max"),
    np.fmod: _lower_two("crem"),
    np.remainder: lambda b, x, y: ops.binary(b, "%", x, y),
    np.dot: linalg.dot,
    np.square: _lower_square,
    np.where: ops.select,
}
"""Callables of Python, ``math`` and numpy that kernels know."""


def lookup(fn: Any) -> Lowering | None:
    """The lowering ``f(b, *values, **kw)`` of a callable, or None when kernels know nothing of it.

    A scalar type is a cast; a method of a matrix value lowers itself.
    """
    if isinstance(fn, DType):
        return lambda b, x: ops.cast(b, x, fn)
    if isinstance(fn, methods.MatrixMethod):
        return fn
    offer = getattr(fn, "__qd_lower__", None)
    if offer is not None and callable(fn):
        return offer
    try:
        return FOREIGN.get(fn)
    except TypeError:  # not hashable, so nothing that is listed
        return None
