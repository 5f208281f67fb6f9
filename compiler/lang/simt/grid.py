"""``qd.simt.grid``: what concerns all threads of a launch. None waits for all others: a loop ends for that, and the next begins."""

from __future__ import annotations

from ...frontend.syntax.lanes import fence as _fence
from ...refused import refused_names
from ..function import func as _func


@_func
def mem_fence() -> None:
    """All threads see what this thread has written before the fence, if they see what it writes after it."""
    _fence("grid")


memfence = mem_fence

__getattr__ = refused_names(__name__, "simt.grid.")


__all__ = ["mem_fence", "memfence"]
