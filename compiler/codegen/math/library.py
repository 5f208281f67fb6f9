"""Our mathematical functions as LLVM functions: one per name, type and width, made when a module first calls it."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.ops import TABLE
from ...ir.types import DType, f32, f64
from ..llvm.function import Fn, LlvmModule
from . import error_function, functions, hyperbolic, remainder, scalar
from .lanes import Lanes

BODIES: dict[str, Callable[..., str]] = {
    "sin": functions.sin,
    "cos": functions.cos,
    "tan": functions.tan,
    "asin": functions.asin,
    "acos": functions.acos,
    "atan2": functions.atan2,
    "exp": functions.exp,
    "log": functions.log,
    "tanh": functions.tanh,
    "pow": functions.pow_,
    "sinh": hyperbolic.sinh,
    "cosh": hyperbolic.cosh,
    "expm1": hyperbolic.expm1,
    "log1p": hyperbolic.log1p,
    "erf": error_function.erf,
    "erfc": error_function.erfc,
    "crem": remainder.fmod,
    "mod": remainder.floor_mod,
}
_ONE = {
    "sin": scalar.sin,
    "cos": scalar.cos,
    "tan": scalar.tan,
    "exp": scalar.exp,
    "log": scalar.log,
    "tanh": scalar.tanh,
    "pow": scalar.pow_,
}
"""The scalar functions for machines without C's library."""
_LIMITED = frozenset(("sin", "cos", "tan"))


def call(f: Fn, name: str, d: DType, v: bool, args: list[str]) -> str:
    """A call of our function; ``v``: on every lane."""
    ty, symbol = f.ty(d, v), f"qd_{name}_{f.suffix(d, v)}"
    if symbol not in f.module.helpers:
        f.module.helpers[symbol] = ""  # its place: what it declares goes after
        f.module.helpers[symbol] = define(f.module, symbol, name, d, f.lanes if v else 1)
    inline = " alwaysinline" if f.access and name not in _LIMITED else ""
    return f.t(f"call {ty} @{symbol}({', '.join(f'{ty} {a}' for a in args)}){inline}")


def sin_cos(module: LlvmModule, suffix: str) -> str:
    """The name of the function that gives both; ``suffix``: of the type, such as ``f64`` or ``v8f64``."""
    symbol = f"qd_sin_cos_{suffix}"
    if symbol not in module.helpers:
        width, bits = suffix.split("f")
        f = Fn(module, int(width[1:] or 1))
        e = Lanes(f, f32 if bits == "32" else f64, bool(width))
        large, near = _near(e, "%a")
        values = (_far(e, name, "%a", large, y) for name, y in zip(("sin", "cos"), functions.sin_cos(e, near)))
        both = f"{{ {e.float_ty}, {e.float_ty} }}"
        result = "poison"
        for k, value in enumerate(values):
            result = f.t(f"insertvalue {both} {result}, {e.float_ty} {value}, {k}")
        module.helpers[symbol] = _text(f, both, symbol, f"{e.float_ty} %a", result)
    return symbol


def _text(f: Fn, ty: str, symbol: str, parameters: str, result: str) -> str:
    """A function. Inlined where it is of vectors, which do not travel well through a call, and on a GPU, where nothing does."""
    inline = "" if f.module.target.libm and f.lanes == 1 else "alwaysinline "
    head = f"define internal {ty} @{symbol}({parameters}) {inline}nounwind {{\nentry:"
    return "\n".join([head, *f.slots, *f.head, *f.lines, f"  ret {ty} {result}", "}"])


def define(module: LlvmModule, symbol: str, name: str, d: DType, lanes: int) -> str:
    """The text of one function."""
    f = Fn(module, lanes)
    v = lanes > 1
    e = Lanes(f, d, v)
    args = ["%a", "%b"][: TABLE[name].arity]
    if not v and not module.target.libm:
        result = (_ONE.get(name) or BODIES[name])(e, *args)
    else:
        result = _limited(e, name, args[0]) if name in _LIMITED else BODIES[name](e, *args)
    ty = f.ty(d, v)
    return _text(f, ty, symbol, ", ".join(f"{ty} {a}" for a in args), result)


def _limited(e: Lanes, name: str, x: str) -> str:
    """Arguments too large for the reduction go to C's function, one by one; lanes that have none give NaN."""
    large, near = _near(e, x)
    return _far(e, name, x, large, BODIES[name](e, near))


def _near(e: Lanes, x: str) -> tuple[str, str]:
    """Whether an argument is too large for the reduction, and the argument, or then 0."""
    large = e.cmp("ogt", e.unary("fabs", x), e.c(functions.trig_limit(e.single)))
    return large, e.select(large, e.c(0.0), x)


def _far(e: Lanes, name: str, x: str, large: str, y: str) -> str:
    """The result ``y``, or C's where ``large``."""
    if not e.f.module.target.libm:
        return e.select(large, e.c(float("nan")), y)
    f, ty = e.f, e.float_ty
    out = f.slot(ty)
    f.put(f"store {ty} {y}, ptr {out}")
    if e.v:
        _each_lane(e, name, x, large, out)
    else:
        slow, done = f.label("slow"), f.label("done")
        f.branch(large, slow, done, unlikely=True)
        f.at(slow)
        f.put(f"store {ty} {libm(f, name, e.d, [x])}, ptr {out}")
        f.jump(done)
        f.at(done)
    return f.t(f"load {ty}, ptr {out}")


def libm(f: Fn, name: str, d: DType, args: list[str]) -> str:
    """A call of C's function on scalars."""
    ty, symbol = f.ty(d, False), name + ("f" if d.bits == 32 else "")
    f.module.declare(symbol, f"declare {ty} @{symbol}({', '.join([ty] * len(args))}) nounwind willreturn memory(none)")
    inline = " alwaysinline" if f.access and name not in _LIMITED else ""
    return f.t(f"call {ty} @{symbol}({', '.join(f'{ty} {a}' for a in args)}){inline}")


def _each_lane(e: Lanes, name: str, x: str, large: str, out: str) -> None:
    """Replace the results of the lanes in ``large``; rarely any."""
    f, n = e.f, e.f.lanes
    ty, bits = f.ty(e.d, False), f"i{n}"
    left, turn, done = f.slot(bits), f.label("turn"), f.label("done")
    mask = f.t(f"bitcast {e.flag_ty} {large} to {bits}")
    f.put(f"store {bits} {mask}, ptr {left}")
    f.branch(f.t(f"icmp ne {bits} {mask}, 0"), turn, done, unlikely=True)
    f.at(turn)
    now = f.t(f"load {bits}, ptr {left}")
    f.module.declare(f"cttz{n}", f"declare {bits} @llvm.cttz.{bits}({bits}, i1)")
    lane = f.t(f"call {bits} @llvm.cttz.{bits}({bits} {now}, i1 true)")
    if n != 64:
        lane = f.t(f"{'zext' if n < 64 else 'trunc'} {bits} {lane} to i64")
    one = libm(f, name, e.d, [f.t(f"extractelement {e.float_ty} {x}, i64 {lane}")])
    results = f.t(f"load {e.float_ty}, ptr {out}")  # whole vectors only: an indexed slot would have to live in memory
    f.put(f"store {e.float_ty} {f.t(f'insertelement {e.float_ty} {results}, {ty} {one}, i64 {lane}')}, ptr {out}")
    rest = f.t(f"and {bits} {now}, {f.t(f'sub {bits} {now}, 1')}")
    f.put(f"store {bits} {rest}, ptr {left}")
    f.branch(f.t(f"icmp ne {bits} {rest}, 0"), turn, done)
    f.at(done)
