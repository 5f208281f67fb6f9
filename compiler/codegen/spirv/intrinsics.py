"""Calls of LLVM's intrinsics, and of the pseudo functions of the hardware."""

from __future__ import annotations

from collections.abc import Callable

from ..text.lines import CallInst, float_of
from .arith import negative
from .bits import bits_of, float_of_bits
from .body import SpirvBody
from .features import Untranslated
from .fused import fma
from .module import BITS
from .opcodes import BuiltIn, Math, MemoryScope, Opcode, Semantics, StorageClass

Emit = Callable[[SpirvBody, str, list[int], CallInst], int]


def call_intrinsic(f: SpirvBody, x: CallInst) -> bool:
    """A call of ``llvm.*`` or ``qd.*``; whether there is such a function."""
    if x.name.startswith("qd."):
        return _pseudo(f, x)
    emit = _INTRINSICS.get(x.name.split(".")[1])
    if emit is None:
        return False
    args = [f.operand(ty, a) for ty, a in zip(x.types, x.args)]
    f.values[x.result] = emit(f, x.type, args, x)
    return True


def _pseudo(f: SpirvBody, x: CallInst) -> bool:
    m = f.module
    if x.name == "qd.barrier":
        order = Semantics.AcquireRelease | Semantics.UniformMemory | Semantics.WorkgroupMemory
        f.do(Opcode.ControlBarrier, m.number(MemoryScope.Workgroup), m.number(MemoryScope.Workgroup), m.number(order))
        return True
    if x.name == "qd.threads":
        f.values[x.result] = m.threads()
        return True
    number = {"qd.thread": BuiltIn.LocalInvocationId, "qd.block": BuiltIn.WorkgroupId, "qd.blocks": BuiltIn.NumWorkgroups}
    if x.name not in number:
        return False
    three = f.emit(Opcode.Load, m.vector("i32", 3), f.named(m.built_in(number[x.name])))
    f.values[x.result] = f.op(Opcode.CompositeExtract, "i32", three, 0)
    return True


def fence(f: SpirvBody) -> None:
    """All earlier accesses come before all later ones. Vulkan has no order of all fences, which nothing here needs."""
    if f.module.features.fence_waits:
        m = f.module
        word = f.named(m.variable("fence", StorageClass.Workgroup, m.type("i32")))
        f.op(Opcode.AtomicOr, "i32", word, m.number(MemoryScope.Workgroup), m.number(Semantics.Relaxed), m.number(0))
        return
    order = Semantics.AcquireRelease | Semantics.UniformMemory | Semantics.WorkgroupMemory
    f.do(Opcode.MemoryBarrier, f.module.number(MemoryScope.Device), f.module.number(order))


# -- floats
def _function(number: int) -> Emit:
    return lambda f, ty, a, x: f.math(number, ty, *a)


def _extreme_real(order: int) -> Emit:
    """The smaller or the greater one of a number and a literal, which is the result for a NaN if the order is never that of NaNs."""

    def emit(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
        limit = x.args[1]
        if limit.startswith("%") or not float_of(limit):  # neither NaN nor zeros of two signs: their rules would cost more
            raise Untranslated
        return f.op(Opcode.Select, ty, f.op(order, "i1", a[0], a[1]), a[0], a[1])

    return emit


def _fabs(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
    """By its bits: one driver gets the absolute value of a literal wrong. Comparisons use the instruction (``SpirvBody.compared``)."""
    f.magnitudes[x.result] = a[0]
    return _magnitude(f, ty, a[0])


def _magnitude(f: SpirvBody, ty: str, value: int) -> int:
    bits, name = bits_of(f, ty, value)
    return float_of_bits(f, ty, f.op(Opcode.BitwiseAnd, name, bits, f.module.number((1 << BITS[ty] - 1) - 1, name)))


def _copysign(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
    (size, name), (other, _) = (bits_of(f, ty, v) for v in a)
    sign = 1 << BITS[ty] - 1
    size = f.op(Opcode.BitwiseAnd, name, size, f.module.number(sign - 1, name))
    other = f.op(Opcode.BitwiseAnd, name, other, f.module.number(sign, name))
    return float_of_bits(f, ty, f.op(Opcode.BitwiseOr, name, size, other))


def _round(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
    """Halves go away from zero, which GLSL's function need not do."""
    whole = f.math(Math.Trunc, ty, a[0])
    rest = _magnitude(f, ty, f.exact(Opcode.FSub, ty, a[0], whole))
    one = _copysign(f, ty, [f.module.constant(ty, "1.0"), a[0]], x)
    up = f.op(Opcode.FOrdGreaterThanEqual, "i1", rest, f.module.constant(ty, "0.5"))
    return f.op(Opcode.Select, ty, up, f.exact(Opcode.FAdd, ty, whole, one), whole)


def _to_integer(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
    """Truncates; out of range saturates, NaN gives 0: SPIR-V leaves both open."""
    m, source, signed = f.module, x.types[0], "fptosi" in x.name
    n = BITS[ty]
    low, high = (-(1 << n - 1), (1 << n - 1) - 1) if signed else (0, (1 << n) - 1)
    value = f.op(Opcode.ConvertFToS if signed else Opcode.ConvertFToU, ty, a[0])
    below = f.op(Opcode.FOrdLessThan if signed else Opcode.FOrdLessThanEqual, "i1", a[0], m.constant(source, repr(float(low))))
    value = f.op(Opcode.Select, ty, below, m.number(low, ty), value)
    above = f.op(Opcode.FOrdGreaterThanEqual, "i1", a[0], m.constant(source, repr(float(high + 1))))
    value = f.op(Opcode.Select, ty, above, m.number(high, ty), value)
    return f.op(Opcode.Select, ty, f.op(Opcode.IsNan, "i1", a[0]), m.number(0, ty), value)


# -- integers
def _abs(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
    down = f.op(Opcode.SLessThan, "i1", a[0], f.module.number(0, ty))
    other = negative(f, ty, a[0]) if BITS[ty] < 32 else f.op(Opcode.ISub, ty, f.module.number(0, ty), a[0])
    return f.op(Opcode.Select, ty, down, other, a[0])


def _extreme(order: int) -> Emit:
    return lambda f, ty, a, x: f.op(Opcode.Select, ty, f.op(order, "i1", a[0], a[1]), a[0], a[1])


def _rotated(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
    """The high half of two numbers side by side, moved up by a count modulo the width."""
    m, n = f.module, BITS[ty]
    up = f.op(Opcode.BitwiseAnd, ty, a[2], m.number(n - 1, ty))
    down = f.op(Opcode.BitwiseAnd, ty, f.op(Opcode.ISub, ty, m.number(n, ty), up), m.number(n - 1, ty))
    high, low = f.op(Opcode.ShiftLeftLogical, ty, a[0], up), f.op(Opcode.ShiftRightLogical, ty, a[1], down)
    moved = f.op(Opcode.INotEqual, "i1", up, m.number(0, ty))
    return f.op(Opcode.Select, ty, moved, f.op(Opcode.BitwiseOr, ty, high, low), a[0])


def _halves(f: SpirvBody, value: int) -> tuple[int, int]:
    """The low and the high 32 bits of an i64."""
    both = f.emit(Opcode.Bitcast, f.module.vector("i32", 2), value)
    return f.op(Opcode.CompositeExtract, "i32", both, 0), f.op(Opcode.CompositeExtract, "i32", both, 1)


def _counted(
    count: Callable[[SpirvBody, int], int],
    join: Callable[[SpirvBody, int, int], int],
    narrow: Callable[[SpirvBody, str, int], int],
) -> Emit:
    """A count of bits, which devices have for 32 of them: of a wide number by halves (low, high), of a narrow one by ``narrow``."""

    def emit(f: SpirvBody, ty: str, a: list[int], x: CallInst) -> int:
        if ty == "i32":
            return count(f, a[0])
        if ty == "i64":
            return f.op(Opcode.UConvert, ty, join(f, *_halves(f, a[0])))
        wide = narrow(f, ty, f.op(Opcode.UConvert, "i32", a[0]))
        return f.op(Opcode.UConvert, ty, wide)

    return emit


def _ones(f: SpirvBody, value: int) -> int:
    return f.op(Opcode.BitCount, "i32", value)


def _leading(f: SpirvBody, value: int) -> int:
    """FindUMsb gives -1 for zero, so that 31 - that is 32."""
    return f.op(Opcode.ISub, "i32", f.module.number(31), f.math(Math.FindUMsb, "i32", value))


def _trailing(f: SpirvBody, value: int) -> int:
    """FindILsb gives -1 for zero; LLVM counts 32."""
    found = f.math(Math.FindILsb, "i32", value)
    none = f.op(Opcode.IEqual, "i1", value, f.module.number(0))
    return f.op(Opcode.Select, "i32", none, f.module.number(32), found)


def _either(f: SpirvBody, first: int, second: int) -> int:
    """A count that ends in the first half, or goes on in the second one."""
    whole = f.op(Opcode.IEqual, "i1", first, f.module.number(32))
    return f.op(Opcode.Select, "i32", whole, f.op(Opcode.IAdd, "i32", second, f.module.number(32)), first)


def _leading_narrow(f: SpirvBody, ty: str, value: int) -> int:
    return f.op(Opcode.ISub, "i32", _leading(f, value), f.module.number(32 - BITS[ty]))


def _trailing_narrow(f: SpirvBody, ty: str, value: int) -> int:
    return _trailing(f, f.op(Opcode.BitwiseOr, "i32", value, f.module.number(1 << BITS[ty])))


_INTRINSICS: dict[str, Emit] = {
    "fma": lambda f, ty, a, x: fma(f, ty, a),
    "sin": _function(Math.Sin),  # these three are approximate
    "cos": _function(Math.Cos),
    "exp2": _function(Math.Exp2),
    "sqrt": _function(Math.Sqrt),
    "floor": _function(Math.Floor),
    "ceil": _function(Math.Ceil),
    "trunc": _function(Math.Trunc),
    "rint": _function(Math.RoundEven),
    "minnum": _extreme_real(Opcode.FOrdLessThan),
    "maxnum": _extreme_real(Opcode.FOrdGreaterThan),
    "minimum": _extreme_real(Opcode.FUnordLessThan),
    "maximum": _extreme_real(Opcode.FUnordGreaterThan),
    "fabs": _fabs,
    "copysign": _copysign,
    "round": _round,
    "fptosi": _to_integer,
    "fptoui": _to_integer,
    "abs": _abs,
    "smin": _extreme(Opcode.SLessThan),
    "smax": _extreme(Opcode.SGreaterThan),
    "umin": _extreme(Opcode.ULessThan),
    "umax": _extreme(Opcode.UGreaterThan),
    "fshl": _rotated,
    "ctpop": _counted(
        _ones, lambda f, low, high: f.op(Opcode.IAdd, "i32", _ones(f, low), _ones(f, high)), lambda f, ty, v: _ones(f, v)
    ),
    "ctlz": _counted(_leading, lambda f, low, high: _either(f, _leading(f, high), _leading(f, low)), _leading_narrow),
    "cttz": _counted(_trailing, lambda f, low, high: _either(f, _trailing(f, low), _trailing(f, high)), _trailing_narrow),
}
"""By the name between ``llvm.`` and the types."""
