"""The target of Apple's GPUs."""

from __future__ import annotations

from dataclasses import replace

from ...ir.types import DType, f64
from ..gpu.hardware import GpuTarget
from ..text.hardware import translated_target


def metal_target(block: int = 128, wide: bool = False) -> GpuTarget:
    """The target of every chip: all have the same code.

    Args:
        block: threads of a block, a power of two.
        wide: a GPU that has f64 and atomics of 8 bytes, as no Apple GPU does: for tests on the emulated device.
    """
    missing: frozenset[DType] = frozenset() if wide else frozenset({f64})
    return replace(translated_target("metal", block), missing=missing, wide_atomics=wide)
