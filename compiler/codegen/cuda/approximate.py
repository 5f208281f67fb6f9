"""f32 functions as one or a few approximate instructions of NVIDIA's GPUs: what ``fast_math=True`` chooses. Never in another order.

===========  ==========================================  =====================================================================
operation    code                                        error
===========  ==========================================  =====================================================================
sin, cos     sin.approx, cos.approx                      1.3e-6 absolute within [-10, 10], growing with |x| (x / 2**24)
tan          their quotient by div.approx                that of both, relative; near a pole or a zero unlimited
exp          ex2.approx of what is left of log2(e) * x   2 units of the last place
div          div.approx                                  2 units; 0 when the divisor exceeds 2**126
sqrt         sqrt.approx                                 1 unit
rsqrt        rsqrt.approx                                1 unit (2 by sqrt and a division)
===========  ==========================================  =====================================================================

log, tanh, pow, asin, acos and atan2 stay accurate: the instructions for them (lg2.approx, tanh.approx) lose the small results that
gradients are made of. Everything in f64 stays accurate.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.types import f32
from ..llvm.function import Fn
from ..math.lanes import Lanes


def _near(f: Fn, name: str, x: str) -> str:
    """An intrinsic that may be approximate."""
    full = f"llvm.{name}.f32"
    f.module.declare(full, f"declare float @{full}(float)")
    return f.t(f"call afn float @{full}(float {x})")


def _div(f: Fn, a: str, b: str) -> str:
    return f.t(f"fdiv afn float {a}, {b}")


def _tan(f: Fn, x: str) -> str:
    return _div(f, _near(f, "sin", x), _near(f, "cos", x))


def _exp(f: Fn, x: str) -> str:
    """2**(log2(e) * x), the whole part of the exponent taken out first: then the instruction's argument keeps all its bits. Past the
    range of normal numbers the rest stays in the argument, and the instruction gives 0 or infinity, or what the factor makes subnormal.
    """
    e = Lanes(f, f32, False)
    magic = 1.5 * 2.0**23 + 127  # its last bits are the exponent of the factor
    t = e.fma(x, e.c(_LOG2E[0]), e.c(magic))
    t = f.intrinsic("minnum", f32, False, f.intrinsic("maxnum", f32, False, t, e.c(magic - 126)), e.c(magic + 126))
    k = e.sub(e.c(magic), t)
    r = e.fma(x, e.c(_LOG2E[1]), e.fma(x, e.c(_LOG2E[0]), k))
    f.module.declare(_EX2, f"declare float @{_EX2}(float)")
    return e.mul(f.t(f"call float @{_EX2}(float {r})"), e.from_bits(f.t(f"shl i32 {e.bits(t)}, 23")))


def _rsqrt(f: Fn, x: str) -> str:
    return _div(f, "1.0", _near(f, "sqrt", x))


_EX2 = "llvm.nvvm.ex2.approx.ftz.f"
_LOG2E = (1.4426950216293335, 1.9259629911266175e-08)
APPROXIMATIONS: dict[str, Callable[..., str]] = {
    "sin": lambda f, x: _near(f, "sin", x),
    "cos": lambda f, x: _near(f, "cos", x),
    "sqrt": lambda f, x: _near(f, "sqrt", x),
    "tan": _tan,
    "exp": _exp,
    "div": _div,
    "rsqrt": _rsqrt,
}
"""The emitter of each operation on f32 registers."""
