"""Makes the numbers of both sides comparable: f64, one thread, no fast math, the same random numbers and the same clock.

What differs between an f32 run of Taichi and ours may be its reordered arithmetic, the order of atomic sums, the random numbers or the
time of day. Here none of them differs, and what is left is the last digits of a library function, or a fault.
"""

import random
import time
from collections.abc import Callable
from typing import Any

OPTIONS = {"cpu_max_num_threads": 1, "fast_math": False}
"""Of ``ti.init``."""
FRAME_SECONDS = 1 / 60


def prepare(taichi: Any, frames: Callable[[], int]) -> dict[str, Any]:
    """Put f64 in the place of f32, and a clock that counts frames in that of ``time``.

    Args:
        taichi: the module that the program imports.
        frames: how many were shown.

    Returns:
        Options of ``ti.init``.
    """
    random.seed(0)
    wide = taichi.f64
    taichi.f32 = taichi.float32 = wide
    for n in (2, 3, 4):
        setattr(taichi.math, f"vec{n}", taichi.types.vector(n, wide))
        setattr(taichi.math, f"mat{n}", taichi.types.matrix(n, n, wide))
    time.time = lambda: FRAME_SECONDS * frames()
    time.time_ns = lambda: int(1e9 * time.time())
    lanes = {"cpu_lanes": 1} if hasattr(taichi, "capture") else {}  # ours draws in the order of the iterations, too
    return OPTIONS | {"default_fp": wide, **lanes}


def replace_draws(ti: Any) -> None:
    """Replace ``ti.random`` and ``ti.randn``, after ``ti.init``: the n-th number that a program draws is a hash of n."""
    drawn = ti.field(ti.i32, ())
    reals = (float, ti.f64)

    @ti.func
    def uniform(dtype: ti.template() = float):  # type: ignore[valid-type]
        x = ti.cast(ti.atomic_add(drawn[None], 1), ti.u32) * ti.u32(2654435769) + ti.u32(1)
        for _ in ti.static(range(2)):
            x = (x ^ (x >> ti.u32(16))) * ti.u32(73244475)
        x = x ^ (x >> ti.u32(16))
        if ti.static(dtype in reals):
            return ti.cast(x, ti.f64) / 4294967296.0
        else:
            return ti.cast(x, ti.i32)

    @ti.func
    def normal(dtype: ti.template() = float):  # type: ignore[valid-type]
        return ti.sqrt(-2 * ti.log(uniform() + 1e-30)) * ti.cos(6.283185307179586 * uniform())

    ti.random, ti.randn = uniform, normal
