"""Loops whose threads meet in blocks have neither a gradient nor a tangent: accesses to shared arrays are not tracked."""

from __future__ import annotations

from ...errors import DifferentiationError
from ...ir.nodes import Kernel
from ...ir.walk import is_fence, meets, place_of, walk


def refuse_blocks(kernel: Kernel, what: str) -> None:
    """Stop where a task of the kernel has a barrier, an operation of a wave, a fence or a shared array. ``what``: "gradient" or "tangent".

    Raises:
        DifferentiationError: at the first of them.
    """
    for task in kernel.tasks:
        for s in walk(task.body):
            place = place_of(s)
            if meets(s) or is_fence(s) or (place is not None and place.buffer.kind == "block"):
                how = "qd.ad.grad_replaced and qd.ad.grad_for give a gradient of your own"
                raise DifferentiationError(
                    f"the threads of this loop meet in blocks, and there is no {what} of that yet",
                    getattr(s, "loc", None),
                    f"write the loop with fields, without qd.simt{'; ' + how if what == 'gradient' else ''}",
                )
