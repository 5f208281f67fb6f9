"""The target of Vulkan devices: what the code generator writes for them."""

from __future__ import annotations

from dataclasses import replace

from ..gpu.hardware import GpuTarget
from ..text.hardware import translated_target
from .approximate import APPROXIMATIONS
from .features import Features

NAME = "vulkan"


def spirv_target(features: Features, block: int = 128) -> GpuTarget:
    """The target of a device.

    Args:
        features: of the device.
        block: threads of a block, a power of two: at most what the device takes, 128 in any case.
    """
    return replace(translated_target(NAME, block), approximations=APPROXIMATIONS)
