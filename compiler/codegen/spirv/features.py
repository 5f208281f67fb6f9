"""What a Vulkan device has, as far as code depends on it."""

from __future__ import annotations

from dataclasses import dataclass

CUT_WORD = 0x6B00_0000_0000
"""The address of a word, see ``Features.cuts_loops``."""
ALL_WIDTHS = frozenset((16, 32, 64))


@dataclass(frozen=True, slots=True)
class Features:
    """The features that a module may use. 64-bit integers and buffer addresses are presumed: every module uses them.

    Attributes:
        float64: ``shaderFloat64``.
        float16: ``shaderFloat16``.
        int16: ``shaderInt16``.
        int8: ``shaderInt8``.
        storage16: ``storageBuffer16BitAccess``.
        storage8: ``storageBuffer8BitAccess``.
        int64_atomics: ``shaderBufferInt64Atomics``.
        shared_int64_atomics: ``shaderSharedInt64Atomics``.
        float32_atomic_add: ``shaderBufferFloat32AtomicAdd`` of VK_EXT_shader_atomic_float; else a loop exchanges the bits.
        float64_atomic_add: ``shaderBufferFloat64AtomicAdd``; else a loop exchanges the bits, with ``int64_atomics``.
        fused: bits of the floats whose ``Fma`` is rounded once, as a probe has found; else it is computed from other operations.
        denorm_preserve: bits of the floats that can keep subnormal numbers (``shaderDenormPreserveFloat..``).
        round_to_even: bits of the floats that can round to nearest even (``shaderRoundingModeRTEFloat..``).
        signed_zero: bits of the floats that can keep signed zeros, infinities and NaN (``shaderSignedZeroInfNanPreserveFloat..``).
        fence_waits: a fault of Mesa's lavapipe: the instruction for a fence makes the threads of a block wait for each other. An atomic on
            on-chip memory stands for it.
        folds_wrongly: another fault of it: products and quotients of a zero that its compiler knows are simplified as if there were no
            infinities, NaN and signs of zeros, and long expressions of literals take it time that doubles with each step. The values in
            question are hidden from it.
        cuts_loops: another fault of it: all loops of a thread end after 65,536 iterations in sum. Code writes 1 to the word at
            ``CUT_WORD`` where one does.
    """

    float64: bool = False
    float16: bool = False
    int16: bool = False
    int8: bool = False
    storage16: bool = False
    storage8: bool = False
    int64_atomics: bool = False
    shared_int64_atomics: bool = False
    float32_atomic_add: bool = False
    float64_atomic_add: bool = False
    fused: frozenset[int] = frozenset()
    denorm_preserve: frozenset[int] = frozenset()
    round_to_even: frozenset[int] = frozenset()
    signed_zero: frozenset[int] = frozenset()
    fence_waits: bool = False
    folds_wrongly: bool = False
    cuts_loops: bool = False


NAMES = {
    "float64": ("64-bit floats", "shaderFloat64"),
    "float16": ("16-bit floats", "shaderFloat16"),
    "int16": ("16-bit integers", "shaderInt16"),
    "int8": ("8-bit integers", "shaderInt8"),
    "storage16": ("16-bit values in memory", "storageBuffer16BitAccess"),
    "storage8": ("8-bit values in memory", "storageBuffer8BitAccess"),
    "int64_atomics": ("64-bit atomics", "shaderBufferInt64Atomics"),
    "shared_int64_atomics": ("64-bit atomics on shared arrays", "shaderSharedInt64Atomics"),
}
"""What users and Vulkan call the features that code cannot do without."""


class MissingFeature(Exception):
    """The device lacks a feature, by its name in ``NAMES``."""

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature


class Untranslated(Exception):
    """The line that is being written has a form that is not translated."""


EVERYTHING = Features(
    *[True] * 10, fused=ALL_WIDTHS, denorm_preserve=ALL_WIDTHS, round_to_even=ALL_WIDTHS, signed_zero=ALL_WIDTHS
)
"""A device that has all of it."""
