"""Warnings at the user's line, and the note on what ``fast_math`` would change."""

from __future__ import annotations

from ..errors import PerformanceWarning, describe, warn_user
from ..ir.nodes import Kernel
from ..passes.approximable import approximable

_MOSTLY = 0.5
"""The share of a kernel's instructions from which on ``fast_math`` is worth a note."""


def note_fast_math(kernel: Kernel) -> None:
    """A ``PerformanceWarning`` where most of a kernel's arithmetic would be approximate instructions with ``fast_math``."""
    text = fast_math_note(kernel)
    if text:
        warn_user(text, PerformanceWarning)


def fast_math_note(kernel: Kernel) -> str:
    """A note that ``fast_math`` would replace most instructions of a lowered kernel, with its line; empty if it would not."""
    found = approximable(kernel)
    if found.share < _MOSTLY:
        return ""
    return describe(
        f"about {found.share:.0%} of the instructions of kernel `{kernel.name}` compute f32 {', '.join(found.names)} accurately",
        kernel.loc,
        "qd.init(fast_math=True) takes the GPU's approximate instructions, two to four times faster (docs/gpu-math.md has"
        " their errors); or keep the accuracy and ignore this PerformanceWarning",
    )
