"""f32 functions as approximate instructions of a GPU, which ``fast_math=True`` chooses: what the tables of several backends share."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.types import f32
from ..llvm.function import Fn
from ..math.lanes import Lanes

_LOG2E = (1.4426950216293335, 1.9259629911266175e-08)


def near(f: Fn, name: str, x: str) -> str:
    """An intrinsic that may be approximate."""
    full = f"llvm.{name}.f32"
    f.module.declare(full, f"declare float @{full}(float)")
    return f.t(f"call afn float @{full}(float {x})")


def quotient(f: Fn, a: str, b: str) -> str:
    """A division that may be approximate."""
    return f.t(f"fdiv afn float {a}, {b}")


def tan(f: Fn, x: str) -> str:
    """The quotient of sine and cosine."""
    return quotient(f, near(f, "sin", x), near(f, "cos", x))


def exp(f: Fn, x: str, power_of_two: Callable[[Fn, str], str]) -> str:
    """2**(log2(e) * x), the whole part of the exponent taken out first: then the instruction's argument keeps all its bits. Past the
    range of normal numbers the rest stays in the argument, and the instruction gives 0 or infinity, or what the factor makes subnormal.
    """
    e = Lanes(f, f32, False)
    magic = 1.5 * 2.0**23 + 127  # its last bits are the exponent of the factor
    t = e.fma(x, e.c(_LOG2E[0]), e.c(magic))
    t = f.intrinsic("minnum", f32, False, f.intrinsic("maxnum", f32, False, t, e.c(magic - 126)), e.c(magic + 126))
    k = e.sub(e.c(magic), t)
    r = e.fma(x, e.c(_LOG2E[1]), e.fma(x, e.c(_LOG2E[0]), k))
    return e.mul(power_of_two(f, r), e.from_bits(f.t(f"shl i32 {e.bits(t)}, 23")))
