"""``qd.simt.grid``: what concerns all threads of a loop. On some GPUs they wait for each other; anywhere, the next loop waits for all."""

from __future__ import annotations

from ...frontend.syntax.block import grid_sync as sync
from ...frontend.syntax.lanes import fence as _fence
from ..function import func as _func


@_func
def mem_fence() -> None:
    """All threads see what this thread has written before the fence, if they see what it writes after it."""
    _fence("grid")


memfence = mem_fence


__all__ = ["mem_fence", "memfence", "sync"]
