"""Computes the state of a run from its folder. Never imports ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from typing_extensions import TypedDict

from ..fields import Data, about
from .layout import RunFolder, all_runs
from .owner import WATCH_S, ask_to_cancel, beating, cancel_requests, lives, seems
from .replay import Replayer, replay, run_state
from .summary import summary

STATES = ("running", "done", "failed", "cancelled", "interrupted", "lost", "damaged")


class RunState(TypedDict):
    """The state of one run."""

    id: Annotated[str, about("id of the run")]
    folder: Annotated[str, about("its folder or URI")]
    state: Annotated[str, about("running, done, failed, cancelled, interrupted, lost, damaged")]
    cancel_requested: Annotated[bool, about("whether a stop was requested")]
    trials: Annotated[int, about("number of trials")]
    counts: Annotated[dict[str, int], about("number of trials by status")]
    best: Annotated[Data | None, about("trial and loss of the smallest loss so far")]
    seconds: Annotated[float, about("from the submission to now, or to the end")]
    damaged_lines: Annotated[int, about("unreadable lines of the journal")]
    refused_lines: Annotated[int, about("lines that a former owner wrote after it had lost the run")]
    timing: Annotated[Data | None, about("seconds by phase, after the end")]
    error: Annotated[str | None, about("the damage of a damaged run")]


def status(folder: RunFolder, alive: Callable[[RunFolder], bool] = lives) -> RunState:
    """The state of one run. ``alive``: whether the process behind a run lives."""
    info, found = folder.info(), summary(folder, alive)
    last, timing = found.pop("last_t"), found["timing"] or {}
    if found["state"] != "running" and timing.get("ended_s") is not None:
        seconds = float(timing["ended_s"])  # as `submit` and `resume` say it: from the command on
    else:
        seconds = (last if found["state"] != "running" and last is not None else folder.clock()) - info["created"]
    asked = cancel_requests(folder).whole
    head: Any = {"id": info["id"], "folder": folder.uri, "cancel_requested": asked, "seconds": max(0.0, seconds), "error": None}
    return head | found


def wait(folder: RunFolder, every_s: float = 1.0, sleep: Callable[[float], object] = time.sleep) -> None:
    """Wait until a run is not running any more. Looking takes at most a tenth of the time: a large journal is read less often."""
    reader = Replayer(folder)
    while True:
        clock = time.monotonic()
        if run_state(folder, reader.look()) != "running":
            return
        sleep(max(every_s, 10 * (time.monotonic() - clock)))


def list_runs(where: str | os.PathLike[str]) -> list[RunState]:
    """The state of every run under ``where``, oldest first. A run whose files are damaged does not hide the others."""
    return statuses(all_runs(where))


def statuses(folders: Iterable[RunFolder]) -> list[RunState]:
    """The state of each run, as of ``status_or_damage``. Those that must be watched to see whether they live are watched at once."""
    unknown: dict[str, RunFolder] = {}

    def alive(folder: RunFolder) -> bool:
        known = seems(folder)
        if known is None:
            unknown[folder.uri] = folder
        return bool(known)

    found = {folder.uri: status_or_damage(folder, alive) for folder in folders}
    for folder in beating(unknown.values(), WATCH_S):
        found[folder.uri] = status_or_damage(folder, lambda _: True)
    return list(found.values())


def status_or_damage(folder: RunFolder, alive: Callable[[RunFolder], bool] = lives) -> RunState:
    """The state of one run, or ``damaged`` with the reason where its files cannot be read. ``alive``: see ``status``."""
    try:
        return status(folder, alive)
    except (OSError, ValueError, KeyError) as error:
        return {
            "id": folder.name,
            "folder": folder.uri,
            "state": "damaged",
            "cancel_requested": False,
            "trials": 0,
            "counts": {},
            "best": None,
            "seconds": 0.0,
            "damaged_lines": 0,
            "refused_lines": 0,
            "timing": None,
            "error": str(error),
        }


def request_cancel(folder: RunFolder, trial: str | None = None) -> tuple[str, bool]:
    """Ask the process behind a run to stop, or to stop one trial; gives the run's state, and whether there was anything to ask.

    Raises:
        LookupError: the run has no such trial.
        StorageFull: no room for the request.
    """
    found = replay(folder)
    if trial is not None and trial not in found.trials:
        raise LookupError(f"{folder.name} has no trial {trial}\n  do: `qdrun results {folder.uri}` lists them")
    state = run_state(folder, found)
    over = trial is not None and found.trials[trial].entry is not None
    if state == "running" and not over:
        ask_to_cancel(folder, trial)
    return state, state == "running" and not over
