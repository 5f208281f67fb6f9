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

from ..gpu.approximate import exp, near, quotient, tan
from ..llvm.function import Fn


def _exp2(f: Fn, x: str) -> str:
    f.module.declare(_EX2, f"declare float @{_EX2}(float)")
    return f.t(f"call float @{_EX2}(float {x})")


def _rsqrt(f: Fn, x: str) -> str:
    return quotient(f, "1.0", near(f, "sqrt", x))


_EX2 = "llvm.nvvm.ex2.approx.ftz.f"
APPROXIMATIONS: dict[str, Callable[..., str]] = {
    "sin": lambda f, x: near(f, "sin", x),
    "cos": lambda f, x: near(f, "cos", x),
    "sqrt": lambda f, x: near(f, "sqrt", x),
    "tan": tan,
    "exp": lambda f, x: exp(f, x, _exp2),
    "div": quotient,
    "rsqrt": _rsqrt,
}
"""The emitter of each operation on f32 registers."""
