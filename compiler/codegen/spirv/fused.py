"""Fused multiplication and addition where the device's own is rounded twice, which Vulkan allows.

The accurate functions rely on it: ``fma(a, b, -a * b)`` must be the error of a product, which is a number of the same type.
"""

from __future__ import annotations

from .bits import hidden
from .body import SpirvBody
from .module import BITS
from .opcodes import Math, Opcode

_SPLIT = {"float": "4097.0", "double": "134217729.0"}
"""What splits a number into two halves: two to half of its bits, plus one."""


def fma(f: SpirvBody, ty: str, a: list[int]) -> int:
    """``a * b + c``, rounded once; a call of a function of the module where the device rounds twice."""
    if BITS[ty] in f.module.features.fused:
        return f.math(Math.Fma, ty, *a)
    return f.op(Opcode.FunctionCall, ty, _function(f, ty), *a)


def _function(f: SpirvBody, ty: str) -> int:
    m = f.module
    name = f"fma.{ty}"
    found = m.function_of(name)
    if name not in m.own_functions:
        body = SpirvBody(m, f.text)
        m.functions += _written(body, ty, found)
        m.own_functions[name] = list(body.globals)
    for variable in m.own_functions[name]:
        f.named(variable)
    return found


def _written(body: SpirvBody, ty: str, found: int) -> list[int]:
    m, args = body.module, [body.module.id() for _ in range(3)]
    head = [5 << 16 | Opcode.Function, m.type(ty), found, 0, m.function_type(ty, [ty] * 3)]
    for arg in args:
        head += [3 << 16 | Opcode.FunctionParameter, m.type(ty), arg]
    head += [2 << 16 | Opcode.Label, m.id()]
    doubles = ty == "float" and m.features.float64
    body.do(Opcode.ReturnValue, (_in_double(body, args) if doubles else _by_halves(body, ty, args)))
    return body.whole(head)


def _in_double(f: SpirvBody, args: list[int]) -> int:
    """Of f32: the product is exact in f64, and the sum is rounded to odd there, so that rounding it again changes nothing."""
    m = f.module
    a, b, c = (f.op(Opcode.FConvert, "double", x) for x in args)
    product = f.exact(Opcode.FMul, "double", a, b)
    total = f.exact(Opcode.FAdd, "double", product, c)
    rest = _rest(f, "double", product, c, total)
    zero, bits = m.constant("double", "0.0"), f.op(Opcode.Bitcast, "i64", total)
    even = f.op(Opcode.IEqual, "i1", f.op(Opcode.BitwiseAnd, "i64", bits, m.number(1, "i64")), m.number(0, "i64"))
    odd_is_near = f.op(Opcode.LogicalAnd, "i1", even, f.op(Opcode.FOrdNotEqual, "i1", rest, zero))
    up = f.op(Opcode.FOrdGreaterThan, "i1", rest, zero)
    away = f.op(Opcode.LogicalEqual, "i1", up, f.op(Opcode.FOrdGreaterThan, "i1", total, zero))
    step = f.op(Opcode.Select, "i64", away, m.number(1, "i64"), m.number(-1, "i64"))
    moved = f.op(Opcode.Bitcast, "double", f.op(Opcode.IAdd, "i64", bits, step))
    return f.op(Opcode.FConvert, "float", f.op(Opcode.Select, "double", odd_is_near, moved, total))


def _by_halves(f: SpirvBody, ty: str, args: list[int]) -> int:
    """Dekker's product: each factor is two numbers of half as many digits, whose products are exact. The last sum may round once more; an
    error that is no number, of factors near the end of the range, is left out.
    """
    a, b, c = args
    product = f.exact(Opcode.FMul, ty, a, b)
    hide = f.module.features.folds_wrongly
    split = f.module.constant(ty, _SPLIT[ty])
    split = hidden(f, ty, split) if hide else split
    (a1, a2), (b1, b2) = _halves(f, ty, a, split), _halves(f, ty, b, split)
    error = f.exact(Opcode.FSub, ty, f.exact(Opcode.FMul, ty, a1, b1), product)
    for x, y in ((a1, b2), (a2, b1), (a2, b2)):
        error = f.exact(Opcode.FAdd, ty, error, f.exact(Opcode.FMul, ty, x, y))
    total = f.exact(Opcode.FAdd, ty, product, c)
    small = f.exact(Opcode.FAdd, ty, _rest(f, ty, product, c, total), error)
    whole = f.exact(Opcode.FAdd, ty, total, small)
    some = f.op(Opcode.FOrdNotEqual, "i1", small, f.module.constant(ty, "0.0"))  # else a sum of zeros would lose its sign
    return f.op(Opcode.Select, ty, some, whole, total)


def _halves(f: SpirvBody, ty: str, x: int, split: int) -> tuple[int, int]:
    big = f.exact(Opcode.FMul, ty, x, split)
    high = f.exact(Opcode.FSub, ty, big, f.exact(Opcode.FSub, ty, big, x))
    return high, f.exact(Opcode.FSub, ty, x, high)


def _rest(f: SpirvBody, ty: str, a: int, b: int, total: int) -> int:
    """What a sum has lost."""
    back = f.exact(Opcode.FSub, ty, total, a)
    left = f.exact(Opcode.FSub, ty, a, f.exact(Opcode.FSub, ty, total, back))
    return f.exact(Opcode.FAdd, ty, left, f.exact(Opcode.FSub, ty, b, back))
