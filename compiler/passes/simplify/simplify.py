"""The simplifier: the exact clean-up passes in turn until none of them changes anything."""

from __future__ import annotations

from functools import partial

from ...ir.nodes import Kernel, Task
from ...ir.verify import verified
from ..clone import clone_kernel
from .cse import cse_in_place
from .dce import dce_in_place
from .fold import fold_in_place
from .forwarding import forward_in_place

ROUNDS = 8
PASSES = (forward_in_place, fold_in_place, cse_in_place)


@verified(lowered=False)
def simplify(kernel: Kernel, rounds: int = ROUNDS, keep_slopes: bool = False) -> Kernel:
    """The kernel with fewer statements and the same results, to the last bit. ``kernel`` itself is left as it is.

    Works on lowered and unlowered kernels, before and after the reverse pass. Loops that own adstacks are never removed.
    ``keep_slopes`` keeps derivatives that are attached to numbers, also where only a second derivative can need them.
    """
    out = clone_kernel(kernel)
    for task in out.tasks:
        simplify_in_place(task, rounds, keep_slopes)
    return out


def simplify_in_place(task: Task, rounds: int = ROUNDS, keep_slopes: bool = False) -> int:
    """Simplify one task; the number of rounds that it took, of which the last may be a part."""
    passes = (*PASSES, partial(dce_in_place, keep_slopes=keep_slopes))
    unchanged = 0  # passes since the last that changed anything
    for number in range(1, rounds + 1):
        for run in passes:
            unchanged = 0 if run(task) else unchanged + 1
            if unchanged == len(passes):
                return number
    return rounds
