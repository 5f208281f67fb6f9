"""The target of Vulkan devices: what the code generator writes for them."""

from __future__ import annotations

from dataclasses import replace

from ...ir.types import f16, f64, i8, i16, u8, u16
from ..gpu.hardware import GpuTarget
from ..text.hardware import translated_target
from .approximate import APPROXIMATIONS
from .features import Features

NAME = "vulkan"
LOOP_COPIES = 4
"""NVIDIA's compiler unrolls no loop in whose body there are branches, as accurate functions have, and heeds no hint of SPIR-V. Lavapipe's
code is not faster for it, and takes twice as long to compile.
"""


def spirv_target(features: Features, block: int = 128) -> GpuTarget:
    """The target of a device.

    Args:
        features: of the device.
        block: threads of a block, a power of two: at most what the device takes, 128 in any case.
    """
    has = {f64: features.float64, f16: features.float16 and features.storage16}
    has |= dict.fromkeys((i16, u16), features.int16 and features.storage16)
    has |= dict.fromkeys((i8, u8), features.int8 and features.storage8)
    missing = frozenset(dtype for dtype, there in has.items() if not there)
    copies = 1 if features.folds_wrongly else LOOP_COPIES
    own = {"approximations": APPROXIMATIONS, "missing": missing, "wide_atomics": features.int64_atomics}
    return replace(translated_target(NAME, block), tapes_on_chip=True, private_tapes=True, loop_copies=copies, **own)
