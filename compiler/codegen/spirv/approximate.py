"""f32 functions as GLSL's, which ``fast_math=True`` chooses. What Vulkan promises of them, and what two drivers do:

==========  ====================================  =========================  =============================  =====================
operation   code                                  promised                   NVIDIA                         lavapipe
==========  ====================================  =========================  =============================  =====================
sin, cos    Sin, Cos                              2**-11 within [-pi, pi]    as on CUDA: 1.3e-6 within 10
tan         their quotient
exp         Exp2 of what is left of log2(e) * x   3 to 4 units               2 units
==========  ====================================  =========================  =============================  =====================

Divisions and square roots are what Vulkan has in any case. All others stay accurate, as on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable

from ..gpu.approximate import exp, near, tan

APPROXIMATIONS: dict[str, Callable[..., str]] = {
    "sin": lambda f, x: near(f, "sin", x),
    "cos": lambda f, x: near(f, "cos", x),
    "tan": tan,
    "exp": lambda f, x: exp(f, x, lambda f, r: near(f, "exp2", r)),
}
"""The emitter of each operation on f32 registers."""
