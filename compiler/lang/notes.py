"""Warnings at the user's line, and the note on what ``fast_math`` would change."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from ..adstack.machine import machine
from ..errors import GradientWarning, PerformanceWarning, describe
from ..ir.nodes import Kernel
from ..transforms.approximable import approximable

_MOSTLY = 0.5
"""The share of a kernel's instructions from which on ``fast_math`` is worth a note."""


def warn_user(text: str, category: type[Warning] = GradientWarning) -> None:
    """A warning at the user's line."""
    ours = "qdrun.compiler."
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame = frame.f_back
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno)


def note_fast_math(kernel: Kernel) -> None:
    """A ``PerformanceWarning`` where most of a kernel's arithmetic would be approximate instructions with ``fast_math``."""
    text = fast_math_note(kernel)
    if text:
        warn_user(text, PerformanceWarning)


def fast_math_note(kernel: Kernel) -> str:
    """What ``fast_math`` would change in a lowered kernel, with its line and what to do; empty where that is not most of its time."""
    found = approximable(kernel)
    if found.share < _MOSTLY:
        return ""
    return describe(
        f"about {found.share:.0%} of the instructions of kernel `{kernel.name}` compute f32 {', '.join(found.names)} accurately",
        kernel.loc,
        "qd.init(fast_math=True) takes the GPU's approximate instructions, two to four times faster (docs/gpu-math.md has"
        " their errors); or keep the accuracy and ignore this PerformanceWarning",
    )


def launch_note(kernel: Any, args: tuple[Any, ...], arch: str) -> str:
    """``fast_math_note`` of the kernel of one launch, bound or not; empty where ``fast_math`` is on, or changes nothing on ``arch``."""
    instance = getattr(kernel, "instance", None)
    if instance is not None:
        kernel, args = kernel.kernel, (instance, *args)
    variant, _ = kernel.variant(args, {})
    chosen = variant.program.options.fast_math or not machine(arch, fast_math=True).approximate
    return "" if chosen else fast_math_note(variant.recipe.ir)
