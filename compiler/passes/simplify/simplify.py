"""The simplifier: the exact clean-up passes in turn until none of them changes anything."""

from __future__ import annotations

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
    """Simplify one task; the number of rounds that it took."""
    for number in range(1, rounds + 1):
        if not any([*[run(task) for run in PASSES], dce_in_place(task, keep_slopes)]):  # a list: every pass runs
            return number
    return rounds
