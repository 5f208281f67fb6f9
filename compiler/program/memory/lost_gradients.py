"""The message on a gradient that is lost in an array that has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import DifferentiationError, describe, warn_user
from ...passes.dependence.paths import Broken

if TYPE_CHECKING:
    from ..state import ProgramState


def report(program: ProgramState, kernel: str, broken: Broken, by: str, *, strict: bool) -> None:
    """Say that kernel ``kernel`` reads a differentiable value that kernel ``by`` stored where there is no gradient.

    Raises:
        DifferentiationError: ``strict``.
    """
    stored = broken.stored
    line = f" line {stored.line} (`{stored.text.strip()}`)" if stored else ""
    what = (
        f"the gradient is lost in `{broken.array}`, which has none: `{by}`{line} stores a differentiable value to it, and"
        f" `{kernel}` computes from what it reads here"
    )
    hint = (
        f"make `{broken.array}` with needs_grad=True; to stop the gradient here on purpose, write"
        f" stop_grad({broken.array}) before the read"
    )
    if strict:
        raise DifferentiationError(what, broken.loc, hint)
    seen = (kernel, broken.array, broken.loc)
    if seen not in program.warned:
        program.warned.add(seen)
        program.told.append(f"{what}{f' ({broken.loc})' if broken.loc else ''}; do: {hint}")
        warn_user(describe(what, broken.loc, hint))
