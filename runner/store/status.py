"""How a run is doing, from its folder alone; never imports ray."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from .journal import read
from .layout import RunFolder, all_runs
from .owner import ask_to_cancel, cancel_requests
from .replay import replay, run_state
from .table import best, rows_of

STATES = ("running", "done", "failed", "cancelled", "interrupted", "lost", "damaged")


def status(folder: RunFolder) -> dict[str, Any]:
    """The state of one run: its counts by trial status, the best loss so far, seconds, and damaged journal lines."""
    events = read(folder, slim=True)
    info = folder.info()
    found = replay(folder, events=events)
    state, table = run_state(folder, found), rows_of(folder, found)
    smallest = best(table)
    end = found.last_t if state != "running" and found.last_t is not None else time.time()
    return {
        "id": info["id"],
        "folder": folder.uri,
        "state": state,
        "cancel_requested": _asked(folder),
        "trials": len(table),
        "counts": dict(Counter(row["status"] for row in table)),
        "best": smallest and {"trial": smallest["trial"], "loss": smallest["loss"]},
        "seconds": max(0.0, end - info["created"]),
        "damaged_lines": events.damaged,
        "refused_lines": events.refused,
        "timing": found.finished.get("timing") if found.finished else None,
    }


def _asked(folder: RunFolder) -> bool:
    return cancel_requests(folder).whole or folder.files.exists("cancel")  # the latter in runs of format 1


def list_runs(where: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The state of every run under ``where``, oldest first. A run whose files are damaged does not hide the others."""
    return [status_or_damage(folder) for folder in all_runs(where)]


def status_or_damage(folder: RunFolder) -> dict[str, Any]:
    """The state of one run, or ``damaged`` with the reason where its files cannot be read."""
    try:
        return status(folder)
    except (OSError, ValueError, KeyError) as error:
        nothing = {"cancel_requested": False, "trials": 0, "counts": {}, "best": None, "seconds": 0.0, "damaged_lines": 0}
        return {
            "id": folder.name,
            "folder": folder.uri,
            "state": "damaged",
            **nothing,
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
