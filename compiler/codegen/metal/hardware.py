"""The target of Apple's GPUs."""

from __future__ import annotations

from ..gpu.hardware import GpuTarget
from ..text.hardware import translated_target


def metal_target(chip: str = "", block: int = 128) -> GpuTarget:
    """The target of a chip (``apple7`` is the M1's): all have the same code.

    Args:
        chip: for the key of what is compiled.
        block: threads of a block, a power of two.
    """
    return translated_target("metal", block)
