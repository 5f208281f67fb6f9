"""The simplifier: the exact clean-up passes in turn until none of them can change anything."""

from __future__ import annotations

from ...ir.alias import Aliases
from ...ir.nodes import Kernel, Task
from ...ir.verify import verified
from ...ir.walk import places_of
from ..clone import clone_kernel
from .cse import cse_in_place
from .dce import OVERWRITTEN, STATEMENTS, dce_in_place
from .fold import fold_in_place
from .forwarding import forward_in_place

ROUNDS = 8
FORWARD, FOLD, CSE, DCE = "forward", "fold", "cse", "dce"
ENABLES = {FORWARD: {FOLD, CSE, DCE}, FOLD: {FORWARD, FOLD, CSE, DCE}, CSE: {FORWARD, FOLD, DCE}}
"""The passes that may find more after a change by one. A second run of forwarding or CSE alone finds nothing: both replace the operands of
a statement before they look at it."""


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
    aliases = Aliases(places_of(task))  # no pass adds a place
    waiting = {FORWARD, FOLD, CSE, DCE}
    for number in range(1, rounds + 1):
        for name in (FORWARD, FOLD, CSE, DCE):
            if name not in waiting:
                continue
            waiting.remove(name)
            if name == DCE:
                waiting |= _enabled_by(dce_in_place(task, keep_slopes))
            elif _run(name, task, aliases):
                waiting |= ENABLES[name]
            if not waiting:
                return number
    return rounds


def _run(name: str, task: Task, aliases: Aliases) -> bool:
    if name == FOLD:
        return fold_in_place(task)
    return forward_in_place(task, aliases) if name == FORWARD else cse_in_place(task, aliases)


def _enabled_by(dropped: int) -> set[str]:
    """The passes that may find more after dead code went. Without other statements than values, memory and locals are written as before."""
    if dropped < STATEMENTS:
        return set()
    return {FORWARD, CSE, DCE} if dropped == OVERWRITTEN else {FORWARD, CSE}
