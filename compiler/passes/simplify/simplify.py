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
PASSES = (forward_in_place, fold_in_place, cse_in_place, dce_in_place)


@verified(lowered=False)
def simplify(kernel: Kernel, rounds: int = ROUNDS) -> Kernel:
    """The kernel with fewer statements and the same results, to the last bit. ``kernel`` itself is left as it is.

    Works on lowered and unlowered kernels, before and after the reverse pass. Loops that own adstacks are never removed.
    """
    out = clone_kernel(kernel)
    for task in out.tasks:
        simplify_in_place(task, rounds)
    return out


def simplify_in_place(task: Task, rounds: int = ROUNDS) -> int:
    """Simplify one task; the number of rounds that it took."""
    for number in range(1, rounds + 1):
        if not any([run(task) for run in PASSES]):  # a list: every pass runs
            return number
    return rounds
