"""Code of all shapes of a run, loaded before the first trial of a worker begins.

A GPU loads code only while nothing runs on it: a trial of a new shape would wait for the longest kernel of all other lanes, and they could
launch nothing meanwhile. So a worker with lanes builds one trial of each shape beforehand, compiles its kernels and loads them. They stay
loaded. What goes wrong here goes wrong in the trials, too, and is told by them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any

from ...jobs.base import Job
from ...jobs.core.inputs import located
from ...jobs.core.session import load_code
from ..study.target import input_files
from .program_cache import options_of
from .spec import BatchSpec

MOST_SHAPES = 64
"""Maximum number of preloaded shapes of a run; the code of others is loaded by their first trials."""
LIMIT_S = 30.0
"""All of it may take so long; a trial of any shape may begin then."""


def preload(shapes: Sequence[BatchSpec], claimed: int, load: Callable[[BatchSpec], None], limit_s: float = LIMIT_S) -> None:
    """Load the code of shapes, one after the other; returns when trials may begin.

    No lease covers these bytes. But waiting trials have leases, and hold nothing yet: a shape that needs more than they have claimed
    together is left to its first trial.

    Args:
        shapes: of the run, a trial of each with what it claims.
        claimed: bytes that the trials which wait have claimed.
        load: builds a trial of a shape and loads its code; whatever it raises is dropped.
        limit_s: after so many seconds trials may begin.
    """
    over, end = threading.Event(), time.monotonic() + limit_s

    def work() -> None:
        for shape in shapes:
            if over.is_set() or time.monotonic() > end:
                return
            if (shape.claim_bytes or 0) <= claimed:
                with suppress(BaseException):  # a user's code
                    load(shape)

    # a thread, for a build that hangs: its trial hangs as well, and has a time limit
    thread = threading.Thread(target=Context().run, args=(work,), name="preload", daemon=True)
    thread.start()
    thread.join(limit_s)
    over.set()


def build_and_load(job: type[Job[Any]], spec: Mapping[str, Any]) -> None:
    """Build a trial and load its code; nothing of it runs.

    Raises:
        BaseException: what the job raises.
    """
    params = located(job.Params.model_validate(spec["params"]), input_files(spec))
    made = job(params, wanted=spec["gradients"], seed=spec["seed"])
    with made.opened(**options_of(spec)):
        load_code(made)


__all__ = ["LIMIT_S", "MOST_SHAPES", "build_and_load", "preload"]
