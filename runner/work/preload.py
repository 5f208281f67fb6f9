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
from ...jobs.loading import load_code
from .spec import Shape

MOST_SHAPES = 64
"""Of a run; the code of further ones is loaded by their first trials."""
LIMIT_S = 30.0
"""All of it may take so long; a trial of any shape may begin then."""


class Preload:
    """What a worker does once, before the first trial.

    Nobody has claimed bytes for this. But who wants to begin has claimed some, and waits here: so one shape after the other is built, and
    only those that need no more than all who wait have claimed together.

    Args:
        shapes: of the run.
        load: builds a trial of a shape and loads its code; whatever it raises is dropped.
        limit_s: after so many seconds trials may begin.
    """

    def __init__(self, shapes: Sequence[Shape], load: Callable[[Shape], None], limit_s: float = LIMIT_S) -> None:
        self._shapes = sorted(shapes, key=lambda shape: shape.bytes)  # the largest last: more may wait by then
        self._load, self._limit_s, self.claimed = load, limit_s, 0
        self._turn, self._over = threading.Lock(), threading.Event()
        if len(shapes) < 2:  # the first trial loads it
            self._over.set()

    def before(self, claimed: int | None) -> None:
        """Return when a trial may begin. ``claimed``: bytes that it will hold, and does not yet."""
        if self._over.is_set():
            return
        self.claimed += claimed or 0
        with self._turn:
            if not self._over.is_set():
                # a thread, for a build that hangs: the trial hangs as well, and has a time limit
                thread = threading.Thread(target=Context().run, args=(self._all,), name="preload", daemon=True)
                thread.start()
                thread.join(self._limit_s)
                self._over.set()

    def _all(self) -> None:
        end = time.monotonic() + self._limit_s
        for shape in self._shapes:
            if self._over.is_set() or time.monotonic() > end:
                return
            if shape.bytes <= self.claimed:
                with suppress(BaseException):  # a user's code
                    self._load(shape)


def build_and_load(job: type[Job[Any]], spec: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Build a trial and load its code; nothing of it runs.

    Raises:
        BaseException: what the job raises.
    """
    made = job(job.Params.model_validate(spec["params"]), wanted=spec["gradients"], seed=spec["seed"])
    with made.opened(**options):
        load_code(made)


__all__ = ["LIMIT_S", "MOST_SHAPES", "Preload", "build_and_load"]
