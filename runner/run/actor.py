"""The worker as a class that Ray makes actors of."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..work import Worker as _Worker


class Worker(_Worker):
    """``work.Worker``. A class of its own without code: Ray disassembles every class that it exports, which takes 0.1 s for a large one."""


@cache
def actor_class() -> Any:
    """The actor class, once for a process: every other one would be exported anew."""
    import ray

    return ray.remote(Worker)
