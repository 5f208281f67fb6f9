"""Whether the process behind a run lives, by its heartbeat. Clocks of two machines differ, and clocks jump: what the time of a heartbeat
says is believed where it is plausible; else it is looked whether the heart beats now.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from .layout import BEAT_EVERY_S, LOST_AFTER_S, RunFolder

WATCH_S, WATCH_EVERY_S = 2.5 * BEAT_EVERY_S, 0.25
MOST_SKEW_S = 86_400.0
"""Clocks of machines that share a store differ by less: a heartbeat that is older than a day is of a run that is lost."""


def seems(folder: RunFolder) -> bool | None:
    """Whether a run lives by its last heartbeat alone; None where that is too old or too new for the clock of this machine."""
    silent_s = folder.silent_s()
    if -BEAT_EVERY_S <= silent_s < LOST_AFTER_S:
        return True
    return False if silent_s > MOST_SKEW_S else None


def beating(folders: Iterable[RunFolder], seconds: float) -> list[RunFolder]:
    """The runs with a heartbeat within so many seconds. All are watched at once; returns as soon as all have beaten."""
    before = [(folder, folder.last_beat()) for folder in folders]
    found, end = list[RunFolder](), time.monotonic() + seconds
    while before and time.monotonic() < end:
        time.sleep(WATCH_EVERY_S)
        found += [folder for folder, beat in before if folder.last_beat() != beat]
        before = [(folder, beat) for folder, beat in before if folder not in found]
    return found


def lives(folder: RunFolder) -> bool:
    """Whether a run lives; watches it for some seconds where its last heartbeat does not say."""
    known = seems(folder)
    return bool(beating((folder,), WATCH_S)) if known is None else known


__all__ = ["beating", "lives", "seems"]
